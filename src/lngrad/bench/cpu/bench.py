"""The scopes of a CPU: what is timed, and in which surroundings."""

from __future__ import annotations

from collections.abc import Mapping

import lngrad
from lngrad.bench.arguments import Arguments, first_rows, random_arguments
from lngrad.bench.cases import DTYPES, Job
from lngrad.bench.cpu import jax_programs, torch_modules
from lngrad.bench.cpu.first_call import FirstCalls
from lngrad.bench.cpu.first_call import clock as first_call_clock
from lngrad.bench.cpu.peers import PEERS
from lngrad.bench.cpu.roofline import Roofline
from lngrad.bench.measure import Call, TurnClock, keep_memory
from lngrad.bench.settings import QUICK_ROUNDS, Settings
from lngrad.bench.trial import LNGRAD, ROOFLINE, Peer, PeerMissing, Say, Trial, why_not
from lngrad.core.arrays import address_of, empty
from lngrad.core.plan import make_plan
from lngrad.core.problem import Problem
from lngrad.testing import check_forward, check_grads

# From small to large rows, with tiny and odd N among them.
SHAPES = (
    (512, 384),
    (1024, 256),
    (4096, 768),
    (16384, 1024),
    (2048, 5120),
    (4096, 4096),
    (1024, 16384),
    (64, 65536),
    (100000, 64),
    (50000, 37),
    (200000, 13),
    (300000, 7),
)
# With dx of 64 MB and more in at least one dtype.
CALL_SHAPES = ((16384, 1024), (32768, 1024), (8192, 4096))
LARGE_BYTES = 64 * 10**6
# Of a module's forward and backward, a small one among them.
MODULE_SHAPES = ((64, 64), (1024, 256), (4096, 768), (16384, 1024), (4096, 4096), (8192, 4096))
QUICK = ((512, 384), (4096, 768), (50000, 37))

# Forward and backward through a front door: the peer, and what prepares both.
DOORS = {
    "override": ("torch", torch_modules.override),
    "autograd": ("torch", torch_modules.autograd),
    "jax": ("jax", jax_programs.jitted),
}
AS_CALLED = ("call", *DOORS)


class CpuBench:
    """Scopes of the CPU.

    call: the public function in the default environment, as a user meets it, outputs of 64 MB and
    more.
    override, autograd, jax: forward and backward through a front door, in the default environment
    too.
    kernel: backward with the plan ready and memory for the results given; freed memory is kept, for all
    peers alike.
    forward: the same for the forward.
    overhead: the public function on 64×64, where arithmetic is nothing.
    first_call: a fresh process, with an empty and with a full kernel cache.

    What is timed as called comes first, since the others change how glibc keeps memory, for good.
    """

    scopes = (*AS_CALLED, "kernel", "forward", "overhead", "first_call")
    dtypes: tuple[str, ...] = DTYPES
    peers: tuple[str, ...] = ("torch", "onednn")
    known_peers: Mapping[str, Peer] = PEERS
    drawn = "kernel"

    def __init__(self) -> None:
        self._roofline: Roofline | None = None

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope."""
        if scope == "overhead":
            return [Job(64, 64, "float32")]
        if scope == "first_call":
            return [Job(70, 300, dtype) for dtype in settings.dtypes]
        if scope == "call":
            shapes = settings.shapes or (CALL_SHAPES[:1] if settings.quick else CALL_SHAPES)
            chosen = [Job(M, N, dtype) for M, N in shapes for dtype in settings.dtypes]
            return [job for job in chosen if settings.shapes or job.nbytes // 3 >= LARGE_BYTES]
        op = "both" if scope in DOORS else "forward" if scope == "forward" else "backward"
        shapes = settings.shapes or (QUICK if settings.quick else MODULE_SHAPES if scope in DOORS else SHAPES)
        return [Job(M, N, dtype, op) for M, N in shapes for dtype in settings.dtypes]

    def trial(self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Peer], say: Say) -> Trial:
        """Check the results of a job and prepare all contestants; see lngrad.bench.trial.Bench."""
        facts = {"backend": "numba_cpu"}
        if scope not in AS_CALLED:
            keep_memory()
        if scope == "first_call":
            processes = FirstCalls(job.dtype)
            processes_by_name: dict[str, Call] = {"cold": processes.cold, LNGRAD: processes.warm}
            return Trial(processes_by_name, first_call_clock, 1 if settings.quick else QUICK_ROUNDS, {}, facts=facts)
        rounds = QUICK_ROUNDS if settings.quick else settings.rounds
        a = random_arguments(job)
        if scope in DOORS:
            name, prepare = DOORS[scope]
            reason = why_not(self, name)
            if reason is not None:
                raise PeerMissing(reason)
            calls, during = prepare(job, a, first_rows(a))
            return Trial(calls, TurnClock(), rounds, PEERS[name].versions(), during, facts=facts)
        calls = {LNGRAD: _ours(scope, job, a)}
        versions: dict[str, str] = {}
        for name, peer in peers.items():
            if peer.scopes is not None and scope not in peer.scopes:
                continue
            try:
                calls[name] = peer.prepare(job, a)
                versions |= peer.versions()
            except PeerMissing as reason:
                say(str(reason))
        if scope in ("kernel", "forward"):
            self._roofline = self._roofline or Roofline()
            calls[ROOFLINE] = self._roofline.call()
        return Trial(calls, TurnClock(), rounds, versions, roofline_bytes=Roofline.nbytes, facts=facts)


def _ours(scope: str, job: Job, a: Arguments) -> Call:
    """Our own call for a job, checked once."""
    _check(job, a)
    if scope in ("call", "overhead"):
        return lambda: lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
    eps: tuple[float, ...] = ()
    if job.op == "forward":
        problem, inputs = Problem.forward(a.x, a.gamma, a.beta)
        eps = (1e-5,)
    else:
        problem, inputs = Problem.backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
    plan = make_plan(problem, "numba_cpu")
    results = [None if output is None else empty("numpy", output) for output in problem.outputs()]
    arrays = (*inputs, *results)
    addresses = [0 if array is None else address_of(array) for array in arrays]
    run = plan.on_addresses
    assert run is not None  # a plan on the CPU has it

    def call(keep: object = arrays) -> None:
        run(*addresses, *eps)

    return call


def _check(job: Job, a: Arguments) -> None:
    """Refuse to time a wrong kernel: compare the first rows with the reference."""
    inputs = first_rows(a)
    if job.op == "forward":
        check_forward(lngrad.layer_norm(inputs.x, gamma=a.gamma, beta=a.beta), inputs)
    else:
        check_grads(lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, a.gamma), inputs)
