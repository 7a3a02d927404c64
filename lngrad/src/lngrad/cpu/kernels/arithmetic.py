"""What is computed with lanes, and scalars that become lanes.

Nothing here is contracted or reassociated: a product is fused into a sum where `fma` says so and nowhere else.
"""

import math
import operator

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, lower_builtin, type_callable

from lngrad.cpu.jobs import GROUP, LANES
from lngrad.cpu.kernels.functions import lowered
from lngrad.cpu.kernels.simd import (
    F32,
    F64,
    I32,
    I64,
    Lanes,
    accumulator,
    columns_of,
    element_of,
    evens_back,
    evens_first,
    is_none,
    like,
    read_scalar,
    shuffle,
    splat_constant,
)


def _splat(builder, value, width=LANES):
    vector = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    vector = builder.insert_element(vector, value, ir.Constant(I32, 0))
    return shuffle(builder, vector, vector, [0] * width)


@lowered(lambda storage, group: group)
def in_order(builder, storage, group):
    """A group in the order of load_mixed, in the order of the columns."""
    return shuffle(builder, group, group, evens_back(GROUP)) if storage == types.uint16 else group


@lowered(lambda group: group)
def mixed_order(builder, group):
    """A group in the order of the columns, in that of load_mixed of bfloat16."""
    return shuffle(builder, group, group, evens_first(GROUP))


@lowered(lambda acc, value: accumulator(acc))
def scalar(builder, acc, value):
    """An integer, or a constant float64, in the accumulator's dtype."""
    if isinstance(value.type, ir.IntType):
        return builder.sitofp(value, element_of(acc))
    return value if value.type == element_of(acc) else builder.fptrunc(value, element_of(acc))


@lowered(lambda acc: Lanes(accumulator(acc)))
def zeros(builder, acc):
    """Zero in all lanes, in the accumulator's dtype."""
    return splat_constant(element_of(acc), 0.0)


@lowered(lambda acc: Lanes(accumulator(acc), GROUP))
def zeros_group(builder, acc):
    """Zero in GROUP lanes, in the accumulator's dtype."""
    return splat_constant(element_of(acc), 0.0, GROUP)


@lowered(lambda acc, kind: Lanes(accumulator(acc), columns_of(accumulator(acc), kind)))
def zeros_columns(builder, acc, kind):
    """Zero in as many lanes as load_columns has, in the accumulator's dtype."""
    return splat_constant(element_of(acc), 0.0, columns_of(accumulator(acc), kind))


@lowered(lambda lanes: types.none if lanes == types.none else Lanes(lanes.scalar, GROUP))
def spread(builder, lanes):
    """GROUP lanes that all have the value of the first of `lanes`, or None."""
    return None if is_none(lanes) else shuffle(builder, lanes, lanes, [0] * GROUP)


@intrinsic(prefer_literal=True)
def vector_of(typingctx, group, number):
    """Eight lanes of a group: those of vector `number`, a literal from 0 to 3."""
    first = number.literal_value * LANES

    def codegen(context, builder, signature, args):
        return shuffle(builder, args[0], args[0], range(first, first + LANES))

    return Lanes(group.scalar)(group, number), codegen


@lowered(lambda group: types.none if group == types.none else Lanes(group.scalar))
def first_vector(builder, group):
    """The first eight lanes of a group, or None."""
    return None if is_none(group) else shuffle(builder, group, group, range(LANES))


@lowered(types.float64)
def from_bits(builder, bits):
    """The float64 that an int64 is the bits of."""
    return builder.bitcast(bits, F64)


@lowered(lambda value: Lanes(value))
def splat(builder, value):
    """The scalar in all lanes."""
    return _splat(builder, value)


@lowered(lambda value: Lanes(value, GROUP))
def splat_group(builder, value):
    """The scalar in GROUP lanes."""
    return _splat(builder, value, GROUP)


def _splat_at(builder, acc, address, index, width):
    return None if is_none(address) else _splat(builder, read_scalar(builder, acc, address, index), width)


