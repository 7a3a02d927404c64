"""Gated and modulated norms before `lngrad check`: right kernels pass every case, and one with a mistake fails and is told."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

from lngrad.check.calls.kernel import Here
from lngrad.check.case import Options
from lngrad.check.certify import certify
from lngrad.check.formats.reading import of_norm, read_folder, shipped
from lngrad.check.golden import write_goldens
from lngrad.check.implementations.users import users_function
from lngrad.check.inputs import draw
from lngrad.check.judge import check_case
from lngrad.core.norms import NORMS, PLAIN
from lngrad.errors import BackendUnavailable
from lngrad.support.dtypes import numpy_dtype

OTHERS = [name for name in NORMS if name not in PLAIN]
FAMILY = {case.name: case for case in shipped("family cases") if case.norm in OTHERS}

# A backward of all of them in float64, of what its parameters are named after.
KERNEL = """
def backward(dy, x, mean, rstd, gamma, gate, offset, norm_before_gate, normalized_shape, output_dtypes):
    axes = tuple(range(-len(normalized_shape), 0))
    rows = tuple(range(x.ndim - len(axes)))
    is_own = gamma is not None and gamma.ndim == x.ndim
    rows = tuple(axis for axis in rows if not is_own or gamma.shape[axis] == 1)
    statistics = (*x.shape[: x.ndim - len(axes)], *(1 for _ in axes))
    dy, x, mean, rstd = (one.astype(float) for one in (dy, x, mean.reshape(statistics), rstd.reshape(statistics)))
    scale = 1.0 if gamma is None else offset + gamma.astype(float)
    z = np.zeros(x.shape) if gate is None else gate.astype(float)
    sigma = 1 / (1 + np.exp(-z))
    silu = 1.0 if gate is None else z * sigma
    slope = sigma * (1 + z * (1 - sigma))
    of_x, of_y = (1.0, silu) if norm_before_gate else (silu, 1.0)
    xhat = (x * of_x - mean) * rstd
    dxhat = dy * of_y * scale
    first = dxhat.mean(axes, keepdims=True) if CENTRED else 0.0
    second = (dxhat * xhat).mean(axes, keepdims=True)
    of_norm = rstd * (dxhat - first - xhat * second)
    dx = of_norm * of_x
    dgamma, dbeta = ((one.sum(rows, keepdims=is_own)) for one in (dy * of_y * xhat, dy * of_y))
    normed = xhat * scale
    dgate = dy * normed * slope if norm_before_gate else of_norm * x * slope
    results = dx, dgamma, dbeta if gate is None else dgate
    return tuple(narrowed(one, dtype) for one, dtype in zip(results, output_dtypes))
