"""The soak: a share of its calls in every run of the suite, and proof that it would find what is wrong."""

from __future__ import annotations

import ast
import functools
import pkgutil
import random
import re
import subprocess
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import lngrad
from soak import Call, Violation, draw, program, run, shrink, soak
from soak import __main__ as command
from soak.call import ENTRIES, LAYOUTS, PLAIN, SPECIALS, Guarded, installed


def test_random_calls_of_the_core(soaked):
    done = soaked("--calls", 2_000, "--seed", 20, "--entry-points", "numba_cpu,numpy_cpu")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert re.match(r"2,000 calls in \d+ s, 0 violations$", done.stdout, re.MULTILINE)
    refusals = set(re.findall(r"(?m)^ +[\d,]+ refused: (.*)$", done.stdout))
    assert refusals == {"OverlapError: an output in part of x's memory", "ShapeError: x without dimensions"}


def test_equal_seeds_draw_equal_calls_of_every_kind():
    item, other = ([draw(random.Random(seed), ("numba_cpu",)) for seed in range(1000)] for _ in range(2))
    assert item == other
    assert {len(call.lead) + len(call.normalized) for call in item} == {0, 1, 2, 3, 4, 5, 6}
    for name, expected in (("x", LAYOUTS), ("dy", LAYOUTS), ("small", LAYOUTS[:-1]), ("special", SPECIALS)):
        assert {getattr(call, name) for call in item} == set(expected)
    assert {call.out for call in item} == {"", *LAYOUTS[:-1]}
    assert any(0 in call.lead + call.normalized for call in item)
    assert (
        len({(call.dtype, call.parameters, call.statistics) for call in item}) == 4 * 5 * 4
    )  # parameters may be absent


