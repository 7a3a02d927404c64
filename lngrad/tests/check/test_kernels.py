"""Right kernels of every style pass the default cases; kernels that only look right are caught, and what they do is said."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "kernels"))

import cheats
import right

from lngrad.check import trial
from lngrad.check.calls.kernel import here
from lngrad.check.calls.process import KernelProcesses
from lngrad.check.case import CheckCase, fuzzed
from lngrad.check.case_calls import CaseCalls
from lngrad.check.formats.reading import select, shipped
from lngrad.check.judge import LIKELY, Options, Patience, check_case
from lngrad.check.result import CaseResult
from lngrad.core.problem import Normalization
from lngrad.testing import Case, gradient_scales, make_inputs

DEFAULT = shipped("default")


@pytest.fixture
def results_of() -> Iterator:
    """The results of cases, of a function in a process of its own."""
    kernels = KernelProcesses(1, 60.0)

    def results(impl: str, cases: list[CheckCase], **options) -> list[CaseResult]:
        return [check_case(case, Options(impl=impl, **options), kernels) for case in cases]

    yield results
    kernels.end()


def named(*names: str) -> list[CheckCase]:
    return [case for case in DEFAULT if case.name in names]


def assert_no_failure(results: list[CaseResult]) -> None:
    assert [(result.name, result.reason, result.sentence) for result in results if result.status == "failed"] == []
    assert any(result.status == "passed" for result in results)


@pytest.mark.parametrize("place", range(len(right.KERNELS)))
def test_right_kernels_of_every_style_pass(results_of, place):
    """Every case is for one of them, or two."""
    function = right.KERNELS[place].__name__
    if "torch" in function:
        pytest.importorskip("torch")
    small = [case for case in DEFAULT if case.M * case.N < 50_000]
    assert_no_failure(results_of(f"right:{function}", small[place :: len(right.KERNELS)]))


@pytest.mark.slow
@pytest.mark.parametrize("function", [item.__name__ for item in right.KERNELS])
def test_right_kernels_of_every_style_pass_all_default_cases(results_of, function):
    assert_no_failure(results_of(f"right:{function}", DEFAULT + fuzzed(60, 0)))


# Where each is seen, and how it is called, or what the reason says.
SEEN = {
    "stack_walk": ("tail", "never written"), "patched_judge": ("tail", "never written"),
    "patched_numpy": ("tail", "never written"), "freed_memory": ("tail", ""),
    "cached_by_shape": ("tail", "an earlier call's results"), "cached_by_x": ("one element", "an earlier call's results"),
    "every_second": ("tail", "an earlier call's results"),
    "right_when_small": ("3 by 20000", ""), "right_ten_times": ("small", "not repeatable"),
    "mutate_and_restore": ("tail", "it writes to its inputs, and puts back what was there"),
    "in_place": ("tail", "it changed its input dy"), "alias": ("one row", "results that change"), "late": ("tail", ""),
    "accumulator": ("tail", "not repeatable"), "race": ("small", "not repeatable"),
    "contiguous_alone": ("dy with gaps", "layout ignored"), "workspace_kept": ("small", "Right until a call with 606 rows"),
    "one_row_stride": ("a corner of a larger array", "layout ignored"), "truncated": ("bfloat16 rounded once", ""),
}  # fmt: skip


@pytest.mark.parametrize("function", [item.__name__ for item in cheats.KERNELS])
def test_kernels_that_only_look_right_are_caught(results_of, function):
    case, text = SEEN[function]
    (result,) = results_of(f"cheats:{function}", named(case))
    assert result.status == "failed"
    assert text in f"{result.mistake} {result.reason} {result.sentence}"
    assert "not repeatable" not in str(result.mistake) or not result.formulas  # nothing else is concluded


def test_the_second_call_of_a_slow_kernel_has_other_inputs(results_of, monkeypatch):
    monkeypatch.setattr(trial, "QUICK_SECONDS", 0.0)
    (result,) = results_of("cheats:every_second", named("tail"))
    assert (result.status, result.mistake, result.calls) == ("failed", "an earlier call's results", 3)
    (result,) = results_of("right:plain", named("tail"))
    assert (result.status, result.calls) == ("passed", 2)


NORM_ROUNDED = """
import numpy as np
def backward(dy, x, mean, rstd, gamma, normalized_shape, dtotal, output_dtypes, rounded=True):
    N, wide = gamma.size, lambda one: one.astype(np.float64)
    xhat, w = (wide(x) - wide(mean)) * wide(rstd), wide(dy) * wide(gamma)
    norm = wide(rstd) * (w - w.mean(-1, keepdims=True) - xhat * (w * xhat).mean(-1, keepdims=True))
    norm = wide(norm.astype(dx)) if rounded and (dx := output_dtypes[0]) else norm
    sums = ((wide(dy) * one).reshape(-1, N).sum(0) for one in (xhat, 1.0))
    return norm + wide(dtotal), *sums
