// The normalizations of plain tensors without a step through Python: a call that was prepared is looked up by its facts,
// gets torch's own memory for its results, and runs. Whatever is not plain (strides, subclasses, transforms, tangents, freed
// memory, errors) goes to the Python functions that were there before.

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "operators.h"

namespace lngrad {
namespace {

// --- aten's kernels ---------------------------------------------------------------------------------------------------

Three aten_forward(const Tensor& x, at::IntArrayRef shape, const optional<Tensor>& gamma, const optional<Tensor>& beta,
                   double eps) {
  const Call call{.x = x, .gamma = gamma.value_or(Tensor()), .beta = beta.value_or(Tensor()),
                  .shape = Sizes(shape.begin(), shape.end()), .eps = eps};
  if (auto done = forward(ATEN_FORWARD, call)) return {std::move(done->y), std::move(done->mean), std::move(done->rstd)};
  py::gil_scoped_acquire gil;
  return unwrap_three(ask(python.aten_forward, wrap(x), wrap(shape), wrap(call.gamma), wrap(call.beta), wrap(eps)));
}

Three aten_backward(const Tensor& dy, const Tensor& x, at::IntArrayRef shape, const Tensor& mean, const Tensor& rstd,
                    const optional<Tensor>& gamma, const optional<Tensor>& beta, Mask mask) {
  const Call call{.dy = dy, .x = x, .mean = mean, .rstd = rstd, .gamma = gamma.value_or(Tensor()),
                  .beta = beta.value_or(Tensor()), .shape = Sizes(shape.begin(), shape.end()),
                  .wanted = {mask[0], mask[1], mask[2]}};
  if (auto done = backward(ATEN_BACKWARD, call)) return {std::move(done->dx), std::move(done->dgamma), std::move(done->dbeta)};
  py::gil_scoped_acquire gil;
  return unwrap_three(ask(python.aten_backward, wrap(dy), wrap(x), wrap(shape), wrap(mean), wrap(rstd), wrap(call.gamma),
                          wrap(call.beta), wrap(mask)));
}

// --- lngrad.torch.layer_norm and its family ---------------------------------------------------------------------------

using List = torch::autograd::variable_list;

// The derivative of a forward that has been done, with a gradient for each edge, in their order: x, gamma, beta, the residual, the
// gate; an absent tensor has none.
// All results are results of its node, since the derivative of the backward goes through mean and rstd.
struct Differentiable : torch::autograd::Function<Differentiable> {
  using Context = torch::autograd::AutogradContext;

  // What is kept beside the tensors: how many dimensions are normalized, the dtypes of x and of beta, whether there is a
  // residual, norm_before_gate, gamma's offset, eps.
  struct Facts {
    int64_t dims, x, beta, has_residual, norm_before_gate;
    double offset, eps;

    c10::IValue packed() const {
      return std::vector<int64_t>{dims, x, beta, has_residual, norm_before_gate, bits_of(offset), bits_of(eps)};
    }
    static Facts of(const c10::IValue& value) {
      Facts facts;
      static_assert(sizeof facts == 7 * 8);
      std::memcpy(&facts, value.toIntVector().data(), sizeof facts);
      return facts;
    }
  };

  // For code that a compiler has made of the graph.
  static List backward(Context* ctx, const List& grads) {
    return derive(Facts::of(ctx->saved_data["facts"]), ctx->get_saved_variables(), grads,
                  [&](size_t edge) { return ctx->needs_input_grad(edge); });
  }

  template <class Needed>
  static List derive(const Facts& facts, const List& saved, const List& grads, Needed needed) {
    const Tensor &x = saved[0], &mean = saved[1], &gamma = saved[3], &gate = saved[4];
    const auto shape = x.sizes().slice(x.dim() - facts.dims);
    Call call{.dy = grads[0], .x = x, .mean = mean, .rstd = saved[2], .gamma = gamma, .gate = gate,
              .shape = Sizes(shape.begin(), shape.end()), .eps = facts.eps,
              .switches = {mean.defined(), facts.offset, facts.norm_before_gate != 0, true}};
    size_t edge = 0;
    const bool wants_x = needed(edge++), wants_gamma = gamma.defined() && needed(edge++);
    const bool wants_beta = facts.beta != ABSENT && needed(edge++), wants_residual = facts.has_residual && needed(edge++);
    const bool wants_gate = gate.defined() && needed(edge++);
    call.wanted = {wants_x || wants_residual, wants_gamma, wants_beta, wants_gate};
    if (facts.has_residual && call.wanted.dx) call.dtotal = grads.back();

    auto [dx, dgamma, dbeta, dgate] = gradients(call, mean.defined() ? grads[2] : Tensor(), grads[1], facts.beta);
    const auto dtype = static_cast<at::ScalarType>(facts.x);  // a total may be wider
    List all{wants_x && dx.defined() && dx.scalar_type() != dtype ? dx.to(dtype) : wants_x ? dx : Tensor()};
    if (gamma.defined()) all.push_back(std::move(dgamma));
    if (facts.beta != ABSENT) all.push_back(std::move(dbeta));
    if (facts.has_residual) all.push_back(wants_residual ? std::move(dx) : Tensor());
    if (gate.defined()) all.push_back(std::move(dgate));
    return all;
  }

