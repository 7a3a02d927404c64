"""The rules that CANN's CPU-debug build checks at the doors of the tile APIs, one function a
rule."""

from __future__ import annotations

import enum

import numpy as np

from lngrad.ascend import soc as socs
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.unified_buffer import TPosition
from lngrad.ascend.faults import AlignmentFault, BoundsFault, DeviceFault, OverlapFault, PositionFault, TilingError
from lngrad.ascend.tiling.structs import LayerNormGradBetaTiling
from lngrad.errors import DtypeError
from lngrad.typing import Dtype

POSITIONS = (TPosition.VECIN, TPosition.VECOUT, TPosition.VECCALC)


class DataFormat(enum.Enum):
    """The layout of a tensor. The tile APIs take ND only."""

    ND = 0
    NZ = 1
    NCHW = 2
    NC1HWC0 = 3
    NHWC = 4
    NCDHW = 5
    NDC1HWC0 = 6
    FRACTAL_Z_3D = 7


def tile_api(api: str, soc: socs.Soc) -> None:
    """Refuse a product for which the manuals do not list the API."""
    if not soc.tile_api:
        raise DeviceFault(f"{api}: not available on {soc.name} ({soc.product}), see the manual's product table")


def data_format(api: str, shapeInfo: object) -> None:
    """Refuse every format but ND, and what is no LayerNormGradShapeInfo.

    A braced initializer of C++, ``{DataFormat::ND}``, is a set or a tuple in Python: it is named.
    """
    given = getattr(shapeInfo, "dataFormat", None)
    if not isinstance(given, DataFormat):
        raise DtypeError(f"{api}: shapeInfo must be a LayerNormGradShapeInfo(DataFormat.ND), got {shapeInfo!r}")
    if given is not DataFormat.ND:
        raise DeviceFault(f"{api}: dataFormat must be ND, got {given.name}")


def element_type(api: str, tensor: LocalTensor, isReuseSource: bool) -> None:
    """Refuse types other than half and float, and the reuse of half sources."""
    if tensor.dtype not in (np.float16, np.float32):
        raise DtypeError(f"{api}: T must be half or float, got {tensor.dtype}")
    if isReuseSource and tensor.dtype == np.float16:
        raise DtypeError(f"{api}: isReuseSource=true takes float only, T is half")


def tensor(api: str, name: str, given: LocalTensor, needed: int) -> None:
    """Check position and size of one tensor."""
    position(api, name, given)
    if given.GetSize() < needed:
        raise BoundsFault(f"{api}: {name} needs {needed} elements for this tiling, it has {given.GetSize()}")


def same_type(api: str, name: str, given: LocalTensor, first_name: str, first: LocalTensor) -> None:
    """Refuse a tensor that is not of the type T of the call."""
    if given.dtype != first.dtype:
        raise DtypeError(f"{api}: {name} must be {first.dtype} like {first_name}, got {given.dtype}")


def fixed_type(api: str, name: str, given: LocalTensor, dtype: Dtype) -> None:
    """Refuse a tensor that is not of the one type that the parameter takes."""
    if given.dtype != dtype:
        raise DtypeError(f"{api}: {name} must be {dtype} in this form, got {given.dtype}")


def position(api: str, name: str, tensor: LocalTensor) -> None:
    """Refuse a tensor that is not in the Unified Buffer for vectors."""
    if tensor.GetPosition() not in POSITIONS:
        names = ", ".join(p.value for p in POSITIONS)
        raise PositionFault(f"{api}: {name} must be at one of {names}, it is at {tensor.GetPosition().value}")


def whole_blocks(api: str, tensor: LocalTensor, H: int) -> None:
    """Refuse a last axis that does not fill whole blocks."""
    nbytes, block = H * tensor.dtype.itemsize, tensor.core.soc.block_bytes
    if nbytes % block:
        raise AlignmentFault(
            f"{api}: the last axis must fill blocks of {block} bytes, H is {H} of {tensor.dtype.itemsize} bytes = "
            f"{nbytes}; pad it and give storageHLength and originHLength to the tiling"
        )


def outputs_apart(api: str, one: tuple[str, LocalTensor, int], other: tuple[str, LocalTensor, int]) -> None:
    """Refuse two outputs, each (name, tensor, elements), that share memory."""
    if one[1][: one[2]].overlaps(other[1][: other[2]]):
        here, there = (
            f"{name} (bytes {tensor.start} to {tensor.start + count * tensor.dtype.itemsize})"
            for name, tensor, count in (one, other)
        )
        raise OverlapFault(f"{api}: {here} and {there} must not share memory")


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
    """Refuse a Beta tiling whose chunk is empty or whose buffers pass the end of its stack
    buffer."""
    if tiling.oneCalSize < 1:
        raise TilingError(f"{api}: oneCalSize must be above 0, got {tiling.oneCalSize}; the tiling was never filled")
    end = tiling.resForGammaTmpTensorPos + tiling.oneCalSize
    if end > tiling.stackBufferSize:
        raise TilingError(f"{api}: the buffers end at float {end}, stackBufferSize is {tiling.stackBufferSize} floats")


def rstd_scale_types(api: str, x: LocalTensor, gamma: LocalTensor, beta: LocalTensor) -> None:
    """Check that gamma and beta of the rstd form are both of x's type, or both float."""
    if gamma.dtype != beta.dtype or gamma.dtype not in (x.dtype, np.dtype(np.float32)):
        raise DtypeError(
            f"{api}: gamma and beta must both be {x.dtype} or both float, got {gamma.dtype} and {beta.dtype}"
        )
