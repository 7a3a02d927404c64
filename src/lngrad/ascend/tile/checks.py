"""What the doors of the tile APIs check: the rules of CANN's CPU-debug build, and the harm of shared memory.

The manuals allow source and destination to share memory. Whether that changes the result depends on the order of the
instructions, on the chunks and on isReuseSource; instead of guessing, the simulator runs such a call a second time on
separate memory and compares.
"""

from __future__ import annotations

import enum
import warnings
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from lngrad.ascend import soc as socs
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.unified_buffer import Allocation, State, TPosition, UnifiedBuffer
from lngrad.ascend.faults import (
    AlignmentFault,
    AscendWarning,
    BoundsFault,
    DeviceFault,
    OverlapFault,
    PositionFault,
    TilingError,
)
from lngrad.ascend.tiling.structs import LayerNormGradBetaTiling
from lngrad.ascend.tiling.words import align_up
from lngrad.errors import DtypeError

__all__ = [
    "DataFormat",
    "apart",
    "beta_positions",
    "data_format",
    "element_type",
    "outputs_apart",
    "rstd_types",
    "temporary",
    "tensors",
    "tile_api",
    "warn",
    "warn_where_different",
    "whole_blocks",
]

POSITIONS = (TPosition.VECIN, TPosition.VECOUT, TPosition.VECCALC)
Tensors = TypeVar("Tensors")


class DataFormat(enum.Enum):
    """The layout of a tensor. The tile APIs take ND only."""

    ND = 0
    NZ = 1
    NCHW = 2
    NC1HWC0 = 3
    NHWC = 4


def tile_api(api: str, soc: socs.Soc) -> None:
    """Refuse a product for which the manuals do not list the API."""
    if not soc.tile_api:
        raise DeviceFault(f"{api}: not available on {soc.name} ({soc.product}), see the manual's product table")


def data_format(api: str, given: DataFormat) -> None:
    """Refuse every format but ND."""
    if given is not DataFormat.ND:
        raise DeviceFault(f"{api}: dataFormat must be ND, got {given.name}")


def element_type(api: str, tensor: LocalTensor, isReuseSource: bool) -> None:
    """Refuse types other than half and float, and the reuse of half sources."""
    if tensor.dtype not in (np.float16, np.float32):
        raise DtypeError(f"{api}: T must be half or float, got {tensor.dtype}")
    if isReuseSource and tensor.dtype == np.float16:
        raise DtypeError(f"{api}: isReuseSource=true takes float only, T is half")


def tensors(api: str, first: LocalTensor, given: list[tuple[str, LocalTensor, int]]) -> None:
    """Check position, type and size of every (name, tensor, elements needed)."""
    for name, tensor, needed in given:
        position(api, name, tensor)
        if tensor.dtype != first.dtype:
            raise DtypeError(f"{api}: {name} must be {first.dtype} like {given[0][0]}, got {tensor.dtype}")
        if tensor.GetSize() < needed:
            raise BoundsFault(f"{api}: {name} needs {needed} elements for this tiling, it has {tensor.GetSize()}")


def position(api: str, name: str, tensor: LocalTensor) -> None:
    """Refuse a tensor that is not in the Unified Buffer for vectors."""
    if tensor.GetPosition() not in POSITIONS:
        names = ", ".join(p.value for p in POSITIONS)
        raise PositionFault(f"{api}: {name} must be at one of {names}, it is at {tensor.GetPosition().value}")


def whole_blocks(api: str, tensor: LocalTensor, H: int) -> None:
    """Refuse a last axis that does not fill whole blocks."""
    nbytes, block = H * tensor.dtype.itemsize, tensor.ub.soc.block_bytes
    if nbytes % block:
        raise AlignmentFault(
            f"{api}: the last axis must fill blocks of {block} bytes, H is {H} of {tensor.dtype.itemsize} bytes = "
            f"{nbytes}; pad it and give storageHLength and originHLength to the tiling"
        )


def outputs_apart(api: str, one: LocalTensor, other: LocalTensor, count: int, names: tuple[str, str]) -> None:
    """Refuse two outputs that share memory."""
    size = one.dtype.itemsize
    if one[:count].overlaps(other[:count]):
        raise OverlapFault(
            f"{api}: {names[0]} (bytes {one.start} to {one.start + count * size}) and {names[1]} (bytes "
            f"{other.start} to {other.start + count * size}) must not share memory"
        )


