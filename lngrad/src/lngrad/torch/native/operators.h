// The kernels of lngrad::layer_norm, norm, gated_norm and their backwards, for whoever calls them by these names: code that
// Inductor has made, above all. Arguments come on torch's stack; a call that is not plain goes on to Python's kernel as it came.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include "calls.h"
#include "plain.h"

namespace lngrad {

using Stack = torch::jit::Stack;
using Given = at::ArrayRef<c10::IValue>;
using Results = c10::SmallVector<Tensor, 4>;

// `take` reads an argument of torch's stack; false for sizes that a compiler leaves open.
inline bool take(const c10::IValue& value, Maybe maybe) {
  if (!value.isNone()) maybe.tensor = value.toTensor();
  return true;
}
inline bool take(const c10::IValue& value, Tensor& tensor) { return take(value, Maybe{tensor}) && tensor.defined(); }
inline bool take(const c10::IValue& value, double& number) { return number = value.toDouble(), true; }
inline bool take(const c10::IValue& value, bool& flag) { return flag = value.toBool(), true; }
inline bool take(const c10::IValue& value, Mask& mask) {
  const auto wanted = value.toBoolList();
  for (size_t k = 0; k < mask.size(); k++) mask[k] = wanted[k];
  return true;
}
inline bool take(const c10::IValue& value, Sizes& shape) {
  if (!value.isIntList()) return false;
  const auto sizes = value.toDimVector();
  shape.assign(sizes.begin(), sizes.end());
  return true;
}

enum Which : size_t { LAYER_NORM, LAYER_NORM_BACKWARD, NORM, NORM_BACKWARD, GATED_NORM, GATED_NORM_BACKWARD };
struct Row {
  const char* name;
  size_t arguments;
};
inline constexpr std::array<Row, 6> ROWS{{{"lngrad::layer_norm", 5}, {"lngrad::layer_norm_backward", 7},
                                          {"lngrad::norm", 8}, {"lngrad::norm_backward", 10},
                                          {"lngrad::gated_norm", 7}, {"lngrad::gated_norm_backward", 9}}};

// The operator that a call is; its backward follows it.
inline Which row_of(const Call& call) {
  if (call.gate.defined()) return GATED_NORM;
  const bool plain = call.switches.centred && call.switches.offset == 0.0;
  return plain && !call.residual.defined() && !call.dtotal.defined() ? LAYER_NORM : NORM;
}

// The arguments of an operator in their order, of torch's stack or of Python's; false where the call is not ours.
template <class Arguments>
bool read(size_t which, const Arguments& given, Call& call) {
  const auto all = [&](auto&&... places) {
    size_t k = 0;
    return (take(given[k++], places) && ...);
  };
  auto& [dy, x, mean, rstd, gamma, beta, residual, dtotal, gate, shape, eps, wanted, switches] = call;
  auto& [centred, offset, norm_before_gate, takes_samples] = switches;
  Mask mask;
  takes_samples = which >= NORM;
  if (which >= GATED_NORM) centred = false;
  const bool ours = which == LAYER_NORM ? all(x, shape, Maybe{gamma}, Maybe{beta}, eps)
      : which == LAYER_NORM_BACKWARD    ? all(dy, x, shape, Maybe{mean}, rstd, Maybe{gamma}, mask)
      : which == NORM                   ? all(x, shape, Maybe{gamma}, Maybe{beta}, eps, Maybe{residual}, centred, offset)
      : which == NORM_BACKWARD ? all(dy, x, shape, Maybe{mean}, rstd, Maybe{gamma}, mask, Maybe{dtotal}, centred, offset)
      : which == GATED_NORM    ? all(x, shape, Maybe{gamma}, gate, eps, offset, norm_before_gate)
                               : all(dy, x, shape, rstd, Maybe{gamma}, gate, mask, offset, norm_before_gate);
  if (ours && which % 2) call.want(mask);
  // Rows without a mean have no beta here, and no dbeta: Python's kernels know whether there is an operator for them.
  if (!centred && (beta.defined() || (which == NORM_BACKWARD && mask[2]))) return false;
  return ours;
}

// The results of an operator; nothing where the call is Python's.
inline optional<Results> run(size_t which, const Call& call) {
  if (which % 2) {
    auto done = backward(BACKWARD, call);
    if (!done) return {};
    auto& [dx, dgamma, dbeta, dgate] = *done;
    return Results{std::move(dx), std::move(dgamma), std::move(which == GATED_NORM_BACKWARD ? dgate : dbeta)};
  }
  auto done = forward(FORWARD, call);
  if (!done) return {};
  auto& [y, mean, rstd, total] = *done;
  if (which == GATED_NORM) return Results{std::move(y), std::move(rstd)};
  Results results{std::move(y), std::move(mean), std::move(rstd)};
  if (which == NORM) results.push_back(std::move(total));
  return results;
}

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
  constexpr size_t arguments = ROWS[which].arguments;
  const Given given(stack->data() + stack->size() - arguments, arguments);
  Call call;
  if ((key % 2 == 0 || is_kernel_alone(given)) && read(which, given, call)) {
    if (auto results = run(which, call)) {
      torch::jit::drop(*stack, arguments);
      for (Tensor& result : *results)  // an operator must return a tensor: one without elements for what there is not
        stack->emplace_back(result.defined() ? std::move(result) : make(call.x, {0}, call.x.scalar_type()));
      return;
    }
  }
  pythons[which][key]->callBoxed(op, keys, stack);
}