def right(dy, x, mean, rstd, gamma, normalized_shape, dtotal, output_dtypes):
    return backward(dy, x, mean, rstd, gamma, normalized_shape, dtotal, output_dtypes, rounded=False)
"""


def test_a_gradient_that_is_rounded_before_dtotal_is_added_is_seen(results_of, tmp_path, monkeypatch):
    (tmp_path / "norm_rounded.py").write_text(NORM_ROUNDED)
    monkeypatch.syspath_prepend(tmp_path)
    cases = [case for case in shipped("family") if case.name in ("residual stream, float16", "DeepNorm, bfloat16")]
    assert_no_failure(results_of("norm_rounded:right", cases))
    assert [result.status for result in results_of("norm_rounded:backward", cases)] == ["failed", "failed"]


def test_what_is_left_of_other_cases_is_told_from_a_mistake_of_this_one(results_of, make_case):
    many, few = (make_case(name=f"{rows} rows", lead=(rows,), normalized=(16,)) for rows in (300, 20))
    first, second = results_of("cheats:workspace_kept", [many, few])
    assert first.status == "passed"
    assert (second.status, second.mistake) == ("failed", "an earlier call's results")
    assert second.sentence.startswith("Right as the first call of a process")


STRIDES = """
def backward(dy, x, mean, rstd, gamma, normalized_shape):
    import torch
    assert all(isinstance(one, torch.Tensor) for one in (dy, x, mean, rstd, gamma))
    dy, x = (one.as_strided((one.numel(),), (1,)).double().reshape(-1, gamma.numel()) for one in (dy, x))
    xhat, w = (x - mean.reshape(-1, 1)) * rstd.reshape(-1, 1), dy * gamma
    first, second = w.mean(1, keepdim=True), (w * xhat).mean(1, keepdim=True)
    return (rstd.reshape(-1, 1) * (w - first - xhat * second)).reshape(-1, gamma.numel()), (dy * xhat).sum(0), dy.sum(0)
"""


def test_a_function_on_tensors_gets_the_strides_of_the_case(results_of, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    (tmp_path / "strides.py").write_text(STRIDES)
    monkeypatch.syspath_prepend(tmp_path)
    plain, gaps = results_of("triton:strides:backward", named("65 by 64", "dy with gaps"))
    assert plain.status == "passed", plain.reason
    assert (gaps.status, gaps.mistake) == ("failed", "layout ignored")


ATOMICS = """
import numpy as np
import right
calls = 0
def shuffled(dy, x, mean, rstd, gamma, normalized_shape, missing=0.0):
    global calls
    calls += 1
    dx, dgamma, dbeta = right.plain(dy, x, mean, rstd, gamma, normalized_shape)
    order = np.random.default_rng(calls).permutation(len(x))
    return dx - missing, dgamma, np.cumsum(dy[order], 0, np.float32)[-1]
def wrong(dy, x, mean, rstd, gamma, normalized_shape):
    return shuffled(dy, x, mean, rstd, gamma, normalized_shape, np.float32(0.5))
