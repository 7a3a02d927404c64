"""What must hold for any input, searched by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lngrad
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs

pytestmark = pytest.mark.property

sizes = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 256, 257]))
cases = st.builds(Case, st.tuples(sizes), st.tuples(sizes), gamma=st.booleans())
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from(["float16", "bfloat16", "float32", "float64"])


def gradients(inputs):
    return lngrad.layer_norm_backward(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, normalized_shape=inputs.normalized_shape
    )


@given(cases, dtypes, seeds)
def test_right_for_any_shape(case, dtype, seed):
    inputs = make_inputs(case, dtype, seed)
    check_grads(gradients(inputs), inputs)


@given(cases, dtypes, seeds, st.integers(-3, 3))
def test_linear_in_dy_exactly_for_powers_of_two(case, dtype, seed, power):
    inputs = make_inputs(case, dtype, seed)
    factor = inputs.dy.dtype.type(2.0**power)
    whole = inputs.dy.astype(np.float64)
    whole[np.abs(whole) < 0.1] = 0.125  # keep clear of subnormal results, which do not scale exactly
    inputs = replace(inputs, dy=whole.astype(inputs.dy.dtype))
    scaled = gradients(replace(inputs, dy=inputs.dy * factor))
    if dtype in ("float32", "float64"):
        check_same_bits(tuple(scaled), tuple(grad * factor for grad in gradients(inputs)))
    else:
        check_grads(scaled, replace(inputs, dy=inputs.dy * factor))


@given(cases, dtypes, seeds)
def test_zero_dy_gives_exact_zeros(case, dtype, seed):
    inputs = make_inputs(case, dtype, seed)
    for grad in gradients(replace(inputs, dy=np.zeros_like(inputs.dy))):
        assert not grad.astype(np.float64).any()


@given(cases, dtypes, seeds)
def test_a_row_depends_on_itself_alone(case, dtype, seed):
    inputs = make_inputs(case, dtype, seed)
    row = seed % case.lead[0]
    one = slice(row, row + 1)
    alone = replace(inputs, dy=inputs.dy[one], x=inputs.x[one], mean=inputs.mean[one], rstd=inputs.rstd[one])
    check_same_bits(gradients(alone).dx, gradients(inputs).dx[one])
    check_same_bits(
        lngrad.layer_norm(inputs.x[one], case.normalized, inputs.gamma, inputs.beta).y,
        lngrad.layer_norm(inputs.x, case.normalized, inputs.gamma, inputs.beta).y[one],
    )


@given(cases, seeds)
def test_permuting_rows_permutes_dx(case, seed):
    inputs = make_inputs(case, "float32", seed)
    order = np.random.default_rng(seed).permutation(case.lead[0])
    permuted = replace(inputs, dy=inputs.dy[order], x=inputs.x[order], mean=inputs.mean[order], rstd=inputs.rstd[order])
    check_same_bits(gradients(permuted).dx, gradients(inputs).dx[order])


@given(cases, seeds)
def test_rows_of_dx_sum_to_zero(case, seed):
    inputs = make_inputs(case, "float64", seed)
    dx = gradients(inputs).dx
    rstd = inputs.rstd.ravel()
    scale = np.abs(inputs.dy * (1 if inputs.gamma is None else inputs.gamma)).sum(1) * rstd
    # The mean was rounded: the row's xhat add up to as much, which counts where x lies far from 0 for its spread.
    scale *= 1 + np.abs(inputs.x).max(1) * rstd
    assert np.all(np.abs(dx.sum(1)) <= 1e-15 * scale)


@given(cases, seeds, st.floats(-4, 4))
def test_shifting_x_and_mean_leaves_the_gradients(case, seed, shift):
    inputs = make_inputs(case, "float64", seed)
    moved = replace(inputs, x=inputs.x + shift, mean=inputs.mean + shift)
    for one, other in zip(gradients(moved), gradients(inputs), strict=True):
        assert np.max(np.abs(one - other)) <= 1e-12 * (1 + np.max(np.abs(other)))


@given(cases, seeds, st.integers(-8, 8))
def test_scaling_x_scales_dx_inversely(case, seed, power):
    inputs = make_inputs(case, "float64", seed)
    scale = 2.0**power
    scaled = gradients(replace(inputs, x=inputs.x * scale, mean=inputs.mean * scale, rstd=inputs.rstd / scale))
    plain = gradients(inputs)
    check_same_bits((scaled.dx * scale, scaled.dgamma, scaled.dbeta), tuple(plain))


@given(st.integers(1, 5), st.integers(1, 200), sizes, seeds)
def test_column_sums_add_over_splits_at_chunks(chunks, rest, N, seed):
    """The tree over chunks is the same, so the sums of a first half of 2^k chunks and of the rest add up to the very bits."""
    head = 64 * 2 ** (chunks.bit_length() - 1)
    inputs = make_inputs(Case((head + min(rest, head),), (N,)), "float32", seed)
    parts = []
    for rows in (slice(0, head), slice(head, None)):
        part = replace(inputs, dy=inputs.dy[rows], x=inputs.x[rows], mean=inputs.mean[rows], rstd=inputs.rstd[rows])
        parts.append(gradients(part))
    whole = gradients(inputs)
    check_same_bits((parts[0].dgamma + parts[1].dgamma, parts[0].dbeta + parts[1].dbeta), (whole.dgamma, whole.dbeta))
