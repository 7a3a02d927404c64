"""The instructions that are not elementwise: which bytes they touch, and how one is computed.

Reductions, comparisons, choices, gathers and Brcb: `SPECIAL`, one row an operand form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lngrad.typing import Array
from lngrad_ascend.device.descriptors import BLOCK_BYTES, COUNT, MASK, Descriptor, Geometry, contiguous, repeated
from lngrad_ascend.device.numerics import (
    CAST_MODES,
    CPP_NAMES,
    DTYPES,
    INT4,
    REPEAT_BYTES,
    pairwise_sum,
    reduce_sum,
    repeat_sums,
    round_to,
)
from lngrad_ascend.device.operations import OPERATIONS, Operands
from lngrad_ascend.device.unified_buffer import MAX_ORIGINS, UnifiedBuffer
from lngrad_ascend.faults import AlignmentFault, BoundsFault

COMPARISONS = (np.less, np.greater, np.equal, np.less_equal, np.greater_equal, np.not_equal)  # CMPMODE's numbers
VALUE_INDEX, INDEX_VALUE, ONLY_VALUE, ONLY_INDEX = range(4)  # ReduceOrder's numbers
ONE_MASK = 0  # SELMODE: every repeat chooses by the same bits


class Special(NamedTuple):
    """The bytes that an instruction touches, and its computation.

    Attributes:
        dst: What it writes.
        sources: What it reads, in the order of its parameters.
        align: Of dst, in bytes.
        compute: Called with the scalar where the form has one.
        spread: Which elements of dst depend on which of the sources: takes one number an element of each source, 0 or
            more, and returns the largest that each element of dst depends on.
    """

    dst: Geometry
    sources: tuple[Geometry, ...]
    align: int
    compute: Callable[..., object]
    spread: Callable[[Sequence[Array]], Any]


def _brcb(d: Descriptor, ub: UnifiedBuffer, lanes: Array) -> Special:
    memory = ub.typed[d.codes[0]]
    size = memory.itemsize
    per_block = BLOCK_BYTES // size
    # A block stride of 0 is read as 1.
    dst = repeated(d.dst, size, np.arange(8 * per_block), d.repeat, (d.dst_block or 1, d.dst_repeat))
    src = contiguous(d.src0, 8 * d.repeat, size)
    into, index = dst.elements, src.elements.reshape(-1, 8)

    def compute() -> None:
        memory[into] = np.repeat(memory[index], per_block, axis=1)

    return Special(
        dst, (src,), BLOCK_BYTES, compute, lambda parts: np.repeat(parts[0].reshape(-1, 8), per_block, axis=1)
    )


def _extremes(function: Callable[..., object], values: Array) -> tuple[Array, Array]:
    """Return the largest (or smallest) of each row, and where it comes first."""
    place = (np.argmax if function is np.maximum else np.argmin)(values, axis=-1)
    return np.take_along_axis(values, place[..., None], -1)[..., 0], place


def _repeat_reduce(d: Descriptor, ub: UnifiedBuffer, lanes: Array) -> Special:
    operation, memory = OPERATIONS[d.op], ub.typed[d.codes[0]]
    size = memory.itemsize
    width = REPEAT_BYTES // size
    results = operation.groups or width // 2
    src = repeated(d.src0, size, lanes, d.repeat, (d.src0_block, d.src0_repeat))
    index = src.elements
    function: Any = operation.arithmetic
    if results == 1 and function is not np.add:
        return _repeat_extreme(d, ub, lanes, src, function)
    # A block of which no element takes part keeps its place in dst as it is.
    groups = lanes // (width // results)
    taking = np.unique(groups)
    dst = Geometry(d.dst + (np.arange(d.repeat)[:, None] * (d.dst_repeat * results) + taking) * size, size, d.dst)
    into = dst.elements
    fill = 0 if function is np.add else -np.inf if function is np.maximum else np.inf
    values = np.full((d.repeat, width if results > 1 else int(lanes[-1]) + 1), fill, memory.dtype)

    def compute() -> None:
        values[:, lanes] = memory[index]
        parts = values.reshape(d.repeat, results, -1)
        memory[into] = pairwise_sum(parts)[:, taking] if function is np.add else function.reduce(parts, -1)[:, taking]

    def spread(parts: Sequence[Array]) -> Any:
        return np.stack([parts[0][:, groups == group].max(axis=1) for group in taking], axis=1)

    return Special(dst, (src,), min(BLOCK_BYTES, results * size), compute, spread)


def _repeat_extreme(
    d: Descriptor, ub: UnifiedBuffer, lanes: Array, src: Geometry, function: Callable[..., object]
) -> Special:
    """WholeReduceMax and Min: the value, its place in the repeat, or both in either order."""
    memory = ub.typed[d.codes[0]]
    size = memory.itemsize
    both = d.extra in (VALUE_INDEX, INDEX_VALUE)
    unit = 2 * size if both else 4 if d.extra == ONLY_INDEX else size
    starts = d.dst + np.arange(d.repeat)[:, None] * (d.dst_repeat * unit)
    dst = Geometry(starts + np.arange(0, unit, size), size, d.dst)
    index, into, unsigned = src.elements, dst.elements, np.dtype(f"u{size}")

    def compute() -> None:
        value, place = _extremes(function, memory[index])
        numbers = lanes[place].astype(np.uint32 if d.extra == ONLY_INDEX else unsigned)
        if d.extra == ONLY_INDEX:
            memory[into] = numbers[:, None].view(memory.dtype)
        elif both:
            pair = (value, numbers.view(memory.dtype))
            memory[into] = np.stack(pair if d.extra == VALUE_INDEX else pair[::-1], axis=1)
        else:
            memory[into] = value[:, None]

    return Special(
        dst, (src,), unit, compute, lambda parts: np.repeat(parts[0].max(axis=1, keepdims=True), unit // size, axis=1)
    )


def _reduce(d: Descriptor, ub: UnifiedBuffer, lanes: Array) -> Special:
    operation, memory = OPERATIONS[d.op], ub.typed[d.codes[0]]
    size = memory.itemsize
    src = d.geometry(d.operands[1]._replace(block=1), lanes)
    into, index = d.dst // size, src.elements
    function: Any = operation.arithmetic
    dst = contiguous(d.dst, 2 if function is not np.add and d.extra else 1, size)

    def compute() -> None:
        values = memory[d.src0 // size :][: d.n] if d.form == COUNT else memory[index]
        if function is np.add:
            if d.form == COUNT:
                memory[into] = reduce_sum(values, ub.soc.arch)[0]
            else:
                memory[into] = repeat_sums(pairwise_sum(values)[None], REPEAT_BYTES // size)[0]
            ub.registers.sum = float(memory[into])
            return
        value, place = _extremes(function, values.reshape(-1))
        memory[into] = value
        if d.extra:
            # Places are counted in whole repeats, masked elements too.
            number = (
                int(place)
                if d.form == COUNT
                else int(place) // lanes.size * (REPEAT_BYTES // size) + int(lanes[int(place) % lanes.size])
            )
            memory[into + 1] = np.array(number, f"u{size}").view(memory.dtype)  # fmt: skip
        ub.registers.extreme = float(value), int(place)

    return Special(
        dst, (src,), dst.places.size * size, compute,
        lambda parts: np.full(dst.places.shape, parts[0].max(initial=0), parts[0].dtype),
    )  # fmt: skip


def _bits(places: Geometry, memory: Array, count: int) -> Any:
    """Return the bits of the bytes of each row, ``count`` a row, lowest first."""
    return np.unpackbits(memory[places.places], axis=1, bitorder="little")[:, :count].astype(bool)


def _compare(d: Descriptor, ub: UnifiedBuffer, lanes: Array) -> Special:
    operands, memory = OPERATIONS[d.op].operands, ub.typed[d.codes[1]]
    width = REPEAT_BYTES // memory.itemsize
    if d.form == COUNT and ub.soc.arch != 3510:  # what is short of a repeat takes no part
        d = d._replace(n=d.n // width * width)
    _, src0, src1, _ = (d.geometry(operand, lanes) for operand in d.operands)
    count = d.n if d.form == COUNT else width  # bits of a row
    nbytes, rows = -(-count // 8), len(src0.places)
    dst = Geometry(d.dst + np.arange(rows * nbytes).reshape(rows, nbytes), 1, d.dst)
    function, taken = COMPARISONS[d.extra], slice(None) if d.form == COUNT else lanes
    first, second, scalar = src0.elements, src1.elements, np.empty(1, memory.dtype)

    def keep(bits: Array) -> Array:
        every = np.zeros((rows, nbytes * 8), bits.dtype)
        every[:, :count][:, taken] = bits
        return every

    def compute(*scalars: float) -> None:
        if scalars:
            scalar[0] = scalars[0]
        bits = function(memory[first], scalar if scalars else memory[second])
        ub.data[dst.places] = np.packbits(keep(bits), axis=1, bitorder="little")

    def spread(parts: Sequence[Array]) -> Any:
        every = keep(np.maximum.reduce(list(parts)) % MAX_ORIGINS).reshape(rows, nbytes, 8)
        number, known_bits = every.max(axis=2), np.packbits(every == 0, axis=2, bitorder="little")[..., 0]
        return number + (number != 0) * known_bits.astype(np.uint16) * MAX_ORIGINS

    return Special(dst, (src0, src1) if operands is Operands.COMPARE else (src0,), BLOCK_BYTES, compute, spread)


def _select(d: Descriptor, ub: UnifiedBuffer, lanes: Array) -> Special:
    """src0 is selMask, src1 and src2 are the two to choose from; the strides are those of dst, src0 and src1."""
    operands, memory = OPERATIONS[d.op].operands, ub.typed[d.codes[0]]
    width = REPEAT_BYTES // memory.itemsize
    count = d.n if d.form == COUNT else width  # bits of a row
    target, _, src1, src2 = d.operands
    dst, first_source, other = (
        d.geometry(operand, lanes)
        for operand in (
            target,
            src1._replace(block=d.src0_block, repeat=d.src0_repeat),
            src2._replace(block=d.src1_block, repeat=d.src1_repeat),
        )
    )
    nbytes, rows = -(-count // 8), len(dst.places)
    if d.extra == ONE_MASK:
        nbytes = width // 8 if d.form == COUNT else nbytes
        chosen = Geometry(d.src0 + np.zeros((rows, 1), int) + np.arange(nbytes), 1, d.src0)
    else:
        chosen = Geometry(d.src0 + np.arange(rows * nbytes).reshape(rows, nbytes), 1, d.src0)
    into, first, second = dst.elements, first_source.elements, other.elements
    taken, scalar = slice(None) if d.form == COUNT else lanes, np.empty(1, memory.dtype)

    def bits() -> Any:
        if d.extra == ONE_MASK and d.form == COUNT:
            return np.resize(_bits(chosen, ub.data, width), (1, count))
        return _bits(chosen, ub.data, count)[:, taken]

    def compute(*scalars: float) -> None:
        if scalars:
            scalar[0] = scalars[0]
        memory[into] = np.where(bits(), memory[first], scalar if scalars else memory[second])

    def spread(parts: Sequence[Array]) -> Any:
        known_bits = np.unpackbits((parts[0] // MAX_ORIGINS).astype(np.uint8), axis=1, bitorder="little")
        by = np.repeat(parts[0] % MAX_ORIGINS, 8, axis=1) * (1 - known_bits)
        by = np.resize(by, (1, count)) if d.extra == ONE_MASK and d.form == COUNT else by[:, :count][:, taken]
        return np.maximum(by, np.where(bits(), parts[1], parts[2] if len(parts) > 2 else 0))

    sources = (chosen, first_source, other) if operands is Operands.SELECT else (chosen, first_source)
    return Special(dst, sources, BLOCK_BYTES, compute, spread)


def _gather(d: Descriptor, ub: UnifiedBuffer, lanes: Array) -> Special:
    code, _, offset_code, _ = d.codes
    memory, offsets = ub.typed[code], ub.typed[offset_code]
    size = memory.itemsize
    if d.form == COUNT:
        dst, by = contiguous(d.dst, d.n, size), contiguous(d.src1, d.n, 4)
    else:
        dst = repeated(d.dst, size, lanes, d.repeat, (1, d.dst_repeat))
        starts = d.src1 + np.arange(d.repeat)[:, None] * (REPEAT_BYTES // size * 4)
        by = Geometry(starts + lanes * 4, 4, d.src1)
    into, at = dst.elements, by.elements
    source = contiguous(d.src0, (d.src0_end - d.src0) // size, size)

    def places() -> Any:
        wanted = offsets[at].astype(np.int64) + d.extra
        last = int(wanted.max(initial=0)) + size
        if last > d.src0_end - d.src0:
            raise BoundsFault(
                f"Gather: src ends {d.src0_end - d.src0} bytes from its start, an offset reaches byte {last} "
                "[ErrorRead3]"
            )
        if (wanted % size).any():
            raise AlignmentFault(
                f"Gather: an offset must be a multiple of the {size} bytes of an element, one is {wanted[wanted % size > 0][0]}"
            )
        return wanted // size

    def compute() -> None:
        memory[into] = memory[d.src0 // size + places()]

    return Special(dst, (source, by), BLOCK_BYTES, compute, lambda parts: parts[0][0][places()])


def packed_cast(d: Descriptor, ub: UnifiedBuffer, lanes: Array) -> Special:
    """Cast between half and int4b_t, two of which lie in a byte, the first one low."""
    widening = d.codes[1] == INT4
    if d.form == COUNT:  # one repeat, of any length
        lanes, d = np.arange(d.n), d._replace(form=MASK, repeat=1, dst_block=1, src0_block=1)
    wide, narrow = d.operands[:2] if widening else d.operands[1::-1]
    half = d.geometry(wide, lanes)
    byte, first, of = np.unique(lanes // 2, return_index=True, return_inverse=True)
    pairs = repeated(narrow.start, 1, byte, d.repeat, (narrow.block, narrow.repeat))
    shift = (lanes % 2 * 4).astype(np.uint8)
    memory, values, at = ub.typed[CPP_NAMES.index("half")], half.elements, pairs.places[:, of]

    def compute() -> None:
        if widening:
            each = (ub.data[at] >> shift & 15).astype(np.int8)
            memory[values] = np.where(each > 7, each - 16, each)
            return
        rounded = round_to(memory[values], DTYPES[INT4], CAST_MODES[d.extra % 256]).astype(np.int8).view(np.uint8) & 15
        for half_of in (0, 4):  # the other one of a byte stays as it is
            halves = shift == half_of
            ub.data[at[:, halves]] = ub.data[at[:, halves]] & (240 >> half_of) | rounded[:, halves] << half_of

    def spread(parts: Sequence[Array]) -> Any:
        return parts[0][:, of] if widening else np.maximum.reduceat(parts[0], first, axis=1)

    dst, src = (half, pairs) if widening else (pairs, half)
    return Special(dst, (src,), BLOCK_BYTES, compute, spread)


SPECIAL: dict[Operands, Callable[[Descriptor, UnifiedBuffer, Array], Special]] = {
    Operands.BRCB: _brcb,
    Operands.REPEAT_REDUCE: _repeat_reduce,
    Operands.REDUCE: _reduce,
    Operands.COMPARE: _compare,
    Operands.COMPARE_SCALAR: _compare,
    Operands.SELECT: _select,
    Operands.SELECT_SCALAR: _select,
    Operands.GATHER: _gather,
}
