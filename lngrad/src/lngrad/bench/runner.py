"""From settings to records: what a device gives, every job in turns, and the line that says how long it took."""

from __future__ import annotations

import platform
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias

import numpy as np

import lngrad
from lngrad.bench.cases import Job, Settings
from lngrad.bench.measure import Clock, Context, Timing, interleave
from lngrad.bench.records import Key, Record, commit, machine
from lngrad.check.implementations import Arguments, Implementation, NotApplicable, PreparedCall
from lngrad.check.implementations.ours import public_functions
from lngrad.core.arrays import Output, empty
from lngrad.core.machine import Others
from lngrad.core.norms import NORMS
from lngrad.core.threads import get_num_threads, set_num_threads
from lngrad.testing import Inputs, check_forward, check_grads
from lngrad.typing import Array

LNGRAD, ROOFLINE = "lngrad", "roofline"  # names among the contestants

Say: TypeAlias = Callable[[str], None]  # takes a sentence about something that is passed over


@dataclass(frozen=True)
class Contest:
    """One job, whose results are checked, and those who do it.

    Attributes:
        calls: By contestant; LNGRAD, perhaps ROOFLINE, and peers.
        clock: Times their turns.
        rounds: How many turns each of them has.
        versions: Of the peers' packages.
        during: Contexts of some contestants' turns.
        roofline_bytes: That the call ROOFLINE moves.
        facts: What else the record says; the runner adds what other processes used.
        device: A GPU's name.
    """

    calls: dict[str, PreparedCall]
    clock: Clock
    rounds: int
    versions: dict[str, str]
    during: Mapping[str, Context] = field(default_factory=dict)
    roofline_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    device: str | None = None


