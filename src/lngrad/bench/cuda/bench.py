"""The scopes of a CUDA device: results are checked, then all take turns, a copy among them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import torch

from lngrad.bench.cases import Job
from lngrad.bench.cuda.checks import check_timed, error_of
from lngrad.bench.cuda.clock import DeviceClock, EventClock
from lngrad.bench.cuda.contestants import CUDA_PEERS, ours, tensors
from lngrad.bench.measure import Call
from lngrad.bench.settings import Settings
from lngrad.bench.trial import LNGRAD, ROOFLINE, Peer, Prepare, Say, Trial

# M·N of 2^26 elements and more, for the bandwidth; some widths are no power of two.
_WIDTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 2304, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
SHAPES = tuple((-(-(1 << 26) // N), N) for N in (*_WIDTHS, 32768, 65536, 131072))
# Where launching takes as long as the work.
LATENCY = ((64, 768), (512, 1024), (512, 4096), (2048, 2048), (16, 16384), (4, 131072))
QUICK = ((1 << 16, 1024), (16384, 5120), (512, 131072))

COPY_BYTES = 512 << 20
SMALL = 1 << 22  # elements: they fit L2 anyway, and what counts is a call with its launches
REPEATS = 20  # of a small job in a turn
QUICK_ROUNDS = 5
WARM_CALLS = 3  # compile, and fill the allocator's cache

_OPS = {"call": "backward", "forward": "forward"}


class CudaBench:
    """Scopes of a CUDA device: call (backward) and forward, both through the public functions.

    Args:
        clock, device, prepare, copy_bytes: For tests: another clock, the CPU, our kernels under the
            interpreter.
    """

    scopes = tuple(_OPS)
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    peers: tuple[str, ...] = ("torch",)
    known_peers: Mapping[str, Peer] = CUDA_PEERS
    drawn = "call"

    def __init__(
        self,
        clock: DeviceClock | None = None,
        device: str = "cuda",
        prepare: Prepare = ours,
        copy_bytes: int = COPY_BYTES,
    ) -> None:
        self._clock = clock or EventClock()
        self._device, self._prepare, self._copy_bytes = device, prepare, copy_bytes
        self._copied = tuple(torch.empty(copy_bytes // 2, dtype=torch.uint8, device=device) for _ in range(2))

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope: every shape in every dtype."""
        shapes = settings.shapes or (QUICK if settings.quick else (*SHAPES, *LATENCY))
        return [Job(M, N, dtype, _OPS[scope]) for M, N in shapes for dtype in settings.dtypes]

    def trial(self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Peer], say: Say) -> Trial:
        """Check the results of a job and prepare all contestants; see lngrad.bench.trial.Bench."""
        few = error_of(job, self._device, self._prepare, strict=True)
        t = tensors(job, self._device)
        our_call = self._prepare(job, t)
        whole = check_timed(job, t, our_call())
        errors = {LNGRAD: {name: round(max(few[name], whole[name]), 3) for name in few}}
        source, target = self._copied
        calls: dict[str, Call] = {LNGRAD: our_call, ROOFLINE: lambda: target.copy_(source)}
        versions = {"triton": version("triton")}
        for name, peer in peers.items():
            try:
                errors[name] = error_of(job, self._device, peer.prepare, strict=False)
                calls[name] = peer.prepare(job, t)
                calls[name]()
                versions |= peer.versions()
            except Exception as reason:  # a peer's limits on N, registers or memory are its own
                say(f"{name} {job.M}x{job.N} {job.dtype} {job.op}: {type(reason).__name__}: {str(reason)[:120]}")
                calls.pop(name, None)
        for call in calls.values():
            for _ in range(WARM_CALLS):
                call()
        repeats = REPEATS if job.M * job.N < SMALL else 1
        rounds = QUICK_ROUNDS if settings.quick else settings.rounds
        device = torch.cuda.get_device_name() if self._device == "cuda" else self._device
        return Trial(
            calls,
            lambda name, call: self._clock(call, 1 if name == ROOFLINE else repeats),
            rounds,
            versions,
            roofline_bytes=self._copy_bytes,
            facts={"backend": "triton_gpu", "error": errors},
            device=device,
        )
