// Layer normalization of plain CPU tensors without a step through Python: a call that was prepared is looked up by its facts,
// gets torch's own memory for its results, and runs. Whatever is not plain (strides, subclasses, transforms, tangents, freed
// memory, errors) goes to the Python functions that were there before.

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "calls.h"

namespace lngrad {
namespace {

// --- aten's kernels ---------------------------------------------------------------------------------------------------

Three aten_forward(const Tensor& x, at::IntArrayRef shape, const optional<Tensor>& gamma, const optional<Tensor>& beta,
                   double eps) {
  if (auto done = forward(ATEN_FORWARD, x, shape, gamma, beta, eps)) return std::move(*done);
  py::gil_scoped_acquire gil;
  return unwrap_three(ask(python.aten_forward, wrap(x), wrap(shape), wrap(gamma), wrap(beta), wrap(eps)));
}

Three aten_backward(const Tensor& dy, const Tensor& x, at::IntArrayRef shape, const Tensor& mean, const Tensor& rstd,
                    const optional<Tensor>& gamma, const optional<Tensor>& beta, Mask mask) {
  if (auto done = backward(ATEN_BACKWARD, dy, x, shape, mean, rstd, gamma, beta, mask)) return std::move(*done);
  py::gil_scoped_acquire gil;
  return unwrap_three(ask(python.aten_backward, wrap(dy), wrap(x), wrap(shape), wrap(mean), wrap(rstd), wrap(gamma),
                          wrap(beta), wrap(mask)));
}

torch::Library* installed = nullptr;

PyObject* install(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  installed = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  installed->impl("native_layer_norm", TORCH_FN(aten_forward));
  installed->impl("native_layer_norm_backward", TORCH_FN(aten_backward));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* uninstall(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  delete installed;
  installed = nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// --- lngrad.torch.layer_norm ------------------------------------------------------------------------------------------

// Whether a tensor is nothing but a dense CPU tensor to the dispatcher, without a tangent.
bool is_plain(const Tensor& tensor) {
  constexpr c10::DispatchKeySet plain(
      {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView,
       c10::DispatchKey::AutocastCPU});
  return (tensor.key_set() | plain) == plain && !tensor._fw_grad(0).defined();
}
bool is_plain(const optional<Tensor>& tensor) { return !tensor || !tensor->defined() || is_plain(*tensor); }

// Whether nothing listens to the operators of this thread: no mode, no transform, no tracer.
bool nobody_listens() {
  return !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
      !c10::impl::TorchDispatchModeTLS::any_modes_set() && !at::impl::torch_function_mode_enabled() &&
      !at::tracer::impl::is_dispatch_enabled() && !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

// The derivative of a forward that has been done. All three results are results of it, since the derivative of the backward
// goes through mean and rstd.
struct Differentiable : torch::autograd::Function<Differentiable> {
  using Context = torch::autograd::AutogradContext;
  using List = torch::autograd::variable_list;

  static List forward(Context* ctx, const Tensor& x, const optional<Tensor>& gamma, const optional<Tensor>& beta,
                      const Three* done, int64_t dims) {
    const auto& [y, mean, rstd] = *done;
    ctx->save_for_backward({x, mean, rstd, gamma.value_or(Tensor())});
    ctx->set_materialize_grads(false);
    ctx->saved_data["dims"] = dims;
    ctx->saved_data["beta"] = dtype_of(beta);
    return {y, mean, rstd};
  }

  static List backward(Context* ctx, const List& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &mean = saved[1], &rstd = saved[2];
    const optional<Tensor> gamma = saved[3].defined() ? optional<Tensor>(saved[3]) : std::nullopt;
    const int64_t dims = ctx->saved_data["dims"].toInt(), beta = ctx->saved_data["beta"].toInt();
    Mask mask{};  // an absent parameter has no edge
    size_t edge = 0;
    mask[0] = ctx->needs_input_grad(edge++);
    if (gamma) mask[1] = ctx->needs_input_grad(edge++);
    if (beta != ABSENT) mask[2] = ctx->needs_input_grad(edge++);

    auto [dx, dgamma, dbeta] = gradients(grads, x, x.sizes().slice(x.dim() - dims), mean, rstd, gamma, beta, mask);
    return {dx, dgamma, dbeta, Tensor(), Tensor()};
  }

  static Three gradients(const List& grads, const Tensor& x, at::IntArrayRef shape, const Tensor& mean,
                         const Tensor& rstd, const optional<Tensor>& gamma, int64_t beta, Mask mask) {
    const Tensor& dy = grads[0];
    const bool alone = dy.defined() && !grads[1].defined() && !grads[2].defined();
    const bool one_dtype = beta == ABSENT || beta == (gamma ? dtype_of(gamma) : dtype_of(x));
    if (alone && one_dtype && !at::GradMode::is_enabled() && nobody_listens() && is_plain(dy)) {
      RECORD_FUNCTION("lngrad::layer_norm_backward", std::vector<c10::IValue>({dy, x}));
      if (auto done = lngrad::backward(BACKWARD, dy, x, shape, mean, rstd, gamma, {}, mask)) return std::move(*done);
    }
    py::gil_scoped_acquire gil;
    const auto dtype = beta == ABSENT
        ? py::none()
        : py::reinterpret_borrow<py::object>(
              reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(beta))));
    return unwrap_three(ask(python.derivative, wrap(shape), dtype, wrap(mask), wrap(x), wrap(mean), wrap(rstd),
                            wrap(gamma), wrap(grads[0]), wrap(grads[1]), wrap(grads[2])));
  }
};

bool take(PyObject* object, Tensor& tensor) {
  if (!THPVariable_CheckExact(object)) return false;
  tensor = THPVariable_Unpack(object);
  return is_plain(tensor);
}

bool take(PyObject* object, optional<Tensor>& tensor) {
  return object == Py_None || take(object, tensor.emplace());
}

// The shape as Python has it: an int, a list or a tuple of ints.
bool take(PyObject* object, c10::SmallVector<int64_t, 8>& shape) {
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

// layer_norm(x, shape, gamma, beta, eps) -> y, or NotImplemented for what is not plain.
PyObject* layer_norm(PyObject*, PyObject* const* arguments, Py_ssize_t number) {
  HANDLE_TH_ERRORS
  Tensor x;
  optional<Tensor> gamma, beta;
  c10::SmallVector<int64_t, 8> shape;
  if (number != 5 || !nobody_listens() || !take(arguments[0], x) || !take(arguments[2], gamma) ||
      !take(arguments[3], beta) || !PyFloat_Check(arguments[4]) || !take(arguments[1], shape))
    Py_RETURN_NOTIMPLEMENTED;
  const double eps = PyFloat_AS_DOUBLE(arguments[4]);
  Tensor y;
  {
    py::gil_scoped_release no_gil;
    RECORD_FUNCTION("lngrad::layer_norm", std::vector<c10::IValue>({x}));
    const bool differentiable = at::GradMode::is_enabled() &&
        (x.requires_grad() || (gamma && gamma->requires_grad()) || (beta && beta->requires_grad()));
    auto done = forward(FORWARD, x, shape, gamma, beta, eps);
    if (done) {
      y = differentiable
          ? Differentiable::apply(x, gamma, beta, &*done, static_cast<int64_t>(shape.size()))[0]
          : std::get<0>(std::move(*done));
    }
  }
  if (!y.defined()) Py_RETURN_NOTIMPLEMENTED;
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

// --- The module -------------------------------------------------------------------------------------------------------

// register(name, function): the function of Python that is asked by this name.
PyObject* register_function(PyObject*, PyObject* arguments) {
  const char* name;
  PyObject* function;
  if (!PyArg_ParseTuple(arguments, "sO", &name, &function)) return nullptr;
  const std::unordered_map<std::string, PyObject**> places{
      {"prepare_aten_forward", &python.prepare[ATEN_FORWARD]}, {"prepare_aten_backward", &python.prepare[ATEN_BACKWARD]},
      {"prepare_forward", &python.prepare[FORWARD]}, {"prepare_backward", &python.prepare[BACKWARD]},
      {"aten_forward", &python.aten_forward}, {"aten_backward", &python.aten_backward},
      {"derivative", &python.derivative}, {"empty", &python.empty}};
  const auto place = places.find(name);
  if (place == places.end()) return PyErr_Format(PyExc_KeyError, "%s", name);
  Py_INCREF(function);
  Py_XDECREF(*place->second);
  *place->second = function;
  Py_RETURN_NONE;
}

// use(chosen, granted, pooled_from, parallel_for): numbers and addresses that stay.
PyObject* use(PyObject*, PyObject* arguments) {
  long long chosen, granted, pooled_from, parallel;
  if (!PyArg_ParseTuple(arguments, "LLLL", &chosen, &granted, &pooled_from, &parallel)) return nullptr;
  python.chosen = reinterpret_cast<const int64_t*>(chosen);
  python.granted = granted;
  python.pooled_from = pooled_from;
  parallel_for = reinterpret_cast<ParallelFor>(parallel);
  Py_RETURN_NONE;
}

PyObject* forget(PyObject*, PyObject*) {
  prepared().clear();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"register", register_function, METH_VARARGS, nullptr},
    {"use", use, METH_VARARGS, nullptr},
    {"install", install, METH_NOARGS, nullptr},
    {"_destroy", uninstall, METH_NOARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"layer_norm", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(layer_norm)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "lngrad_torch_native", nullptr, -1, methods};

}  // namespace
}  // namespace lngrad

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_lngrad_torch_native() {
  return PyModule_Create(&lngrad::definition);
}
