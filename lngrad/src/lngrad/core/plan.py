"""What is decided about a call before it runs: the backend, how the work is cut, how much workspace it takes.

A plan is a pure function of the problem, the machine, the backend that was asked for, the number of threads and, for a
simulated device, which device it is. The number of threads changes how the work is cut, never the order of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lngrad.core.problem import Operator, Problem
from lngrad.core.threads import get_num_threads
from lngrad.errors import BackendUnavailable
from lngrad.support.bounded_cache import cached_property
from lngrad.support.locks import importing
from lngrad.typing import Words

# Addresses of the problem's inputs and then of its outputs, 0 for one that is absent; then the operator's numbers.
RunOnAddresses: TypeAlias = Callable[..., None]


class PackedKind(IntEnum):
    """What a packed plan runs: compiled tasks on this processor, or kernels that a driver launches. 0 is no plan."""

    JOBS = 1
    LAUNCHES = 2


class Packed(NamedTuple):
    """A plan as numbers, which compiled code runs without Python: torch/native/prepared.h reads the fields in this order.

    A call's arguments are the addresses of the problem's inputs and of its outputs, then the operator's numbers. Tasks and
    kernels read them from words of 8 bytes; with JOBS a workspace lies behind these words, on a cache line.

    Attributes:
        kind: JOBS or LAUNCHES.
        share, begin: JOBS: addresses of C functions: (first, stop, job), by which threads first … stop-1 work on a job, and
            (job, threads), by which a job begins.
        words: JOBS: the number of words, workspace included.
        workspace_word: JOBS: the word that the workspace begins at.
        workspace_bytes: LAUNCHES: the size of the workspace, which is allocated on the device.
        streaming_word: JOBS: the word that says whether a result bypasses the caches; 0 if none may.
        streamed: JOBS: the number of that result among the arguments; it must begin on a cache line.
        image: The words as they are before the first call; with JOBS up to the last word of the workspace that must be set.
        places: For each argument the word that it goes to, or -1.
        regions: Pairs: a word, and the offset in the workspace whose address it takes.
        jobs: JOBS: pairs: the word that a job begins at, and its number of threads.
        launches: LAUNCHES: for each the function's handle, programs, threads of a program, bytes of shared memory, the
            number of parameters, and the word of each parameter.
    """

    kind: PackedKind
    share: int = 0
    begin: int = 0
    words: int = 0
    workspace_word: int = 0
    workspace_bytes: int = 0
    streaming_word: int = 0
    streamed: int = 0
    image: Sequence[int] | Words = ()
    places: Sequence[int] = ()
    regions: Sequence[int] = ()
    jobs: Sequence[int] = ()
    launches: Sequence[int] = ()

    def flat(self) -> Words:
        """All fields as one array of int64; a list follows its length."""
        parts = [[field] if isinstance(field, int) else [len(field), *field] for field in self]
        return np.concatenate([np.asarray(part, np.int64) for part in parts])


@dataclass(frozen=True, eq=False)
class Plan:
    """A decided call.

    Attributes:
        problem: What is to be computed.
        backend: The name of the backend that will run it.
        workspace_bytes: How much memory run needs in addition to the outputs.
        steps: The backend's own decisions.
        run: (plan, inputs and numbers, outputs, workspace): computes, and writes every output that is wanted.
        bind: plan -> a run on addresses, where the backend has one of its own.
        pack: plan -> its Packed; None where compiled code can't run it without Python.
    """

    problem: Problem
    backend: str
    workspace_bytes: int
    steps: Any
    run: Callable[[Plan, tuple[Any, ...], tuple[Any, ...], Any], None]
    bind: Callable[[Plan], RunOnAddresses] | None = None
    pack: Callable[[Plan], Packed | None] | None = None

    @cached_property
    def on_addresses(self) -> RunOnAddresses | None:
        """A run on addresses of arrays that lie as the problem says, outputs contiguous where it says nothing.

        It allocates its own workspace. Any number of threads may call it at once. None where the backend takes arrays.
        """
        return None if self.bind is None else self.bind(self)


def run_empty(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Nothing to add up. No rows: sums are 0. No columns: a mean is 0 and its rstd NaN, as torch has it."""
    for name, output in zip(plan.problem.out, outputs, strict=True):
        if output is not None:
            array = output if isinstance(output, np.ndarray) else output.detach()
            array[...] = math.nan if name == "rstd" else 0


