"""Every row of the library of functions on rows against NumPy, and the tiling functions."""

from __future__ import annotations

import numpy as np
import pytest
from test_vector import content, tensor

from lngrad.errors import DtypeError
from lngrad_ascend import ascendc as asc
from lngrad_ascend import soc as socs
from lngrad_ascend.cpp.host import answer
from lngrad_ascend.device.library import LIBRARY, call_library
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.vector import CMPMODE, SELMODE
from lngrad_ascend.faults import DeviceFault, PoisonFault, TilingError
from lngrad_ascend.tiling.structs import DeepNormTiling, SoftMaxTiling
from tile_harness import check_same_bits

M, K, REAL = 3, 16, 13
SHAPE = (M, K, REAL)


def bits(value: float) -> int:
    return int(np.array([value]).view(np.int64)[0])


def blocks(column: np.ndarray) -> np.ndarray:
    return np.repeat(column.reshape(-1, 1), 8, axis=1)


def softmax(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.where(np.arange(K) < REAL, x, -np.inf)
    largest = x.max(axis=1, keepdims=True)
    e = np.exp(x - largest)
    return e / e.sum(axis=1, keepdims=True), e.sum(axis=1, keepdims=True), largest


def cases():
    """By row: the tensors given, the whole numbers, the real one, and what each of the first tensors becomes."""
    rng = np.random.default_rng(5)
    x, y, z = rng.standard_normal((3, M, K))
    out, column, line = np.zeros((M, K)), np.zeros((M, 8)), np.zeros(K)
    y_, total, largest = softmax(x)
    before = blocks(rng.standard_normal(M)), blocks(largest[:, 0] + [1, -1, 0.5])
    scale = np.exp(before[1][:, :1] - np.maximum(largest, before[1][:, :1]))
    shifted = np.exp(np.where(np.arange(K) < REAL, x, -np.inf) - np.maximum(largest, before[1][:, :1]))
    inner = (x * y)[:, :REAL].sum(axis=1)
    mask = (rng.random((M, K)) < 0.5).astype(np.uint8)
    flat = [one.reshape(-1) for one in (x, y, z)]
    odd = np.array([np.inf, -np.inf, np.nan, 0.0] * 4)
    heads = np.array([1.0, 0.0] * 8)
    offsets = np.array([3, 1, 0, 2, 5, 4, 0, 1], np.uint32) * 32
    image = rng.standard_normal((1, 2, 2, 4))
    yield "SoftMax", [out, column, column, x], SHAPE, 0, [y_, blocks(total), blocks(largest)]
    yield "SoftMax", [out, x], SHAPE, 0, [y_]
    yield "SimpleSoftMax", [out, blocks(total), blocks(largest), x], SHAPE, 0, [np.exp(x - largest) / total]
    yield "LogSoftMax", [out, column, column, x], (M, K, K), 0, [np.log10(
        np.exp(x) / np.exp(x).sum(1, keepdims=True))]  # fmt: skip
    yield "SoftmaxGrad", [out, x, y], (*SHAPE, 0), 0, [(x - inner[:, None]) * y]
    yield "SoftmaxGrad", [column, x, y], (*SHAPE, 1), 0, [blocks(inner)]
    yield "SoftmaxFlashV2", [out, column, column, x, column, *before], (*SHAPE, 1), 0, [
        shifted, blocks(scale * before[0][:, :1] + shifted.sum(1, keepdims=True)),
        blocks(np.maximum(largest, before[1][:, :1]))]  # fmt: skip
    marked = blocks(np.array([1.0, 2.0, 1.0]))
    yield "AdjustSoftMaxRes", [x, marked], (M, K, K, 0x3F800000), 7.0, [np.where([[1], [0], [1]], 7.0, x)]
    yield "Sum", [line, x], SHAPE, 0, [np.append(x[:, :REAL].sum(1), line[M:])]
    yield "Mean", [line, x], SHAPE, 0, [np.append(x[:, :REAL].mean(1), line[M:])]
    for name, function in (("Sum", np.sum), ("Max", np.max), ("Min", np.min), ("Prod", np.prod), ("Mean", np.mean)):
        yield f"Reduce{name}", [line, x], (*SHAPE, 1), 0, [np.append(function(x[:, :REAL], axis=1), line[M:])]
        yield f"Reduce{name}", [line, x], (*SHAPE, 0), 0, [function(x, axis=0)]
    yield "CumSum", [out, line, x], (*SHAPE, 0, 1), 0, [np.cumsum(x, 0), np.cumsum(x, 0)[-1]]
    yield "CumSum", [out, line, x], (*SHAPE, 1, 0), 0, [np.cumsum(x, 1), line]
    yield "Fma", [out, *flat], (M * K,), 0, [x * y + z]
    yield "Arange", [line], (bits(2.0), bits(-0.5), K), 0, [2.0 - 0.5 * np.arange(K)]
    yield "AscendQuant", [np.zeros(M * K + 16, np.int8), flat[0]], (bits(3.0), M * K), 90.0, [
        np.append(np.clip(np.rint(np.float16(flat[0]) * np.float16(90) + np.float16(3)), -128, 127), np.zeros(16))]  # fmt: skip
    yield "DropOut", [out, x, mask], (M, K, K, 0), 0.25, [x / 0.25 * mask]
    packed = np.zeros(32, np.uint8)
    packed[: M * 2] = np.packbits(mask, axis=1, bitorder="little").reshape(-1)
    yield "DropOut", [out, x, packed], (M, K, K, 1), 0.25, [x / 0.25 * mask]
    yield "Select", [out, x, mask], (M, K, K, 1), 4.0, [np.where(mask, 4.0, x)]
    yield "Select", [out, x, mask], (M, K, K, 0), 4.0, [np.where(mask, x, 4.0)]
    yield "Clamp", [out, flat[0], flat[1]], (M * K, 1, 0, 0, bits(0.5)), 0, [np.minimum(np.maximum(x, y), 0.5)]
    for name, function in (("IsFinite", np.isfinite), ("IsInf", np.isinf), ("IsNan", np.isnan)):
        yield name, [line, odd], (K,), 0, [function(odd)]
    yield "LogicalNot", [line, heads], (K,), 0, [heads == 0]
    for name, function in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
        yield f"Logical{name}", [line, odd, heads], (K,), 0, [function(odd, heads)]
    scores, numbers = rng.integers(-9, 9, 64).astype(float), rng.permutation(64).astype(np.uint32)
    order = np.concatenate([at + np.argsort(-scores[at : at + 32], kind="stable") for at in (0, 32)])
    listed = np.stack([np.float32(scores[order]), numbers[order].view(np.float32)], axis=1)
    yield "Sort32", [np.zeros(128), scores, numbers], (2, 32), 0, [listed]
    yield "Extract", [np.zeros(64), np.zeros(64, np.uint32), listed], (2,), 0, [scores[order], numbers[order]]
    whole = np.argsort(-scores, kind="stable")  # of equal scores the first list's come first
    merged = np.stack([np.float32(scores[whole]), numbers[whole].view(np.float32)], axis=1)
    one, other = listed[:32], listed[32:]
    yield "Sort32", [np.ones(8), scores, numbers], (0, 32), 0, [np.ones(8)]
    yield "MrgSort", [np.zeros(128), one, other, one, one], (32, 32, 0, 0, 0, 3, 1), 0, [merged]
    table, names = rng.integers(-9, 9, (2, 64)).astype(float), rng.permutation(64).astype(np.int32)
    table[0, [3, 40]], table[1, 50:] = [np.inf, np.nan], 9.0  # 50 of 64 count
    for falling in (1, 0):
        key = -table if falling else table
        first = np.array([sorted(range(64), key=lambda j, row=row: (not np.isnan(row[j]), row[j], j)) for row in key])[
            :, :5
        ]
        taken = np.pad(np.take_along_axis(table, first, 1), ((0, 0), (0, 3)))
        for init, done in ((0, 0), (1, 1)):
            want = np.where([[0], [done]], 50, names[first] if init else first)
            given = [np.full((2, 8), 7.0), np.zeros((2, 8), np.int32), table, names, np.array([0, 1], np.uint8)]
            yield "TopK", given, (2, 64, 50, 5, init, done, 0, falling), 0, [taken, np.pad(want, ((0, 0), (0, 3)))]
    small, named = rng.standard_normal((2, 32)), rng.integers(0, 99, (2, 32)).astype(np.int32)
    best = np.argsort(-small, axis=1)[:, :12]
    yield "TopK", [np.zeros((2, 12)), np.zeros((2, 12), np.int32), small, named, small], (2, 32, 32, 12, 1, 0, 1, 1), 0, [
        np.take_along_axis(small, best, 1), np.take_along_axis(named, best, 1)]  # fmt: skip
    both = np.stack(flat[:2], axis=1).reshape(2, -1)
    yield "Interleave", [np.zeros(M * K), np.zeros(M * K), *flat[:2]], (M * K,), 0, both
    yield "DeInterleave", [np.zeros(M * K), np.zeros(M * K), *both], (M * K,), 0, flat[:2]
    whole, scales = rng.integers(-1000, 1000, (M, K)).astype(np.int32), rng.standard_normal(K)
    wide = np.float32(scales).astype(float)
    counted = np.arange(K) < REAL
    yield "AscendDequant", [out, whole, scales], (M, K, REAL, 0), 0, [np.where(counted, whole * wide, 0)]
    yield "AscendDequant", [out, whole, scales], (M, K, K, 1), 0.5, [whole * 0.5]
    codes = rng.integers(-128, 127, (4, 32)).astype(np.int8)
    shifts, steps = rng.standard_normal((2, 2, 32))
    grouped = (codes + np.repeat(np.float32(shifts), 2, 0)) * np.repeat(np.float32(steps), 2, 0).astype(float)
    yield "AscendAntiQuant", [np.zeros((4, 32)), codes, shifts, steps], (4, 32, 2), 0, [grouped]
    yield "AscendAntiQuant", [np.zeros((4, 32)), codes], (128, bits(3.0), bits(0.25)), 0, [(codes + 3.0) / 4]
    halves = [np.repeat(one, 2, 0).astype(np.float16) for one in (shifts, steps)]
    yield "AscendAntiQuant", [np.zeros((4, 32), np.float16), codes, *np.float16([shifts, steps])], (4, 32, 2), 0, [
        (codes.astype(np.float16) + halves[0]) * halves[1]]  # fmt: skip
    root = np.sqrt((x[:, :REAL] ** 2).mean(1, keepdims=True) + 0.1)
    yield "RmsNorm", [out, x, y[0]], SHAPE, 0.1, [x / root * y[0]]
    d, m0, v0 = REAL, y[0].copy(), np.abs(z[0])
    step = x[0] - m0
    moved = [np.where(np.arange(K) < d, m0 + step * 0.125, m0), np.where(np.arange(K) < d, v0 + step**2 * 0.875, v0)]
    yield "WelfordUpdate", [line, line, m0, v0, x[0]], (K, d, 1), 0.125, moved
    yield "WelfordUpdate", [line, line, m0, v0, x[0]], (K, d, 0), 0.125, [
        np.where(np.arange(K) < d, one, line) for one in moved]  # fmt: skip
    counts = rng.integers(1, 9, K)
    for given, of, numbers in (
        ([counts.astype(np.int32)], counts, (0, 0)), ([], np.full(K, 3), (0, 0)), ([], np.repeat([4, 2], [K - 3, 3]), (4, 2)),
    ):  # fmt: skip
        total = int(of.sum())
        mean = (m0 * of).sum() / total
        tail = (numbers[0], K - 3, numbers[1], 3) if numbers[1] else (3, K, 0, 0)
        want = [[mean, *[0] * 7], [(v0 + of * (m0 - mean) ** 2).sum() / total, *[0] * 7]]
        yield "WelfordFinalize", [np.zeros(8), np.zeros(8), m0, v0, *given], (
            3, K, *tail, bits(1 / K), bits(1 / total), bits(1 / total)), 0, want  # fmt: skip
    mean, variance = x[:, :REAL].mean(1), x[:, :REAL].var(1)
    rstd = 1 / np.sqrt(variance + 0.1)
    for bare in (0, 1):
        scale, shift = (1, 0) if bare else (y[0], z[0])
        columns = np.arange(K) < REAL
        want = (x - mean[:, None]) * rstd[:, None]
        yield "Normalize", [out, np.zeros(M), mean, variance, x, y[0], z[0]], (*SHAPE, bare, bare), 0.1, [
            np.where(columns, want * scale + shift, want), rstd]  # fmt: skip
    deep = 2.5 * x + y
    mean, variance = deep[:, :REAL].mean(1, keepdims=True), deep[:, :REAL].var(1, keepdims=True)
    yield "DeepNorm", [out, np.zeros(M), np.zeros(M), x, y, z[0], z[1]], (*SHAPE, bits(2.5)), 0.1, [
        (deep - mean) / np.sqrt(variance + 0.1) * z[1] + z[0], mean, variance]  # fmt: skip
    yield "Gatherb", [np.zeros(64), flat[0], offsets], (1, 1, 8), 0, [flat[0].reshape(-1, 8)[offsets // 32]]
    yield "Transpose", [np.zeros(16), image], (1, 2, 2, 4, 11), 0, [image.transpose(0, 2, 3, 1)]
    yield "Transpose", [np.zeros(16), image], (1, 4, 2, 2, 12), 0, [image.reshape(1, 2, 2, 4).transpose(0, 3, 1, 2)]


def test_every_row_against_numpy():
    seen = set()
    with socs.use("Ascend950"):
        for name, given, numbers, real, wants in cases():
            seen.add(name)
            pipe = asc.TPipe()
            dtypes = [one.dtype if one.dtype.itemsize < 8 else np.float32 for one in given]
            tensors = [tensor(pipe, one.reshape(-1), dtype=dtype) for one, dtype in zip(given, dtypes, strict=True)]
            call_library(name, tensors, tuple(numbers), real)
            for out, want in zip(tensors, wants, strict=False):
                both = np.asarray(want, np.float64).reshape(-1), content(out).astype(np.float64)
                want, got = (np.nan_to_num(one, nan=-7e7, posinf=8e8, neginf=-8e8) for one in both)
                error = np.abs(got - want) / np.maximum(np.abs(want), 1)
                assert error.max() < 1e-6, (name, numbers, got, want)
    assert seen == set(LIBRARY)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("mode", range(6))
def test_a_comparison_is_kept_in_a_register(mode, dtype):
    lanes = 256 // np.dtype(dtype).itemsize
    one, two = np.random.default_rng(mode).integers(-2, 3, (2, lanes)).astype(dtype)
    function = (np.less, np.greater, np.equal, np.less_equal, np.greater_equal, np.not_equal)[mode]
    wanted = np.arange(lanes) % 3 != 0
    words = np.packbits(np.append(wanted, np.zeros(128 - lanes, bool)), bitorder="little").view(np.int64)
    pipe = asc.TPipe()
    sources, kept = [tensor(pipe, one, dtype=dtype) for one in (one, two)], register(pipe)
    asc.Compare(kept, *sources, CMPMODE(mode), [int(word) & (1 << 64) - 1 for word in words], 1)
    got = np.unpackbits(content(kept), bitorder="little")[:lanes] != 0
    assert (got == (function(one, two) & wanted)).all()


def register(pipe):
    piece = pipe.ub.compared
    return LocalTensor(pipe.core, piece, np.dtype(np.uint8), piece.start, piece.size)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("counts", [0, 1])
def test_a_choice_by_the_register(counts, dtype):
    lanes, width, count = 256 // np.dtype(dtype).itemsize, 32 // np.dtype(dtype).itemsize, 100
    rng = np.random.default_rng(counts)
    bits, wanted = rng.random((2, 128)) < 0.5
    wanted[lanes:] = False
    x, y, before = rng.standard_normal((3, 5 * lanes)).astype(dtype)
    pipe = asc.TPipe()
    out, one, two = (tensor(pipe, values, dtype=dtype) for values in (before, x, y))
    kept = register(pipe)
    pipe.ub.data[kept.start : kept.start + 16] = np.packbits(bits, bitorder="little")
    words = np.packbits(wanted, bitorder="little").view(np.uint64).tolist()
    strides = (1, 1, 1, 8, 8, 8) if counts else (2, 1, 1, 16, 8, 9)
    given = (count,) if counts else (words, 2, strides)
    asc.Select(out, kept, one, two, SELMODE.VSEL_CMPMASK_SPR, *given)
    want = before.copy()
    for at in range(count if counts else 2 * lanes):
        repeat, lane = divmod(at, lanes)
        if counts or wanted[lane]:
            place = [
                (r * repeat + b * (lane // width)) * width + lane % width
                for b, r in zip(strides, strides[3:], strict=False)
            ]
            want[place[0]] = x[place[1]] if bits[lane] else y[place[2]]
    np.testing.assert_array_equal(content(out), want)
    whole = tensor(pipe, np.zeros(64), dtype=np.int32)
    with pytest.raises(DtypeError, match="Select: expected half from uint8_t half half; half from uint16_t half half"):
        asc.Select(whole, kept, whole, whole, SELMODE.VSEL_CMPMASK_SPR, 64)


def holes(one):
    """Which elements of a tensor have no value."""
    origins = one.core.ub.poison[one.start : one.end].reshape(one.GetSize(), -1)
    return origins.any(axis=1)


def test_sorting_takes_what_has_no_number_and_carries_what_has_no_value():
    rng = np.random.default_rng(8)
    scores = rng.standard_normal(64).astype(np.float32)
    scores[[3, 40]], scores[[9, 50]], scores[11] = np.nan, np.inf, -np.inf
    pipe = asc.TPipe()
    pairs, given, merged = (tensor(pipe, count=128) for _ in range(3))
    call_library("Sort32", [pairs, tensor(pipe, scores), tensor(pipe, np.arange(64), dtype=np.uint32)], (2, 32), 0)
    order = np.concatenate(
        [at + np.lexsort((-scores[at : at + 32], ~np.isnan(scores[at : at + 32]))) for at in (0, 32)]
    )
    assert content(pairs).view(np.uint32)[1::2].tolist() == order.tolist()
    assert {order[0], order[32]} == {3, 40}
    lists = [pairs[:64], pairs[64:], pairs, pairs]
    call_library("MrgSort", [merged, *lists], (32, 32, 0, 0, 0, 3, 1), 0)
    whole = np.lexsort((-scores, ~np.isnan(scores)))
    assert content(merged).view(np.uint32)[1::2].tolist() == whole.tolist()
    # Numbers of 10 on are not written: each keeps that, wherever its score takes it.
    few = tensor(pipe, count=64, dtype=np.uint32)
    few.write("test", "dst", 10)[...] = np.arange(10)
    call_library("Sort32", [given, tensor(pipe, scores), few], (2, 32), 0)
    assert (holes(given)[1::2] == (order >= 10)).all()
    assert not holes(given)[::2].any()
    call_library("MrgSort", [merged, given[:64], given[64:], given, given], (32, 32, 0, 0, 0, 3, 1), 0)
    values, numbers = tensor(pipe, count=64), tensor(pipe, count=64, dtype=np.uint32)
    call_library("Extract", [values, numbers, merged], (2,), 0)
    assert (holes(numbers) == (whole >= 10)).all()
    assert not holes(values).any()
    check_same_bits("Extract", content(values), scores[whole])
    with pytest.raises(PoisonFault, match=r"GetValue: this .* was never written"):
        numbers.GetValue(1)
    # A score without a value may stand anywhere among those of its repeat.
    rest = tensor(pipe, count=64)
    rest.write("test", "dst", 40)[...] = scores[:40]
    call_library("Sort32", [given, rest, tensor(pipe, np.arange(64), dtype=np.uint32)], (2, 32), 0)
    assert holes(given).tolist() == [False] * 64 + [True] * 64
    with pytest.raises(PoisonFault, match=r"MrgSort: src2 .* was never written"):
        call_library("MrgSort", [merged, given[:64], given[64:], given, given], (32, 32, 0, 0, 1, 3, 1), 0)


def test_what_moves_elements_carries_what_has_no_value():
    pipe = asc.TPipe()
    some, out = tensor(pipe, count=64), tensor(pipe, count=64)
    some.write("test", "dst", 40)[...] = np.arange(40)
    offsets = np.array([7, 0, 5, 1, 4, 2, 3, 6], np.uint32)
    call_library("Gatherb", [out, some, tensor(pipe, offsets * 32, dtype=np.uint32)], (1, 1, 8), 0)
    assert holes(out).reshape(8, 8)[:, 0].tolist() == (offsets >= 5).tolist()
    call_library("Transpose", [out, some], (1, 2, 4, 8, 11), 0)
    assert (holes(out) == (np.arange(64).reshape(2, 32).T.reshape(-1) >= 40)).all()
    column = tensor(pipe, count=16)
    column.write("test", "dst", 1)[...] = 5
    asc.BroadCast(out, column, (2, 8), (2, 1))
    assert holes(out)[:16].tolist() == [False] * 8 + [True] * 8
    assert (content(out, 8) == 5).all()


def test_a_pattern_needs_only_the_bits_that_take_part():
    pipe = asc.TPipe()
    x, out, pattern = tensor(pipe, np.arange(64)), tensor(pipe, count=64), tensor(pipe, count=32, dtype=np.uint8)
    some = tensor(pipe, count=64)
    some.write("test", "dst", 12)[...] = np.arange(12) % 3
    asc.CompareScalar(pattern, some, 1.0, CMPMODE.EQ, 64)
    words = pattern.ReinterpretCast(np.uint32)
    assert asc.GatherMask(out, x, words, True, 12, (1, 1, 8, 1)) == 4
    assert content(out, 4).tolist() == [1, 4, 7, 10]
    with pytest.raises(PoisonFault, match=r"GatherMask: src1Pattern .* was never written"):
        asc.GatherMask(out, x, words, True, 13, (1, 1, 8, 1))
    # A sum of such bytes does not know which of its bits have a value; a copy does, and what works bit by bit.
    copied, other, both = (tensor(pipe, count=32, dtype=np.uint8) for _ in range(3))
    asc.DataCopy(copied, pattern, 32)
    assert asc.GatherMask(out, x, copied.ReinterpretCast(np.uint32), True, 12, (1, 1, 8, 1)) == 4
    few = tensor(pipe, count=64)
    few.write("test", "dst", 10)[...] = np.arange(10) % 3
    asc.CompareScalar(other, few, 1.0, CMPMODE.EQ, 64)
    halves = [one.ReinterpretCast(np.uint16) for one in (both, pattern, other)]
    signed = [one.ReinterpretCast(np.int16) for one in halves]
    for compute in (
        lambda: asc.And(*halves, 16),
        lambda: asc.ShiftRight(halves[0], halves[1], 2, 16),
        lambda: asc.Adds(*signed[:2], 1, 16),
        lambda: asc.Adds(*(one.ReinterpretCast(np.float16) for one in halves[:2]), 0, 16),  # -0 becomes 0
    ):
        compute()
        with pytest.raises(PoisonFault, match=r"GatherMask: src1Pattern .* was never written"):
            asc.GatherMask(out, x, both.ReinterpretCast(np.uint32), True, 12, (1, 1, 8, 1))
    for compute in (lambda: asc.And(*halves, 16), lambda: asc.Not(*halves[::2], 16)):  # a bit that all sources have
        compute()
        asc.GatherMask(out, x, both.ReinterpretCast(np.uint32), True, 10, (1, 1, 8, 1))
    asc.Adds(*signed[:2], 0, 16)  # a copy
    assert asc.GatherMask(out, x, both.ReinterpretCast(np.uint32), True, 12, (1, 1, 8, 1)) == 4


def test_bytes_that_choose_know_no_bits():
    """Byte 1 of a comparison has bits 8 to 11: as a byte of a mask it has no value, nor has what it chooses, as bits or not."""
    pipe = asc.TPipe()
    x, some, mask = tensor(pipe, np.arange(64)), tensor(pipe, count=64), tensor(pipe, count=32, dtype=np.uint8)
    some.write("test", "dst", 12)[...] = np.arange(12) % 3
    asc.CompareScalar(mask, some, 1.0, CMPMODE.EQ, 64)
    chosen = tensor(pipe, count=8, dtype=np.uint32)
    call_library("Select", [chosen, x.ReinterpretCast(np.uint32), mask], (1, 8, 8, 1), 9)
    assert holes(chosen).tolist() == [False] + [True] * 7
    with pytest.raises(PoisonFault, match="GatherMask: src1Pattern"):
        asc.GatherMask(tensor(pipe, count=64), x, chosen, True, 36, (1, 1, 8, 1))


def test_none_at_all_is_moved_without_a_fault():
    pipe = asc.TPipe()
    x, out, numbers = tensor(pipe, np.arange(64)), tensor(pipe, count=64), tensor(pipe, np.arange(32), dtype=np.uint32)
    pairs, merged = tensor(pipe, count=64), tensor(pipe, np.zeros(64))
    call_library("Sort32", [pairs, x, numbers], (1, 32), 0)
    call_library("MrgSort", [merged, pairs, pairs[64:], pairs, pairs], (32, 0, 0, 0, 0, 3, 1), 0)
    check_same_bits("MrgSort", content(merged), content(pairs))
    assert asc.GatherMask(out, x, numbers, True, 0, (1, 1, 8, 1)) == 0
    assert asc.GatherMask(out, x, 1, False, 0, (1, 0, 8, 1)) == 0
    call_library("Extract", [out, tensor(pipe, count=64, dtype=np.uint32), x], (0,), 0)
    call_library("Transpose", [out, x], (0, 2, 4, 8, 11), 0)
    asc.BroadCast(out, x, (0, 8), (0, 1))
    call_library("Select", [out, x, tensor(pipe, np.zeros(8), dtype=np.uint8)], (0, 8, 8, 1), 0.0)
    assert holes(out).all()


def test_library_rules_that_are_broken():
    pipe = asc.TPipe()
    whole, line = tensor(pipe, np.zeros(32), dtype=np.int32), tensor(pipe, np.zeros(32), dtype=np.float32)
    with pytest.raises(DeviceFault, match="AscendDequant: n must be whole blocks of int32"):
        call_library("AscendDequant", [line, whole, line], (2, 12, 12, 0), 0)
    with pytest.raises(
        DeviceFault, match="TopK: expected k up to n, and inner of whole 32 elements, 32, got 33, 32 and 64"
    ):
        call_library("TopK", [line] * 5, (1, 64, 32, 33, 0, 0, 1, 1), 0)
    with pytest.raises(DtypeError, match="TopK: expected half or float, got int32"):
        call_library("TopK", [whole] * 5, (1, 32, 32, 1, 0, 0, 0, 1), 0)
    with pytest.raises(DeviceFault, match="AscendAntiQuant: expected groups of rows, got 3 rows and 2 of offset"):
        call_library("AscendAntiQuant", [line, line, line, line], (3, 8, 2), 0)
    with socs.use("Ascend950"), pytest.raises(DeviceFault, match="Interleave: count must be even, got 7"):
        call_library("Interleave", [tensor(asc.TPipe(), np.zeros(8), dtype=np.float32)] * 4, (7,), 0)


def test_what_only_950_has_is_refused():
    pipe = asc.TPipe()
    with pytest.raises(DeviceFault, match="Fma: only 950 has it, this is Ascend910B1"):
        call_library("Fma", [tensor(pipe, np.ones(8), dtype=np.float32)] * 4, (8,), 0)
    with pytest.raises(DeviceFault, match="Sorted: this library function is not simulated"):
        call_library("Sorted", [tensor(pipe, np.ones(8), dtype=np.float32)], (8,), 0)


def test_tiling_functions():
    """Sizes as asc-devkit's functions give them for A2, and the pieces of SoftMax."""
    sizes = {
        ("GetTanhMaxMinTmpSize", (100,), (2, 0)): (1024, 1024), ("GetTanhMaxMinTmpSize", (1000,), (4, 0)): (4000, 256),
        ("GetErfMaxMinTmpSize", (1000,), (2, 0)): (16000, 2048), ("GetGeluMaxMinTmpSize", (32,), (4, 0)): (768, 768),
        ("GetExpMaxMinTmpSize", (1000,), (4, 1)): (8000, 512), ("GetAcoshMaxMinTmpSize", (512,), (4, 0)): (2048, 256),
        ("GetPowerMaxMinTmpSize", (1000,), (4, 0, 0, 1)): (16256, 1280),
        ("GetPowerMaxMinTmpSize", (16,), (2, 0, 0, 0)): (2048, 2048),
        ("GetSoftMaxMaxMinTmpSize", (8, 128), (4, 0)): (6400, 800), ("GetSumMaxMinTmpSize", (), (100, 4)): (32, 32),
        ("GetSoftMaxGradMaxMinTmpSize", (8, 128), (2, 1)): (15360, 1920),
        ("GetSoftMaxFlashV2MaxMinTmpSize", (16, 128), (4, 4, 1)): (4608, 2304),
        ("GetSoftMaxFlashV2MaxMinTmpSize", (16, 120), (2, 4, 0)): (12800, 800),
        ("GetSelectMaxMinTmpSize", (64, 128), (4, 1, 0, 160)): (25088, 16896),
        ("GetDropOutMaxMinTmpSize", (64, 128), (4, 0)): (65536, 512),
        ("GetAscendQuantMaxMinTmpSize", (1000,), (4, 0)): (2016, 512),
        ("GetCumSumMaxMinTmpSize", (17, 16), (2, 1)): (3072, 1536),
        ("GetAscendDequantMaxMinTmpSize", (128, 32), (4,)): (16800, 544),
        ("GetAscendDequantMaxMinTmpSize", (32,), (4,)): (544, 544),
        ("GetAscendAntiQuantMaxMinTmpSize", (8, 128), (128, 1)): (0, 0),
        ("GetAscendAntiQuantMaxMinTmpSize", (8, 128), (128, 0)): (3072, 3072),
        ("GetAscendAntiQuantMaxMinTmpSize", (8, 128), (1, 0)): (4096, 1024),
        ("GetWelfordUpdateMaxMinTmpSize", (1, 100), (4, 4, 0, 1)): (1024, 512),
        ("GetWelfordUpdateMaxMinTmpSize", (1, 100), (2, 4, 1, 1)): (1536, 768),
        ("GetWelfordFinalizeMaxMinTmpSize", (64,), (4, 0)): (1024, 1024),
        ("GetWelfordFinalizeMaxMinTmpSize", (128,), (4, 0)): (1536, 1024),
        ("GetNormalizeMaxMinTmpSize", (9, 60), (4, 4, 0, 1, 0)): (8704, 512),
        ("GetDeepNormMaxMinTmpSize", (4, 16, 64), (4, 0, 1)): (49664, 1280),
        ("GetAscendAntiQuantMaxMinTmpSize", (1024,), (1, 0)): (4096, 1024),
    }  # fmt: skip
    with socs.use("Ascend910B1"):
        for (name, shape, numbers), want in sizes.items():
            assert tuple(np.frombuffer(answer(name, shape, numbers), np.uint32)) == want, name
        tiling = SoftMaxTiling.from_bytes(answer("SoftMaxTilingFunc", (24, 128), (4, 20 * 800, 0, 0)))
        deep = DeepNormTiling.from_bytes(answer("GetDeepNormTilingInfo", (4, 16, 64), (64, 20000, 2, 0, 1)))
        with pytest.raises(TilingError, match="at least 1280 bytes and originH up to 64, got 1279 and 64"):
            answer("GetDeepNormTilingInfo", (4, 16, 64), (64, 1279, 4, 0, 0))
        with pytest.raises(TilingError, match="whole blocks up to 2040"):
            answer("GetDeepNormMaxMinTmpSize", (4, 16, 2048), (4, 0, 0))
    assert (deep.oneTmpSize, deep.loopRound, deep.inputTailSize, deep.meanVarTailPos) == (1536, 2, 1024, 48)
    assert (tiling.srcM, tiling.srcK, tiling.outMaxK, tiling.splitM, tiling.rangeM, tiling.tailM) == (
        24,
        128,
        8,
        8,
        3,
        0,
    )
