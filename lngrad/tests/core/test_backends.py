"""Every backend × case × dtype against the float64 reference, and the mutants that the comparator must reject."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest

import lngrad
import norms
from lngrad.support.dtypes import DTYPES, numpy_dtype
from lngrad.testing import (
    CASES,
    Case,
    GradientError,
    check_forward,
    check_grads,
    make_inputs,
)
from mutants import MUTANTS, round_to

MASKS = tuple(itertools.product((True, False), repeat=3))


def gradients(inputs, backend, mask=None):
    return norms.backward(inputs, output_mask=mask or norms.everything(inputs), backend=backend)


# Nothing differs between backends and norms but what is called, and inputs cost as much as a call: drawn once for all backends.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward_are_right(case, dtype, norm):
    inputs = make_inputs(case, dtype, **norm)
    parameter, accumulator = numpy_dtype(case.gamma_dtype or dtype), np.float64 if dtype == "float64" else np.float32
    for backend in ("numba_cpu", "numpy_cpu"):
        grads = gradients(inputs, backend)
        check_grads(grads, inputs)
        assert [grad.dtype for grad in grads] == [numpy_dtype(dtype), parameter, parameter][: len(grads)]
        forward = norms.forward(inputs, backend=backend)
        check_forward(forward, inputs)
        assert forward.y.dtype == numpy_dtype(dtype)
        for statistic in {"mean", "rstd"} & set(forward._fields):
            assert getattr(forward, statistic).dtype == accumulator
            assert getattr(forward, statistic).shape == (*case.lead, *(1,) * len(case.normalized))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "case", [Case((130,), (5,)), Case((70,), (40,)), Case((70,), (300,)), Case((9,), (8200,))], ids=str
)
def test_masks_skip_and_do_not_change_the_rest(case, mask, norm, backend):
    inputs = make_inputs(case, "float32", **norm)
    mask = mask[: len(norms.everything(inputs))]
    check_grads(gradients(inputs, backend, mask), inputs, output_mask=mask)


@pytest.mark.parametrize("statistics", ["float32", None])
@pytest.mark.parametrize("gamma", ["float32", None])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_dtypes(dtype, gamma, statistics, norm, backend):
    case = Case((70,), (48,), gamma_dtype=gamma, statistics_dtype=statistics or dtype)
    inputs = make_inputs(case, dtype, **norm)
    grads = gradients(inputs, backend)
    check_grads(grads, inputs)
    assert all(grad.dtype == numpy_dtype(gamma or dtype) for grad in grads[1:])


@pytest.mark.parametrize("dgamma", DTYPES)
@pytest.mark.parametrize("dbeta", ["float32", "bfloat16"])
def test_dgamma_and_dbeta_take_their_dtype_from_out(dgamma, dbeta, norm, backend):
    inputs = make_inputs(Case((200,), (48,)), "bfloat16", **norm)
    out = (None, np.empty(48, numpy_dtype(dgamma)), np.empty(48, numpy_dtype(dbeta)))[: len(norms.everything(inputs))]
    grads = norms.backward(inputs, out=out, backend=backend)
    assert all(result is other for result, other in zip(grads[1:], out[1:], strict=True))
    check_grads(grads, inputs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_forward_statistics_may_be_asked_for_in_16_bits(dtype, backend):
    inputs = make_inputs(Case((9,), (40,)), dtype)
    narrow = numpy_dtype(dtype)
    out = lngrad.Forward(None, np.empty((9, 1), narrow), np.empty((9, 1), narrow))
    forward = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=40, out=out, backend=backend)
    assert forward.mean is out.mean
    check_forward(forward, inputs)


@pytest.mark.parametrize("M", [1, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_column_gives_exact_zeros(dtype, M, backend):
    inputs = make_inputs(Case((M,), (1,)), dtype)
    inputs = replace(inputs, mean=inputs.x.astype(inputs.mean.dtype))
    grads = gradients(inputs, backend)
    assert not grads.dx.astype(np.float64).any()
    assert not grads.dgamma.astype(np.float64).any()


@pytest.mark.parametrize("N", [5, 40, 300, 8200])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_stays_in_its_row(bad, N, norm, backend):
    inputs = make_inputs(Case((9,), (N,)), "float32", **norm)
    x = inputs.x.copy()
    x[4, N - 2] = bad
    clean, spoiled = gradients(inputs, backend), gradients(replace(inputs, x=x), backend)
    assert not np.isfinite(spoiled.dx[4]).any()
    lngrad.testing.check_same_bits(np.delete(spoiled.dx, 4, 0), np.delete(clean.dx, 4, 0))
    assert np.isfinite(np.delete(spoiled.dgamma, N - 2)).all()
    lngrad.testing.check_same_bits(spoiled[2:], clean[2:])


SMALLER = [case for case in CASES if prod((*case.lead, *case.normalized)) < 100_000]  # a mistake shows in any of them


@cache
def right_ones(case, dtype):
    """Inputs and their gradients, once for all mutants."""
    inputs = make_inputs(case, dtype)
    return inputs, gradients(inputs, "numpy_cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name, dtype):
    """On most cases: a few are too small to tell (one row, one column, no gamma)."""
    rejected = 0
    for case in SMALLER:
        inputs, like = right_ones(case, dtype)
        with np.errstate(over="ignore"):
            mutant = round_to(MUTANTS[name](inputs), like)
        try:
            check_grads(mutant, inputs)
        except GradientError:
            rejected += 1
    assert rejected >= 0.6 * len(SMALLER)


def test_the_comparator_raises_for_each_kind_of_fault():
    inputs = make_inputs(Case((9,), (40,)), "float32")
    grads = gradients(inputs, "numpy_cpu")
    assert check_grads(grads, inputs) < 1
    with pytest.raises(GradientError, match=r"dx: expected shape \(9, 40\), got \(40, 9\)"):
        check_grads(grads._replace(dx=grads.dx.T), inputs)
    with pytest.raises(GradientError, match="dgamma: expected a result, got None"):
        check_grads(grads._replace(dgamma=None), inputs)
    with pytest.raises(GradientError, match="dbeta: expected None, as it is masked off"):
        check_grads(grads, inputs, output_mask=(True, True, False))
    with pytest.raises(GradientError, match=r"dbeta: expected one of .*, got int64"):
        check_grads(grads._replace(dbeta=grads.dbeta.astype(np.int64)), inputs)
    spoiled = grads.dx.copy()
    spoiled[3, 7] = np.nan
    with pytest.raises(GradientError, match=r"dx: 0.28% of the elements are off; the worst at \(3, 7\)"):
        check_grads(grads._replace(dx=spoiled), inputs)