"""


def test_sums_in_any_order_are_no_race_unless_the_standard_compares_bits(results_of, tmp_path, monkeypatch):
    """A kernel with atomic additions and another mistake is told of that mistake."""
    (tmp_path / "atomics.py").write_text(ATOMICS)
    monkeypatch.syspath_prepend(tmp_path)
    case = named("65 by 64")
    for standard in ("close", "mixed", "stable"):
        (result,) = results_of("atomics:shuffled", case, standard=standard)
        assert result.status == "passed", result.reason
        assert "its bits differ from call to call" in result.notes[-1]
    (result,) = results_of("atomics:shuffled", case, standard="binary")
    assert (result.status, result.mistake) == ("failed", "not repeatable")
    (result,) = results_of("atomics:wrong", case)
    assert (result.status, result.mistake) == ("failed", "a constant subtracted from dx")
    assert "by no more than sums in another order do" in result.notes[-1]


def test_results_of_timed_calls_are_judged_again(results_of):
    (result,) = results_of("right:plain", named("tail"), timed=True)
    assert result.status == "passed"
    assert result.time > 0
    assert result.of_memory > 0
    (result,) = results_of("cheats:right_until_timed", named("tail"), timed=True)
    assert (result.status, result.mistake) == ("failed", "an earlier call's results")


def test_a_mistake_that_explained_three_failures_is_tried_first(results_of):
    patience, found = Patience(Options()), CaseResult("", "", "failed", "", "", "", mistake="gamma forgotten")
    patience.add(replace(found, alternatives=(("dy ignored", ""), ("another rstd", ""))))
    for _ in range(LIKELY):
        assert patience.options.likely == ()
        patience.add(found)
    assert patience.options.likely == ("gamma forgotten",)
    for likely in (("dy ignored", "gamma forgotten"), ("dy ignored",)):  # or found as if there were none
        (result,) = results_of("mutant:gamma forgotten", named("tail"), likely=likely)
        assert result.mistake == "gamma forgotten"


def test_the_first_eight_cases_are_of_every_kind():
    few = select(DEFAULT, None, 8)
    assert {case.dtype for case in few} == {"float32", "bfloat16", "float16"}
    assert any(case.layouts for case in few)
    assert any(case.N % 32 and case.M % 32 for case in few)
    assert any(len(case.lead) > 1 for case in few)
    assert max(case.M * case.N for case in few) > 1_000_000
    assert any(len(case.normalized) > 1 and case.M > 65536 for case in DEFAULT)


def test_too_many_skipped_cases_are_no_pass(run, monkeypatch):
    monkeypatch.chdir(Path(cheats.__file__).parent)
    few = ("check", "--impl", "cheats:refuses_most", "--filter", "* by *", "--fuzz", 0)
    result = run("check", "--impl", "cheats:refuses_most", "--filter", "*a*l*")
    assert result.exit_code == 1, result.output
    assert "0 failed" in result.output
    assert "cases were skipped, more than --max-skipped 34%: that is no pass" in result.output
    assert run(*few, "--max-skipped", "few").exit_code == 2
    assert run("check", "--impl", "cheats:refuses_most", "--filter", "*a*l*", "--max-skipped", "99%").exit_code == 0


def test_who_computes_statistics_is_told_that_this_is_a_choice(results_of):
    ours, others, far = results_of(
        "right:ignoring", named("tail", "far from zero", "given statistics"), standard="exact"
    )
    assert (ours.status, others.status, far.status) == ("passed", "passed", "skipped")
    assert others.notes[-1:] == ("it computes mean and rstd from x itself; that is a choice",)
    assert far.reason.startswith(
        "it computes mean and rstd from x itself, and this case gives others. That is a choice"
    )


def test_bits_that_differ_are_a_note_where_all_are_right(results_of):
    (result,) = results_of("right:threaded", fuzzed(1, 0))
    assert result.status == "passed"


ROWS = """
import right
def backward(dy, x, mean, rstd, gamma, normalized_shape):
    grads = right.plain(dy, x, mean, rstd, gamma, normalized_shape)
    grads[0][65535:] = 0
    return grads
def once(dy, x, mean, rstd, gamma, normalized_shape):
    assert len(x) == 70001, len(x)
    return right.plain(dy, x, mean, rstd, gamma, normalized_shape)
def outside(dy, x, mean, rstd, gamma, normalized_shape, dx):
    grads = right.plain(dy, x, mean, rstd, gamma, normalized_shape)
    if dx is not None:
        dx[...] = grads[0]
        base = dx.base if dx.base is not None else dx
        while base.base is not None:
            base = base.base
        base[-1] = 0
    return grads
