"""Threads: many callers at once, forked children, limits, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lngrad
from lngrad.core import threads as settings
from lngrad.errors import NumberError
from lngrad.testing import Case, check_same_bits, make_inputs


def gradients(inputs):
    return tuple(lngrad.layer_norm_backward(*inputs.arguments))


@pytest.mark.usefixtures("threads")
def test_many_callers_at_once():
    lngrad.set_num_threads(4)
    cases = [make_inputs(Case((M,), (N,)), "float32") for M, N in ((700, 129), (2000, 40), (9, 20011), (400, 1000))]
    expected = [gradients(inputs) for inputs in cases]
    faults = []

    def call(number):
        try:
            for turn in range(20):
                k = (number + turn) % len(cases)
                check_same_bits(gradients(cases[k]), expected[k])
        except BaseException as fault:
            faults.append(fault)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not faults


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.usefixtures("threads")
def test_a_forked_child_computes_too():
    """In a process of its own, since pytest's has threads of other libraries that a fork would warn about."""
    program = """
import os, sys, warnings
warnings.simplefilter("ignore")
import lngrad
from lngrad.testing import Case, make_inputs, check_same_bits
lngrad.set_num_threads(4)
i = make_inputs(Case((3000,), (129,)), "float32")
call = lambda: tuple(lngrad.layer_norm_backward(*i.arguments))
expected = call()
for _ in range(3):
    child = os.fork()
    if child == 0:
        try:
            for _ in range(5):
                check_same_bits(call(), expected)
        except BaseException:
            os._exit(1)
        os._exit(0)
    check_same_bits(call(), expected)
    assert os.waitpid(child, 0)[1] == 0
print("ok")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "ok\n", result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_finds_locks_free_and_what_they_guard_whole():
    """Another thread changes two things together, and forks come at any time. A lock may be taken again in its own thread."""
    program = """
import os, threading, warnings
warnings.simplefilter("ignore")
from lngrad.support.locks import fork_safe_lock
outer, inner = fork_safe_lock(), fork_safe_lock()
pair, going = [0, 0], True
def change():
    while going:
        with inner, inner:
            pair[0] += 1
            pair[1] += 1
thread = threading.Thread(target=change)
thread.start()
for turn in range(100):
    if turn % 2:
        inner.__enter__()
    child = os.fork()
    if child == 0:
        whole = pair[0] == pair[1]
        if turn % 2:
            inner.__exit__(None, None, None)
        took = threading.Thread(target=lambda: outer.__enter__() or inner.__enter__())
        took.start()
        took.join(200)
        os._exit(0 if whole and not took.is_alive() else 1)
    if turn % 2:
        inner.__exit__(None, None, None)
    assert os.waitpid(child, 0)[1] == 0
going = False
thread.join()
print("ok")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "ok\n", result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_while_a_plan_is_bound_can_bind_another():
    """To bind one compiles its kernels. functools.cached_property has a lock for all plans together, before Python 3.12."""
    program = """
import os, signal, threading, warnings
warnings.simplefilter("ignore")
from lngrad.core.plan import Plan

def bound_by(bind):
    return Plan(None, "none", 0, None, None, bind).on_addresses

began, over = threading.Event(), threading.Event()
thread = threading.Thread(target=bound_by, args=(lambda plan: began.set() or over.wait(),))
thread.start()
began.wait()
child = os.fork()
if child == 0:
    signal.alarm(100)
    os._exit(7 if bound_by(lambda plan: "another") == "another" else 1)
_, status = os.waitpid(child, 0)
over.set()
thread.join()
print(status == 7 << 8 or status)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "True\n", result.stdout + result.stderr


def test_ctrl_c_interrupts_a_long_call():
    """One call of 3 seconds on an idle machine is left before half of its work is done, and the process goes on."""
    program = """
import numpy as np, lngrad, time
from numpy.lib.stride_tricks import as_strided
row = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
def work(rows, mask=(False, True, True)):
    x, statistics = (as_strided(of, (rows, of.size), (0, 4)) for of in (row, np.ones(1, np.float32)))
    before = time.process_time()
    try:
        lngrad.layer_norm_backward(x, x, statistics, statistics, row, output_mask=mask)
    except KeyboardInterrupt:
        print("interrupted")
    return time.process_time() - before
work(2)
wanted = 3 * lngrad.get_num_threads()
rows = int(wanted / work(64) * 64)
print("started", flush=True)
print(work(rows) < wanted / 2)
work(3, None)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "started\n"
            time.sleep(0.4)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
        finally:
            process.kill()
    assert (output, process.returncode) == ("interrupted\nTrue\n", 0)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_is_checked():
    lngrad.set_num_threads(3)
    assert lngrad.get_num_threads() == 3
    lngrad.set_num_threads(1000)
    assert lngrad.get_num_threads() == settings.MAX_THREADS
    with pytest.raises(NumberError, match="n: expected at least 1 thread, got 'a'"):
        lngrad.set_num_threads("a")
    with pytest.raises(NumberError, match="n: expected at least 1 thread, got 0"):
        lngrad.set_num_threads(0)


@pytest.mark.parametrize(("limit", "expected"), [("1", 1), ("1,4", 1), ("nonsense", None), ("0", None), ("", None)])
def test_omp_num_threads_is_a_limit(limit, expected):
    environment = {**os.environ, "OMP_NUM_THREADS": limit}
    program = "import lngrad; print(lngrad.get_num_threads())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    without = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    free = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=without)
    assert result.stdout == (f"{expected}\n" if expected else free.stdout), result.stderr


def test_a_cgroup_quota_is_a_limit(tmp_path, monkeypatch):
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "cpu.max").write_text("150000 100000\n")
    listing = tmp_path / "cgroup"
    listing.write_text("0::/group\n")

    class Redirected(type(tmp_path)):
        def __new__(cls, *parts):
            path = os.path.join(*map(str, parts))
            path = path.replace("/proc/self/cgroup", str(listing)).replace("/sys/fs/cgroup", str(tmp_path))
            return type(tmp_path)(path)

    monkeypatch.setattr(settings, "Path", Redirected)
    assert settings._cgroup_quota() == [2]
    (tmp_path / "group" / "cpu.max").write_text("max 100000\n")
    assert settings._cgroup_quota() == []


def test_workers_sleep_when_there_is_nothing_to_do():
    """After a call the process soon uses no processor time."""
    inputs = make_inputs(Case((4000,), (300,)), "float32")
    gradients(inputs)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    assert np.isfinite(gradients(inputs)[0]).all()
