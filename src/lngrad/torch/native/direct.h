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

inline bool wants_derivative(const Call& call) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor* one : {&call.dy, &call.x, &call.mean, &call.rstd, &call.gamma, &call.beta, &call.second})
    if (one->defined() && one->requires_grad()) return true;
  return false;
}

// A tuple, with None for what there is not: the tensor without elements that the operator has would cost as much as any other.
inline PyObject* tuple_of(const Results& results) {
  py::object tuple = py::steal(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
  for (size_t k = 0; k < results.size(); k++) PyTuple_SetItem(tuple.ptr(), k, wrap(results[k]).release().ptr());
  return tuple.release().ptr();
}

template <size_t which>
PyObject* direct(PyObject*, PyObject* const* given, Py_ssize_t number) {
  HANDLE_TH_ERRORS
  Call call;
  if (number == static_cast<Py_ssize_t>(ROWS[which].arguments) && nobody_listens() && !at::hasCallbacks() &&
      read(which, given, call) && !wants_derivative(call))
    if (auto results = run_directly(call.x, [&] { return run(which, call); })) return tuple_of(*results);
  return PyObject_VectorcallDict(python.operators[which], given, number, nullptr);
  END_HANDLE_TH_ERRORS
}

}  // namespace lngrad
