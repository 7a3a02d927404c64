"""The mask and repeat forms against loops that spell out what the manual says."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from device_harness import HALF, E, F, bind, buffer, buffers, content, fill, flag, tensor
from lngrad.errors import DtypeError
from lngrad_ascend import ascendc as asc
from lngrad_ascend.faults import BoundsFault, DeviceFault, OverlapFault, PoisonFault
from tile_harness import check_same_bits

SIZE = 4096
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum}
SCALAR = {"Adds": np.add, "Muls": np.multiply, "Maxs": np.maximum, "Mins": np.minimum}
UNARY = {
    "Sqrt": np.sqrt,
    "Rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
    "Exp": np.exp,
    "Abs": np.abs,
    "Reciprocal": lambda a: a.dtype.type(1) / a,
    "Ln": np.log,
    "Relu": lambda a: np.maximum(a, a.dtype.type(0)),
}


def tensors(count, dtype=F, seed=0):
    """Tensors of SIZE bytes with random positive values, and copies of those."""
    rng, pipe = np.random.default_rng(seed), asc.TPipe()
    values = [rng.uniform(0.5, 2, SIZE // dtype().itemsize).astype(dtype) for _ in range(count)]
    return [tensor(pipe, array, dtype=dtype) for array in values], values


def places(lanes, repeat, block, step, size):
    """Return the element of every lane of every repeat."""
    per_block = 32 // size
    return [[r * step * per_block + lane // per_block * block * per_block + lane % per_block for lane in lanes]
            for r in range(repeat)]  # fmt: skip


masks = st.one_of(st.integers(1, 64), st.integers(1, 2**64 - 1).map(lambda bits: (bits, 0)))
strides = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), *[st.integers(8, 20)] * 3)


def lanes_of(mask):
    return list(range(mask)) if isinstance(mask, int) else [b for b in range(64) if mask[0] >> b & 1]


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(BINARY)), masks, st.integers(0, 4), strides)
def test_binary(name, mask, repeat, strides):
    strides = (strides[0], strides[1], strides[2], max(strides[3], 8 * strides[0]), *strides[4:])
    (dst, a, b), (want, va, vb) = tensors(3)
    getattr(asc, name)(dst, a, b, mask, repeat, asc.BinaryRepeatParams(*strides))
    lanes = lanes_of(mask)
    index = [places(lanes, repeat, strides[i], strides[3 + i], 4) for i in range(3)]
    for into, first, second in zip(*index, strict=True):
        want[into] = BINARY[name](va[first], vb[second])
    check_same_bits(name, content(dst), want)


@pytest.mark.parametrize("dtype", [F, HALF])
@pytest.mark.parametrize("name", [*SCALAR, *UNARY])
@pytest.mark.parametrize("mask", [5, 64, (0b1011 << 40, 0)])
def test_unary_and_scalar(name, dtype, mask):
    (dst, a), (want, va) = tensors(2, dtype, seed=1)
    extra = (1.1,) if name in SCALAR else ()
    getattr(asc, name)(dst, a, *extra, mask, 3, (2, 1, 16, 9))
    size = dtype().itemsize
    lanes = lanes_of(mask)
    for into, source in zip(places(lanes, 3, 2, 16, size), places(lanes, 3, 1, 9, size), strict=True):
        want[into] = SCALAR[name](va[source], dtype(1.1)) if extra else UNARY[name](va[source])
    check_same_bits(name, content(dst), want)


@pytest.mark.parametrize("dtype", [F, HALF])
@pytest.mark.parametrize("name", [*BINARY, *UNARY, *SCALAR])
def test_the_count_form(name, dtype):
    (dst, *sources), (want, *values) = tensors(3 if name in BINARY else 2, dtype, seed=2)
    scalar = [0.3] if name in SCALAR else []
    getattr(asc, name)(dst, *sources, *scalar, 37)
    function = (BINARY | SCALAR | UNARY)[name]
    want[:37] = function(*values, *map(dtype, scalar))[:37]
    check_same_bits(name, content(dst), want)
    assert dst.core.instructions()[name] == 1


def test_duplicate_and_copy():
    (dst, a), (want, va) = tensors(2, seed=3)
    asc.Duplicate(dst, 7.0, 10, 2, 1, 16)
    for into in places(range(10), 2, 1, 16, 4):
        want[into] = 7
    asc.Copy(dst[512:], a, 64, 4, asc.CopyRepeatParams(1, 4, 8, 1))  # a gather with a stride of 4 blocks
    for into, source in zip(places(range(64), 4, 1, 8, 4), places(range(64), 4, 4, 1, 4), strict=True):
        want[512:][into] = va[source]
    check_same_bits("Copy", content(dst), want)


def test_rows_are_added_up_in_place():
    """dst is src1 of every repeat: how published kernels add up rows."""
    (total, rows), (want, values) = tensors(2, seed=4)
    asc.Add(total, rows, total, 64, 10, asc.BinaryRepeatParams(1, 1, 1, 0, 8, 0))
    for row in range(10):
        want[:64] = values[64 * row : 64 * (row + 1)] + want[:64]
    check_same_bits("Add", content(total), want)
    with pytest.raises(OverlapFault, match="across repeats"):
        asc.Div(total, rows, total, 64, 10, asc.BinaryRepeatParams(1, 1, 1, 0, 8, 0))


def test_what_overlaps():
    (a,), _ = tensors(1)
    asc.Adds(a, a, 1.0, 64, 4, (1, 1, 8, 8))  # element for element
    with pytest.raises(OverlapFault, match="overlap across repeats"):
        asc.Adds(a[64:], a, 1.0, 64, 3, (1, 1, 8, 8))
    with pytest.raises(OverlapFault, match="overlap inside a repeat"):
        asc.Adds(a[8:], a, 1.0, 64, 1, (1, 1, 8, 8))
    with pytest.raises(DeviceFault, match="block stride of 0 for dst"):
        asc.Adds(a[512:], a, 1.0, 64, 1, (0, 1, 8, 8))


@pytest.mark.parametrize("mask", [0, 65, (0, 0), (0, 1), (-1, 0), (1, 2, 3)])
def test_wrong_masks(mask):
    (dst, a), _ = tensors(2)
    with pytest.raises(BoundsFault, match="mask"):
        asc.Abs(dst, a, mask, 1, (1, 1, 8, 8))


def test_other_limits():
    (dst, a), _ = tensors(2)
    with pytest.raises(BoundsFault, match="repeatTime must be 0 to 255"):
        asc.Abs(dst, a, 64, 256, (1, 1, 8, 8))
    with pytest.raises(BoundsFault, match="ends at byte"):
        asc.Abs(dst, a, 64, 17, (1, 1, 8, 8))
    with pytest.raises(DtypeError, match="expected UnaryRepeatParams"):
        asc.Abs(dst, a, 64, 1, asc.CopyRepeatParams())
    asc.Abs(dst, a, 64, 0, (1, 1, 8, 8))  # no repeats, no elements


def test_unmasked_elements_stay_unwritten():
    local = buffer(512)
    asc.Duplicate(local, 1.0, (0b101, 0), 2, 1, 8)
    assert [local.GetValue(i) for i in (0, 2, 64, 66)] == [1.0] * 4
    with pytest.raises(PoisonFault):
        local.GetValue(1)


class TestCast:
    def test_repeats_count_in_the_larger_type(self):
        (wide, narrow), values = buffers(2, SIZE), np.random.default_rng(5).uniform(0.5, 2, SIZE // 2).astype(HALF)
        narrow = fill(narrow.ReinterpretCast(HALF), values)
        asc.Cast(wide, narrow, asc.RoundMode.CAST_NONE, 64, 4, asc.UnaryRepeatParams(1, 1, 8, 4))
        check_same_bits("wide", content(wide, 256), values[:256].astype(F))
        asc.Cast(narrow[1024:], wide, asc.RoundMode.CAST_RINT, 64, 4)
        check_same_bits("narrow", content(narrow)[1024:1280], values[:256])

    def test_widening_in_place_from_the_upper_half(self):
        (local,), _ = tensors(1, HALF)
        upper, values = local[512:], content(local)[512:1024]
        asc.Cast(local.ReinterpretCast(F), upper, asc.RoundMode.CAST_NONE, 512)
        check_same_bits("wide", content(local).view(F)[:512], values.astype(F))
        for first in (0, 496):
            with pytest.raises(OverlapFault, match="upper half"):
                asc.Cast(local.ReinterpretCast(F), local[first:], asc.RoundMode.CAST_NONE, 512)

    @pytest.mark.parametrize("strictness", ["checked", "device"])
    def test_widening_one_repeat_in_place(self, strictness):
        """A device reads a repeat before it writes it; CANN's checker refuses it."""

        def kernel(x, y):
            wide = buffer(512)
            narrow = wide.ReinterpretCast(HALF)
            asc.DataCopy(narrow, bind(x, dtype=HALF), 128)
            flag(E.MTE2_V)
            asc.Cast(wide, narrow, asc.RoundMode.CAST_NONE, count)
            flag(E.V_MTE3)
            asc.DataCopy(bind(y), wide, 64)

        x, y = np.random.default_rng(3).normal(size=128).astype(HALF), np.zeros(64, F)
        for count in (64, 65) if strictness == "device" else (64,):
            if (strictness, count) == ("device", 64):
                asc.launch(kernel, 1, x, y, strictness=strictness)
                check_same_bits("wide", y, x[:64].astype(F))
            else:
                with pytest.raises(OverlapFault, match="overlap 0 bytes apart"):
                    asc.launch(kernel, 1, x, y, strictness=strictness)

    def test_narrowing_in_place(self):
        (local,), (values,) = tensors(1, F)
        asc.Cast(local.ReinterpretCast(HALF), local, asc.RoundMode.CAST_RINT, 100)
        check_same_bits("narrow", content(local).view(HALF)[:100], values[:100].astype(HALF))

    def test_integers(self):
        pipe = asc.TPipe()
        src, dst = tensor(pipe, [2.5, -2.5, 3.5, 1e20, np.nan, 0.5, -0.4, 7]), tensor(pipe, count=8, dtype=np.int32)
        expected = {
            "CAST_RINT": [2, -2, 4, 2**31 - 1, 0, 0, 0, 7],
            "CAST_FLOOR": [2, -3, 3, 2**31 - 1, 0, 0, -1, 7],
            "CAST_ROUND": [3, -3, 4, 2**31 - 1, 0, 1, 0, 7],
            "CAST_TRUNC": [2, -2, 3, 2**31 - 1, 0, 0, 0, 7],
        }
        for mode, values in expected.items():
            asc.Cast(dst, src, asc.RoundMode[mode], 8)
            assert content(dst).tolist() == values


