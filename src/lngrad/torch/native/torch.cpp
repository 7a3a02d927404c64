// The normalizations of plain tensors without a step through Python: a call that was prepared is looked up by its facts,
// gets torch's own memory for its results, and runs. Whatever is not plain (strides, subclasses, transforms, tangents, freed
// memory, errors) goes to the Python functions that were there before.

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "direct.h"

namespace lngrad {
namespace {

// --- aten's kernels ---------------------------------------------------------------------------------------------------

Three aten_forward(const Tensor& x, at::IntArrayRef shape, const optional<Tensor>& gamma, const optional<Tensor>& beta,
                   double eps) {
  if (auto done = forward(ATEN_FORWARD, x, shape, gamma, beta, eps, {}, {})) {
    auto& [y, mean, rstd, total] = *done;
    return {std::move(y), std::move(mean), std::move(rstd)};
  }
  py::gil_scoped_acquire gil;
  return unwrap_three(ask(python.aten_forward, wrap(x), wrap(shape), wrap(gamma), wrap(beta), wrap(eps)));
}

Three aten_backward(const Tensor& dy, const Tensor& x, at::IntArrayRef shape, const Tensor& mean, const Tensor& rstd,
                    const optional<Tensor>& gamma, const optional<Tensor>& beta, Mask mask) {
  if (auto done = backward(ATEN_BACKWARD, dy, x, shape, mean, rstd, gamma, beta, mask, {}, {})) return std::move(*done);
  py::gil_scoped_acquire gil;
  return unwrap_three(ask(python.aten_backward, wrap(dy), wrap(x), wrap(shape), wrap(mean), wrap(rstd), wrap(gamma),
                          wrap(beta), wrap(mask)));
}

// --- lngrad.torch.layer_norm and its family ---------------------------------------------------------------------------

using List = torch::autograd::variable_list;

// The derivative of a forward that has been done, with a gradient for each edge, in their order: x, gamma, beta and the residual.
// All results are results of its node, since the derivative of the backward goes through mean and rstd.
struct Differentiable : torch::autograd::Function<Differentiable> {
  using Context = torch::autograd::AutogradContext;

  // What is kept beside the tensors.
  struct Facts {
    int64_t dims, beta;  // of beta the dtype
    bool has_residual;
    double offset;
  };

  // For code that a compiler has made of the graph.
  static List backward(Context* ctx, const List& grads) {
    const auto fact = [&](const char* name) { return ctx->saved_data[name]; };
    return derive({fact("dims").toInt(), fact("beta").toInt(), fact("has_residual").toBool(), fact("offset").toDouble()},
                  ctx->get_saved_variables(), grads, [&](size_t edge) { return ctx->needs_input_grad(edge); });
  }

  template <class Needed>
  static List derive(const Facts& facts, const List& saved, const List& grads, Needed needed) {
    const Tensor &x = saved[0], &mean = saved[1], &rstd = saved[2];
    const optional<Tensor> gamma = saved[3].defined() ? optional<Tensor>(saved[3]) : std::nullopt;
    const Switches switches{mean.defined(), facts.offset};
    Mask mask{};  // an absent parameter has no edge
    size_t edge = 0;
    const bool wants_x = needed(edge++);
    if (gamma) mask[1] = needed(edge++);
    if (facts.beta != ABSENT) mask[2] = needed(edge++);
    const bool wants_residual = facts.has_residual && needed(edge++);
    mask[0] = wants_x || wants_residual;

    const Tensor dmean = switches.centred ? grads[2] : Tensor();
    const optional<Tensor> dtotal =
        mask[0] && facts.has_residual && grads.back().defined() ? optional<Tensor>(grads.back()) : std::nullopt;
    auto [dx, dgamma, dbeta] = gradients({grads[0], dmean, grads[1]}, x, x.sizes().slice(x.dim() - facts.dims), mean, rstd,
                                         gamma, facts.beta, mask, dtotal, switches);
    List all;
    all.reserve(edge);
    all.push_back(wants_x ? dx : Tensor());
    if (gamma) all.push_back(std::move(dgamma));
    if (facts.beta != ABSENT) all.push_back(std::move(dbeta));
    if (facts.has_residual) all.push_back(wants_residual ? std::move(dx) : Tensor());
    return all;
  }

  static Three gradients(const Three& grads, const Tensor& x, at::IntArrayRef shape, const Tensor& mean, const Tensor& rstd,
                         const optional<Tensor>& gamma, int64_t beta, Mask mask, const optional<Tensor>& dtotal,
                         Switches switches) {
    const auto& [dy, dmean, drstd] = grads;
    const bool alone = dy.defined() && !dmean.defined() && !drstd.defined();
    const bool one_dtype = beta == ABSENT || beta == (gamma ? dtype_of(gamma) : dtype_of(x));
    if (alone && one_dtype && !at::GradMode::is_enabled() && nobody_listens() && is_plain(dy) && is_plain(dtotal)) {
      const bool plain = switches.centred && switches.offset == 0.0 && !dtotal;
      RECORD_FUNCTION(plain ? "lngrad::layer_norm_backward" : "lngrad::norm_backward", std::vector<c10::IValue>({dy, x}));
      if (auto done = lngrad::backward(BACKWARD, dy, x, shape, mean, rstd, gamma, {}, mask, dtotal, switches))
        return std::move(*done);
    }
    py::gil_scoped_acquire gil;
    const auto dtype = beta == ABSENT
        ? py::none()
        : py::borrow(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(beta))));
    return unwrap_three(ask(python.derivative, wrap(switches.centred), wrap(switches.offset), wrap(shape), dtype, wrap(mask),
                            wrap(x), wrap(mean), wrap(rstd), wrap(gamma), wrap(dy), wrap(dmean), wrap(drstd), wrap(dtotal)));
  }
};

