"""A vector instruction as integers, and which bytes its operands touch.

A repeat is 256 bytes of the larger type in 8 blocks of 32 bytes. The mask says which elements of each repeat take
part; blocks lie a block stride apart, repeats a repeat stride, both counted in blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, TypeVar, Union

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lngrad.errors import DtypeError
from lngrad.typing import Array, Dtype
from lngrad_ascend.device.numerics import DTYPES, REPEAT_BYTES
from lngrad_ascend.faults import AlignmentFault, BoundsFault, DeviceFault

BLOCK_BYTES = 32
COUNT, MASK, BITS, COUNTER = 0, 1, 2, 3  # the forms of an instruction
PACKED = struct.Struct("<21q")  # a descriptor as bytes
Params = TypeVar("Params")
Mask = Union[int, Sequence[int]]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too
MASK_WORD = 1 << 64
Runs = tuple[tuple[int, int], ...]
Names = Callable[[str], str]  # role -> "role (owner at byte n)", for texts


@dataclass(frozen=True)
class BinaryRepeatParams:
    """Strides of dst, src0 and src1 in blocks of 32 bytes: between blocks, and between repeats."""

    dstBlkStride: int = 1
    src0BlkStride: int = 1
    src1BlkStride: int = 1
    dstRepStride: int = 8
    src0RepStride: int = 8
    src1RepStride: int = 8


@dataclass(frozen=True)
class UnaryRepeatParams:
    """Strides of dst and src in blocks of 32 bytes: between blocks, and between repeats."""

    dstBlkStride: int = 1
    srcBlkStride: int = 1
    dstRepStride: int = 8
    srcRepStride: int = 8


@dataclass(frozen=True)
class CopyRepeatParams:
    """Strides of Copy in blocks of 32 bytes: between blocks (Stride), and between repeats (RepeatSize)."""

    dstStride: int = 0
    srcStride: int = 0
    dstRepeatSize: int = 8
    srcRepeatSize: int = 8


@dataclass(frozen=True)
class BrcbRepeatParams:
    """Strides of Brcb's dst in blocks of 32 bytes: between the blocks of a repeat, and between repeats."""

    dstBlkStride: int = 1
    dstRepStride: int = 8


def params_of(api: str, kind: type[Params], params: Params | Sequence[int] | None) -> tuple[int, ...]:
    """Return the fields of a struct that came as itself, as a tuple of its first fields, or not at all. Raises DtypeError."""
    if params is None:
        params = kind()
    elif isinstance(params, (tuple, list)):
        params = kind(*params)
    if not isinstance(params, kind):
        raise DtypeError(f"{api}: expected {kind.__name__}, got {params!r}")
    struct: Any = params
    fields: tuple[int, ...] = astuple(struct)
    if any(field < 0 or field > 65535 for field in fields):
        raise DtypeError(f"{api}: the fields of {kind.__name__} are 0 to 65535, got {params}")
    return fields


def elements_of(api: str, count: Mask, repeatTime: int | None) -> tuple[int, int, int, int]:
    """Return (form, n, high, repeat) of a descriptor, from a count, or from a mask and the number of repeats."""
    if isinstance(count, Sequence):
        low, high = (*count, 0)[:2] if count else (0, 0)
        if repeatTime is None or len(count) > 2 or not (0 <= low < MASK_WORD and 0 <= high < MASK_WORD):
            raise BoundsFault(f"{api}: a mask of bits is one or two uint64_t with a repeatTime, got {list(count)}")
        # A descriptor has signed words.
        return BITS, low - MASK_WORD * (low >> 63), high - MASK_WORD * (high >> 63), repeatTime
    if repeatTime is None:
        return COUNT, int(count), 0, 0
    return MASK, int(count), 0, repeatTime


