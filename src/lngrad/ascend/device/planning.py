"""What is decided once about a vector instruction: its static rules, its views, its function.

Kernels issue the same few descriptors again and again, so that everything that depends on the descriptor alone is
kept: types, bounds, alignment, overlap of the operands, and the NumPy views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from lngrad.ascend.device.descriptors import (
    BLOCK_BYTES,
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
from lngrad.ascend.device.operations import OPERATIONS, Operands, Operation
from lngrad.ascend.device.races import Span
from lngrad.ascend.device.unified_buffer import UnifiedBuffer
from lngrad.ascend.faults import BoundsFault, DeviceFault, OverlapFault
from lngrad.errors import DtypeError
from lngrad.typing import Array

MAX_REPEATS = 255
# A function, and its arguments or None for the scalar.
Computation = tuple[Callable[..., object], Union[tuple[Any, ...], None]]  # noqa: UP007  # evaluated, on Python 3.10 too


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
    name, operands = operation.name, operation.operands
    _check_types(operation, d)
    if d.form == COUNT and operands is not Operands.REDUCE:
        return _count_plan(operation, d, ub, names)
    if not 0 <= d.repeat <= MAX_REPEATS and operands is not Operands.REDUCE:
        raise BoundsFault(f"{name}: repeatTime must be 0 to {MAX_REPEATS} (uint8_t), got {d.repeat}")
    size = max(DTYPES[code].itemsize for code in types_of(d.types)[: 1 + len(operands.sources)])
    unmasked = d.form == COUNT or operands is Operands.BRCB
    lanes = np.arange(0) if unmasked else selected_lanes(name, d, size)
    if (d.n if d.form == COUNT else d.repeat) == 0:
        return _planned(operation, d, [Access("dst", d.dst, ())], lambda: None)
    if operands not in SPECIAL:
        return _repeat_plan(operation, d, ub, names, lanes)
    dst, src, function = SPECIAL[operands](d, ub, size, lanes)
    check_place(name, names("src"), d.src0, src.stop, d.src0_end, BLOCK_BYTES)
    check_place(name, names("dst"), d.dst, dst.stop, d.dst_end, BLOCK_BYTES if operands is Operands.BRCB else size)
    if operands is Operands.REDUCE and (d.form != COUNT or ub.soc.arch != 2201):
        # The count form of 2201 has its partial sums in registers.
        stop = d.src1 + (-(-d.n * size // REPEAT_BYTES) if d.form == COUNT else d.repeat) * size
        check_place(name, names("sharedTmpBuffer"), d.src1, stop, d.src1_end, BLOCK_BYTES)
    if operands is Operands.BRCB and dst.meets(src):
        raise OverlapFault(f"Brcb: {names('dst')} and {names('src')} overlap")
    accesses = [Access("dst", d.dst, dst.runs()), Access("src", d.src0, src.runs())]
    return _planned(operation, d, accesses, function)


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
    dst, src0, src1 = types_of(d.types)
    roles = zip(("dst", *operation.operands.sources), (
        (dst, d.dst, d.dst_end, (d.dst_block, d.dst_repeat)),
        (src0, d.src0, d.src0_end, (d.src0_block, d.src0_repeat)),
        (src1, d.src1, d.src1_end, (d.src1_block, d.src1_repeat)),
    ), strict=False)  # fmt: skip
    return [(role, *operand) for role, operand in roles]


def _count_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> PlannedInstruction:
    if d.n < 0:
        raise BoundsFault(f"{operation.name}: count must not be negative, got {d.n}")
    views, accesses = [], []
    for role, code, start, end, _ in _operands(operation, d):
        size = DTYPES[code].itemsize
        stop = start + d.n * size
        check_place(operation.name, names(role), start, stop, end, BLOCK_BYTES)
        views.append(ub.typed[code][start // size : stop // size])
        accesses.append(Access(role, start, ((start, stop),) if d.n else ()))
        if role != "dst":
            _check_count_overlap(operation, d, role, start, size, names)
    function, arguments = _computation(operation, d, views[0], views[1:])
    return _planned(operation, d, accesses, function, arguments)


def _check_count_overlap(operation: Operation, d: Descriptor, role: str, src: int, src_size: int, names: Names) -> None:
    """Refuse operands that are shifted against each other: some elements are read before, some after the write."""
    dst, dst_size = d.dst, DTYPES[types_of(d.types)[0]].itemsize
    if dst + d.n * dst_size <= src or src + d.n * src_size <= dst:
        return
    if dst == src and dst_size <= src_size:
        return
    if operation.operands is Operands.CAST and dst_size > src_size and _upper_half(dst, src, d.n * src_size):
        return
    raise OverlapFault(
        f"{operation.name}: {names('dst')} and {names(role)} overlap {abs(dst - src)} bytes apart; they must be the "
        f"same memory or none of each other's, count is {d.n}"
        + (" (a widening Cast may start in the upper half of dst)" if dst_size > src_size else "")
    )


def _computation(operation: Operation, d: Descriptor, out: Array, sources: list[Array]) -> Computation:
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


def _repeat_plan(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names, lanes: Array
) -> PlannedInstruction:
    rows = _operands(operation, d)
    if d.dst_block == 0 and lanes.size > 32 // DTYPES[rows[0][1]].itemsize:
        raise DeviceFault(f"{operation.name}: a block stride of 0 for dst is undefined on a device")
    geometries = []
    for role, code, start, end, strides in rows:
        geometry = repeated(start, DTYPES[code].itemsize, lanes, d.repeat, strides)
        check_place(operation.name, names(role), start, geometry.stop, end, BLOCK_BYTES)
        geometries.append(geometry)
    loop = _must_loop(operation, d, geometries, names)
    accesses = [Access(row[0], row[2], g.runs()) for row, g in zip(rows, geometries, strict=True)]
    codes = [row[1] for row in rows]
    views = [g.view(ub.typed[code]) for g, code in zip(geometries, codes, strict=True)]
    arrays = [view for view in views if view is not None]
    if loop or len(arrays) < len(views):
        function, arguments = _gathered(operation, d, ub, geometries, codes, loop)
    else:
        function, arguments = _computation(operation, d, arrays[0], arrays[1:])
    return _planned(operation, d, accesses, function, arguments)


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
            what = "inside a repeat" if inside else "across repeats"
            raise OverlapFault(
                f"{operation.name}: {names('dst')} and {names(role)} overlap {what}; inside a repeat they must be the "
                "same memory or none of each other's, and no repeat may read what an earlier one wrote (but Add, Sub, "
                "Mul, Max and Min with dst as src1 and a repeat stride of 0)"
            )
        loop = loop or across
    return loop


def _upper_half(dst: int, src: int, narrow_bytes: int) -> bool:
    """Return whether a widening Cast reads behind what it has written by then: from the upper half of dst on."""
    return src >= -(-(dst + narrow_bytes) // BLOCK_BYTES) * BLOCK_BYTES


def _gathered(
    operation: Operation, d: Descriptor, ub: UnifiedBuffer, geometries: list[Geometry], codes: list[int], loop: bool
) -> Computation:
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


Special = tuple[Geometry, Geometry, Callable[[], object]]  # dst, src, and what computes dst


def _brcb(d: Descriptor, ub: UnifiedBuffer, size: int, lanes: Array) -> Special:
    per_block = BLOCK_BYTES // size
    # A block stride of 0 is read as 1.
    dst = repeated(d.dst, size, np.arange(8 * per_block), d.repeat, (d.dst_block or 1, d.dst_repeat))
    src = contiguous(d.src0, 8 * d.repeat, size)
    memory, into, index = ub.typed[types_of(d.types)[0]], dst.places // size, src.places.reshape(-1, 8) // size

    def compute() -> None:
        memory[into] = np.repeat(memory[index], per_block, axis=1)

    return dst, src, compute


def _whole_reduce(d: Descriptor, ub: UnifiedBuffer, size: int, lanes: Array) -> Special:
    src = repeated(d.src0, size, lanes, d.repeat, (d.src0_block, d.src0_repeat))
    dst = Geometry(d.dst + np.arange(d.repeat)[:, None] * (d.dst_repeat * size), size, d.dst)
    memory, into, index = ub.typed[types_of(d.types)[0]], dst.places[:, 0] // size, src.places // size
    values = np.zeros((d.repeat, int(lanes[-1]) + 1), memory.dtype)

    def compute() -> None:
        values[:, lanes] = memory[index]
        memory[into] = pairwise_sum(values)

    return dst, src, compute


def _reduce(d: Descriptor, ub: UnifiedBuffer, size: int, lanes: Array) -> Special:
    if d.form == COUNT:
        src = contiguous(d.src0, d.n, size)
    else:
        src = repeated(d.src0, size, lanes, d.repeat, (1, d.src0_repeat))
    memory, into, index = ub.typed[types_of(d.types)[0]], d.dst // size, src.places // size

    def compute() -> None:
        values = memory[index]
        if d.form == COUNT:
            memory[into] = reduce_sum(values[0], ub.soc.arch)[0]
        else:
            memory[into] = repeat_sums(pairwise_sum(values)[None], REPEAT_BYTES // size)[0]

    return contiguous(d.dst, 1, size), src, compute


SPECIAL: dict[Operands, Callable[[Descriptor, UnifiedBuffer, int, Array], Special]] = {
    Operands.BRCB: _brcb,
    Operands.WHOLE_REDUCE: _whole_reduce,
    Operands.REDUCE: _reduce,
}
