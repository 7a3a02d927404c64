from __future__ import annotations

import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lngrad.errors import DtypeError
from lngrad_ascend import soc as socs
from lngrad_ascend import tiling
from lngrad_ascend.ascendc import DataFormat, LayerNormGrad, LayerNormGradBeta, LayerNormGradShapeInfo, TPipe, launch
from lngrad_ascend.device.local_tensor import pop_stack_buffer
from lngrad_ascend.device.numerics import pairwise_sum
from lngrad_ascend.faults import (
    AlignmentFault,
    AscendWarning,
    BoundsFault,
    DeviceFault,
    OverlapFault,
    PositionFault,
    TilingError,
)
from tile_harness import (
    SOCS,
    Case,
    Tile,
    allowed_error,
    check_close,
    check_same_bits,
    grad_formula,
    make_case,
    run_beta,
    run_grad,
)

F = np.float32
kinds = st.sampled_from([("f4", False), ("f4", True), ("f2", False)])


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(1, 6),
    kinds,
    st.sampled_from(SOCS),
    st.booleans(),
    st.integers(0, 1),
    st.booleans(),
)
def test_both_results_follow_the_tile_formula(B, S, blocks, kind, soc, true_mean, extra, shared):
    dtype, reuse = kind
    H = blocks * (8 if dtype == "f4" else 16)
    case = make_case(B, S, H, dtype, seed=B * S, true_mean=true_mean)
    safe = tiling.safe_stack_bytes("LayerNormGrad", (B, S, H, H), np.dtype(dtype).itemsize, reuse, soc)
    stack = tiling.lint(
        "LayerNormGrad", (B, S, H), "float" if dtype == "f4" else "half", soc, safe * (1 + extra), reuse
    )
    pd_x, res, _ = run_grad(
        case, soc, stack_bytes=max(stack.touched_bytes, stack.stack_bytes), reuse=reuse, shared=shared
    )
    (want_x, size_x), (want_res, size_res) = grad_formula(case)
    check_close("pd_x", pd_x, want_x, allowed_error(want_x, size_x, dtype))
    check_close("res", res, want_res, allowed_error(want_res, size_res, dtype))


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), kinds, st.sampled_from(SOCS), st.integers(0, 1000))
def test_sums_over_rows(S, blocks, kind, soc, more):
    dtype, reuse = kind
    lanes = 8 if dtype == "f4" else 16
    H = blocks * lanes
    rng = np.random.default_rng(S)
    res, dy = (rng.normal(size=(2, S, H)).astype(dtype) for _ in range(2))
    safe = tiling.safe_stack_bytes("LayerNormGradBeta", (2, S, H, H), np.dtype(dtype).itemsize, reuse, soc)
    pd_gamma, pd_beta, _ = run_beta(res, dy, soc, stack_bytes=safe + 4 * more, reuse=reuse)
    for name, got, terms in (("pd_gamma", pd_gamma, res.astype(float) * dy), ("pd_beta", pd_beta, dy.astype(float))):
        want, size = terms.sum((0, 1)), np.abs(terms).sum((0, 1))
        stores = allowed_error(want, size, dtype, factor=2 * S)
        check_close(name, got, want, stores)


def test_chunks_do_not_change_a_bit():
    case = make_case(2, 20, 24, "f4", seed=1)
    whole = run_grad(case, stack_bytes=6 * 40 * 24 * 4)
    pieces = run_grad(case)
    check_same_bits("pd_x", pieces[0], whole[0])
    check_same_bits("res", pieces[1], whole[1])
    assert pieces[2].blocks[0].instructions["Sqrt"] == 5 * whole[2].blocks[0].instructions["Sqrt"]


def test_beta_chunks_do_not_change_a_bit():
    rng = np.random.default_rng(1)
    res, dy = (rng.normal(size=(2, 20, 24)).astype(F) for _ in range(2))
    check_same_bits("pd_gamma", run_beta(res, dy)[0], run_beta(res, dy, stack_bytes=50_000)[0])


