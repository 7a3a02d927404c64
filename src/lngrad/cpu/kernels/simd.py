"""Lanes as a Numba type: explicit vectors, so that the order of every sum is written down and not the compiler's.

`load` widens what is stored (float16, bfloat16, float32, float64) to lanes of the accumulator's dtype, `store` rounds
once, to nearest even. Nothing here is contracted or reassociated: a product is fused into a sum where `fma` says so and
nowhere else. So the same source gives the same bits with AVX2, AVX-512 or NEON.

Arrays come in as addresses (int64), because then one compiled kernel serves read-only, negative-stride and foreign
memory alike. What lies at an address is told by a *tag*: a zero whose type names the storage, see `TAGS`.
"""

from functools import reduce

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.datamodel import PrimitiveModel, register_default
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from lngrad.cpu.jobs import GROUP, LANES, STREAM_ALIGNMENT

# What the processor has, as far as it decides how the same bits are computed.
_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
WIDE = "+avx512f" in _FEATURES  # 32 registers of 16 float32
_CONVERTS_BFLOAT16 = WIDE and all(f"+avx512{name}" in _FEATURES for name in ("bf16", "dq", "vl"))

LINE_BYTES = 64  # of a cache line, at most

# 16-bit storage is tagged by integers of its width, since Numba has no type for either format on the CPU.
TAGS = {"float16": np.int16(0), "bfloat16": np.uint16(0), "float32": np.float32(0), "float64": np.float64(0)}

_I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32, F64, _HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
_STORED = {types.int16: _HALF, types.uint16: _I16, types.float32: F32, types.float64: F64}


class Lanes(types.Type):
    """`width` values of `scalar` (float32 or float64). The compiler keeps them in as many registers as the machine needs."""

    def __init__(self, scalar, width=LANES):
        self.scalar, self.width = scalar, width
        super().__init__(name=f"Lanes({scalar}, {width})")


@register_default(Lanes)
class _LanesModel(PrimitiveModel):
    def __init__(self, manager, fe_type):
        element = F32 if fe_type.scalar == types.float32 else F64
        super().__init__(manager, fe_type, ir.VectorType(element, fe_type.width))


def accumulator(tag):
    return types.float64 if tag == types.float64 else types.float32


def splat_constant(element, value, width=LANES):
    return ir.Constant(ir.VectorType(element, width), [value] * width)


def _pointer(builder, address, index, element):
    base = builder.inttoptr(address, element.as_pointer())
    return builder.gep(base, [index])


def _widen(builder, stored, kind):
    """What was loaded from memory, scalar or vector, as the accumulator's dtype."""
    if kind == types.int16:
        return builder.fpext(stored, like(stored.type, F32))
    if kind == types.uint16:  # a bfloat16 is the upper half of a float32
        wide = builder.zext(stored, like(stored.type, I32))
        return builder.bitcast(builder.shl(wide, _constant_like(wide.type, 16)), like(stored.type, F32))
    return stored


def _narrow(builder, value, kind):
    """The accumulator's value as it is stored, rounded to nearest even."""
    if kind == types.int16:
        return builder.fptrunc(value, like(value.type, _HALF))
    if kind == types.uint16 and _CONVERTS_BFLOAT16 and isinstance(value.type, ir.VectorType):
        return _narrow_by_instruction(builder, value)
    return _narrow_by_arithmetic(builder, value, kind)


def _narrow_by_arithmetic(builder, value, kind):
    if kind == types.uint16:
        bits = builder.bitcast(value, like(value.type, I32))
        odd = builder.and_(builder.lshr(bits, _constant_like(bits.type, 16)), _constant_like(bits.type, 1))
        rounded = builder.add(bits, builder.add(odd, _constant_like(bits.type, 0x7FFF)))
        # The carry could turn a NaN into a zero; all ones is a NaN whatever it was.
        is_nan = builder.sext(builder.fcmp_unordered("uno", value, value), bits.type)
        upper = builder.lshr(builder.or_(rounded, is_nan), _constant_like(bits.type, 16))
        return builder.trunc(upper, like(value.type, _I16))
    return value


