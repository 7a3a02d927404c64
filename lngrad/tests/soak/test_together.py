"""Threads, forks, changes of the number of threads and signals, all at once; and memory over many shapes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

TOGETHER = """
import os, signal, sys, threading, time
import numpy as np
import lngrad
from lngrad.testing import Case, make_inputs

cases = [make_inputs(Case(*shape), dtype) for shape in (((700,), (64,)), ((3,), (20000,)), ((5, 7), (3,)))
         for dtype in ("float32", "bfloat16")]

def grads(inputs):
    return lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)

expected = [[g.tobytes() for g in grads(inputs)] for inputs in cases]
signals, wrong, calls, forks, over = [0], [], [0], 0, threading.Event()

def heard(*_):
    signals[0] += 1

signal.signal(signal.SIGALRM, heard)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)

def work(start):
    k = start
    while not over.is_set():
        k = (k + 1) % len(cases)
        if [g.tobytes() for g in grads(cases[k])] != expected[k]:
            wrong.append(k)
        calls[0] += 1

threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for thread in threads:
    thread.start()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    lngrad.set_num_threads(1 + forks % 4)
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.alarm(60)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a child that hangs is ended, and seen
        ok = all([g.tobytes() for g in grads(inputs)] == bits for inputs, bits in zip(cases, expected))
        os._exit(0 if ok else 1)
    status = os.waitpid(child, 0)[1]
    if status:
        wrong.append(status)
    forks += 1
over.set()
for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
signal.setitimer(signal.ITIMER_REAL, 0)
print(calls[0], forks, signals[0], wrong)
assert not wrong and calls[0] > 20 and forks > 2 and signals[0] > 20
"""


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_threads_forks_signals_and_changes_of_the_thread_count(seconds):
    command_line = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", TOGETHER, str(seconds)]
    result = subprocess.run(command_line, capture_output=True, text=True, timeout=seconds + 200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


MANY_SHAPES = """
import gc, sys
import numpy as np
import lngrad
from pathlib import Path

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def call(k):
    x = np.ones((1 + k % 317, 1 + k // 317), np.float32)
    forward = lngrad.layer_norm(x)
    lngrad.layer_norm_backward(x, x, forward.mean, forward.rstd)

total = int(sys.argv[1])
for k in range(total // 4):
    call(k)
before = resident()
for k in range(total // 4, total):
    call(k)
grown = resident() - before
print(grown)
assert grown < 48 << 20, grown
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_is_flat_over_100_000_distinct_shapes():
    """The tables of calls that are known (problems, plans) are bounded: a quarter of the shapes fills them."""
    command_line = [sys.executable, "-c", MANY_SHAPES, "100000"]
    result = subprocess.run(command_line, capture_output=True, text=True, timeout=880, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
