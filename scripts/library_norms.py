"""Norms of other libraries, each as `lngrad check --impl scripts/library_norms.py:NAME` takes it.

scripts/inspect_libraries.py runs them. A forward in torch or JAX is differentiated by the check; of another library there is a
backward on NumPy arrays, computed by the library's own differentiation. Each imports its library when it is called.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


def _of(name: str) -> Any:
    return importlib.import_module(name)


# torch: as its modules call it, compiled, and modules of transformers


def torch_layer_norm(x, weight, bias, eps):
    return _of("torch.nn.functional").layer_norm(x, weight.shape, weight, bias, eps)


def torch_rms_norm(x, weight, eps):
    return _of("torch.nn.functional").rms_norm(x, weight.shape, weight, eps)


@cache
def _compiled(name: str) -> Any:
    import torch

    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(getattr(torch.nn.functional, name), dynamic=True)


def compiled_layer_norm(x, weight, bias, eps):
    return _compiled("layer_norm")(x, weight.shape, weight, bias, eps)


def compiled_rms_norm(x, weight, eps):
    return _compiled("rms_norm")(x, weight.shape, weight, eps)


def _transformers(model: str, name: str, x: Any, eps: float, *size: Any, **parameters: Any) -> Any:
    norm = getattr(_of(f"transformers.models.{model}.modeling_{model}"), name)(*size, eps=eps)
    return _of("torch").func.functional_call(norm, parameters, (x,))


def cohere_layer_norm(x, weight, eps):
    return _transformers("cohere", "CohereLayerNorm", x, eps, weight.shape, weight=weight)


def llama_rms_norm(x, weight, eps):
    return _transformers("llama", "LlamaRMSNorm", x, eps, weight.shape[0], weight=weight)


def gemma_rms_norm(x, weight, eps):
    return _transformers("gemma", "GemmaRMSNorm", x, eps, weight.shape[0], weight=weight)


def nemotron_layer_norm(x, weight, bias, eps):
    return _transformers("nemotron", "NemotronLayerNorm1P", x, eps, weight.shape, weight=weight, bias=bias)


# Libraries of Triton kernels, under Triton's interpreter


class _Float(float):
    """A float that a kernel may call .to of: the interpreter hands floats to kernels as they are."""

    def to(self, dtype: Any) -> Any:
        from triton.runtime import interpreter

        return interpreter.tl.tensor(interpreter.TensorHandle(np.array([self], np.float32), dtype), dtype)


@cache
def _triton() -> None:
    """The interpreter, which here computes in bfloat16 as a GPU does, and the first configuration of each kernel."""
    os.environ["TRITON_INTERPRET"] = "1"
    import ml_dtypes
    import triton
    from triton.runtime import interpreter

    tune, convert, binary = triton.autotune, interpreter._convert_float, interpreter.InterpreterBuilder.binary_op

    def converted(array: Any, source: Any, target: Any, mode: Any) -> Any:
        """The interpreter cuts off what bfloat16 does not hold."""
        if (source.name, target.name) == ("fp32", "bf16"):
            return np.asarray(array, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
        return convert(array, source, target, mode)

    def operated(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        """The interpreter adds and multiplies bfloat16's bits as integers."""
        if (lhs.dtype.scalar.name, rhs.dtype.scalar.name) != ("bf16", "bf16"):
            return binary(self, lhs, rhs, op)
        made = op(*(one.data.view(ml_dtypes.bfloat16).astype(np.float32) for one in (lhs, rhs)))
        made = made if made.dtype == bool else made.astype(ml_dtypes.bfloat16).view(np.uint16)
        return interpreter.TensorHandle(made, lhs.dtype.scalar)

    interpreter._convert_float, interpreter.InterpreterBuilder.binary_op = converted, operated
    triton.autotune = lambda configs, *given, **named: tune(configs[:1], *given, **named)


