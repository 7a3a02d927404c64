"""The scopes of a CUDA device: results are checked, then all take turns, a copy among them. Tests run all but the clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np
import torch

import lngrad
from lngrad.bench.cases import Job, Settings
from lngrad.bench.measure import seconds_a_call
from lngrad.bench.runner import LNGRAD, ROOFLINE, Contest, Say, prepared
from lngrad.check.implementations import Arguments, Implementation, PreparedCall
from lngrad.core import reference
from lngrad.core.problem import Forward, Grads
from lngrad.support.addresses import as_numpy
from lngrad.testing import (
    GradientError,
    Inputs,
    check_forward,
    check_grads,
    error_share,
    error_shares,
)
from lngrad.typing import Array, Tensor
from peer_libraries.family import FamilyBench, steps
from peer_libraries.rows import CUDA_PEERS

Prepare: TypeAlias = Callable[[Job, Arguments], PreparedCall]
DeviceClock: TypeAlias = Callable[[PreparedCall, int], float]
"""Seconds that a call takes, done so many times in a row and divided."""

# M·N of 2^26 elements and more, for the bandwidth; some widths are no power of two.
_WIDTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 2304, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
SHAPES = tuple((-(-(1 << 26) // N), N) for N in (*_WIDTHS, 32768, 65536, 131072))
# Where launching takes as long as the work.
LATENCY = ((64, 768), (512, 1024), (512, 4096), (2048, 2048), (16, 16384), (4, 131072))
QUICK = ((1 << 16, 1024), (16384, 5120), (512, 131072))
FAMILY = ((64, 768), (512, 1024), (1 << 16, 1024), (16384, 4096), (8192, 8192), (4096, 16384))
OVERHEAD = (64, 64)
MODELS = ((128, 768), (8192, 768), (8192, 2048))  # tokens and hidden size: of the first only the host's time counts

COPY_BYTES = 512 << 20
SMALL = 1 << 22  # elements: they fit L2 anyway, and what counts is a call with its launches
REPEATS = 20  # of a small job in a turn
HOST_REPEATS = 200  # where the host's time is taken
QUICK_ROUNDS = 5
WARM_CALLS = 3  # compile, and fill the allocator's cache
FLUSH_BYTES = 1 << 30  # written before each turn: longer than the host takes to launch
READ_BYTES = 256 << 20  # then read: several times any L2, which then has nothing to write back
_SLICE = 1 << 24  # elements that are summed in float64 at a time
# Elements of the first rows, and of the last, that the reference takes: it computes in float64 on the CPU.
_END = 1 << 16

_OPS = {"call": ("backward",), "forward": ("forward",), "overhead": ("forward", "backward"), "model": ("step",)}


class EventClock:
    """CUDA events on the current stream.

    Before a single call, much is written, and then enough is read to empty L2: that keeps the
    device busy while the host launches what is timed, and leaves no line that would be written back
    meanwhile. What a peer has let persist in L2 is given back first.
    """

    def __init__(self) -> None:
        self._forget: Callable[[], int]
        try:
            self._forget = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
        except (OSError, AttributeError):  # ROCm, or an old driver
            self._forget = lambda: 0
        self._written = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._read = torch.zeros(READ_BYTES // 4, device="cuda")
        self._total = torch.zeros((), device="cuda")

    def __call__(self, call: PreparedCall, repeats: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if repeats == 1:
            self._forget()
            self._written.zero_()
            torch.sum(self._read, 0, out=self._total)
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / repeats


def host_seconds(call: PreparedCall, repeats: int) -> float:
    """The host's time of a call: it goes on before the device is done."""
    seconds = seconds_a_call(call, repeats)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return seconds


def ours(job: Job, t: Arguments) -> PreparedCall:
    """The public functions, as a user calls them."""
    if job.op == "forward":
        return lambda: tuple(lngrad.layer_norm(t.x, t.gamma, t.beta))
    return lambda: tuple(lngrad.layer_norm_backward(t.dy, t.x, t.mean, t.rstd, t.gamma))


