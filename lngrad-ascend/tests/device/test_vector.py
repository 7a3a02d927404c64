from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from device_harness import HALF, F, content, tensor
from lngrad.errors import DtypeError
from lngrad_ascend import ascendc as asc
from lngrad_ascend.device.numerics import lane_sums, pairwise_sum, reduce_sum, round_to
from lngrad_ascend.faults import BoundsFault
from lngrad_ascend.tile.layernormgrad_kernels import row_sums
from tile_harness import check_same_bits

MODES = asc.RoundMode


def test_scalar_instructions_round_the_scalar_first():
    pipe = asc.TPipe()
    a = tensor(pipe, np.arange(16), dtype=HALF)
    out = tensor(pipe, count=16, dtype=HALF)
    asc.Muls(out, a, 0.1, 16)
    check_same_bits("Muls", content(out), np.arange(16, dtype=HALF) * HALF(0.1))
    asc.Adds(out, a, 0.1, 16)
    check_same_bits("Adds", content(out), np.arange(16, dtype=HALF) + HALF(0.1))
    asc.Sqrt(out, a, 16)
    check_same_bits("Sqrt", content(out), np.sqrt(np.arange(16, dtype=HALF)))


def test_infinities_and_nan_are_results():
    pipe = asc.TPipe()
    out = tensor(pipe, count=8)
    asc.Div(out, tensor(pipe, [1, -1, 0, 1, 1, 1, 1, 1]), tensor(pipe, [0, 0, 0, 1, 1, 1, 1, 1]), 8)
    assert content(out)[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(content(out)[2])


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(st.floats(width=32, allow_nan=False), st.sampled_from([HALF, ml_dtypes.bfloat16]), st.sampled_from(list(MODES)))
def test_cast_rounds_as_its_mode_says(value, dtype, mode):
    values = np.array([value], F)
    with np.errstate(all="ignore"):
        got = round_to(values, np.dtype(dtype), mode)[0]
    largest = float(ml_dtypes.finfo(dtype).max)
    if not np.isfinite(value):
        assert float(got) == value
        return
    if abs(value) > largest:
        away = {MODES.CAST_FLOOR: -1, MODES.CAST_CEIL: 1}.get(mode)
        if mode in (MODES.CAST_TRUNC, MODES.CAST_ODD) or (away is not None and away * value < 0):
            assert abs(float(got)) == largest
        return
    exact, error = Fraction(value), Fraction(float(got)) - Fraction(value) if np.isfinite(float(got)) else None
    if error is None or error == 0:
        return
    # The two neighbours, found without round_to: step from the result across the exact value.
    other = np.nextafter(got, np.array(-np.inf if error > 0 else np.inf, dtype))
    gap = abs(error)
    if np.isfinite(float(other)):
        rest = abs(Fraction(float(other)) - exact)
        if mode in (MODES.CAST_NONE, MODES.CAST_RINT, MODES.CAST_ROUND):
            assert gap <= rest
            if gap == rest and mode is MODES.CAST_ROUND:
                assert abs(float(got)) > abs(float(other))
            elif gap == rest:
                assert np.array(got).view(np.uint16) % 2 == 0
    if mode is MODES.CAST_FLOOR:
        assert error < 0
    if mode is MODES.CAST_CEIL:
        assert error > 0
    if mode is MODES.CAST_TRUNC:
        assert error * exact <= 0
    if mode is MODES.CAST_ODD:
        assert np.array(got).view(np.uint16) % 2 == 1


def test_ties_of_round_and_rint():
    tie = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 3 * 2.0**-11], F)
    pipe = asc.TPipe()
    source, out = tensor(pipe, np.resize(tie, 8)), tensor(pipe, count=16, dtype=HALF)
    asc.Cast(out, source, MODES.CAST_RINT, 3)
    assert content(out, 3).tolist() == [1.0, -1.0, 1 + 2 * 2.0**-10]
    asc.Cast(out, source, MODES.CAST_ROUND, 3)
    assert content(out, 3).tolist() == [1 + 2.0**-10, -1 - 2.0**-10, 1 + 2 * 2.0**-10]


def test_cast_saturates_only_when_told():
    pipe = asc.TPipe()
    source, out = tensor(pipe, [1e6, -1e6, 65519, 1, 1, 1, 1, 1]), tensor(pipe, count=16, dtype=HALF)
    asc.Cast(out, source, MODES.CAST_NONE, 3)
    assert content(out, 3).tolist() == [np.inf, -np.inf, 65504]
    asc.Cast(out, source, MODES.CAST_NONE, 3, saturate=True)
    assert content(out, 3).tolist() == [65504, -65504, 65504]


