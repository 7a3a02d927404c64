"""What is computed with lanes, and scalars that become lanes.

Nothing here is contracted or reassociated: a product is fused into a sum where `fma` says so and nowhere else.
"""

import operator

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, lower_builtin, type_callable

from lngrad.cpu.jobs import GROUP, LANES
from lngrad.cpu.kernels.simd import F32, F64, I32, I64, Lanes, accumulator, like, splat_constant


@intrinsic
def in_order(typingctx, tag, group):
    """A group in the order of load_mixed, in the order of the columns."""

    def codegen(context, builder, signature, args):
        if signature.args[0] != types.uint16:
            return args[1]
        order = [half + column for column in range(GROUP // 2) for half in (0, GROUP // 2)]
        return builder.shuffle_vector(args[1], args[1], ir.Constant(ir.VectorType(I32, GROUP), order))

    return group(tag, group), codegen


@intrinsic
def scalar(typingctx, tag, value):
    """A number in the accumulator's dtype."""

    def codegen(context, builder, signature, args):
        return context.cast(builder, args[1], signature.args[1], signature.return_type)

    return accumulator(tag)(tag, value), codegen


@intrinsic
def zeros(typingctx, tag):
    """Zero in all lanes, in the accumulator's dtype."""

    def codegen(context, builder, signature, args):
        return splat_constant(F64 if signature.return_type.scalar == types.float64 else F32, 0.0)

    return Lanes(accumulator(tag))(tag), codegen


@intrinsic
def zeros_group(typingctx, tag):
    """Zero in GROUP lanes, in the accumulator's dtype."""

    def codegen(context, builder, signature, args):
        return splat_constant(F64 if signature.return_type.scalar == types.float64 else F32, 0.0, GROUP)

    return Lanes(accumulator(tag), GROUP)(tag), codegen


@intrinsic
def spread(typingctx, lanes):
    """GROUP lanes that all have the value of the first of `lanes`."""

    def codegen(context, builder, signature, args):
        return builder.shuffle_vector(args[0], args[0], ir.Constant(ir.VectorType(I32, GROUP), [0] * GROUP))

    return Lanes(lanes.scalar, GROUP)(lanes), codegen


@intrinsic(prefer_literal=True)
def vector_of(typingctx, group, number):
    """Eight lanes of a group: those of vector `number`, a literal from 0 to 3."""
    first = number.literal_value * LANES

    def codegen(context, builder, signature, args):
        mask = ir.Constant(ir.VectorType(I32, LANES), list(range(first, first + LANES)))
        return builder.shuffle_vector(args[0], args[0], mask)

    return Lanes(group.scalar)(group, number), codegen


@intrinsic
def from_bits(typingctx, bits):
    """The float64 that an int64 is the bits of."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], F64)

    return types.float64(types.int64), codegen


@intrinsic
def splat(typingctx, value):
    """The scalar in all lanes."""

    def codegen(context, builder, signature, args):
        return _splat(builder, args[0])

    return Lanes(value)(value), codegen


@intrinsic
def splat_group(typingctx, value):
    """The scalar in GROUP lanes."""

    def codegen(context, builder, signature, args):
        return _splat(builder, args[0], GROUP)

    return Lanes(value, GROUP)(value), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a·b + c, rounded once."""

    def codegen(context, builder, signature, args):
        kind = args[0].type
        name = f"llvm.fma.v{kind.count}f{32 if kind.element == F32 else 64}"
        function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(kind, [kind] * 3))
        return builder.call(function, args)

    return a(a, b, c), codegen


@intrinsic
def total(typingctx, lanes):
    """The sum of the lanes by a fixed tree: halves, quarters, neighbours."""

    def codegen(context, builder, signature, args):
        vector = args[0]
        width = LANES
        while width > 1:
            width //= 2
            low = ir.Constant(ir.VectorType(I32, width), list(range(width)))
            high = ir.Constant(ir.VectorType(I32, width), list(range(width, 2 * width)))
            vector = builder.fadd(
                builder.shuffle_vector(vector, vector, low), builder.shuffle_vector(vector, vector, high)
            )
        return builder.extract_element(vector, ir.Constant(I32, 0))

    return lanes.scalar(lanes), codegen


@intrinsic
def totals(typingctx, acc, address):
    """Lane r is `total` of the eight lanes at address + r vectors, by the same tree: 14 shuffles in place of 24."""

    def codegen(context, builder, signature, args):
        element = F64 if signature.return_type.scalar == types.float64 else F32
        base = builder.inttoptr(args[1], ir.VectorType(element, LANES).as_pointer())
        rows = [builder.load(builder.gep(base, [ir.Constant(I64, r)]), align=4) for r in range(LANES)]

        def pairs(a, b, low, high):
            low, high = (ir.Constant(ir.VectorType(I32, LANES), mask) for mask in (low, high))
            return builder.fadd(builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high))

        halves = [
            pairs(rows[r], rows[r + 4], [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]) for r in range(4)
        ]
        quarters = [
            pairs(halves[r], halves[r + 1], [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]) for r in (0, 2)
        ]
        return pairs(*quarters, [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15])

    return Lanes(accumulator(acc))(acc, types.int64), codegen


@intrinsic
def where_below(typingctx, value, limit, chosen, otherwise):
    """Lane by lane `chosen` where value < limit, else `otherwise`: also where value is a NaN."""

    def codegen(context, builder, signature, args):
        value, limit, chosen, otherwise = args
        return builder.select(builder.fcmp_ordered("<", value, limit), chosen, otherwise)

    return value(value, value, value, value), codegen


@intrinsic
def inverse_root(typingctx, lanes, eps):
    """1 / sqrt(lanes + eps) in float64, rounded once."""

    def codegen(context, builder, signature, args):
        lanes, eps = args
        wide = lanes if lanes.type.element == F64 else builder.fpext(lanes, like(lanes.type, F64))
        function = builder.module.declare_intrinsic(
            f"llvm.sqrt.v{LANES}f64", fnty=ir.FunctionType(wide.type, [wide.type])
        )
        root = builder.call(function, [builder.fadd(wide, _splat(builder, eps))])
        result = builder.fdiv(splat_constant(F64, 1.0), root)
        return result if lanes.type.element == F64 else builder.fptrunc(result, lanes.type)

    return lanes(lanes, types.float64), codegen


@intrinsic
def only(typingctx, lanes, first):
    """The lanes from number `first` on, and zero in those before."""

    def codegen(context, builder, signature, args):
        lanes, first = args
        width = I32 if lanes.type.element == F32 else I64  # of the mask, so that it is one register
        number = ir.Constant(ir.VectorType(width, LANES), list(range(LANES)))
        first = first if width == I64 else builder.trunc(first, width)
        keep = builder.icmp_signed(">=", number, _splat(builder, first))
        return builder.select(keep, lanes, splat_constant(lanes.type.element, 0.0))

    return lanes(lanes, types.int64), codegen


def _splat(builder, value, width=LANES):
    vector = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    vector = builder.insert_element(vector, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, width), [0] * width))


def _lower_operator(op, method):
    @type_callable(op)
    def _typing(context):
        def typer(a, b):
            if isinstance(a, Lanes) and a == b:
                return a
            return None

        return typer

    @lower_builtin(op, Lanes, Lanes)
    def _lowering(context, builder, signature, args):
        return getattr(builder, method)(*args)


_lower_operator(operator.add, "fadd")
_lower_operator(operator.sub, "fsub")
_lower_operator(operator.mul, "fmul")
_lower_operator(operator.truediv, "fdiv")