class OnDevice:
    """What all scopes of a CUDA device share: the clocks, and a copy as the roofline.

    Args:
        clock, device, copy_bytes: For tests: another clock, the CPU.
    """

    def __init__(self, clock: DeviceClock | None = None, device: str = "cuda", copy_bytes: int = COPY_BYTES) -> None:
        self._clock, self._host_clock = clock or EventClock(), clock or host_seconds
        self._device, self._copy_bytes = device, copy_bytes
        self._copied = tuple(torch.empty(copy_bytes // 2, dtype=torch.uint8, device=device) for _ in range(2))

    def timed(
        self, settings: Settings, scope: str, job: Job, calls: dict[str, PreparedCall], versions: dict[str, str],
        facts: dict[str, Any],
    ) -> Contest:  # fmt: skip
        """All contestants, warm, and how they are timed."""
        source, target = self._copied
        if scope != "model":
            calls = {**calls, ROOFLINE: lambda: target.copy_(source)}
        for call in calls.values():
            for _ in range(WARM_CALLS):
                call()
        rounds = QUICK_ROUNDS if settings.quick else settings.rounds
        device = torch.cuda.get_device_name() if self._device == "cuda" else self._device
        of_host = scope == "overhead"
        repeats = HOST_REPEATS if of_host else REPEATS if job.M * job.N < SMALL and scope != "model" else 1

        def clock(name: str, call: PreparedCall) -> float:
            if name == ROOFLINE:
                return self._clock(call, 1)
            return (self._host_clock if of_host else self._clock)(call, repeats)

        facts = {"backend": "triton_gpu", **facts}
        versions = {"triton": version("triton"), **versions}
        return Contest(calls, clock, rounds, versions, roofline_bytes=self._copy_bytes, facts=facts, device=device)


class CudaBench(OnDevice):
    """Scopes of layer normalization, through the public functions: call (backward), forward, the host's time of both, model.

    Args:
        clock, device, copy_bytes: As for OnDevice.
        prepare: For tests: our kernels under the interpreter.
    """

    scopes = tuple(_OPS)
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    peers: tuple[str, ...] = ("torch",)
    known_peers: Mapping[str, Implementation] = CUDA_PEERS
    drawn = "call"

    def __init__(
        self,
        clock: DeviceClock | None = None,
        device: str = "cuda",
        prepare: Prepare = ours,
        copy_bytes: int = COPY_BYTES,
    ) -> None:
        super().__init__(clock, device, copy_bytes)
        self._prepare = prepare

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope: every shape in every dtype."""
        models = MODELS[:1] if settings.quick else MODELS
        shapes = settings.shapes or (models if scope == "model" else QUICK if settings.quick else (*SHAPES, *LATENCY))
        shapes = (OVERHEAD,) if scope == "overhead" else shapes
        return [Job(M, N, dtype, op) for M, N in shapes for dtype in settings.dtypes for op in _OPS[scope]]

    def contest(
        self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Implementation], say: Say
    ) -> Contest:
        """Check the results of a job and prepare all contestants; see lngrad.bench.runner.Bench."""
        if scope == "model":
            return self.timed(settings, scope, job, *steps(job, peers, self._device), {})
        t = tensors(job, self._device)
        our_call = self._prepare(job, t)
        errors = {LNGRAD: errors_of(job, t, our_call(), strict=True)}
        calls: dict[str, PreparedCall] = {LNGRAD: our_call}
        versions: dict[str, str] = {}
        for name, peer in peers.items():
            try:
                call = prepared(peer, job, t)
                errors[name] = errors_of(job, t, call(), strict=False)
                calls[name] = call
                versions |= peer.versions()
            except Exception as reason:  # a peer's limits on N, registers or memory are its own
                say(_refusal(name, job, reason))
        return self.timed(settings, scope, job, calls, versions, {"error": errors})


class CudaFamilyBench(OnDevice, FamilyBench):
    """Scopes of a norm of the family: forward, autograd (forward and backward), the host's time of autograd, and model.

    Args:
        norm: By its name in lngrad.core.norms.NORMS.
        clock, device, copy_bytes: As for OnDevice.
    """

    scopes: tuple[str, ...] = ("forward", "autograd", "overhead", "model")
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    known_peers: Mapping[str, Implementation] = {
        **{name: peer for name, peer in FamilyBench.known_peers.items() if name != "override"},
        **{name: replace(CUDA_PEERS[name], name=name) for name in ("liger", "quack")},
    }

    def __init__(
        self, norm: str, clock: DeviceClock | None = None, device: str = "cuda", copy_bytes: int = COPY_BYTES
    ) -> None:
        FamilyBench.__init__(self, norm)
        OnDevice.__init__(self, clock, device, copy_bytes)

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope."""
        shapes = settings.shapes or (MODELS if scope == "model" else FAMILY[:2] if settings.quick else FAMILY)
        shapes = (OVERHEAD,) if scope == "overhead" else shapes
        return FamilyBench.jobs(self, replace(settings, shapes=shapes), scope)

    def contest(
        self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Implementation], say: Say
    ) -> Contest:
        """Check the gradients of a job's first rows and prepare all contestants; see lngrad.bench.runner.Bench."""
        calls, versions = self.contestants(job, peers, lambda name, reason: say(_refusal(name, job, reason)))
        return self.timed(settings, scope, job, calls, versions, {})


def _refusal(name: str, job: Job, reason: Exception) -> str:
    return f"{name} {job.M}x{job.N} {job.dtype} {job.op}: {type(reason).__name__}: {str(reason)[:120]}"


def tensors(job: Job, device: str) -> Arguments:
    """Random arguments, made on the device."""
    dtype = getattr(torch, job.dtype)
    accumulator = torch.float64 if job.dtype == "float64" else torch.float32
    generator = torch.Generator(device).manual_seed(job.M + job.N)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype, generator=generator)

    x, dy, gamma, beta = noise(job.M, job.N), noise(job.M, job.N), noise(job.N), noise(job.N)
    mean = x.mean(1, keepdim=True, dtype=accumulator)
    rstd = (x.var(1, correction=0, keepdim=True).to(accumulator) + 1e-5).rsqrt()
    return Arguments(dy, x, mean, rstd, gamma, beta, (job.N,))