def test_the_formula_shares_no_code_with_the_reference():
    """Else one mistake would be in both: the formula imports nothing of lngrad that runs, and the rest neither of these two."""
    for path in Path(__file__).parent.glob("[!_t]*.py"):
        nodes = [
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        modules = {getattr(node, "module", None) or alias.name for node in nodes for alias in node.names}
        modules |= {
            f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        if path.stem != "faults":  # which compares with calls that nothing interrupts
            assert not modules & {"lngrad.core.reference", "lngrad.testing", "lngrad.core.formulas"}, path.name
        if path.stem == "formula":
            assert {name for name in modules if name.startswith(("lngrad", "soak"))} == {
                "lngrad.typing",
                "lngrad.typing.Array",
            }


def test_jax_is_given_few_shapes():
    """XLA compiles each of them; all else differs from call to call."""
    pytest.importorskip("jax")
    rng, traced = random.Random(0), []
    calls = [draw(rng, ("jax",), traced) for _ in range(400)]
    assert 10 <= len({(call.lead, call.normalized, call.dtype) for call in calls}) < 20
    assert len({(call.seed, call.x, call.special) for call in calls}) > 390


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
    report = soak(calls=400, seed=1, entry_points=("numba_cpu",))
    assert report.violations
    call = next((call for call, reason in report.violations if MISTAKES[mistake] in reason), None)
    assert call is not None, report.programs()
    small = shrink(call)
    with pytest.raises(Violation):
        run(small)
    assert np.prod(small.lead + small.normalized) <= 6


def _given(**changed):
    """A function called with other options."""
    return lambda right, arguments, options: right(*arguments, **{**options, **changed})


def _less_the_mean_of_dx(right, arguments, options):
    grads = right(*arguments, **options)
    if grads.dx is not None and grads.dx.size:
        grads.dx[...] -= grads.dx.mean(-1, keepdims=True)
    return grads


def _total_not_rounded(right, arguments, options):
    """y of the sum in float64, as of a kernel that keeps it in registers."""
    results = right(*arguments, **options)
    x, gamma = arguments
    if results.y.size:
        residual = options["residual"].astype(np.float64) if x.dtype != np.float64 else options["residual"]
        wide = lngrad.rms_norm.__wrapped__(
            x.astype(np.float64), gamma, **{**options, "residual": residual, "out": None}
        )
        results.y[...] = wide.y
    return results


def _total_for_y(right, arguments, options):
    return (right(*arguments, **options)[1],) * 2


IN_THE_FAMILY = [  # where, which norm, whose function, what it does wrong, and what is said
    ("numba_cpu", "rms_norm", "lngrad.rms_norm", _given(eps=1e-6), "y: at"),
    ("numba_cpu", "rms_norm", "lngrad.rms_norm_backward", _less_the_mean_of_dx, "dx: at"),
    ("numba_cpu", "gemma_rms_norm", "lngrad.rms_norm", _given(offset=0.0), "y: at"),
    ("numba_cpu", "zero_centred_layer_norm", "lngrad.layer_norm_backward", _given(offset=0.0), "dx: at"),
    ("numpy_cpu", "add_rms_norm", "lngrad.rms_norm_backward", _given(dtotal=None), "dx: at"),
    ("numpy_cpu", "add_rms_norm", "lngrad.rms_norm", _total_not_rounded, "y: at"),
    ("numba_cpu", "deep_norm", "lngrad.layer_norm", _given(alpha=1.0), "total: at"),
    ("torch", "add_rms_norm", "lngrad.torch.add_rms_norm", _total_for_y, "y: at"),
    ("jax", "deep_norm", "lngrad.jax.add_layer_norm", _given(alpha=1.0), "total: at"),
    ("aclnn", "add_layer_norm", "lngrad_ascend.referee.ACLNN_BACKWARD", " dtotal", "dx: at"),
]


@pytest.mark.parametrize(("entry_point", "norm", "target", "change", "reason"), IN_THE_FAMILY)
def test_a_planted_mistake_in_the_family_is_found(entry_point, norm, target, change, reason, monkeypatch):
    if entry_point in ("torch", "jax", "aclnn"):
        pytest.importorskip(entry_point.replace("aclnn", "lngrad_ascend"))
    right = pkgutil.resolve_name(target)
    if isinstance(right, dict):
        name, arguments = right[norm]
        monkeypatch.setitem(right, norm, (name, arguments.replace(change, " none")))
    else:

        @functools.wraps(right)
        def wrong(*arguments, **options):
            return change(right, arguments, options)

        monkeypatch.setattr(target, wrong)
    if not entry_point.endswith("_cpu"):  # XLA compiles each call's shape: one must do
        with pytest.raises(Violation, match=f"^{reason}"):
            run(Call(lead=(4,), normalized=(8,), entry_point=entry_point, norm=norm))
        return
    report = soak(calls=200, seed=1, entry_points=(entry_point,), norm=norm)
    assert any(text.startswith(reason) for _, text in report.violations), report.programs()


def test_every_norm_is_drawn_for_every_entry_point_that_has_it():
    for name, entry in ENTRIES.items():
        drawn = Counter(draw(random.Random(seed), (name,)).norm for seed in range(500) if name in installed((name,)))
        assert set(drawn) in ({norm for norm in PLAIN if norm in entry.norms}, set())
        assert drawn["layer_norm"] >= 200 or not drawn


def test_the_program_of_a_call_runs_it_again():
    call = Call(seed=5, lead=(2, 3), dtype="bfloat16", parameters="", out="odd bytes", mask=(True, False, True))
    result = subprocess.run(program(call), shell=True, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Call(seed=5, lead=(2, 3), dtype='bfloat16', parameters='', out='odd bytes'" in program(call)


@pytest.mark.parametrize("layout", LAYOUTS[:-1])
def test_canaries(layout):
    guarded = Guarded((3, 4), np.dtype(np.float32), layout)
    guarded.array[...] = 7
    assert guarded.gaps_unchanged()
    assert not guarded.unchanged()
    guarded.memory[3] = 0
    assert not guarded.gaps_unchanged()


@pytest.mark.parametrize("wrong", [lambda y: np.nan, lambda y: -y, lambda y: np.inf], ids=["nan", "sign", "inf"])
def test_a_single_wrong_element_is_found(wrong, monkeypatch):
    right = lngrad.layer_norm

    def forward(*arguments, **options):
        result = right(*arguments, **options)
        result.y.flat[-1] = wrong(result.y.flat[-1])
        return result

    monkeypatch.setattr(lngrad, "layer_norm", forward)
    with pytest.raises(Violation, match=r"^y: "):
        run(Call(lead=(4,), normalized=(8,)))


def test_an_infinity_that_is_missing_is_found(monkeypatch):
    right = lngrad.layer_norm_backward

    def backward(*arguments, **options):
        result = right(*arguments, **options)
        result.dbeta[...] = np.nan_to_num(result.dbeta)
        return result

    monkeypatch.setattr(lngrad, "layer_norm_backward", backward)
    with pytest.raises(Violation, match=r"^dbeta: not the infinity that it is"):
        run(Call(lead=(4,), normalized=(8,), special="inf in dy"))


def test_statistics_of_a_row_with_an_infinity_are_judged(monkeypatch):
    """Both are NaN, whatever the backend: docs/precision.md."""
    right = lngrad.layer_norm
    call = Call(lead=(4,), normalized=(8,), special="inf in x")
    run(call)

    def forward(*arguments, **options):
        result = right(*arguments, **options)
        result.mean[np.isnan(result.mean)] = np.inf
        return result

    monkeypatch.setattr(lngrad, "layer_norm", forward)
    with pytest.raises(Violation, match=r"^mean: NaN where there is none"):
        run(call)


def test_progress_is_told(monkeypatch):
    answer = []

    @contextmanager
    def working(text):
        answer.append(text)
        yield answer.append

    monkeypatch.setattr(command, "working", working)
    monkeypatch.setattr(command, "CALLS_A_LINE", 2)
    command.soak(calls=4, entry_points="numpy_cpu")
    assert answer == ["compiling or loading kernels", "2 calls, 0 violations", "4 calls, 0 violations"]


def test_the_command_line(soaked):
    result = soaked("--calls", "20", "--entry-points", "numpy_cpu")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("20 calls in")
    assert "0 violations" in result.stdout
    result = soaked("--entry-points", "numpy_cpu,nowhere")
    assert result.returncode == 2
    assert (
        "--entry-points: expected some of numba_cpu, numpy_cpu, torch, override, jax, aclnn, got 'nowhere'"
        in result.stderr
    )
    for option, value in (("calls", "0"), ("calls", "-1"), ("seconds", "0")):  # nothing is checked, which is no success
        result = soaked(f"--{option}", value)
        assert result.returncode == 2
        assert f"{option}: expected a positive number, got " in result.stderr