class TestReductions:
    def test_bits_and_strides(self):
        (dst, src), (want, values) = tensors(2, seed=6)
        asc.ReduceRepeat(dst[1:], src, (0b111, 0), 3, 2, 1, 9)
        for repeat in range(3):
            row = values[72 * repeat :]
            want[1 + 2 * repeat] = (row[0] + row[1]) + row[2]
        check_same_bits("ReduceRepeat", content(dst), want)
        asc.ReduceRepeat(dst, src, 64, 1, 1, 1, 8, asc.ReduceType.MAX, asc.ReduceOrder.ORDER_ONLY_VALUE)
        assert content(dst)[0] == values[:64].max()

    def test_reduce_sum_takes_an_element_as_target(self):
        (dst, src, temporary), (want, values, _) = tensors(3, HALF, seed=7)
        asc.ReduceSum(dst[3:], src, temporary, 2)
        want[3] = values[0] + values[1]
        check_same_bits("ReduceSum", content(dst), want)
        asc.ReduceSum(dst, src, temporary, 0)  # nothing
        asc.ReduceSum(dst, src, temporary, 1, 2, 8)
        want[0] = values[0] + values[128]
        check_same_bits("ReduceSum", content(dst), want)


class TestTranspose:
    @pytest.mark.parametrize("dtype", [HALF, F])
    def test_blocks(self, dtype):
        (dst, src), (_, values) = tensors(2, dtype, seed=8)
        lanes = 32 // dtype().itemsize
        lists = [[tensor[lanes * i :] for i in range(16)] for tensor in (dst, src)]
        asc.TransDataTo5HD(*lists, asc.TransDataTo5HDParams())
        rows, got = values[: 16 * lanes].reshape(16, lanes), content(dst)[: 16 * lanes].reshape(16, lanes)
        if dtype is HALF:
            check_same_bits("dst", got, rows.T.copy())
        else:
            for j in range(8):
                for k in range(2):
                    assert (got[2 * j + k] == rows[8 * k : 8 * k + 8, j]).all()

    def test_repeats(self):
        (dst, src), (_, values) = tensors(2, HALF, seed=9)
        lists = [[tensor[16 * i :] for i in range(16)] for tensor in (dst, src)]
        asc.TransDataTo5HD(*lists, asc.TransDataTo5HDParams(False, False, 2, 16, 16))
        for repeat in range(2):
            part = slice(256 * repeat, 256 * (repeat + 1))
            check_same_bits("dst", content(dst)[part].reshape(16, 16), values[part].reshape(16, 16).T.copy())

    def test_what_it_refuses(self):
        (dst, src), _ = tensors(2, HALF)
        lists = [[tensor[16 * i :] for i in range(16)] for tensor in (dst, src)]
        with pytest.raises(BoundsFault, match="have 16 tensors, got 15 and 16"):
            asc.TransDataTo5HD(lists[0][:15], lists[1], asc.TransDataTo5HDParams())
        with pytest.raises(DeviceFault, match="different blocks"):
            asc.TransDataTo5HD([dst] * 16, lists[1], asc.TransDataTo5HDParams())
        with pytest.raises(DtypeError, match="all tensors must be of one type"):
            asc.TransDataTo5HD(lists[0], [t.ReinterpretCast(F) for t in lists[1]], asc.TransDataTo5HDParams())


