// Layer normalization of plain CPU tensors without a step through Python: a call that was prepared is looked up by its facts,
// gets torch's own memory for its results, and runs. Whatever is not plain (strides, subclasses, transforms, tangents, freed
// memory, errors) goes to the Python functions that were there before.

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "prepared.h"

namespace lngrad {
namespace {

using at::Tensor;
using std::optional;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Mask = std::array<bool, 3>;

enum Kind : int64_t { ATEN_FORWARD, ATEN_BACKWARD, FORWARD, BACKWARD };

// What Python answers, by the names that `answer` takes.
struct Python {
  std::array<PyObject*, 4> prepare{};  // by kind: a call's arguments -> (a tensor of the small results' dtype, numbers), or None
  PyObject* aten_forward = nullptr;    // the operators of aten, with their arguments
  PyObject* aten_backward = nullptr;
  PyObject* derivative = nullptr;  // (shape, beta's dtype, mask, x, mean, rstd, gamma, dy, dmean, drstd) -> dx, dgamma, dbeta
  PyObject* empty = nullptr;       // (shape, a tensor of its dtype) -> a large tensor, from memory that is used again
  const int64_t* chosen = nullptr;  // how many threads lngrad may use, 0: as many as are granted
  int64_t granted = 1;
  int64_t pooled_from = 0;  // bytes of a result from which on `empty` makes it
} python;

int64_t threads() {
  const int64_t ours = *python.chosen ? *python.chosen : python.granted;
  return std::min<int64_t>(ours, at::get_num_threads());
}

// --- Python -----------------------------------------------------------------------------------------------------------

py::object wrap(const Tensor& tensor) {
  return tensor.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)) : py::none();
}
py::object wrap(const optional<Tensor>& tensor) { return tensor ? wrap(*tensor) : py::none(); }
py::object wrap(at::IntArrayRef sizes) { return py::cast(std::vector<int64_t>(sizes.begin(), sizes.end())); }
py::object wrap(Mask mask) { return py::cast(std::vector<bool>(mask.begin(), mask.end())); }
py::object wrap(double number) { return py::float_(number); }

Tensor unwrap(PyObject* object) { return THPVariable_Check(object) ? THPVariable_Unpack(object) : Tensor(); }

// Calls a function with the GIL held; what it raises goes on as torch's own exception, also in another thread.
template <class... Objects>
py::object ask(PyObject* function, const Objects&... arguments) {
  PyObject* result = PyObject_CallFunctionObjArgs(function, arguments.ptr()..., nullptr);
  if (!result) {
    python_error error;
    error.persist();
    throw error;
  }
  return py::reinterpret_steal<py::object>(result);
}

Three unwrap_three(const py::object& results) {
  const py::tuple three(results);
  return {unwrap(three[0].ptr()), unwrap(three[1].ptr()), unwrap(three[2].ptr())};
}

// --- Facts ------------------------------------------------------------------------------------------------------------

// Whether a tensor can be read where it lies: contiguous, with all of its memory there.
bool lies_plain(const Tensor& tensor) {
  const auto* self = tensor.unsafeGetTensorImpl();
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || !tensor.is_contiguous()) return false;
  if (tensor.numel() == 0) return false;
  const auto behind = (tensor.storage_offset() + tensor.numel()) * static_cast<int64_t>(tensor.itemsize());
  return self->unsafe_storage().nbytes() >= static_cast<size_t>(behind) && tensor.const_data_ptr() != nullptr;
}

bool parameter_fits(const optional<Tensor>& parameter, at::IntArrayRef shape) {
  return !parameter || !parameter->defined() || (parameter->sizes() == shape && lies_plain(*parameter));
}

bool x_fits(const Tensor& x, at::IntArrayRef shape) {
  const auto dims = static_cast<int64_t>(shape.size());
  return dims > 0 && dims <= x.dim() && x.dim() <= 8 && x.sizes().slice(x.dim() - dims) == shape && lies_plain(x);
}

constexpr int64_t ABSENT = 255;  // no dtype of torch has this number

int64_t dtype_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : ABSENT;
}
int64_t dtype_of(const optional<Tensor>& tensor) { return tensor ? dtype_of(*tensor) : ABSENT; }

int64_t address_of(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<int64_t>(tensor.const_data_ptr()) : 0;
}
int64_t address_of(const optional<Tensor>& tensor) { return tensor ? address_of(*tensor) : 0; }