"""
GATE_ALONE = "no known mistake explains it. dgate alone is wrong"
# (norm, a line's part, what stands there, the name that it gets, or the beginning of what is said)
MUTANTS = [
    ("gated_rms_norm", "dy * normed * slope", "dy * normed * sigma", "sigmoid for silu' in dgate"),
    ("gated_rms_norm", "dy * normed * slope", "dy * normed * silu", "silu for silu' in dgate"),
    ("gated_rms_norm", "dy * normed * slope", "dy * xhat * slope", "gamma forgotten in dgate"),
    ("gated_rms_norm", "dy * normed * slope", 'dy * narrowed(normed, "bfloat16") * slope', GATE_ALONE),
    ("gated_rms_norm", "silu = 1.0 if gate is None else z * sigma", "silu = sigma",
     "sigmoid for silu(gate) in dx; sigmoid for silu(gate) in dgamma"),
    ("gated_rms_norm", "silu = 1.0 if gate is None else z * sigma", "silu = 1.0",
     "silu(gate) forgotten in dx; silu(gate) forgotten in dgamma"),
    ("gated_rms_norm", "dxhat = dy * of_y * scale", "dxhat = dy * of_y", "gamma forgotten"),
    ("gated_rms_norm", "(dxhat * xhat).mean(axes", "(dxhat * xhat).sum(axes", "sums for means"),
    ("gated_rms_norm", "(1.0, silu) if norm_before_gate else (silu, 1.0)", "(silu, 1.0)", ""),
    ("rms_norm_of_gated", "(1.0, silu) if norm_before_gate else (silu, 1.0)", "(1.0, silu)", ""),
    ("rms_norm_of_gated", "xhat = (x * of_x - mean)", "xhat = (x - mean)", ""),
    ("rms_norm_of_gated", "xhat = (x * of_x - mean) * rstd", "rstd = 1 / np.sqrt((x**2).mean(axes, keepdims=True) + 1e-5); "
     "xhat = x * rstd", ""),
    ("rms_norm_of_gated", "dx = of_norm * of_x", "dx = of_norm", "silu(gate) forgotten in dx"),
    ("rms_norm_of_gated", "rstd * (dxhat - first - xhat * second)", "rstd * (dxhat - first)", "mean of dxhat·xhat missing"),
    ("rms_norm_of_gated", "of_norm * x * slope", "of_norm * x * sigma", "sigmoid for silu' in dgate"),
    ("rms_norm_of_gated", "of_norm * x * slope", 'narrowed(of_norm, "float16") * x * slope', GATE_ALONE),
    ("rms_norm_of_gated_groups", "offset + gamma.astype(float)", "gamma[:1].astype(float)", ""),
    ("rms_norm_of_gated_groups", "of_norm * x * slope", "of_norm * x * silu", "silu for silu' in dgate"),
    ("rms_norm_of_gated_groups", "of_norm * x * slope", "of_norm * x * 1", "silu' forgotten in dgate"),
    ("rms_norm_of_gated_groups", "of_norm * x * slope", "0 * x", "dgate never written"),
    ("modulated_layer_norm", "offset + gamma", "gamma", "offset forgotten"),
    ("modulated_layer_norm", "offset + gamma.astype(float)", "offset + gamma[:1].astype(float)", ""),
    ("modulated_layer_norm", "(one.sum(rows, keepdims=is_own))", "one.sum(rows, keepdims=is_own).sum(0) + 0 * gamma", ""),
    ("modulated_layer_norm", "(one.sum(rows, keepdims=is_own))", "one[:, :1] + 0 * gamma", ""),
    ("modulated_layer_norm", "first = dxhat.mean(axes, keepdims=True) if CENTRED else 0.0", "first = 0.0",
     "mean of dxhat missing"),
    ("modulated_rms_norm", "rstd * (dxhat - first - xhat * second)", "dxhat - first - xhat * second", "rstd missing in dx"),
]  # fmt: skip


def kernel(norm: str, old: str = "", new: str = "") -> Callable[..., Here]:
    """The kernel, or one with other text at a place, as a user's function in this process."""
    assert KERNEL.count(old) == 1 or not old

    def narrowed(item: Any, dtype: str) -> Any:
        rounded = np.asarray(item).astype(numpy_dtype(dtype))
        return rounded.astype(float) if "bfloat16" in new or "float16" in new else rounded

    names: dict[str, Any] = {"np": np, "narrowed": narrowed, "CENTRED": NORMS[norm].normalization.centred}
    exec(KERNEL.replace(old, new) if old else KERNEL, names)  # noqa: S102  # the text above

    def quiet(**drawn: Any) -> Any:
        with np.errstate(all="ignore"):
            return names["backward"](**drawn)

    quiet.__signature__ = signature(names["backward"])  # type: ignore[attr-defined]
    return lambda name: Here(users_function("kernel", target=quiet))


def test_there_are_cases_of_every_norm():
    assert {case.norm for case in FAMILY.values()} == set(OTHERS)
    assert {case.dtype for case in FAMILY.values()} == {"float32", "bfloat16", "float16"}


@pytest.mark.parametrize("impl", ["numba_cpu", "numpy_cpu"])
@pytest.mark.parametrize("name", FAMILY)
def test_our_backends_pass(name, impl):
    result = check_case(FAMILY[name], Options(impl=impl))
    assert result.status == "passed", result
    assert tuple(output.name for output in result.outputs) == FAMILY[name].wanted


