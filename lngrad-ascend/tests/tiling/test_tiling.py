from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from functools import partial
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lngrad_ascend import tiling
from lngrad_ascend.faults import AscendWarning, TilingError
from lngrad_ascend.tiling.structs import float_from_bits, int16, int64, uint8, uint64

GRAD_SIZES = tiling.GetLayerNormGradMaxMinTmpSize
GRAD_INFO = partial(tiling.GetLayerNormGradNDTilingInfo, quiet=True)
BETA_SIZES = tiling.GetLayerNormGradBetaMaxMinTmpSize
BETA_INFO = partial(tiling.GetLayerNormGradBetaNDTilingInfo, quiet=True)
FORWARD_SIZES = tiling.GetLayerNormMaxMinTmpSize
FORWARD_INFO = tiling.GetLayerNormNDTilingInfo


def test_the_manual_s_half_example_is_exact():
    assert GRAD_SIZES([2, 16, 64, 64], 2, False) == (73728, 36864)
    info = GRAD_INFO([2, 16, 64, 64], 36864, 2, False)
    assert (info.oneCalSize, info.nohCalSize, info.loopNum, info.tailSize, info.nohTailSize) == (1024, 16, 2, 0, 0)
    assert (info.tmpTensor2Pos, info.tmpTensor2Size, info.stackBufferSize) == (8 * 1024, 1024, 36864)


def test_the_sample_s_float_example_is_exact():
    assert GRAD_SIZES([2, 32, 16, 16], 4, False) == (24576, 6144)
    small, large = (GRAD_INFO([2, 32, 16, 16], stack, 4, False) for stack in (6144, 24576))
    assert (small.oneCalSize, small.nohCalSize, small.loopNum) == (256, 16, 4)
    assert (large.oneCalSize, large.nohCalSize, large.loopNum) == (1024, 64, 1)
    assert float_from_bits(small.lastDimValueBack) == 1 / 16
    assert float_from_bits(small.lastDimValueBackMulTwo) == 2 / 16


@pytest.mark.parametrize(("soc", "largest_minimum"), [("Ascend910B1", 6144), ("Ascend950", 704)])
def test_the_chain_sample_s_temporary_buffer(soc, largest_minimum):
    sizes = [get([2, 32, 16, 16], 4, False, soc=soc)[1] for get in (FORWARD_SIZES, GRAD_SIZES, BETA_SIZES)]
    assert max(sizes) == largest_minimum


@pytest.mark.parametrize(
    ("type_size", "reuse", "expected"), [(4, True, 0), (4, False, 2 * 24 * 4), (2, False, 2 * 24 * 4)]
)
def test_3510_takes_two_rows_of_floats_or_none(type_size, reuse, expected):
    assert GRAD_SIZES([2, 3, 20, 20], type_size, reuse, soc="Ascend950") == (expected, expected)
    info = GRAD_INFO([2, 3, 20, 20], expected, type_size, reuse, soc="Ascend950")
    assert (info.oneCalSize, info.nohCalSize, info.loopNum) == (1, 1, 120)


def test_reuse_drops_the_buffers_that_live_in_the_inputs():
    info = GRAD_INFO([2, 8, 16, 16], 4 * 4 * 8 * 16, 4, True)
    assert (info.x1TensorPos, info.x2TensorPos, info.x3TensorPos) == (0, 0, 3 * 128)


def test_beta_positions():
    half = BETA_INFO([2, 32, 16, 16], 4 * (2 * 16 + 2 * 48), 2, False)
    assert (half.oneCalSize, half.numberOfTmpBuf, half.loopRound, half.inputTailSize) == (48, 2, 21, 16)
    assert (half.betaTempTensorPos, half.inputDyTmpTensorPos, half.resForGammaTmpTensorPos) == (16, 32, 80)
    whole = BETA_INFO([2, 32, 16, 16], 1 << 20, 4, False)
    assert (whole.oneCalSize, whole.loopRound, whole.inputTailPos, whole.bsCurLength) == (1024, 1, 1024, 64)


