"""Every elementwise row of the instruction table and every reduction against NumPy, over its types, forms and SoCs.

Types, forms and values are made from the table: a new row is tested by itself.
"""

from __future__ import annotations

import math
from operator import add, mul, neg, sub, truediv
from pathlib import Path

import numpy as np
import pytest

from device_harness import content, fill, tensor
from lngrad.errors import DtypeError
from lngrad_ascend import ascendc as asc
from lngrad_ascend import soc as socs
from lngrad_ascend.device.numerics import CODES, CPP_NAMES, DTYPES
from lngrad_ascend.device.operations import NUMBERS_OF, OPERATIONS, Operands
from lngrad_ascend.device.vector import mathematical
from lngrad_ascend.faults import BoundsFault, DeviceFault, OverlapFault
from tile_harness import check_same_bits

# What each elementwise row computes, one element at a time, in exact numbers.
FORMULAS = {
    "Add": add, "Sub": sub, "Mul": mul, "Div": truediv, "Max": max, "Min": min, "Adds": add, "Muls": mul, "Maxs": max,
    "Mins": min, "Sqrt": math.sqrt, "Rsqrt": lambda a: 1 / math.sqrt(a), "Exp": math.exp, "Abs": abs,
    "Reciprocal": lambda a: 1 / a, "Ln": math.log, "Relu": lambda a: max(a, 0), "And": lambda a, b: int(a) & int(b),
    "Or": lambda a, b: int(a) | int(b), "Not": lambda a: ~int(a), "Neg": neg, "AddRelu": lambda a, b: max(a + b, 0),
    "SubRelu": lambda a, b: max(a - b, 0), "AddReluCast": lambda a, b: max(a + b, 0),
    "SubReluCast": lambda a, b: max(a - b, 0), "MulCast": mul, "AbsSub": lambda a, b: abs(a - b),
    "LeakyRelu": lambda a, b: a if a >= 0 else a * b, "ShiftLeft": lambda a, b: int(a) << int(b),
    "ShiftRight": lambda a, b: int(a) >> int(b),
}  # fmt: skip
WITH_DST = {  # and with what dst held before
    "MulAddDst": lambda a, b, dst: a * b + dst, "FusedMulAdd": lambda a, b, dst: a * dst + b,
    "MulAddRelu": lambda a, b, dst: max(a * dst + b, 0), "Axpy": lambda a, b, dst: a * b + dst,
}  # fmt: skip
ELEMENTWISE = [o for o in OPERATIONS if o.operands in (Operands.BINARY, Operands.SCALAR, Operands.UNARY)]
LIBRARY = [o for o in OPERATIONS if o.operands.mathematical]
# The library's functions of numbers, as Python's own mathematics has them.
LIBRARY_FORMULAS = {
    "Acos": math.acos, "Acosh": math.acosh, "Asin": math.asin, "Asinh": math.asinh, "Atan": math.atan,
    "Atanh": math.atanh, "Ceil": math.ceil, "Cos": math.cos, "Cosh": math.cosh, "Erf": math.erf, "Erfc": math.erfc,
    "Digamma": lambda x: (math.lgamma(x + 1e-4) - math.lgamma(x - 1e-4)) / 2e-4, "Floor": math.floor,
    "Frac": lambda x: math.modf(x)[0], "Lgamma": math.lgamma, "Log": math.log, "Log2": math.log2, "Log10": math.log10,
    "Round": round, "Rint": round, "Sign": lambda x: math.copysign(1, x), "Sin": math.sin, "Sinh": math.sinh,
    "Tan": math.tan, "Tanh": math.tanh, "Trunc": math.trunc, "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "Silu": lambda x: x / (1 + math.exp(-x)), "BitwiseNot": lambda x: ~int(x),
    "Gelu": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "FasterGelu": lambda x: x / (1 + math.exp(-1.702 * x)), "FasterGeluV2": lambda x: x / (1 + math.exp(-1.702 * x)),
    "Swish": lambda x, beta: x / (1 + math.exp(-beta * x)), "ClampMax": min, "ClampMin": max, "Power": math.pow,
    "PowerOfTensor": math.pow, "PowerOfScalar": lambda x, base: math.pow(base, x), "Fmod": math.fmod,
    "Xor": lambda a, b: int(a) ^ int(b), "BitwiseAnd": lambda a, b: int(a) & int(b), "Hypot": math.hypot,
    "BitwiseOr": lambda a, b: int(a) | int(b), "BitwiseXor": lambda a, b: int(a) ^ int(b),
    "GeGLU": lambda a, b: a * LIBRARY_FORMULAS["Gelu"](b), "ReGlu": lambda a, b: a * max(b, 0),
    "SwiGLU": lambda a, b, beta: a * b / (1 + math.exp(-beta * b)),
}  # fmt: skip
BELOW_ONE = ("Acos", "Asin", "Atanh")  # their arguments
REDUCTIONS = [o for o in OPERATIONS if o.operands is Operands.REPEAT_REDUCE]
N = 80
ROOT = Path(__file__).parents[3]