class TestLocalCopies:
    def test_elements_and_blocks(self):
        (dst, src), (want, values) = tensors(2, seed=10)
        asc.DataCopy(dst, src[8:], 64)
        want[:64] = values[8:72]
        asc.DataCopy(dst[128:], src, asc.DataCopyParams(3, 2, 1, 4))  # blocks of 64 bytes, gaps of 32 and 128
        for block in range(3):
            want[128 + 48 * block :][:16] = values[24 * block :][:16]
        check_same_bits("DataCopy", content(dst), want)

    def test_between_global_memory_and_here(self):
        memory, target = np.arange(64, dtype=F), np.zeros(64, F)

        def kernel(source, result):
            local = buffer()
            asc.DataCopy(local, bind(source), asc.DataCopyParams(2, 1, 3, 1))
            asc.PipeBarrier(asc.PIPE_ALL)
            asc.DataCopy(bind(result), local, asc.DataCopyParams(2, 1, 1, 2))

        asc.launch(kernel, 1, memory, target)
        assert target[:8].tolist() == memory[:8].tolist()
        assert target[24:32].tolist() == memory[32:40].tolist()
        assert not target[8:24].any()

    def test_limits(self):
        (dst, src), _ = tensors(2)
        with pytest.raises(BoundsFault, match="blockCount is 0 to 4095"):
            asc.DataCopy(dst, src, asc.DataCopyParams(4096, 1))
        asc.DataCopy(dst, src, asc.DataCopyParams(0, 1))
