"""Lanes as a Numba type: explicit vectors, so that the order of every sum is written down and not the compiler's.

`load` widens what is stored (float16, bfloat16, float32, float64) to lanes of the accumulator's dtype, `store` rounds
once, to nearest even. Nothing here is contracted or reassociated: a product is fused into a sum where `fma` says so and
nowhere else. So the same source gives the same bits with AVX2, AVX-512 or NEON.

Arrays come in as addresses (int64), because then one compiled kernel serves read-only, negative-stride and foreign
memory alike. A *storage* says how elements lie there: a zero whose type names their dtype, see `STORAGES`.
"""

from functools import partial, reduce

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.datamodel import PrimitiveModel, register_default
from numba.extending import intrinsic

from lngrad.cpu.jobs import GROUP, LANES, STREAM_ALIGNMENT
from lngrad.cpu.kernels.functions import FEATURES, lowered
from lngrad.cpu.processors import ARCHITECTURE


def choices(architecture: str, features: str) -> tuple[bool, bool, bool]:
    """What a processor has, as far as it decides how the same bits are computed: 32 registers of 16 float32, instructions that
    convert float16, and that convert bfloat16."""
    has = features.split(",")
    wide = "+avx512f" in has
    float16 = architecture != "x86_64" or "+f16c" in has or wide
    return wide, float16, wide and all(f"+avx512{name}" in has for name in ("bf16", "dq", "vl"))


WIDE, _CONVERTS_FLOAT16, _CONVERTS_BFLOAT16 = choices(ARCHITECTURE, FEATURES)

LINE_BYTES = 64  # of a cache line, at most

# Columns that a pass over several rows takes in one step, short or long, named by the type of a zero. Their sums and gamma stay
# in registers from row to row, so three such vectors and what is computed from a fourth must fit: into 32 registers of 64
# bytes, or 16 of 32. A row's five numbers are read once a step, beside four vectors of dy and x or, in a long one, eight.
# PAIRED is a long step whose bfloat16 columns are in the order of load_mixed.
SHORT, LONG, PAIRED = np.int8(0), np.int16(0), np.uint8(0)
STEP = {
    (types.float32, types.int8): GROUP if WIDE else 2 * LANES,
    (types.float32, types.int16): 2 * GROUP if WIDE else 2 * LANES,
    (types.float32, types.uint8): 2 * GROUP if WIDE else 2 * LANES,
    (types.float64, types.int8): GROUP if WIDE else LANES,
    (types.float64, types.int16): GROUP if WIDE else LANES,
    (types.float32, types.int32): GROUP if WIDE else 2 * LANES,
    (types.float32, types.int64): 2 * LANES,
    (types.float64, types.int64): 2 * LANES if WIDE else LANES,
}

PAIRED_COLUMNS = GROUP if WIDE else 2 * LANES  # of which load_mixed has all even ones first: a register of their pairs

# 16-bit storages are integers of its width, since Numba has no type for either format on the CPU.
STORAGES = {"float16": np.int16(0), "bfloat16": np.uint16(0), "float32": np.float32(0), "float64": np.float64(0)}
PAIRS = STORAGES["bfloat16"]  # whose columns load_mixed takes in pairs

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


def accumulator(storage):
    return types.float64 if storage == types.float64 else types.float32


def element_of(acc):
    return F64 if acc == types.float64 else F32


def splat_constant(element, value, width=LANES):
    return ir.Constant(ir.VectorType(element, width), [value] * width)


def _pointer(builder, address, index, element):
    base = builder.inttoptr(address, element.as_pointer())
    return builder.gep(base, [index])


def _widen(builder, stored, kind):
    """What was loaded from memory, scalar or vector, as the accumulator's dtype."""
    if kind == types.int16 and not _CONVERTS_FLOAT16:
        return _widen_by_arithmetic(builder, stored)
    if kind == types.int16:
        return builder.fpext(stored, like(stored.type, F32))
    if kind == types.uint16:  # a bfloat16 is the upper half of a float32
        wide = builder.zext(stored, like(stored.type, I32))
        return builder.bitcast(builder.shl(wide, _constant_like(wide.type, 16)), like(stored.type, F32))
    return stored