class TestAnchors:
    def test_the_manual_s_example(self):
        values = np.arange(64, dtype=F).reshape(1, 8, 8)
        case = Case(values, values, np.full((1, 8), 5.25, F), values.mean(-1), np.arange(8, dtype=F), 1e-4)
        for soc in SOCS:
            pd_x, res, _ = run_grad(case, soc)
            row = np.array([-1.5275106, -1.091079, -0.6546474, -0.21821581])
            row = np.concatenate([row, -row[::-1]])
            check_close("res", res, np.tile(row, (1, 8, 1)), 2e-7 * np.ones((1, 8, 8)))
            check_close("pd_x", pd_x, self.printed(case), 2e-5 * np.ones((1, 8, 8)))
            check_close("pd_x", pd_x, grad_formula(case)[0][0], 2e-5 * np.ones((1, 8, 8)))

    @staticmethod
    def printed(case):
        """Return what the manual prints: a float32 golden with a correctly rounded power."""
        t = case.variance.astype(np.float64)[..., None] + float(F(1e-4))
        rstd, power = (t**-0.5).astype(F), F(0.08312824368476868)
        x1, x2 = case.dy * case.gamma, case.x - case.mean[..., None]
        var = pairwise_sum(((F(-0.5) * x1) * x2) * power)[..., None]
        mean = pairwise_sum(-x1 * rstd)[..., None] + var * F(1 / 8) * pairwise_sum(F(-2) * x2)[..., None]
        return (x1 * rstd + (var * F(2 / 8) * x2 + mean / F(8))).astype(np.float64)

    def test_the_manual_s_beta_example(self):
        values = np.arange(64, dtype=F).reshape(1, 8, 8)
        for soc in SOCS:
            pd_gamma, pd_beta, _ = run_beta(values, values, soc)
            check_same_bits("pd_gamma", pd_gamma, (values[0] ** 2).sum(0))
            check_same_bits("pd_beta", pd_beta, values[0].sum(0))

    @pytest.mark.parametrize("soc", SOCS)
    def test_the_extra_term_is_what_parts_tile_and_graph(self, soc):
        true, other = (make_case(2, 9, 48, "f4", seed=3, true_mean=t) for t in (True, False))
        for case, apart in ((true, False), (other, True)):
            x1 = case.dy.astype(float) * case.gamma
            centred = case.x.astype(float) - case.mean[..., None]
            rstd = (case.variance.astype(float)[..., None] + case.epsilon) ** -0.5
            xhat = centred * rstd
            graph = rstd * (x1 - x1.mean(-1, keepdims=True) - xhat * (x1 * xhat).mean(-1, keepdims=True))
            var = np.sum(-0.5 * x1 * centred * rstd**3, -1, keepdims=True)
            extra = var / 48 * np.sum(-2 * centred, -1, keepdims=True) / 48
            _, size = grad_formula(case)[0]
            pd_x = run_grad(case, soc)[0]
            check_close("pd_x", pd_x, graph + extra, allowed_error(graph, size, "f4"))
            largest = np.max(np.abs(extra) / allowed_error(graph, size, "f4"))
            assert (largest > 100) == apart


class TestNumbers:
    def test_epsilon_is_rounded_to_half_first(self):
        case = make_case(1, 4, 16, "f2", seed=5)
        case.variance[:] = 0
        case.epsilon = 1e-12
        pd_x, res, _ = run_grad(case)
        assert not np.isfinite(pd_x).any()
        assert np.isinf(res).all()

    @pytest.mark.parametrize("soc", SOCS)
    def test_too_large_for_half(self, soc):
        rows = np.full((1, 4, 16), 30000, np.float16)
        ones = np.ones_like(rows)
        pd_gamma, pd_beta, _ = run_beta(ones, rows, soc)
        expected = 65504 if soc == "Ascend950" else np.inf
        assert (pd_gamma == expected).all()
        assert (pd_beta == expected).all()
        case = make_case(1, 4, 16, "f2", seed=6)
        case.dy *= np.float16(20000)
        case.variance[:] = 1e-4
        assert np.isinf(run_grad(case, soc)[0]).any()

    def test_nan_stays_in_its_row(self):
        case = make_case(1, 12, 16, "f4", seed=7)
        case.dy[0, 5, 3] = np.nan
        for soc in SOCS:
            broken = np.isnan(run_grad(case, soc)[0]).any(-1)[0]
            assert broken.tolist() == [row == 5 for row in range(12)]

    def test_zero_dy_gives_zero(self):
        case = make_case(1, 3, 16, "f4", seed=8)
        case.dy[:] = 0
        for soc in SOCS:
            assert not run_grad(case, soc)[0].any()

    def test_architectures_differ_in_the_last_bits_only_where_rows_are_longer_than_a_vector(self):
        short, long = (make_case(1, 10, H, "f4", seed=9) for H in (64, 512))
        check_same_bits("pd_x", run_grad(short, "Ascend950")[0], run_grad(short, "Ascend910B1")[0])
        check_same_bits("pd_x", run_grad(long, "Ascend310P")[0], run_grad(long, "Ascend910B1")[0])
        assert (run_grad(long, "Ascend950")[0] != run_grad(long, "Ascend910B1")[0]).any()