@dataclass(frozen=True)
class Geometry:
    """The elements that one operand of an instruction touches.

    Attributes:
        places: The byte address of every element, (repeats, elements of a repeat).
        size: Bytes of an element.
        start: Byte address of the operand.
    """

    places: Array
    size: int
    start: int

    @property
    def elements(self) -> Array:
        """The index of every element in its memory, counted in elements."""
        return self.places // self.size

    @property
    def stop(self) -> int:
        """The byte behind the last one touched."""
        return int(self.places.max()) + self.size if self.places.size else self.start

    def runs(self) -> Runs:
        """Return the contiguous ranges of bytes, in order."""
        addresses = np.unique(self.places)
        if not addresses.size:
            return ()
        breaks = np.flatnonzero(np.diff(addresses) > self.size)
        starts, stops = addresses[[0, *breaks + 1]], addresses[[*breaks, -1]] + self.size
        return tuple(zip(starts.tolist(), stops.tolist(), strict=True))

    def meets(self, other: Geometry) -> bool:
        """Whether the ranges from the first to the last byte have a byte in common."""
        return self.start < other.stop and other.start < self.stop

    def bytes(self) -> Array:
        """Return the address of every byte: (repeats, bytes of a repeat)."""
        return (self.places[..., None] + np.arange(self.size)).reshape(len(self.places), -1)

    def view(self, typed: Array) -> Array | None:
        """Return the elements as a view of ``typed``, (repeats, elements), or None if no strides do it."""
        repeats, lanes = self.places.shape
        if self.start % self.size:
            return None
        per_repeat = np.diff(self.places, axis=0)
        per_lane = np.diff(self.places, axis=1)
        repeat_step = int(per_repeat.flat[0]) if per_repeat.size else 0
        lane_step = int(per_lane.flat[0]) if per_lane.size else self.size
        if (per_repeat != repeat_step).any() or (per_lane != lane_step).any():
            return None
        first = typed[int(self.places[0, 0]) // self.size :]
        return as_strided(first, (repeats, lanes), (repeat_step, lane_step))


def contiguous(start: int, count: int, size: int) -> Geometry:
    """Return ``count`` elements one after the other."""
    return Geometry(start + size * np.arange(count)[None], size, start)


def repeated(start: int, size: int, lanes: Array, repeats: int, strides: tuple[int, int]) -> Geometry:
    """Return the elements ``lanes`` of ``repeats`` repeats, of ``size`` bytes; strides: of blocks and repeats, in blocks."""
    block, lane = np.divmod(lanes, BLOCK_BYTES // size)
    within = block * (strides[0] * BLOCK_BYTES) + lane * size
    places = start + np.arange(repeats)[:, None] * (strides[1] * BLOCK_BYTES) + within[None]
    return Geometry(places, size, start)


def repeats_meet(dst: Geometry, src: Geometry) -> tuple[bool, bool]:
    """Return how a source shares memory with the destination.

    Returns:
        (inside, across): whether some repeat reads bytes that it writes, but elsewhere than element for element; and
        whether some repeat reads what an earlier one writes.
    """
    written, read = dst.bytes(), src.bytes()
    repeats, low = np.arange(len(written))[:, None], min(written.min(), read.min())
    first = np.full(max(dst.stop, src.stop) - low, len(written))  # the first repeat that writes each byte
    np.minimum.at(first, written - low, repeats)
    across = bool((first[read - low] < repeats).any())
    inside = any(np.isin(r, w).any() for r, w in zip(read, written, strict=True) if r.tolist() != w.tolist())
    return inside, across


class Operand(NamedTuple):
    """An operand of a descriptor.

    Attributes:
        code: Of the element type.
        start, end: First byte, and the byte behind the end of its tensor.
        block, repeat: Strides in blocks.
    """

    code: int
    start: int
    end: int
    block: int = 1
    repeat: int = 8

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.code].itemsize


class Descriptor(NamedTuple):
    """A vector instruction as integers.

    Attributes:
        op: Place in ``OPERATIONS``.
        types: Codes of the element types, ``dst | src0 << 8 | src1 << 16 | src2 << 24``.
        form: COUNT; MASK: the first ``n`` elements of each repeat; BITS: a bit mask; COUNTER: a form with strides in the
            counter mode, in which the mask register counts elements.
        n: Elements; or elements of a repeat; or bits 0 to 63 of the mask.
        high: Bits 64 to 127 of the mask.
        repeat: Repeats; ignored by the count form.
        dst_block, src0_block, src1_block: Block strides in blocks.
        dst_repeat, src0_repeat, src1_repeat: Repeat strides in blocks; WholeReduceSum's dst_repeat is in elements.
        dst, src0, src1, src2: Byte addresses in the Unified Buffer.
        dst_end, src0_end, src1_end, src2_end: The byte behind the end of each tensor.
        extra: What is particular to an instruction. Cast: the number of the round mode, and 256 to saturate. Compare:
            that of the comparison. Select: that of the mode. Reductions: that of the order; ReduceMax: whether the
            place is wanted. Gather: srcBaseOffset.
    """

    op: int
    types: int
    form: int
    n: int
    high: int
    repeat: int
    dst_block: int
    src0_block: int
    src1_block: int
    dst_repeat: int
    src0_repeat: int
    src1_repeat: int
    dst: int
    dst_end: int
    src0: int
    src0_end: int
    src1: int
    src1_end: int
    extra: int = 0
    src2: int = 0
    src2_end: int = 0

    @property
    def codes(self) -> tuple[int, int, int, int]:
        """The codes of the element types of dst, src0, src1 and src2."""
        types = self.types
        return types & 255, types >> 8 & 255, types >> 16 & 255, types >> 24 & 255

    @property
    def operands(self) -> tuple[Operand, Operand, Operand, Operand]:
        """Dst, src0, src1 and src2."""
        dst, src0, src1, src2 = self.codes
        return (
            Operand(dst, self.dst, self.dst_end, self.dst_block, self.dst_repeat),
            Operand(src0, self.src0, self.src0_end, self.src0_block, self.src0_repeat),
            Operand(src1, self.src1, self.src1_end, self.src1_block, self.src1_repeat),
            Operand(src2, self.src2, self.src2_end),
        )

    def geometry(self, operand: Operand, lanes: Array) -> Geometry:
        """Return the elements of an operand: all ``n`` of a count, or ``lanes`` of each repeat."""
        if self.form == COUNT:
            return contiguous(operand.start, self.n, operand.size)
        return repeated(operand.start, operand.size, lanes, self.repeat, (operand.block, operand.repeat))

    @property
    def dtype(self) -> Dtype:
        """The element type of dst."""
        return DTYPES[self.types & 255]


def check_place(api: str, name: str, start: int, stop: int, end: int, align: int) -> None:
    """Check bounds and alignment, in bytes, of an operand that reaches byte ``stop`` of a tensor that ends at ``end``."""
    if stop > end:
        raise BoundsFault(
            f"{api}: {name} ends at byte {end}, the access reaches byte {stop}, {stop - end} too far "
            "[ErrorRead3, ErrorWrite2]"
        )
    if start % align:
        raise AlignmentFault(
            f"{api}: {name}: an address must be a multiple of {align} bytes, this one is {start % align} past it "
            "[ErrorRead4, ErrorWrite4]"
        )


def selected_lanes(api: str, d: Descriptor, size: int, tolerate: Callable[[DeviceFault], None]) -> Array:
    """Return the elements of a repeat that the mask selects."""
    most, mask, low, high = REPEAT_BYTES // size, d.form == MASK, d.n % MASK_WORD, d.high % MASK_WORD
    bits = low | high << 64
    lanes = np.arange(d.n) if mask else np.array([lane for lane in range(128) if bits >> lane & 1], np.int64)
    if not lanes.size or int(lanes.max()) >= most:
        got = d.n if mask else f"[{d.n:#x}, {d.high:#x}]"
        rule = f"1 to {most}" if mask else f"bits of the first {most} elements, at least one"
        fault = BoundsFault(f"{api}: mask must be {rule}, got {got}")
        lanes = lanes[lanes < most]
        if not lanes.size:
            raise fault
        tolerate(fault)  # a device takes what a repeat has
    return lanes