def _narrow(builder, value, kind):
    """The accumulator's value as it is stored, rounded to nearest even."""
    if kind == types.int16 and not _CONVERTS_FLOAT16:
        return _narrow_to_half_by_arithmetic(builder, value)
    if kind == types.int16:
        return builder.fptrunc(value, like(value.type, _HALF))
    if kind == types.uint16 and _CONVERTS_BFLOAT16 and isinstance(value.type, ir.VectorType):
        return _narrow_by_instruction(builder, value)
    return _narrow_by_arithmetic(builder, value, kind)


def _widen_by_arithmetic(builder, stored):
    """float16 as float32 without F16C: LLVM would call a function that the C library does not have."""
    word = like(stored.type, I32)
    constant = partial(_constant_like, word)
    bits = builder.zext(builder.bitcast(stored, like(stored.type, _I16)), word)
    magnitude = builder.and_(bits, constant(0x7FFF))
    shifted = builder.shl(magnitude, constant(13))
    normal = builder.add(shifted, constant(112 << 23))  # the exponents' biases are 15 and 127
    units = builder.uitofp(magnitude, like(word, F32))
    subnormal = builder.bitcast(builder.fmul(units, _constant_like(units.type, 2.0**-24)), word)
    quiet = builder.select(
        builder.icmp_unsigned(">", magnitude, constant(0x7C00)), constant(0x7FC00000), constant(0x7F800000)
    )
    result = builder.select(builder.icmp_unsigned("<", magnitude, constant(0x400)), subnormal, normal)
    result = builder.select(
        builder.icmp_unsigned(">=", magnitude, constant(0x7C00)), builder.or_(quiet, shifted), result
    )
    sign = builder.shl(builder.and_(bits, constant(0x8000)), constant(16))
    return builder.bitcast(builder.or_(result, sign), units.type)


def _narrow_to_half_by_arithmetic(builder, value):
    """float32 as float16 without F16C, rounded to nearest even."""
    word = like(value.type, I32)
    constant = partial(_constant_like, word)
    bits = builder.bitcast(value, word)
    magnitude = builder.and_(bits, constant(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, constant(13)), constant(1))
    rounded = builder.add(magnitude, builder.add(odd, constant(0xFFF - (112 << 23))))
    normal = builder.lshr(rounded, constant(13))
    # A unit of 0.5 is the least float16, so adding 0.5 rounds to a multiple of that.
    half = _constant_like(value.type, 0.5)
    sum_bits = builder.bitcast(builder.fadd(builder.bitcast(magnitude, value.type), half), word)
    subnormal = builder.sub(sum_bits, constant(0x3F000000))
    payload = builder.or_(constant(0x7E00), builder.and_(builder.lshr(magnitude, constant(13)), constant(0x3FF)))
    result = builder.select(builder.icmp_unsigned("<", magnitude, constant(0x38800000)), subnormal, normal)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, constant(0x477FF000)), constant(0x7C00), result)
    result = builder.select(builder.icmp_unsigned(">", magnitude, constant(0x7F800000)), payload, result)
    result = builder.or_(result, builder.and_(builder.lshr(bits, constant(16)), constant(0x8000)))
    return builder.bitcast(builder.trunc(result, like(word, _I16)), like(word, _HALF))


def _narrow_by_arithmetic(builder, value, kind):
    if kind == types.uint16:
        upper = builder.lshr(_rounded_to_bfloat16(builder, value), _constant_like(like(value.type, I32), 16))
        return builder.trunc(upper, like(value.type, _I16))
    return value


