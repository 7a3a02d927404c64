"""A plan of the numba_cpu backend for calls too small to share: bound once, so that a call fills in addresses and runs.

What `run` finds out at every call (where the workspace begins, what is an absent gamma, whether to ask for help) is done
when the plan is bound. For 64×64 that is most of a call's time. Statistics and parameters in x's 16 bits are converted by
compiled code, to and from the workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import numpy as np

from lngrad.arrays import address_of
from lngrad.backend.numba_cpu.plan import COMBINE_AT, EPS_AT, SLOTS_AT, Steps, is_ready
from lngrad.backend.numba_cpu.workers import SERIAL_ELEMENTS, new_job
from lngrad.backend.numba_cpu.workspace import Copy, Places
from lngrad.dtypes import numpy_dtype
from lngrad.kernels.numba_cpu.pool import ARGUMENTS, TICKET, work
from lngrad.kernels.numba_cpu.tasks import task_function
from lngrad.plan import Plan

__all__ = ["prepare"]

MOST_BYTES = 1 << 16  # of workspace that a prepared plan may keep
CONVERTED = 3  # arrays that a converting job takes at most: mean, rstd and gamma of a backward
_CLEAR = (0,) * (ARGUMENTS - TICKET)  # the ticket and what lies between it and the arguments

_addresses = Struct(f"{ARGUMENTS - TICKET + 6}q").pack_into
_combine = Struct(f"{ARGUMENTS - TICKET + 3}q").pack_into
_arrays = Struct(f"{ARGUMENTS - TICKET + 3 * CONVERTED}q").pack_into
_eps = Struct("d").pack_into


class _Conversion:
    """A job that converts arrays; which of them, and where in the workspace they lie, is known before a call."""

    def __init__(self, plan: Plan, function: str):
        address = task_function(function, plan.problem.dtype, plan.problem.accumulator)
        job: Any = new_job(address, CONVERTED, (0,) * 3 * CONVERTED)
        self.address = address_of(job)
        self.bytes = memoryview(job).cast("B")  # keeps the job

    def __call__(self, *arrays: int) -> None:
        """Sources, targets and numbers of elements, one array after the other."""
        _arrays(self.bytes, 8 * TICKET, *_CLEAR, *arrays)
        work(self.address, 0, CONVERTED + 1)


class _Job:
    """The memory of one call. A call in another thread at the same time has one of its own."""

    def __init__(self, plan: Plan, widens: bool, narrows: bool, *constants: np.ndarray[Any, Any]):
        self.constants = constants
        self.jobs = plan.steps.jobs.copy()
        self.workspace = np.empty(plan.workspace_bytes, np.uint8)
        place = Places(self.workspace, plan.steps.places)
        self.slots = place.start + plan.steps.slots
        if plan.problem.op == "backward":
            self.jobs[SLOTS_AT] = self.slots
        self.address = address_of(self.jobs)
        self.bytes = memoryview(self.jobs).cast("B")
        # Where a converted array lies, and its elements; 0 and 0 for one that is used where it is.
        names = {copy.name for copy in plan.steps.copies if not _is_default(plan, copy)}
        self.mean, self.rstd, self.gamma, self.beta = (
            place.of(name) if name in names else 0 for name in ("mean", "rstd", "gamma", "beta")
        )
        M, N = plan.problem.M, plan.problem.N
        self.statistics = (M if self.mean else 0), (M if self.rstd else 0)
        self.parameters = (N if self.gamma else 0), (N if self.beta else 0)
        if widens:
            self.widen = _Conversion(plan, "widen")
        if narrows:
            self.narrow = _Conversion(plan, "narrow")


def _is_default(plan: Plan, copy: Copy) -> bool:
    """Whether a copy stands for a gamma or beta that the caller did not give."""
    return copy.name in ("gamma", "beta") and plan.problem.inputs.get(copy.name) is None


def _is_convertible(plan: Plan, copy: Copy) -> bool:
    """Whether a copy is of a contiguous array in x's dtype."""
    problem = plan.problem
    facts = problem.inputs.get(copy.name) or problem.out.get(copy.name)
    return copy.name in ("mean", "rstd", "gamma", "beta") and is_ready(facts, problem.dtype)


