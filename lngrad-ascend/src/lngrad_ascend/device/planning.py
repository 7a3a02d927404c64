"""The plan of a vector instruction, which is made once: its static rules, its views, its function.

Kernels issue the same few descriptors again and again, so that everything that depends on the descriptor alone is
kept: types, bounds, alignment, overlap of the operands, and the NumPy views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from lngrad.errors import DtypeError
from lngrad.typing import Array
from lngrad_ascend.device.descriptors import (
    BLOCK_BYTES,
    COUNT,
    COUNTER,
    MASK,
    Descriptor,
    Geometry,
    Names,
    Operand,
    Runs,
    check_place,
    repeats_meet,
    selected_lanes,
)
from lngrad_ascend.device.numerics import CAST_MODES, CPP_NAMES, DTYPES, INT4, REPEAT_BYTES, round_to, saturated
from lngrad_ascend.device.operations import OPERATIONS, Operands, Operation
from lngrad_ascend.device.races import Span
from lngrad_ascend.device.specials import SPECIAL, Special, packed_cast
from lngrad_ascend.device.unified_buffer import MAX_ORIGINS, UnifiedBuffer
from lngrad_ascend.faults import BoundsFault, DeviceFault, OverlapFault

MAX_REPEATS = 255
BIT_BY_BIT = ("And", "Or", "Not", "Copy", "DataCopy")
Tolerate = Callable[[DeviceFault], None]
# A function, and its arguments or None for the scalar.
Computation = tuple[Callable[..., object], Union[tuple[Any, ...], None]]  # noqa: UP007  # evaluated, on Python 3.10 too


@dataclass(slots=True)
class Access:
    """The ranges of bytes that an operand touches, and the spans of memory that they were found in."""

    role: str
    start: int
    runs: Runs
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        self.spans = (_NOT_LOOKED_UP,) if self.runs else ()


_NOT_LOOKED_UP = Span(0, 0, live=False)


@dataclass(slots=True)
class PlannedInstruction:
    """A planned instruction.

    Attributes:
        name: Of the instruction.
        op: Its number.
        uses: The role and what is done to it (``Allocation.forbidden``) of dst, then of each source.
        write, reads: What it touches.
        function: Called with ``arguments``, or with the scalar where ``arguments`` is None.
        spread: Called with a number a byte of the buffer, and the scalar: gives those of dst the largest they depend on.
        descriptor: As the kernel gave it.
        half: Whether its results are half.
        waits: Whether it ends with flags of its own, between the vector unit and the scalar unit.
        cost: What it takes (``cycles.Cost``), once somebody has asked.
    """

    name: str
    op: int
    uses: tuple[tuple[str, int], ...]
    write: Access
    reads: tuple[Access, ...]
    function: Callable[..., object]
    arguments: tuple[Any, ...] | None
    spread: Callable[[Array, float], None]
    descriptor: Descriptor
    waits: bool = False
    half: bool = False
    cost: Any = None


Touched = tuple[list[Geometry], Callable[[Sequence[Array]], Array]]  # dst and sources; how they depend on each other


def _planned(
    operation: Operation,
    d: Descriptor,
    accesses: Sequence[Access],
    computation: Computation,
    touched: Callable[[], Touched],
) -> PlannedInstruction:
    write, *reads = accesses
    integral = d.dtype.kind in "iu"
    sizes = {DTYPES[code].itemsize for code in d.codes[: 1 + len(operation.operands.sources)]}
    if operation.reads_dst and write.runs:
        reads.append(Access("dst", write.start, write.runs))

    def spread(numbers: Array, scalar: float) -> None:
        copied = operation.name == "Adds" and integral and scalar == 0
        bitwise = copied or operation.name in BIT_BY_BIT  # and the known bits of a byte stay known
        kept = 0xFFFF if bitwise or operation.name in ("Compare", "CompareScalar") else MAX_ORIGINS - 1
        if d.form == COUNT and operation.operands.elementwise and len(sizes) == 1 and write.runs:  # byte for byte
            (start, stop), *_ = write.runs
            parts = [numbers[access.start : access.start + stop - start] for access in reads]
            numbers[start:stop] = (_bitwise if bitwise else _elementwise)(parts) & kept
            return
        (dst, *sources), depends = touched()
        parts = [numbers[g.places[..., None] + np.arange(g.size)] for g in sources]
        if bitwise and depends is _elementwise and len(sizes) == 1:
            numbers[dst.places[..., None] + np.arange(dst.size)] = _bitwise(parts)
            return
        parts = [part.max(axis=-1) for part in parts]
        if operation.reads_dst:
            parts.append(numbers[dst.places])
        numbers[dst.places[..., None] + np.arange(dst.size)] = depends(parts)[..., None] & kept

    return PlannedInstruction(
        operation.name, d.op, operation.operands.uses, write, tuple(reads), *computation, spread, d,
        half=d.dtype == np.float16,
    )  # fmt: skip


def _counted(operation: Operation, d: Descriptor, codes: Sequence[int]) -> Descriptor:
    """Return an instruction of the counter mode in its count form where its repeats have no gaps, else as repeats."""
    lanes = REPEAT_BYTES // max(DTYPES[code].itemsize for code in codes)
    blocks = tuple(operand.block for operand in d.operands[: len(codes)])
    repeats = tuple(operand.repeat for operand in d.operands[: len(codes)])
    close = tuple(lanes * DTYPES[code].itemsize // BLOCK_BYTES for code in codes)
    if operation.operands.elementwise and INT4 not in codes:
        if d.n == 0 or (set(blocks) == {1} and (repeats == close or d.n <= lanes)):
            return d._replace(form=COUNT)
        # Each repeat does the first one's work.
        if not any(repeats) and d.dst not in (d.src0, d.src1)[: len(codes) - 1]:
            return d._replace(form=MASK, n=min(d.n, lanes), repeat=1)
    whole_repeats = d.n % lanes == 0 and d.n <= MAX_REPEATS * lanes
    by_repeats = operation.operands.elementwise or operation.operands is Operands.REPEAT_REDUCE
    if by_repeats and INT4 not in codes and (d.n <= lanes or whole_repeats):
        return d._replace(form=MASK, n=min(d.n, lanes), repeat=-(-d.n // lanes))
    raise DeviceFault(
        f"{operation.name}: in the counter mode (SetMaskCount) expected an elementwise instruction with block strides of "
        f"1 and repeat strides of {close}, or whole repeats, got {blocks}, {repeats} and {d.n} elements: others are not "
        "simulated"
    )


def _elementwise(parts: Sequence[Array]) -> Array:
    return np.maximum.reduce(list(parts)) if parts else np.zeros((), np.uint16)


def _bitwise(parts: Sequence[Array]) -> Any:
    """Return the numbers of bytes whose bits have a value where those of all sources have one."""
    number = np.maximum.reduce([part % MAX_ORIGINS for part in parts])
    known_bits = np.bitwise_and.reduce(
        [np.where(part % MAX_ORIGINS, part // MAX_ORIGINS, MAX_ORIGINS - 1) for part in parts]
    )
    return np.where(number, number + known_bits.astype(np.uint16) * MAX_ORIGINS, number)


def plan_instruction(d: Descriptor, ub: UnifiedBuffer, names: Names, tolerate: Tolerate) -> PlannedInstruction:
    """Check the static rules of an instruction and return its plan.

    Args:
        names: Describes an operand in a text.
        tolerate: Called with a fault that a device does not have; it raises it, or keeps it as a remark.

    Raises:
        DeviceFault: A length, an address or an overlap.
        DtypeError: A type that the instruction does not take.
    """
    operation = OPERATIONS[d.op]
    name, operands = operation.name, operation.operands
    codes = _checked_types(operation, d.codes[: 1 + len(operands.sources)], ub.soc.arch, tolerate)
    packed = operands is Operands.CAST and INT4 in codes
    if d.form == COUNTER:
        d = _counted(operation, d, codes)
    if operands.mathematical and d.form != COUNT:
        raise DeviceFault(f"{name}: takes a count of elements only")
    if d.form == COUNT and operands.elementwise and not packed:
        return _count_plan(operation, d, ub, names, tolerate)
    if d.form == COUNT and d.n < 0:
        raise BoundsFault(f"{name}: count must not be negative, got {d.n}")
    rest = d.repeat % (MAX_REPEATS + 1)
    if rest != d.repeat and operands is not Operands.REDUCE:
        rule = f"repeatTime must be 0 to {MAX_REPEATS} (uint8_t), got {d.repeat}; a device takes {rest}"
        tolerate(BoundsFault(f"{name}: {rule}"))
        d = d._replace(repeat=rest)
    lanes = np.arange(0)
    if d.form != COUNT and operands is not Operands.BRCB:
        # Select's bits and Gather's offsets do not count.
        counted = codes if operands.elementwise else codes[:1] if operands is Operands.GATHER else codes[-1:]
        lanes = selected_lanes(name, d, max(DTYPES[code].itemsize for code in counted), tolerate)
    if (d.n if d.form == COUNT else d.repeat) == 0:
        return _planned(
            operation, d, [Access("dst", d.dst, ())], (lambda *scalar: None, ()), lambda: ([], _elementwise)
        )
    if operands.elementwise and not packed:
        return _repeat_plan(operation, d, ub, names, lanes)
    special = (packed_cast if packed else SPECIAL[operands])(d, ub, lanes)
    return _special_plan(operation, d, ub, names, special)


def _special_plan(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names, special: Special
) -> PlannedInstruction:
    name, operands = operation.name, operation.operands
    for role, geometry, operand in zip(operands.sources, special.sources, d.operands[1:], strict=False):
        check_place(name, names(role), geometry.start, geometry.stop, operand.end, BLOCK_BYTES)
    check_place(name, names("dst"), d.dst, special.dst.stop, d.dst_end, special.align)
    size = special.dst.size
    if operands is Operands.REDUCE and d.src1_end > d.src1 and (kept := _first_round(operation, d, size, ub.soc.arch)):
        check_place(name, names("sharedTmpBuffer"), d.src1, d.src1 + kept * size, d.src1_end, BLOCK_BYTES)
    if operands is Operands.BRCB and special.dst.meets(special.sources[0]):
        raise OverlapFault(f"Brcb: {names('dst')} and {names('src')} overlap")
    accesses = [Access("dst", d.dst, special.dst.runs())]
    accesses += [Access(r, g.start, g.runs()) for r, g in zip(operands.sources, special.sources, strict=True)]
    with_scalar = operands in (Operands.COMPARE_SCALAR, Operands.SELECT_SCALAR)
    computation = (special.compute, None if with_scalar else ())
    plan = _planned(operation, d, accesses, computation, lambda: ([special.dst, *special.sources], special.spread))
    plan.waits = operands is Operands.REDUCE and ub.soc.arch == 2201 and _has_flags(operation, d, size)
    return plan


def _first_round(operation: Operation, d: Descriptor, size: int, arch: int) -> int:
    """Return the elements that a reduction's first round leaves in its temporary buffer: ReduceSum's and ReduceMax's pages."""
    if operation.arithmetic is np.add:  # 2201 has the partial sums of a count in registers
        return d.repeat if d.form != COUNT else 0 if arch == 2201 else -(-d.n * size // REPEAT_BYTES)
    repeats = max(1, d.n * size // REPEAT_BYTES) if d.form == COUNT else d.repeat  # the tail comes later
    return 0 if arch == 3510 or (d.extra and repeats == 1) else 2 * repeats  # the place of each largest one, too


def _has_flags(operation: Operation, d: Descriptor, size: int) -> bool:
    """Whether a reduction's last step is the scalar unit's, behind V_S and before S_V and S_MTE3: A2's published ReduceImpl."""
    repeats = -(-d.n * size // REPEAT_BYTES) if d.form == COUNT else d.repeat
    if operation.arithmetic is np.add:
        return d.form == COUNT or repeats <= REPEAT_BYTES // size
    return not d.extra or repeats > 1


def _checked_types(operation: Operation, codes: tuple[int, ...], arch: int, tolerate: Tolerate) -> tuple[int, ...]:
    """Return the types of the operands, or raise DtypeError."""
    compares = operation.operands in (Operands.COMPARE, Operands.COMPARE_SCALAR)
    if compares and arch == 2201 and DTYPES[codes[0]].itemsize > 1:
        # A2's code writes bytes, whatever they are called; only its checker looks.
        tolerate(DeviceFault(f"{operation.name}: dst must be uint8_t or int8_t, got {CPP_NAMES[codes[0]]}"))
        codes = (CPP_NAMES.index("uint8_t"), *codes[1:])
    if operation.takes(codes, arch):
        return codes
    got = [CPP_NAMES[code] for code in codes]
    one_type = not operation.mixed
    if one_type and not operation.takes(codes[:1] * len(codes), arch):
        raise DtypeError(f"{operation.name}: {operation.takes_text(arch)}, got {got[0]}")
    if one_type:
        role, code = next(p for p in zip(operation.operands.sources, got[1:], strict=True) if p[1] != got[0])
        raise DtypeError(f"{operation.name}: dst and {role} must be of one type, got {got[0]} and {code}")
    if operation.operands is Operands.CAST:
        raise DtypeError(f"Cast: {got[1]} to {got[0]} is not one of the conversions of the page")
    raise DtypeError(
        f"{operation.name}: {operation.takes_text(arch)} (dst from the sources), got {got[0]} from {' '.join(got[1:])}"
    )


def _count_plan(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names, tolerate: Tolerate
) -> PlannedInstruction:
    if d.n < 0:
        raise BoundsFault(f"{operation.name}: count must not be negative, got {d.n}")
    if operation.operands.mathematical:
        _check_temporary(operation, d)
    roles, views, accesses = ("dst", *operation.operands.sources), [], []
    for role, operand in zip(roles, d.operands, strict=False):
        start, size = operand.start, operand.size
        stop = start + d.n * size
        check_place(operation.name, names(role), start, stop, operand.end, BLOCK_BYTES)
        views.append(ub.typed[operand.code][start // size : stop // size])
        accesses.append(Access(role, start, ((start, stop),) if d.n else ()))
        if role != "dst":
            _check_count_overlap(operation, d, role, operand, names, tolerate)

    def touched() -> Touched:
        return [d.geometry(operand, np.arange(0)) for operand in d.operands[: len(roles)]], _elementwise

    computation = _computation(operation, d, ub, views[0], views[1:])
    return _planned(operation, d, accesses, computation, touched)


def _check_temporary(operation: Operation, d: Descriptor) -> None:
    """Refuse a temporary buffer that is smaller than what the host's Get…MaxMinTmpSize gives, or not apart from dst."""
    room, dst, size = d.src2_end - d.src2, d.dst, d.dtype.itemsize
    least = operation.temporary[size == 4] * REPEAT_BYTES
    if room and room < least:
        raise BoundsFault(
            f"{operation.name}: sharedTmpBuffer: expected at least {least} bytes, got {room} [ErrorWrite2]"
        )
    if room and d.src2 < dst + d.n * size and dst < d.src2 + least:
        raise OverlapFault(f"{operation.name}: dst and sharedTmpBuffer must have no bytes in common")


def _check_count_overlap(
    operation: Operation, d: Descriptor, role: str, source: Operand, names: Names, tolerate: Tolerate
) -> None:
    """Refuse operands that are shifted against each other: some elements are read before, some after the write."""
    dst, dst_size, operands = d.dst, d.dtype.itemsize, operation.operands
    src, src_size = source.start, source.size
    if dst + d.n * dst_size <= src or src + d.n * src_size <= dst:
        return
    if dst == src and dst_size <= src_size and not operands.mathematical:
        return
    if operands is Operands.CAST and dst_size > src_size and _upper_half(dst, src, d.n * src_size):
        return
    # On a device a repeat is read, then written; blocks that move down are read before they are written over; and
    # library functions in place are at odds with their pages alone.
    runs = d.n * dst_size <= REPEAT_BYTES if operands is Operands.CAST else dst < src and operands is Operands.COPY
    refuse = tolerate if runs or (operands.mathematical and dst == src) else _refuse
    if operands.mathematical:
        refuse(OverlapFault(f"{operation.name}: {names('dst')} and {names(role)} must have no bytes in common"))
        return
    refuse(
        OverlapFault(
            f"{operation.name}: {names('dst')} and {names(role)} overlap {abs(dst - src)} bytes apart; they must be the "
            f"same memory or none of each other's, count is {d.n}"
            + (" (a widening Cast may start in the upper half of dst)" if dst_size > src_size else "")
        )
    )


def _refuse(fault: DeviceFault) -> None:
    raise fault


def _computation(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, out: Array, sources: list[Array]
) -> Computation:
    if operation.operands is Operands.CAST:
        mode, dtype, source = CAST_MODES[d.extra % 256], out.dtype, sources[0]
        dequantizes = dtype == np.float16 and source.dtype == np.int32

        def cast() -> None:
            values = source * np.float32(ub.registers.deq_scale) if dequantizes else source
            rounded = round_to(values, dtype, mode)
            out[...] = saturated(rounded) if d.extra >= 256 else rounded

        return cast, ()
    if operation.operands in (Operands.DUPLICATE, Operands.INDEX):
        steps = np.arange(out.size, dtype=np.int64).reshape(out.shape) if operation.operands is Operands.INDEX else 0

        def fill(scalar: float) -> None:
            out[...] = scalar + steps

        return fill, None
    function = operation.arithmetic
    assert function is not None
    if operation.operands.with_scalar:
        # An array of one element: NumPy takes twice as long to convert a scalar.
        scalar_array = np.empty(1, out.dtype)

        def with_scalar(scalar: float) -> None:
            scalar_array[0] = scalar
            function(*sources, scalar_array, out)

        return with_scalar, None
    return function, (*sources, out)


def _repeat_plan(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names, lanes: Array
) -> PlannedInstruction:
    if d.dst_block == 0 and lanes.size > 32 // d.dtype.itemsize:
        raise DeviceFault(f"{operation.name}: a block stride of 0 for dst is undefined on a device")
    roles = ("dst", *operation.operands.sources)
    geometries = [d.geometry(operand, lanes) for operand in d.operands[: len(roles)]]
    for role, geometry, operand in zip(roles, geometries, d.operands, strict=False):
        check_place(operation.name, names(role), geometry.start, geometry.stop, operand.end, BLOCK_BYTES)
    loop = _must_loop(operation, d, geometries, names)
    accesses = [Access(role, g.start, g.runs()) for role, g in zip(roles, geometries, strict=True)]
    views = [g.view(ub.typed[code]) for g, code in zip(geometries, d.codes, strict=False)]
    arrays = [view for view in views if view is not None]
    if loop or len(arrays) < len(views):
        computation = _gathered(operation, d, ub, geometries, loop)
    else:
        computation = _computation(operation, d, ub, arrays[0], arrays[1:])
    return _planned(operation, d, accesses, computation, lambda: (geometries, _elementwise))


def _must_loop(operation: Operation, d: Descriptor, geometries: list[Geometry], names: Names) -> bool:
    """Return whether repeats must run one after another; refuse operands that meet in other ways."""
    dst = geometries[0]
    loop = dst.places.size != np.unique(dst.places).size  # repeats write the same place: the last one stays
    for role, src in zip(operation.operands.sources, geometries[1:], strict=False):
        same = src.size == dst.size and src.start == dst.start and bool((src.places == dst.places).all())
        if not src.meets(dst) or (same and not loop):
            continue
        inside, across = repeats_meet(dst, src)
        sums_up = operation.accumulates and role == "src1" and d.dst == d.src1 and 0 in (d.src1_repeat, d.dst_repeat)
        if (
            operation.operands is Operands.CAST
            and not across
            and (dst.size <= src.size or _upper_half(dst.start, src.start, dst.places.size * src.size))
        ):
            inside = False
        if inside or (across and not sums_up):
            where = "inside a repeat" if inside else "across repeats"
            others = ", ".join(row.name for row in OPERATIONS if row.accumulates)
            raise OverlapFault(
                f"{operation.name}: {names('dst')} and {names(role)} overlap {where}; inside a repeat they must be the "
                "same memory or none of each other's, and no repeat may read what an earlier one wrote (but with dst as "
                f"src1 and a repeat stride of 0: {others})"
            )
        loop = loop or across
    return loop


def _upper_half(dst: int, src: int, narrow_bytes: int) -> bool:
    """Return whether a widening Cast reads behind what it has written by then: from the upper half of dst on."""
    return src >= -(-(dst + narrow_bytes) // BLOCK_BYTES) * BLOCK_BYTES


def _gathered(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, geometries: list[Geometry], loop: bool
) -> Computation:
    """Compute through index arrays: one repeat after another, or all at once."""
    memories = [ub.typed[code] for code in d.codes[: len(geometries)]]
    indices = [g.elements for g in geometries]
    steps = [slice(r, r + 1) for r in range(d.repeat)] if loop else [slice(None)]
    buffers = [np.empty(index[steps[0]].shape, memory.dtype) for index, memory in zip(indices, memories, strict=True)]
    function, arguments = _computation(operation, d, ub, buffers[0], buffers[1:])
    first = 0 if operation.reads_dst else 1

    def run(*scalar: float) -> None:
        for step in steps:
            for buffer, memory, index in zip(buffers[first:], memories[first:], indices[first:], strict=True):
                buffer[...] = memory[index[step]]
            function(*(scalar if arguments is None else arguments))
            memories[0][indices[0][step]] = buffers[0]

    return run, arguments if arguments is None else ()
