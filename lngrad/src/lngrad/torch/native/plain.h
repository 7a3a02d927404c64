// Which calls are plain: to torch they are nothing but their kernels; and what Python hands over of one.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "python.h"

namespace lngrad {

// Whether a tensor is nothing but a dense CPU or CUDA tensor to the dispatcher, without a tangent, and may be saved.
inline bool is_plain(const Tensor& tensor) {
  constexpr c10::DispatchKeySet plain(
      {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView,
       c10::DispatchKey::AutocastCPU, c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutocastCUDA});
  return (tensor.key_set() | plain) == plain && !tensor._fw_grad(0).defined() &&
      !(tensor.is_inference() && at::GradMode::is_enabled());
}
inline bool is_plain_or_absent(const Tensor& tensor) { return !tensor.defined() || is_plain(tensor); }

// Whether nothing listens to the operators of this thread: no mode, no transform, no tracer.
inline bool nobody_listens() {
  return !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
      !c10::impl::TorchDispatchModeTLS::any_modes_set() && !at::impl::torch_function_mode_enabled() &&
      !at::tracer::impl::is_dispatch_enabled() && !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

// `take` reads an argument of Python's; false where it is not plain, or of another type.
inline bool take(PyObject* object, Tensor& tensor) {
  if (!THPVariable_CheckExact(object)) return false;
  tensor = THPVariable_Unpack(object);
  return is_plain(tensor);
}

// A tensor that may be absent.
struct Maybe {
  Tensor& tensor;
};
inline bool take(PyObject* object, Maybe maybe) { return object == Py_None || take(object, maybe.tensor); }

inline bool take(PyObject* object, double& number) {
  const bool is_one = PyFloat_Check(object);
  number = is_one ? PyFloat_AsDouble(object) : 0;
  return is_one;
}

inline bool take(PyObject* object, bool& flag) {
  flag = object == Py_True;
  return PyBool_Check(object);
}

inline bool take(PyObject* object, Mask& mask) {
  if (!PyList_CheckExact(object) || PyList_Size(object) != static_cast<Py_ssize_t>(mask.size())) return false;
  for (size_t k = 0; k < mask.size(); k++)
    if (!take(PyList_GetItem(object, k), mask[k])) return false;
  return true;
}

// The shape as Python has it: an int, a list or a tuple of ints.
inline bool take(PyObject* object, Sizes& shape) {
  if (PyLong_CheckExact(object)) {
    shape.push_back(PyLong_AsLongLong(object));
  } else if (PyTuple_Check(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(object); k++) {
      PyObject* size = PySequence_Fast_GET_ITEM(object, k);
      if (!PyLong_CheckExact(size)) return false;
      shape.push_back(PyLong_AsLongLong(size));
    }
  } else {
    return false;
  }
  if (PyErr_Occurred()) PyErr_Clear();  // beyond 64 bits: -1 is no size either
  return true;
}

}  // namespace lngrad
