from __future__ import annotations

import io
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from rich.console import Console

from lngrad_ascend import tiling
from lngrad_ascend.cli.tiling import render, render_sweep
from lngrad_ascend.faults import BoundsFault, TilingError
from tile_harness import make_case, run_grad


def test_the_sweep_finds_what_the_published_formulas_give():
    counts = {
        (row.dtype, row.reuse_source, row.stack): (row.refused, row.overrun, row.reserve, row.ok)
        for row in tiling.sweep()
    }
    assert counts == {
        ("half", False, "min"): (64, 396, 0, 244),
        ("half", False, "max"): (0, 69, 271, 364),
        ("float", False, "min"): (0, 628, 0, 780),
        ("float", False, "max"): (0, 12, 0, 1396),
        ("float", True, "min"): (0, 628, 0, 780),
        ("float", True, "max"): (0, 12, 0, 1396),
    }


@pytest.mark.parametrize(
    ("shape", "dtype", "stack", "stack_bytes", "touched", "verdict"),
    [
        ([1, 1, 16], "half", "min", 288, 0, "assert"),
        ([1, 2, 16], "half", "min", 576, 8320, "overrun"),
        ([1, 1, 16], "half", "max", 4608, 8256, "overrun"),
        ([1, 1, 8], "float", "min", 192, 1312, "overrun"),
        ([1, 100, 8], "float", "max", 19200, 19840, "overrun"),
        ([2, 32, 16], "float", "min", 6144, 6144, "ok"),
    ],
)
def test_examples_of_too_small_sizes(shape, dtype, stack, stack_bytes, touched, verdict):
    report = tiling.lint("LayerNormGrad", shape, dtype, "Ascend910B1", stack)
    assert (report.stack_bytes, report.touched_bytes, report.verdict) == (stack_bytes, touched, verdict)
    assert report.overrun_bytes == (touched - stack_bytes if verdict == "overrun" else 0)
    if verdict == "overrun":  # what is touched is the next safe size, though a smaller one may be safe as well
        assert tiling.lint("LayerNormGrad", shape, dtype, "Ascend910B1", touched).verdict in ("ok", "reserve")


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2),
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from([("float", False), ("float", True), ("half", False)]),
    st.sampled_from(["Ascend310P", "Ascend910B1", "Ascend950"]),
)
def test_the_simulator_agrees_that_safe_is_the_smallest_safe_size(B, S, blocks, kind, soc):
    dtype, reuse = kind
    H = blocks * (8 if dtype == "float" else 16)
    case = make_case(B, S, H, "f4" if dtype == "float" else "f2", seed=S)
    safe = tiling.lint("LayerNormGrad", [B, S, H], dtype, soc, "min", reuse).safe_bytes
    run_grad(case, soc, stack_bytes=safe, reuse=reuse)
    assert tiling.lint("LayerNormGrad", [B, S, H], dtype, soc, safe, reuse).verdict in ("ok", "reserve")
    smallest = tiling.safe_stack_bytes("LayerNormGrad", (B, S, H, H), case.x.itemsize, reuse, soc)
    assert safe >= smallest
    if smallest:
        with pytest.raises((BoundsFault, TilingError)):
            run_grad(case, soc, stack_bytes=smallest - 32, reuse=reuse)


@pytest.mark.parametrize("api", ["LayerNorm", "LayerNormGradBeta"])
@pytest.mark.parametrize("dtype", ["half", "float"])
@pytest.mark.parametrize("stack", ["min", "max"])
def test_the_other_apis_stay_inside_their_buffers(api, dtype, stack):
    for S in (1, 7, 64):
        for H in (16, 48, 512):
            report = tiling.lint(api, [1, S, H], dtype, "Ascend910B1", stack)
            assert report.verdict == "ok"
            assert report.touched_bytes <= report.stack_bytes
            assert report.safe_bytes <= report.stack_bytes
            assert tiling.lint(api, [1, S, H], dtype, "Ascend910B1", report.safe_bytes).verdict == "ok"
            assert tiling.lint(api, [1, S, H], dtype, "Ascend910B1", report.safe_bytes - 4).verdict in (
                "assert",
                "unfit",
            )


def test_a_shape_that_cannot_fit_is_said_so():
    assert not tiling.lint("LayerNormGrad", [1, 4, 2048], "float").fits_ub
    assert tiling.lint("LayerNormGrad", [1, 4, 2048], "float", "Ascend950").fits_ub


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("RMSNorm", [1, 2, 16]), "api: expected one of LayerNorm, LayerNormGrad, LayerNormGradBeta, got 'RMSNorm'"),
        (("LayerNorm", [1, 2, 16], "bfloat16"), "dtype: expected one of half"),
        (("LayerNorm", [2, 16]), r"shape: expected \[B, S, H\]"),
        (("LayerNormGrad", [1, 2, 16], "float", None, "some"), "stack: expected 'min', 'max' or a number of bytes"),
        (("LayerNormGrad", [1, 2, 16], "float", None, -1), "stack: expected 'min', 'max' or a number of bytes, got -1"),
        (("LayerNormGrad", [1, 2, 16], "half", None, "min", True), "half does not take isReuseSource"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text):
    with pytest.raises(TilingError, match=text):
        tiling.lint(*arguments)


def test_json_holds_the_whole_report():
    report = tiling.lint("LayerNormGrad", [1, 2, 16], "half")
    data = json.loads(report.to_json())
    assert data["verdict"] == "overrun"
    assert data["tiling"]["oneCalSize"] == 256
    assert [b["name"] for b in data["buffers"]][-1] == "tmpTensor2"


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend950"])
@pytest.mark.parametrize("api", ["LayerNorm", "LayerNormGrad", "LayerNormGradBeta"])
@pytest.mark.parametrize("stack", ["min", "64"])
def test_render_says_the_verdict_and_a_safe_size(api, soc, stack):
    report = tiling.lint(api, [1, 2, 16], "half", soc, stack)
    text = io.StringIO()
    render(report, Console(file=text, width=140))
    assert f"safe size: {report.safe_bytes:,} bytes" in text.getvalue()
    assert {"ok": "ok", "reserve": "ok", "overrun": "too small", "assert": "refused"}[report.verdict] in text.getvalue()


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_cuts_no_name(width):
    report = tiling.lint("LayerNormGrad", [2, 32, 16], "float")
    text = io.StringIO()
    render(report, Console(file=text, width=width))
    assert "…" not in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= width
    words = text.getvalue().split()
    assert {*vars(report.tiling), *(part.name for part in report.buffers)} <= set(words)


def test_bars_end_where_the_buffer_ends():
    text = io.StringIO()
    render(tiling.lint("LayerNormGrad", [1, 2, 16], "half"), Console(file=text, width=140))
    line = next(line for line in text.getvalue().splitlines() if line.startswith("tmpTensor2"))
    assert "8,192       8,320        9,216" in line
    assert line.index("|") < line.index("#") < line.index("-")
    render_sweep(tiling.sweep("Ascend950"), Console(file=text, width=140))
    assert "touches past the end" in text.getvalue()