def signatures(operation, arch):
    """Every combination of types that the row takes."""
    count = 1 + len(operation.operands.sources)
    homogeneous = [(code,) * count for code in range(len(CPP_NAMES))]
    mixed = [tuple(map(CPP_NAMES.index, form.split())) for form in operation.mixed.split("; ") if form]
    return [codes for codes in (*homogeneous, *mixed) if operation.takes(codes, arch)]


def whole_values(rng, code, count=N):
    """Small whole numbers above 0: results of every row fit every type, and most are exact."""
    return rng.integers(1, 9, count).astype(DTYPES[code])


def expected(operation, sources, scalar, before, size):
    """The first elements computed one at a time, the others as they were."""
    want, dtype = before.copy(), before.dtype
    with np.errstate(all="ignore"):
        for i in range(size):
            row = [*(float(values[i]) for values in sources), *scalar]
            if operation.name in WITH_DST:
                exact = WITH_DST[operation.name](*row, float(before[i]))
            else:
                exact = FORMULAS[operation.name](*row)
            if dtype.kind in "iu":
                word = int(exact) & (2 ** (8 * dtype.itemsize) - 1)
                exact = np.array(word, f"u{dtype.itemsize}").view(dtype)
            want[i] = exact
    return want


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend950"])
@pytest.mark.parametrize("operation", ELEMENTWISE, ids=lambda o: o.name)
def test_elementwise_rows(operation, soc):
    function, scalar = getattr(asc, operation.name), [3.0] * (operation.operands is Operands.SCALAR)
    with socs.use(soc) as target:
        combinations = signatures(operation, target.soc.arch)
        assert combinations or target.soc.arch != 3510
        for number, codes in enumerate(combinations):
            rng, pipe = np.random.default_rng(number), asc.TPipe()
            before, *sources = (whole_values(rng, code) for code in codes)
            out, *tensors = (tensor(pipe, values, dtype=values.dtype) for values in (before, *sources))
            for size in ((N - 3,), (5, 1)):  # a count; a mask and a number of repeats
                fill(out, before)
                function(out, *tensors, *scalar, *size)
                got, want = content(out), expected(operation, sources, scalar, before, size[0])
                if want.dtype.kind in "iu" or operation.name not in ("Exp", "Ln", "Rsqrt"):
                    check_same_bits(f"{operation.name} {codes}", got, want)
                else:  # NumPy's steps are within one unit of the exact result rounded once
                    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
                    assert (error <= np.spacing(np.abs(want)).astype(np.float64)).all(), operation.name


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend950"])
def test_library_rows(soc):
    """Each of the table on each of its types: rounded once from Python's own mathematics, and no more written."""
    assert {row.name for row in LIBRARY} == set(LIBRARY_FORMULAS)
    with socs.use(soc) as target:
        for operation in LIBRARY:
            for number, codes in enumerate(signatures(operation, target.soc.arch)):
                rng, dtype, pipe = np.random.default_rng(number), DTYPES[codes[0]], asc.TPipe()
                values = [whole_values(rng, code) for code in codes[1:]]
                if dtype.kind == "f":
                    values[0] = (rng.uniform(0.1, 0.9, N) + (operation.name not in BELOW_ONE)).astype(dtype)
                scalar = [2.0] if operation.operands.with_scalar else []
                before = whole_values(rng, codes[0])
                out = tensor(pipe, before, dtype=dtype)
                sources = [tensor(pipe, array, dtype=dtype) for array in values]
                mathematical(operation.name, out, *sources, *scalar, count=N - 3)
                formula = LIBRARY_FORMULAS[operation.name]
                rows = [[float(array[i]) for array in values] for i in range(N - 3)]
                want = np.array([formula(*row, *scalar) for row in rows])
                if dtype.kind in "iu":
                    check_same_bits(operation.name, content(out)[:-3], want.astype(np.int64).astype(dtype))
                else:
                    unit = np.spacing(np.abs(want.astype(dtype))).astype(np.float64)
                    unit += 1e-6 * (operation.name == "Digamma")  # whose formula is a difference
                    assert (np.abs(content(out)[:-3].astype(np.float64) - want) <= unit).all(), (operation.name, codes)
                check_same_bits(operation.name, content(out)[-3:], before[-3:])