"""


@pytest.mark.slow
def test_a_case_is_called_whole_and_judged_in_blocks(results_of, tmp_path, monkeypatch):
    (tmp_path / "rows.py").write_text(ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    case = named("rows beyond 65535")
    (whole,) = results_of("rows:once", case, block_bytes=1 << 20)
    assert whole.status == "passed", whole.reason
    assert whole.notes == ()
    (wrong,) = results_of("rows:backward", case, block_bytes=1 << 20)
    assert wrong.status == "failed"
    assert "in row " in wrong.reason
    monkeypatch.setattr("lngrad.check.case_calls.available_bytes", lambda: 0)
    (parts,) = results_of("right:plain", case, block_bytes=1 << 23)
    assert parts.status == "passed", parts.reason
    assert "blocks of 5461 rows, as memory is short" in parts.notes[0]


BEYOND = """
import lngrad
def wraps(dy, x, mean, rstd, gamma):
    rows = 2**31 // x.shape[1]
    return lngrad.layer_norm_backward(dy[:rows], x[:rows], mean[:rows], rstd[:rows], gamma, output_mask=(False, True, True))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("impl", "wanted", "status"),
    [
        ("numba_cpu", ("dgamma", "dbeta"), "passed"),  # 9 GiB
        ("beyond:wraps", ("dgamma", "dbeta"), "failed"),
        ("numba_cpu", None, "passed"),  # 21 GiB
    ],
)
def test_a_case_beyond_two_to_the_31_elements_is_called_whole(
    make_case, results_of, tmp_path, monkeypatch, impl, wanted, status
):
    """Offsets of 32 bits wrap there, so blocks of rows would hide it."""
    (tmp_path / "beyond.py").write_text(BEYOND)
    monkeypatch.syspath_prepend(tmp_path)
    case = make_case(
        lead=(2**22 + 67,), normalized=(520,), dtype="float16", output_dtypes={"dx": "float16"},
        wanted=wanted, ranges={"mean": (-0.1, 0.1), "statistic": (0.8, 0.9)},
    )  # fmt: skip
    assert case.M * case.N > 2**31
    options = {"max_bytes": 1 << 40, "block_bytes": 256 << 20}
    if not CaseCalls(case, Options(impl=impl, **options), "mixed", here).is_whole:
        pytest.skip("memory does not suffice for one call")
    (result,) = results_of(impl, [case], **options)
    assert result.status == status, result
    assert not any("blocks" in note for note in result.notes)


def test_what_is_written_beside_a_given_output_is_seen(results_of, tmp_path, monkeypatch):
    (tmp_path / "rows.py").write_text(ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    (result,) = results_of("rows:outside", named("tail"))
    assert "it writes outside of dx" in result.reason


def test_an_output_that_is_masked_off_tells_of_the_way_out(results_of):
    (result,) = results_of("right:plain", named("dx alone"))
    assert result.status == "passed"
    (result,) = results_of("cheats:returns_all", named("dx alone"))
    assert "expected None, as it is masked off" in result.reason
    assert "or don't take output_mask" in result.reason


CHILD = """
import os, subprocess, sys, time
def hangs(dy, x, mean, rstd, gamma):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["CHILD"], "w") as file:
        file.write(str(child.pid))
    time.sleep(600)
"""


def test_the_time_limit_ends_what_a_kernel_has_started(tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CHILD", str(tmp_path / "pid"))
    kernels = KernelProcesses(1, 1.5)
    result = check_case(named("tail")[0], Options(impl="child:hangs"), kernels)
    kernels.end()
    assert "not done within 1.5 s" in result.reason
    process = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 5
    while time.monotonic() < until and alive(process):
        time.sleep(0.05)
    assert not alive(process)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_fuzzed_cases_are_drawn_from_the_seed_and_the_command_draws_them_again(results_of):
    first, again = fuzzed(5, 3), fuzzed(40, 3)
    assert first == again[:5]
    assert fuzzed(5, 4) != first
    assert len({(case.lead, case.normalized, case.dtype) for case in again}) > 30
    (result,) = results_of("right:plain", first[4:], seed=3, invoked="lngrad check --impl x")
    assert result.command == "lngrad check --impl x --fuzz 5 --seed 3 --filter '=fuzz 4'"


def test_beside_an_infinity_the_tolerances_of_rms_normalization_are_finite():
    inputs = make_inputs(Case((4,), (24,)), "float32", normalization=Normalization(centred=False))
    x, rstd = inputs.x.copy(), inputs.rstd.copy()
    x[2, 5], rstd[2] = np.inf, 0.0
    scales = gradient_scales(replace(inputs, x=x, rstd=rstd), rounded_mean=True)
    assert np.isfinite(np.delete(scales.dgamma, 5)).all()