class Serves(NamedTuple):
    """Operators, dtypes and switches that a backend computes. make_plan refuses all else, by name.

    Attributes:
        operators: Each that it knows: one that is added to core.problem is not among them.
        dtypes: Of any array.
        switches: The fields of Normalization that may differ from layer normalization's.
    """

    operators: frozenset[Operator]
    dtypes: frozenset[str] = frozenset(("float16", "bfloat16", "float32", "float64"))
    switches: frozenset[str] = frozenset()

    def refusal(self, problem: Problem) -> str | None:
        """The reason why a problem is not computed, or None."""
        operator, normalization = problem.operator, problem.normalization
        if operator not in self.operators:
            return f"does not compute the {operator}"
        for name, plain in normalization._field_defaults.items():  # layer normalization's
            value = getattr(normalization, name)
            if name not in self.switches and value != plain:
                return f"does not compute the {operator} with {name}={value}"
        for name, spec in {**problem.inputs, **problem.out}.items():
            if spec is not None and spec.dtype not in self.dtypes:
                return f"does not compute with {spec.dtype}, which {name} has"
        return None


@dataclass(frozen=True)
class Backend:
    """One row of the table: where a backend lives, what must be installed, which devices it serves.

    module: Has plan(problem, threads), and in SERVES what that computes.
    contextual: It decides by more than the problem and the threads, such as the simulated SoC of this thread: by its module's
        context(), which plan takes last. It is chosen by name alone.
    prebuilt: A module whose why_not() is None where the package brings what would be compiled: then nothing need be installed.
    """

    module: str
    needs: tuple[str, ...]
    devices: tuple[str, ...]
    contextual: bool = False
    prebuilt: str = ""


BACKENDS: dict[str, Backend] = {}  # in order of preference; lngrad/__init__.py has them all


def register_backend(name: str, backend: Backend) -> None:
    """Add a row behind those that are there. Its module is imported when a call needs it."""
    BACKENDS[name] = backend


def _missing(name: str) -> str | None:
    """Why a backend can't be used here, or None."""
    row = BACKENDS[name]
    missing = [need for need in row.needs if find_spec(need) is None]
    if not missing or not row.prebuilt:
        return f"{' and '.join(missing)} not installed" if missing else None
    reason = _imported(row.prebuilt).why_not()
    return reason and f"{' and '.join(missing)} not installed, and no compiled kernels: {reason}"


def backends() -> dict[str, str]:
    """Every backend's name, with "available" or the reason why it is not."""
    return {name: availability(name) for name in BACKENDS}


def availability(name: str) -> str:
    """The word "available", or the reason why a backend is not."""
    if reason := _missing(name):
        return reason
    return (
        "available" if "cpu" in BACKENDS[name].devices or _imported("torch").cuda.is_available() else "no CUDA device"
    )


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
    row = None if backend is None else BACKENDS.get(backend)
    context = () if row is None or not row.contextual else (_imported(row.module).context(),)
    key = backend, threads, context
    plan: Plan | None = problem.plans.get(key)
    if plan is None:
        plan = problem.plans.keep(key, _imported(_choose(problem, backend).module).plan(problem, threads, *context))
    return plan


def _choose(problem: Problem, backend: str | None) -> Backend:
    if backend is None:
        reasons = {}
        for name, row in BACKENDS.items():
            if not row.contextual and _serves(row, problem):
                reason = _missing(name) or _refusal(row, problem)
                if reason is None:
                    return row
                reasons[name] = reason
        text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "none serves it"
        raise BackendUnavailable(f"backend: no backend for arrays on {problem.device} ({text})")
    if backend not in BACKENDS:
        raise BackendUnavailable(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    row = BACKENDS[backend]
    if (reason := _missing(backend)) is not None:
        raise BackendUnavailable(f"backend: {backend} is not available: {reason}")
    if not _serves(row, problem):
        raise BackendUnavailable(f"backend: {backend} serves {row.devices}, got arrays on {problem.device}")
    if (reason := _refusal(row, problem)) is not None:
        others = [name for name, other in BACKENDS.items() if not other.contextual and _serves(other, problem)]
        others = [name for name in others if not (_missing(name) or _refusal(BACKENDS[name], problem))]
        raise BackendUnavailable(f"backend: {backend} {reason}; {' or '.join(others) or 'no backend here'} does")
    return row


def _serves(row: Backend, problem: Problem) -> bool:
    return problem.device.partition(":")[0] in row.devices  # "cuda:1" is a cuda device


def _refusal(row: Backend, problem: Problem) -> str | None:
    """The reason why an installed backend does not compute a problem, or None."""
    serves: Serves = _imported(row.module).SERVES
    return serves.refusal(problem)


def _imported(module: str) -> Any:
    with importing:
        return import_module(module)
