// torch.ops.lngrad without torch's dispatcher, for code that Inductor has made: the same arguments, the same results. A call that
// is not plain, or that somebody hears of, is the operator's.
#pragma once

#include <ATen/record_function.h>

#include "operators.h"

namespace lngrad {

constexpr int64_t QUICK = 1 << 15;  // elements of a call that is over before another thread could have had the GIL

template <class Work>
auto run_directly(const Tensor& x, Work work) {
  optional<py::gil_scoped_release> no_gil;
  if (x.numel() >= QUICK || !x.is_cpu()) no_gil.emplace();  // a device's memory may have to be waited for
  return work();
}

template <class... Tensors>
bool wants_derivative(const Tensors&... tensors) {
  const auto requires_grad = [](const optional<Tensor>& tensor) { return tensor && tensor->requires_grad(); };
  return at::GradMode::is_enabled() && (requires_grad(tensors) || ...);
}

// A tuple, with None for what there is not: the tensor without elements that the operator has would cost as much as any other.
template <class... Tensors>
PyObject* tuple_of(Tensors&... tensors) {
  return py::make_tuple(wrap(tensors)...).release().ptr();
}

// y, mean and rstd, and with switches the total; null where the call is the operator's.
template <bool has_switches>
PyObject* direct_forward(PyObject* const* given) {
  Tensor x;
  optional<Tensor> gamma, beta, residual;
  Sizes shape;
  double eps;
  Switches switches;
  if (!take(given[0], x) || !take(given[1], shape) || !take(given[2], gamma) || !take(given[3], beta) || !take(given[4], eps))
    return nullptr;
  if constexpr (has_switches)
    if (!take(given[5], residual) || !take(given[6], switches.centred) || !take(given[7], switches.offset)) return nullptr;
  if (wants_derivative(x, gamma, beta, residual)) return nullptr;
  auto done = run_directly(x, [&] { return forward(FORWARD, x, shape, gamma, beta, eps, residual, switches); });
  if (!done) return nullptr;
  auto& [y, mean, rstd, total] = *done;
  if constexpr (has_switches) return tuple_of(y, mean, rstd, total);
  return tuple_of(y, mean, rstd);
}

// dx, dgamma and dbeta.
template <bool has_switches>
PyObject* direct_backward(PyObject* const* given) {
  Tensor dy, x, rstd;
  optional<Tensor> mean, gamma, dtotal;
  Sizes shape;
  Mask mask;
  Switches switches;
  if (!take(given[0], dy) || !take(given[1], x) || !take(given[2], shape) || !take(given[3], mean) || !take(given[4], rstd) ||
      !take(given[5], gamma) || !take(given[6], mask))
    return nullptr;
  if constexpr (has_switches)
    if (!take(given[7], dtotal) || !take(given[8], switches.centred) || !take(given[9], switches.offset)) return nullptr;
  if (wants_derivative(dy, x, mean, rstd, gamma, dtotal)) return nullptr;
  mask[2] = mask[2] && switches.centred;  // beta is a centred normalization's
  auto done = run_directly(
      x, [&] { return backward(BACKWARD, dy, x, shape, mean.value_or(Tensor()), rstd, gamma, {}, mask, dtotal, switches); });
  if (!done) return nullptr;
  auto& [dx, dgamma, dbeta] = *done;
  return tuple_of(dx, dgamma, dbeta);
}

inline constexpr std::array<PyObject* (*)(PyObject* const*), ROWS.size()> DIRECT{direct_forward<false>, direct_backward<false>,
                                                                                direct_forward<true>, direct_backward<true>};

template <size_t which>
PyObject* direct(PyObject*, PyObject* const* given, Py_ssize_t number) {
  HANDLE_TH_ERRORS
  if (number == static_cast<Py_ssize_t>(ROWS[which].arguments) && nobody_listens() && !at::hasCallbacks())
    if (PyObject* results = DIRECT[which](given)) return results;
  return PyObject_VectorcallDict(python.operators[which], given, number, nullptr);
  END_HANDLE_TH_ERRORS
}

}  // namespace lngrad
