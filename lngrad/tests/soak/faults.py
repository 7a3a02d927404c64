"""Faults around a call that is right without them: it gives the same bits then, or an error that the documents name.

Some happen in a forked child, which is watched: one that hangs or dies is a violation, and the soak goes on.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import platform
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np

import lngrad

Bits = Callable[[], list[bytes | None]]  # the call, and the bytes of its results

SAME = "the same bits"
REFUSED = "an error for want of memory, and the same bits once there was some"
LIMIT_S = 120.0  # what takes longer hangs
_NESTED = 10  # calls at most inside a call
_INTERRUPTS = 3  # of a call, one after the other
_KERNEL = Path(__file__).parents[3] / "examples" / "cpp" / "rows_backward.cpp"
_SWITCH_S = 1e-5  # after which a thread that sends signals has its turn
_HEARD_S = 0.02  # for a signal to come
_SLACK = 2 << 20  # bytes: how much more address space than what is used there is at most


def inject(fault: str, bits: Bits, expected: list[bytes | None], seed: int) -> str:
    """Repeat a call with one of FAULTS. Returns the outcome, which is a violation unless it is SAME or REFUSED.

    Args:
        fault: Its name.
        bits: The call.
        expected: What it gives without a fault.
        seed: Of what is random.
    """
    return FAULTS[fault](lambda: bits() == expected, Random(seed))


def _outcome(same: bool) -> str:
    return SAME if same else "other bits"


def _memory(same: Callable[[], bool], rng: Random) -> str:
    """The address space ends somewhere above what is used."""

    def work() -> str:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + rng.randrange(_SLACK), most))
        try:
            return _outcome(same())
        except (MemoryError, RuntimeError) as error:  # torch's is a RuntimeError
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return REFUSED if same() else "other bits after an error for want of memory"

    return _in_child(work)


def _threads(same: Callable[[], bool], rng: Random) -> str:
    """The system starts no threads, and a child has none yet."""

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def work() -> str:
        threading.Thread.start = _thread.start_new_thread = refused  # type: ignore[assignment,method-assign]  # in this child
        lngrad.set_num_threads(4)
        return _outcome(same())

    return _in_child(work)


def _fork(same: Callable[[], bool], rng: Random) -> str:
    """A fork while another thread makes the call again and again."""
    over = threading.Event()
    wrong: list[str] = []

    def busy() -> None:
        while not over.is_set():
            if not same():
                wrong.append("other bits in a thread beside a fork")

    thread = threading.Thread(target=busy)
    thread.start()
    time.sleep(rng.random() * 2e-3)
    try:
        outcome = _in_child(lambda: _outcome(same()))
    finally:
        over.set()
        thread.join()
    return wrong[0] if wrong else outcome


def _signal(same: Callable[[], bool], rng: Random) -> str:
    """A signal handler makes the call inside the call, some times over.

    The signals are sent to this thread, so that none is late: of a timer's, one might be heard by the next handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return SAME  # signals are the main thread's
    left, wrong, calling = _NESTED, [], False

    def heard(*_: object) -> None:
        nonlocal left, calling
        if left and not calling:
            left, calling = left - 1, True
            try:
                if not same():
                    wrong.append("other bits in a signal handler")
            except Exception as error:
                wrong.append(f"in a signal handler: {type(error).__name__}: {error}")
            calling = False

    over = threading.Event()
    every, main = 10 ** rng.uniform(-5, -3), threading.get_ident()

    def send() -> None:
        while not over.wait(every):
            signal.pthread_kill(main, signal.SIGUSR1)

    before, interval = signal.signal(signal.SIGUSR1, heard), sys.getswitchinterval()
    sender = threading.Thread(target=send)
    sys.setswitchinterval(_SWITCH_S)
    sender.start()
    try:
        outcome, end = _outcome(same()), time.monotonic() + _HEARD_S
        while outcome == SAME and left == _NESTED and time.monotonic() < end:  # a call may be over before it is heard
            outcome = _outcome(same())
    finally:
        left = 0
        over.set()
        sender.join()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGUSR1, before)
    return wrong[0] if wrong else outcome


def _interrupt(same: Callable[[], bool], rng: Random) -> str:
    """A timer's handler raises at any moment of the call, some times over. What is raised where none can pass is printed."""
    if threading.current_thread() is not threading.main_thread():
        return SAME
    armed = False

    def heard(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    start = time.perf_counter()
    outcome, took = _outcome(same()), time.perf_counter() - start
    before, hook = signal.signal(signal.SIGALRM, heard), sys.unraisablehook
    sys.unraisablehook = lambda error: None
    try:
        for _ in range(_INTERRUPTS):
            if outcome != SAME:
                break
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1.2 * took))
                is_same = same()
                armed = False
            except BaseException as error:
                if "interrupt" not in f"{type(error).__name__}: {error}".lower():  # XLA has errors of its own
                    raise
            else:
                outcome = outcome if is_same else "other bits from a call that was interrupted"
            signal.setitimer(signal.ITIMER_REAL, 0)
            outcome = outcome if same() else "other bits after an interrupt"
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook
    return outcome


