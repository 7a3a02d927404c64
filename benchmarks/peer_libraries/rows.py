"""Who is timed beside lngrad: a row for each peer, by name.

A peer has the same memory as lngrad, and computes what its own users get: a compiled operator, a formula's derivative.

In JAX lngrad and the formula that people write are one XLA program that gives y, dx, dgamma and dbeta; results are XLA's own
memory, and fresh pages count for both.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

import lngrad
from lngrad.bench.frameworks import Contestants
from lngrad.bench.runner import check_first_rows
from lngrad.check.implementations import IMPLEMENTATIONS, Arguments, Implementation, NotApplicable, PreparedCall
from lngrad.check.implementations.libraries import tensors
from lngrad.core.arrays import Output, empty
from lngrad.core.threads import get_num_threads
from lngrad.testing import check_same_bits
from lngrad.typing import Tensor
from peer_libraries import onednn


def _compiled_forward(a: Arguments) -> PreparedCall:
    import torch

    t, shape, norm = tensors(a), list(a.normalized_shape), torch.ops.aten.native_layer_norm
    torch._dynamo.reset()  # one code object is compiled for at most eight shapes; then torch silently takes eager code
    return partial(torch.compile(lambda x, w, b: norm(x, shape, w, b, a.eps), dynamic=False), t.x, t.gamma, t.beta)


def _compiled_backward(a: Arguments) -> PreparedCall:
    """The operator behind torch.nn.LayerNorm's gradients under torch.compile, for static shapes."""
    import torch

    t, shape, mask = tensors(a), list(a.normalized_shape), list(a.output_mask)
    gradients = torch.ops.aten.native_layer_norm_backward
    torch._dynamo.reset()
    backward = torch.compile(lambda dy, x, m, r, w, b: gradients(dy, x, shape, m, r, w, b, mask), dynamic=False)
    return partial(backward, t.dy, t.x, t.mean, t.rstd, t.gamma, t.beta)


def _no_compiler() -> str | None:
    """torch.compile writes C++ for a CPU."""
    return None if any(map(shutil.which, ("g++", "clang++"))) else "there is no C++ compiler"


def _onednn_forward(a: Arguments) -> PreparedCall:
    """A forward returns y, and the variance for rstd."""
    gamma, beta = (np.asarray(array, np.float32) for array in (a.gamma, a.beta))
    y, mean, variance = _like(a.x), *(np.empty(a.M, np.float32) for _ in range(2))
    try:
        return onednn.forward(a.x, gamma, beta, y, mean, variance, a.eps)
    except onednn.OneDnnError as reason:
        raise NotApplicable(f"oneDNN: {reason}") from None


def _onednn_backward(a: Arguments) -> PreparedCall:
    dx, dgamma, dbeta = _like(a.x), *(np.empty(a.N, np.float32) for _ in range(2))
    mean, variance = (np.ascontiguousarray(array, np.float32).reshape(a.M) for array in (a.mean, a.row_variance()))
    try:
        return onednn.backward(a.dy, a.x, mean, variance, np.asarray(a.gamma, np.float32), dx, dgamma, dbeta, a.eps)
    except onednn.OneDnnError as error:
        raise NotApplicable(f"oneDNN: {error}") from None


def _onednn_threads(threads: int) -> None:
    try:
        onednn.set_num_threads(threads)
    except onednn.OneDnnError as error:
        raise NotApplicable(f"oneDNN: {error}") from None


def _like(x: Any) -> Any:
    return empty("numpy", Output.of(x.shape, x.dtype.name))


def jax_layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    """What people write in JAX: statistics in float32, centred."""
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (y * gamma + beta).astype(x.dtype)


def all_of_jax() -> None:
    """XLA's threads are as many as the processors of this process, and cannot be changed.

    Raises:
        NotApplicable: Fewer threads are timed.
    """
    if get_num_threads() < len(os.sched_getaffinity(0)):
        raise NotApplicable("jax: its threads cannot be limited; it is compared with all processors only")


def _jax_forward(a: Arguments) -> PreparedCall:
    all_of_jax()
    import jax

    arrays, forward = tuple(map(jax.numpy.asarray, (a.x, a.gamma, a.beta))), jax.jit(jax_layer_norm)
    return lambda: forward(*arrays).block_until_ready()


def _jax_backward(a: Arguments) -> PreparedCall:
    all_of_jax()
    import jax

    dy, x, gamma, beta = map(jax.numpy.asarray, (a.dy, a.x, a.gamma, a.beta))
    _, pullback = jax.vjp(jax_layer_norm, x, gamma, beta)
    # What the forward saved is an argument, so that XLA does not take it for constants.
    backward = jax.jit(lambda pullback, dy: pullback(dy))
    return lambda: jax.block_until_ready(backward(pullback, dy))


def _liger_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    y: Tensor = LigerLayerNormFunction.apply(x, gamma, beta, 1e-5)
    return y


def _liger_backward(a: Arguments) -> PreparedCall:
    """Known by its forward: one graph, walked back again and again."""
    import torch

    leaves = [tensor.detach().requires_grad_() for tensor in (a.x, a.gamma, a.beta)]
    return partial(torch.autograd.grad, _liger_norm(*leaves), leaves, a.dy, retain_graph=True)