// Its node, without the way through Function::apply, which costs more than a small backward.
struct Node final : torch::autograd::CppNode<Differentiable> {
  explicit Node(Differentiable::Facts facts) : facts(facts) {}

  static void follow(const Four& results, const Tensor& x, const optional<Tensor>& gamma, const optional<Tensor>& beta,
                     const optional<Tensor>& residual, Differentiable::Facts facts) {
    const auto& [y, mean, rstd, total] = results;
    auto* node = new Node(facts);
    decltype(torch::autograd::Edge::function) pointer;
    own(pointer, node);
    torch::autograd::edge_list edges;
    edges.reserve(4);
    const auto edge_of = [&](const optional<Tensor>& input) {
      if (input && input->defined()) edges.push_back(torch::autograd::impl::gradient_edge(*input));
    };
    edge_of(x), edge_of(gamma), edge_of(beta), edge_of(residual);
    node->set_next_edges(std::move(edges));
    for (const Tensor* result : {&y, &rstd, &mean, &total})
      if (result->defined()) torch::autograd::set_history(*result, pointer);
    node->set_ctx_grad_fn(pointer);
    node->ctx_.save_for_backward({residual ? total : x, mean, rstd, gamma.value_or(Tensor())});
    node->ctx_.set_materialize_grads(false);
    node->save_variables_to_ctx();
  }

  List apply(List&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return Differentiable::derive(facts, ctx_.get_saved_variables(), grads,
                                  [&](size_t edge) { return task_should_compute_output(edge); });
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    auto& self = const_cast<Node&>(*this);
    self.is_variable_input_.assign(num_outputs(), true);
    auto& data = self.ctx_.saved_data;
    data["dims"] = facts.dims, data["beta"] = facts.beta, data["has_residual"] = facts.has_residual, data["offset"] = facts.offset;
    CppNode::compiled_args(args);
  }

  const Differentiable::Facts facts;

 private:
  // Older releases of torch count a node's owners beside it, newer ones in it.
  template <class Base>
  static void own(std::shared_ptr<Base>& pointer, Node* node) {
    pointer = {node, [](auto* one) { deleteNode(one); }};
  }
  template <class Counted>
  static void own(Counted& pointer, Node* node) {
    pointer = Counted::unsafe_steal_from_new(node);
  }
};

// As autocast on a GPU has a normalization: in float32, and the casts are differentiated too.
template <class... Tensors>
void cast_as_autocast(const Tensor& x, Tensors&... tensors) {
  if (!x.is_cuda() || !at::autocast::is_autocast_enabled(at::kCUDA)) return;
  const auto cast = [](optional<Tensor>& tensor) {
    if (tensor && tensor->scalar_type() != at::kDouble) tensor = tensor->to(at::kFloat);
  };
  (cast(tensors), ...);
}

// y and the total of plain tensors, with their derivative; nothing where the call is to go through Python.
optional<std::pair<Tensor, Tensor>> norm_of(const Tensor& x, at::IntArrayRef shape, const optional<Tensor>& gamma,
                                            const optional<Tensor>& beta, double eps, const optional<Tensor>& residual,
                                            Switches switches) {
  const bool plain = switches.centred && switches.offset == 0.0 && !residual;
  RECORD_FUNCTION(plain ? "lngrad::layer_norm" : "lngrad::norm", std::vector<c10::IValue>({x}));
  auto done = forward(FORWARD, x, shape, gamma, beta, eps, residual, switches);
  if (!done) return {};
  const auto needs_grad = [](const optional<Tensor>& tensor) { return tensor && tensor->requires_grad(); };
  if (at::GradMode::is_enabled() && (x.requires_grad() || needs_grad(gamma) || needs_grad(beta) || needs_grad(residual))) {
    const auto dims = static_cast<int64_t>(shape.size());
    Node::follow(*done, x, gamma, beta, residual, {dims, dtype_of(beta), residual.has_value(), switches.offset});
  }
  return std::pair(std::get<0>(*done), std::get<3>(*done));
}