def test_library_rules():
    """In place, and a temporary buffer that the host's function would not have given, are refused."""
    pipe = asc.TPipe()
    x, y = (tensor(pipe, np.ones(N), dtype=np.float32) for _ in range(2))
    with pytest.raises(OverlapFault, match=r"Tanh: dst .* and src .* must have no bytes in common"):
        mathematical("Tanh", x, x, count=N)
    small = tensor(pipe, np.zeros(32), dtype=np.uint8)
    with pytest.raises(BoundsFault, match="Erf: sharedTmpBuffer: expected at least 768 bytes, got 32"):
        mathematical("Erf", y, x, count=N, sharedTmpBuffer=small)


@pytest.mark.parametrize("operation", REDUCTIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_reductions_of_repeats(operation, dtype):
    rng = np.random.default_rng(3)
    width, repeats = 256 // np.dtype(dtype).itemsize, 3
    groups = operation.groups or width // 2
    values = rng.integers(-20, 20, repeats * width).astype(dtype)  # sums are exact
    pipe = asc.TPipe()
    out = tensor(pipe, np.full(repeats * max(groups, 2), 7), dtype=dtype)
    taken = width - width // groups if groups > 1 else width - 3  # all but the last group, or all but three
    extremes = groups == 1 and operation.name != "WholeReduceSum"
    instruction, source = getattr(asc, operation.name), tensor(pipe, values, dtype=dtype)
    if groups > 1:
        instruction(out, source, repeats, taken, 1, 1, 8)  # Ascend C's own order: repeatTime, mask
    else:
        instruction(out, source, taken, repeats, 1, 1, 8, asc.ReduceOrder.ORDER_VALUE_INDEX)
    reduced = {"Sum": np.sum, "Max": np.max, "Min": np.min}[operation.name[-3:]]
    want = np.full(repeats * max(groups, 2), 7, dtype)
    for row in range(repeats):
        part = values[row * width : row * width + taken]
        if extremes:
            place = np.array(np.flatnonzero(part == reduced(part))[0], f"u{np.dtype(dtype).itemsize}")
            want[2 * row : 2 * row + 2] = reduced(part), place.view(dtype)
        elif groups == 1:
            want[row] = reduced(part)
        else:  # the last group takes no part and keeps what was there
            want[row * groups : row * groups + groups - 1] = reduced(part.reshape(groups - 1, -1), axis=1)
    check_same_bits(operation.name, content(out), want)


def test_types_that_only_950_takes():
    pipe = asc.TPipe()
    brains = [tensor(pipe, np.ones(16), dtype=asc.bfloat16_t) for _ in range(3)]
    with pytest.raises(DtypeError, match="Add: T must be one of half, float, int16_t, int32_t, got bfloat16_t"):
        asc.Add(*brains, 16)
    for name in ("Add", "Sub", "Mul", "Max", "Min", "Adds", "Muls", "Maxs", "Mins"):
        operation = OPERATIONS[NUMBERS_OF[name]]
        codes = (CODES[np.dtype(asc.bfloat16_t)],) * (1 + len(operation.operands.sources))
        assert operation.takes(codes, 3510)
        assert not operation.takes(codes, 2201)


def test_reduce_max_and_its_place():
    rng = np.random.default_rng(4)
    values = rng.normal(size=200).astype(np.float32)
    pipe = asc.TPipe()
    out, work = tensor(pipe, count=8), tensor(pipe, count=64)
    source = tensor(pipe, values)
    for function, best in ((asc.ReduceMax, np.argmax), (asc.ReduceMin, np.argmin)):
        function(out, source, work, 200, calIndex=True)
        got = out.read("test", "src", 2)
        assert got[0] == values[best(values)]
        assert got.view(np.uint32)[1] == best(values)
        function(out, source, work, 64, 3, 8, calIndex=True)
        assert out.read("test", "src", 2).view(np.uint32)[1] == best(values[:192])


@pytest.mark.parametrize("function", [asc.ReduceMax, asc.ReduceMin])
def test_the_temporary_buffer_of_a_largest_element(function):
    """Two elements of each whole repeat but on 950, by the page; a count on A2 has none for a sum alone."""
    pipe = asc.TPipe()
    out, source, work = tensor(pipe, count=8), tensor(pipe, np.ones(1100, np.float32)), tensor(pipe, count=40)
    short, enough = (work[at:] for at in (8, 0))
    short.SetSize(32)
    asc.ReduceSum(out, source, short[24:], 1100)
    function(out, source, short[24:], 64, calIndex=True)
    function(out, source, short[24:], 319)
    for form in ((1100,), (64, 17, 8)):
        function(out, source, enough, *form)
        with pytest.raises(BoundsFault, match=r"sharedTmpBuffer .* 8 too far"):
            function(out, source, short, *form)


def test_bits_in_a_tensor_of_words():
    """A2's published Compare writes bytes, and only its checker looks at the type of dst; src has its types."""
    x = np.random.default_rng(5).standard_normal(128).astype(np.float32)
    y = np.zeros(4, np.uint32)

    def kernel(source, result):
        pipe = asc.TPipe()
        words, values = tensor(pipe, np.zeros(8), dtype=np.uint32), tensor(pipe, x)
        asc.CompareScalar(words, values, 0.0, asc.CMPMODE.GT, 128)
        out = asc.GlobalTensor(np.uint32)
        out.SetGlobalBuffer(result, 4)
        with pytest.raises(DtypeError, match="CompareScalar: expected"):
            asc.CompareScalar(words, values.ReinterpretCast(np.int64), 0.0, asc.CMPMODE.GT, 32)
        asc.PipeBarrier(asc.PIPE_ALL)
        asc.DataCopyPad(out, words, asc.DataCopyExtParams(1, 16, 0, 0, 0))

    report = asc.launch(kernel, 1, x, y, strictness="device")
    assert "CompareScalar: dst must be uint8_t or int8_t, got uint32_t" in str(report.remarks())
    check_same_bits("bits", y.view(np.uint8), np.packbits(x > 0, bitorder="little"))
    with pytest.raises(DeviceFault, match="CompareScalar: dst must be uint8_t or int8_t, got uint32_t"):
        asc.launch(kernel, 1, x, y)


def test_compare_and_select():
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 3, 128).astype(np.float16) for _ in range(2))
    pipe = asc.TPipe()
    left, right, out = (tensor(pipe, v, dtype=np.float16) for v in (a, b, np.zeros(128)))
    bits = tensor(pipe, np.zeros(32), dtype=np.uint8)
    for mode, ufunc in zip(
        asc.CMPMODE, (np.less, np.greater, np.equal, np.less_equal, np.greater_equal, np.not_equal), strict=True
    ):
        asc.Compare(bits, left, right, mode, 128)
        check_same_bits(mode.name, content(bits, 16), np.packbits(ufunc(a, b), bitorder="little"))
        asc.Select(out, bits, left, right, asc.SELMODE.VSEL_TENSOR_TENSOR_MODE, 128)
        check_same_bits(mode.name, content(out), np.where(ufunc(a, b), a, b))
        asc.CompareScalar(bits, left, 1.0, mode, 128)
        asc.Select(out, bits, left, -7.0, asc.SELMODE.VSEL_TENSOR_SCALAR_MODE, 100)
        check_same_bits(mode.name, content(out, 100), np.where(ufunc(a, np.float16(1)), a, np.float16(-7))[:100])
    asc.Compare(bits, left, right, asc.CMPMODE.LT, 128, 1, (1, 1, 1, 8, 8, 8))
    asc.Select(out, bits, left, right, asc.SELMODE.VSEL_CMPMASK_SPR, 128, 1, (1, 1, 1, 8, 8, 8))
    check_same_bits("repeats", content(out), np.where(a < b, a, b))


