"""The scopes of a CPU: what is timed, in which surroundings, beside a pass through memory and first calls of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Mapping

import numpy as np

import lngrad
from lngrad.bench.cases import DTYPES, MODULE_SHAPES, QUICK, QUICK_ROUNDS, Job, Settings
from lngrad.bench.frameworks import Contestants, autograd, overridden
from lngrad.bench.measure import TurnClock, keep_memory
from lngrad.bench.runner import LNGRAD, ROOFLINE, Contest, Say, check_first_rows, prepared, random_arguments, why_not
from lngrad.check.implementations import IMPLEMENTATIONS, Arguments, Implementation, NotApplicable, PreparedCall
from lngrad.core.arrays import Output, empty
from lngrad.core.plan import make_plan
from lngrad.core.problem import BACKWARD, FORWARD, describe
from lngrad.core.threads import get_num_threads
from lngrad.cpu.entries import kernel_address
from lngrad.cpu.jobs import TRIAD_BLOCK, Triad, new_job
from lngrad.cpu.workers import run_chain
from lngrad.support.addresses import address_of
from lngrad.support.bounded_cache import cached_property

# From small to large rows, with tiny and odd N among them.
SHAPES = (
    (512, 384), (1024, 256), (4096, 768), (16384, 1024), (2048, 5120), (4096, 4096), (1024, 16384), (64, 65536),
    (100000, 64), (50000, 37), (200000, 13), (300000, 7),
)  # fmt: skip
# With dx of 64 MB and more in at least one dtype.
CALL_SHAPES = ((16384, 1024), (32768, 1024), (8192, 4096))
LARGE_BYTES = 64 * 10**6

FLOATS = 1 << 24  # of each of the roofline's three arrays: 64 MiB, twice a large last-level cache

# Import and first backward of a small problem, in a fresh process; prints seconds.
_PROGRAM = """
import time
start = time.perf_counter()
import lngrad
imported = time.perf_counter() - start
import numpy as np
from lngrad.support.dtypes import numpy_dtype
x = np.random.default_rng(0).standard_normal((70, 300)).astype(numpy_dtype({dtype!r}))
statistics = np.ones(70, np.float32)
start = time.perf_counter()
lngrad.layer_norm_backward(x[::-1].copy(), x, statistics, statistics, x[0].copy())
print(imported + time.perf_counter() - start)
"""


class CpuBench:
    """Scopes of the CPU.

    call: the public function in the default environment, as a user meets it, outputs of 64 MB and
    more.
    override, autograd: forward and backward through torch, in the default environment too.
    kernel: backward with the plan ready and memory for the results given; freed memory is kept, for all
    peers alike.
    forward: the same for the forward.
    overhead: the public function on 64×64, where arithmetic is nothing.
    first_call: a fresh process, with an empty and with a full kernel cache.

    What is timed as called comes first, since the others change how glibc keeps memory, for good.
    """

    scopes: tuple[str, ...] = ("call", "override", "autograd", "kernel", "forward", "overhead", "first_call")
    dtypes: tuple[str, ...] = DTYPES
    peers: tuple[str, ...] = ("torch",)
    known_peers: Mapping[str, Implementation] = {"torch": IMPLEMENTATIONS["torch"]}
    # Scopes of forward and backward through a framework: the peer, and what prepares both.
    frameworks: Mapping[str, tuple[str, Callable[[Arguments], Contestants]]] = {
        "override": ("torch", overridden), "autograd": ("torch", autograd)
    }  # fmt: skip
    given_memory: Container[str] = ()  # peers that are timed only where results have their memory

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
        op = "both" if scope in self.frameworks else "forward" if scope == "forward" else "backward"
        shapes = settings.shapes or (QUICK if settings.quick else MODULE_SHAPES if scope in self.frameworks else SHAPES)
        return [Job(M, N, dtype, op) for M, N in shapes for dtype in settings.dtypes]

    def contest(
        self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Implementation], say: Say
    ) -> Contest:
        """Check the results of a job and prepare all contestants; see lngrad.bench.runner.Bench."""
        facts = {"backend": "numba_cpu"}
        if scope != "call" and scope not in self.frameworks:
            keep_memory()
        if scope == "first_call":
            processes = FirstCalls(job.dtype)
            starts: dict[str, PreparedCall] = {"cold": processes.cold, LNGRAD: processes.warm}
            rounds = 1 if settings.quick else QUICK_ROUNDS
            clock = lambda name, call: float(call())  # noqa: E731  # calls that time themselves
            return Contest(starts, clock, rounds, {}, facts=facts)
        rounds = QUICK_ROUNDS if settings.quick else settings.rounds
        a = random_arguments(job)
        if scope in self.frameworks:
            name, prepare = self.frameworks[scope]
            reason = why_not(self, name)
            if reason is not None:
                raise NotApplicable(reason)
            calls, during = prepare(a)
            return Contest(calls, TurnClock(), rounds, self.known_peers[name].versions(), during, facts=facts)
        calls = {LNGRAD: _ours(scope, job, a)}
        versions: dict[str, str] = {}
        for name, peer in peers.items():
            if name in self.given_memory and scope not in ("kernel", "forward"):
                continue
            try:
                if peer.set_threads is not None:
                    peer.set_threads(get_num_threads())
                calls[name] = prepared(peer, job, a)
                versions |= peer.versions()
            except NotApplicable as reason:
                say(f"{name}: {job.op} {job.dtype}: {reason}")
        if scope in ("kernel", "forward"):
            calls[ROOFLINE] = self._roofline
        return Contest(calls, TurnClock(), rounds, versions, roofline_bytes=3 * 4 * FLOATS, facts=facts)

    @cached_property
    def _roofline(self) -> PreparedCall:
        """Reads two arrays of 64 MiB and streams out a third, with all threads."""
        arrays = [empty("numpy", Output.of((FLOATS,), "float32")) for _ in range(3)]
        for number, array in enumerate(arrays):
            array[...] = np.float32(number)
        tasks = FLOATS // TRIAD_BLOCK
        record = Triad(*map(address_of, arrays), elements=FLOATS)
        function = kernel_address("triad_streamed", "float32", "float32")
        job = new_job(function, tasks, FLOATS, tasks, record)  # of these, as many threads as there are when it runs

        def once(keep: object = (arrays, job)) -> None:
            run_chain(address_of(job), get_num_threads())

        return once


def _ours(scope: str, job: Job, a: Arguments) -> PreparedCall:
    """Our own call for a job, checked once."""
    check_first_rows(a, forward=job.op == "forward", backward=job.op == "backward")
    if scope in ("call", "overhead"):
        return lambda: lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
    operator = BACKWARD if job.op == "backward" else FORWARD
    arguments = tuple(getattr(a, name) for name in operator.inputs)
    problem, inputs = describe(operator, arguments, None, operator.everything, None)
    plan = make_plan(problem, "numba_cpu")
    results = [None if output is None else empty("numpy", output) for output in problem.outputs()]
    arrays = (*inputs, *results)
    addresses = [0 if array is None else address_of(array) for array in arrays]
    eps = (a.eps,) if operator.numbers else ()
    run = plan.on_addresses
    assert run is not None  # a plan on the CPU has it

    def call(keep: object = arrays) -> None:
        run(*addresses, *eps)

    return call


class FirstCalls:
    """Fresh processes from `import lngrad` to the first gradient; each call returns the seconds."""

    def __init__(self, dtype: str) -> None:
        self._program = _PROGRAM.format(dtype=dtype)
        self._folder = tempfile.TemporaryDirectory()

    def cold(self) -> float:
        """With an empty kernel cache: it compiles."""
        self._folder.cleanup()
        self._folder = tempfile.TemporaryDirectory()
        return self.warm()

    def warm(self) -> float:
        """With the kernel cache that the last call left."""
        environment = {**os.environ, "XDG_CACHE_HOME": self._folder.name}
        command = [sys.executable, "-c", self._program]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
