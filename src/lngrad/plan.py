"""What is decided about a call before it runs: the backend, how the work is cut, how much workspace it takes.

A plan is a pure function of the problem, the backend that was asked for and the number of threads. The number of threads
changes how the work is cut, never the order of a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from lngrad.errors import BackendUnavailable
from lngrad.problem import Problem
from lngrad.system.threads import get_num_threads

__all__ = ["BACKENDS", "Plan", "backends", "make_plan"]


@dataclass(frozen=True, eq=False)
class Plan:
    """A decided call.

    Attributes:
        problem: What is to be computed.
        backend: The name of the backend that will run it.
        workspace_bytes: How much memory run needs beside the outputs.
        steps: The backend's own decisions.
        run: (plan, inputs, outputs, workspace): computes, and writes every output that is wanted.
    """

    problem: Problem
    backend: str
    workspace_bytes: int
    steps: Any
    run: Callable[[Plan, tuple[Any, ...], tuple[Any, ...], Any], None]


class _Module(Protocol):
    def plan(self, problem: Problem, threads: int) -> Plan: ...


@dataclass(frozen=True)
class Backend:
    """One row of the table: where a backend lives, what must be installed, which devices it serves.

    A backend that decides by more than the problem and the threads (the simulated SoC) is not cached.
    """

    module: str
    needs: tuple[str, ...]
    devices: tuple[str, ...]
    cached: bool = True


# In order of preference.
BACKENDS = {
    "numba_cpu": Backend("lngrad.backend.numba_cpu.plan", ("numba",), ("cpu",)),
    "numpy_cpu": Backend("lngrad.backend.numpy_cpu", (), ("cpu",)),
    "triton_gpu": Backend("lngrad.backend.triton_gpu.plan", ("triton", "torch"), ("cuda",)),
    "ascend_sim": Backend("lngrad.backend.ascend_sim", (), ("cpu",), cached=False),
}


def _missing(name: str) -> str | None:
    """Why a backend can't be used here, or None."""
    missing = [need for need in BACKENDS[name].needs if find_spec(need) is None]
    return f"{' and '.join(missing)} not installed" if missing else None


def backends() -> dict[str, str]:
    """Every backend's name, with "available" or the reason why it is not."""
    return {name: _missing(name) or _deviceless(row) or "available" for name, row in BACKENDS.items()}


def _deviceless(row: Backend) -> str | None:
    """That there is no device for a backend that does not serve the CPU, or None."""
    if "cpu" in row.devices or import_module("torch").cuda.is_available():
        return None
    return "no CUDA device"


def make_plan(problem: Problem, backend: str | None = None, threads: int | None = None) -> Plan:
    """Decide how a problem is computed.

    Args:
        problem: The facts.
        backend: A name from `backends()`, or None for the first that is available and serves x's device.
        threads: At most this many; None: get_num_threads().

    Raises:
        BackendUnavailable: The backend is unknown, not installed, or does not serve this device or problem.
    """
    if threads is None:
        threads = get_num_threads()
    if backend in BACKENDS and not BACKENDS[backend].cached:
        return _plan.__wrapped__(problem, backend, threads)
    return _plan(problem, backend, threads)


@lru_cache(maxsize=4096)
def _plan(problem: Problem, backend: str | None, threads: int) -> Plan:
    if backend is None:
        serving = [name for name, row in BACKENDS.items() if _serves(row, problem)]
        available = [name for name in serving if _missing(name) is None]
        if not available:
            reasons = "; ".join(f"{name}: {_missing(name)}" for name in serving) or "none serves it"
            raise BackendUnavailable(f"backend: no backend for arrays on {problem.device} ({reasons})")
        return _module(available[0]).plan(problem, threads)
    if backend not in BACKENDS:
        raise BackendUnavailable(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    reason = _missing(backend)
    if reason is not None:
        raise BackendUnavailable(f"backend: {backend} is not available: {reason}")
    if not _serves(BACKENDS[backend], problem):
        raise BackendUnavailable(
            f"backend: {backend} serves {BACKENDS[backend].devices}, got arrays on {problem.device}"
        )
    return _module(backend).plan(problem, threads)


def _serves(row: Backend, problem: Problem) -> bool:
    return problem.device.partition(":")[0] in row.devices  # "cuda:1" is a cuda device


def _module(name: str) -> _Module:
    return import_module(BACKENDS[name].module)