def _bare(name: str, **members: Any) -> None:
    """A package without what its __init__ does, which asks for a GPU; its modules can be imported."""
    if name not in sys.modules:
        package = ModuleType(name)
        parent, _, last = name.rpartition(".")
        places = sys.modules[parent].__path__ if parent else (find_spec(name).submodule_search_locations or ())
        package.__path__ = [os.path.join(place, last) for place in places] if parent else list(places)  # type: ignore[assignment]
        sys.modules[name] = package
    vars(sys.modules[name]).update(members)


def _liger(file: str) -> Any:
    """A module of Liger's operators; libdevice's rsqrt, which the interpreter does not have, is Triton's own."""
    _triton()
    import triton.language as tl

    module = importlib.import_module(f"liger_kernel.ops.{file}")
    module.rsqrt = lambda x: tl.rsqrt(x)
    return module


def liger_layer_norm(x, weight, bias, eps):
    return _liger("layer_norm").LigerLayerNormFunction.apply(x, weight, bias, _Float(eps))


def liger_rms_norm(x, weight, eps):
    return _liger("rms_norm").LigerRMSNormFunction.apply(x, weight, _Float(eps), _Float(0.0), "llama", False)


def liger_gemma_rms_norm(x, weight, eps):
    return _liger("rms_norm").LigerRMSNormFunction.apply(x, weight, _Float(eps), _Float(1.0), "gemma", False)


def fla_layer_norm(x, weight, bias, eps):
    _triton()
    from fla.modules.norm.layernorm import layer_norm

    return layer_norm(x, weight, bias, eps=eps)


def fla_rms_norm(x, weight, eps):
    _triton()
    from fla.modules.norm.layernorm import rms_norm

    return rms_norm(x, weight, None, eps=eps)


def _unsloth(file: str) -> Any:
    _triton()
    import torch
    import triton

    def settings(n: int) -> tuple[int, int]:
        return triton.next_power_of_2(n), 4

    _bare("unsloth")
    _bare("unsloth.kernels")
    _bare(
        "unsloth.kernels.utils", calculate_settings=settings, torch_gpu_device=lambda device: nullcontext(), torch=torch,
        long_indexing=lambda *tensors, block: False, norm_num_warps=lambda table, n, warps, device: warps,
    )  # fmt: skip
    sys.modules.setdefault("unsloth_zoo", ModuleType("unsloth_zoo"))
    sys.modules.setdefault("unsloth_zoo.patching_utils", SimpleNamespace(patch_layernorm=None))  # type: ignore[arg-type]
    return importlib.import_module(f"unsloth.kernels.{file}")


def unsloth_layer_norm(x, weight, bias, eps):
    return _unsloth("layernorm").Fast_Layernorm.apply(x, weight, bias, eps)


def unsloth_rms_norm(x, weight, eps):
    return _unsloth("rms_layernorm").Fast_RMS_Layernorm.apply(x, weight, eps, False)


def unsloth_gemma_rms_norm(x, weight, eps):
    return _unsloth("rms_layernorm").Fast_RMS_Layernorm.apply(x, weight, eps, True)


@cache
def _flag_gems() -> Any:
    """The files of the two operators: the package asks for a GPU. Kernels have the first configuration of its table."""
    _triton()
    import triton
    import yaml

    _bare("flag_gems")
    (place,) = sys.modules["flag_gems"].__path__
    with open(os.path.join(place, "runtime", "backend", "_nvidia", "tune_configs.yaml")) as file:
        table = yaml.safe_load(file)

    def configs(name: str) -> list[Any]:
        row = table[name][0]
        values = {key: row.get(value, value) for key, value in row["param_map"]["META"].items()}
        return [triton.Config({key: value[0] if isinstance(value, list) else value for key, value in values.items()})]

    _bare(
        "flag_gems.runtime", get_tuned_config=configs, torch_device_fn=SimpleNamespace(device=lambda one: nullcontext())
    )
    language = SimpleNamespace(program_id=lambda axis: triton.language.program_id(axis))
    _bare("flag_gems.utils", libentry=lambda: lambda function: function, triton_lang_extension=language)
    _bare("flag_gems.ops")
    return tuple(_with_masks(f"flag_gems.ops.{name}", place) for name in ("layernorm", "rms_norm"))