shapes = st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 300))


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([2, 4]), st.booleans(), st.integers(1, 400_000), st.sampled_from(["310P", "910B1"]))
def test_grad_chunks_cover_the_tensor(shape, type_size, reuse, stack, soc):
    B, S, H = shape
    buffers = 9 if type_size == 2 else (4 if reuse else 6)
    if stack // 4 // buffers < H:
        with pytest.raises(TilingError, match=r"stackBufferSize: one row takes"):
            GRAD_INFO([B, S, H, H], stack, type_size, reuse, soc=f"Ascend{soc}")
        return
    info = GRAD_INFO([B, S, H, H], stack, type_size, reuse, soc=f"Ascend{soc}")
    assert info.loopNum * info.oneCalSize + info.tailSize == B * S * H
    assert info.oneCalSize == info.nohCalSize * H
    assert info.nohCalSize % (16 if type_size == 2 else 8) == 0
    assert info.nohTailSize * H == info.tailSize
    positions = sorted({v for k, v in vars(info).items() if k.endswith("Pos")})
    assert positions == [i * info.oneCalSize for i in range(buffers)]


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([2, 4]), st.integers(1, 400_000))
def test_beta_chunks_cover_the_tensor_and_stay_inside(shape, type_size, stack):
    B, S, H = shape
    if stack // 4 < (4 if type_size == 2 else 2) * H:
        with pytest.raises(TilingError, match=r"stackBufferSize: at least"):
            BETA_INFO([B, S, H, H], stack, type_size, False)
        return
    info = BETA_INFO([B, S, H, H], stack, type_size, False)
    assert info.loopRound * info.oneCalSize + info.inputTailSize == B * S * H == info.bshLength
    assert info.resForGammaTmpTensorPos + info.oneCalSize <= info.stackBufferSize == stack // 4


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([2, 4]), st.booleans(), st.integers(0, 1))
def test_forward_chunks_cover_the_tensor_and_stay_inside(shape, type_size, reuse, which):
    B, S, H = shape
    stack = FORWARD_SIZES([B, S, H, H], type_size, reuse)[which]
    info = FORWARD_INFO([B, S, H, H], stack, type_size, reuse)
    assert info.loopRound * info.inputRoundSize + info.inputTailSize == B * S * H
    used = info.secondTmpStartPos if reuse and type_size == 4 else info.thirdTmpStartPos
    assert used + info.oneTmpSize <= info.tmpBufSize


def test_forward_with_rstd_on_both_architectures():
    largest, smallest = FORWARD_SIZES([2, 64], 2, False, True)
    assert (largest, smallest) == (2 * 256 + 2 * 8 * 256 + 32, 4 * 256 + 32)
    info = FORWARD_INFO([2, 64], smallest, 2, False, True)
    assert (info.aLength, info.rLength, info.oneTmpSize, info.loopRound) == (2, 64, 128, 1)
    folded = FORWARD_INFO([2, 100], 1024, 4, False, True, soc="Ascend950")
    assert (folded.rHeadLength, folded.oneTmpSize) == (64, 6)
    assert (folded.k2Rec, folded.k2RRec) == (pytest.approx(1 / 128), pytest.approx(1.28))


@pytest.mark.parametrize("R", [1, 63, 64, 65, 127, 128, 129, 1000, 4096])
def test_the_3510_fold_is_a_power_of_two_around_R(R):
    info = FORWARD_INFO([1, R], 0, 4, False, True, soc="Ascend950")
    assert info.rHeadLength == 64 or info.rHeadLength <= R
    assert 2 * info.rHeadLength > R
    assert 1 / info.k2Rec >= R


@pytest.mark.parametrize("get", [GRAD_SIZES, BETA_SIZES, FORWARD_SIZES])
@pytest.mark.parametrize(
    ("shape", "type_size", "text"),
    [
        ([2, 3, 16, 16], 8, r"typeSize: expected 2 \(half\) or 4 \(float\), got 8"),
        ([2, 3, 16], 4, r"srcShape: expected 4 sizes"),
        ([1, 2, 3, 16, 16, 16], 4, r"srcShape: expected 4 sizes"),
        ([2, 0, 16, 16], 4, r"srcShape: every size must be above 0, got \[2, 0, 16, 16\]"),
        ([2, 3, 16, 17], 4, r"originHLength must not exceed storageHLength 16, got 17"),
    ],
)
def test_broken_rules_raise(get, shape, type_size, text):
    with pytest.raises(TilingError, match=text):
        get(shape, type_size, False)


def test_lenient_gives_upstream_s_values_and_says_so():
    with pytest.warns(AscendWarning, match=r"lenient.*expected 4 sizes.*got \[2, 32, 16, 16, 1, 1\]"):
        assert GRAD_SIZES([2, 32, 16, 16, 1, 1], 4, False, lenient=True) == (24576, 6144)
    with pytest.warns(AscendWarning, match=r"one row takes 6 \* 16 floats"):
        info = GRAD_INFO([2, 32, 16, 16], 100, 4, False, lenient=True)
    assert info == tiling.LayerNormGradTiling()


@pytest.mark.parametrize("info", [GRAD_INFO, BETA_INFO, FORWARD_INFO])
def test_a_division_by_zero_is_refused_even_when_lenient(info):
    with pytest.raises(TilingError, match="hLength must not be 0"):
        info([2, 3, 0, 0], 1000, 4, False, lenient=True)


