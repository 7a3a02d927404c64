"""Whether results are right that are timed on a device: on few rows, and in the timed job."""

from __future__ import annotations

import numpy as np
import torch

from lngrad.bench.arguments import Arguments
from lngrad.bench.cases import Job
from lngrad.bench.cuda.contestants import checked_tensors
from lngrad.bench.trial import Prepare
from lngrad.core import reference
from lngrad.core.arrays import as_numpy
from lngrad.core.problem import Forward, Grads
from lngrad.testing import GradientError, Inputs, check_forward, check_grads, error_share, error_shares
from lngrad.typing import Array, Tensor

_SLICE = 1 << 24  # elements that are summed in float64 at a time
_END = 1 << 16  # elements of the first rows, and of the last, that the reference takes


def error_of(job: Job, device: str, prepare: Prepare, *, strict: bool) -> dict[str, float]:
    """The worst error of each result against float64, in tolerances, on fewer rows.

    Args:
        job: What is to be timed.
        device: Where.
        prepare: Makes the call of a contestant, which returns tensors.
        strict: Raise an error beyond its tolerance; it is ours.

    Raises:
        GradientError: If strict.
    """
    inputs, t = checked_tensors(job, device)
    results = [result.detach().cpu() for result in prepare(job, t)()]
    if job.op == "forward":
        y = results[0]
        if strict:
            shape = inputs.mean.shape
            return {"y": check_forward(Forward(y, *(result.reshape(shape) for result in results[1:])), inputs)}
        return {"y": _share_of_y(y, inputs)}
    grads = Grads(*results)
    if strict:
        check_grads(grads, inputs)
    shares = error_shares(grads, inputs)
    return {name: round(float(np.max(share)), 3) for name, share in zip(Grads._fields, shares, strict=True)}


def _share_of_y(y: Tensor, inputs: Inputs) -> float:
    """A peer's y alone, with our reference's statistics in place of its own."""
    expected = reference.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized=inputs.normalized)
    statistics = (torch.from_numpy(np.asarray(part, np.float32)) for part in (expected.mean, expected.rstd))
    try:
        return round(check_forward(Forward(y, *statistics), inputs), 3)
    except GradientError:
        return float("inf")


def check_timed(job: Job, t: Arguments, results: tuple[Tensor, ...]) -> dict[str, float]:
    """The worst error of the timed job, in tolerances: first and last rows, all column sums.

    Args:
        job: What is to be timed.
        t: Its arguments.
        results: dx, dgamma, dbeta; or y, mean, rstd.

    Raises:
        GradientError: One is beyond its tolerance.
    """
    dy, x, mean, rstd = (_ends(part, job) for part in (t.dy, t.x, t.mean, t.rstd))
    inputs = Inputs(dy, x, mean, rstd, _numpy(t.gamma), _numpy(t.beta), 1)
    if job.op == "forward":
        return {"y": check_forward(Forward(*(_ends(part, job) for part in results)), inputs)}
    dx, *sums = results
    worst = {"dx": check_grads(Grads(_ends(dx, job), None, None), inputs, output_mask=(True, False, False))}
    accumulator = "float64" if job.dtype == "float64" else "float32"
    expected = _column_sums(t)
    for name, got, truth, scale in zip(("dgamma", "dbeta"), sums, expected[:2], expected[2:], strict=True):
        share = float(np.max(error_share(_numpy(got), _numpy(truth), _numpy(scale), accumulator)))
        if not share <= 1:
            raise GradientError(f"{name}: {job.M}x{job.N} {job.dtype}: the worst is off by {share:.3g} tolerances")
        worst[name] = share
    return worst


def _column_sums(t: Arguments) -> Tensor:
    """(4, N) in float64: dgamma, dbeta and the sums of their terms' absolute values."""
    N = t.x.shape[1]
    sums = torch.zeros(4, N, dtype=torch.float64, device=t.x.device)
    rows = max(1, _SLICE // N)
    for dy, x, mean, rstd in zip(*(each.split(rows) for each in (t.dy, t.x, t.mean, t.rstd)), strict=True):
        wide = dy.double()
        terms = (x.double() - mean.double()).mul_(rstd.double()).mul_(wide)
        for number, part in enumerate((terms, wide, terms.abs(), wide.abs())):
            sums[number] += part.sum(0)
    return sums


def _ends(rows: Tensor, job: Job) -> Array:
    """The first and last rows of a matrix or of statistics, as many as the reference can take."""
    rows = rows.reshape(job.M, -1)
    count = max(1, _END // job.N)
    return _numpy(rows if 2 * count >= job.M else torch.cat((rows[:count], rows[-count:])))


def _numpy(tensor: Tensor) -> Array:
    return as_numpy(tensor.detach().cpu())
