"""Plans of the instructions that are not elementwise: Brcb, WholeReduceSum, ReduceSum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lngrad.ascend.device.element_types import DTYPES
from lngrad.ascend.device.geometry import Geometry, contiguous, repeated
from lngrad.ascend.device.operations import Kind, Operation
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
from lngrad.ascend.device.summation import REPEAT_BYTES, pairwise_sum, reduce_sum, repeat_sums
from lngrad.ascend.device.unified_buffer import UnifiedBuffer
from lngrad.ascend.faults import OverlapFault


def _brcb_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> Plan:
    code = types_of(d.types)[0]
    size = DTYPES[code].itemsize
    if d.repeat == 0:
        return Plan(operation, d.op, Access("dst", d.dst, ()), (), nothing, ())
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

    write, read = Access("dst", d.dst, dst.runs()), Access("src", d.src0, src.runs())
    return Plan(operation, d.op, write, (read,), brcb, ())


def _whole_reduce_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> Plan:
    code = types_of(d.types)[0]
    size = DTYPES[code].itemsize
    lanes = selected_lanes(operation.name, d, size)
    if d.repeat == 0:
        return Plan(operation, d.op, Access("dst", d.dst, ()), (), nothing, ())
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

    write, read = Access("dst", d.dst, dst.runs()), Access("src", d.src0, src.runs())
    return Plan(operation, d.op, write, (read,), whole_reduce, ())


def _reduce_plan(operation: Operation, d: Descriptor, ub: UnifiedBuffer, names: Names) -> Plan:
    code = types_of(d.types)[0]
    size, arch = DTYPES[code].itemsize, ub.soc.arch
    if (d.n if d.form == COUNT else d.repeat) == 0:
        return Plan(operation, d.op, Access("dst", d.dst, ()), (), nothing, ())
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

    write, read = Access("dst", d.dst, ((d.dst, d.dst + size),)), Access("src", d.src0, src.runs())
    return Plan(operation, d.op, write, (read,), reduce, ())


SPECIAL: dict[Kind, Callable[[Operation, Descriptor, UnifiedBuffer, Names], Plan]] = {
    Kind.BRCB: _brcb_plan,
    Kind.WHOLE_REDUCE: _whole_reduce_plan,
    Kind.REDUCE: _reduce_plan,
}
