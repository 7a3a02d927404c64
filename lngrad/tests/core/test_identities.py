"""What must hold for any input, searched by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import norms
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs
from norms import NORMS
from norms import backward as gradients

pytestmark = pytest.mark.property

sizes = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 256, 257]))
cases = st.builds(Case, st.tuples(sizes), st.tuples(sizes), gamma=st.booleans())
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from(["float16", "bfloat16", "float32", "float64"])


family = st.sampled_from([*NORMS.values()])
plain = st.sampled_from([norm for norm in NORMS.values() if "residual" not in norm])


@given(cases, dtypes, seeds, family)
def test_right_for_any_shape(case, dtype, seed, norm):
    inputs = make_inputs(case, dtype, seed, **norm)
    check_grads(gradients(inputs), inputs)
    check_forward(norms.forward(inputs), inputs)


@given(cases, dtypes, seeds, st.integers(-3, 3), plain)
def test_linear_in_dy_exactly_for_powers_of_two(case, dtype, seed, power, norm):
    inputs = make_inputs(case, dtype, seed, **norm)
    factor = inputs.dy.dtype.type(2.0**power)
    whole = inputs.dy.astype(np.float64)
    whole[np.abs(whole) < 0.1] = 0.125  # keep clear of subnormal results, which do not scale exactly
    inputs = replace(inputs, dy=whole.astype(inputs.dy.dtype))
    scaled = gradients(replace(inputs, dy=inputs.dy * factor))
    if dtype in ("float32", "float64"):
        check_same_bits(tuple(scaled), tuple(grad * factor for grad in gradients(inputs)))
    else:
        check_grads(scaled, replace(inputs, dy=inputs.dy * factor))


@given(cases, dtypes, seeds, plain)
def test_zero_dy_gives_exact_zeros(case, dtype, seed, norm):
    inputs = make_inputs(case, dtype, seed, **norm)
    for grad in gradients(replace(inputs, dy=np.zeros_like(inputs.dy))):
        assert not grad.astype(np.float64).any()


@given(cases, dtypes, seeds, family)
def test_a_row_depends_on_itself_alone(case, dtype, seed, norm):
    inputs = make_inputs(case, dtype, seed, **norm)
    row = seed % case.lead[0]
    single = slice(row, row + 1)
    alone = norms.of_rows(inputs, single)
    check_same_bits(gradients(alone).dx, gradients(inputs).dx[single])
    check_same_bits(norms.forward(alone).y, norms.forward(inputs).y[single])


@given(cases, seeds, family)
def test_permuting_rows_permutes_dx(case, seed, norm):
    inputs = make_inputs(case, "float32", seed, **norm)
    order = np.random.default_rng(seed).permutation(case.lead[0])
    check_same_bits(gradients(norms.of_rows(inputs, order)).dx, gradients(inputs).dx[order])


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
    for grad, other in zip(gradients(moved), gradients(inputs), strict=True):
        assert np.max(np.abs(grad - other)) <= 1e-12 * (1 + np.max(np.abs(other)))


@given(cases, seeds, st.integers(-8, 8), plain)
def test_scaling_x_scales_dx_inversely(case, seed, power, norm):
    inputs = make_inputs(case, "float64", seed, **norm)
    scale = 2.0**power
    scaled = gradients(replace(inputs, x=inputs.x * scale, mean=inputs.mean * scale, rstd=inputs.rstd / scale))
    plain = gradients(inputs)
    check_same_bits((scaled.dx * scale, *scaled[1:]), tuple(plain))


@given(st.integers(1, 5), st.integers(1, 200), sizes, seeds, family)
def test_column_sums_add_over_splits_at_chunks(chunks, rest, N, seed, norm):
    """The tree over chunks is the same, so the sums of a first half of 2^k chunks and of the rest add up to the very bits."""
    head = 64 * 2 ** (chunks.bit_length() - 1)
    inputs = make_inputs(Case((head + min(rest, head),), (N,)), "float32", seed, **norm)
    first, last = (gradients(norms.of_rows(inputs, rows)) for rows in (slice(0, head), slice(head, None)))
    whole = gradients(inputs)
    check_same_bits(tuple(part + other for part, other in zip(first[1:], last[1:], strict=True)), tuple(whole[1:]))


@given(cases, seeds)
def test_rms_norms_dx_has_no_share_of_x(case, seed):
    """y does not see a scaling of the row: Σ dx·x is what eps leaves of it, 0 where rstd is 1/sqrt(mean of x²)."""
    inputs = make_inputs(case, "float64", seed, **NORMS["rms_norm"])
    x = inputs.x
    inputs = replace(inputs, rstd=1 / np.sqrt((x * x).mean(1)))
    dx = gradients(inputs).dx
    scale = np.abs(inputs.dy * (1 if inputs.gamma is None else inputs.gamma)).sum(1) * inputs.rstd * np.abs(x).max(1)
    assert np.all(np.abs((dx * x).sum(1)) <= 1e-14 * scale * case.normalized[0])