@pytest.mark.parametrize(("soc", "count"), [("Ascend910B1", 64), ("Ascend950", 100)])
def test_compare_leaves_what_is_short_of_a_repeat_alone(soc, count):
    values = np.random.default_rng(7).standard_normal(100).astype(np.float32)
    with socs.use(soc):
        pipe = asc.TPipe()
        left, bits = tensor(pipe, values), tensor(pipe, count=32, dtype=np.uint8)
        asc.CompareScalar(bits, left, 0.0, asc.CMPMODE.GT, 100)
        written = count // 8 * 8
        check_same_bits("whole", content(bits, written // 8), np.packbits(values[:written] > 0, bitorder="little"))
        if count < 100:
            with pytest.raises(asc.DeviceFault, match="was never written"):
                bits.GetValue(8)


def test_gather_checks_its_offsets():
    values = np.arange(64, dtype=np.float32)
    offsets = np.random.default_rng(6).permutation(64).astype(np.uint32)
    pipe = asc.TPipe()
    out, source = tensor(pipe, count=64), tensor(pipe, values)
    asc.Gather(out, source, tensor(pipe, 4 * offsets, dtype=np.uint32), 0, 64)
    check_same_bits("Gather", content(out), values[offsets])
    with pytest.raises(asc.DeviceFault, match="Gather: src ends 256 bytes from its start, an offset reaches byte 260"):
        asc.Gather(out, source, tensor(pipe, 4 * offsets, dtype=np.uint32), 4, 64)
    with pytest.raises(
        asc.DeviceFault, match="Gather: an offset must be a multiple of the 4 bytes of an element, one is 6"
    ):
        asc.Gather(out, source, tensor(pipe, np.array([0, 6]), dtype=np.uint32), 0, 2)
    wanted = tensor(pipe, count=8, dtype=np.uint32)
    with pytest.raises(asc.DeviceFault, match=r"srcOffset .* was never written"):
        asc.Gather(out, source, wanted, 0, 8)


def test_where_bytes_have_no_value_the_rest_has():
    pipe = asc.TPipe()
    source, out, bits = tensor(pipe, count=64), tensor(pipe, count=64), tensor(pipe, count=32, dtype=np.uint8)
    good = tensor(pipe, np.ones(64))
    asc.Duplicate(source, 2.0, 40)
    asc.Compare(bits, good, good, asc.CMPMODE.NE, 64)  # no bit is set
    asc.Select(out, bits, source, good, asc.SELMODE.VSEL_TENSOR_TENSOR_MODE, 64)
    check_same_bits("what is not chosen does no harm", content(out), np.ones(64, np.float32))
    asc.WholeReduceSum(out, source, 32, 1, 1, 1, 8)
    assert out.GetValue(0) == 64.0
    asc.BlockReduceSum(out, source, repeatTime=1, mask=64, dstRepStride=1, srcBlkStride=1, srcRepStride=8)
    assert out.GetValue(4) == 16.0
    with pytest.raises(asc.DeviceFault, match="the first to read such bytes was"):
        out.GetValue(5)


def test_two_writes_of_one_value_are_a_remark():
    def kernel(out):
        que = asc.TQue(asc.TPosition.VECOUT)
        asc.TPipe().InitBuffer(que, 1, 32)
        local = que.AllocTensor(np.float32)
        asc.Duplicate(local, 1.0, 8)
        que.EnQue(local)
        memory = asc.GlobalTensor()
        memory.SetGlobalBuffer(out)
        asc.DataCopy(memory, que.DeQue(), 8)
        que.FreeTensor(local)

    report = asc.launch(kernel, 2, np.zeros(8, np.float32))
    (remark,) = report.remarks()
    assert "write the same values to arrays[0]" in remark
    assert report.blocks[1].remarks == (remark,)