class TestReuseSource:
    @pytest.mark.parametrize(("soc", "rows"), [("Ascend910B1", 12), ("Ascend310P", 12), ("Ascend950", 1)])
    def test_dy_and_x_are_overwritten_and_a_later_read_warns(self, soc, rows):
        case = make_case(1, 12, 16, "f4", seed=10)
        seen = {}

        def look(tile, tensors):
            for name in ("dy", "x"):
                seen[name] = tensors[name].read("look", name, 12 * 16).reshape(12, 16).copy()
                tensors[name].read("look", name, 12 * 16)  # said once

        with pytest.warns(AscendWarning, match="was overwritten by LayerNormGrad with isReuseSource=true"):
            pd_x, res, report = run_grad(case, soc, reuse=True, after=look)
        assert ["inputDy" in text for text in report.warnings()] == [True, False]
        plain = run_grad(case, soc)
        check_same_bits("pd_x", pd_x, plain[0])
        check_same_bits("res", res, plain[1])
        for name in ("dy", "x"):
            changed = (seen[name] != getattr(case, name)[0]).any(-1)
            assert changed.tolist() == [row < rows for row in range(12)]

    def test_beta_after_a_grad_that_reused_dy_is_warned_about(self):
        case = make_case(1, 8, 16, "f4", seed=11)
        shape = (1, 8, 16, 16)
        info = tiling.GetLayerNormGradBetaNDTilingInfo(shape, 4096, 4, False)

        def beta(tile, tensors):
            gamma, beta = (tile.make(n, np.empty(16, F), F, 16) for n in ("pd_gamma", "pd_beta"))
            LayerNormGradBeta(gamma, beta, tensors["res"], tensors["dy"], info, sharedTmpBuffer=tile.temporary(4096))

        with pytest.warns(AscendWarning, match="inputDy was overwritten"):
            run_grad(case, reuse=True, after=beta)

    def test_a_new_copy_ends_the_warning(self):
        case = make_case(1, 8, 16, "f4", seed=12)

        def overwrite(tile, tensors):
            tensors["dy"].write("test", "dst", 128)[:] = 1
            tensors["dy"].read("test", "src", 128)

        assert not run_grad(case, reuse=True, after=overwrite)[2].warnings()

    @pytest.mark.parametrize("soc", SOCS)
    def test_beta_overwrites_res_for_gamma_as_published(self, soc):
        rng = np.random.default_rng(13)
        res, dy = (rng.normal(size=(1, 8, 16)).astype(F) for _ in range(2))
        kept = soc == "Ascend950"

        def look(tile, tensors):
            got = tensors["res"].read("look", "res", 128).copy()
            check_same_bits("resForGamma", got.reshape(dy.shape), res if kept else dy * res)
            check_same_bits("dy", tensors["dy"].read("look", "dy", 128).reshape(dy.shape), dy)

        with pytest.warns(AscendWarning, match="is read after LayerNormGradBeta with isReuseSource=true"):
            _, _, report = run_beta(res, dy, soc, reuse=True, after=look)
        assert ["resForGamma is" in text for text in report.warnings()] == ([False] if kept else [True, False])