def _rounded_to_bfloat16(builder, value):
    """Words whose upper halves are float32 values as bfloat16."""
    bits = builder.bitcast(value, like(value.type, I32))
    odd = builder.and_(builder.lshr(bits, _constant_like(bits.type, 16)), _constant_like(bits.type, 1))
    rounded = builder.add(bits, builder.add(odd, _constant_like(bits.type, 0x7FFF)))
    # The carry could turn a NaN into a zero; all ones is a NaN whatever it was.
    return builder.or_(rounded, builder.sext(builder.fcmp_unordered("uno", value, value), bits.type))


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
    count = value.type.count
    width = min(count, _REGISTER)
    parts = [shuffle(builder, value, value, range(k, k + width)) for k in range(0, count, width)]
    mask, name = ir.IntType(width), f"llvm.x86.avx512.fpclass.ps.{32 * width}"
    classify = _declared(builder, name, ir.VectorType(ir.IntType(1), width), parts[0].type, I32)
    masks = [builder.bitcast(builder.call(classify, [part, ir.Constant(I32, _UNLIKE)]), mask) for part in parts]
    unlike = builder.icmp_unsigned("!=", reduce(builder.or_, masks), ir.Constant(mask, 0))
    before = builder.block
    with builder.if_then(unlike, likely=False):
        slow, rare = _narrow_by_arithmetic(builder, value, types.uint16), builder.block
    result = builder.phi(ir.VectorType(_I16, count))
    with builder.goto_block(before):
        near = _joined(builder, [_converted(builder, *parts[k : k + 2]) for k in range(0, len(parts), 2)])
    result.add_incoming(near, before)
    result.add_incoming(slow, rare)
    return result


def _converted(builder, low, high=None):
    """One or two registers of float32 as bfloat16, by one instruction."""
    kind, count = low.type, low.type.count * (1 if high is None else 2)
    name = f"llvm.x86.avx512bf16.cvtne{'' if high is None else '2'}ps2bf16.{32 * kind.count}"
    arguments = [low] if high is None else [high, low]
    convert = _declared(builder, name, ir.VectorType(_CONVERTED, count), *[kind] * len(arguments))
    return builder.bitcast(builder.call(convert, arguments), ir.VectorType(_I16, count))


