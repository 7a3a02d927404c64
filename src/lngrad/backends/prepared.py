"""A plan of the numba_cpu backend for calls too small to share: bound once, so that a call fills in addresses and runs.

What `run` finds out at every call (where the workspace begins, what is an absent gamma, whether to ask for help) is done
when the plan is bound. For 64×64 that is most of a call's time.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import numpy as np

from lngrad.arrays import address_of, numpy_dtype
from lngrad.backends.numba_cpu import COMBINE_AT, EPS_AT, SLOTS_AT, Steps
from lngrad.backends.places import Places
from lngrad.backends.workers import SERIAL_ELEMENTS
from lngrad.kernels.pool import ARGUMENTS, TICKET, work
from lngrad.plan import Plan

__all__ = ["prepare"]

MOST_BYTES = 1 << 16  # of workspace that a prepared plan may keep
_CLEAR = (0,) * (ARGUMENTS - TICKET)  # the ticket and what lies between it and the arguments

_addresses = Struct(f"{ARGUMENTS - TICKET + 6}q").pack_into
_combine = Struct(f"{ARGUMENTS - TICKET + 3}q").pack_into
_eps = Struct("d").pack_into


class _Job:
    """The memory of one call. A call in another thread at the same time has one of its own."""

    def __init__(self, plan: Plan, *constants: np.ndarray[Any, Any]):
        self.constants = constants
        self.jobs = plan.steps.jobs.copy()
        self.workspace = np.empty(plan.workspace_bytes, np.uint8)
        self.slots = Places(self.workspace, plan.steps.places).start + plan.steps.slots
        if plan.problem.op == "backward":
            self.jobs[SLOTS_AT] = self.slots
        self.address = address_of(self.jobs)
        self.bytes = memoryview(self.jobs).cast("B")


def prepare(plan: Plan) -> Callable[..., None] | None:
    """A function that runs a plan, given addresses, or None if the plan is not of the kind that can be bound.

    It can be where one thread does all, every tensor has a plain row stride, and mean, rstd, gamma and beta are contiguous
    in the accumulator's dtype or absent.

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
        or any(plan.problem.inputs.get(copy.name) or copy.name not in ("gamma", "beta") for copy in steps.copies)
    ):
        return None
    return _forward(plan) if plan.problem.op == "forward" else _backward(plan)


def _constant(plan: Plan, value: float) -> np.ndarray[Any, Any]:
    """What stands for an absent gamma or beta."""
    return np.full(plan.problem.N, value, numpy_dtype(plan.problem.accumulator))


def _forward(plan: Plan) -> Callable[..., None]:
    free: list[_Job] = []
    most = plan.steps.tasks + 1
    ones, zeros = _constant(plan, 1.0), _constant(plan, 0.0)
    one_at, zero_at = address_of(ones), address_of(zeros)

    def run(x: int, y: int, mean: int, rstd: int, gamma: int, beta: int, eps: float) -> None:
        try:
            job = free.pop()
        except IndexError:
            job = _Job(plan, ones, zeros)
        _addresses(job.bytes, 8 * TICKET, *_CLEAR, x, y, mean, rstd, gamma or one_at, beta or zero_at)
        _eps(job.bytes, 8 * EPS_AT, eps)
        work(job.address, 0, most)
        free.append(job)

    return run


def _backward(plan: Plan) -> Callable[..., None]:
    free: list[_Job] = []
    steps = plan.steps
    most, most_combining, combines = steps.tasks + 1, steps.combine_tasks + 1, bool(steps.combine)
    ones = _constant(plan, 1.0)
    one_at = address_of(ones)

    def run(dy: int, x: int, dx: int, mean: int, rstd: int, gamma: int, dgamma: int, dbeta: int) -> None:
        try:
            job = free.pop()
        except IndexError:
            job = _Job(plan, ones)
        _addresses(job.bytes, 8 * TICKET, *_CLEAR, dy, x, dx, mean, rstd, gamma or one_at)
        work(job.address, 0, most)
        if combines:
            _combine(job.bytes, 8 * (COMBINE_AT + TICKET), *_CLEAR, job.slots, dgamma, dbeta)
            work(job.address + 8 * COMBINE_AT, 0, most_combining)
        free.append(job)

    return run
