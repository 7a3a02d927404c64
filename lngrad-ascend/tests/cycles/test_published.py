"""The cycle model beside every public figure: what it was fitted to, what was set aside, and whole kernels."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from published import ADD_STAGES, BACKWARDS, RMS_ROWS, add, add_rms_norm, norm_backward

from lngrad_ascend.device import cycle_figures

COMPILER = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def fitting() -> ModuleType:
    """scripts/fit_cycles.py: the figures, and the fit."""
    path = Path(__file__).parents[3] / "scripts" / "fit_cycles.py"
    spec = importlib.util.spec_from_file_location("fit_cycles", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_cycles"] = module
    spec.loader.exec_module(module)
    return module


# Every second figure by name: no number of the model was moved for them.
SET_ASIDE = """
add case 0 MTE3; add case 1 MTE2; add case 2 Add; add case 6 Add; pto TABS f32 64x64; pto TADD f32 64x64; pto TADD i32 64x64;
pto TADDS f16 line 64x128; pto TADDS f32 32x64; pto TADDS f32 line 64x64; pto TADDS i32 31x128; pto TCOLSUM f16 line 64x128;
pto TCOLSUM f32 1x3072; pto TCOLSUM f32 line 64x336; pto TCVT f16 f32 4x64; pto TDIV f16 64x64; pto TDIVS f16 63x64;
pto TDIVS f32 32x64; pto TEXP f16 32x32; pto TEXP f32 32x16; pto TEXP f32 64x64; pto TLOAD f32 128x128; pto TLOAD f32 256x64;
pto TLOAD i16 64x128; pto TMINS f16 16x256; pto TMINS f16 line 64x128; pto TMINS f32 line 64x64; pto TMINS i32 64x64;
pto TMUL f16 line 64x128; pto TMUL f32 line 64x64; pto TMUL i32 64x64; pto TMULS f16 line 64x128; pto TMULS f32 32x64;
pto TMULS f32 line 64x64; pto TMULS i32 31x128; pto TROWEXPAND f16 64x64; pto TROWEXPAND f32 64x64; pto TROWMAX f16 line 64x64;
pto TROWMAX f32 line 64x128; pto TROWSUM f16 64x128; pto TROWSUM f32 64x64; pto TROWSUM f32 line 64x32; pto TSQRT f16 64x64;
pto TSQRT f32 64x64; pto TSUB f16 16x256; pto TSUB f32 64x64; pto TSUB i16 64x64; pto vadd line 128 repeats;
pto vdiv line 128 repeats; pto vln line 128 repeats; pto vmax line 128 repeats; pto vmul line 128 repeats;
pto vrsqrt line 128 repeats
"""


def test_instructions_and_tiles_that_were_set_aside(fitting):
    assert [measurement.name for measurement in fitting.SET_ASIDE] == [name.strip() for name in SET_ASIDE.split(";")]
    within = [abs(fitting.error(measurement)) <= 0.2 for measurement in fitting.SET_ASIDE]
    assert sum(within) >= 0.8 * len(within), fitting.table()


@pytest.mark.slow
def test_the_figures_are_those_of_the_fit(fitting):
    table = {name: cycle_figures.TIMINGS[name] for name in fitting.GROUPS}
    others = cycle_figures.WAKE, cycle_figures.IN_PLACE, *cycle_figures.COPY_START.values()
    found = fitting.fit()
    assert {name: timing.start for name, timing in table.items()} == {name: found[name] for name in fitting.GROUPS}
    assert others == (found["WAKE"], found["IN_PLACE"], found["MTE2"], found["MTE3"])


def test_the_stages_of_an_add():
    stages = [add(stage) for stage in ADD_STAGES]
    assert all(1 / 1.5 <= measurement.ratio <= 1.5 for measurement in stages), stages
    times = [measurement.model_us for measurement in stages]
    assert times == sorted(set(times), reverse=True)  # as published
    for stage, measurement in zip(ADD_STAGES, stages, strict=True):
        busy = measurement.cycles.shares["V"] * (measurement.model_us - measurement.cycles.launch_us)
        assert busy == pytest.approx(stage.vector_us, rel=0.1)


@COMPILER
@pytest.mark.slow
def test_add_and_rms_norm():
    rows = [add_rms_norm(row) for row in RMS_ROWS]
    assert all(1 / 1.5 <= measurement.ratio <= 1.5 for measurement in rows), rows
    apart = [
        abs(100 * measurement.cycles.shares[pipe] - share)
        for row, measurement in zip(RMS_ROWS, rows, strict=True)
        for pipe, share in zip(("V", "MTE2", "MTE3"), row.shares, strict=True)
    ]
    assert sum(points <= 15 for points in apart) >= len(apart) / 2, apart


@COMPILER
@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns", "time_us"), BACKWARDS)
def test_layer_norm_backward_is_within_a_factor_of_two(rows, columns, time_us):
    assert 0.5 <= norm_backward(rows, columns, time_us).ratio <= 2
