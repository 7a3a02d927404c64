"""From settings to records."""

from __future__ import annotations

from collections.abc import Container, Iterator

from lngrad.bench.cases import Job
from lngrad.bench.measure import Others, interleave
from lngrad.bench.records import Record, key, record
from lngrad.bench.settings import Settings
from lngrad.bench.trial import Bench, PeerMissing, Say, why_not
from lngrad.core.threads import get_num_threads, set_num_threads


def plan_of(bench: Bench, settings: Settings) -> list[tuple[str, int, Job]]:
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
    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    reasons = {name: why_not(bench, name) for name in settings.peers}
    for reason in filter(None, reasons.values()):
        say_once(reason)
    peers = {name: bench.known_peers[name] for name, reason in reasons.items() if reason is None}
    before = get_num_threads()
    try:
        for scope, threads, job in plan_of(bench, settings):
            if key(scope, threads, job) in done:
                continue
            set_num_threads(threads)
            try:
                trial = bench.trial(settings, scope, job, peers, say_once)
            except PeerMissing as missing:
                say_once(str(missing))
                continue
            others = Others()
            timings = interleave(trial.calls, trial.rounds, trial.clock, trial.during)
            trial.facts["others"] = round(others.share(), 3)
            passed_over = [name for name in settings.peers if name not in timings]
            yield record(scope, job, timings, trial, passed_over)
    finally:
        set_num_threads(before)
