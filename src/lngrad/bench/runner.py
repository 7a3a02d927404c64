"""From scopes, shapes, dtypes and peers to records: every result is checked before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import lngrad
from lngrad.api import execute
from lngrad.arrays import Output, empty
from lngrad.bench import jax_programs, torch_modules
from lngrad.bench.cases import CALL_SHAPES, DTYPES, MODULE_SHAPES, QUICK, SHAPES, Job
from lngrad.bench.first_call import first_calls
from lngrad.bench.measure import Timing, interleave, keep_memory
from lngrad.bench.peers import Arrays, PeerMissing, peer_call, peer_versions, why_not
from lngrad.bench.records import record
from lngrad.bench.roofline import Roofline
from lngrad.plan import make_plan
from lngrad.problem import Problem
from lngrad.testing import Inputs, check_forward, check_grads

__all__ = ["SCOPES", "Settings", "jobs", "run"]

# call: the public function in the default environment, as a user meets it, outputs of 64 MB and more.
# override, autograd, jax: forward and backward through a front door, in the default environment too.
# kernel: plan ready, outputs and workspace given; freed memory is kept, for every peer alike. forward: likewise.
# overhead: the public function on 64×64, where arithmetic is nothing. first_call: a fresh process, cold and warm cache.
DOORS = {  # the peer, and what brings a job's contestants
    "override": ("torch", torch_modules.override),
    "autograd": ("torch", torch_modules.autograd),
    "jax": ("jax", jax_programs.jitted),
}
SCOPES = ("call", *DOORS, "kernel", "forward", "overhead", "first_call")
AS_CALLED = ("call", *DOORS)
CHECKED_ROWS = 256  # of a job's rows the first are compared with the reference; all of its column sums cost too much


@dataclass(frozen=True)
class Settings:
    """What to run."""

    scopes: tuple[str, ...] = SCOPES
    shapes: tuple[tuple[int, int], ...] | None = None
    dtypes: tuple[str, ...] = DTYPES
    peers: tuple[str, ...] = ("torch",)
    rounds: int = 15
    quick: bool = False


def jobs(settings: Settings, scope: str) -> list[Job]:
    """The jobs of a scope."""
    op = "both" if scope in DOORS else "forward" if scope == "forward" else "backward"
    if scope == "overhead":
        return [Job(64, 64, "float32")]
    if scope == "first_call":
        return [Job(70, 300, dtype) for dtype in settings.dtypes]
    if scope == "call":
        shapes = settings.shapes or (CALL_SHAPES[:1] if settings.quick else CALL_SHAPES)
        chosen = [Job(M, N, dtype) for M, N in shapes for dtype in settings.dtypes]
        return chosen if settings.shapes else [job for job in chosen if job.nbytes // 3 >= 64 * 10**6]
    shapes = settings.shapes or (QUICK if settings.quick else MODULE_SHAPES if scope in DOORS else SHAPES)
    return [Job(M, N, dtype, op) for M, N in shapes for dtype in settings.dtypes]


def run(settings: Settings, said: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Time every job of every scope; yields records. What can't be done is said and passed over.

    What is timed as called comes first, since the others change how glibc keeps memory, for good.
    """
    peers = tuple(name for name in settings.peers if _can_run(name, said))
    rounds = 3 if settings.quick else settings.rounds
    roofline = Roofline()
    for scope in (scope for scope in SCOPES if scope in settings.scopes):
        if scope not in AS_CALLED:
            keep_memory()
        for job in jobs(settings, scope):
            measured: Timing | None = None
            versions = peer_versions(peers)
            if scope == "first_call":
                timings = first_calls(job.dtype, 1 if settings.quick else 3)
            elif scope in DOORS:
                peer, contestants = DOORS[scope]
                if not _can_run(peer, said):
                    break
                versions = peer_versions((peer,))
                arrays = make_arrays(job)
                calls, during = contestants(job, arrays, first_rows(job, arrays))
                timings = interleave(calls, rounds, during=during)
            else:
                calls = _calls(scope, job, peers, said)
                if scope in ("kernel", "forward"):
                    calls["roofline"] = roofline.call()
                timings = interleave(calls, rounds)
                measured = timings.pop("roofline", None)
            yield record(scope, job, timings, measured, Roofline.nbytes, versions)


def _calls(
    scope: str, job: Job, peers: tuple[str, ...], said: Callable[[str], None]
) -> dict[str, Callable[[], object]]:
    """Our call and those of the peers that can do the job."""
    arrays = make_arrays(job)
    calls: dict[str, Callable[[], object]] = {"lngrad": ours(scope, job, arrays)}
    for name in peers:
        try:
            calls[name] = peer_call(name, job, arrays)
        except PeerMissing as reason:
            said(str(reason))
    return calls


def _can_run(name: str, said: Callable[[str], None]) -> bool:
    reason = why_not(name)
    if reason is not None:
        said(reason)
    return reason is None


def make_arrays(job: Job) -> Arrays:
    """Random dy, x, gamma and beta, with our forward's mean and rstd."""
    rng = np.random.default_rng([job.M, job.N])

    def noise(shape: tuple[int, ...], offset: float) -> Any:
        array = empty("numpy", Output.of(shape, job.dtype))
        block = rng.standard_normal((min(shape[0], 4096), *shape[1:]), dtype=np.float32) + np.float32(offset)
        for start in range(0, shape[0], len(block)):
            rows = array[start : start + len(block)]
            rows[...] = np.roll(block, start, axis=-1)[: len(rows)]
        return array

    x, dy = noise((job.M, job.N), 0.5), noise((job.M, job.N), 0.0)
    gamma, beta = noise((job.N,), 1.0), noise((job.N,), 0.0)
    forward = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    return Arrays(dy, x, gamma, beta, forward.mean, forward.rstd)


def ours(scope: str, job: Job, arrays: Arrays) -> Callable[[], object]:
    """Our own call for a job, checked once."""
    a = arrays
    _check(job, a)
    if scope in ("call", "overhead"):
        return lambda: lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
    if job.op == "forward":
        problem, inputs = Problem.forward(a.x, a.gamma, a.beta)
        inputs = (*inputs, 1e-5)
    else:
        problem, inputs = Problem.backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
    plan = make_plan(problem, "numba_cpu")
    results = execute(plan, inputs)
    workspace = np.empty(plan.workspace_bytes, np.uint8)
    return lambda: plan.run(plan, inputs, results, workspace)


def first_rows(job: Job, a: Arrays) -> Inputs:
    """As many rows of a job as are compared with the reference."""
    rows = slice(0, min(job.M, CHECKED_ROWS))
    return Inputs(a.dy[rows], a.x[rows], a.mean[rows], a.rstd[rows], a.gamma, a.beta, 1)


def _check(job: Job, a: Arrays) -> None:
    """Refuse to time a wrong kernel: the first rows against the reference."""
    inputs = first_rows(job, a)
    if job.op == "forward":
        check_forward(lngrad.layer_norm(inputs.x, gamma=a.gamma, beta=a.beta), inputs)
    else:
        check_grads(lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, a.gamma), inputs)
