"""From jobs to records on a CUDA device: results checked first, then rounds in turns with a copy among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

from lngrad.bench.cases import Job
from lngrad.bench.cuda import CUDA_PEERS, Ours, checked_tensors, ours, peer, tensors, why_not
from lngrad.bench.measure import Timing
from lngrad.bench.peers import peer_versions
from lngrad.bench.records import record
from lngrad.problem import Forward, Grads
from lngrad.testing import check_forward, check_grads, error_shares

__all__ = ["Clock", "EventClock", "cuda_run"]

COPY_BYTES = 512 << 20
FLUSH_BYTES = 256 << 20  # written before each turn: several times any L2, so that no call finds its data there
SMALL = (
    1 << 22
)  # elements; below this L2 holds everything anyway, and what counts is the time a call takes, launches and all
REPEATS = 20


class Clock(Protocol):
    """Seconds that a call takes, done `repeats` times in a row and divided."""

    def __call__(self, call: Callable[[], object], repeats: int) -> float: ...


class EventClock:
    """CUDA events on the current stream.

    Before a single call, L2 is overwritten: that also keeps the device busy while the host launches what is timed.
    """

    def __init__(self) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, call: Callable[[], object], repeats: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if repeats == 1:
            self._flush.zero_()
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
        errors = {"lngrad": _error(job, device, mine, strict=True)}
        t = tensors(job, device)
        calls: dict[str, Callable[[], object]] = {"lngrad": mine(job, t), "copy": lambda: target.copy_(source)}
        for name in names:
            try:
                errors[name] = _error(job, device, CUDA_PEERS[name][1], strict=False)
                calls[name] = peer(name, job, t)
                calls[name]()
            except Exception as reason:  # a peer's limit on N or on registers, or its lack of memory: its own business
                said(f"{name} {job.M}x{job.N} {job.dtype} {job.op}: {type(reason).__name__}: {str(reason)[:120]}")
                calls.pop(name, None)
        timings = _interleave(calls, clock, rounds, REPEATS if job.M * job.N < SMALL else 1)
        copy = timings.pop("copy")
        line = record("forward" if job.op == "forward" else "kernel", job, timings, copy, copy_bytes, versions)
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


def _error(job: Job, device: str, does: Ours, *, strict: bool) -> dict[str, float]:
    """The worst error of each result against float64, in tolerances of lngrad.testing, on fewer rows of the same N."""
    inputs, t = checked_tensors(job, device)
    results = [result.detach().cpu() for result in does(job, t)()]
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


def _share_of_y(y: Any, inputs: Any) -> float:
    """A peer's y alone, with our reference's statistics in place of its own."""
    from lngrad import reference
    from lngrad.testing import GradientError

    expected = reference.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized=inputs.normalized)
    statistics = (torch.from_numpy(np.asarray(part, np.float32)) for part in (expected.mean, expected.rstd))
    try:
        return round(check_forward(Forward(y, *statistics), inputs), 3)
    except GradientError:
        return float("inf")