def _with_masks(name: str, place: str) -> Any:
    """A module in which `and` of two masks is `&`, as Triton's compiler takes it; the interpreter takes the second one."""
    folder = tempfile.mkdtemp(prefix="lngrad-")
    file = os.path.join(folder, f"{name.rpartition('.')[2]}.py")
    with open(os.path.join(place, "ops", os.path.basename(file))) as source, open(file, "w") as target:
        target.write(re.sub(r"(\w*mask) and (\w*mask)", r"\1 & \2", source.read()))
    spec: Any = spec_from_file_location(name, file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _flag_gems_layer_norm() -> Any:
    import torch

    kernels = _flag_gems()[0]

    class LayerNorm(torch.autograd.Function):
        """What FlagGems registers for aten's native_layer_norm and its backward."""

        @staticmethod
        def forward(ctx, x, weight, bias, eps):
            y, mean, rstd = kernels.layer_norm(x, weight.shape, weight, bias, eps)
            ctx.save_for_backward(x, weight, bias, mean, rstd)
            return y

        @staticmethod
        def backward(ctx, dy):
            x, weight, bias, mean, rstd = ctx.saved_tensors
            mask = [True, True, True]
            return (*kernels.layer_norm_backward(dy, x, weight.shape, mean, rstd, weight, bias, mask), None)

    return LayerNorm


def flag_gems_layer_norm(x, weight, bias, eps):
    return _flag_gems_layer_norm().apply(x, weight, bias, eps)


def flag_gems_rms_norm(x, weight, eps):
    return _flag_gems()[1].rms_norm(x, tuple(weight.shape), weight, eps)


def attorch_layer_norm(x, weight, bias, eps):
    _triton()
    _bare("attorch")
    from attorch.layer_norm_layer import LayerNormAutoGrad

    return LayerNormAutoGrad.apply(x, weight, bias, eps)


def attorch_rms_norm(x, weight, eps):
    _triton()
    _bare("attorch")
    from attorch.rms_norm_layer import RMSNormAutoGrad

    return RMSNormAutoGrad.apply(x, weight, eps)


# JAX


def flax_layer_norm(x, weight, bias, eps):
    return _of("flax.linen").LayerNorm(epsilon=eps).apply({"params": {"scale": weight, "bias": bias}}, x)


def flax_rms_norm(x, weight, eps):
    return _of("flax.linen").RMSNorm(epsilon=eps).apply({"params": {"scale": weight}}, x)


def flax_nnx_layer_norm(x, weight, bias, eps):
    return _nnx("LayerNorm", x, eps, scale=weight, bias=bias)


def flax_nnx_rms_norm(x, weight, eps):
    return _nnx("RMSNorm", x, eps, scale=weight)


def _nnx(name: str, x: Any, eps: float, **parameters: Any) -> Any:
    from flax import nnx

    norm = getattr(nnx, name)(x.shape[-1], epsilon=eps, rngs=nnx.Rngs(0))
    for label, value in parameters.items():
        getattr(norm, label).value = value
    return norm(x)


def keras_layer_norm(x, weight, bias, eps):
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    return keras.ops.layer_normalization(x, weight, bias, axis=tuple(range(-weight.ndim, 0)), epsilon=eps)


def keras_rms_norm(x, weight, eps):
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    return keras.ops.rms_normalization(x, weight, axis=tuple(range(-weight.ndim, 0)), epsilon=eps)


# Libraries with arrays of their own


def _laid(make: Callable[[Any], Any], spread: Callable[[Any, Any], Any], array: Any) -> Any:
    """A library's array that lies in memory as NumPy's does: shared rows, transposed, or with gaps.

    Args:
        make: An array from a contiguous one.
        spread: An array spread to a shape.
        array: NumPy's.
    """
    flat = np.ascontiguousarray(array, np.float32 if array.dtype.name == "bfloat16" else array.dtype)
    if array.flags.c_contiguous or array.ndim != 2 or not array.size:
        return make(flat)
    if 0 in array.strides:
        return spread(make(flat[:1]), array.shape)
    if array.flags.f_contiguous:
        return make(np.ascontiguousarray(flat.T)).T
    return make(np.repeat(np.repeat(flat, 2, 0), 2, 1))[::2, ::2]


def _mlx(call: Callable[..., Any], arrays: list[Any], dy: Any) -> list[Any]:
    import mlx.core as mx

    def given(array: Any) -> Any:
        return _laid(lambda one: mx.array(one).astype(getattr(mx, array.dtype.name)), mx.broadcast_to, array)

    y, grads = mx.vjp(call, [given(one) for one in arrays], [given(dy)])
    return [np.array(one.astype(mx.float32) if one.dtype == mx.bfloat16 else one) for one in (*y, *grads)]


def _tinygrad(call: Callable[..., Any], arrays: list[Any], dy: Any) -> list[Any]:
    from tinygrad import Tensor, dtypes

    def given(array: Any) -> Any:
        kind = getattr(dtypes, array.dtype.name)
        return _laid(lambda one: Tensor(one).cast(kind).contiguous().realize(), Tensor.expand, array)

    leaves = [given(one) for one in arrays]
    y = call(*leaves)
    grads = y.gradient(*leaves, gradient=given(dy))
    return [(one.float() if one.dtype == dtypes.bfloat16 else one).numpy() for one in (y, *grads)]


def _paddle(call: Callable[..., Any], arrays: list[Any], dy: Any) -> list[Any]:
    import paddle

    def given(array: Any) -> Any:
        return _laid(lambda one: paddle.to_tensor(one).astype(array.dtype.name), paddle.expand, array).detach()

    leaves = [given(one) for one in arrays]
    for one in leaves:
        one.stop_gradient = False
    y = call(*leaves)
    grads = paddle.grad(y, leaves, given(dy))
    return [(one.astype("float32") if one.dtype == paddle.bfloat16 else one).numpy() for one in (y, *grads)]


def _mindspore(call: Callable[..., Any], arrays: list[Any], dy: Any) -> list[Any]:
    import mindspore

    def given(array: Any) -> Any:
        kind = getattr(mindspore, array.dtype.name)
        return _laid(lambda one: mindspore.Tensor(one).astype(kind), mindspore.ops.broadcast_to, array)

    y, pull = mindspore.ops.vjp(call, *map(given, arrays))
    grads = pull(given(dy))
    return [(one.float() if one.dtype == mindspore.bfloat16 else one).asnumpy() for one in (y, *grads)]


@cache
def _session(
    operator: str, domain: str, reads: tuple[str, ...], writes: tuple[str, ...], kind: str, **given: Any
) -> Any:
    """One operator of ONNX Runtime; statistics are float32."""
    import onnxruntime
    from onnx import TensorProto, helper

    kinds = {
        name: TensorProto.FLOAT if name in ("mean", "rstd") else getattr(TensorProto, kind) for name in reads + writes
    }
    values = [[helper.make_tensor_value_info(name, kinds[name], None) for name in names] for names in (reads, writes)]
    node = helper.make_node(operator, reads, writes, domain=domain, **given)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], operator, *values), opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _onnxruntime(call: Callable[..., Any], arrays: list[Any], dy: Any) -> list[Any]:
    """The forward's operator, then that of its gradient, which the build for training has."""
    operator, axes, eps = call(*arrays)
    if dy.dtype.name == "bfloat16" or any(one.dtype != dy.dtype for one in arrays):
        raise NotImplementedError("it is called in float32, float64 and float16, with gamma in x's dtype")
    kind = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16"}[dy.dtype.name]
    named = dict(zip(("x", "weight", "bias"), map(np.ascontiguousarray, arrays), strict=False))
    statistics = ("mean", "rstd")[len(arrays) < 3 :]
    forward = _session(operator, "", tuple(named), ("y", *statistics), kind, axis=-axes, epsilon=eps)
    y, *found = forward.run(None, named)
    named |= dict(zip(statistics, found, strict=True)) | {"dy": np.ascontiguousarray(dy)}
    reads = "dy", "x", "weight", *statistics
    writes = ("dx", "dweight", "dbias")[: len(arrays)]
    gradient = _session(f"{operator}Grad", "com.microsoft", reads, writes, kind, axis=-axes)
    return [y, *gradient.run(None, {name: named[name] for name in reads})]