class _BFloat(ir.HalfType):
    """LLVM's bfloat, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def __str__(self):
        return "bfloat"


_BFloat._create_instance()
_CONVERTED = _BFloat() if binding.llvm_version_info >= (16,) else _I16  # what LLVM's intrinsic returns
_REGISTER = 16  # float32 in a wide register
_UNLIKE = 0x01 | 0x20 | 0x80  # of vfpclassps: quiet NaN, subnormal, signalling NaN


def _narrow_by_instruction(builder, value):
    """Lanes as bfloat16 by vcvtneps2bf16, but where its bits are not ours: it takes subnormals for zero and keeps NaNs."""
    module, count = builder.module, value.type.count
    width = min(count, _REGISTER)
    part, bits = ir.VectorType(F32, width), 32 * width
    narrow = cgutils.get_or_insert_function(
        module, ir.FunctionType(ir.VectorType(_CONVERTED, width), [part]), f"llvm.x86.avx512bf16.cvtneps2bf16.{bits}"
    )
    classify = cgutils.get_or_insert_function(
        module, ir.FunctionType(ir.VectorType(ir.IntType(1), width), [part, I32]), f"llvm.x86.avx512.fpclass.ps.{bits}"
    )
    parts = [
        builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, width), list(range(k, k + width))))
        for k in range(0, count, width)
    ]
    mask = ir.IntType(width)
    masks = [builder.bitcast(builder.call(classify, [one, ir.Constant(I32, _UNLIKE)]), mask) for one in parts]
    unlike = builder.icmp_unsigned("!=", reduce(builder.or_, masks), ir.Constant(mask, 0))
    before = builder.block
    with builder.if_then(unlike, likely=False):
        slow, rare = _narrow_by_arithmetic(builder, value, types.uint16), builder.block
    result = builder.phi(ir.VectorType(_I16, count))
    halves = ir.VectorType(_I16, width)
    with builder.goto_block(before):
        fast, *upper = (builder.bitcast(builder.call(narrow, [one]), halves) for one in parts)
        for half in upper:
            fast = builder.shuffle_vector(fast, half, ir.Constant(ir.VectorType(I32, count), list(range(count))))
    result.add_incoming(fast, before)
    result.add_incoming(slow, rare)
    return result


def like(shape, element):
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def _constant_like(shape, value):
    if isinstance(shape, ir.VectorType):
        return splat_constant(shape.element, value, shape.count)
    return ir.Constant(shape, value)


def _loading(width):
    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        element = _STORED[kind]
        pointer = builder.bitcast(
            _pointer(builder, args[1], args[2], element), ir.VectorType(element, width).as_pointer()
        )
        return _widen(builder, builder.load(pointer, align=1), kind)

    return codegen


@intrinsic
def load(typingctx, tag, address, index):
    """Lanes at elements index … index+7 of the memory at address."""
    return Lanes(accumulator(tag))(tag, types.int64, types.int64), _loading(LANES)


@intrinsic
def load_group(typingctx, tag, address, index):
    """GROUP lanes, from element index on."""
    return Lanes(accumulator(tag), GROUP)(tag, types.int64, types.int64), _loading(GROUP)


@intrinsic
def load_mixed(typingctx, tag, address, index):
    """load_group in an order of its own, which `in_order` undoes: for sums over groups, lane by lane.

    Two bfloat16 in a word of 32 bits are widened by a shift and by a mask, in place: first all even columns of the group,
    then all odd ones. In order each would move to a word of its own first.
    """

    def codegen(context, builder, signature, args):
        if signature.args[0] != types.uint16:
            return _loading(GROUP)(context, builder, signature, args)
        words = ir.VectorType(I32, GROUP // 2)
        stored = builder.load(builder.bitcast(_pointer(builder, args[1], args[2], _I16), words.as_pointer()), align=1)
        halves = ir.VectorType(F32, GROUP // 2)
        even = builder.bitcast(builder.shl(stored, _constant_like(words, 16)), halves)
        odd = builder.bitcast(builder.and_(stored, _constant_like(words, 0xFFFF0000)), halves)
        return builder.shuffle_vector(even, odd, ir.Constant(ir.VectorType(I32, GROUP), list(range(GROUP))))

    return Lanes(accumulator(tag), GROUP)(tag, types.int64, types.int64), codegen


def _fit(builder, value, kind):
    """A number or lanes in the dtype that _narrow takes for this storage; float32 sums may go to float64 and back."""
    wanted = F64 if kind == types.float64 else F32
    if like(value.type, wanted) == value.type:
        return value
    if wanted == F64:
        return builder.fpext(value, like(value.type, F64))
    near = builder.fptrunc(value, like(value.type, F32))
    return near if kind == types.float32 else _to_odd(builder, near, value)


def _to_odd(builder, near, exact):
    """The float32 on either side of a float64 whose last bit is 1, or itself: rounding that to 16 bits is one rounding."""
    back, bits = builder.fpext(near, exact.type), builder.bitcast(near, like(near.type, I32))
    above, below = (builder.fcmp_ordered(sign, back, exact) for sign in "><")
    beyond = builder.select(builder.fcmp_ordered(">", exact, _constant_like(exact.type, 0.0)), above, below)
    inexact = builder.fcmp_ordered("!=", back, exact)
    towards_zero = builder.sub(bits, builder.zext(beyond, bits.type))
    return builder.bitcast(builder.or_(towards_zero, builder.zext(inexact, bits.type)), near.type)


def stored_as(builder, raw, source, target):
    """Bits that are stored as the tag `source` says, a number's or lanes', as bits that are stored as `target` says."""
    if source == target:
        return raw
    wide = _widen(builder, builder.bitcast(raw, like(raw.type, _STORED[source])), source)
    value = _narrow(builder, _fit(builder, wide, target), target)
    return builder.bitcast(value, like(raw.type, ir.IntType(target.bitwidth)))


def _store_lanes(align_of, nontemporal):
    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        element = _STORED[kind]
        width = args[3].type.count
        pointer = builder.bitcast(
            _pointer(builder, args[1], args[2], element), ir.VectorType(element, width).as_pointer()
        )
        lanes = _fit(builder, args[3], kind)
        instruction = builder.store(_narrow(builder, lanes, kind), pointer, align=align_of(kind))
        if nontemporal:
            instruction.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
        return context.get_dummy_value()

    return codegen


@intrinsic
def store(typingctx, tag, address, index, lanes):
    """Round lanes to the storage and write them at elements index … index+7."""
    return types.void(tag, types.int64, types.int64, lanes), _store_lanes(lambda kind: 1, False)


@intrinsic
def stream(typingctx, tag, address, index, lanes):
    """Like store, past the caches. The caller has aligned the element at index to STREAM_ALIGNMENT."""
    return types.void(tag, types.int64, types.int64, lanes), _store_lanes(lambda kind: STREAM_ALIGNMENT, True)


@intrinsic
def fetch_group(typingctx, tag, address, index):
    """Ask for the cache lines of GROUP elements into the first-level cache; an address that is no memory is no fault."""

    def codegen(context, builder, signature, args):
        tag = signature.args[0]
        byte = ir.IntType(8).as_pointer()
        first = builder.ptrtoint(_pointer(builder, args[1], args[2], _STORED[tag]), I64)
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, first_level, data = (ir.Constant(I32, value) for value in (0, 3, 1))
        for offset in range(0, GROUP * tag.bitwidth // 8, LINE_BYTES):
            line = builder.inttoptr(builder.add(first, ir.Constant(I64, offset)), byte)
            builder.call(function, [line, read, first_level, data])
        return context.get_dummy_value()

    return types.void(tag, types.int64, types.int64), codegen


@intrinsic
def gather(typingctx, tag, address, index, stride, count):
    """Lane l < count comes from element index + l·stride; the other lanes are zero."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        element = _STORED[kind]
        _, address, index, stride, count = args
        vector = builder.alloca(ir.VectorType(element, LANES))
        builder.store(ir.Constant(ir.VectorType(element, LANES), None), vector)
        full = builder.icmp_signed(">=", count, ir.Constant(I64, LANES))
        with builder.if_else(full) as (all_lanes, some_lanes):
            with all_lanes:
                value = ir.Constant(ir.VectorType(element, LANES), ir.Undefined)
                for lane in range(LANES):
                    at = builder.add(index, builder.mul(stride, ir.Constant(I64, lane)))
                    item = builder.load(_pointer(builder, address, at, element), align=1)
                    value = builder.insert_element(value, item, ir.Constant(I32, lane))
                builder.store(value, vector)
            with some_lanes, cgutils.for_range(builder, count) as loop:
                at = builder.add(index, builder.mul(stride, loop.index))
                item = builder.load(_pointer(builder, address, at, element), align=1)
                builder.store(builder.insert_element(builder.load(vector), item, loop.index), vector)
        return _widen(builder, builder.load(vector), kind)

    return Lanes(accumulator(tag))(tag, *[types.int64] * 4), codegen