class TestPadding:
    def test_finding_c_the_padding_enters_the_gradient_of_the_mean(self):
        case = make_case(1, 6, 24, "f4", seed=14, originH=20)
        (want, size), (want_res, size_res) = grad_formula(case, 20)
        for soc in SOCS:
            with pytest.warns(AscendWarning, match="4 padded columns of 24 enter the gradient of the mean"):
                pd_x = run_grad(case, soc, originH=20)[0]
            off = np.abs(pd_x[..., :20] - want) / allowed_error(want, size, "f4")
            assert off.max() > 100
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                pd_x, res, _ = run_grad(case, soc, originH=20, exact=True)
            check_close("pd_x", pd_x[..., :20], want, allowed_error(want, size, "f4"))
            check_close("res", res[..., :20], want_res, allowed_error(want_res, size_res, "f4"))
            assert not pd_x[..., 20:].any()
            assert not res[..., 20:].any()

    def test_a_mean_of_zero_is_not_warned_about(self):
        case = make_case(1, 6, 24, "f4", seed=15, originH=20)
        case.mean[:] = 0
        (want, size), _ = grad_formula(case, 20)
        pd_x = run_grad(case, originH=20)[0]
        check_close("pd_x", pd_x[..., :20], want, allowed_error(want, size, "f4"))

    @pytest.mark.parametrize("dtype", ["f4", "f2"])
    def test_finding_b_beta_takes_the_wrong_distance_of_rows(self, dtype):
        H, originH = (24, 16) if dtype == "f4" else (32, 24)
        rng = np.random.default_rng(16)
        res, dy = (rng.normal(size=(1, 6, H)).astype(dtype) for _ in range(2))
        res[..., originH:] = dy[..., originH:] = 0
        want = dy.astype(float).sum((0, 1))
        allowed = allowed_error(want, np.abs(dy.astype(float)).sum((0, 1)), dtype, 16)
        with pytest.warns(AscendWarning, match=rf"originHLength {originH} for the distance of rows, which are {H}"):
            pd_beta = run_beta(res, dy, originH=originH, stack_bytes=4096)[1]
        assert (np.abs(pd_beta - want) > allowed)[:originH].any()
        for soc in SOCS:
            pd_beta = run_beta(res, dy, soc, originH=originH, exact=True)[1]
            check_close("pd_beta", pd_beta, want, allowed)
        check_close("pd_beta", run_beta(res, dy, "Ascend950", originH=originH)[1], want, allowed)
        if dtype == "f2":  # a chunk of one row is right as published, and is not warned about
            check_close("pd_beta", run_beta(res, dy, originH=originH, stack_bytes=16 * H)[1], want, allowed)

    def test_finding_b_can_also_stop_the_vector_core(self):
        rows = np.zeros((1, 6, 24), F)
        with (
            pytest.warns(AscendWarning, match="distance of rows"),
            pytest.raises(AlignmentFault, match="must be a multiple of 32 bytes"),
        ):
            run_beta(rows, rows, originH=20)


def share(case, soc, pairs, *, reuse=False, stack_bytes=None):
    """Run LayerNormGrad with outputs laid over inputs: pairs maps an output to (input, rows further
    on)."""
    B, S, H = case.x.shape
    shape = (B, S, H, H)
    stack = stack_bytes or tiling.safe_stack_bytes("LayerNormGrad", shape, 4, reuse, soc)
    info = tiling.GetLayerNormGradNDTilingInfo(shape, stack, 4, reuse, soc=soc, quiet=True)
    got = {}

    def kernel():
        pipe = TPipe()
        tile = Tile()
        tile.pipe = pipe
        size = B * S * H
        tensors = {}
        for name in ("dy", "x", "variance", "mean", "gamma", "pd_x", "res"):
            if name in pairs:
                over, rows = pairs[name]
                tensors[name] = tensors[over][rows * H :]
                continue
            tensors[name] = tile.temporary((size + 64 * H) * 4).ReinterpretCast(F)
            if name not in ("pd_x", "res"):
                values = np.ravel(getattr(case, name))
                tensors[name].write("test", "dst", values.size)[:] = values
        LayerNormGrad(
            *(tensors[n] for n in ("pd_x", "res", "dy", "x", "variance", "mean", "gamma")),
            case.epsilon,
            info,
            sharedTmpBuffer=tile.temporary(stack) if stack else None,
            isReuseSource=reuse,
            quiet=True,
        )
        for name in ("pd_x", "res"):
            got[name] = tensors[name].read("test", "src", size).reshape(case.x.shape).copy()

    launch(kernel, 1, soc=soc)
    return got


