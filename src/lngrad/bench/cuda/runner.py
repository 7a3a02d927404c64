"""From jobs to records on a CUDA device: results checked first, then rounds in turns with a copy among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from lngrad.bench.cases import Job
from lngrad.bench.cuda.checks import check_timed, error_of
from lngrad.bench.cuda.contestants import CUDA_PEERS, Ours, ours, peer, tensors, why_not
from lngrad.bench.measure import Timing
from lngrad.bench.peers import peer_versions
from lngrad.bench.records import record

__all__ = ["Clock", "EventClock", "cuda_run"]

COPY_BYTES = 512 << 20
FLUSH_BYTES = 1 << 30  # written before each turn: longer than the host takes to launch what is timed
READ_BYTES = (
    256 << 20
)  # read behind that: several times any L2, which then holds neither data nor lines to be written back
SMALL = 1 << 22  # elements: L2 holds fewer anyway, and what counts is the time that a call takes, launches and all
REPEATS = 20


class Clock(Protocol):
    """Seconds that a call takes, done `repeats` times in a row and divided."""

    def __call__(self, call: Callable[[], object], repeats: int) -> float: ...


class EventClock:
    """CUDA events on the current stream.

    Before a single call, much is written, and then enough is read to empty L2: that keeps the device busy while the host
    launches what is timed, and leaves no line that would be written back meanwhile.
    """

    def __init__(self) -> None:
        self._written = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._read = torch.zeros(READ_BYTES // 4, device="cuda")
        self._total = torch.zeros((), device="cuda")

    def __call__(self, call: Callable[[], object], repeats: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if repeats == 1:
            self._written.zero_()
            torch.sum(self._read, 0, out=self._total)
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / repeats


def cuda_run(
    jobs: list[Job],
    peers: tuple[str, ...],
    rounds: int,
    said: Callable[[str], None],
    *,
    clock: Clock | None = None,
    device: str = "cuda",
    mine: Ours = ours,
    copy_bytes: int = COPY_BYTES,
) -> Iterator[dict[str, Any]]:
    """Time every job; yields records. What can't be done is said and passed over.

    Args:
        jobs: What to time.
        peers: Names from CUDA_PEERS; those not installed are said.
        rounds: Each times one turn of everybody.
        said: Takes a sentence about what is passed over.
        clock, device, mine, copy_bytes: For tests: another clock, the CPU, and our kernels under the interpreter.

    Raises:
        GradientError: Our own result is wrong, so there is nothing to time.
    """
    clock = clock or EventClock()
    reasons = {name: why_not(name) for name in peers}
    for reason in filter(None, reasons.values()):
        said(reason)
    names = tuple(name for name, reason in reasons.items() if reason is None)
    versions = peer_versions(tuple(name for name in names if CUDA_PEERS[name][0] == "torch")) | _versions(names)
    source, target = (torch.empty(copy_bytes // 2, dtype=torch.uint8, device=device) for _ in range(2))
    for job in jobs:
        few = error_of(job, device, mine, strict=True)
        t = tensors(job, device)
        our_call = mine(job, t)
        whole = check_timed(job, t, our_call())
        errors = {"lngrad": {name: round(max(few[name], whole[name]), 3) for name in few}}
        calls: dict[str, Callable[[], object]] = {"lngrad": our_call, "copy": lambda: target.copy_(source)}
        for name in names:
            try:
                errors[name] = error_of(job, device, CUDA_PEERS[name][1], strict=False)
                calls[name] = peer(name, job, t)
                calls[name]()
            except Exception as reason:  # a peer's limit on N or on registers, or its lack of memory: its own business
                said(f"{name} {job.M}x{job.N} {job.dtype} {job.op}: {type(reason).__name__}: {str(reason)[:120]}")
                calls.pop(name, None)
        timings = _interleave(calls, clock, rounds, REPEATS if job.M * job.N < SMALL else 1)
        copy = timings.pop("copy")
        # The public functions are timed in both; there is a scope for the forward of its own.
        line = record("forward" if job.op == "forward" else "call", job, timings, copy, copy_bytes, versions)
        line["backend"] = "triton_gpu"
        line["error"] = errors
        line["machine"]["device"] = torch.cuda.get_device_name() if device == "cuda" else device
        yield line


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    from importlib.metadata import version

    packages = {"liger": "liger-kernel", "quack": "quack-kernels"}
    return {"triton": version("triton")} | {
        packages[name]: version(packages[name]) for name in names if name in packages
    }


def _interleave(calls: dict[str, Callable[[], object]], clock: Clock, rounds: int, repeats: int) -> dict[str, Timing]:
    for call in calls.values():
        for _ in range(3):  # compiles, and fills the allocator's cache
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(clock(call, 1 if name == "copy" else repeats))
    return {name: Timing.of(times) for name, times in samples.items()}