@pytest.mark.parametrize("name", FAMILY)
def test_a_right_kernel_of_a_user_s_passes(name):
    case = FAMILY[name]
    result = check_case(case, Options(), kernel(case.norm))
    assert result.status == "passed", result


@pytest.mark.slow
@pytest.mark.parametrize("norm", OTHERS)
def test_default_cases_are_cases_of_every_norm(norm):
    for case in of_norm(shipped("default cases"), norm):
        result = check_case(case, Options(impl="numba_cpu"))
        assert result.status == "passed", result


@pytest.mark.parametrize(("norm", "old", "new", "told_name"), MUTANTS)
def test_a_wrong_kernel_fails_and_is_told(make_case, norm, old, new, told_name):
    case = make_case(norm=norm, lead=(5, 9), normalized=(48,), standard="exact")
    result = check_case(case, Options(), kernel(norm, old, new))
    assert result.status == "failed", result
    assert not result.sentence.startswith("no diagnosis"), result
    assert told_name in (result.mistake, "") or result.sentence.startswith(told_name), result


@pytest.mark.parametrize("norm", OTHERS)
def test_layouts_and_blocks_of_rows(make_case, norm):
    """Rows of a case with a gate may come in blocks; samples with a gamma each come together."""
    case = make_case(norm=norm, lead=(6, 50), normalized=(64,))
    for layouts in ({"x": "reversed axes", "gamma": "every second"}, {"dy": "backwards"}):
        assert check_case(make_case(norm=norm, layouts=layouts), Options(impl="numpy_cpu")).status == "passed"
    result = check_case(case, Options(impl="numpy_cpu", block_bytes=1 << 18))
    assert result.status == "passed", result


def test_a_golden_folder_of_gated_and_modulated_cases(tmp_path):
    cases = [case for case in FAMILY.values() if case.shape[-1] < 1000]
    write_goldens(cases, tmp_path / "golden", "npz", 0, 1 << 30, lambda: None)
    read = read_folder(tmp_path / "golden", 1 << 30)
    for case, item in zip(cases, read, strict=True):
        drawn, again = (draw(each, 0, 0, each.M, 1 << 30).inputs for each in (case, item))
        for name in ("dy", "x", "gamma", "gate"):
            first, second = getattr(drawn, name), getattr(again, name)
            assert (first is None) == (second is None)
            assert first is None or (first.shape == second.shape and (first == second).all())
        result = check_case(item, Options(against=str(tmp_path / "golden")))
        assert result.status == "passed", result


def test_what_takes_no_gate_is_skipped_or_refused(make_case):
    case = make_case(norm="gated_rms_norm")
    for impl in ("torch", "jax", "mutant:gamma forgotten"):
        result = check_case(case, Options(impl=impl))
        assert (result.status, result.reason) == ("skipped", f"{impl} does not compute gated_rms_norm"), result
    with pytest.raises(BackendUnavailable, match="does not compute gated_rms_norm"):
        certify("numpy_cpu", 1, norm="gated_rms_norm")


def test_a_gate_s_kernel_returns_its_gradient_too(make_case):
    result = check_case(
        make_case(norm="gated_rms_norm"), Options(),
        lambda name: Here(users_function("two", target=lambda dy, x, rstd, gamma, gate: (dy, gamma))),
    )  # fmt: skip
    assert result.status == "failed"
    assert "two: expected to return dx, dgamma, dgate, got tuple" in result.reason


@pytest.mark.parametrize("command", [("certify", "--impl", "numpy_cpu"), ("run", __file__, "-o", "out.npz")])
def test_commands_for_plain_norms_refuse_others(run, command):
    result = run(*command, "--norm", "modulated_layer_norm")
    assert result.exit_code == 2
    text_of_output = " ".join(result.output.split())
    assert f"--norm: expected one of {', '.join(PLAIN)}, got 'modulated_layer_norm'" in text_of_output