  static Gradients gradients(const Call& call, const Tensor& dmean, const Tensor& drstd, int64_t beta) {
    const auto& [dy, x, mean, rstd, gamma, no_beta, residual, dtotal, gate, shape, eps, wanted, switches] = call;
    const bool alone = dy.defined() && !dmean.defined() && !drstd.defined();
    const bool one_dtype = beta == ABSENT || beta == dtype_of(gamma.defined() ? gamma : x);
    const bool plain = is_plain_or_absent(dy) && is_plain_or_absent(dtotal) && is_plain_or_absent(gate);
    if (alone && one_dtype && !at::GradMode::is_enabled() && nobody_listens() && plain) {
      RECORD_FUNCTION(ROWS[row_of(call) + 1].name, std::vector<c10::IValue>({dy, x}));
      if (auto done = lngrad::backward(BACKWARD, call)) return std::move(*done);
    }
    py::gil_scoped_acquire gil;
    if (gate.defined()) {
      auto [dx, dgamma, dgate] = unwrap_three(ask(python.gated_derivative, wrap(shape), wrap(call.mask()), wrap(x), wrap(rstd),
                                                  wrap(gamma), wrap(gate), wrap(dy), wrap(eps), wrap(switches.offset),
                                                  wrap(switches.norm_before_gate)));
      return {std::move(dx), std::move(dgamma), {}, std::move(dgate)};
    }
    const auto dtype = beta == ABSENT
        ? py::none()
        : py::borrow(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(beta))));
    auto [dx, dgamma, dbeta] = unwrap_three(ask(
        python.derivative, wrap(switches.centred), wrap(switches.offset), wrap(shape), dtype, wrap(call.mask()), wrap(x),
        wrap(mean), wrap(rstd), wrap(gamma), wrap(dy), wrap(dmean), wrap(drstd), wrap(dtotal)));
    return {std::move(dx), std::move(dgamma), std::move(dbeta), {}};
  }
};

// Its node, without the way through Function::apply, which costs more than a small backward.
struct Node final : torch::autograd::CppNode<Differentiable> {
  explicit Node(Differentiable::Facts facts) : facts(facts) {}

  static void follow(const Forward& results, const Call& call, Differentiable::Facts facts) {
    const auto& [y, mean, rstd, total] = results;
    auto* node = new Node(facts);
    decltype(torch::autograd::Edge::function) pointer;
    own(pointer, node);
    torch::autograd::edge_list edges;
    edges.reserve(4);  // x, gamma and at most two more
    for (const Tensor* input : {&call.x, &call.gamma, &call.beta, &call.residual, &call.gate})
      if (input->defined()) edges.push_back(torch::autograd::impl::gradient_edge(*input));
    node->set_next_edges(std::move(edges));
    for (const Tensor* result : {&y, &rstd, &mean, &total})
      if (result->defined()) torch::autograd::set_history(*result, pointer);
    node->set_ctx_grad_fn(pointer);
    node->ctx_.save_for_backward({total.defined() ? total : call.x, mean, rstd, call.gamma, call.gate});
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
    self.ctx_.saved_data["facts"] = facts.packed();
    CppNode::compiled_args(args);
  }

  const Differentiable::Facts facts;

 private:
  // Older releases of torch count a node's owners beside it, newer ones in it.
  template <class Base>
  static void own(std::shared_ptr<Base>& pointer, Node* node) {
    pointer = {node, [](auto* owned) { deleteNode(owned); }};
  }
  template <class Counted>
  static void own(Counted& pointer, Node* node) {
    pointer = Counted::unsafe_steal_from_new(node);
  }
};