@intrinsic
def scatter_rows(typingctx, tag, address, index, stride, count, lanes):
    """Round lane l < count and write it at element index + l·stride."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        element = _STORED[kind]
        _, address, index, stride, count, lanes = args
        vector = _narrow(builder, lanes, kind)
        full = builder.icmp_signed(">=", count, ir.Constant(I64, LANES))
        with builder.if_else(full) as (all_lanes, some_lanes):
            with all_lanes:
                for lane in range(LANES):
                    at = builder.add(index, builder.mul(stride, ir.Constant(I64, lane)))
                    item = builder.extract_element(vector, ir.Constant(I32, lane))
                    builder.store(item, _pointer(builder, address, at, element), align=1)
            with some_lanes, cgutils.for_range(builder, count) as loop:
                at = builder.add(index, builder.mul(stride, loop.index))
                pointer = _pointer(builder, address, at, element)
                builder.store(builder.extract_element(vector, loop.index), pointer, align=1)
        return context.get_dummy_value()

    return types.void(tag, *[types.int64] * 4, lanes), codegen


@intrinsic
def load_scalar(typingctx, tag, address, index):
    """One element, widened to the accumulator's dtype."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        pointer = _pointer(builder, args[1], args[2], _STORED[kind])
        return _widen(builder, builder.load(pointer, align=1), kind)

    return accumulator(tag)(tag, types.int64, types.int64), codegen