def _backward(framework: Callable[..., Any], norm: Callable[..., Any]) -> Callable[..., Any]:
    """A backward on NumPy arrays, as `lngrad check` calls it, of a forward (x, weight, bias, eps) or (x, weight, eps)."""
    centred = norm.__code__.co_argcount == 4

    def backward(dy, x, mean, rstd, gamma, eps, normalized_shape, output_dtypes):
        axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
        wide = x.astype(np.float64)
        own = wide.mean(axes, keepdims=True) if centred else 0.0 * rstd
        with np.errstate(all="ignore"):
            square = np.square(wide - own).mean(axes, keepdims=True) * np.square(rstd, dtype=np.float64)
        if np.any(np.abs(own - mean) > 0.1 * (1 + np.abs(own))) or np.any(square > 2):
            raise NotImplementedError("a derivative computes mean and rstd from x; this case gives others")
        weight = np.ones(normalized_shape, x.dtype) if gamma is None else gamma
        arrays = [x, weight, *[np.zeros_like(weight)] * centred]
        if any(one.dtype.name != wanted for one, wanted in zip(arrays, output_dtypes, strict=False)):
            raise NotImplementedError("refused: gradients in other dtypes than x and gamma")
        try:
            y, *found = framework(lambda *given: norm(*given, eps), arrays, dy)
        except Exception as error:
            raise NotImplementedError(f"refused: {type(error).__name__}: {error}"[:300]) from None
        assert y.shape == x.shape, y.shape
        return (*(one.astype(given.dtype) for one, given in zip(found, arrays, strict=True)), None)[:3]

    def forward(x, *given):
        return framework(lambda *some: norm(*some, given[-1]), [x, *given[:-1]], x)[0].astype(x.dtype)

    backward.forward, forward.bias = forward, centred  # type: ignore[attr-defined]
    return backward