@lowered(lambda acc, kind, address, index: types.none if address == types.none else Lanes(acc, columns_of(acc, kind)))
def splat_at(builder, acc, kind, address, index):
    """An element of memory in as many lanes as load_columns has; None where the address is None."""
    return _splat_at(builder, acc, address, index, columns_of(acc, kind))


@lowered(lambda acc, address, index: types.none if address == types.none else Lanes(acc, GROUP))
def splat_group_at(builder, acc, address, index):
    """splat_at in GROUP lanes."""
    return _splat_at(builder, acc, address, index, GROUP)


@lowered(lambda x, mean: x)
def subtract_mean(builder, x, mean):
    """x - mean, or x where there is no mean."""
    return x if is_none(mean) else builder.fsub(x, mean)


@lowered(lambda centred, rstd, lost: centred)
def xhat_of(builder, centred, rstd, lost):
    """centred·rstd + lost, rounded once, or the product where there is no mean that could have lost anything.

    With a lost of -0.0 these are the bits of the product.
    """
    return builder.fmul(centred, rstd) if is_none(lost) else _fused(builder, centred, rstd, lost)


@lowered(lambda lanes, more: lanes)
def plus(builder, lanes, more):
    """lanes + more, or None."""
    return None if is_none(lanes) else builder.fadd(lanes, more)


@lowered(lambda a, b, c: c)
def fma(builder, a, b, c):
    """a·b + c, rounded once; None where c is None."""
    return None if is_none(c) else _fused(builder, a, b, c)


def _fused(builder, a, b, c):
    """What fma builds."""
    name = f"llvm.fma.v{a.type.count}f{32 if a.type.element == F32 else 64}"
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(a.type, [a.type] * 3))
    return builder.call(function, [a, b, c])


@lowered(lambda lanes: lanes.scalar)
def total(builder, lanes):
    """The sum of the lanes by a fixed tree: halves, quarters, neighbours."""
    width = LANES
    while width > 1:
        width //= 2
        low, high = (shuffle(builder, lanes, lanes, range(first, first + width)) for first in (0, width))
        lanes = builder.fadd(low, high)
    return builder.extract_element(lanes, ir.Constant(I32, 0))


@lowered(lambda acc, address: Lanes(accumulator(acc)))
def totals(builder, acc, address):
    """Lane r is `total` of the eight lanes at address + r vectors, by the same tree: 14 shuffles in place of 24."""
    base = builder.inttoptr(address, ir.VectorType(element_of(acc), LANES).as_pointer())
    rows = [builder.load(builder.gep(base, [ir.Constant(I64, r)]), align=4) for r in range(LANES)]

    def pairs(a, b, low, high):
        return builder.fadd(shuffle(builder, a, b, low), shuffle(builder, a, b, high))

    halves = [pairs(rows[r], rows[r + 4], [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]) for r in range(4)]
    quarters = [
        pairs(halves[r], halves[r + 1], [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]) for r in (0, 2)
    ]
    return pairs(*quarters, [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15])


@lowered(lambda value, limit, chosen, otherwise: value)
def where_below(builder, value, limit, chosen, otherwise):
    """Lane by lane `chosen` where value < limit, else `otherwise`: also where value is a NaN."""
    return builder.select(builder.fcmp_ordered("<", value, limit), chosen, otherwise)


@lowered(types.boolean)
def all_below(builder, value, limit):
    """Whether value < limit in every lane."""
    below = builder.fcmp_ordered("<", value, limit)
    mask = ir.IntType(value.type.count)
    return builder.icmp_unsigned("==", builder.bitcast(below, mask), ir.Constant(mask, -1))