def _kernel(same: Callable[[], bool], rng: Random) -> str:
    """Interrupts of a kernel in C++ on the simulated NPU."""
    from lngrad.testing import Case, make_inputs
    from lngrad_ascend import ascendc

    rows, columns, blocks = 4, 64, 2
    kernel = ascendc.compile(_KERNEL, "rows_backward", define={"COLUMN_SUMS": 1})
    inputs = make_inputs(Case((rows,), (columns,)), "float32")

    def launched() -> list[bytes]:
        results = [np.empty_like(inputs.x), np.empty_like(inputs.gamma), np.empty_like(inputs.gamma)]
        arrays = inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, *results
        tiling = struct.pack("<3I", rows, columns, rows // blocks)
        ascendc.launch(kernel, blocks, *arrays, workspace=8 * columns * blocks, tiling=tiling)
        return [result.tobytes() for result in results]

    expected = launched()
    outcome = _interrupt(lambda: launched() == expected, rng)
    return outcome if outcome != SAME else _outcome(same())


def _finalizer(same: Callable[[], bool], rng: Random) -> str:
    """The garbage collector comes often, and runs finalizers that make the call inside the call."""
    left, wrong = _NESTED, []

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            nonlocal left
            if left:
                left -= 1
                Garbage()  # for the next time
                try:
                    # A context of its own: CPython before 3.12 crashes where one ContextVar.set, as np.errstate has it, is
                    # inside another (hamt.c).
                    if not copy_context().run(same):
                        wrong.append("other bits in a finalizer")
                except Exception as error:
                    wrong.append(f"in a finalizer: {type(error).__name__}: {error}")

    gc.freeze()  # what was there before: a process with torch and JAX would take seconds for each collection
    try:
        with _collecting(rng.randint(1, 30)):
            Garbage()
            outcome = _outcome(same())
        left = 0
        gc.collect()
    finally:
        gc.unfreeze()
    return wrong[0] if wrong else outcome


@contextmanager
def _collecting(threshold: int) -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(threshold, 1, 1 << 30)  # the oldest generation would take a second
    try:
        yield
    finally:
        gc.set_threshold(*before)


_COMPILING = """
import os, sys, threading, time, warnings
import numpy as np
import lngrad
from lngrad.testing import Case, make_inputs

def bits(dtype):
    one = make_inputs(Case((70,), (48,)), dtype)
    return b"".join(g.tobytes() for g in lngrad.layer_norm_backward(one.dy, one.x, one.mean, one.rstd, one.gamma))

warnings.simplefilter("ignore")
beside, own, after = sys.argv[1], sys.argv[2], float(sys.argv[3])
thread = threading.Thread(target=bits, args=(beside,))
thread.start()
time.sleep(after)
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, bits(own))
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
assert os.read(read, 1 << 20) == bits(own)
"""


def _compile(same: Callable[[], bool], rng: Random) -> str:
    """A fork while another thread compiles, in a process that finds no kernels on disk."""
    dtypes = rng.sample(("float32", "bfloat16", "float16", "float64"), 2)
    command_line = [sys.executable, "-c", _COMPILING, *dtypes, str(rng.random() * 4)]
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        process = subprocess.Popen(
            command_line, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            _, errors = process.communicate(timeout=5 * LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "hung"
    return SAME if process.returncode == 0 else f"ended with {process.returncode}: {errors[-300:]}"


def _in_child(work: Callable[[], str]) -> str:
    """What a forked child says; or that it hung, or how it ended."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python where there are threads, and of JAX
        child = os.fork()
    if child == 0:
        try:
            try:
                text = work()
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(write, text.encode()[:1000])
        finally:
            os._exit(0)
    os.close(write)
    end, ended = time.monotonic() + LIMIT_S, 0
    while not ended and time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            time.sleep(5e-4)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    return "hung" if not ended else text or f"died: {status}"


def _mode(same: Callable[[], bool], rng: Random) -> str:
    """The caller's thread rounds in another direction, or flushes subnormal numbers where torch can set that."""
    libm = ctypes.CDLL(None)
    directions = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (0x400000, 0x800000, 0xC00000)}  # of fenv.h
    direction = rng.choice((0, *directions.get(platform.machine(), ())))
    flush = getattr(sys.modules.get("torch"), "set_flush_denormal", lambda on: False)
    before = libm.fegetround()
    try:
        if direction:
            libm.fesetround(direction)
        else:
            flush(True)
        return _outcome(same())
    finally:
        libm.fesetround(before)
        flush(False)


def _resized(same: Callable[[], bool], rng: Random) -> str:
    """Results of lngrad.torch that are large, and whose memory is used again: resized, emptied, or looked at by NumPy."""
    import torch

    from lngrad.torch import layer_norm

    held = []
    for _ in range(4):
        result = layer_norm(torch.randn(rng.choice((512, 768)), 512), (512,))
        what = rng.randrange(4)
        if what == 0:
            result.resize_(rng.randint(1, 1000), 1000)
        elif what == 1:
            result.untyped_storage().resize_(0)
        elif what == 2:
            result.numpy()
        else:
            held.append((result.numpy(), result.clone().numpy()))
    if any((array != copy).any() for array, copy in held):
        return "a result that somebody holds was written"
    return _outcome(same())


FAULTS: dict[str, Callable[[Callable[[], bool], Random], str]] = (
    {
        "no memory": _memory, "no threads": _threads, "fork": _fork, "signal handler": _signal, "finalizer": _finalizer,
        "fork while compiling": _compile, "other mode": _mode, "resized storages": _resized, "interrupt": _interrupt,
        "interrupted kernel": _kernel,
    }
    if hasattr(os, "fork")
    else {}
)  # fmt: skip
"""What can be injected, by name; nothing where a system does not fork."""
