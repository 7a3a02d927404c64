"""Calls of the core with dense tensors, in as few steps as Python allows: what a call needs is looked up by its facts.

Below the dispatcher's autograd keys. A plan runs on addresses; results are torch's own memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeAlias

import torch

from lngrad.core.arrays import ArraySpec, Output
from lngrad.core.calls import SMALL_ELEMENTS, BoundCall, kept
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import ROLES, Normalization, Operator, Problem, Role, describe
from lngrad.core.threads import chosen, torch_thread_count
from lngrad.errors import LngradError
from lngrad.support.dtypes import ACCUMULATORS, bytes_of, contiguous_strides, torch_dtype
from lngrad.torch.memory import empty
from lngrad.typing import Mask, Shape, Tensor

# An operator of the core, its arrays, the normalized shape, which results are wanted, the normalization.
Call: TypeAlias = "tuple[Operator, tuple[Tensor | None, ...], Shape, Mask, Normalization]"
# (mask, the arrays, others) -> the dtype that mean and rstd, or dgamma and dbeta, shall have. It may raise to refuse a call.
DtypeOf: TypeAlias = Callable[..., Any]

_PLAIN = torch.contiguous_format  # else a dimension of one element would have x's stride
_ACCUMULATORS = {torch_dtype(name): torch_dtype(accumulator) for name, accumulator in ACCUMULATORS.items()}


def accumulator_of(x: Tensor, *parameters: Tensor | None) -> Any:
    """The torch dtype in which a call with this x and these parameters is computed, statistics and sums too."""
    wide = any(parameter is not None and parameter.dtype is torch.float64 for parameter in parameters)
    return torch.float64 if wide else _ACCUMULATORS.get(x.dtype, torch.float32)


def run(
    operator: Operator, arrays: tuple[Tensor | None, ...], shape: Shape, mask: Mask, normalization: Normalization,
    numbers: tuple[float, ...] = (), dtype_of: DtypeOf | None = None, others: tuple[Tensor | None, ...] = (),
    devices: Hashable = None,
) -> list[Tensor | None]:  # fmt: skip
    """The results of a call with tensors of any strides, contiguous; None where not wanted.

    Args:
        operator, arrays, shape, mask, normalization: As in Call.
        numbers: The operator's.
        dtype_of: Called once for calls with equal facts. None: dtypes are the core's.
        others: Tensors that dtype_of looks at, of their facts alone.
        devices: Of the arrays, if they are not on the CPU.

    Raises:
        ShapeError, DtypeError: Of the core, and what dtype_of raises.
    """
    key = (
        operator, normalization, tuple(shape), tuple(mask), dtype_of, devices, chosen.value, torch.get_num_threads(),
        *[
            None if tensor is None else (tensor.shape, tensor.dtype, tensor.is_contiguous() or tensor.stride())
            for tensor in arrays + others
        ],
    )  # fmt: skip
    call = kept.get(key)
    if call is None:
        plan = plan_of((operator, arrays, shape, mask, normalization), dtype_of, others)
        call = kept.keep(key, BoundCall(plan, _maker_of if devices is None else None))
    return call.run(arrays, numbers)


def run_elsewhere(
    operator: Operator, arrays: tuple[Tensor | None, ...], shape: Shape, mask: Mask, normalization: Normalization,
    numbers: tuple[float, ...] = (),
) -> list[Tensor | None]:  # fmt: skip
    """run on another device than the CPU."""
    devices = tuple([None if tensor is None else tensor.device for tensor in arrays])
    return run(operator, arrays, shape, mask, normalization, numbers, devices=devices)


def plan_of(call: Call, dtype_of: DtypeOf | None = None, others: tuple[Tensor | None, ...] = ()) -> Plan:
    """The plan of a call. torch's operators keep their own statistics, and so a backward may complete the mean."""
    operator, arrays, shape, mask, normalization = call
    small = None if dtype_of is None else str(dtype_of(mask, *arrays, *others)).removeprefix("torch.")
    completes_mean = "lost" not in operator.inputs
    problem, _ = describe(operator, arrays, shape, mask, None, normalization, completes_mean)
    if small is not None:
        out = tuple(None if ROLES[name] is Role.TENSOR else _fact(problem, name, small) for name in operator.outputs)
        problem, _ = describe(operator, arrays, shape, mask, out, normalization, completes_mean)
    return make_plan(problem, None, torch_thread_count())


def _fact(problem: Problem, name: str, dtype: str) -> ArraySpec:
    shape, _ = problem.result(name)
    return ArraySpec(shape, dtype, contiguous_strides(shape, bytes_of(dtype)), "cpu", "torch")


def prepare(call_of: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Tensor, Tensor] | None]:
    """A function that prepares contiguous calls for the native code.

    Args:
        call_of: Of the function's arguments, those of plan_of.

    Returns:
        A tensor of the dtype that mean and rstd, or dgamma and dbeta, have, and the plan as numbers; None where the native code
        shall leave the call to Python.
    """

    def prepare_call(*arguments: Any) -> tuple[Tensor, Tensor] | None:
        try:
            plan = plan_of(*call_of(*arguments))
        except LngradError:
            return None
        packed = None if plan.pack is None else plan.pack(plan)
        if packed is None:
            return None
        name = next(name for name in plan.problem.out if ROLES[name] is not Role.TENSOR)
        out, (_, dtype) = plan.problem.out[name], plan.problem.result(name)
        return torch.empty(0, dtype=torch_dtype(out.dtype if out else dtype)), torch.from_numpy(packed.flat())

    return prepare_call


def _maker_of(output: Output) -> Callable[[], Tensor]:
    dtype = torch_dtype(output.dtype)
    if math.prod(output.shape) >= SMALL_ELEMENTS:
        return partial(empty, output.shape, dtype)
    like = torch.empty(1, dtype=dtype, device="cpu").expand(output.shape)
    return partial(torch.empty_like, like, memory_format=_PLAIN)  # 0.7 µs less than torch.empty with a shape
