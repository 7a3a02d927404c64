"""Infinities, NaNs and overflow: what docs/precision.md promises, row by row of its table, from every backend."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

import lngrad
import norms
from lngrad.api import execute
from lngrad.core import reference
from lngrad.core.problem import Forward, Grads, Problem
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import to_torch
from lngrad.testing import Case, check_same_bits, make_inputs
from norms import NORMS

if find_spec("triton"):
    import interpreted  # noqa: F401

ROW, COLUMN = 1, 2  # where the special value is
INF, NAN = float("inf"), float("nan")
SHAPES = [(3, 5), (5, 9), (70, 40), (3, 300)]
AT, EVERYWHERE = (ROW, COLUMN), (ROW, slice(None))

# What is changed to what; then what dx of that row holds, and dgamma and dbeta in that column.
BACKWARD = {
    "x is infinite": ({"x": (AT, INF)}, {"inf", "nan"}, "inf", "finite"),
    "x is NaN": ({"x": (AT, NAN)}, {"nan"}, "nan", "finite"),
    "dy is infinite": ({"dy": (AT, -INF)}, {"inf", "nan"}, "inf", "inf"),
    "dy is NaN": ({"dy": (AT, NAN)}, {"nan"}, "nan", "nan"),
    "gamma is infinite": ({"gamma": (COLUMN, INF)}, {"inf", "nan"}, "finite", "finite"),
    "gamma is NaN": ({"gamma": (COLUMN, NAN)}, {"nan"}, "finite", "finite"),
    "0 times infinity": ({"gamma": (COLUMN, 0), "dy": (AT, INF)}, {"nan"}, "inf", "inf"),
    "rstd is 0": ({"rstd": ((ROW, 0), 0)}, {"zero"}, "finite", "finite"),
    "rstd is 0 and x infinite": ({"rstd": ((ROW, 0), 0), "x": (AT, INF)}, {"nan"}, "nan", "finite"),
    "rstd is infinite": ({"rstd": ((ROW, 0), INF)}, {"nan"}, "inf", "finite"),
    "rstd is NaN": ({"rstd": ((ROW, 0), NAN)}, {"nan"}, "nan", "finite"),
    "rstd is huge": ({"rstd": ((ROW, 0), 1e30)}, {"inf", "nan"}, "finite", "finite"),
    "mean is infinite": ({"mean": ((ROW, 0), INF)}, {"nan"}, "inf", "finite"),
    "mean is NaN": ({"mean": ((ROW, 0), NAN)}, {"nan"}, "nan", "finite"),
    "a row of dy overflows": ({"dy": (EVERYWHERE, 3e38)}, {"inf", "nan"}, None, "finite"),
}


BACKEND_NAMES = ["numba_cpu", "numpy_cpu", "triton_gpu"]


@pytest.fixture(params=BACKEND_NAMES)
def backend(request):
    """Triton's too, under its interpreter, where there is no GPU."""
    state = lngrad.backends()[request.param]
    if "not installed" in state:
        pytest.skip(f"{request.param}: {state}")
    if "norm" in request.fixturenames and request.getfixturevalue("norm") and request.param == "triton_gpu":
        pytest.skip("the family on Triton is compared in tests/gpu")
    return request.param


def on_tensors(describe, arrays, *eps):
    """A call of Triton's kernels with NumPy arrays; by itself no CPU tensor goes there."""
    from lngrad.gpu.plan import plan

    problem, tensors = describe(*(None if array is None else to_torch(array.copy()) for array in arrays))
    with np.errstate(all="ignore"):  # the interpreter computes with NumPy
        return tuple(as_numpy(result) for result in execute(plan(problem, 1), (*tensors, *eps)))


def forward(x, gamma=None, beta=None, *, backend, eps=1e-5):
    if backend == "triton_gpu":
        return Forward(*on_tensors(Problem.forward, (x, gamma, beta), eps))
    return lngrad.layer_norm(x, gamma, beta, eps=eps, backend=backend)


def backward(dy, x, mean, rstd, gamma, *, backend):
    if backend == "triton_gpu":
        return Grads(*on_tensors(Problem.backward, (dy, x, mean, rstd, gamma)))
    return lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, backend=backend)


def kind(value):
    value = float(value)
    return "nan" if np.isnan(value) else "inf" if np.isinf(value) else "zero" if value == 0 else "finite"