@lowered(lambda lanes, eps: lanes)
def inverse_root(builder, lanes, eps):
    """1 / sqrt(lanes + eps) in float64, rounded once."""
    wide = lanes if lanes.type.element == F64 else builder.fpext(lanes, like(lanes.type, F64))
    function = builder.module.declare_intrinsic(f"llvm.sqrt.v{LANES}f64", fnty=ir.FunctionType(wide.type, [wide.type]))
    root = builder.call(function, [builder.fadd(wide, _splat(builder, eps))])
    result = builder.fdiv(splat_constant(F64, 1.0), root)
    return result if lanes.type.element == F64 else builder.fptrunc(result, lanes.type)


@lowered(lambda lanes: lanes)
def sigmoid(builder, lanes):
    """1 / (1 + exp(-lanes)), from e = exp(-|lanes|), which is a polynomial times a power of two: 2 units in the last place.

    With n·ln 2 the multiple nearest to the exponent, and ln 2 in two parts, the rest is below 0.35, where the terms of the
    exponential series end below a tenth of a unit. The power is first one that no number is subnormal with, added to the bits
    of the exponent, so that also subnormal numbers come out, rounded once, and 0 far below them. A NaN may
    give a number, but every caller multiplies that with the NaN.
    """
    kind, is_wide = lanes.type, lanes.type.element == F64
    digits, bias, terms = (52, 1023, 14) if is_wide else (23, 127, 8)
    bits = like(kind, I64 if is_wide else I32)

    def constant(value):
        return splat_constant(kind.element, value, kind.count)

    unit, magic = constant(1.0), constant(1.5 * 2.0**digits + bias - 1)
    is_negative = builder.fcmp_ordered("<", lanes, constant(0.0))
    exponent = builder.select(is_negative, lanes, builder.fneg(lanes))
    least = constant(-1.37 * bias)
    exponent = builder.select(builder.fcmp_ordered("<", exponent, least), least, exponent)
    shifted = _fused(builder, exponent, constant(1 / math.log(2)), magic)  # its last bits are n + bias - 1
    n = builder.fsub(shifted, magic)
    rest = _fused(builder, n, constant(-45426 / 65536), exponent)
    rest = _fused(builder, n, constant(-1.4286068203094172e-06), rest)
    e = constant(1 / math.factorial(terms - 1))
    for k in range(terms - 2, -1, -1):
        e = _fused(builder, e, rest, constant(1 / math.factorial(k)))
    power = builder.shl(builder.bitcast(shifted, bits), splat_constant(bits.element, digits, kind.count))
    e = builder.bitcast(builder.add(builder.bitcast(e, bits), power), kind)
    e = builder.fmul(e, constant(2.0 ** (1 - bias)))
    return builder.fdiv(builder.select(is_negative, e, unit), builder.fadd(unit, e))


@lowered(lambda lanes, sigma: lanes)
def silu_slope(builder, lanes, sigma):
    """The derivative of lanes·sigmoid(lanes), sigma being that sigmoid."""
    unit = splat_constant(lanes.type.element, 1.0, lanes.type.count)
    return builder.fmul(sigma, _fused(builder, lanes, builder.fsub(unit, sigma), unit))


@lowered(lambda lanes, first: lanes)
def mask_below(builder, lanes, first):
    """The lanes from number `first` on, and zero in those before."""
    width = I32 if lanes.type.element == F32 else I64  # of the mask, so that it is one register
    number = ir.Constant(ir.VectorType(width, LANES), list(range(LANES)))
    first = first if width == I64 else builder.trunc(first, width)
    keep = builder.icmp_signed(">=", number, _splat(builder, first))
    return builder.select(keep, lanes, splat_constant(lanes.type.element, 0.0))


def _lower_operator(op, method):
    @type_callable(op)
    def _typing(context):
        return lambda a, b: a if isinstance(a, Lanes) and a == b else None

    @lower_builtin(op, Lanes, Lanes)
    def _lowering(context, builder, signature, args):
        return getattr(builder, method)(*args)


_lower_operator(operator.add, "fadd")
_lower_operator(operator.sub, "fsub")
_lower_operator(operator.mul, "fmul")
_lower_operator(operator.truediv, "fdiv")