def _quack_forward(a: Arguments) -> PreparedCall:
    """Gamma and beta are float32 there."""
    forward = import_module("quack.rmsnorm").layernorm_fwd  # the package has a function of the module's name
    gamma, beta = a.gamma.float(), a.beta.float()

    def call() -> tuple[Any, ...]:
        y, rstd, mean = forward(a.x, gamma, beta, eps=a.eps, return_rstd=True, return_mean=True)
        return y, mean, rstd

    return call


def _quack_backward(a: Arguments) -> PreparedCall:
    """Its releases have a forward, and some have a backward."""
    rmsnorm = import_module("quack.rmsnorm")
    names = [name for name in ("layernorm_bwd", "layernorm_backward") if hasattr(rmsnorm, name)]
    if not names:
        raise NotApplicable(f"quack: quack-kernels {version('quack-kernels')} has no backward of layer normalization")
    backward: Callable[..., Any] = getattr(rmsnorm, names[0])
    gamma, rstd, mean = a.gamma.float(), a.rstd.ravel(), a.mean.ravel()
    return lambda: tuple(backward(a.x, gamma, a.dy, rstd, mean)[:3])


def _ort_forward(a: Arguments) -> PreparedCall:
    """ONNX's normalization with its statistics, bound to memory of its own: nothing is copied."""
    import onnxruntime
    from onnx import helper

    if a.x.dtype.name not in ("float16", "float32"):
        raise NotApplicable(f"ONNX Runtime: no {a.x.dtype.name} on the CPU")
    kind = helper.np_dtype_to_tensor_dtype(a.x.dtype)
    arrays = {name: getattr(a, name).astype(a.x.dtype) for name in ("x", "gamma", "beta")}
    memory = {"y": _like(a.x), **{name: np.empty((a.M, 1), np.float32) for name in ("mean", "rstd")}}
    node = helper.make_node("LayerNormalization", list(arrays), list(memory), epsilon=a.eps)
    values = [helper.make_tensor_value_info(name, kind, array.shape) for name, array in arrays.items()]
    graph = helper.make_graph([node], "norm", values, list(map(helper.make_empty_tensor_value_info, memory)))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, bound = session.io_binding(), onnxruntime.OrtValue.ortvalue_from_numpy
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, bound(array))
    for name, array in memory.items():
        binding.bind_ortvalue_output(name, bound(array))
    return lambda: session.run_with_iobinding(binding) or tuple(memory.values())


def _ort_backward(a: Arguments) -> PreparedCall:
    raise NotApplicable("ONNX Runtime: its wheel has no gradients")


_TORCH = IMPLEMENTATIONS["torch"]
_COMPILE = replace(_TORCH, name="compile", backward=_compiled_backward, forward=_compiled_forward)

CPU_PEERS = {
    "torch": _TORCH,
    "onednn": Implementation(
        "onednn",
        _onednn_backward,
        _onednn_forward,
        missing=onednn.why_not,
        package="onednn",
        title="oneDNN",
        version=onednn.version,
        into=True,
        set_threads=_onednn_threads,
    ),
    "compile": replace(_COMPILE, missing=_no_compiler),
    "jax": replace(IMPLEMENTATIONS["jax"], backward=_jax_backward, forward=_jax_forward),
    "mindspore": IMPLEMENTATIONS["mindspore"],
    "onnxruntime": Implementation(
        "onnxruntime", _ort_backward, _ort_forward, needs="onnxruntime", package="onnxruntime", title="ONNX Runtime"
    ),
}
CUDA_PEERS = {
    "torch": _TORCH,
    "compile": _COMPILE,
    "liger": Implementation(
        "liger", _liger_backward, lambda a: lambda: (_liger_norm(a.x, a.gamma, a.beta),), needs="liger_kernel",
        package="liger-kernel",
    ),
    "quack": Implementation("quack", _quack_backward, _quack_forward, needs="quack", package="quack-kernels"),
}  # fmt: skip


def jitted(a: Arguments) -> Contestants:
    """lngrad.jax.layer_norm against the formula that people write.

    Raises:
        GradientError: Our results are wrong.
        NotApplicable: JAX has more threads than are timed.
    """
    all_of_jax()
    import jax

    from lngrad.jax import layer_norm

    arrays = tuple(jax.numpy.asarray(array) for array in (a.x, a.gamma, a.beta, a.dy))

    def call(function: Callable[..., Any]) -> Callable[[], Any]:
        def both(x: Any, gamma: Any, beta: Any, dy: Any) -> Any:
            y, pullback = jax.vjp(function, x, gamma, beta)
            return y, *pullback(dy)

        program = jax.jit(both)
        return lambda: jax.block_until_ready(program(*arrays))

    ours = call(layer_norm)
    check_first_rows(a)  # some rows of the core with the reference, and the whole program with the core
    y = lngrad.layer_norm(a.x, a.gamma, a.beta).y
    core = lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
    check_same_bits(tuple(np.asarray(result) for result in ours()), (y, *core))
    return {"lngrad": ours, "jax": call(jax_layer_norm)}, {}