def errors_of(job: Job, t: Arguments, results: Sequence[Tensor], *, strict: bool) -> dict[str, float]:
    """The worst errors of what is timed against float64, in tolerances: of first and last rows, and of all column sums.

    Args:
        job: What is to be timed.
        t: Its arguments.
        results: dx, dgamma, dbeta; or y, mean, rstd.
        strict: Raise an error beyond its tolerance; it is ours. Of a peer's forward y alone is compared.

    Raises:
        GradientError: If strict.
    """
    dy, x, mean, rstd = (_ends(part, job) for part in (t.dy, t.x, t.mean, t.rstd))
    inputs = Inputs(dy, x, mean, rstd, _numpy(t.gamma), _numpy(t.beta), 1)
    if job.op == "forward":
        if strict:
            return {"y": round(check_forward(Forward(*(_ends(part, job) for part in results)), inputs), 3)}
        return {"y": _share_of_y(_ends(results[0], job), inputs)}
    dx, *sums = _ends(results[0], job), *map(_numpy, results[1:])
    if strict:
        check_grads(Grads(dx, None, None), inputs, output_mask=(True, False, False))
    worst = {"dx": float(np.max(error_shares(Grads(dx, *sums), inputs).dx))}
    accumulator = "float64" if job.dtype == "float64" else "float32"
    truths, scales = _numpy(_column_sums(t)).reshape(2, 2, -1)
    for name, got, truth, scale in zip(("dgamma", "dbeta"), sums, truths, scales, strict=True):
        worst[name] = float(np.max(error_share(got, truth, scale, accumulator)))
        if strict and not worst[name] <= 1:
            raise GradientError(
                f"{name}: {job.M}x{job.N} {job.dtype}: the worst is off by {worst[name]:.3g} tolerances"
            )
    return {name: round(share, 3) for name, share in worst.items()}


def _share_of_y(y: Array, inputs: Inputs) -> float:
    """A peer's y alone, with our reference's statistics in place of its own."""
    expected = reference.layer_norm(inputs.x, inputs.gamma, inputs.beta)
    try:
        return round(check_forward(Forward(y, *(part.astype(np.float32) for part in expected[1:])), inputs), 3)
    except GradientError:
        return float("inf")


def _column_sums(t: Arguments) -> Tensor:
    """(4, N) in float64: dgamma, dbeta and the sums of their terms' absolute values."""
    N = t.x.shape[1]
    sums = torch.zeros(4, N, dtype=torch.float64, device=t.x.device)
    rows = max(1, _SLICE // N)
    for dy, x, mean, rstd in zip(*(each.split(rows) for each in (t.dy, t.x, t.mean, t.rstd)), strict=True):
        wide = dy.double()
        terms = (x.double() - mean.double()).mul_(rstd.double()).mul_(wide)
        for number, part in enumerate((terms, wide, terms.abs(), wide.abs())):
            sums[number] += part.sum(0)
    return sums


def _ends(rows: Tensor, job: Job) -> Array:
    """The first and last rows of a matrix or of statistics, as many as the reference can take."""
    rows = rows.reshape(job.M, -1)
    count = max(1, _END // job.N)
    return _numpy(rows if 2 * count >= job.M else torch.cat((rows[:count], rows[-count:])))


def _numpy(tensor: Tensor) -> Array:
    return as_numpy(tensor.detach().cpu())
