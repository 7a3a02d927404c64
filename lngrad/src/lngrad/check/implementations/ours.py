"""Our backends, Triton kernels without a GPU, ways in through torch and JAX, and CANN's interfaces without an NPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

import lngrad
from lngrad.api import execute
from lngrad.check.implementations.implementation import (
    Arguments,
    Implementation,
    NotApplicable,
    tensors_as_x,
    unprepared,
)
from lngrad.core.memory import empty_cache
from lngrad.core.norms import NORMS
from lngrad.core.problem import Forward, Grads, Problem
from lngrad.core.threads import set_num_threads
from lngrad.errors import BackendUnavailable
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype, to_torch
from lngrad.typing import Array

NO_DEVICE = "what runs here is no device"


def public_functions(backend: str) -> Implementation:
    """lngrad.layer_norm and lngrad.layer_norm_backward with one backend."""

    def forward(a: Arguments) -> Any:
        names = ("normalized_shape", "eps", "offset", "alpha", "residual", "out")
        options = {"backend": backend, **{name: getattr(a, name) for name in names}}
        if a.normalization.centred:
            return lngrad.layer_norm(a.x, a.gamma, a.beta, **options)
        return lngrad.rms_norm(a.x, a.gamma, gate=a.gate, norm_before_gate=a.norm_before_gate, **options)

    def backward(a: Arguments) -> Any:
        memory = None if a.declared is None else a.masked(**a.parameters())
        options = {name: getattr(a, name) for name in ("normalized_shape", "offset", "dtotal", "output_mask")}
        options |= {"out": a.out or memory, "backend": backend}
        if a.normalization.centred:
            return lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma, **options)
        if a.gate is not None:
            options |= {"gate": a.gate, "norm_before_gate": a.norm_before_gate}
        return lngrad.rms_norm_backward(a.dy, a.x, a.rstd, a.gamma, **options)

    return Implementation(
        backend, unprepared(backward), unprepared(forward), NORMS, takes=(tensors_as_x,), package="lngrad",
        version=lambda: lngrad.__version__, into=True, set_threads=set_num_threads, empty_cache=empty_cache,
    )  # fmt: skip


def backend(name: str) -> Implementation:
    """A backend; what it does not take is skipped."""
    row = public_functions(name)

    def backward(a: Arguments) -> Any:
        try:
            return row.backward(a)()
        except BackendUnavailable as reason:
            raise NotApplicable(str(reason)) from None

    return replace(row, backward=unprepared(backward))


def require_triton() -> None:
    """Turn Triton's interpreter on where there is no GPU.

    Raises:
        BackendUnavailable: There is no torch or no Triton, or Triton was imported before, to compile.
    """
    try:
        import torch

        if not torch.cuda.is_available():
            if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
                raise BackendUnavailable(
                    "--impl: triton: there is no GPU, and Triton is imported without TRITON_INTERPRET=1"
                )
            os.environ["TRITON_INTERPRET"] = "1"
        import triton  # noqa: F401
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"--impl: triton needs {error.name}, which is not installed") from None


def rounding_of_a_gpu() -> None:
    """Make Triton's interpreter round float32 to bfloat16 as a GPU does, to nearest even: by itself it cuts the digits off."""
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    if (cut := interpreter._convert_float).__name__ == "converted":
        return

    def converted(data: Any, from_dtype: Any, wanted: Any, rounding: Any) -> Any:
        if (from_dtype, wanted) != (tl.float32, tl.bfloat16) or str(rounding).endswith("RTZ"):
            return cut(data, from_dtype, wanted, rounding)
        return data.astype(numpy_dtype("bfloat16")).view(np.uint16)

    interpreter._convert_float = converted


def on_device(array: Any) -> Any:
    """A tensor on the GPU, or on the CPU where there is none, of an array; anything else as it is.

    It has the array's strides where torch has such: none are negative, and its elements are aligned.
    """
    if not isinstance(array, np.ndarray):
        return array
    import torch

    plain = any(step < 0 or step % array.itemsize for step in array.strides) or not array.flags.aligned
    tensor = to_torch(np.require(array, requirements=["C", "W"] if plain else ["W"]))
    if not torch.cuda.is_available() or tensor.is_contiguous():
        return tensor.to("cuda" if torch.cuda.is_available() else "cpu")
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).to("cuda").as_strided(tensor.shape, tensor.stride())


def where_triton_runs(row: Implementation) -> Implementation:
    """A row of Triton kernels, with what is known of the GPU or of the interpreter in its place."""
    import torch

    if torch.cuda.is_available():
        return replace(row, where=f"on {torch.cuda.get_device_name()}")
    return replace(row, where="in Triton's interpreter, without a GPU", simulated=True, elsewhere=NO_DEVICE)


def triton_gpu() -> Implementation:
    """Our Triton kernels: on a GPU, or on the CPU with Triton's interpreter, where no plan chooses them."""
    require_triton()

    def backward(a: Arguments) -> Grads:
        t = replace(a, out=a.out or Grads(dx=None, **a.parameters())).map(on_device)
        out: Any = t.out
        problem, arrays = Problem.backward(t.dy, t.x, t.mean, t.rstd, t.gamma, a.normalized_shape, a.output_mask, out)
        return Grads(*_executed(problem, arrays, out))

    def forward(a: Arguments) -> Forward:
        t = a.map(on_device)
        out: Any = t.out
        problem, arrays = Problem.forward(t.x, t.gamma, t.beta, out=out)
        return Forward(*_executed(problem, (*arrays, a.eps), out))

    return where_triton_runs(
        Implementation(
            "triton_gpu", unprepared(backward), unprepared(forward), takes=(tensors_as_x,), package="lngrad",
            version=lambda: lngrad.__version__, into=True,
        )
    )  # fmt: skip


def _executed(problem: Problem, arrays: Any, out: Any) -> list[Array | None]:
    from lngrad.gpu.plan import plan

    with np.errstate(all="ignore"):  # Triton's interpreter computes with NumPy, which warns where a GPU says nothing
        return _each(execute(plan(problem, 1), arrays, out), lambda item: as_numpy(item.cpu()))


def _each(results: Iterable[Any], convert: Callable[[Any], Array]) -> list[Array | None]:
    return [None if result is None else convert(result) for result in results]