// The call with these facts; `arguments` are what Python's preparation is asked with if it is the first.
template <class... Arguments>
Prepared& find(Kind kind, const Tensor& x, int64_t dims, const optional<Tensor>& gamma, const optional<Tensor>& beta,
               const optional<Tensor>& mean, Mask mask, const Arguments&... arguments) {
  Key key{};
  key[0] = kind | x.dim() << 2 | dims << 6 | dtype_of(x) << 10 | dtype_of(gamma) << 18 | dtype_of(beta) << 26 |
      dtype_of(mean) << 34 | int64_t(mask[0]) << 42 | int64_t(mask[1]) << 43 | int64_t(mask[2]) << 44;
  key[1] = threads();
  std::copy(x.sizes().begin(), x.sizes().end(), key.begin() + 2);
  auto& table = prepared();
  const auto found = table.find(key);
  if (found != table.end()) return found->second;

  py::gil_scoped_acquire gil;
  const py::object made = ask(python.prepare[kind], wrap(arguments)...);
  if (table.size() >= MOST) table.clear();  // as table.py does: many shapes mean shapes that do not come back
  if (made.is_none()) return table[key] = Prepared();
  const py::tuple parts(made);
  return table[key] = Prepared(unwrap(parts[0].ptr()).scalar_type(), unwrap(parts[1].ptr()).const_data_ptr<int64_t>());
}

// --- Results ----------------------------------------------------------------------------------------------------------

Tensor make(at::IntArrayRef sizes, at::ScalarType dtype) { return at::cpu::empty(sizes, at::TensorOptions(dtype)); }

bool is_pooled(const Tensor& x) { return static_cast<int64_t>(x.nbytes()) >= python.pooled_from; }

Tensor make_like(const Tensor& x) {
  if (!is_pooled(x)) return make(x.sizes(), x.scalar_type());
  py::gil_scoped_acquire gil;
  return unwrap(ask(python.empty, wrap(x.sizes()), wrap(x)).ptr());
}

optional<Three> forward(Kind kind, const Tensor& x, at::IntArrayRef shape, const optional<Tensor>& gamma,
                        const optional<Tensor>& beta, double eps) {
  if (!x_fits(x, shape) || !parameter_fits(gamma, shape) || !parameter_fits(beta, shape)) return {};
  const auto call = [&]() -> Prepared& {
    return find(kind, x, shape.size(), gamma, beta, {}, {true, true, true}, x, shape, gamma, beta);
  };
  Prepared* found = &call();
  if (!found->ours) return {};
  c10::SmallVector<int64_t, 8> rows(x.sizes().begin(), x.sizes().end());
  std::fill(rows.end() - shape.size(), rows.end(), 1);
  Three results{make_like(x), make(rows, found->small), make(rows, found->small)};
  if (is_pooled(x)) found = &call();  // Python ran, which may have come here
  const auto& [y, mean, rstd] = results;
  int64_t addresses[] = {address_of(x), address_of(gamma), address_of(beta), address_of(y), address_of(mean),
                         address_of(rstd), 0};
  std::memcpy(&addresses[6], &eps, sizeof eps);
  found->run(addresses);
  return results;
}

optional<Three> backward(Kind kind, const Tensor& dy, const Tensor& x, at::IntArrayRef shape, const Tensor& mean,
                         const Tensor& rstd, const optional<Tensor>& gamma, const optional<Tensor>& beta, Mask mask) {
  if (!x_fits(x, shape) || !parameter_fits(gamma, shape)) return {};
  if (beta && beta->defined() && beta->sizes() != shape) return {};  // never read, but an error of aten's
  if (dy.sizes() != x.sizes() || dy.scalar_type() != x.scalar_type() || !lies_plain(dy)) return {};
  const int64_t M = x.numel() / c10::multiply_integers(shape);
  if (mean.numel() != M || rstd.numel() != M || mean.scalar_type() != rstd.scalar_type()) return {};
  if (!lies_plain(mean) || !lies_plain(rstd) || !(mask[0] || mask[1] || mask[2])) return {};
  const auto call = [&]() -> Prepared& {
    return find(kind, x, shape.size(), gamma, beta, mean, mask, dy, x, shape, mean, rstd, gamma, beta, mask);
  };
  Prepared* found = &call();
  if (!found->ours) return {};
  const at::ScalarType small = found->small;
  Three results{mask[0] ? make_like(x) : Tensor(), mask[1] ? make(shape, small) : Tensor(),
                mask[2] ? make(shape, small) : Tensor()};
  if (mask[0] && is_pooled(x)) found = &call();
  const auto& [dx, dgamma, dbeta] = results;
  const int64_t addresses[] = {address_of(dy), address_of(x), address_of(mean), address_of(rstd), address_of(gamma),
                               address_of(dx), address_of(dgamma), address_of(dbeta)};
  found->run(addresses);
  return results;
}

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
    const bool one_dtype = !mask[2] || beta == (gamma ? dtype_of(gamma) : dtype_of(x));
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

// answer(name, function): what Python has to say about `name`.
PyObject* answer(PyObject*, PyObject* arguments) {
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
    {"answer", answer, METH_VARARGS, nullptr},
    {"use", use, METH_VARARGS, nullptr},
    {"install", install, METH_NOARGS, nullptr},
    {"_destroy", uninstall, METH_NOARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"layer_norm", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(layer_norm)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "lngrad_torch_glue", nullptr, -1, methods};

}  // namespace
}  // namespace lngrad

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_lngrad_torch_glue() {
  return PyModule_Create(&lngrad::definition);
}
