"""The arguments of a job as NumPy arrays, and the check of its first rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import lngrad
from lngrad.bench.cases import Job
from lngrad.check.case import NORMS
from lngrad.check.implementations import Arguments
from lngrad.core.arrays import Output, empty
from lngrad.testing import Inputs, check_forward, check_grads
from lngrad.typing import Array

CHECKED_ROWS = 256  # the first rows of a job are compared with the reference


def random_arguments(job: Job) -> Arguments:
    """Random NumPy arrays, with the mean and rstd of lngrad's forward where the norm is layer normalization.

    Blocks of 4096 rows are rotations of one another.
    """
    rng = np.random.default_rng([job.M, job.N])

    def noise(shape: tuple[int, ...], offset: float) -> Array:
        array: Array = empty("numpy", Output.of(shape, job.dtype))
        block = rng.standard_normal((min(shape[0], 4096), *shape[1:]), dtype=np.float32) + np.float32(offset)
        for start in range(0, shape[0], len(block)):
            rows = array[start : start + len(block)]
            rows[...] = np.roll(block, start, axis=-1)[: len(rows)]
        return array

    x, dy = noise((job.M, job.N), 0.5), noise((job.M, job.N), 0.0)
    gamma, beta = noise((job.N,), 1.0), noise((job.N,), 0.0)
    normalization, residual = NORMS[job.norm]
    if job.norm != "layer_norm":
        a = Arguments(dy, x, None, None, gamma, beta, (job.N,), normalization=normalization)
        return replace(a, residual=noise(x.shape, 0.0), dtotal=noise(x.shape, 0.0)) if residual else a
    forward = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    return Arguments(dy, x, forward.mean, forward.rstd, gamma, beta, (job.N,))


def first_rows(a: Arguments) -> Inputs:
    """As many rows of NumPy arguments as are compared with the reference."""
    rows = slice(0, CHECKED_ROWS)
    return Inputs(a.dy[rows], a.x[rows], a.mean[rows], a.rstd[rows], a.gamma, a.beta, 1)


def check_first_rows(a: Arguments, *, forward: bool = True, backward: bool = True) -> None:
    """Refuse to time wrong kernels: compare the first rows with the reference.

    Raises:
        GradientError: A result is wrong.
    """
    inputs = first_rows(a)
    if forward:
        check_forward(lngrad.layer_norm(inputs.x, gamma=a.gamma, beta=a.beta), inputs)
    if backward:
        check_grads(lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, a.gamma), inputs)
