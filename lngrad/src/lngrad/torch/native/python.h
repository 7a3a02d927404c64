// The functions of Python that are asked, and how.
#pragma once

#define PYBIND11_SIMPLE_GIL_MANAGEMENT  // in torch's python_error: no structure of a Python's threads
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include <c10/util/SmallVector.h>

#include "objects.h"

namespace lngrad {

using at::Tensor;
using std::optional;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Mask = std::array<bool, 3>;  // of the three gradients that an operator has, in its order
using Sizes = c10::SmallVector<int64_t, 8>;

// Which normalization: core/problem.py, Normalization, without alpha, which torch's functions do not have.
struct Switches {
  bool centred = true;
  double offset = 0.0;
  bool norm_before_gate = true;
  bool takes_samples = false;  // whether gamma and beta may be one for each sample
};

// Results; one that is not wanted, or that the normalization does not have, is undefined.
struct Forward {
  Tensor y, mean, rstd, total;
};
struct Gradients {
  Tensor dx, dgamma, dbeta, dgate;
};
struct Wanted {
  bool dx = true, dgamma = true, dbeta = true, dgate = false;
};

// The arguments of a call, forward or backward; a tensor that is not there is undefined.
struct Call {
  Tensor dy, x, mean, rstd, gamma, beta, residual, dtotal, gate;
  Sizes shape;
  double eps = 0.0;
  Wanted wanted;
  Switches switches;

  // Of the operator that computes it: a gate's gradient comes in the place of beta's.
  Mask mask() const { return {wanted.dx, wanted.dgamma, gate.defined() ? wanted.dgate : wanted.dbeta}; }
  void want(const Mask& mask) {
    const bool gated = gate.defined();
    wanted = {mask[0], mask[1], mask[2] && !gated && switches.centred, mask[2] && gated};
  }
};

enum Kind : int64_t { ATEN_FORWARD, ATEN_BACKWARD, FORWARD, BACKWARD };

// The functions of Python, by the names that `register` takes.
struct Python {
  std::array<PyObject*, 4> prepare{};  // by kind: a call's arguments -> (a tensor of the small results' dtype, numbers), or None
  PyObject* aten_forward = nullptr;    // the operators of aten, with their arguments
  PyObject* aten_backward = nullptr;
  PyObject* aten_rms_norm = nullptr;
  PyObject* derivative = nullptr;  // (centred, offset, shape, beta's dtype, mask, x or the total, mean, rstd, gamma, gradients of
                                   // y, mean, rstd and the total) -> dx, dgamma, dbeta
  PyObject* gated_derivative = nullptr;  // (shape, mask, x, rstd, gamma, gate, dy, eps, offset, norm_before_gate)
                                         // -> dx, dgamma, dgate
  std::array<PyObject*, 6> operators{};  // torch.ops.lngrad, in the order of ROWS in operators.h
  PyObject* empty = nullptr;       // (shape, a tensor of its dtype) -> a large tensor, from memory that is used again
  const int64_t* chosen = nullptr;  // how many threads lngrad may use, 0: as many as are granted
  int64_t granted = 1;
  int64_t pooled_from = 0;  // bytes of a result from which on `empty` makes it
};
inline Python python;

inline py::object wrap(const Tensor& tensor) {
  return tensor.defined() ? py::steal(THPVariable_Wrap(tensor)) : py::none();
}
inline py::object wrap(int64_t number) { return py::steal(PyLong_FromLongLong(number)); }
inline py::object wrap(double number) { return py::steal(PyFloat_FromDouble(number)); }
inline py::object wrap(bool flag) { return py::borrow(flag ? Py_True : Py_False); }
inline py::object wrap(const c10::SymInt& size) {
  return py::steal(pybind11::detail::type_caster<c10::SymInt>::cast(size, pybind11::return_value_policy::copy, {}).ptr());
}
template <class Values>
py::object wrap_list(const Values& values) {
  py::object list = py::steal(PyList_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t k = 0; k < values.size(); k++) PyList_SetItem(list.ptr(), k, wrap(values[k]).release().ptr());
  return list;
}
inline py::object wrap(at::IntArrayRef sizes) { return wrap_list(sizes); }
inline py::object wrap(c10::SymIntArrayRef sizes) { return wrap_list(sizes); }
inline py::object wrap(Mask mask) { return wrap_list(mask); }

inline Tensor unwrap(PyObject* object) { return THPVariable_Check(object) ? THPVariable_Unpack(object) : Tensor(); }

// Calls a function with the GIL held; what it raises goes on as torch's own exception, also in another thread.
template <class... Objects>
py::object ask(PyObject* function, const Objects&... arguments) {
  PyObject* result = PyObject_CallFunctionObjArgs(function, arguments.ptr()..., nullptr);
  if (!result) {
    python_error error;
    error.persist();
    throw error;
  }
  return py::steal(result);
}

inline Three unwrap_three(const py::object& results) {
  const py::tuple three(results);
  return {unwrap(three[0].ptr()), unwrap(three[1].ptr()), unwrap(three[2].ptr())};
}

}  // namespace lngrad
