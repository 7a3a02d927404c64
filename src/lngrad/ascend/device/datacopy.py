"""DataCopy and DataCopyPad: between global memory and the Unified Buffer, and within the Unified
Buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from lngrad.ascend.device.copies import MAX_BLOCKS, Blocks, Local, copy_global, copy_local
from lngrad.ascend.device.global_memory import GlobalTensor
from lngrad.ascend.device.local_tensor import LocalTensor, caller
from lngrad.ascend.device.operations import OPCODES
from lngrad.ascend.device.source import Site
from lngrad.ascend.faults import AlignmentFault, BoundsFault, DeviceFault, PositionFault
from lngrad.errors import DtypeError

BLOCK_BYTES = 32
MAX_PADDING_BYTES = 32
COPY_OPCODE = OPCODES["DataCopy"]
Tensor = Union[GlobalTensor, LocalTensor]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too


@dataclass(frozen=True)
class DataCopyParams:
    """Blocks of a copy.

    For DataCopy, ``blockLen`` and both gaps are in units of 32 bytes. For DataCopyPad, blockLen and
    the gap in global memory are in bytes. A gap goes from the end of one block to the start of the
    next.
    """

    blockCount: int = 1
    blockLen: int = 0
    srcStride: int = 0
    dstStride: int = 0


@dataclass(frozen=True)
class DataCopyExtParams:
    """Blocks of DataCopyPad: ``blockCount`` of ``blockLen`` bytes.

    The strides are the gaps between the end of one block and the start of the next: in bytes in
    global memory, in 32-byte blocks in the Unified Buffer.
    """

    blockCount: int = 1
    blockLen: int = 0
    srcStride: int = 0
    dstStride: int = 0
    rsv: int = 0


@dataclass(frozen=True)
class DataCopyPadExtParams:
    """What DataCopyPad writes around a block on the way in; counts are in elements."""

    isPad: bool = False
    leftPadding: int = 0
    rightPadding: int = 0
    paddingValue: float = 0.0


@dataclass(frozen=True)
class DataCopyPadParams(DataCopyPadExtParams):
    """The older form of DataCopyPadExtParams, which goes with DataCopyParams."""


class PaddingMode:
    """Whether DataCopyPad starts every block on 32 bytes (Normal), or packs them (Compact, 950
    only)."""

    Normal = 0
    Compact = 1


def DataCopy(dst: Tensor, src: Tensor, count: int | DataCopyParams) -> None:
    """Copy contiguous elements, or blocks with gaps: whole units of 32 bytes.

    C prototypes::

        void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count)
        void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count)
        void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count)
        (each also with ``const DataCopyParams&`` in place of the count)

    CANN: a count that is not whole blocks is refused; a device rounds it down and leaves the rest
    out.

    Raises:
        DeviceFault: Length, address, bounds, position, queue state, order, or bytes never written.
        DtypeError: The two tensors are of different types.
    """
    site = caller()
    local, remote = _sides("DataCopy", dst, src)
    size = local.dtype.itemsize
    if isinstance(count, DataCopyParams):
        if not 0 <= count.blockCount <= MAX_BLOCKS or not 0 <= count.blockLen <= 65535:
            raise BoundsFault(f"DataCopy: blockCount is 0 to {MAX_BLOCKS} and blockLen 0 to 65535, got {count}")
        nbytes = count.blockLen * BLOCK_BYTES
        gaps = (count.dstStride, count.srcStride) if dst is local else (count.srcStride, count.dstStride)
        steps = [nbytes + gap * BLOCK_BYTES for gap in gaps]
        blocks = Blocks(count.blockCount, nbytes, steps[0], steps[1])
    else:
        nbytes = count * size
        if nbytes % BLOCK_BYTES:
            raise AlignmentFault(
                f"DataCopy: the length must be a multiple of {BLOCK_BYTES} bytes, got {count} * {size} = {nbytes}; "
                "DataCopyPad moves other lengths"
            )
        blocks = Blocks(1, nbytes, nbytes, nbytes)
    if remote is None:
        assert isinstance(src, LocalTensor)
        if isinstance(count, int):
            places = (local.start, local.end, src.start, src.end, 0, 0)
            types = local.code | src.code << 8
            descriptor = (COPY_OPCODE, types, 0, count, 0, 0, 1, 1, 1, 8, 8, 8, *places)
            local.core.issue(site, 0.0, local.handle, src.handle, 0, descriptor)
        else:
            copy_local(local.core, site, _local(local), _local(src), blocks)
        return
    _global(site, "DataCopy", local, remote, blocks, dst is local)


def DataCopyPad(
    dst: Tensor,
    src: Tensor,
    dataCopyParams: DataCopyExtParams | DataCopyParams,
    padParams: DataCopyPadExtParams | None = None,
    *,
    mode: int = PaddingMode.Normal,
) -> None:
    """Copy blocks of any length between global memory and the Unified Buffer.

    C prototypes::

        template <typename T, PaddingMode mode = PaddingMode::Normal>
        void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
            const DataCopyExtParams& dataCopyParams, const DataCopyPadExtParams<T>& padParams)
        void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
            const DataCopyExtParams& dataCopyParams)
        (both also with DataCopyParams and DataCopyPadParams)

    On the way in a block starts on 32 bytes and is followed by ``rightPadding`` elements and, up to
    the next 32 bytes, by dummies. With isPad both are ``paddingValue``. Without, dummies are the
    block's first element where no padding is given; else padding and dummies are undefined on a
    device, and bytes that nobody wrote here.

    Raises:
        DeviceFault: The SoC has no DataCopyPad, a block is not whole elements, a limit, or a rule
            of ``DataCopy``.
        DtypeError: The two tensors are of different types.
    """
    site = caller()
    local, remote = _sides("DataCopyPad", dst, src)
    if remote is None:
        raise PositionFault("DataCopyPad: one of dst and src must be global and the other local")
    p, inward, size = dataCopyParams, dst is local, local.dtype.itemsize
    longest = (1 << 21) - 1 if isinstance(p, DataCopyExtParams) else 65535
    if not local.core.soc.data_copy_pad:
        raise DeviceFault(f"DataCopyPad: {local.core.soc.name} does not have it; pad on the host")
    if not 0 <= p.blockCount <= MAX_BLOCKS or not 0 <= p.blockLen <= longest:
        raise BoundsFault(f"DataCopyPad: blockCount is 0 to {MAX_BLOCKS} and blockLen 0 to {longest} bytes, got {p}")
    local_gap, remote_gap = (p.dstStride, p.srcStride) if inward else (p.srcStride, p.dstStride)
    for what, value in (("blockLen", p.blockLen), ("the gap in global memory", remote_gap)):
        if value % size:
            raise AlignmentFault(f"DataCopyPad: {what} must be whole elements of {size} bytes, got {value}")
    left, right, fill, undefined = _padding(padParams, p.blockLen, size) if inward else (0, 0, None, False)
    filled = left + p.blockLen + right
    if mode == PaddingMode.Compact:  # blocks lie one behind the other
        if local.core.soc.arch != 3510:
            raise DeviceFault(f"DataCopyPad: PaddingMode::Compact needs architecture 3510, not {local.core.soc.name}")
        blocks = Blocks(p.blockCount, p.blockLen, filled, p.blockLen + remote_gap, left, right, fill, undefined)
        _global(site, "DataCopyPad", local, remote, blocks, inward)
        return
    local_step = -(-filled // BLOCK_BYTES) * BLOCK_BYTES + local_gap * BLOCK_BYTES
    blocks = Blocks(p.blockCount, p.blockLen, local_step, p.blockLen + remote_gap, left, right, fill, undefined)
    _global(site, "DataCopyPad", local, remote, blocks, inward)


def _padding(pad: DataCopyPadExtParams | None, nbytes: int, size: int) -> tuple[int, int, float | None, bool]:
    """Return the bytes before and behind a block, what fills them, and whether that is
    undefined."""
    given = pad or DataCopyPadExtParams()
    left, right = given.leftPadding * size, given.rightPadding * size
    for name, value in (("leftPadding", left), ("rightPadding", right)):
        if not 0 <= value <= MAX_PADDING_BYTES:
            raise BoundsFault(f"DataCopyPad: {name} must be 0 to {MAX_PADDING_BYTES} bytes, got {value}")
    if given.isPad and (left or right or (left + nbytes + right) % BLOCK_BYTES == 0):
        return left, right, given.paddingValue, False
    if left or right:
        return left, right, None, True
    return 0, 0, None, False


def _sides(api: str, dst: Tensor, src: Tensor) -> tuple[LocalTensor, GlobalTensor | None]:
    """Return the local and the global side; None where both are local (then the first is dst)."""
    if dst.dtype != src.dtype or src.dtype is None:
        raise DtypeError(f"{api}: dst and src must have one type, got {dst.dtype} and {src.dtype}")
    if isinstance(dst, LocalTensor):
        return dst, None if isinstance(src, LocalTensor) else src
    if isinstance(src, LocalTensor):
        return src, dst
    raise PositionFault(f"{api}: one of dst and src must be a LocalTensor, both are global")


def _local(tensor: LocalTensor) -> Local:
    return Local(tensor.handle, tensor.start, tensor.end)


def _global(site: Site, api: str, local: LocalTensor, remote: GlobalTensor, blocks: Blocks, inward: bool) -> None:
    region, start, end = remote.window(api, 0, remote.GetSize())
    copy_global(local.core, site, api, inward, local.code, _local(local), (region, start, end), blocks)
