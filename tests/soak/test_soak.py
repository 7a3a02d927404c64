"""The soak: a share of its calls in every run of the suite, and proof that it would find what is wrong."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import lngrad
from lngrad.soak import Call, Violation, draw, program, run, shrink, soak
from lngrad.soak.call import LAYOUTS
from lngrad.soak.memory import Guarded


def found(report):
    return "\n".join(f"{reason}: {program(call)}" for call, reason in report.violations)


def test_random_calls_of_the_core():
    report = soak(calls=2000, seed=20, doors=("numba_cpu", "numpy_cpu"))
    assert not report.violations, found(report)
    assert report.calls == 2000
    assert set(report.refusals) == {"OverlapError: dx in part of x's memory"}


def test_random_calls_of_torch():
    pytest.importorskip("torch")
    report = soak(calls=1000, seed=21, doors=("torch", "override"))
    assert not report.violations, found(report)


def test_random_calls_of_jax():
    pytest.importorskip("jax")
    report = soak(calls=40, seed=22, doors=("jax",))
    assert not report.violations, found(report)


@pytest.mark.slow
def test_many_random_calls():
    report = soak(calls=20_000, seed=23)
    assert not report.violations, found(report)


def test_equal_seeds_draw_equal_calls_of_every_kind():
    one, other = ([draw(np.random.default_rng(seed), ("numba_cpu",)) for seed in range(500)] for _ in range(2))
    assert one == other
    assert {len(call.lead) + len(call.normalized) for call in one} == {1, 2, 3, 4, 5, 6}
    assert {call.x for call in one} == set(LAYOUTS)
    assert any(0 in call.lead + call.normalized for call in one)


def _wrong(change):
    right = lngrad.layer_norm_backward

    def backward(*arguments, **options):
        return change(right, arguments, options)

    return backward


def _last_row_of_dx(right, arguments, options):
    grads = right(*arguments, **options)
    if grads.dx is not None and grads.dx.size and grads.dx.ndim > 1:
        grads.dx[-1] = 0
    return grads


def _writes_an_input(right, arguments, options):
    grads = right(*arguments, **options)
    if arguments[0].size:
        arguments[0].flat[0] += 1
    return grads


def _writes_behind_dx(right, arguments, options):
    grads = right(*arguments, **options)
    if grads.dx is not None and grads.dx.base is not None and grads.dx.size:
        base = grads.dx.base
        while base.base is not None:
            base = base.base
        base.view(np.uint8)[-1:] = 0
    return grads


def _ignores_the_mask(right, arguments, options):
    return right(*arguments, **{**options, "output_mask": (True, True, True)})


def _forgets_gamma(right, arguments, options):
    return right(*arguments[:4], None, **options)


MISTAKES = {
    _last_row_of_dx: "dx: at",
    _writes_an_input: "dy: was written",
    _writes_behind_dx: "dx: memory between or around its elements was written",
    _ignores_the_mask: "there although masked off",
    _forgets_gamma: "at",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__.strip("_"))
def test_a_planted_mistake_is_found_and_shrunk(mistake, monkeypatch):
    monkeypatch.setattr(lngrad, "layer_norm_backward", _wrong(mistake))
    report = soak(calls=400, seed=1, doors=("numba_cpu",))
    assert report.violations
    call = next((call for call, reason in report.violations if MISTAKES[mistake] in reason), None)
    assert call is not None, found(report)
    small = shrink(call)
    with pytest.raises(Violation):
        run(small)
    assert np.prod(small.lead + small.normalized) <= 6


def test_the_program_of_a_call_runs_it_again():
    call = Call(seed=5, lead=(2, 3), dtype="bfloat16", parameters="", dx="odd bytes", mask=(True, False, True))
    result = subprocess.run(program(call), shell=True, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Call(seed=5, lead=(2, 3), dtype='bfloat16', parameters='', dx='odd bytes'" in program(call)


@pytest.mark.parametrize("layout", LAYOUTS[:-1])
def test_canaries(layout):
    guarded = Guarded((3, 4), np.dtype(np.float32), layout)
    guarded.array[...] = 7
    assert guarded.gaps_unchanged()
    guarded.memory[3] = 0
    assert not guarded.gaps_unchanged()


def test_the_command_line():
    given = [sys.executable, "-m", "lngrad.soak", "--calls", "20", "--door", "numpy_cpu"]
    result = subprocess.run(given, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("20 calls in")
