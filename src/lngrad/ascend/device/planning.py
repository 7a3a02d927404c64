"""What is decided once about a vector instruction: its static rules, its views, its function.

Kernels issue the same few descriptors again and again, so that everything that depends on the descriptor alone is
kept: types, bounds, alignment, overlap of the operands, and the NumPy views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lngrad.ascend.device.descriptors import (
    COUNT,
    Descriptor,
    Geometry,
    Names,
    Runs,
    check_place,
    contiguous,
    repeated,
    repeats_meet,
    selected_lanes,
    types_of,
)
from lngrad.ascend.device.numerics import (
    CAST_MODES,
    CPP_NAMES,
    DTYPES,
    REPEAT_BYTES,
    pairwise_sum,
    reduce_sum,
    repeat_sums,
    round_to,
    saturated,
)
from lngrad.ascend.device.races import Span
from lngrad.ascend.device.unified_buffer import UnifiedBuffer
from lngrad.ascend.device.vector import OPERATIONS, Operands, Operation
from lngrad.ascend.faults import BoundsFault, DeviceFault, OverlapFault
from lngrad.errors import DtypeError
from lngrad.typing import Array

MAX_REPEATS = 255


class Access:
    """What one operand touches: ranges of bytes, and the spans of memory that they were found in."""

    __slots__ = ("role", "runs", "spans", "start")

    def __init__(self, role: str, start: int, runs: Runs) -> None:
        self.role = role
        self.start = start
        self.runs = runs
        self.spans: tuple[Span, ...] = (_NOT_LOOKED_UP,) if runs else ()


_NOT_LOOKED_UP = Span(0, 0)
_NOT_LOOKED_UP.live = False


@dataclass(slots=True)
class PlannedInstruction:
    """A planned instruction.

    Attributes:
        name: Of the instruction.
        op: Its number.
        sources: How many handles of sources it needs.
        write, reads: What it touches.
        function: Called with ``arguments``, or with the scalar where ``arguments`` is None.
    """

    name: str
    op: int
    sources: int
    write: Access
    reads: tuple[Access, ...]
    function: Callable[..., object]
    arguments: tuple[Any, ...] | None


def _planned(
    operation: Operation,
    d: Descriptor,
    accesses: Sequence[Access],
    function: Callable[..., object],
    arguments: tuple[Any, ...] | None = (),
) -> PlannedInstruction:
    write, *reads = accesses
    sources = len(operation.operands.sources)
    return PlannedInstruction(operation.name, d.op, sources, write, tuple(reads), function, arguments)


def _nothing(operation: Operation, d: Descriptor) -> PlannedInstruction:
    """An instruction without repeats or elements."""
    return _planned(operation, d, [Access("dst", d.dst, ())], lambda: None)


def plan_instruction(d: Descriptor, ub: UnifiedBuffer, names: Names) -> PlannedInstruction:
    """Check the static rules of an instruction and return its plan.

    Args:
        d: The instruction.
        ub: Where its operands lie.
        names: Describes an operand in a text.

    Raises:
        DeviceFault: A length, an address or an overlap.
        DtypeError: A type that the instruction does not take.
    """
    operation = OPERATIONS[d.op]
    _check_types(operation, d)
    if d.form != COUNT and not 0 <= d.repeat <= MAX_REPEATS and operation.operands is not Operands.REDUCE:
        raise BoundsFault(f"{operation.name}: repeatTime must be 0 to {MAX_REPEATS} (uint8_t), got {d.repeat}")
    if operation.operands in SPECIAL:
        return SPECIAL[operation.operands](operation, d, ub, names)
    if d.form == COUNT:
        return _count_plan(operation, d, ub, names)
    return _repeat_plan(operation, d, ub, names)


def _check_types(operation: Operation, d: Descriptor) -> None:
    codes = types_of(d.types)
    allowed = ", ".join(CPP_NAMES[code] for code in sorted(operation.types))
    if operation.operands is Operands.CAST:
        if codes[0] == codes[1] or not operation.types.issuperset(codes[:2]):
            raise DtypeError(
                f"Cast: expected two different types of {allowed}, got {CPP_NAMES[codes[1]]} to {CPP_NAMES[codes[0]]}"
            )
        return
    if codes[0] not in operation.types:
        raise DtypeError(f"{operation.name}: T must be one of {allowed}, got {CPP_NAMES[codes[0]]}")
    for role, code in zip(operation.operands.sources, codes[1:], strict=False):
        if code != codes[0]:
            raise DtypeError(
                f"{operation.name}: dst and {role} must be of one type, got {CPP_NAMES[codes[0]]} and {CPP_NAMES[code]}"
            )


def _operands(operation: Operation, d: Descriptor) -> list[tuple[str, int, int, int, tuple[int, int]]]:
    """Return (role, type code, start, end, strides) of dst and of every source."""
    codes = types_of(d.types)
    rows = [("dst", codes[0], d.dst, d.dst_end, (d.dst_block, d.dst_repeat))]
    sources = [
        (codes[1], d.src0, d.src0_end, (d.src0_block, d.src0_repeat)),
        (codes[2], d.src1, d.src1_end, (d.src1_block, d.src1_repeat)),
    ]
    rows += [(role, *source) for role, source in zip(operation.operands.sources, sources, strict=False)]
    return rows


def _count_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> PlannedInstruction:
    if d.n < 0:
        raise BoundsFault(f"{operation.name}: count must not be negative, got {d.n}")
    views, accesses = [], []
    for role, code, start, end, _ in _operands(operation, d):
        size = DTYPES[code].itemsize
        stop = start + d.n * size
        check_place(operation.name, names(role), start, stop, end, ub.soc.block_bytes)
        views.append(ub.typed[code][start // size : stop // size])
        accesses.append(Access(role, start, ((start, stop),) if d.n else ()))
        if role != "dst":
            _check_count_overlap(
                operation, d, role, (d.dst, start), (DTYPES[types_of(d.types)[0]].itemsize, size), names
            )
    function, arguments = _computation(operation, d, views[0], views[1:])
    return _planned(operation, d, accesses, function, arguments)


def _check_count_overlap(
    operation: Operation, d: Descriptor, role: str, starts: tuple[int, int], sizes: tuple[int, int], names: Names
) -> None:
    """Refuse operands that are shifted against each other: some elements are read before, some after the write."""
    (dst, src), (dst_size, src_size) = starts, sizes
    if dst + d.n * dst_size <= src or src + d.n * src_size <= dst:
        return
    if dst == src and dst_size <= src_size:
        return
    if operation.operands is Operands.CAST and dst_size > src_size and src >= -(-(dst + d.n * src_size) // 32) * 32:
        return  # widening from the upper half: what is written has been read by then
    raise OverlapFault(
        f"{operation.name}: {names('dst')} and {names(role)} overlap {abs(dst - src)} bytes apart; they must be the "
        f"same memory or none of each other's, count is {d.n}"
        + (" (a widening Cast may start in the upper half of dst)" if dst_size > src_size else "")
    )


def _computation(
    operation: Operation, d: Descriptor, out: Array, sources: list[Array]
) -> tuple[Callable[..., object], tuple[Any, ...] | None]:
    """Return the function of an elementwise instruction, and its arguments or None for the scalar."""
    if operation.operands is Operands.CAST:
        mode, dtype, source = CAST_MODES[d.src1], out.dtype, sources[0]

        def cast() -> None:
            rounded = round_to(source, dtype, mode)
            out[...] = saturated(rounded) if d.src1_end else rounded

        return cast, ()
    if operation.operands is Operands.DUPLICATE:

        def duplicate(scalar: float) -> None:
            out[...] = scalar

        return duplicate, None
    function = operation.arithmetic
    assert function is not None
    if operation.operands is Operands.SCALAR:
        # An array of one element: NumPy takes twice as long to convert a scalar.
        source, one = sources[0], np.empty(1, out.dtype)

        def with_scalar(scalar: float) -> None:
            one[0] = scalar
            function(source, one, out)

        return with_scalar, None
    return function, (*sources, out)


def _repeat_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> PlannedInstruction:
    rows = _operands(operation, d)
    lanes = selected_lanes(operation.name, d, max(DTYPES[code].itemsize for _, code, *_ in rows))
    if d.repeat == 0:
        return _nothing(operation, d)
    if d.dst_block == 0 and lanes.size > 32 // DTYPES[rows[0][1]].itemsize:
        raise DeviceFault(f"{operation.name}: a block stride of 0 for dst is undefined on a device")
    geometries = []
    for role, code, start, end, strides in rows:
        geometry = repeated(start, DTYPES[code].itemsize, lanes, d.repeat, strides)
        check_place(operation.name, names(role), start, geometry.stop, end, ub.soc.block_bytes)
        geometries.append(geometry)
    loop = _must_loop(operation, d, geometries, names)
    accesses = [Access(row[0], row[2], g.runs()) for row, g in zip(rows, geometries, strict=True)]
    codes = [row[1] for row in rows]
    views = [g.view(ub.typed[code]) for g, code in zip(geometries, codes, strict=True)]
    function: Callable[..., object]
    arguments: tuple[Any, ...] | None
    if loop or any(view is None for view in views):
        function, arguments = _gathered(operation, d, ub, geometries, codes, loop)
    else:
        arrays = [view for view in views if view is not None]
        function, arguments = _computation(operation, d, arrays[0], arrays[1:])
    return _planned(operation, d, accesses, function, arguments)


def _must_loop(operation: Operation, d: Descriptor, geometries: list[Geometry], names: Names) -> bool:
    """Return whether repeats must run one after another; refuse operands that meet in other ways."""
    dst = geometries[0]
    loop = dst.places.size != np.unique(dst.places).size  # repeats write the same place: the last one stays
    for role, src in zip(operation.operands.sources, geometries[1:], strict=False):
        apart = src.start >= dst.stop or dst.start >= src.stop
        if apart or (src.same_as(dst) and not loop):
            continue
        inside, across = repeats_meet(dst, src)
        sums_up = operation.accumulates and role == "src1" and d.dst == d.src1 and 0 in (d.src1_repeat, d.dst_repeat)
        if operation.operands is Operands.CAST and not across and _upper_half(dst, src):
            inside = False
        if inside or (across and not sums_up):
            what = "inside a repeat" if inside else "across repeats"
            raise OverlapFault(
                f"{operation.name}: {names('dst')} and {names(role)} overlap {what}; inside a repeat they must be the "
                "same memory or none of each other's, and no repeat may read what an earlier one wrote (but Add, Sub, "
                "Mul, Max and Min with dst as src1 and a repeat stride of 0)"
            )
        loop = loop or across
    return loop


def _upper_half(dst: Geometry, src: Geometry) -> bool:
    narrow_bytes = dst.places.size * src.size
    return dst.size <= src.size or src.start >= -(-(dst.start + narrow_bytes) // 32) * 32


def _gathered(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, geometries: list[Geometry], codes: list[int], loop: bool
) -> tuple[Callable[..., object], tuple[Any, ...] | None]:
    """Compute through index arrays: one repeat after another, or all at once."""
    memories = [ub.typed[code] for code in codes]
    indices = [g.places // g.size for g in geometries]
    steps = [slice(r, r + 1) for r in range(d.repeat)] if loop else [slice(None)]
    buffers = [np.empty(index[steps[0]].shape, memory.dtype) for index, memory in zip(indices, memories, strict=True)]
    function, arguments = _computation(operation, d, buffers[0], buffers[1:])

    def run(*scalar: float) -> None:
        for step in steps:
            for buffer, memory, index in zip(buffers[1:], memories[1:], indices[1:], strict=True):
                buffer[...] = memory[index[step]]
            function(*(scalar if arguments is None else arguments))
            memories[0][indices[0][step]] = buffers[0]

    return run, arguments if arguments is None else ()


def _brcb_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> PlannedInstruction:
    code = types_of(d.types)[0]
    size = DTYPES[code].itemsize
    if d.repeat == 0:
        return _nothing(operation, d)
    per_block = 32 // size
    block = d.dst_block or 1  # 0 is read as 1
    dst = repeated(d.dst, size, np.arange(8 * per_block), d.repeat, (block, d.dst_repeat))
    src = contiguous(d.src0, 8 * d.repeat, size)
    check_place(operation.name, names("dst"), d.dst, dst.stop, d.dst_end, ub.soc.block_bytes)
    check_place(operation.name, names("src"), d.src0, src.stop, d.src0_end, ub.soc.block_bytes)
    if src.start < dst.stop and dst.start < src.stop:
        raise OverlapFault(f"Brcb: {names('dst')} and {names('src')} overlap")
    memory, index = ub.typed[code], dst.places // size
    values = memory[d.src0 // size : d.src0 // size + 8 * d.repeat]

    def brcb() -> None:
        memory[index] = np.repeat(values.reshape(d.repeat, 8), per_block, axis=1)

    return _planned(operation, d, [Access("dst", d.dst, dst.runs()), Access("src", d.src0, src.runs())], brcb)


def _whole_reduce_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> PlannedInstruction:
    code = types_of(d.types)[0]
    size = DTYPES[code].itemsize
    lanes = selected_lanes(operation.name, d, size)
    if d.repeat == 0:
        return _nothing(operation, d)
    src = repeated(d.src0, size, lanes, d.repeat, (d.src0_block, d.src0_repeat))
    places = d.dst + np.arange(d.repeat)[:, None] * (d.dst_repeat * size)
    dst = Geometry(places, size, d.dst, (1, 0))
    check_place(operation.name, names("src"), d.src0, src.stop, d.src0_end, ub.soc.block_bytes)
    check_place(operation.name, names("dst"), d.dst, dst.stop, d.dst_end, size)
    memory, into, index = ub.typed[code], places[:, 0] // size, src.places // size
    width = int(lanes[-1]) + 1
    values = np.zeros((d.repeat, width), DTYPES[code])

    def whole_reduce() -> None:
        values[:, lanes] = memory[index]
        memory[into] = pairwise_sum(values)

    return _planned(operation, d, [Access("dst", d.dst, dst.runs()), Access("src", d.src0, src.runs())], whole_reduce)


def _reduce_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> PlannedInstruction:
    code = types_of(d.types)[0]
    size, arch = DTYPES[code].itemsize, ub.soc.arch
    if (d.n if d.form == COUNT else d.repeat) == 0:
        return _nothing(operation, d)
    if d.form == COUNT:
        src, repeats = contiguous(d.src0, d.n, size), -(-d.n * size // REPEAT_BYTES)
    else:
        src, repeats = (
            repeated(d.src0, size, selected_lanes("ReduceSum", d, size), d.repeat, (1, d.src0_repeat)),
            d.repeat,
        )
    check_place("ReduceSum", names("src"), d.src0, src.stop, d.src0_end, ub.soc.block_bytes)
    check_place("ReduceSum", names("dst"), d.dst, d.dst + size, d.dst_end, size)
    if d.form != COUNT or arch != 2201:  # the count form of 2201 has its partial sums in registers
        stop = d.src1 + repeats * size
        check_place("ReduceSum", names("sharedTmpBuffer"), d.src1, stop, d.src1_end, ub.soc.block_bytes)
    memory, into, index = ub.typed[code], d.dst // size, src.places // size

    def reduce() -> None:
        values = memory[index]
        if d.form == COUNT:
            memory[into] = reduce_sum(values[0], arch)[0]
        else:
            partials = pairwise_sum(values)
            memory[into] = repeat_sums(partials[None], REPEAT_BYTES // size)[0]

    return _planned(
        operation, d, [Access("dst", d.dst, ((d.dst, d.dst + size),)), Access("src", d.src0, src.runs())], reduce
    )


SPECIAL: dict[Operands, Callable[[Operation, Descriptor, UnifiedBuffer, Names], PlannedInstruction]] = {
    Operands.BRCB: _brcb_plan,
    Operands.WHOLE_REDUCE: _whole_reduce_plan,
    Operands.REDUCE: _reduce_plan,
}