def _declared(builder, name, result, *arguments):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def shuffle(builder, a, b, order):
    """The lanes with these numbers, b's being those behind a's."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), list(order)))


def _joined(builder, parts):
    """Vectors of one width behind each other; a power of two of them."""
    while len(parts) > 1:
        parts = [shuffle(builder, a, b, range(2 * a.type.count)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def evens_first(columns):
    """The columns in the order of load_mixed: of each unit the even ones, then the odd ones."""
    units = [range(start, start + PAIRED_COLUMNS) for start in range(0, columns, PAIRED_COLUMNS)]
    return [column for unit in units for column in (*unit[::2], *unit[1::2])]


def evens_back(columns):
    """The place of each column in that order."""
    order = evens_first(columns)
    return [order.index(column) for column in range(columns)]


def _load_pairs(builder, address, index, width):
    """bfloat16 columns in the order of load_mixed."""
    words = ir.VectorType(I32, width // 2)
    stored = builder.load(builder.bitcast(_pointer(builder, address, index, _I16), words.as_pointer()), align=1)
    even = builder.bitcast(builder.shl(stored, _constant_like(words, 16)), like(words, F32))
    odd = builder.bitcast(builder.and_(stored, _constant_like(words, 0xFFFF0000)), like(words, F32))
    order = [column // 2 + column % 2 * (width // 2) for column in evens_first(width)]
    return shuffle(builder, even, odd, order)


def _narrow_pairs(builder, value):
    """float32 in the order of load_mixed as bfloat16 in the order of the columns."""
    if not _CONVERTS_BFLOAT16:
        return _narrow_pairs_by_arithmetic(builder, value)
    near = _narrow_by_instruction(builder, value)
    return shuffle(builder, near, near, evens_back(value.type.count))


def _narrow_pairs_by_arithmetic(builder, value):
    """_narrow_pairs in words of two columns, so that no half has to be moved."""
    count = value.type.count
    rounded, order = _rounded_to_bfloat16(builder, value), evens_back(count)
    even, odd = (shuffle(builder, rounded, rounded, half) for half in (order[::2], order[1::2]))
    lower = builder.lshr(even, _constant_like(even.type, 16))
    words = builder.or_(lower, builder.and_(odd, _constant_like(odd.type, 0xFFFF0000)))
    return builder.bitcast(words, ir.VectorType(_I16, count))


def like(shape, element):
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def _constant_like(shape, value):
    if isinstance(shape, ir.VectorType):
        return splat_constant(shape.element, value, shape.count)
    return ir.Constant(shape, value)


def _load(builder, storage, address, index, width):
    if is_none(address):
        return None
    pointer = builder.bitcast(
        _pointer(builder, address, index, _STORED[storage]), ir.VectorType(_STORED[storage], width).as_pointer()
    )
    return _widen(builder, builder.load(pointer, align=1), storage)


def read_scalar(builder, storage, address, index):
    """What load_scalar builds."""
    return _widen(builder, builder.load(_pointer(builder, address, index, _STORED[storage]), align=1), storage)


def _lanes_if(address, storage, width=LANES):
    return types.none if address == types.none else Lanes(accumulator(storage), width)


def is_none(value):
    """Whether an LLVM value stands for None, which is known when a kernel is compiled."""
    return isinstance(value.type, ir.PointerType)


@lowered(lambda storage, address, index: _lanes_if(address, storage))
def load(builder, storage, address, index):
    """Lanes at elements index … index+7 of the memory at address; None where that is None."""
    return _load(builder, storage, address, index, LANES)


@lowered(lambda storage, address, index: _lanes_if(address, storage, GROUP))
def load_group(builder, storage, address, index):
    """GROUP lanes, from element index on; None where the address is None."""
    return _load(builder, storage, address, index, GROUP)


@lowered(lambda storage, address, index: Lanes(accumulator(storage), GROUP))
def load_mixed(builder, storage, address, index):
    """load_group in an order of its own, which `in_order` undoes, and store_columns as it stores: sums are lane by lane.

    Two bfloat16 in a word of 32 bits are widened by a shift and by a mask, in place: of PAIRED_COLUMNS columns first all even
    ones, then all odd ones. In order each would move to a word of its own first.
    """
    if storage != types.uint16:
        return _load(builder, storage, address, index, GROUP)
    return _load_pairs(builder, address, index, GROUP)


def _is_paired(storage, kind):
    """Whether columns of this kind are in the order of load_mixed."""
    return storage == types.uint16 and kind == types.uint8


def columns_of(acc, kind):
    """The number of columns: eight where `kind` is None's, else a step of sums in `acc`."""
    return LANES if kind == types.none else STEP[acc, kind]


@lowered(lambda storage: types.int32 if storage.bitwidth == 16 else types.int64)
def rows_of_line(builder, storage):
    """What load_columns takes so many rows with whose elements are a cache line, as far as registers allow."""
    return ir.Constant(I32 if storage.bitwidth == 16 else I64, 0)


@lowered(types.int64)
def step_of(builder, acc, kind):
    """The number of columns of load_columns."""
    return ir.Constant(I64, columns_of(acc, kind))


@lowered(lambda storage, kind, address, index: _lanes_if(address, storage, columns_of(accumulator(storage), kind)))
def load_columns(builder, storage, kind, address, index):
    """A step of columns from element index on, eight where `kind` is None, bfloat16 in the order of load_mixed where it is
    PAIRED; None where the address is None."""
    if _is_paired(storage, kind) and not is_none(address):
        return _load_pairs(builder, address, index, columns_of(types.float32, kind))
    return _load(builder, storage, address, index, columns_of(accumulator(storage), kind))


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
    """Bits that are stored as `source` says, a number's or lanes', as bits that are stored as `target` says."""
    if source == target:
        return raw
    wide = _widen(builder, builder.bitcast(raw, like(raw.type, _STORED[source])), source)
    value = _narrow(builder, _fit(builder, wide, target), target)
    return builder.bitcast(value, like(raw.type, ir.IntType(target.bitwidth)))


