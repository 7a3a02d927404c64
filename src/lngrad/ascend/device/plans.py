"""What is decided once about a vector instruction: its static rules, its views, its function.

An instruction is described by a tuple of integers (``Descriptor``). Kernels issue the same few
descriptors again and again, so that everything that depends on the descriptor alone is kept in a
``Plan``: types, bounds, alignment, overlap of the operands, and the NumPy views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lngrad.ascend.device.element_types import CPP_NAMES, DTYPES
from lngrad.ascend.device.geometry import Geometry, repeated, repeats_meet
from lngrad.ascend.device.operations import CAST_MODES, OPERATIONS, Kind, Operation, round_to, saturated
from lngrad.ascend.device.plan import (
    COUNT,
    Access,
    Descriptor,
    Names,
    Plan,
    check_place,
    nothing,
    selected_lanes,
    types_of,
)
from lngrad.ascend.device.reduction_plans import SPECIAL
from lngrad.ascend.device.unified_buffer import UnifiedBuffer
from lngrad.ascend.faults import BoundsFault, DeviceFault, OverlapFault
from lngrad.errors import DtypeError
from lngrad.typing import Array

MAX_REPEATS = 255


def make_plan(d: Descriptor, ub: UnifiedBuffer, names: Names) -> Plan:
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
    if d.form != COUNT and not 0 <= d.repeat <= MAX_REPEATS and operation.kind is not Kind.REDUCE:
        raise BoundsFault(f"{operation.name}: repeatTime must be 0 to {MAX_REPEATS} (uint8_t), got {d.repeat}")
    if operation.kind in SPECIAL:
        return SPECIAL[operation.kind](operation, d, ub, names)
    if d.form == COUNT:
        return _count_plan(operation, d, ub, names)
    return _repeat_plan(operation, d, ub, names)


def _check_types(operation: Operation, d: Descriptor) -> None:
    codes = types_of(d.types)
    roles = _roles(operation)
    allowed = ", ".join(CPP_NAMES[code] for code in sorted(operation.types))
    if operation.kind is Kind.CAST:
        if codes[0] == codes[1] or not operation.types.issuperset(codes[:2]):
            raise DtypeError(
                f"Cast: expected two different types of {allowed}, got {CPP_NAMES[codes[1]]} to {CPP_NAMES[codes[0]]}"
            )
        return
    if codes[0] not in operation.types:
        raise DtypeError(f"{operation.name}: T must be one of {allowed}, got {CPP_NAMES[codes[0]]}")
    for role, code in zip(roles, codes[1:], strict=False):
        if code != codes[0]:
            raise DtypeError(
                f"{operation.name}: dst and {role} must be of one type, got {CPP_NAMES[codes[0]]} and {CPP_NAMES[code]}"
            )


def _roles(operation: Operation) -> tuple[str, ...]:
    if operation.kind is Kind.BINARY:
        return ("src0", "src1")
    return () if operation.kind is Kind.DUPLICATE else ("src",)


def _operands(operation: Operation, d: Descriptor) -> list[tuple[str, int, int, int, tuple[int, int]]]:
    """Return (role, type code, start, end, strides) of dst and of every source."""
    codes = types_of(d.types)
    rows = [("dst", codes[0], d.dst, d.dst_end, (d.dst_block, d.dst_repeat))]
    sources = [
        (codes[1], d.src0, d.src0_end, (d.src0_block, d.src0_repeat)),
        (codes[2], d.src1, d.src1_end, (d.src1_block, d.src1_repeat)),
    ]
    rows += [(role, *source) for role, source in zip(_roles(operation), sources, strict=False)]
    return rows


def _count_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> Plan:
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
    return Plan(operation, d.op, accesses[0], tuple(accesses[1:]), function, arguments)


def _check_count_overlap(
    operation: Operation, d: Descriptor, role: str, starts: tuple[int, int], sizes: tuple[int, int], names: Names
) -> None:
    """Refuse operands that are shifted against each other: some elements are read before, some
    after the write."""
    (dst, src), (dst_size, src_size) = starts, sizes
    if dst + d.n * dst_size <= src or src + d.n * src_size <= dst:
        return
    if dst == src and dst_size <= src_size:
        return
    if operation.kind is Kind.CAST and dst_size > src_size and src >= -(-(dst + d.n * src_size) // 32) * 32:
        return  # widening from the upper half: what is written has been read by then
    raise OverlapFault(
        f"{operation.name}: {names('dst')} and {names(role)} overlap {abs(dst - src)} bytes apart; they must be the "
        f"same memory or none of each other's, count is {d.n}"
        + (" (a widening Cast may start in the upper half of dst)" if dst_size > src_size else "")
    )


def _computation(
    operation: Operation, d: Descriptor, out: Array, sources: list[Array]
) -> tuple[Callable[..., object], tuple[Any, ...] | None]:
    """Return the function of an elementwise instruction, and its arguments or None for the
    scalar."""
    if operation.kind is Kind.CAST:
        mode, dtype, source = CAST_MODES[d.src1], out.dtype, sources[0]

        def cast() -> None:
            rounded = round_to(source, dtype, mode)
            out[...] = saturated(rounded) if d.src1_end else rounded

        return cast, ()
    if operation.kind is Kind.DUPLICATE:

        def duplicate(scalar: float) -> None:
            out[...] = scalar

        return duplicate, None
    function = operation.ufunc or operation.function
    assert function is not None
    if operation.kind is Kind.SCALAR:
        # An array of one element: NumPy takes twice as long to convert a scalar.
        source, one = sources[0], np.empty(1, out.dtype)

        def with_scalar(scalar: float) -> None:
            one[0] = scalar
            function(source, one, out)

        return with_scalar, None
    return function, (*sources, out)


def _repeat_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> Plan:
    rows = _operands(operation, d)
    lanes = selected_lanes(operation.name, d, max(DTYPES[code].itemsize for _, code, *_ in rows))
    if d.repeat == 0:
        return Plan(operation, d.op, Access("dst", d.dst, ()), (), nothing, ())
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
    return Plan(operation, d.op, accesses[0], tuple(accesses[1:]), function, arguments)


def _must_loop(operation: Operation, d: Descriptor, geometries: list[Geometry], names: Names) -> bool:
    """Return whether repeats must run one after another; refuse operands that meet in other
    ways."""
    dst = geometries[0]
    loop = dst.places.size != np.unique(dst.places).size  # repeats write the same place: the last one stays
    for role, src in zip(_roles(operation), geometries[1:], strict=False):
        apart = src.start >= dst.stop or dst.start >= src.stop
        if apart or (src.same_as(dst) and not loop):
            continue
        inside, across = repeats_meet(dst, src)
        sums_up = operation.accumulates and role == "src1" and d.dst == d.src1 and 0 in (d.src1_repeat, d.dst_repeat)
        if operation.kind is Kind.CAST and not across and _upper_half(dst, src):
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