class Bench(Protocol):
    """What can be timed on one kind of device.

    Attributes:
        scopes: In the order in which they must run.
        dtypes, peers: Those that are timed by default.
        known_peers: By name.
    """

    scopes: tuple[str, ...]
    dtypes: tuple[str, ...]
    peers: tuple[str, ...]
    known_peers: Mapping[str, Implementation]

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope."""

    def contest(
        self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Implementation], say: Say
    ) -> Contest:
        """Check the results of a job and prepare all contestants.

        Raises:
            GradientError: Our own result is wrong, so there is nothing to time.
            NotApplicable: The scope compares with one peer, which is not there.
        """


def why_not(bench: Bench, name: str) -> str | None:
    """Why a known peer cannot be compared with here, or None."""
    peer = bench.known_peers[name]
    missing = bool(peer.needs) and find_spec(peer.needs) is None
    reason = f"{peer.package} is not installed" if missing else peer.missing()
    return None if reason is None else f"peers: {name}: {reason}"


def prepared(peer: Implementation, job: Job, arguments: Arguments) -> PreparedCall:
    """The call of a peer that does a job.

    Raises:
        NotApplicable: The peer does not do it.
    """
    prepare = peer.forward if job.op == "forward" else peer.backward
    if prepare is None:
        raise NotApplicable("it is compared for the backward alone")
    return prepare(arguments)


def plan_of(bench: Bench, settings: Settings) -> list[Key]:
    """Scope, threads and job of everything that a run times, in its order."""
    return [
        (scope, threads, job)
        for scope in bench.scopes
        if scope in settings.scopes
        for threads in settings.threads or (get_num_threads(),)
        for job in bench.jobs(settings, scope)
    ]


def run(bench: Bench, settings: Settings, say: Say, done: Container[object] = ()) -> Iterator[Record]:
    """Time every job of every scope, with every number of threads.

    Args:
        bench: The device.
        settings: What to time.
        say: Takes sentences about what cannot be done and is passed over; each one once.
        done: Keys of jobs that need not be timed again.

    Yields:
        Records.

    Raises:
        GradientError: Our own result is wrong, so there is nothing to time.
    """
    sentences: set[str] = set()

    def say_once(text: str) -> None:
        if text not in sentences:
            sentences.add(text)
            say(text)

    reasons = {name: why_not(bench, name) for name in settings.peers}
    for reason in filter(None, reasons.values()):
        say_once(reason)
    peers = {name: bench.known_peers[name] for name, reason in reasons.items() if reason is None}
    before = get_num_threads()
    try:
        for scope, threads, job in plan_of(bench, settings):
            if (scope, threads, job) in done:
                continue
            set_num_threads(threads)
            try:
                contest = bench.contest(settings, scope, job, peers, say_once)
            except NotApplicable as missing:
                say_once(str(missing))
                continue
            others = Others()
            timings = interleave(contest.calls, contest.rounds, contest.clock, contest.during)
            contest.facts["others"] = round(others.share(), 3)
            passed_over = [name for name in settings.peers if name not in timings]
            yield record(scope, job, timings, contest, passed_over)
    finally:
        set_num_threads(before)


def record(scope: str, job: Job, timings: dict[str, Timing], contest: Contest, passed_over: list[str]) -> Record:
    """One line: our timing of a job, the ratio to each peer, and the share of the roofline.

    Times are in microseconds a call, bandwidths in GB/s (10^9 bytes).

    Args:
        scope, job: What was timed.
        timings: By contestant.
        contest: How.
        passed_over: Peers that could not do the job.
    """
    timings = dict(timings)
    roofline = timings.pop(ROOFLINE, None)
    ours = timings[LNGRAD]
    line: Record = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "scope": scope,
        **asdict(job),
        "threads": get_num_threads(),
        "rounds": ours.rounds,
        "time_us": {
            name: {kind: round(getattr(timing, kind) * 1e6, 2) for kind in ("minimum", "median", "p90")}
            for name, timing in timings.items()
        },
        "ratio": {name: round(timing.median / ours.median, 3) for name, timing in timings.items() if name != LNGRAD},
        "bytes": job.nbytes,
        "bandwidth": round(job.nbytes / ours.median / 1e9, 2),
    }
    if passed_over:
        line["passed_over"] = passed_over
    if roofline is not None:
        line["roofline"] = round(contest.roofline_bytes / roofline.median / 1e9, 2)
        line["of_roofline"] = round(line["bandwidth"] / line["roofline"], 3)
    line["commit"] = commit()
    line["versions"] = {
        "lngrad": lngrad.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        **contest.versions,
    }
    line["machine"] = machine() | ({"device": contest.device} if contest.device else {})
    line.update(contest.facts)
    return line


# --- The arrays of a job ------------------------------------------------------------------------------------------------

CHECKED_ROWS = 256  # the first rows of a job, or of each sample, are compared with the reference
SAMPLES = 8  # that have scales and shifts of their own


def random_arguments(job: Job) -> Arguments:
    """Random NumPy arrays, with the mean and rstd of lngrad's forward.

    Blocks of 4096 rows are rotations of one another. Samples are the first dimension of x where they have parameters each.
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
    norm = NORMS[job.norm]
    normalization, residual = norm.normalization, norm.residual
    samples = SAMPLES if normalization.modulated and job.M % SAMPLES == 0 else 1
    gamma, beta = noise((samples * job.N,), 1.0), noise((samples * job.N,), 0.0)
    if normalization.modulated:
        x, dy = (array.reshape(samples, -1, job.N) for array in (x, dy))
        gamma, beta = (array.reshape(samples, 1, job.N) for array in (gamma, beta))
    a = Arguments(dy, x, None, None, gamma, beta, (job.N,), normalization=normalization)
    if residual:
        a = replace(a, residual=noise(x.shape, 0.0), dtotal=noise(x.shape, 0.0))
    if norm.gated:
        a = replace(a, gate=noise(x.shape, 0.0))
    results: Record = public_functions("numba_cpu").forward(a)()._asdict()  # type: ignore[misc]  # it is there
    return replace(a, mean=results.get("mean", np.zeros_like(results["rstd"])), rstd=results["rstd"])


def first_rows(a: Arguments) -> Inputs:
    """As many rows of NumPy arguments as are compared with the reference."""
    arrays = a.dy, a.x, a.mean, a.rstd, a.residual, a.dtotal, a.gate
    dy, x, mean, rstd, *added = (None if array is None else array[..., :CHECKED_ROWS, :] for array in arrays)
    beta = a.beta if a.normalization.has_beta else None
    return Inputs(dy, x, mean, rstd, a.gamma, beta, 1, a.normalization, *added)


def check_first_rows(a: Arguments, *, forward: bool = True, backward: bool = True) -> None:
    """Refuse to time wrong kernels: compare the first rows with the reference.

    Raises:
        GradientError: A result is wrong.
    """
    inputs, ours = first_rows(a), public_functions("numba_cpu")
    names = "dy", "x", "mean", "rstd", "residual", "dtotal", "gate"
    rows = replace(a, **{name: getattr(inputs, name) for name in names})
    if forward:
        check_forward(ours.forward(rows)(), inputs)  # type: ignore[misc]  # it is there
    if backward:
        check_grads(ours.backward(replace(rows, x=inputs.total))(), inputs)