def _paddle_rms_norm(x, weight, eps):
    return _of("paddle.nn.functional").rms_norm(x, weight.shape, weight, eps)[0]


def _mindspore_norm(x, weight, bias, eps):
    return _of("mindspore.ops").LayerNorm(x.ndim - weight.ndim, x.ndim - weight.ndim, epsilon=eps)(x, weight, bias)[0]


def _tinygrad_norm(name: str, x: Any, weight: Any, eps: float, **others: Any) -> Any:
    if name == "RMSNorm" and weight.ndim > 1:
        raise NotImplementedError("it normalizes one axis")
    norm = getattr(_of("tinygrad.nn"), name)(tuple(weight.shape) if name == "LayerNorm" else weight.shape[0], eps=eps)
    vars(norm).update(weight=weight, **others)
    return norm(x)


mlx_layer_norm = _backward(_mlx, lambda x, weight, bias, eps: _of("mlx.core").fast.layer_norm(x, weight, bias, eps))
mlx_rms_norm = _backward(_mlx, lambda x, weight, eps: _of("mlx.core").fast.rms_norm(x, weight, eps))
tinygrad_layer_norm = _backward(_tinygrad, lambda x, w, b, eps: _tinygrad_norm("LayerNorm", x, w, eps, bias=b))
tinygrad_rms_norm = _backward(_tinygrad, lambda x, weight, eps: _tinygrad_norm("RMSNorm", x, weight, eps))
paddle_layer_norm = _backward(
    _paddle, lambda x, w, b, eps: _of("paddle.nn.functional").layer_norm(x, w.shape, w, b, eps)
)
paddle_rms_norm = _backward(_paddle, _paddle_rms_norm)
mindspore_layer_norm = _backward(_mindspore, _mindspore_norm)
mindspore_rms_norm = _backward(_mindspore, lambda x, weight, eps: _of("mindspore.ops").rms_norm(x, weight, eps)[0])
onnxruntime_layer_norm = _backward(_onnxruntime, lambda x, weight, bias, eps: ("LayerNormalization", weight.ndim, eps))
onnxruntime_rms_norm = _backward(
    _onnxruntime, lambda x, weight, eps: ("SimplifiedLayerNormalization", weight.ndim, eps)
)