class TestSharedMemory:
    @pytest.mark.parametrize("soc", SOCS)
    @pytest.mark.parametrize("pairs", [{"pd_x": ("x", 0)}, {"pd_x": ("dy", 0)}, {"pd_x": ("x", 0), "res": ("dy", 0)}])
    def test_outputs_may_lie_exactly_over_inputs(self, soc, pairs):
        case = make_case(1, 12, 16, "f4", seed=17)
        expected = run_grad(case, soc)
        got = share(case, soc, pairs)
        check_same_bits("pd_x", got["pd_x"], expected[0])
        check_same_bits("res", got["res"], expected[1])

    @pytest.mark.parametrize(
        ("soc", "pairs", "reuse"),
        [
            ("Ascend910B1", {"pd_x": ("x", 0)}, True),
            ("Ascend910B1", {"res": ("dy", 0)}, True),
            ("Ascend910B1", {"pd_x": ("x", 8)}, False),
            ("Ascend910B1", {"pd_x": ("variance", 0)}, False),
            ("Ascend910B1", {"pd_x": ("gamma", 0)}, False),
            ("Ascend950", {"pd_x": ("x", 0)}, True),
            ("Ascend950", {"pd_x": ("dy", 1)}, False),
            ("Ascend950", {"res": ("gamma", 0)}, False),
        ],
    )
    def test_a_warning_where_sharing_changes_the_result(self, soc, pairs, reuse):
        case = make_case(1, 24, 16, "f4", seed=18)
        with pytest.warns(AscendWarning, match=r"share memory in a way that changes the result: \d+ of 384 elements"):
            share(case, soc, pairs, reuse=reuse)

    def test_the_outputs_must_not_overlap(self):
        case = make_case(1, 12, 16, "f4", seed=19)
        with pytest.raises(OverlapFault, match=r"outputPdX .* and resForGamma .* must not share memory"):
            share(case, "Ascend910B1", {"res": ("pd_x", 4)})

    def test_beta_outputs_must_not_overlap(self):
        info = tiling.GetLayerNormGradBetaNDTilingInfo((1, 2, 16, 16), 256, 4, False)
        tile = Tile()
        rows = tile.temporary(256).ReinterpretCast(F)
        with pytest.raises(OverlapFault, match=r"outputPdGamma .* and outputPdBeta"):
            LayerNormGradBeta(rows, rows[8:], rows, rows, info, sharedTmpBuffer=tile.temporary(256))


