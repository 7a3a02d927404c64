"""More than 2^31 elements: offsets must be 64-bit throughout. Needs some 13 GiB."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import lngrad
from lngrad.core.problem import Normalization
from lngrad.testing import Inputs, check_grads, check_same_bits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("M", "N"), [(2**22 + 67, 520), (70, 2**25 + 13)])
def test_beyond_two_to_the_31_elements(M, N):
    """float16; dy repeats one row (stride 0), x is real memory. The last rows are compared with the reference."""
    assert M * N > 2**31
    rng = np.random.default_rng(0)
    row = rng.standard_normal(N, dtype=np.float32).astype(np.float16)
    dy = as_strided(row, (M, N), (0, 2))
    block = rng.standard_normal(2**20 + 7, dtype=np.float32).astype(np.float16)
    x = np.resize(block, M * N).reshape(M, N)
    gamma = (1 + 0.5 * rng.standard_normal(N)).astype(np.float16)
    forward = lngrad.layer_norm(x, gamma)
    tail = slice(M - 5, M)
    y = forward.y[tail].copy()
    del forward
    statistics = lngrad.layer_norm(x, gamma, out=lngrad.Forward(np.empty((M, N), np.float16), None, None))
    mean, rstd = statistics.mean, statistics.rstd
    check_same_bits(statistics.y[tail], y)
    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, out=lngrad.Grads(statistics.y, None, None))
    inputs = Inputs(np.array(dy[tail]), x[tail], mean[tail], rstd[tail], gamma, None, 1)
    alone = lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, gamma)
    check_grads(alone, inputs)
    check_same_bits(grads.dx[tail], alone.dx)
    dbeta = row.astype(np.float64) * M
    inside = np.abs(dbeta) < 60000
    worst = np.max(np.abs(grads.dbeta.astype(np.float64) - dbeta)[inside] / np.maximum(np.abs(dbeta[inside]), 1))
    assert worst < 2.0**-10


def test_rms_norm_beyond_two_to_the_31_elements():
    """With a residual and the total's gradient, in place: some 9 GiB. The last rows have the bits that they have alone."""
    M, N = 2**22 + 67, 520
    rng = np.random.default_rng(1)
    row, added = rng.standard_normal((2, N), dtype=np.float32).astype(np.float16)
    dy, residual = (as_strided(array, (M, N), (0, 2)) for array in (row, added))
    block = rng.standard_normal(2**20 + 7, dtype=np.float32).astype(np.float16)
    x = np.resize(block, M * N).reshape(M, N)
    gamma = (1 + 0.5 * rng.standard_normal(N)).astype(np.float16)
    tail = slice(M - 5, M)
    first = x[tail].copy()
    y = np.empty((M, N), np.float16)
    forward = lngrad.rms_norm(x, gamma, residual=residual, out=lngrad.RmsForward(y, None, x))
    rms = Normalization(False)
    alone = lngrad.rms_norm(first, gamma, residual=added + np.zeros_like(first))
    check_same_bits(forward.y[tail], alone.y)
    check_same_bits(forward.total[tail], alone.total)
    grads = lngrad.rms_norm_backward(dy, x, forward.rstd, gamma, dtotal=residual, out=lngrad.RmsGrads(y, None))
    arguments = np.array(dy[tail]), x[tail].copy(), forward.rstd[tail], gamma
    last = lngrad.rms_norm_backward(*arguments, dtotal=np.array(residual[tail]))
    check_same_bits(grads.dx[tail], last.dx)
    inputs = Inputs(
        arguments[0],
        arguments[1],
        np.zeros_like(arguments[2]),
        arguments[2],
        gamma,
        None,
        1,
        rms,
        None,
        np.array(residual[tail]),
    )
    check_grads(last, inputs)
    assert np.isfinite(grads.dgamma).any()