// As autocast on a GPU has a normalization: in float32, and the casts are differentiated too.
void cast_as_autocast(Call& call) {
  if (!call.x.is_cuda() || !at::autocast::is_autocast_enabled(at::kCUDA)) return;
  for (Tensor* tensor : {&call.x, &call.gamma, &call.beta, &call.residual, &call.gate})
    if (tensor->defined() && tensor->scalar_type() != at::kDouble) *tensor = tensor->to(at::kFloat);
}

// The results of plain tensors, with their derivative; nothing where the call is to go through Python.
optional<Forward> norm_of(const Call& call) {
  RECORD_FUNCTION(ROWS[row_of(call)].name, std::vector<c10::IValue>({call.x}));
  auto done = forward(FORWARD, call);
  if (!done) return {};
  if (wants_derivative(call))
    Node::follow(*done, call, {static_cast<int64_t>(call.shape.size()), dtype_of(call.x), dtype_of(call.beta),
                               call.residual.defined(), call.switches.norm_before_gate, call.switches.offset, call.eps});
  return done;
}

// norm, with the arguments of layer_norm, norm or gated_norm in ROWS -> y, or (y, total) with a residual; NotImplemented for
// what is not plain.
PyObject* norm(PyObject*, PyObject* const* arguments, Py_ssize_t number) {
  HANDLE_TH_ERRORS
  Call call;
  const size_t which = number == 5 ? LAYER_NORM : number == 8 ? NORM : GATED_NORM;
  if (number != static_cast<Py_ssize_t>(ROWS[which].arguments) || !nobody_listens() || !read(which, arguments, call))
    Py_RETURN_NOTIMPLEMENTED;
  const auto done = run_directly(call.x, [&] {
    cast_as_autocast(call);
    return norm_of(call);
  });
  if (!done) Py_RETURN_NOTIMPLEMENTED;
  py::object y = wrap(done->y);
  return (done->total.defined() ? py::make_tuple(y, wrap(done->total)) : y).release().ptr();
  END_HANDLE_TH_ERRORS
}

// --- override() -------------------------------------------------------------------------------------------------------

// aten::rms_norm, which is composed on the CPU: before autograd, with a derivative of its own.
Tensor aten_rms_norm(const Tensor& x, c10::SymIntArrayRef shape, const optional<Tensor>& weight, optional<double> eps) {
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);  // none where a compiler traces a hidden dimension that may vary
  // Hooks of saved tensors may be a checkpoint's, which Python knows.
  const Tensor gamma = weight.value_or(Tensor());
  if (sizes && nobody_listens() && is_plain(x) && is_plain_or_absent(gamma) && !at::SavedTensorDefaultHooks::get_hooks()) {
    const double epsilon = x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                           : std::numeric_limits<float>::epsilon();
    const Call call{.x = x, .gamma = gamma, .shape = Sizes(sizes->begin(), sizes->end()), .eps = eps.value_or(epsilon),
                    .switches = {.centred = false}};
    if (auto done = norm_of(call)) return done->y;
  }
  py::gil_scoped_acquire gil;
  return unwrap(ask(python.aten_rms_norm, wrap(x), wrap(shape), wrap(gamma), eps ? wrap(*eps) : py::none()).ptr());
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
  std::unordered_map<std::string, PyObject**> places{
      {"prepare_aten_forward", &python.prepare[ATEN_FORWARD]}, {"prepare_aten_backward", &python.prepare[ATEN_BACKWARD]},
      {"prepare_forward", &python.prepare[FORWARD]}, {"prepare_backward", &python.prepare[BACKWARD]},
      {"aten_forward", &python.aten_forward}, {"aten_backward", &python.aten_backward},
      {"aten_rms_norm", &python.aten_rms_norm},
      {"derivative", &python.derivative}, {"gated_derivative", &python.gated_derivative}, {"empty", &python.empty}};
  for (size_t k = 0; k < ROWS.size(); k++) places[ROWS[k].name + strlen("lngrad::")] = &python.operators[k];
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
    fast("direct_layer_norm", direct<LAYER_NORM>),
    fast("direct_layer_norm_backward", direct<LAYER_NORM_BACKWARD>),
    fast("direct_norm", direct<NORM>),
    fast("direct_norm_backward", direct<NORM_BACKWARD>),
    fast("direct_gated_norm", direct<GATED_NORM>),
    fast("direct_gated_norm_backward", direct<GATED_NORM_BACKWARD>),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "lngrad_torch_native", nullptr, -1, methods};

}  // namespace
}  // namespace lngrad

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_lngrad_torch_native() {
  return PyModule_Create(&lngrad::definition);
}