// norm(x, shape, gamma, beta, eps[, residual, centred, offset]) -> y, or (y, total) with a residual; NotImplemented for what is
// not plain.
PyObject* norm(PyObject*, PyObject* const* arguments, Py_ssize_t number) {
  HANDLE_TH_ERRORS
  Tensor x;
  optional<Tensor> gamma, beta, residual;
  Sizes shape;
  double eps;
  Switches switches;
  const bool few = number == 5;
  if (!(few || number == 8) || !nobody_listens() || !take(arguments[0], x) || !take(arguments[1], shape) ||
      !take(arguments[2], gamma) || !take(arguments[3], beta) || !take(arguments[4], eps) ||
      !(few || (take(arguments[5], residual) && take(arguments[6], switches.centred) && take(arguments[7], switches.offset))))
    Py_RETURN_NOTIMPLEMENTED;
  const auto done = run_directly(x, [&] {
    optional<Tensor> cast_x(x);
    cast_as_autocast(x, cast_x, gamma, beta, residual);
    return norm_of(*cast_x, shape, gamma, beta, eps, residual, switches);
  });
  if (!done) Py_RETURN_NOTIMPLEMENTED;
  py::object y = wrap(done->first);
  return (residual ? py::object(py::make_tuple(y, wrap(done->second))) : y).release().ptr();
  END_HANDLE_TH_ERRORS
}

// --- override() -------------------------------------------------------------------------------------------------------

// aten::rms_norm, which is composed on the CPU: before autograd, with a derivative of its own.
Tensor aten_rms_norm(const Tensor& x, c10::SymIntArrayRef shape, const optional<Tensor>& weight, optional<double> eps) {
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);  // none where a compiler traces a hidden dimension that may vary
  // Hooks of saved tensors may be a checkpoint's, which Python knows.
  if (sizes && nobody_listens() && is_plain(x) && is_plain(weight) && !at::SavedTensorDefaultHooks::get_hooks()) {
    const double epsilon = x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                           : std::numeric_limits<float>::epsilon();
    if (auto done = norm_of(x, *sizes, weight, {}, eps.value_or(epsilon), {}, {false, 0.0})) return done->first;
  }
  py::gil_scoped_acquire gil;
  return unwrap(ask(python.aten_rms_norm, wrap(x), wrap(shape), wrap(weight), eps ? wrap(*eps) : py::none()).ptr());
}

torch::Library* installed = nullptr;
torch::Library* installed_before_autograd = nullptr;

PyObject* install(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  installed = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  installed->impl("native_layer_norm", TORCH_FN(aten_forward));
  installed->impl("native_layer_norm_backward", TORCH_FN(aten_backward));
  installed->impl("rms_norm", TORCH_FN(aten_rms_norm));
  installed_before_autograd =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
  installed_before_autograd->impl("rms_norm", TORCH_FN(aten_rms_norm));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* uninstall(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  for (auto** library : {&installed, &installed_before_autograd}) {
    delete *library;
    *library = nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// --- torch.ops.lngrad ----------------------------------------------------------------------------------------------

torch::Library* serving = nullptr;

PyObject* serve_operators(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  serving = new torch::Library(torch::Library::IMPL, "lngrad", std::nullopt, __FILE__, __LINE__);
  lngrad::serve_operators(*serving);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* leave_operators(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  delete serving;
  serving = nullptr;
  Py_RETURN_NONE;
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
      {"aten_rms_norm", &python.aten_rms_norm},
      {"derivative", &python.derivative}, {"empty", &python.empty},
      {"layer_norm", &python.operators[0]}, {"layer_norm_backward", &python.operators[1]},
      {"norm", &python.operators[2]}, {"norm_backward", &python.operators[3]}};
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

// use_driver(launch_kernel, current_stream): addresses of C functions; 0 for none.
PyObject* use_driver(PyObject*, PyObject* arguments) {
  long long launch, stream;
  if (!PyArg_ParseTuple(arguments, "LL", &launch, &stream)) return nullptr;
  launch_kernel = reinterpret_cast<Launch>(launch);
  current_stream = reinterpret_cast<CurrentStream>(stream);
  Py_RETURN_NONE;
}

PyObject* launches(PyObject*, PyObject*) { return PyBool_FromLong(launch_kernel != nullptr); }

PyObject* forget(PyObject*, PyObject*) {
  prepared().clear();
  Py_RETURN_NONE;
}

// A function that takes its arguments as they lie.
template <class Function>
PyMethodDef fast(const char* name, Function function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    {"register", register_function, METH_VARARGS, nullptr},
    {"use", use, METH_VARARGS, nullptr},
    {"use_driver", use_driver, METH_VARARGS, nullptr},
    {"install", install, METH_NOARGS, nullptr},
    {"_destroy", uninstall, METH_NOARGS, nullptr},
    {"serve_operators", serve_operators, METH_NOARGS, nullptr},
    {"leave_operators", leave_operators, METH_NOARGS, nullptr},
    {"launches", launches, METH_NOARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    fast("norm", norm),
    fast("direct_layer_norm", direct<0>),
    fast("direct_layer_norm_backward", direct<1>),
    fast("direct_norm", direct<2>),
    fast("direct_norm_backward", direct<3>),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "lngrad_torch_native", nullptr, -1, methods};

}  // namespace
}  // namespace lngrad

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_lngrad_torch_native() {
  return PyModule_Create(&lngrad::definition);
}