def _stored(builder, storage, kind, address, index, lanes):
    """Lanes as they are stored, and a pointer to their place; `kind` is that of load_columns."""
    if _is_paired(storage, kind):
        value = _narrow_pairs(builder, lanes)
    else:
        value = _narrow(builder, _fit(builder, lanes, storage), storage)
    pointer = _pointer(builder, address, index, _STORED[storage])
    return value, builder.bitcast(pointer, value.type.as_pointer())


@lowered(types.void)
def store(builder, storage, address, index, lanes):
    """Round lanes to the storage and write them at elements index … index+7; nothing where one of both is None."""
    _store(builder, storage, types.none, address, index, lanes)


@lowered(types.void)
def store_columns(builder, storage, kind, address, index, lanes):
    """store of what load_columns has, or what came of it; PAIRED columns are put in order."""
    _store(builder, storage, kind, address, index, lanes)


def _store(builder, storage, kind, address, index, lanes):
    if is_none(address) or is_none(lanes):
        return
    value, pointer = _stored(builder, storage, kind, address, index, lanes)
    builder.store(value, pointer, align=1)


@lowered(types.void)
def stream_columns(builder, storage, kind, address, index, lanes):
    """Like store_columns, past the caches. The caller has aligned the element at index to STREAM_ALIGNMENT.

    As words, behind a fence that LLVM does not look through: with AVX512_FP16 it stores halves into the caches whatever it is
    told, and with AVX2 sixteen bytes at a time.
    """
    value, pointer = _stored(builder, storage, kind, address, index, lanes)
    words = ir.VectorType(F32, lanes.type.count * storage.bitwidth // 32)
    shape = ir.FunctionType(words, [words])
    fence = builder.module.declare_intrinsic(f"llvm.arithmetic.fence.v{words.count}f32", fnty=shape)
    value = builder.call(fence, [builder.bitcast(value, words)])
    pointer = builder.bitcast(pointer, words.as_pointer())
    instruction = builder.store(value, pointer, align=min(STREAM_ALIGNMENT, 4 * words.count))
    instruction.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def _fetch(builder, address, to_write):
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    write, first_level, data = (ir.Constant(I32, value) for value in (to_write, 3, 1))
    builder.call(function, [builder.inttoptr(address, byte), write, first_level, data])


@lowered(types.void)
def fetch_line(builder, address):
    """Ask for a cache line into the first-level cache; an address that is no memory is no fault."""
    _fetch(builder, address, to_write=0)


def _fetch_group(builder, storage, address, index, to_write):
    first = builder.ptrtoint(_pointer(builder, address, index, _STORED[storage]), I64)
    for offset in range(0, GROUP * storage.bitwidth // 8, LINE_BYTES):
        _fetch(builder, builder.add(first, ir.Constant(I64, offset)), to_write)


@lowered(types.void)
def fetch_group(builder, storage, address, index):
    """fetch_line for the lines of GROUP elements."""
    _fetch_group(builder, storage, address, index, to_write=0)


@lowered(types.void)
def fetch_group_to_write(builder, storage, address, index):
    """fetch_group, and take the lines from all other caches, so that a store need not wait for them."""
    _fetch_group(builder, storage, address, index, to_write=1)


def _strided(builder, storage, address, index, stride, lane):
    """A pointer to element index + lane·stride."""
    return _pointer(builder, address, builder.add(index, builder.mul(stride, lane)), _STORED[storage])


@lowered(lambda storage, address, index, stride, count: _lanes_if(address, storage))
def gather(builder, storage, address, index, stride, count):
    """Lane l < count comes from element index + l·stride, the other lanes are zero; None where the address is None."""
    if is_none(address):
        return None
    place = partial(_strided, builder, storage, address, index, stride)
    kind = ir.VectorType(_STORED[storage], LANES)
    vector = builder.alloca(kind)
    builder.store(ir.Constant(kind, None), vector)
    full = builder.icmp_signed(">=", count, ir.Constant(I64, LANES))
    with builder.if_else(full) as (all_lanes, some_lanes):
        with all_lanes:
            value = ir.Constant(kind, ir.Undefined)
            for lane in range(LANES):
                item = builder.load(place(ir.Constant(I64, lane)), align=1)
                value = builder.insert_element(value, item, ir.Constant(I32, lane))
            builder.store(value, vector)
        with some_lanes, cgutils.for_range(builder, count) as loop:
            item = builder.load(place(loop.index), align=1)
            builder.store(builder.insert_element(builder.load(vector), item, loop.index), vector)
    return _widen(builder, builder.load(vector), storage)


@lowered(types.void)
def scatter_rows(builder, storage, address, index, stride, count, lanes):
    """Round lane l < count and write it at element index + l·stride."""
    place = partial(_strided, builder, storage, address, index, stride)
    vector = _narrow(builder, lanes, storage)
    full = builder.icmp_signed(">=", count, ir.Constant(I64, LANES))
    with builder.if_else(full) as (all_lanes, some_lanes):
        with all_lanes:
            for lane in range(LANES):
                item = builder.extract_element(vector, ir.Constant(I32, lane))
                builder.store(item, place(ir.Constant(I64, lane)), align=1)
        with some_lanes, cgutils.for_range(builder, count) as loop:
            pointer = place(loop.index)
            builder.store(builder.extract_element(vector, loop.index), pointer, align=1)


@lowered(lambda storage, address, index: accumulator(storage))
def load_scalar(builder, storage, address, index):
    """One element, widened to the accumulator's dtype."""
    return read_scalar(builder, storage, address, index)


@lowered(types.void)
def store_scalar(builder, storage, address, index, value):
    """One element, rounded to the storage."""
    value = _narrow(builder, _fit(builder, value, storage), storage)
    builder.store(value, _pointer(builder, address, index, _STORED[storage]), align=1)


@lowered(types.void)
def store_word(builder, address, index, value):
    """Write an int64."""
    builder.store(value, _pointer(builder, address, index, I64))


@lowered(lambda storage, mixed: types.int64 if storage == types.uint16 else types.none)
def mixed_of(builder, storage, mixed):
    """The number of columns of a row in the order of load_mixed; None for a storage that has one order alone."""
    return mixed if storage == types.uint16 else None


@lowered(lambda mixed: types.int16 if mixed == types.none else types.uint8)
def long_step(builder, mixed):
    """The kind of a long step: LONG, or PAIRED where columns are mixed."""
    return ir.Constant(_I16 if is_none(mixed) else ir.IntType(8), 0)


@lowered(lambda address, bytes: address)
def offset(builder, address, bytes):
    """An address so many bytes on, or None."""
    return None if is_none(address) else builder.add(address, bytes)


@lowered(types.int64)
def size_of(builder, storage):
    """Bytes of one stored element."""
    return ir.Constant(I64, storage.bitwidth // 8)


@intrinsic
def or_none(typingctx, wanted, value):
    """value, or None where `wanted` is None: a choice made when the kernel is compiled."""
    if wanted == types.none:
        return types.none(wanted, value), lambda context, builder, signature, args: context.get_dummy_value()
    return value(wanted, value), lambda context, builder, signature, args: args[1]


@intrinsic(prefer_literal=True)
def stack_vectors(typingctx, acc, vectors):
    """The address of memory for so many vectors, a literal, which is the caller's until it returns."""
    number = vectors.literal_value

    def codegen(context, builder, signature, args):
        kind = ir.ArrayType(ir.VectorType(element_of(acc), LANES), number)
        with builder.goto_entry_block():  # cgutils.alloca_once would fill it with zeros at every call
            memory = builder.alloca(kind)
        return builder.ptrtoint(memory, I64)

    return types.int64(acc, vectors), codegen