def test_uint32_wrap_around_is_an_error_and_wraps_when_lenient():
    shape = [1 << 10, 1 << 10, 1 << 8, 1 << 8]  # 2**28 elements, times 9 * 2 bytes is above 2**32
    with pytest.raises(TilingError, match=r"maxValue: 4831838208 does not fit a uint32_t"):
        GRAD_SIZES(shape, 2, False)
    with pytest.warns(AscendWarning, match=r"maxValue: 4831838208 .* would wrap silently"):
        largest, smallest = GRAD_SIZES(shape, 2, False, lenient=True)
    assert (largest, smallest) == (4831838208 % 2**32, 9 * 2**16 * 2)


def test_words_and_their_order():
    order = {cls: [f.name for f in fields(cls)] for cls in (tiling.LayerNormGradTiling, tiling.LayerNormGradBetaTiling)}
    assert tiling.LayerNormGradTiling.size_bytes() == 30 * 4
    assert tiling.LayerNormGradBetaTiling.size_bytes() == 20 * 4
    assert tiling.LayerNormTiling.size_bytes() == tiling.LayerNormSeparateTiling.size_bytes() == 26 * 4
    grad, beta = order.values()
    assert grad[:5] == ["stackBufferSize", "bLength", "sLength", "hLength", "originalHLength"]
    assert grad[10:12] == ["tmpTensorBSHPos", "tmpTensorBSHSize"]
    assert grad[-2:] == ["lastDimValueBack", "lastDimValueBackMulTwo"]
    assert beta[7:10] == ["oneCalSize", "numberOfTmpBuf", "loopRound"]
    assert beta[-1] == "reserved"


@dataclass
class Outer(tiling.TilingStruct):
    grad: tiling.LayerNormGradTiling = field(default_factory=tiling.LayerNormGradTiling)
    epsilon: float = 0.0
    count: int = 0


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=30, max_size=30), st.floats(width=32), st.integers(0, 2**32 - 1))
def test_structs_survive_their_bytes(words, epsilon, count):
    outer = Outer(tiling.LayerNormGradTiling(*words), epsilon, count)
    data = outer.to_bytes()
    assert len(data) == Outer.size_bytes() == 32 * 4
    back = Outer.from_bytes(data + b"behind")
    assert back.to_bytes() == data
    assert back.grad == outer.grad


def test_a_short_buffer_and_a_large_word_are_refused():
    with pytest.raises(TilingError, match="LayerNormGradTiling takes 120 bytes, got a buffer of 119 bytes"):
        tiling.LayerNormGradTiling.from_bytes(bytes(119))
    with pytest.raises(TilingError, match=r"Outer.count: a uint32_t holds 0 to 4294967295, got -1"):
        Outer(count=-1).to_bytes()


@dataclass
class Mixed(tiling.TilingStruct):
    row: int64 = 0
    flag: uint8 = 0
    scale: float = 0.0
    inner: tiling.LayerNormGradTiling = field(default_factory=tiling.LayerNormGradTiling)
    size: uint64 = 0
    step: int16 = 0


@dataclass
class MixedPacked(Mixed):
    PACKED: ClassVar[bool] = True


class TestFieldTypes:
    def test_fields_lie_where_a_c_compiler_puts_them(self):
        data = Mixed(-5, 7, 0.5, tiling.LayerNormGradTiling(hLength=16), 2**63, -2).to_bytes()
        assert Mixed.size_bytes() == len(data) == 8 + 4 + 4 + 120 + 8 + 8
        assert struct.unpack_from("<qB3xf", data) == (-5, 7, 0.5)
        assert struct.unpack_from("<Qh", data, 136) == (2**63, -2)
        assert Mixed.from_bytes(data).inner.hLength == 16
        assert Mixed.from_bytes(data + b"more").size == 2**63

    def test_packed_structs_have_no_gaps(self):
        assert MixedPacked.size_bytes() == 8 + 1 + 4 + 120 + 8 + 2
        data = MixedPacked(1, 2, 3.0, size=4, step=5).to_bytes()
        assert struct.unpack_from("<qBf", data) == (1, 2, 3.0)
        assert MixedPacked.from_bytes(data).step == 5

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"row": 2**63}, "Mixed.row: a int64_t holds -9223372036854775808 to 9223372036854775807"),
            ({"flag": 256}, "Mixed.flag: a uint8_t holds 0 to 255, got 256"),
            ({"step": -32769}, "Mixed.step: a int16_t holds -32768"),
        ],
    )
    def test_values_must_fit(self, change, text):
        with pytest.raises(TilingError, match=text):
            Mixed(**change).to_bytes()

    def test_other_types_are_refused(self):
        @dataclass
        class Wrong(tiling.TilingStruct):
            name: str = ""

        with pytest.raises(TilingError, match="expected int, float, a TilingStruct or one of int8"):
            Wrong().to_bytes()
