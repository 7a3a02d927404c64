// The kernels of lngrad::layer_norm, lngrad::norm and their backwards, for whoever calls them by these names: code that Inductor
// has made, above all. Arguments come on torch's stack; a call that is not plain goes on to Python's kernel as it came.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "calls.h"
#include "plain.h"

namespace lngrad {

using Stack = torch::jit::Stack;
using Given = at::ArrayRef<c10::IValue>;
using Results = c10::SmallVector<Tensor, 4>;

inline optional<Tensor> tensor_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : optional<Tensor>(value.toTensor());
}

// y, mean and rstd, and with switches the total; nothing where the call is Python's.
inline optional<Results> run_forward(Given given) {
  const bool has_switches = given.size() == 8;
  if (!given[1].isIntList()) return {};  // sizes that a compiler leaves open
  const Switches switches = has_switches ? Switches{given[6].toBool(), given[7].toDouble()} : Switches{};
  auto done = forward(FORWARD, given[0].toTensor(), given[1].toDimVector(), tensor_of(given[2]), tensor_of(given[3]),
                      given[4].toDouble(), has_switches ? tensor_of(given[5]) : std::nullopt, switches);
  if (!done) return {};
  auto& [y, mean, rstd, total] = *done;
  Results results{std::move(y), std::move(mean), std::move(rstd)};
  if (has_switches) results.push_back(std::move(total));
  return results;
}

// dx, dgamma and dbeta.
inline optional<Results> run_backward(Given given) {
  const bool has_switches = given.size() == 10;
  if (!given[2].isIntList()) return {};
  const Switches switches = has_switches ? Switches{given[8].toBool(), given[9].toDouble()} : Switches{};
  const auto wanted = given[6].toBoolList();
  const Mask mask{wanted[0], wanted[1], wanted[2] && switches.centred};  // beta is a centred normalization's
  auto done = backward(BACKWARD, given[0].toTensor(), given[1].toTensor(), given[2].toDimVector(),
                       tensor_of(given[3]).value_or(Tensor()), given[4].toTensor(), tensor_of(given[5]), {}, mask,
                       has_switches ? tensor_of(given[7]) : std::nullopt, switches);
  if (!done) return {};
  auto& [dx, dgamma, dbeta] = *done;
  return Results{std::move(dx), std::move(dgamma), std::move(dbeta)};
}

struct Row {
  const char* name;
  size_t arguments;
  size_t x;  // its place among them
  optional<Results> (*run)(Given);
};
inline constexpr std::array<Row, 4> ROWS{{{"lngrad::layer_norm", 5, 0, run_forward},
                                          {"lngrad::layer_norm_backward", 7, 1, run_backward},
                                          {"lngrad::norm", 8, 0, run_forward},
                                          {"lngrad::norm_backward", 10, 1, run_backward}}};

// Whether a call is nothing but its kernel: no derivative of it is wanted, and nobody else hears of it.
inline bool is_kernel_alone(Given given) {
  if (!nobody_listens()) return false;
  for (const auto& value : given) {
    if (!value.isTensor()) continue;
    const Tensor& tensor = value.toTensor();
    if (!tensor.defined()) continue;
    if (!is_plain(tensor) || (tensor.requires_grad() && at::GradMode::is_enabled())) return false;
  }
  return true;
}

// The keys that are served: of each device, below autograd and with it.
inline constexpr std::array<c10::DispatchKey, 4> KEYS{c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                                                      c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA};

// Python's kernels, which ours stand before. Never destroyed: Python may be gone by then.
inline auto& pythons = *new std::array<std::array<optional<c10::SafeKernelFunction>, KEYS.size()>, ROWS.size()>();

template <size_t which, size_t key>
void operator_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr Row row = ROWS[which];
  const Given given(stack->data() + stack->size() - row.arguments, row.arguments);
  if (key % 2 == 0 || is_kernel_alone(given)) {
    if (auto results = row.run(given)) {
      const Tensor x = given[row.x].toTensor();
      torch::jit::drop(*stack, row.arguments);
      for (Tensor& result : *results)  // an operator must return a tensor: one without elements for what there is not
        stack->emplace_back(result.defined() ? std::move(result) : make(x, {0}, x.scalar_type()));
      return;
    }
  }
  pythons[which][key]->callBoxed(op, keys, stack);
}

template <size_t key, size_t... which>
void serve(torch::Library& library, std::index_sequence<which...>) {
  const auto one = [&](const char* name, auto& pythons_own, torch::CppFunction&& ours) {
    pythons_own.emplace(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").getComputedKernelForDispatchKey(KEYS[key]));
    library.impl(name, torch::dispatch(KEYS[key], std::move(ours)));
  };
  (one(ROWS[which].name, pythons[which][key], torch::CppFunction::makeFromBoxedFunction<&operator_kernel<which, key>>()), ...);
}

// Registers them, for as long as the library is there.
inline void serve_operators(torch::Library& library) {
  constexpr auto all = std::make_index_sequence<ROWS.size()>();
  serve<0>(library, all);
  serve<1>(library, all);
  serve<2>(library, all);
  serve<3>(library, all);
}

}  // namespace lngrad
