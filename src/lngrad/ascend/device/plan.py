"""A planned vector instruction: its descriptor, what it touches, and its function."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from lngrad.ascend.device.geometry import mask_lanes
from lngrad.ascend.device.operations import Kind, Operation
from lngrad.ascend.device.spans import Span
from lngrad.ascend.device.summation import REPEAT_BYTES
from lngrad.ascend.faults import AlignmentFault, BoundsFault
from lngrad.typing import Array

COUNT, MASK, BITS = 0, 1, 2  # the forms of an instruction
PACKED = struct.Struct("<18q")  # a descriptor as bytes
Runs = tuple[tuple[int, int], ...]


class Descriptor(NamedTuple):
    """A vector instruction as integers.

    Attributes:
        op: Place in ``OPERATIONS``.
        types: Codes of the element types, ``dst | src0 << 8 | src1 << 16``; without a src1, src0's.
        form: COUNT; MASK: the first ``n`` elements of each repeat; BITS: a bit mask.
        n: Elements; or elements of a repeat; or bits 0 to 63 of the mask.
        high: Bits 64 to 127 of the mask.
        repeat: Repeats; ignored by the count form.
        dst_block, src0_block, src1_block: Block strides in blocks.
        dst_repeat, src0_repeat, src1_repeat: Repeat strides in blocks; WholeReduceSum's dst_repeat
            is in elements.
        dst, src0, src1: Byte addresses in the Unified Buffer. Cast: src1 is the number of the
            round mode.
        dst_end, src0_end, src1_end: The byte behind the end of each tensor. Cast: src1_end is 1 for
            saturation.
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


class Access:
    """What one operand touches: ranges of bytes, and the spans of memory that they were found
    in."""

    __slots__ = ("role", "runs", "spans", "start")

    def __init__(self, role: str, start: int, runs: Runs) -> None:
        self.role = role
        self.start = start
        self.runs = runs
        self.spans: tuple[Span, ...] = (_NOT_LOOKED_UP,) if runs else ()


_NOT_LOOKED_UP = Span(0, 0)
_NOT_LOOKED_UP.live = False


class Plan:
    """A planned instruction.

    Attributes:
        name: Of the instruction.
        op: Its number.
        sources: How many handles of sources it needs.
        reads, write: What it touches.
        function: Called with ``arguments``, or with the scalar where ``arguments`` is None.
    """

    __slots__ = ("arguments", "function", "name", "op", "reads", "sources", "write")

    def __init__(
        self,
        operation: Operation,
        op: int,
        write: Access,
        reads: tuple[Access, ...],
        function: Callable[..., object],
        arguments: tuple[Any, ...] | None,
    ) -> None:
        self.name = operation.name
        self.op = op
        self.write = write
        self.reads = reads
        self.sources = _SOURCES[operation.kind]
        self.function = function
        self.arguments = arguments


_SOURCES = {
    Kind.BINARY: 2,
    Kind.SCALAR: 1,
    Kind.UNARY: 1,
    Kind.DUPLICATE: 0,
    Kind.CAST: 1,
    Kind.BRCB: 1,
    Kind.WHOLE_REDUCE: 1,
    Kind.REDUCE: 1,
}
Names = Callable[[str], str]  # role -> "role (owner at byte n)", for texts


def types_of(types: int) -> tuple[int, int, int]:
    """Return the codes of dst, src0 and src1."""
    return types & 255, types >> 8 & 255, types >> 16 & 255


def check_place(api: str, name: str, start: int, stop: int, end: int, align: int) -> None:
    """Check bounds and alignment of an operand that reaches byte ``stop`` of a tensor that ends at
    ``end``.

    Raises:
        BoundsFault, AlignmentFault: A rule is broken; ``align`` is in bytes.
    """
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


def nothing(*_: object) -> None:
    """What an instruction without elements computes."""


def selected_lanes(api: str, d: Descriptor, size: int) -> Array:
    """Return the elements of a repeat that the mask selects."""
    most = REPEAT_BYTES // size
    lanes = mask_lanes(d.form, d.n if d.form == MASK else d.n % (1 << 64), d.high % (1 << 64))
    if not lanes.size or int(lanes.max()) >= most:
        given = d.n if d.form == MASK else f"[{d.n:#x}, {d.high:#x}]"
        rule = f"1 to {most}" if d.form == MASK else f"bits of the first {most} elements, at least one"
        raise BoundsFault(f"{api}: mask must be {rule}, got {given}")
    return lanes