def prepare(plan: Plan) -> Callable[..., None] | None:
    """A function that runs a plan, given addresses, or None if the plan is not of the kind that can be bound.

    It can be where one thread does all, every tensor has a plain row stride, and mean, rstd, gamma and beta are contiguous
    in the accumulator's dtype or x's, or absent.

    Returns:
        Forward: run(x, y, mean, rstd, gamma, beta, eps). Backward: run(dy, x, dx, mean, rstd, gamma, dgamma, dbeta). An
        address is 0 where there is no such array. Any number of threads may call it at once.
    """
    steps = plan.steps
    if (
        plan.backend != "numba_cpu"
        or not isinstance(steps, Steps)
        or steps.elements >= SERIAL_ELEMENTS
        or plan.workspace_bytes > MOST_BYTES
        or steps.stream
        or steps.packs
        or "scratch" in steps.places
        or steps.group_rows
        or len(steps.combine) > 1
        or not all(_is_default(plan, copy) or _is_convertible(plan, copy) for copy in steps.copies)
    ):
        return None
    return _forward(plan) if plan.problem.op == "forward" else _backward(plan)


def _constant(plan: Plan, value: float) -> np.ndarray[Any, Any]:
    """What stands for an absent gamma or beta."""
    return np.full(plan.problem.N, value, numpy_dtype(plan.problem.accumulator))


def _converts(plan: Plan, *names: str) -> bool:
    return any(copy.name in names and not _is_default(plan, copy) for copy in plan.steps.copies)


def _forward(plan: Plan) -> Callable[..., None]:
    free: list[_Job] = []
    most = plan.steps.tasks + 1
    ones, zeros = _constant(plan, 1.0), _constant(plan, 0.0)
    one_at, zero_at = address_of(ones), address_of(zeros)
    widens, narrows = _converts(plan, "gamma", "beta"), _converts(plan, "mean", "rstd")

    def run(x: int, y: int, mean: int, rstd: int, gamma: int, beta: int, eps: float) -> None:
        try:
            job = free.pop()
        except IndexError:
            job = _Job(plan, widens, narrows, ones, zeros)
        if widens:
            of_gamma, of_beta = job.parameters
            job.widen(gamma, job.gamma, of_gamma, beta, job.beta, of_beta, 0, 0, 0)
        _addresses(
            job.bytes, 8 * TICKET, *_CLEAR, x, y, job.mean or mean, job.rstd or rstd,
            job.gamma or gamma or one_at, job.beta or beta or zero_at,
        )  # fmt: skip
        _eps(job.bytes, 8 * EPS_AT, eps)
        work(job.address, 0, most)
        if narrows:
            of_mean, of_rstd = job.statistics
            job.narrow(job.mean, mean, of_mean, job.rstd, rstd, of_rstd, 0, 0, 0)
        free.append(job)

    return run


def _backward(plan: Plan) -> Callable[..., None]:
    free: list[_Job] = []
    steps = plan.steps
    most, most_combining, combines = steps.tasks + 1, steps.combine_tasks + 1, bool(steps.combine)
    ones = _constant(plan, 1.0)
    one_at = address_of(ones)
    widens = _converts(plan, "mean", "rstd", "gamma")

    def run(dy: int, x: int, dx: int, mean: int, rstd: int, gamma: int, dgamma: int, dbeta: int) -> None:
        try:
            job = free.pop()
        except IndexError:
            job = _Job(plan, widens, False, ones)
        if widens:
            (of_mean, of_rstd), (of_gamma, _) = job.statistics, job.parameters
            job.widen(mean, job.mean, of_mean, rstd, job.rstd, of_rstd, gamma, job.gamma, of_gamma)
            mean, rstd, gamma = job.mean or mean, job.rstd or rstd, job.gamma or gamma
        _addresses(job.bytes, 8 * TICKET, *_CLEAR, dy, x, dx, mean, rstd, gamma or one_at)
        work(job.address, 0, most)
        if combines:
            _combine(job.bytes, 8 * (COMBINE_AT + TICKET), *_CLEAR, job.slots, dgamma, dbeta)
            work(job.address + 8 * COMBINE_AT, 0, most_combining)
        free.append(job)

    return run
