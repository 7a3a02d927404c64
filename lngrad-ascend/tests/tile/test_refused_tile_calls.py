"""Calls of LayerNormGrad and LayerNormGradBeta that break the documents: faults, warnings and remarks on every SoC."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from lngrad.errors import DtypeError
from lngrad_ascend import soc as socs
from lngrad_ascend import tiling
from lngrad_ascend.ascendc import LayerNormGrad, LayerNormGradBeta
from lngrad_ascend.faults import (
    AlignmentFault,
    AscendWarning,
    DeviceFault,
    OverlapFault,
    PoisonFault,
    TilingError,
)
from tile_harness import SOCS, Tile, allowed_error, check_close, grad_formula, make_case, run_beta, run_grad

F = np.float32
S, H, STACK = 16, 16, 9216
GRAD = {"outputPdX": S * H, "resForGamma": S * H, "inputDy": S * H, "inputX": S * H, "inputVariance": S, "inputMean": S,
        "inputGamma": H}  # fmt: skip
BETA = {"outputPdGamma": H, "outputPdBeta": H, "resForGamma": S * H, "inputDy": S * H}
APIS = {LayerNormGrad: GRAD, LayerNormGradBeta: BETA}
each_soc = pytest.mark.parametrize("soc", SOCS)
KINDS = {(2, False): "half", (4, False): "float", (4, True): "float with isReuseSource=true"}


def info(api=LayerNormGrad, size=4, reuse=False, soc=None):
    get = getattr(tiling, f"Get{api.__name__}NDTilingInfo")
    return get((1, S, H, H), STACK, size, reuse, soc=soc, quiet=True)


def call(soc="Ascend910B1", api=LayerNormGrad, dtype=F, change=lambda arguments: {}, unwritten=(), **options):
    """Call with tensors of ones, each 64 bytes longer than needed; ``change`` replaces some. Returns the remarks."""
    size = np.dtype(dtype).itemsize
    with socs.use(soc):
        tile = Tile()
        tensors = {name: tile.temporary(size * count + 64).ReinterpretCast(dtype) for name, count in APIS[api].items()}
        for name in {*tensors}.difference(unwritten):
            tensors[name].write("test", "dst", tensors[name].GetSize())[:] = 1
        arguments = {**tensors, "tiling": info(api, size, options.get("isReuseSource", False))}
        if api is LayerNormGrad:
            arguments["epsilon"] = 1e-5
        arguments["sharedTmpBuffer"] = tile.temporary(STACK)
        api(**{**arguments, **change(arguments), **options})
        return "\n".join(tile.pipe.core.remarks)


@each_soc
@pytest.mark.parametrize("api", APIS)
def test_the_calls_themselves_are_right(api, soc):
    for dtype, options in ((F, {}), (F, {"isReuseSource": True}), (np.float16, {})):
        call(soc, api, dtype, **options)


@each_soc
@pytest.mark.parametrize(("api", "name"), [(api, name) for api in APIS for name in APIS[api] if "output" not in name])
def test_the_temporary_buffer_lies_apart_from_inputs(api, name, soc):
    if (api, name) == (LayerNormGrad, "resForGamma"):
        return  # an output there

    def change(arguments):
        start = arguments["sharedTmpBuffer"].ReinterpretCast(F)
        start.write("test", "dst", start.GetSize())[:] = 1
        return {name: start[8:]}

    with pytest.raises(OverlapFault, match=rf"sharedTmpBuffer .* and {name} .* must not share memory"):
        call(soc, api, change=change)


@each_soc
@pytest.mark.parametrize(
    ("api", "first", "second"),
    [(LayerNormGrad, "inputDy", "inputX"), (LayerNormGrad, "inputX", "inputMean"),
     (LayerNormGradBeta, "resForGamma", "inputDy")],
)  # fmt: skip
def test_what_is_overwritten_lies_apart_from_inputs(api, first, second, soc):
    def change(arguments):
        return {second: arguments[first]}

    call(soc, api, change=change)
    with pytest.raises(OverlapFault, match=f"{first} .* and {second} .* must not share memory"):
        call(soc, api, change=change, isReuseSource=True)


@each_soc
@pytest.mark.parametrize("made_for", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tiling_of_another_type_or_reuse(kind, made_for, soc):
    dtype = F if kind[0] == 4 else np.float16
    options = {"isReuseSource": kind[1], "tiling": info(LayerNormGrad, *made_for, soc)}
    if kind == made_for:
        call(soc, dtype=dtype, **options)
        return
    with pytest.raises(TilingError, match=rf"made for {KINDS[made_for]}, by its .*; the call is {KINDS[kind]}$"):
        call(soc, dtype=dtype, **options)


@each_soc
def test_a_beta_tiling_of_another_type(soc):
    for dtype, other, texts in ((F, 2, ("half", "float")), (np.float16, 4, ("float", "half"))):
        with pytest.raises(TilingError, match="made for {}, by its .*; the call is {}$".format(*texts)):
            call(soc, LayerNormGradBeta, dtype, tiling=info(LayerNormGradBeta, other))


@each_soc
@pytest.mark.parametrize(("api", "name"), [(api, name) for api in APIS for name in (*APIS[api], "sharedTmpBuffer")])
def test_addresses_are_whole_blocks(api, name, soc):
    with pytest.raises(AlignmentFault, match=rf"{api.__name__}: {name} .* 32 bytes"):
        call(soc, api, change=lambda arguments: {name: arguments[name][1:]})


@each_soc
class TestPadding:
    def case(self, name, value):
        case = make_case(1, 6, 24, "f4", seed=31, originH=20)
        getattr(case, name)[..., 20:] = value
        return case

    @pytest.mark.parametrize("name", ["dy", "x", "gamma"])
    def test_nan_and_infinity_are_faults(self, name, soc):
        for value in (np.nan, np.inf):
            with pytest.raises(
                DeviceFault, match=rf"the padding of input{name.capitalize()}, columns 20 to 24 .* reaches"
            ):
                run_grad(self.case(name, value), soc, originH=20)

    def test_what_is_not_0_is_remarked_and_wrong(self, soc):
        case = self.case("x", 1)
        case.mean[:] = 0
        with pytest.warns(AscendWarning, match="4 padded columns of 24 enter .*: outputPdX is wrong"):
            report = run_grad(case, soc, originH=20)[2]
        assert any("the padding of inputX is not 0, as the manual asks" in remark for remark in report.remarks())

    def test_the_row_s_mean_in_x_gives_the_right_result(self, soc):
        case = make_case(1, 6, 24, "f4", seed=32, originH=20)
        case.x[..., 20:] = case.mean[..., None]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pd_x = run_grad(case, soc, originH=20)[0]
        want, size = grad_formula(case, 20)[0]
        check_close("pd_x", pd_x[..., :20], want, allowed_error(want, size, "f4"))

    def test_beta_mixes_padding_into_sums_but_on_950(self, soc):
        rows = np.ones((1, 6, 24), F)
        dy = rows.copy()
        dy[..., 16:] = np.nan
        if soc == "Ascend950":
            report = run_beta(rows, dy, soc, originH=16)[2]
            assert any("the padding of inputDy is not 0" in remark for remark in report.remarks())
            return
        with pytest.raises(DeviceFault, match=r"the padding of inputDy, columns 16 to 24 .* reaches outputPdGamma"):
            run_beta(rows, dy, soc, originH=16, stack_bytes=4096)


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        ("inputX", np.ones(S * H, F), DtypeError, "inputX must be a LocalTensor, got ndarray"),
        ("epsilon", "1e-5", DtypeError, "epsilon must be a number, got str; sharedTmpBuffer is a keyword"),
        ("tiling", info(LayerNormGradBeta), TilingError, "must be a LayerNormGradTiling, got LayerNormGradBetaTiling"),
        ("tiling", 1e-5, TilingError, "must be a LayerNormGradTiling, got float; sharedTmpBuffer is a keyword"),
    ],
)
def test_arguments_in_each_others_places(name, value, kind, text):
    with pytest.raises(kind, match=f"LayerNormGrad: .*{text}"):
        call(**{name: value})


def test_the_buffer_in_the_prototypes_place():
    def change(arguments):
        *tensors, struct, buffer = arguments.values()
        with pytest.raises(TilingError, match=r"tiling must be .*, got LocalTensor; sharedTmpBuffer is a keyword"):
            LayerNormGradBeta(*tensors, buffer, struct)
        with pytest.raises(DtypeError, match=r"expected no argument behind the last of its signature, got"):
            LayerNormGradBeta(*tensors, struct, buffer)
        return {}

    call(api=LayerNormGradBeta, change=change)


def test_a_product_without_the_api_is_told_before_all_else():
    for soc in ("Ascend910A", "Ascend310B"):
        with pytest.raises(DeviceFault, match=f"LayerNormGrad: not available on {soc} "):
            call(soc, tiling=None)


def test_remarks():
    assert not call()
    narrow = tiling.GetLayerNormGradNDTilingInfo((4, 4, H, H), STACK, 4, False)
    assert "asks S of inputVariance and inputMean to fill 32 bytes, S is 4 of 4 bytes" in call(tiling=narrow)
    small = tiling.GetLayerNormGradNDTilingInfo((1, S, H, H), 3072, 4, False, quiet=True)
    with pytest.warns(AscendWarning, match="the tiling was made for 3072 bytes, the published minimum is 6144"):
        call(tiling=small)
    for api in APIS:
        assert "the page of CANN 8.3 lists Atlas A2 and A3, Ascend 950" in call("Ascend950", api)
        with socs.use("Ascend910B1", cann="master"):
            assert not call(api=api)


def test_an_unwritten_input_is_told_with_the_line_of_the_call():
    with pytest.raises(PoisonFault) as caught:
        call(unwritten=["inputVariance"])
    assert "contextlib" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "stack", "soc", "text"),
    [
        ((2, 32, 13, 13), 1 << 16, "Ascend910B1", "refuses storageHLength 13: 52 bytes are no whole blocks of 32"),
        ((2, 32, 16, 16), 1 << 16, "Ascend910A", r"not available on Ascend910A"),
        ((2, 32, 16, 13), 1 << 16, "Ascend950", "originHLength 13 and storageHLength 16 differ"),
        ((2, 32, 16, 16), 3072, "Ascend910B1", "stackBufferSize 3072 is below the published minimum 6144"),
    ],
)
def test_the_tiling_function_and_the_lint_say_what_the_kernel_will(shape, stack, soc, text):
    with pytest.warns(AscendWarning, match=f"GetLayerNormGradNDTilingInfo: .*{text}"):
        tiling.GetLayerNormGradNDTilingInfo(shape, stack, 4, False, soc=soc)
    report = tiling.lint("LayerNormGrad", shape, "float", soc, stack)
    assert report.verdict == "unfit"
    assert len(report.doubts) == 1
    assert re.search(text, report.doubts[0])
