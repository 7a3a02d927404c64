"""The arguments of a job, as NumPy arrays or torch tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import lngrad
from lngrad.bench.cases import Job
from lngrad.core.arrays import Output, as_numpy, empty
from lngrad.core.dtypes import to_torch
from lngrad.core.threads import get_num_threads
from lngrad.testing import Inputs
from lngrad.typing import Array

CHECKED_ROWS = 256  # the first rows of a job are compared with the reference


@dataclass(frozen=True)
class Arguments:
    """Arguments of a job: arrays of one library.

    Attributes:
        dy, x: (M, N), in the job's dtype.
        gamma, beta: (N,), in the job's dtype.
        mean, rstd: (M, 1), in the accumulator's dtype.
    """

    dy: Any
    x: Any
    gamma: Any
    beta: Any
    mean: Any
    rstd: Any


def random_arguments(job: Job) -> Arguments:
    """Random NumPy arrays, with the mean and rstd of lngrad's forward.

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
    forward = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    return Arguments(dy, x, gamma, beta, forward.mean, forward.rstd)


def first_rows(a: Arguments) -> Inputs:
    """As many rows of NumPy arguments as are compared with the reference."""
    rows = slice(0, CHECKED_ROWS)
    return Inputs(a.dy[rows], a.x[rows], a.mean[rows], a.rstd[rows], a.gamma, a.beta, 1)


def as_tensors(a: Arguments | Inputs) -> Arguments:
    """torch's CPU tensors on the same memory; mean and rstd in x's dtype, as its forward keeps them."""
    import torch

    torch.set_num_threads(get_num_threads())
    dy, x, gamma, beta, mean, rstd = (
        to_torch(as_numpy(array)) for array in (a.dy, a.x, a.gamma, a.beta, a.mean, a.rstd)
    )
    return Arguments(dy, x, gamma, beta, mean.to(x.dtype), rstd.to(x.dtype))