@intrinsic
def store_scalar(typingctx, tag, address, index, value):
    """One element, rounded to the storage."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        value = _fit(builder, args[3], kind)
        builder.store(_narrow(builder, value, kind), _pointer(builder, args[1], args[2], _STORED[kind]), align=1)
        return context.get_dummy_value()

    return types.void(tag, types.int64, types.int64, value), codegen


@intrinsic
def size_of(typingctx, tag):
    """Bytes of one stored element."""

    def codegen(context, builder, signature, args):
        return ir.Constant(I64, signature.args[0].bitwidth // 8)

    return types.int64(tag), codegen


@intrinsic
def given(typingctx, wanted, value):
    """value, or None where `wanted` is None: a choice made when the kernel is compiled."""
    if wanted == types.none:
        return types.none(wanted, value), lambda context, builder, signature, args: context.get_dummy_value()
    return value(wanted, value), lambda context, builder, signature, args: args[1]


@intrinsic(prefer_literal=True)
def room(typingctx, acc, vectors):
    """The address of memory for so many vectors, a literal, which is the caller's until it returns."""
    number = vectors.literal_value

    def codegen(context, builder, signature, args):
        element = F64 if acc == types.float64 else F32
        kind = ir.ArrayType(ir.VectorType(element, LANES), number)
        with builder.goto_entry_block():  # cgutils.alloca_once would fill it with zeros at every call
            memory = builder.alloca(kind)
        return builder.ptrtoint(memory, I64)

    return types.int64(acc, vectors), codegen
