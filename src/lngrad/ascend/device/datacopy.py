"""DataCopy and DataCopyPad: between global memory and the Unified Buffer, and within the Unified Buffer."""

from __future__ import annotations

from dataclasses import dataclass

from lngrad.ascend.device.global_memory import GlobalTensor
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.unified_buffer import Pipe, TPosition, current_block
from lngrad.ascend.faults import AlignmentFault, BoundsFault, DeviceFault, PositionFault
from lngrad.errors import DtypeError
from lngrad.typing import Array

__all__ = ["DataCopy", "DataCopyExtParams", "DataCopyPad", "DataCopyPadExtParams"]

COPY_IN = (TPosition.VECIN, TPosition.VECCALC)
COPY_OUT = (TPosition.VECOUT, TPosition.VECCALC)


def DataCopy(dst: GlobalTensor | LocalTensor, src: GlobalTensor | LocalTensor, count: int) -> None:
    """Copy ``count`` contiguous elements, whole 32-byte blocks of them.

    C prototypes::

        void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count)
        void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count)
        void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count)

    CANN: a count that is not whole blocks is refused; a device rounds it down and leaves the rest out.

    Raises:
        DeviceFault: length, address, bounds, position, queue state, or bytes never written.
        DtypeError: the two tensors are of different types.
    """
    if dst.dtype != src.dtype or src.dtype is None:
        raise DtypeError(f"DataCopy: dst and src must have one type, got {dst.dtype} and {src.dtype}")
    nbytes = count * src.dtype.itemsize
    local = dst if isinstance(dst, LocalTensor) else src
    if not isinstance(local, LocalTensor):
        raise PositionFault("DataCopy: dst and src are both global; one of them must be a LocalTensor")
    block_bytes = local.ub.soc.block_bytes
    if nbytes % block_bytes:
        raise AlignmentFault(
            f"DataCopy: the length must be a multiple of {block_bytes} bytes, got {count} * {src.dtype.itemsize} = "
            f"{nbytes}; DataCopyPad moves other lengths"
        )
    local.ub.tally.instructions["DataCopy"] += 1
    if isinstance(dst, LocalTensor) and isinstance(src, LocalTensor):
        dst.write("DataCopy", "dst", count)[:] = src.read("DataCopy", "src", count)
    elif isinstance(dst, LocalTensor) and isinstance(src, GlobalTensor):
        _check_position("DataCopy", "dst", dst, COPY_IN)
        dst.write("DataCopy", "dst", count, Pipe.MTE2)[:] = src.elements("DataCopy", count)
        local.ub.tally.bytes_in += nbytes
    elif isinstance(dst, GlobalTensor):
        _check_position("DataCopy", "src", local, COPY_OUT)
        values = local.read("DataCopy", "src", count, Pipe.MTE3)
        _store(dst, 0, values, "DataCopy")
        local.ub.tally.bytes_out += nbytes


@dataclass(frozen=True)
class DataCopyExtParams:
    """How DataCopyPad walks: ``blockCount`` runs of ``blockLen`` bytes.

    The strides are the gaps between the end of one run and the start of the next: in bytes in global memory, in
    32-byte blocks in the Unified Buffer.
    """

    blockCount: int = 1
    blockLen: int = 0
    srcStride: int = 0
    dstStride: int = 0
    rsv: int = 0


@dataclass(frozen=True)
class DataCopyPadExtParams:
    """What DataCopyPad writes around a run so that it fills whole blocks; counts are in elements."""

    isPad: bool = False
    leftPadding: int = 0
    rightPadding: int = 0
    paddingValue: float = 0.0


def DataCopyPad(
    dst: GlobalTensor | LocalTensor,
    src: GlobalTensor | LocalTensor,
    dataCopyParams: DataCopyExtParams,
    padParams: DataCopyPadExtParams | None = None,
) -> None:
    """Copy runs of any length between global memory and the Unified Buffer.

    C prototypes::

        void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
            const DataCopyExtParams& dataCopyParams, const DataCopyPadExtParams<T>& padParams)
        void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
            const DataCopyExtParams& dataCopyParams)

    On the way in, a run starts on a block; behind its last element the block is filled with ``paddingValue`` as far as
    ``rightPadding`` says, and holds no value further on (a device leaves arbitrary bytes there).

    Raises:
        DeviceFault: the SoC has no DataCopyPad, a run is not whole elements, or a rule of ``DataCopy``.
        DtypeError: the two tensors are of different types.
    """
    if dst.dtype != src.dtype or src.dtype is None:
        raise DtypeError(f"DataCopyPad: dst and src must have one type, got {dst.dtype} and {src.dtype}")
    local, remote = (dst, src) if isinstance(dst, LocalTensor) else (src, dst)
    if not isinstance(local, LocalTensor) or not isinstance(remote, GlobalTensor):
        raise PositionFault("DataCopyPad: one of dst and src must be global and the other local")
    if not local.ub.soc.data_copy_pad:
        raise DeviceFault(f"DataCopyPad: {local.ub.soc.name} does not have it; pad on the host")
    size, block_bytes = src.dtype.itemsize, local.ub.soc.block_bytes
    pad = padParams if padParams is not None and padParams.isPad else DataCopyPadExtParams()
    if dataCopyParams.blockLen % size:
        raise AlignmentFault(f"DataCopyPad: blockLen must be whole elements of {size} bytes, got {dataCopyParams}")
    run = dataCopyParams.blockLen // size
    inwards = dst is local
    local_gap, remote_gap = (
        (dataCopyParams.dstStride, dataCopyParams.srcStride)
        if inwards
        else (dataCopyParams.srcStride, dataCopyParams.dstStride)
    )
    filled = pad.leftPadding + run + pad.rightPadding
    local_step = (-(-filled * size // block_bytes) + local_gap) * block_bytes // size
    remote_step = (dataCopyParams.blockLen + remote_gap) // size
    if remote_gap % size:
        raise AlignmentFault(f"DataCopyPad: the gap in global memory must be whole elements, got {remote_gap} bytes")
    _check_position("DataCopyPad", "dst" if inwards else "src", local, COPY_IN if inwards else COPY_OUT)
    local.ub.tally.instructions["DataCopyPad"] += 1
    for index in range(dataCopyParams.blockCount):
        here, there = local[index * local_step :], index * remote_step
        if inwards:
            view = here.write("DataCopyPad", "dst", filled, Pipe.MTE2)
            view[:] = pad.paddingValue
            view[pad.leftPadding : pad.leftPadding + run] = remote.elements("DataCopyPad", there + run)[there:]
            local.ub.tally.bytes_in += run * size
        else:
            _store(remote, there, here.read("DataCopyPad", "src", run, Pipe.MTE3), "DataCopyPad")
            local.ub.tally.bytes_out += run * size


def _check_position(api: str, role: str, tensor: LocalTensor, allowed: tuple[TPosition, ...]) -> None:
    if tensor.GetPosition() not in allowed:
        raise PositionFault(
            f"{api}: {role} ({tensor.describe()}) must be at {' or '.join(p.value for p in allowed)}, "
            f"it is at {tensor.GetPosition().value}"
        )


def _store(dst: GlobalTensor, first: int, values: Array, api: str) -> None:
    """Write to global memory and note where, for the check that no two blocks write the same bytes."""
    target = dst.elements(api, first + values.size)[first:]
    if not target.flags.writeable:
        raise BoundsFault(f"{api}: {dst.name} is read-only")
    target[:] = values
    block = current_block.get()
    if block is not None:
        start = target.__array_interface__["data"][0]
        block.global_writes.append((start, start + target.nbytes, dst.name))