def kinds_of(array):
    """The kind of every element, as an array to be compared."""
    array = array.astype(np.float64)
    return np.select([np.isnan(array), np.isinf(array), array == 0], ["nan", "inf", "zero"], "finite")


@cache
def ordinary(shape, dtype, backend):
    """Inputs with nothing special, and their gradients; nobody writes to them."""
    inputs = make_inputs(Case(shape[:1], shape[1:], gamma_dtype="float32"), dtype)
    return inputs, backward(*inputs.arguments, backend=backend)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name, shape, dtype, backend):
    changes, of_dx, of_dgamma, of_dbeta = BACKWARD[name]
    inputs, clean = ordinary(shape, dtype, backend)
    arrays = {part: getattr(inputs, part).copy() for part in ("dy", "x", "mean", "rstd", "gamma")}
    for part, (at, value) in changes.items():
        arrays[part][at] = value
    dx, dgamma, dbeta = backward(**arrays, backend=backend)
    assert {kind(value) for value in dx[ROW]} <= of_dx
    if of_dgamma is not None:
        assert kind(dgamma[COLUMN]) == of_dgamma
    assert kind(dbeta[COLUMN]) == of_dbeta
    if "gamma" not in changes:  # every other row is as it was
        others = np.arange(shape[0]) != ROW
        check_same_bits(dx[others], clean.dx[others])
    spread = {"rstd", "mean"} & changes.keys() or name == "a row of dy overflows"
    columns = np.arange(shape[1]) != COLUMN
    if not spread:
        check_same_bits((dgamma[columns], dbeta[columns]), (clean.dgamma[columns], clean.dbeta[columns]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [name for name in BACKWARD if name not in ("a row of dy overflows", "rstd is huge")])
def test_every_backend_and_the_formula_agree_on_every_kind(name, shape, norm, backend):
    """inf, NaN, zero or finite: equal in all results, element by element, as in IEEE arithmetic in float64."""
    inputs = make_inputs(Case(shape[:1], shape[1:]), "float32", **norm)
    inputs = replace(inputs, x=inputs.total, residual=None)  # as a backward has it
    arrays = {part: getattr(inputs, part).copy() for part in ("dy", "x", "mean", "rstd", "gamma")}
    if "mean" in BACKWARD[name][0] and not inputs.normalization.centred:
        pytest.skip("there is no mean")
    for part, (at, value) in BACKWARD[name][0].items():
        arrays[part][at] = value
    with np.errstate(all="ignore"):
        switches = {"normalization": inputs.normalization, "dtotal": inputs.dtotal}
        truth = reference.layer_norm_backward(**arrays, **switches)
    if norm:
        results = norms.backward(replace(inputs, **arrays), backend=backend)
    else:
        results = backward(**arrays, backend=backend)
    for got, expected in zip(results, truth, strict=False):
        assert (kinds_of(got) == kinds_of(expected)).all()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("backend", ["numba_cpu", "numpy_cpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 8200)], ids=str)
def test_what_a_mean_lost_changes_no_kind(shape, offset, dtype, backend):
    """The table again with completed means: every element's kind is the formula's, other rows keep their bits."""
    lngrad.set_num_threads(2)
    inputs = make_inputs(Case(shape[:1], shape[1:], gamma_dtype="float32", offset=offset, spread=1.0), dtype)

    def completed(**arrays):
        return lngrad.layer_norm_backward(**arrays, complete_mean=True, backend=backend)

    parts = {part: getattr(inputs, part) for part in ("dy", "x", "mean", "rstd", "gamma")}
    clean, others = completed(**parts), np.arange(shape[0]) != ROW
    for name, (changes, *of_table) in BACKWARD.items():
        arrays = {part: array.copy() for part, array in parts.items()}
        for part, (at, value) in changes.items():
            arrays[part][at] = value
        got = completed(**arrays)
        if name in ("a row of dy overflows", "rstd is huge"):  # in float64 they don't
            assert {kind(value) for value in got.dx[ROW]} <= of_table[0], name
            assert kind(got.dgamma[COLUMN]) in (of_table[1], "finite", "inf"), name
        else:
            with np.errstate(all="ignore"):
                truth = reference.layer_norm_backward(**arrays)
            for result, other in zip(got, truth, strict=True):
                assert (kinds_of(result) == kinds_of(other)).all(), name
        if "gamma" not in changes:
            check_same_bits(got.dx[others], clean.dx[others])


@pytest.mark.parametrize(("offset", "of_dgamma"), [(2.0, "nan"), (100.0, "inf")])
def test_an_infinite_dy_where_x_is_the_rounded_mean(offset, of_dgamma, backend):
    """0·∞ with the mean as given, and where |mean|·rstd is below 8; what the mean lost, times ∞, above it: of CPU backends."""
    inputs = make_inputs(Case((3,), (40,), offset=offset, spread=1.0), "float32")
    x, dy = inputs.x.copy(), inputs.dy.copy()
    for _ in range(20):
        mean = np.float32(x[ROW].mean(dtype=np.float64))
        if x[AT] == mean:
            break
        x[AT] = mean
    own = forward(x, backend="numba_cpu")
    assert own.mean[ROW, 0] == x[AT] != x[ROW].mean(dtype=np.float64)
    dy[AT] = INF
    for complete, expected in ((False, "nan"), (True, "nan" if backend == "triton_gpu" else of_dgamma)):
        if backend == "triton_gpu":  # takes means as they are given
            got = backward(dy, x, own.mean, own.rstd, inputs.gamma, backend=backend)
        else:
            options = {"backend": backend, "complete_mean": complete}
            got = lngrad.layer_norm_backward(dy, x, own.mean, own.rstd, inputs.gamma, **options)
        assert kind(got.dgamma[COLUMN]) == expected
        assert {kind(value) for value in got.dx[ROW]} <= {"inf", "nan"}


@pytest.mark.parametrize("value", [INF, NAN])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("norm", [norm for norm in NORMS.values() if "residual" in norm], ids=str)
def test_a_special_dtotal_reaches_its_element_alone(norm, shape, value, backend):
    inputs = make_inputs(Case(shape[:1], shape[1:]), "float32", **norm)
    dtotal = inputs.dtotal.copy()
    dtotal[AT] = value
    got, clean = (
        norms.backward(replace(inputs, dtotal=dtotal), backend=backend),
        norms.backward(inputs, backend=backend),
    )
    assert kind(got.dx[AT]) == kind(value)
    got.dx[AT] = clean.dx[AT]
    check_same_bits(got, clean)


@pytest.mark.parametrize("name", BACKWARD)
def test_the_simulated_device_keeps_the_table_too(name):
    """By the formula of its kernel, whose products of rstd overflow earlier; it has neither bfloat16 nor a forward."""
    changes, of_dx, of_dgamma, of_dbeta = BACKWARD[name]
    inputs, clean = ordinary((5, 9), "float32", "ascend_sim")
    arrays = {part: getattr(inputs, part).copy() for part in ("dy", "x", "mean", "rstd", "gamma")}
    for part, (at, value) in changes.items():
        arrays[part][at] = value
    dx, dgamma, dbeta = backward(**arrays, backend="ascend_sim")
    assert {kind(value) for value in dx[ROW]} <= of_dx
    assert kind(dgamma[COLUMN]) == of_dgamma or name in ("rstd is huge", "a row of dy overflows")
    assert kind(dbeta[COLUMN]) == of_dbeta
    if "gamma" not in changes:
        others = np.arange(5) != ROW
        check_same_bits(dx[others], clean.dx[others])


# What a row of x is; then y, mean and rstd of it, where beta is y of a row that has no spread.
FORWARD = {
    "an infinity": (lambda row: np.where(np.arange(row.size) == COLUMN, INF, row), "nan", "nan", "nan"),
    "a NaN": (lambda row: np.where(np.arange(row.size) == COLUMN, NAN, row), "nan", "nan", "nan"),
    "squares that overflow": (lambda row: row * np.float32(1e20), "finite", "finite", "finite"),
    "a row of 1e30": (lambda row: row * np.float32(1e30), "finite", "finite", "finite"),
    "a sum that overflows": (lambda row: np.full_like(row, 3e38), "beta", "finite", "finite"),
    "no spread": (lambda row: np.full_like(row, 3), "beta", "finite", "finite"),
    "squares that vanish": (lambda row: row * np.float32(1e-30), "finite", "finite", "finite"),
}


# The same where a backend does not scale them.
UNSCALED = {"squares that overflow": ("beta", "finite", "zero"), "a sum that overflows": ("nan", "nan", "nan")}
UNSCALED["a row of 1e30"] = UNSCALED["squares that overflow"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORWARD)
def test_forward(name, shape, dtype, backend):
    change, *kinds = FORWARD[name]
    of_y, of_mean, of_rstd = kinds if backend == "numpy_cpu" else UNSCALED.get(name, kinds)
    inputs = make_inputs(Case(shape[:1], shape[1:], gamma_dtype="float32"), dtype)
    x = inputs.x.copy()
    with np.errstate(all="ignore"):
        x[ROW] = change(inputs.x[ROW].astype(np.float32)).astype(x.dtype)
    got = forward(x, inputs.gamma, inputs.beta, backend=backend)
    clean = forward(inputs.x, inputs.gamma, inputs.beta, backend=backend)
    assert (kind(got.mean[ROW, 0]), kind(got.rstd[ROW, 0])) == (of_mean, of_rstd)
    if of_y == "beta":
        check_same_bits(got.y[ROW], inputs.beta.astype(x.dtype))
    else:
        assert {kind(value) for value in got.y[ROW]} == {of_y}
    others = np.arange(shape[0]) != ROW
    check_same_bits(tuple(part[others] for part in got), tuple(part[others] for part in clean))


# The same of rms_norm, whose rows have no distance from a mean: what y's elements are, and rstd.
RMS_ROWS = {
    "an infinity": ({"nan", "zero"}, "zero"),
    "a NaN": ({"nan"}, "nan"),
    "squares that overflow": ({"finite"}, "finite"),
    "a row of 1e30": ({"finite"}, "finite"),
    "a sum that overflows": ({"finite"}, "finite"),
    "no spread": ({"finite"}, "finite"),
    "squares that vanish": ({"finite"}, "finite"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("norm", [NORMS["rms_norm"], NORMS["gemma_rms_norm"]], ids=["rms_norm", "gemma"])
def test_rms_forward(norm, name, shape, dtype, backend):
    inputs = make_inputs(Case(shape[:1], shape[1:], gamma_dtype="float32"), dtype, **norm)
    x = inputs.x.copy()
    with np.errstate(all="ignore"):
        x[ROW] = FORWARD[name][0](inputs.x[ROW].astype(np.float32)).astype(x.dtype)
    got, clean = norms.forward(replace(inputs, x=x), backend=backend), norms.forward(inputs, backend=backend)
    of_y, of_rstd = ({"zero"}, "zero") if backend != "numpy_cpu" and name in UNSCALED else RMS_ROWS[name]
    assert {kind(value) for value in got.y[ROW]} == of_y
    assert kind(got.rstd[ROW, 0]) == of_rstd
    assert "nan" not in of_y or kind(got.y[AT]) == "nan"
    others = np.arange(shape[0]) != ROW
    check_same_bits((got.y[others], got.rstd[others]), (clean.y[others], clean.rstd[others]))


def test_an_eps_of_zero_and_no_spread(backend):
    """rstd is infinite, and y 0 times infinity."""
    x = np.full((3, 9), 2, np.float32)
    got = forward(x, eps=0.0, backend=backend)
    assert [kind(part.ravel()[0]) for part in got] == ["nan", "finite", "inf"]


@pytest.mark.parametrize("backend", ["numba_cpu", "numpy_cpu"])
def test_statistics_beyond_float16_are_infinite(backend):
    """65504 is its largest number. Keep them in float32, as is done where no arrays are given for them."""
    inputs = make_inputs(Case((3,), (9,)), "float32")
    x = inputs.x.copy()
    x[0] += 1e6
    x[1] *= 1e-6
    narrow = Forward(None, np.empty((3, 1), np.float16), np.empty((3, 1), np.float16))
    got = lngrad.layer_norm(x, eps=1e-12, out=narrow, backend=backend)
    assert [kind(value) for value in got.mean[:, 0]] == ["inf", "finite", "finite"]
    assert [kind(value) for value in got.rstd[:, 0]] == ["finite", "inf", "finite"]
    dx = lngrad.layer_norm_backward(inputs.dy, x, got.mean, got.rstd, backend=backend).dx
    assert [kind(row[0]) for row in dx] == ["nan", "nan", "finite"]