# Forwards


def forwards(name: str, norm: str, interpreted: bool) -> dict[str, Any]:
    """y of a norm over the shapes of lngrad.testing, in three dtypes, beside float64: how many are right, and which are not.

    In float32 y is rounded once and its sums have lngrad's tolerance; in 16 bits it is right within four units of roundoff of
    the largest element of its row, so that xhat may be rounded before it is multiplied by the weight.
    """
    from lngrad.core.norms import NORMS
    from lngrad.core import reference
    from lngrad.support.dtypes import UNIT_ROUNDOFF
    from lngrad.testing import CASES, Forward, GradientError, RmsForward, check_forward, make_inputs

    target, normalization = globals()[name], NORMS[norm].normalization
    own = getattr(target, "forward", None)
    has_bias = own.bias if own else "bias" in inspect.signature(target).parameters
    right, off, refused = 0, [], 0
    for case in CASES:
        if not case.gamma or len(case.normalized) > 1 or (interpreted and case.lead[0] > 100):
            continue
        for dtype in ("float32", "bfloat16", "float16"):
            one = make_inputs(case, dtype, normalization=normalization)
            given = [one.x, one.gamma, *[one.beta] * has_bias]
            try:
                y = np.asarray(own(*given, 1e-5)) if own else _on_host(target(*map(_array, given), 1e-5))
            except Exception:
                refused += 1
                continue
            beta = one.beta if len(given) > 2 else None
            true = reference.layer_norm(one.x, one.gamma, beta, normalized=1, normalization=normalization)
            try:
                if dtype == "float32":
                    zeros = np.zeros_like(one.gamma) if beta is None and normalization.centred else beta
                    statistics = (one.mean, one.rstd) if normalization.centred else (one.rstd,)
                    kind: Any = Forward if normalization.centred else RmsForward
                    check_forward(kind(y, *statistics), replace(one, beta=zeros))
                else:
                    size = np.maximum(np.abs(true.y).max(-1, keepdims=True), 2.0**-10)  # all 0 where N is 1
                    error = float((np.abs(y.astype(np.float64) - true.y) / size).max() / UNIT_ROUNDOFF[dtype])
                    if not error <= 4:
                        raise GradientError(f"y is off by {error:.3g} units of roundoff of its row's largest element")
                right += 1
            except GradientError as error:
                off.append(f"{case} {dtype}: {error}")
    return {"passed": right, "failed": len(off), "refused": refused, "off": off[:4]}


def _array(array: Any) -> Any:
    if "torch" in sys.modules or find_spec("torch"):
        from lngrad.check.implementations.ours import on_device

        return on_device(array)
    return _of("jax.numpy").asarray(array)


def _on_host(array: Any) -> Any:
    from lngrad.support.addresses import as_numpy

    return as_numpy(array.detach()) if hasattr(array, "detach") else np.asarray(array)


if __name__ == "__main__":
    print(json.dumps(forwards(sys.argv[1], sys.argv[2], "interpreted" in sys.argv)))
