"""Copies: DataCopy and DataCopyPad, between global memory and the Unified Buffer and within it, and TransDataTo5HD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lngrad.errors import DtypeError
from lngrad.typing import Array
from lngrad_ascend.device.descriptors import BLOCK_BYTES, check_place
from lngrad_ascend.device.global_memory import GlobalRegion
from lngrad_ascend.device.global_tensor import GlobalTensor, too_far
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.pipes import MTE2, MTE3, READ_MTE3, READ_V, WRITE_MTE2, WRITE_V, V
from lngrad_ascend.device.races import ATOMIC, READ, WRITE
from lngrad_ascend.device.report import Site, caller
from lngrad_ascend.device.unified_buffer import VECCALC, VECIN, VECOUT, TPosition
from lngrad_ascend.device.vector import DATA_COPY, issue_unary
from lngrad_ascend.faults import AlignmentFault, BoundsFault, DeviceFault, PoisonFault, PositionFault

MAX_BLOCKS = 4095
MAX_PADDING_BYTES = 32
MAX_REPEATS = 255
TRANSPOSED = 16  # blocks that TransDataTo5HD takes


class Blocks(NamedTuple):
    """The blocks of a copy: count, bytes of each, and the distances of their starts on each side.

    Attributes:
        left, right: Bytes written before and behind each block on the way in.
        fill: What is written there and up to the next 32 bytes; None: the block's first element.
        undefined: Whether the device leaves arbitrary bytes there instead.
        tail: Bytes written behind the last block, where blocks lie one behind the other.
    """

    blocks: int
    nbytes: int
    local_step: int
    global_step: int
    left: int = 0
    right: int = 0
    fill: float | None = None
    undefined: bool = False
    tail: int = 0


def copy_global(site: Site, api: str, local: LocalTensor, remote: GlobalTensor, b: Blocks, inward: bool) -> None:
    """Execute a copy from global memory (``inward``, on MTE2) or to it (on MTE3), as often as the loop mode says.

    Raises:
        DeviceFault: A rule is broken.
    """
    loops = local.core.loops.get(inward)
    if loops is None:
        _copy_once(site, api, local, remote, b, inward)
        return
    try:
        for near, far in loops.places(inward):
            _copy_once(site, api, local[near // local.dtype.itemsize], remote.moved(far), b, inward)
    except DeviceFault as fault:
        fault.args = (f"{fault}; {loops.describe()} and loops this copy: ResetLoopModePara ends it",)
        raise


def _copy_once(site: Site, api: str, local: LocalTensor, remote: GlobalTensor, b: Blocks, inward: bool) -> None:
    """Check and execute one copy."""
    region, first, end = remote.extent(api)
    if b.blocks == 0 or b.nbytes == 0:
        return
    core = local.core
    pipe, role, bit, side = (MTE2, "dst", WRITE_MTE2, VECIN) if inward else (MTE3, "src", READ_MTE3, VECOUT)
    filled = b.left + b.nbytes + b.right if inward else b.nbytes
    if core.checked and api == "DataCopy":
        _check_position(api, local, role, side)
    stop = local.start + (b.blocks - 1) * b.local_step + filled + b.tail
    if stop > local.end or local.start % BLOCK_BYTES:  # its text takes long
        check_place(api, f"{role} ({local.describe()})", local.start, stop, local.end, BLOCK_BYTES)
    fits = inward and (b.blocks - 1) * b.global_step + b.nbytes <= end - first  # its texts take long
    spare = 0 if fits else _check_region(api, local, remote, b, writing=not inward)
    instruction = (api, pipe, core.index, core.site or site)
    blocks_bytes = -(-filled // BLOCK_BYTES) * BLOCK_BYTES
    reached = blocks_bytes if inward and b.local_step >= blocks_bytes else filled
    places = _ranges(local.start, b.blocks, reached, b.local_step)
    if b.tail:
        places[-1] = (places[-1][0], places[-1][1] + b.tail)
    core.touch(instruction, role, local.handle, places, bit)
    if inward:
        core.reads((region.start + first, b.nbytes))
        if reached > b.nbytes:
            _pad_local(local, b, reached)
    memory = np.concatenate([region.data[first:], np.full(spare, 0xFF, np.uint8)]) if spare else region.data[first:]
    local_bytes = _blocks_of(core.ub.data, local.start, b.blocks, reached, b.local_step)
    remote_bytes = _blocks_of(memory, 0, b.blocks, b.nbytes, b.global_step)
    kind = READ if inward else WRITE if core.atomic is None else ATOMIC
    if kind == ATOMIC:
        _refuse_uncleared(api, local, region, first, remote_bytes.reshape(b.blocks, -1), b)
    if core.rules.ordering:
        ranges = _ranges(first, b.blocks, b.nbytes, b.global_step)
        core.touch_global(instruction, region, ranges, kind, local_bytes, remote_bytes)
        if core.ub.padded and kind == WRITE:
            _pad_global(local, region.start + first, b)
    if inward:
        _move_in(local, local_bytes, remote_bytes, b)
        if b.tail:
            _fill_tail(local, places[-1][1] - b.tail, b)
        core.tally.bytes_in += b.blocks * b.nbytes
    else:
        core.writes(remote_bytes, local_bytes)
        _move_out(local, local_bytes, remote_bytes)
        core.tally.bytes_out += b.blocks * b.nbytes
    if spare and inward:
        last = local.start + (b.blocks - 1) * b.local_step + b.left + b.nbytes
        core.ub.forget(last - spare, last, f"lies behind the end of {region.name}")
    elif spare:
        region.data[first:] = memory[: region.data.size - first]
    core.tally.instructions[api] += 1
    core.log.append(instruction)
    if core.trace is not None:
        core.trace.copied(instruction, local.start, b.blocks, b.nbytes, remote.bypass)


def _check_position(api: str, local: LocalTensor, role: str, side: TPosition) -> None:
    position = local.allocation.position
    if position is not side and position is not VECCALC:
        rule = f"must be at {side.value} or VECCALC, it is at {position.value} [ErrorBuffer1]"
        text = f"{api}: {role} ({local.describe()}) {rule}"
        if not local.core.rules.ordering:
            raise PositionFault(text)
        local.core.remark(text)  # it is one memory; whether a flag is missing, the search for races knows


def _pad_local(local: LocalTensor, b: Blocks, reached: int) -> None:
    """Note which bytes behind the blocks of a copy in are padding."""
    if local.core.rules.ordering and b.blocks > 1 and not b.undefined and b.fill is None:
        starts = [start for start, _ in _ranges(local.start, b.blocks, 0, b.local_step)]
        local.core.ub.pad([(start + b.nbytes, start + reached) for start in starts], 1)


def _pad_global(local: LocalTensor, start: int, b: Blocks) -> None:
    """Note which bytes of blocks that go to a global address are padding of a copy in."""
    core = local.core
    padding = _blocks_of(core.ub.padding, local.start, b.blocks, b.nbytes, b.local_step).reshape(b.blocks, -1)
    for row in np.flatnonzero(padding.any(axis=1)).tolist():
        core.order.pad(start + row * b.global_step, padding[row])


def _check_region(api: str, local: LocalTensor, remote: GlobalTensor, b: Blocks, writing: bool) -> int:
    """Refuse blocks that pass the end of a global tensor, or write to memory that is read-only.

    Returns:
        How many bytes pass its end and lie in the 32 to 63 that aclrtMalloc takes more: "device" allows them.
    """
    nbytes, size, core = (b.blocks - 1) * b.global_step + b.nbytes, local.dtype.itemsize, local.core
    region, first, end = remote.extent(api)
    room = end - first
    if writing:
        region.check_writable(api)
    if nbytes > room:
        fault = too_far(core, api, region, room // size, -(-nbytes // size), first + nbytes)
        if fault is None:
            return 0
        if first + nbytes - region.data.size > min(b.nbytes, 32 + -region.data.size % BLOCK_BYTES):
            raise fault
        core.tolerate(fault)
    return max(0, first + nbytes - region.data.size)


def _refuse_uncleared(
    api: str, local: LocalTensor, region: GlobalRegion, first: int, remote_bytes: Array, b: Blocks
) -> None:
    """Refuse an atomic sum with bytes that are as they were allocated; "device" remarks it.

    Raises:
        PoisonFault: The bytes are 0xFF, and nothing in this launch has written them.
    """
    core, size = local.core, local.dtype.itemsize
    elements_bytes, real = remote_bytes.shape[1] // size * size, local.dtype.kind not in "iu"
    unset = (remote_bytes[:, :elements_bytes].reshape(-1, size) == 0xFF).all(axis=1)
    if not unset.any() or not (real or (core.combine is np.add and core.rules.ordering)):
        return
    place = (region.start + first, region.start + first + (b.blocks - 1) * b.global_step + b.nbytes)
    if not (core.rules.ordering and core.order.written(place)):
        core.tolerate(
            PoisonFault(
                f"{api}: {region.name} has no value in {int(unset.sum())} of the elements that an atomic copy combines with: "
                "clear them first, on the host or with InitOutput and SyncAll [ErrorRead2]"
            )
        )


def _move_out(local: LocalTensor, local_bytes: Array, remote_bytes: Array) -> None:
    core = local.core
    if core.atomic is None:
        remote_bytes[...] = local_bytes
    elif core.atomic != local.dtype:
        raise DtypeError(f"SetAtomicAdd: was set for {core.atomic}, the copy is of {local.dtype}")
    else:  # what SetAtomicAdd turns a copy to global memory into
        with np.errstate(all="ignore"):
            total = remote_bytes.view(local.dtype)
            core.combine(total, local_bytes.view(local.dtype), out=total)


def _move_in(local: LocalTensor, local_bytes: Array, remote_bytes: Array, b: Blocks) -> None:
    if local_bytes.size == remote_bytes.size:
        local_bytes[...] = remote_bytes
        return
    local_bytes, remote_bytes = local_bytes.reshape(b.blocks, -1), remote_bytes.reshape(b.blocks, -1)
    dtype, reached = local.dtype, local_bytes.shape[1]
    typed = local_bytes.view(dtype) if reached % dtype.itemsize == 0 else local_bytes
    if b.fill is not None:
        typed[...] = b.fill
    elif b.undefined:
        local_bytes[...] = 0xFF
    else:
        typed[...] = remote_bytes[:, : dtype.itemsize].copy().view(dtype)
    local_bytes[:, b.left : b.left + b.nbytes] = remote_bytes
    if b.undefined:  # the device leaves arbitrary bytes around each block
        for index in range(b.blocks):
            begin = local.start + index * b.local_step
            for start, stop in ((begin, begin + b.left), (begin + b.left + b.nbytes, begin + reached)):
                local.core.ub.forget(start, stop, "is padding that DataCopyPad leaves undefined")


def _fill_tail(local: LocalTensor, start: int, b: Blocks) -> None:
    """Write what stands behind the last of packed blocks, up to 32 bytes: the padding value, or the block's first element."""
    typed = local.core.ub.typed[local.code]
    first, size = start // local.dtype.itemsize, local.dtype.itemsize
    typed[first : first + b.tail // size] = typed[first - b.nbytes // size] if b.fill is None else b.fill


def _blocks_of(memory: Array, start: int, count: int, nbytes: int, step: int) -> Array:
    if count == 1:
        return memory[start : start + nbytes]
    return as_strided(memory[start:], (count, nbytes), (step * memory.itemsize, memory.itemsize))


def _ranges(start: int, count: int, nbytes: int, step: int) -> list[tuple[int, int]]:
    if count == 1 or nbytes == step:
        return [(start, start + count * nbytes)]
    return [(start + index * step, start + index * step + nbytes) for index in range(count)]


def _copy_local(site: Site, dst: LocalTensor, src: LocalTensor, b: Blocks) -> None:
    """Copy blocks inside the Unified Buffer, on the vector unit; those of src are ``b.global_step`` apart."""
    if b.blocks == 0 or b.nbytes == 0:
        return
    core = dst.core
    instruction = ("DataCopy", V, core.index, core.site or site)
    ranges = []
    for role, local, step, bit in (("src", src, b.global_step, READ_V), ("dst", dst, b.local_step, WRITE_V)):
        stop = local.start + (b.blocks - 1) * step + b.nbytes
        check_place("DataCopy", f"{role} ({local.describe()})", local.start, stop, local.end, BLOCK_BYTES)
        ranges.append(_ranges(local.start, b.blocks, b.nbytes, step))
        if role == "dst":
            poison = _blocks_of(core.ub.poison, src.start, b.blocks, b.nbytes, b.global_step).copy()
        core.touch(instruction, role, local.handle, ranges[-1], bit, carries=True)
    if any(a < d and c < b_ for a, b_ in ranges[0] for c, d in ranges[1]) and ranges[0] != ranges[1]:
        raise AlignmentFault("DataCopy: dst and src overlap")
    source = _blocks_of(core.ub.data, src.start, b.blocks, b.nbytes, b.global_step).copy()
    _blocks_of(core.ub.data, dst.start, b.blocks, b.nbytes, b.local_step)[...] = source
    if poison.any():
        _blocks_of(core.ub.poison, dst.start, b.blocks, b.nbytes, b.local_step)[...] = poison
        core.ub.doubt(ranges[1])
    core.looped("DataCopy", 1, b.blocks * b.nbytes)
    core.log.append(instruction)


Tensor = Union[GlobalTensor, LocalTensor]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too


@dataclass(frozen=True)
class _CopyParams:
    blockCount: int = 1
    blockLen: int = 0
    srcStride: int = 0
    dstStride: int = 0


@dataclass(frozen=True)
class DataCopyParams(_CopyParams):
    """Blocks of a copy.

    For DataCopy, ``blockLen`` and both gaps are in units of 32 bytes. For DataCopyPad, blockLen and the gap in global
    memory are in bytes. A gap goes from the end of one block to the start of the next.
    """


@dataclass(frozen=True)
class DataCopyExtParams(_CopyParams):
    """Blocks of DataCopyPad: ``blockCount`` of ``blockLen`` bytes.

    The strides are the gaps between the end of one block and the start of the next: in bytes in global memory, in
    32-byte blocks in the Unified Buffer.
    """

    rsv: int = 0


@dataclass(frozen=True)
class DataCopyPadExtParams:
    """The padding that DataCopyPad writes around a block on the way in; counts are in elements."""

    isPad: bool = False
    leftPadding: int = 0
    rightPadding: int = 0
    paddingValue: float = 0.0


@dataclass(frozen=True)
class DataCopyPadParams(DataCopyPadExtParams):
    """The older form of DataCopyPadExtParams, which goes with DataCopyParams."""


class PaddingMode:
    """Whether DataCopyPad starts every block on 32 bytes (Normal), or packs them (Compact, 950 only)."""

    Normal = 0
    Compact = 1


def DataCopy(dst: Tensor, src: Tensor, count: int | DataCopyParams) -> None:
    """Copy contiguous elements, or blocks with gaps: whole units of 32 bytes.

    C prototypes::

        void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count)
        void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count)
        void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count)
        (each also with ``const DataCopyParams&`` in place of the count)

    CANN: a count that is not whole blocks is refused; a device rounds it down, and so does "device".

    Raises:
        DeviceFault: Length, address, bounds, position, queue state, order, or bytes never written.
        DtypeError: The two tensors are of different types.
    """
    local, remote = _sides("DataCopy", dst, src)
    site = local.core.site or caller()
    if isinstance(count, DataCopyParams):
        if not 0 <= count.blockCount <= MAX_BLOCKS or not 0 <= count.blockLen <= 65535:
            raise BoundsFault(f"DataCopy: blockCount is 0 to {MAX_BLOCKS} and blockLen 0 to 65535, got {count}")
        nbytes = count.blockLen * BLOCK_BYTES
        near, far = (count.dstStride, count.srcStride) if dst is local else (count.srcStride, count.dstStride)
        blocks = Blocks(count.blockCount, nbytes, nbytes + near * BLOCK_BYTES, nbytes + far * BLOCK_BYTES)
    else:
        size = local.dtype.itemsize
        nbytes = count * size
        if rest := nbytes % BLOCK_BYTES:
            text = f"DataCopy: the length must be a multiple of {BLOCK_BYTES} bytes, got {count} * {size} = {nbytes}; "
            local.core.tolerate(AlignmentFault(text + "DataCopyPad moves other lengths"))
            nbytes -= rest
            count = nbytes // size
        blocks = Blocks(1, nbytes, nbytes, nbytes)
    if remote is not None:
        copy_global(site, "DataCopy", local, remote, blocks, dst is local)
    elif isinstance(src, LocalTensor):
        if isinstance(count, int):
            issue_unary(DATA_COPY, local, src, 0.0, count, None, None, site)
        else:
            _copy_local(site, local, src, blocks)


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

    On the way in a block starts on 32 bytes and is followed by ``rightPadding`` elements and, up to the next 32
    bytes, by dummies. With isPad both are ``paddingValue``. Without, dummies are the block's first element where no
    padding is given; else both are SetPadValue's, and where none was set undefined on a device: nobody wrote them here.

    Raises:
        DeviceFault: The SoC has no DataCopyPad, a block is not whole elements, a limit, or a rule of ``DataCopy``.
        DtypeError: The two tensors are of different types.
    """
    site = caller()
    local, remote = _sides("DataCopyPad", dst, src)
    if remote is None:
        raise PositionFault("DataCopyPad: one of dst and src must be global and the other local")
    blocks = _padded_blocks(local, dataCopyParams, padParams, mode, dst is local)
    copy_global(site, "DataCopyPad", local, remote, blocks, dst is local)


def _padded_blocks(
    local: LocalTensor,
    p: DataCopyExtParams | DataCopyParams,
    padParams: DataCopyPadExtParams | None,
    mode: int,
    inward: bool,
) -> Blocks:
    """Return the blocks of DataCopyPad, within its limits.

    Raises:
        DeviceFault: The SoC has no DataCopyPad, or a number is out of its range.
    """
    soc, size, wide = local.core.soc, local.dtype.itemsize, local.core.soc.regbase
    longest = (1 << 21) - 1 if isinstance(p, DataCopyExtParams) else 65535
    if not soc.data_copy_pad:
        raise DeviceFault(f"DataCopyPad: {soc.name} does not have it; pad on the host")
    if mode == PaddingMode.Compact and not wide:
        raise DeviceFault(f"DataCopyPad: PaddingMode::Compact needs architecture 3510, not {soc.name}")
    if not 0 <= p.blockCount <= MAX_BLOCKS or not 0 <= p.blockLen <= longest:
        raise BoundsFault(f"DataCopyPad: blockCount is 0 to {MAX_BLOCKS} and blockLen 0 to {longest} bytes, got {p}")
    local_gap, remote_gap = (p.dstStride, p.srcStride) if inward else (p.srcStride, p.dstStride)
    least = -p.blockLen if wide and inward else 0  # the same block again
    if wide and not (least <= remote_gap < 1 << 40 and 0 <= local_gap <= 65535):
        limits = f"{least} to 2^40 - 1 bytes in global memory and 0 to 65535 blocks in the Unified Buffer"
        raise BoundsFault(f"DataCopyPad: gaps are {limits} on {soc.name}, got {remote_gap} and {local_gap}")
    for name, value in (("blockLen", p.blockLen), ("the gap in global memory", remote_gap)):
        if value % size:
            raise AlignmentFault(f"DataCopyPad: {name} must be whole elements of {size} bytes, got {value}")
    pad = (inward and padParams) or DataCopyPadExtParams()
    left, right = pad.leftPadding * size, pad.rightPadding * size
    for name, value in (("leftPadding", left), ("rightPadding", right)):
        if not 0 <= value <= MAX_PADDING_BYTES:
            raise BoundsFault(f"DataCopyPad: {name} must be 0 to {MAX_PADDING_BYTES} bytes, got {value}")
    filled, step = left + p.blockLen + right, p.blockLen + remote_gap
    if mode == PaddingMode.Compact:  # blocks lie one behind the other, and what pads stands behind the last
        tail = -p.blockCount * p.blockLen % BLOCK_BYTES if inward else 0
        fill = pad.paddingValue if pad.isPad else local.core.ub.registers.pad_value
        return Blocks(p.blockCount, p.blockLen, p.blockLen, step, fill=fill, tail=tail)
    local_step = (-(-filled // BLOCK_BYTES) + local_gap) * BLOCK_BYTES
    return Blocks(p.blockCount, p.blockLen, local_step, step, left, right, *_fill(local, pad, left + right, p.blockLen))


def _fill(local: LocalTensor, pad: DataCopyPadExtParams, padding: int, nbytes: int) -> tuple[float | None, bool]:
    """Return the value written around a block, and whether a device leaves arbitrary bytes there."""
    if pad.isPad:
        # 950 fills up to 32 bytes with it in any case: asc-devkit's example data_copy_pad, scenario 5.
        whole = padding or nbytes % BLOCK_BYTES == 0 or local.core.soc.regbase
        return pad.paddingValue if whole else None, False
    value = local.core.ub.registers.pad_value if padding else None
    return value, bool(padding) and value is None


def _sides(api: str, dst: Tensor, src: Tensor) -> tuple[LocalTensor, GlobalTensor | None]:
    """Return the local and the global side; None where both are local (then the first is dst)."""
    if (dst.dtype is not src.dtype and dst.dtype != src.dtype) or src.dtype is None:
        raise DtypeError(f"{api}: dst and src must have one type, got {dst.dtype} and {src.dtype}")
    if isinstance(dst, LocalTensor):
        return dst, None if isinstance(src, LocalTensor) else src
    if isinstance(src, LocalTensor):
        return src, dst
    raise PositionFault(f"{api}: one of dst and src must be a LocalTensor, both are global")


@dataclass(frozen=True)
class TransDataTo5HDParams:
    """The repeats of TransDataTo5HD: each moves every address on by the strides, in blocks.

    The two halves concern 8-bit types only, which are not simulated.
    """

    dstHighHalf: bool = False
    srcHighHalf: bool = False
    repeatTimes: int = 1
    dstRepStride: int = 0
    srcRepStride: int = 0


def TransDataTo5HD(
    dstList: Sequence[LocalTensor], srcList: Sequence[LocalTensor], nchwconvParams: TransDataTo5HDParams
) -> None:
    """Transpose 16 blocks of 32 bytes into 16 blocks.

    C prototype::

        template <typename T> void TransDataTo5HD(const LocalTensor<T> (&dstList)[16],
            const LocalTensor<T> (&srcList)[16], const TransDataTo5HDParams& nchwconvParams)

    16-bit types: dst[j][i] = src[i][j]. 32-bit types: dst[2j + k][i] = src[8k + i][j], so that two consecutive
    entries of dst have the 16 rows of one column.

    Raises:
        DeviceFault, DtypeError: A rule is broken.
    """
    api = "TransDataTo5HD"
    if len(dstList) != TRANSPOSED or len(srcList) != TRANSPOSED:
        raise BoundsFault(f"{api}: dstList and srcList have 16 tensors, got {len(dstList)} and {len(srcList)}")
    codes = {tensor.code for tensor in (*dstList, *srcList)}
    if len(codes) != 1:
        raise DtypeError(f"{api}: all tensors must be of one type, got {sorted(codes)}")
    core, dtype, repeats = dstList[0].core, dstList[0].dtype, nchwconvParams.repeatTimes
    if dtype.itemsize not in (2, 4):
        raise DtypeError(f"{api}: 16- and 32-bit types are simulated, got {dtype}")
    if not 0 <= repeats <= MAX_REPEATS:
        raise BoundsFault(f"{api}: repeatTimes must be 0 to {MAX_REPEATS}, got {repeats}")
    instruction = (api, V, core.index, core.site or caller())

    def touched(side: str, tensors: Sequence[LocalTensor], distance: int, bit: int) -> list[slice]:
        places = []
        for index, tensor in enumerate(tensors):
            start = tensor.start + distance * BLOCK_BYTES
            stop, role = start + BLOCK_BYTES, f"{side}[{index}]"
            check_place(api, f"{role} ({tensor.allocation.name} at byte {start})", start, stop, tensor.end, BLOCK_BYTES)
            core.touch(instruction, role, tensor.handle, ((start, stop),), bit, carries=True)
            places.append(slice(start, stop))
        return places

    for repeat in range(repeats):
        sources = touched("srcList", srcList, repeat * nchwconvParams.srcRepStride, READ_V)
        poison = [core.ub.poison[place].reshape(-1, dtype.itemsize).max(axis=1) for place in sources]
        targets = touched("dstList", dstList, repeat * nchwconvParams.dstRepStride, WRITE_V)
        if len({tensor.start for tensor in dstList}) != TRANSPOSED:
            raise DeviceFault(f"{api}: the tensors of dstList must be different blocks")
        rows = _transposed([core.ub.data[place].view(dtype) for place in sources])
        for place, row in zip(targets, rows, strict=True):
            core.ub.data[place].view(dtype)[...] = row
        if any(numbers.any() for numbers in poison):
            for place, row in zip(targets, _transposed(poison), strict=True):
                core.ub.poison[place] = np.repeat(row, dtype.itemsize)
                core.ub.doubt([(place.start, place.stop)])
    core.looped(api, 1, repeats * TRANSPOSED * BLOCK_BYTES)
    core.log.append(instruction)


def _transposed(rows: list[Array]) -> Array:
    """Return the 16 rows of TransDataTo5HD's target: of 16 elements of 16 bits, or of 8 of 32 bits."""
    every = np.stack(rows)
    return every.T if every.shape[1] == TRANSPOSED else every.reshape(2, 8, 8).transpose(2, 0, 1).reshape(TRANSPOSED, 8)