class TestDoor:
    """Every check of the door, broken once."""

    def call(self, dtype=F, **change):
        tile = Tile()
        H, rows = 16, 4
        size = np.dtype(dtype).itemsize
        stack = tiling.safe_stack_bytes("LayerNormGrad", (1, rows, H, H), size, False)
        arguments = {
            name: tile.temporary(count * size).ReinterpretCast(dtype)
            for name, count in (
                ("outputPdX", 64), ("resForGamma", 64), ("inputDy", 64), ("inputX", 64), ("inputVariance", 16),
                ("inputMean", 16), ("inputGamma", 16),
            )
        }  # fmt: skip
        for tensor in arguments.values():
            tensor.write("test", "dst", tensor.GetSize())[:] = 1
        arguments |= {
            "epsilon": 1e-5,
            "tiling": tiling.GetLayerNormGradNDTilingInfo((1, rows, H, H), stack, size, False, quiet=True),
            "sharedTmpBuffer": tile.temporary(stack),
        }
        LayerNormGrad(**(arguments | change))

    def test_the_call_itself_is_right(self):
        self.call()
        self.call(np.float16)

    def test_types(self):
        with pytest.raises(DtypeError, match="T must be half or float, got int32"):
            self.call(np.int32)
        with pytest.raises(DtypeError, match="isReuseSource=true takes float only, T is half"):
            self.call(np.float16, isReuseSource=True)
        with pytest.raises(DtypeError, match="inputX must be float32 like outputPdX, got float16"):
            self.call(inputX=Tile().temporary(128).ReinterpretCast(np.float16))

    def test_format(self):
        with pytest.raises(DeviceFault, match="dataFormat must be ND, got NZ"):
            self.call(shapeInfo=LayerNormGradShapeInfo(DataFormat.NZ))
        self.call(shapeInfo=LayerNormGradShapeInfo())

    def test_sizes(self):
        with pytest.raises(BoundsFault, match="inputGamma needs 16 elements for this tiling, it has 8"):
            self.call(inputGamma=Tile().temporary(32).ReinterpretCast(F))

    def test_whole_blocks(self):
        info = tiling.GetLayerNormGradNDTilingInfo((1, 4, 12, 12), 1 << 14, 4, False, quiet=True)
        with pytest.raises(AlignmentFault, match="H is 12 of 4 bytes = 48; pad it"):
            self.call(tiling=info)

    def test_temporary_buffer(self):
        with pytest.raises(BoundsFault, match="sharedTmpBuffer has 64 bytes, the tiling was made for stackBufferSize"):
            self.call(sharedTmpBuffer=Tile().temporary(64))
        with pytest.raises(DtypeError, match="sharedTmpBuffer must be uint8, got float32"):
            self.call(sharedTmpBuffer=Tile().temporary(1 << 14).ReinterpretCast(F))
        with pytest.raises(PositionFault, match="sharedTmpBuffer must be at one of VECIN, VECOUT, VECCALC"):
            self.call(sharedTmpBuffer=pop_stack_buffer(TPipe().core))

    def test_finding_a_the_published_minimum_is_caught_where_it_is_too_small(self):
        case = make_case(1, 2, 16, "f2", seed=20)
        with pytest.raises(BoundsFault, match=r"reaches byte 8320 .* which has 576: 7744 bytes too few"):
            run_grad(case, stack_bytes=576)
        # The framework's buffer is all that is left, so that the same tiling works without
        # sharedTmpBuffer.
        expected = run_grad(case)
        with pytest.warns(AscendWarning, match=r"made for a temporary buffer of 576 bytes, but reaches byte 8320"):
            got = run_grad(case, stack_bytes=576, shared=False)
        check_same_bits("pd_x", got[0], expected[0])

    def test_too_little_left_for_the_framework(self):
        case = make_case(1, 100, 64, "f4", seed=21)
        with pytest.raises(BoundsFault, match=r"the space that TPipe has left has \d+ bytes, the tiling was made for"):
            run_grad(case, stack_bytes=6 * 100 * 64 * 4, shared=False)

    def test_a_product_without_the_api(self):
        with (
            socs.use("Ascend910A"),
            pytest.raises(DeviceFault, match=r"LayerNormGrad: not available on Ascend910A \(Atlas training \(910\)\)"),
        ):
            self.call()

    def test_beta_tilings_that_were_never_filled_or_do_not_fit(self):
        tile = Tile()
        rows = tile.temporary(256).ReinterpretCast(F)
        results = [tile.temporary(64).ReinterpretCast(F) for _ in range(2)]
        info = tiling.GetLayerNormGradBetaNDTilingInfo((1, 2, 16, 16), 256, 4, False)
        info.oneCalSize = 0
        with pytest.raises(TilingError, match="oneCalSize must be above 0"):
            LayerNormGradBeta(*results, rows, rows, info, sharedTmpBuffer=tile.temporary(256))
        info.oneCalSize = 65
        with pytest.raises(TilingError, match="the buffers end at float 65, stackBufferSize is 64 floats"):
            LayerNormGradBeta(*results, rows, rows, info, sharedTmpBuffer=tile.temporary(256))

    def test_the_scratch_rows_of_3510(self):
        case = make_case(1, 2, 64, "f4", seed=23)
        with pytest.raises(BoundsFault, match="two rows of 64 floats do not fit the temporary buffer: it has 64"):
            run_grad(case, "Ascend950", stack_bytes=256)


def test_large_half_rows_fit_where_the_table_says():
    assert socs.get("Ascend950").ub_bytes == 248 * 1024
    case = make_case(1, 1, 1024, "f4", seed=24)
    _, _, report = run_grad(case)
    assert report.blocks[0].peak_ub_bytes <= 192 * 1024