template <size_t key, size_t... which>
void serve(torch::Library& library, std::index_sequence<which...>) {
  const auto stand_before = [&](const char* name, auto& pythons_own, torch::CppFunction&& ours) {
    pythons_own.emplace(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").getComputedKernelForDispatchKey(KEYS[key]));
    library.impl(name, torch::dispatch(KEYS[key], std::move(ours)));
  };
  (stand_before(ROWS[which].name, pythons[which][key],
                torch::CppFunction::makeFromBoxedFunction<&operator_kernel<which, key>>()),
   ...);
}

// Registers them, for as long as the library is there.
inline void serve_operators(torch::Library& library) {
  constexpr auto all = std::make_index_sequence<ROWS.size()>();
  serve<0>(library, all);
  serve<1>(library, all);
  serve<2>(library, all);
  serve<3>(library, all);
}

// --- Without torch's dispatcher ---------------------------------------------------------------------------------------

constexpr int64_t QUICK = 1 << 15;  // elements of a call that is over before another thread could have had the GIL

template <class Work>
auto run_directly(const Tensor& x, Work work) {
  optional<py::gil_scoped_release> no_gil;
  if (x.numel() >= QUICK || !x.is_cpu()) no_gil.emplace();  // a device's memory may have to be waited for
  return work();
}

inline bool wants_derivative(const Call& call) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor* tensor : {&call.dy, &call.x, &call.mean, &call.rstd, &call.gamma, &call.beta, &call.residual,
                               &call.dtotal, &call.gate})
    if (tensor->defined() && tensor->requires_grad()) return true;
  return false;
}

// An operator for code that Inductor has made: its results, with None for what there is not, since a tensor without elements
// costs as much as any other. A call that is not plain, or that somebody hears of, is the operator's.
template <size_t which>
PyObject* direct(PyObject*, PyObject* const* given, Py_ssize_t number) {
  HANDLE_TH_ERRORS
  Call call;
  if (number == static_cast<Py_ssize_t>(ROWS[which].arguments) && nobody_listens() && !at::hasCallbacks() &&
      read(which, given, call) && !wants_derivative(call))
    if (auto results = run_directly(call.x, [&] { return run(which, call); }))
      return PySequence_Tuple(wrap_list(*results).ptr());
  return PyObject_VectorcallDict(python.operators[which], given, number, nullptr);
  END_HANDLE_TH_ERRORS
}

}  // namespace lngrad