def temporary(api: str, given: LocalTensor | None, used: LocalTensor, stack_bytes: int) -> None:
    """Check the temporary buffer against the size that the tiling was made for."""
    if given is not None:
        position(api, "sharedTmpBuffer", given)
        if given.dtype != np.uint8:
            raise DtypeError(f"{api}: sharedTmpBuffer must be uint8, got {given.dtype}")
    if used.GetSize() < stack_bytes:
        where = "sharedTmpBuffer" if given is not None else "the space that TPipe has left"
        raise BoundsFault(
            f"{api}: {where} has {used.GetSize()} bytes, the tiling was made for stackBufferSize {stack_bytes}"
        )


def beta_positions(api: str, tiling: LayerNormGradBetaTiling) -> None:
    """Refuse a Beta tiling whose chunk is empty or whose buffers pass the end of its stack buffer."""
    if tiling.oneCalSize < 1:
        raise TilingError(f"{api}: oneCalSize must be above 0, got {tiling.oneCalSize}; the tiling was never filled")
    end = tiling.resForGammaTmpTensorPos + tiling.oneCalSize
    if end > tiling.stackBufferSize:
        raise TilingError(f"{api}: the buffers end at float {end}, stackBufferSize is {tiling.stackBufferSize} floats")


def rstd_types(api: str, x: LocalTensor, mean: LocalTensor, gamma: LocalTensor, beta: LocalTensor) -> None:
    """Check the types of the rstd form: float statistics, and gamma and beta alike in T or float."""
    if mean.dtype != np.float32:
        raise DtypeError(f"{api}: outputMean and outputRstd must be float in this form, got {mean.dtype}")
    if gamma.dtype != beta.dtype or gamma.dtype not in (x.dtype, np.dtype(np.float32)):
        raise DtypeError(
            f"{api}: gamma and beta must both be {x.dtype} or both float, got {gamma.dtype} and {beta.dtype}"
        )


def warn(text: str, inner: int = 0) -> None:
    """Give an AscendWarning at the line of the kernel; ``inner`` counts functions between the tile API and here."""
    # 4: here, the tile API, the errstate wrapper around it, the kernel.
    warnings.warn(text, AscendWarning, stacklevel=4 + inner)


def apart(given: Tensors, outputs: dict[str, int]) -> Tensors | None:
    """Return the tensors of a call copied to memory of their own, or None where no output shares any.

    Args:
        given: a dataclass of LocalTensor.
        outputs: field name of each output and its number of elements.
    """
    named: dict[str, LocalTensor] = {f.name: getattr(given, f.name) for f in fields(given)}  # type: ignore[arg-type]  # a dataclass
    shares = any(
        named[out][:count].overlaps(tensor)
        for out, count in outputs.items()
        for name, tensor in named.items()
        if name != out
    )
    if not shares:
        return None
    soc = next(iter(named.values())).ub.soc
    size = sum(align_up(t.nbytes, soc.block_bytes) for t in named.values())
    scratch = UnifiedBuffer(soc, size)
    return replace(given, **{name: _copy(tensor, scratch) for name, tensor in named.items()})  # type: ignore[type-var]  # a dataclass


def _copy(tensor: LocalTensor, scratch: UnifiedBuffer) -> LocalTensor:
    place = Allocation(tensor.allocation.name, tensor.GetPosition(), scratch.next_free, tensor.nbytes, State.BUFFER)
    there, here = slice(place.start, place.start + tensor.nbytes), slice(tensor.start, tensor.start + tensor.nbytes)
    scratch.data[there] = tensor.ub.data[here]
    scratch.written[there] = tensor.ub.written[here]
    scratch.next_free += align_up(tensor.nbytes, scratch.soc.block_bytes)
    return LocalTensor(scratch, place, tensor.dtype, place.start, tensor.nbytes)


def warn_where_different(api: str, given: Any, separate: Any, outputs: dict[str, tuple[str, int]]) -> None:
    """Warn where the results differ from those on separate memory.

    Args:
        api: the tile API.
        given: the tensors of the call, after it ran.
        separate: the copy of ``apart``, after it ran; None where nothing was shared.
        outputs: field name of each output, its name in CANN and its number of elements.
    """
    if separate is None:
        return
    for field, (name, count) in outputs.items():
        got, expected = (_bits(getattr(tensors, field), count) for tensors in (given, separate))
        wrong = int(np.count_nonzero(got != expected))
        if wrong:
            warnings.warn(
                f"{api}: operands share memory in a way that changes the result: {wrong} of {count} elements of "
                f"{name} differ from what separate memory gives",
                AscendWarning,
                stacklevel=4,
            )


def _bits(tensor: LocalTensor, count: int) -> np.ndarray[Any, Any]:
    unsigned = np.dtype(f"u{tensor.dtype.itemsize}")
    stop = tensor.start + count * tensor.dtype.itemsize
    return tensor.ub.data[tensor.start : stop].view(unsigned)
