"""Every row of the library of functions on rows against NumPy, and the tiling functions."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from device_harness import content, fill, tensor
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


RNG = np.random.default_rng(5)
X, Y, Z = RNG.standard_normal((3, M, K))
FLAT = [array.reshape(-1) for array in (X, Y, Z)]
OUT, COLUMN, LINE = np.zeros((M, K)), np.zeros((M, 8)), np.zeros(K)
COUNTED = np.arange(K) < REAL
# A row of each function below: the function, its tensors, the whole numbers, the real one, and what the first tensors become.


def softmax_rows():
    x = np.where(COUNTED, X, -np.inf)
    largest = x.max(axis=1, keepdims=True)
    e = np.exp(x - largest)
    total = e.sum(axis=1, keepdims=True)
    before = blocks(RNG.standard_normal(M)), blocks(largest[:, 0] + [1, -1, 0.5])
    larger = np.maximum(largest, before[1][:, :1])
    scale, shifted = np.exp(before[1][:, :1] - larger), np.exp(x - larger)
    inner = (X * Y)[:, :REAL].sum(axis=1)
    yield "SoftMax", [OUT, COLUMN, COLUMN, X], SHAPE, 0, [e / total, blocks(total), blocks(largest)]
    yield "SoftMax", [OUT, X], SHAPE, 0, [e / total]
    yield "SimpleSoftMax", [OUT, blocks(total), blocks(largest), X], SHAPE, 0, [np.exp(X - largest) / total]
    logarithm = np.log10(np.exp(X) / np.exp(X).sum(1, keepdims=True))
    yield "LogSoftMax", [OUT, COLUMN, COLUMN, X], (M, K, K), 0, [logarithm]
    yield "SoftmaxGrad", [OUT, X, Y], (*SHAPE, 0), 0, [(X - inner[:, None]) * Y]
    yield "SoftmaxGrad", [COLUMN, X, Y], (*SHAPE, 1), 0, [blocks(inner)]
    sums = scale * before[0][:, :1] + shifted.sum(1, keepdims=True)
    flash = [shifted, blocks(sums), blocks(larger)]
    yield "SoftmaxFlashV2", [OUT, COLUMN, COLUMN, X, COLUMN, *before], (*SHAPE, 1), 0, flash
    marked = blocks(np.array([1.0, 2.0, 1.0]))
    yield "AdjustSoftMaxRes", [X, marked], (M, K, K, 0x3F800000), 7.0, [np.where([[1], [0], [1]], 7.0, X)]


def reductions():
    yield "Sum", [LINE, X], SHAPE, 0, [np.append(X[:, :REAL].sum(1), LINE[M:])]
    yield "Mean", [LINE, X], SHAPE, 0, [np.append(X[:, :REAL].mean(1), LINE[M:])]
    for name, function in (("Sum", np.sum), ("Max", np.max), ("Min", np.min), ("Prod", np.prod), ("Mean", np.mean)):
        yield f"Reduce{name}", [LINE, X], (*SHAPE, 1), 0, [np.append(function(X[:, :REAL], axis=1), LINE[M:])]
        yield f"Reduce{name}", [LINE, X], (*SHAPE, 0), 0, [function(X, axis=0)]
    yield "CumSum", [OUT, LINE, X], (*SHAPE, 0, 1), 0, [np.cumsum(X, 0), np.cumsum(X, 0)[-1]]
    yield "CumSum", [OUT, LINE, X], (*SHAPE, 1, 0), 0, [np.cumsum(X, 1), LINE]


def elementwise():
    mask = (RNG.random((M, K)) < 0.5).astype(np.uint8)
    odd, heads = np.array([np.inf, -np.inf, np.nan, 0.0] * 4), np.array([1.0, 0.0] * 8)
    yield "Fma", [OUT, *FLAT], (M * K,), 0, [X * Y + Z]
    yield "Arange", [LINE], (bits(2.0), bits(-0.5), K), 0, [2.0 - 0.5 * np.arange(K)]
    yield "DropOut", [OUT, X, mask], (M, K, K, 0), 0.25, [X / 0.25 * mask]
    packed = np.zeros(32, np.uint8)
    packed[: M * 2] = np.packbits(mask, axis=1, bitorder="little").reshape(-1)
    yield "DropOut", [OUT, X, packed], (M, K, K, 1), 0.25, [X / 0.25 * mask]
    yield "Select", [OUT, X, mask], (M, K, K, 1), 4.0, [np.where(mask, 4.0, X)]
    yield "Select", [OUT, X, mask], (M, K, K, 0), 4.0, [np.where(mask, X, 4.0)]
    yield "Clamp", [OUT, FLAT[0], FLAT[1]], (M * K, 1, 0, 0, bits(0.5)), 0, [np.minimum(np.maximum(X, Y), 0.5)]
    for name, function in (("IsFinite", np.isfinite), ("IsInf", np.isinf), ("IsNan", np.isnan)):
        yield name, [LINE, odd], (K,), 0, [function(odd)]
    yield "LogicalNot", [LINE, heads], (K,), 0, [heads == 0]
    for name, function in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
        yield f"Logical{name}", [LINE, odd, heads], (K,), 0, [function(odd, heads)]


def sorting():
    scores, numbers = RNG.integers(-9, 9, 64).astype(float), RNG.permutation(64).astype(np.uint32)
    order = np.concatenate([at + np.argsort(-scores[at : at + 32], kind="stable") for at in (0, 32)])
    whole = np.argsort(-scores, kind="stable")  # of equal scores the first list's come first
    listed, merged = (
        np.stack([np.float32(scores[places]), numbers[places].view(np.float32)], axis=1) for places in (order, whole)
    )
    yield "Sort32", [np.zeros(128), scores, numbers], (2, 32), 0, [listed]
    yield "Extract", [np.zeros(64), np.zeros(64, np.uint32), listed], (2,), 0, [scores[order], numbers[order]]
    yield "Sort32", [np.ones(8), scores, numbers], (0, 32), 0, [np.ones(8)]
    first, second = listed[:32], listed[32:]
    yield "MrgSort", [np.zeros(128), first, second, first, first], (32, 32, 0, 0, 0, 3, 1), 0, [merged]
    table, names = RNG.integers(-9, 9, (2, 64)).astype(float), RNG.permutation(64).astype(np.int32)
    table[0, [3, 40]], table[1, 50:] = [np.inf, np.nan], 9.0  # 50 of 64 count
    for falling in (1, 0):
        key = -table if falling else table
        best = [sorted(range(64), key=lambda j, row=row: (not np.isnan(row[j]), row[j], j))[:5] for row in key]
        taken = np.pad(np.take_along_axis(table, np.array(best), 1), ((0, 0), (0, 3)))
        for init, done in ((0, 0), (1, 1)):
            want = np.where([[0], [done]], 50, names[best] if init else best)
            tensors = [np.full((2, 8), 7.0), np.zeros((2, 8), np.int32), table, names, np.array([0, 1], np.uint8)]
            yield "TopK", tensors, (2, 64, 50, 5, init, done, 0, falling), 0, [taken, np.pad(want, ((0, 0), (0, 3)))]
    small, named = RNG.standard_normal((2, 32)), RNG.integers(0, 99, (2, 32)).astype(np.int32)
    best = np.argsort(-small, axis=1)[:, :12]
    tensors = [np.zeros((2, 12)), np.zeros((2, 12), np.int32), small, named, small]
    taken = [np.take_along_axis(array, best, 1) for array in (small, named)]
    yield "TopK", tensors, (2, 32, 32, 12, 1, 0, 1, 1), 0, taken


def moves():
    both = np.stack(FLAT[:2], axis=1).reshape(2, -1)
    yield "Interleave", [np.zeros(M * K), np.zeros(M * K), *FLAT[:2]], (M * K,), 0, both
    yield "DeInterleave", [np.zeros(M * K), np.zeros(M * K), *both], (M * K,), 0, FLAT[:2]
    offsets, image = np.array([3, 1, 0, 2, 5, 4, 0, 1], np.uint32) * 32, RNG.standard_normal((1, 2, 2, 4))
    yield "Gatherb", [np.zeros(64), FLAT[0], offsets], (1, 1, 8), 0, [FLAT[0].reshape(-1, 8)[offsets // 32]]
    yield "Transpose", [np.zeros(16), image], (1, 2, 2, 4, 11), 0, [image.transpose(0, 2, 3, 1)]
    yield "Transpose", [np.zeros(16), image], (1, 4, 2, 2, 12), 0, [image.reshape(1, 2, 2, 4).transpose(0, 3, 1, 2)]


def quantization():
    rounded = np.rint(np.float16(FLAT[0]) * np.float16(90) + np.float16(3))
    quantized = [np.append(np.clip(rounded, -128, 127), np.zeros(16))]
    yield "AscendQuant", [np.zeros(M * K + 16, np.int8), FLAT[0]], (bits(3.0), M * K), 90.0, quantized
    whole, scales = RNG.integers(-1000, 1000, (M, K)).astype(np.int32), RNG.standard_normal(K)
    products = np.where(COUNTED, whole * np.float32(scales).astype(float), 0)
    yield "AscendDequant", [OUT, whole, scales], (M, K, REAL, 0), 0, [products]
    yield "AscendDequant", [OUT, whole, scales], (M, K, K, 1), 0.5, [whole * 0.5]
    codes = RNG.integers(-128, 127, (4, 32)).astype(np.int8)
    shifts, steps = RNG.standard_normal((2, 2, 32))
    for kind, computed in ((np.float32, np.float64), (np.float16, np.float16)):
        shift, step = (np.repeat(array.astype(kind), 2, 0).astype(computed) for array in (shifts, steps))
        tensors = [np.zeros((4, 32), kind), codes, shifts.astype(kind), steps.astype(kind)]
        yield "AscendAntiQuant", tensors, (4, 32, 2), 0, [(codes.astype(computed) + shift) * step]
    yield "AscendAntiQuant", [np.zeros((4, 32)), codes], (128, bits(3.0), bits(0.25)), 0, [(codes + 3.0) / 4]


def normalizations():
    root = np.sqrt((X[:, :REAL] ** 2).mean(1, keepdims=True) + 0.1)
    yield "RmsNorm", [OUT, X, Y[0]], SHAPE, 0.1, [X / root * Y[0]]
    mean, variance = Y[0].copy(), np.abs(Z[0])
    step = X[0] - mean
    moved = np.where(COUNTED, mean + step * 0.125, mean), np.where(COUNTED, variance + step**2 * 0.875, variance)
    yield "WelfordUpdate", [LINE, LINE, mean, variance, X[0]], (K, REAL, 1), 0.125, moved
    partly = [np.where(COUNTED, array, LINE) for array in moved]
    yield "WelfordUpdate", [LINE, LINE, mean, variance, X[0]], (K, REAL, 0), 0.125, partly
    drawn = RNG.integers(1, 9, K)
    for counts, count, (head, tail) in (
        ([drawn.astype(np.int32)], drawn, (0, 0)),
        ([], np.full(K, 3), (0, 0)),
        ([], np.repeat([4, 2], [K - 3, 3]), (4, 2)),
    ):
        total = int(count.sum())
        whole = (mean * count).sum() / total
        want = [[whole, *[0] * 7], [(variance + count * (mean - whole) ** 2).sum() / total, *[0] * 7]]
        numbers = (3, K, *((head, K - 3, tail, 3) if tail else (3, K, 0, 0)), bits(1 / K), *[bits(1 / total)] * 2)
        yield "WelfordFinalize", [np.zeros(8), np.zeros(8), mean, variance, *counts], numbers, 0, want
    mean, variance = X[:, :REAL].mean(1), X[:, :REAL].var(1)
    rstd = 1 / np.sqrt(variance + 0.1)
    xhat = (X - mean[:, None]) * rstd[:, None]
    for bare, (scale, shift) in enumerate([(Y[0], Z[0]), (1, 0)]):
        want = [np.where(COUNTED, xhat * scale + shift, xhat), rstd]
        yield "Normalize", [OUT, np.zeros(M), mean, variance, X, Y[0], Z[0]], (*SHAPE, bare, bare), 0.1, want
    deep = 2.5 * X + Y
    mean, variance = deep[:, :REAL].mean(1, keepdims=True), deep[:, :REAL].var(1, keepdims=True)
    want = [(deep - mean) / np.sqrt(variance + 0.1) * Z[1] + Z[0], mean, variance]
    yield "DeepNorm", [OUT, np.zeros(M), np.zeros(M), X, Y, Z[0], Z[1]], (*SHAPE, bits(2.5)), 0.1, want


SUBJECTS = (softmax_rows, reductions, elementwise, sorting, moves, quantization, normalizations)
ROWS = [row for subject in SUBJECTS for row in subject()]


@pytest.mark.parametrize(("name", "arrays", "numbers", "real", "wants"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_against_numpy(name, arrays, numbers, real, wants):
    with socs.use("Ascend950"):
        pipe = asc.TPipe()
        dtypes = [array.dtype if array.dtype.itemsize < 8 else np.float32 for array in arrays]
        tensors = [tensor(pipe, array.reshape(-1), dtype=dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        call_library(name, tensors, tuple(numbers), real)
    for out, want in zip(tensors, wants, strict=False):
        both = np.asarray(want, np.float64).reshape(-1), content(out).astype(np.float64)
        want, got = (np.nan_to_num(array, nan=-7e7, posinf=8e8, neginf=-8e8) for array in both)
        error = np.abs(got - want) / np.maximum(np.abs(want), 1)
        assert error.max() < 1e-6, (name, numbers, got, want)


def test_every_function_has_a_row():
    assert {row[0] for row in ROWS} == set(LIBRARY)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("mode", range(6))
def test_a_comparison_is_kept_in_a_register(mode, dtype):
    lanes = 256 // np.dtype(dtype).itemsize
    left, right = np.random.default_rng(mode).integers(-2, 3, (2, lanes)).astype(dtype)
    function = (np.less, np.greater, np.equal, np.less_equal, np.greater_equal, np.not_equal)[mode]
    wanted = np.arange(lanes) % 3 != 0
    words = np.packbits(np.append(wanted, np.zeros(128 - lanes, bool)), bitorder="little").view(np.int64)
    pipe = asc.TPipe()
    sources, kept = [tensor(pipe, array, dtype=dtype) for array in (left, right)], register(pipe)
    asc.Compare(kept, *sources, CMPMODE(mode), [int(word) & (1 << 64) - 1 for word in words], 1)
    got = np.unpackbits(content(kept), bitorder="little")[:lanes] != 0
    assert (got == (function(left, right) & wanted)).all()


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
    out, left, right = (tensor(pipe, values, dtype=dtype) for values in (before, x, y))
    kept = register(pipe)
    pipe.ub.data[kept.start : kept.start + 16] = np.packbits(bits, bitorder="little")
    words = np.packbits(wanted, bitorder="little").view(np.uint64).tolist()
    strides = (1, 1, 1, 8, 8, 8) if counts else (2, 1, 1, 16, 8, 9)
    arguments = (count,) if counts else (words, 2, strides)
    asc.Select(out, kept, left, right, SELMODE.VSEL_CMPMASK_SPR, *arguments)
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


def holes(local):
    """Which elements of a tensor have no value."""
    origins = local.core.ub.poison[local.start : local.end].reshape(local.GetSize(), -1)
    return origins.any(axis=1)


def test_sorting_takes_what_has_no_number_and_carries_what_has_no_value():
    rng = np.random.default_rng(8)
    scores = rng.standard_normal(64).astype(np.float32)
    scores[[3, 40]], scores[[9, 50]], scores[11] = np.nan, np.inf, -np.inf
    pipe = asc.TPipe()
    pairs, listed, merged = (tensor(pipe, count=128) for _ in range(3))
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
    few = fill(tensor(pipe, count=64, dtype=np.uint32), np.arange(10))
    call_library("Sort32", [listed, tensor(pipe, scores), few], (2, 32), 0)
    assert (holes(listed)[1::2] == (order >= 10)).all()
    assert not holes(listed)[::2].any()
    call_library(
        "MrgSort",
        [merged, listed[:64], listed[64:], listed, listed],
        (32, 32, 0, 0, 0, 3, 1),
        0,
    )
    values, numbers = tensor(pipe, count=64), tensor(pipe, count=64, dtype=np.uint32)
    call_library("Extract", [values, numbers, merged], (2,), 0)
    assert (holes(numbers) == (whole >= 10)).all()
    assert not holes(values).any()
    check_same_bits("Extract", content(values), scores[whole])
    with pytest.raises(PoisonFault, match=r"GetValue: this .* was never written"):
        numbers.GetValue(1)
    # A score without a value may stand anywhere among those of its repeat.
    rest = fill(tensor(pipe, count=64), scores[:40])
    call_library("Sort32", [listed, rest, tensor(pipe, np.arange(64), dtype=np.uint32)], (2, 32), 0)
    assert holes(listed).tolist() == [False] * 64 + [True] * 64
    with pytest.raises(PoisonFault, match=r"MrgSort: src2 .* was never written"):
        call_library(
            "MrgSort",
            [merged, listed[:64], listed[64:], listed, listed],
            (32, 32, 0, 0, 1, 3, 1),
            0,
        )


def test_what_moves_elements_carries_what_has_no_value():
    pipe = asc.TPipe()
    partial, out = fill(tensor(pipe, count=64), np.arange(40)), tensor(pipe, count=64)
    offsets = np.array([7, 0, 5, 1, 4, 2, 3, 6], np.uint32)
    call_library("Gatherb", [out, partial, tensor(pipe, offsets * 32, dtype=np.uint32)], (1, 1, 8), 0)
    assert holes(out).reshape(8, 8)[:, 0].tolist() == (offsets >= 5).tolist()
    call_library("Transpose", [out, partial], (1, 2, 4, 8, 11), 0)
    assert (holes(out) == (np.arange(64).reshape(2, 32).T.reshape(-1) >= 40)).all()
    column = fill(tensor(pipe, count=16), [5])
    asc.BroadCast(out, column, (2, 8), (2, 1))
    assert holes(out)[:16].tolist() == [False] * 8 + [True] * 8
    assert (content(out, 8) == 5).all()


def test_a_pattern_needs_only_the_bits_that_take_part():
    pipe = asc.TPipe()
    x, out, pattern = tensor(pipe, np.arange(64)), tensor(pipe, count=64), tensor(pipe, count=32, dtype=np.uint8)
    partial = fill(tensor(pipe, count=64), np.arange(12) % 3)
    asc.CompareScalar(pattern, partial, 1.0, CMPMODE.EQ, 64)
    words = pattern.ReinterpretCast(np.uint32)
    assert asc.GatherMask(out, x, words, True, 12, (1, 1, 8, 1)) == 4
    assert content(out, 4).tolist() == [1, 4, 7, 10]
    with pytest.raises(PoisonFault, match=r"GatherMask: src1Pattern .* was never written"):
        asc.GatherMask(out, x, words, True, 13, (1, 1, 8, 1))
    # A sum of such bytes does not know which of its bits have a value; a copy does, and what works bit by bit.
    copied, other, both = (tensor(pipe, count=32, dtype=np.uint8) for _ in range(3))
    asc.DataCopy(copied, pattern, 32)
    assert asc.GatherMask(out, x, copied.ReinterpretCast(np.uint32), True, 12, (1, 1, 8, 1)) == 4
    few = fill(tensor(pipe, count=64), np.arange(10) % 3)
    asc.CompareScalar(other, few, 1.0, CMPMODE.EQ, 64)
    halves = [local.ReinterpretCast(np.uint16) for local in (both, pattern, other)]
    signed = [local.ReinterpretCast(np.int16) for local in halves]
    for compute in (
        lambda: asc.And(*halves, 16),
        lambda: asc.ShiftRight(halves[0], halves[1], 2, 16),
        lambda: asc.Adds(*signed[:2], 1, 16),
        lambda: asc.Adds(*(local.ReinterpretCast(np.float16) for local in halves[:2]), 0, 16),  # -0 becomes 0
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
    x, mask = tensor(pipe, np.arange(64)), tensor(pipe, count=32, dtype=np.uint8)
    partial = fill(tensor(pipe, count=64), np.arange(12) % 3)
    asc.CompareScalar(mask, partial, 1.0, CMPMODE.EQ, 64)
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


with (Path(__file__).parent / "temporary_sizes.csv").open(newline="") as file:
    TEMPORARY_SIZES = list(csv.DictReader(file))


@pytest.mark.parametrize("row", TEMPORARY_SIZES, ids=lambda row: row["function"])
def test_a_temporary_size_is_as_asc_devkit_has_it_for_a2(row):
    shape, arguments = (tuple(map(int, row[name].split())) for name in ("shape", "arguments"))
    with socs.use("Ascend910B1"):
        sizes = np.frombuffer(answer(row["function"], shape, arguments), np.uint32)
    assert sizes.tolist() == [int(row["largest"]), int(row["smallest"])]


def test_tiling_functions():
    """The pieces of SoftMax and of DeepNorm."""
    with socs.use("Ascend910B1"):
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