def test_types_that_an_instruction_does_not_take():
    pipe = asc.TPipe()
    a, b = tensor(pipe, np.zeros(16)), tensor(pipe, np.zeros(16), dtype=HALF)
    with pytest.raises(DtypeError, match="Add: dst and src1 must be of one type, got float and half"):
        asc.Add(a, a, b, 8)
    with pytest.raises(DtypeError, match="Cast: half to half is not one of the conversions"):
        asc.Cast(b, b, MODES.CAST_NONE, 8)
    with pytest.raises(DtypeError, match="Mul: "):
        asc.Mul(*[tensor(pipe, np.zeros(16), dtype=np.int8)] * 3, 8)


def test_neighbours_are_added_first():
    # 1 + 1e8 - 1e8 in three orders: only neighbours-first keeps the last two ones.
    values = np.array([1e8, 1, -1e8, 1, 1, 1, 0, 0], F)
    expected = ((F(1e8) + F(1)) + (F(-1e8) + F(1))) + ((F(1) + F(1)) + (F(0) + F(0)))
    assert pairwise_sum(values) == expected
    assert pairwise_sum(values[:6]) == expected


def test_whole_reduce_sum_and_its_strides():
    pipe = asc.TPipe()
    rng = np.random.default_rng(2)
    values = rng.normal(size=256).astype(F)
    out = tensor(pipe, np.zeros(8))
    asc.WholeReduceSum(out, tensor(pipe, values), 24, 2, 3, 2, 16)
    lanes = np.concatenate([np.arange(8) + 16 * block for block in range(3)])
    for repeat in range(2):
        assert content(out)[3 * repeat] == pairwise_sum(values[128 * repeat :][lanes])
    with pytest.raises(BoundsFault, match="mask must be 1 to 64"):
        asc.WholeReduceSum(out, out, 65, 1, 1, 1, 8)


@pytest.mark.parametrize("H", [8, 16, 64, 72, 128, 1000, 64 * 65])
def test_row_sums_go_repeat_by_repeat(H):
    pipe = asc.TPipe()
    values = np.random.default_rng(3).normal(size=(3, H)).astype(F)
    source, out = tensor(pipe, values.reshape(-1)), tensor(pipe, count=3)
    row_sums(out, source, 3, H)
    for row in range(3):
        left = values[row]
        while left.size > 1:
            pieces = [left[i : i + 64] for i in range(0, left.size, 64)]
            left = np.array([pairwise_sum(piece) for piece in pieces], F)
        assert content(out)[row] == left[0]
    total = tensor(pipe, count=8)
    asc.ReduceSum(total, source, tensor(pipe, count=128), H)
    partials = [pairwise_sum(values[0][i : i + 64]) for i in range(0, H, 64)]
    expected = partials[0]
    for partial in partials[1:]:
        expected = expected + partial
    assert content(total, 1)[0] == expected


def test_reduce_sum_adds_in_the_order_of_the_architecture():
    values = np.random.default_rng(5).normal(size=(50, 1024)).astype(F)
    tree_of_trees = [reduce_sum(row, 2002)[0] for row in values]
    one_after_another = [reduce_sum(row, 2201)[0] for row in values]
    assert tree_of_trees == [pairwise_sum(pairwise_sum(row.reshape(16, 64))) for row in values]
    assert sum(a != b for a, b in zip(tree_of_trees, one_after_another, strict=True)) > 10
    short = values[0][:192]
    assert reduce_sum(short, 3510)[0] == pairwise_sum((short[:64] + short[64:128]) + short[128:])
    assert reduce_sum(values[0], 3510)[0] == tree_of_trees[0]


def test_lane_sums_add_vectors_in_order():
    values = np.random.default_rng(4).normal(size=(2, 200)).astype(F)
    lanes = np.zeros((2, 64), F)
    for start in range(0, 200, 64):
        piece = values[:, start : start + 64]
        lanes[:, : piece.shape[1]] += piece
    check_same_bits("lane_sums", lane_sums(values), pairwise_sum(lanes))


def test_brcb_fills_blocks():
    pipe = asc.TPipe()
    out = tensor(pipe, np.zeros(16 * 16))
    asc.Brcb(out, tensor(pipe, np.arange(16)), 2, (2, 16))
    got = content(out).reshape(16, 2, 8)
    assert (got[:, 0] == np.arange(16)[:, None]).all()
    assert not got[:, 1].any()
    with pytest.raises(BoundsFault, match="repeatTime must be 0 to 255"):
        asc.Brcb(out, out, 256, (1, 8))
