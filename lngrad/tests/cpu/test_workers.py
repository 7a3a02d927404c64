"""Workers sleep in semaphores, which wake them once whether posted before or after; calls run with the threads there are."""

from __future__ import annotations

import _thread
import ctypes
import threading
import time
from pathlib import Path

import pytest

import lngrad
from lngrad.cpu import workers
from lngrad.cpu.jobs import ASLEEP, Worker
from lngrad.cpu.workers import Semaphore
from lngrad.testing import Case, check_same_bits, make_inputs


def gradients(inputs):
    return tuple(lngrad.layer_norm_backward(*inputs.arguments))


def _sleeping(semaphore):
    """What waits, and what posts."""
    if not semaphore.wait_function:
        return semaphore.wait, semaphore.post
    wait, post = (
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(address)
        for address in (semaphore.wait_function, semaphore.post_function)
    )

    def sleep():
        while wait(semaphore.address) != 0:
            pass

    return sleep, lambda: post(semaphore.address)


@pytest.mark.parametrize("native", [True, False])
def test_a_sleeper_wakes_once_a_post(native, monkeypatch):
    if not native:
        monkeypatch.setattr(workers, "_semaphores", lambda: None)
    semaphore = Semaphore()
    if native and not semaphore.wait_function:
        pytest.skip("this system has no semaphores of its own")
    assert bool(semaphore.wait_function) == native
    (sleep, post_it), woken = _sleeping(semaphore), threading.Semaphore(0)

    def live():
        for _ in range(2):
            sleep()
            woken.release()

    post_it()  # before anybody sleeps
    sleeper = threading.Thread(target=live)
    sleeper.start()
    assert woken.acquire(timeout=60)
    assert not woken.acquire(timeout=0.05)  # and once only
    post_it()
    assert woken.acquire(timeout=60)
    sleeper.join(60)
    assert not sleeper.is_alive()


def test_a_library_without_semaphores_is_no_error(monkeypatch):
    class Bare:
        sem_init = staticmethod(lambda *arguments: -1)
        sem_wait = sem_post = None

    monkeypatch.setattr(workers, "_semaphores", Bare)
    semaphore = Semaphore()
    assert (semaphore.wait_function, semaphore.post_function) == (0, 0)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("sleeps_natively", [True, False])
def test_workers_of_other_systems_share_a_call(sleeps_natively, monkeypatch):
    """Without processors' numbers workers wake where the system likes, without semaphores they sleep in Python's locks."""
    inputs = make_inputs(Case((600,), (384,)), "float32", seed=5)
    lngrad.set_num_threads(1)
    alone = gradients(inputs)
    monkeypatch.setattr(workers, "_processors", lambda: None)
    if not sleeps_natively:
        monkeypatch.setattr(workers, "_semaphores", lambda: None)
    monkeypatch.setattr(workers, "_workers", workers._Workers())
    lngrad.set_num_threads(3)
    for _ in range(3):
        check_same_bits(gradients(inputs), alone)
        time.sleep(0.01)  # they fall asleep, and are woken by the next call


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("allowed", [0, 1])
def test_a_call_runs_with_the_threads_that_start(allowed, monkeypatch):
    """Under a limit on threads, as RLIMIT_NPROC is, a call has fewer; once they start again, it has them."""
    inputs = make_inputs(Case((600,), (384,)), "float32", seed=8)
    lngrad.set_num_threads(4)
    expected = gradients(inputs)
    pool, start = workers._Workers(), _thread.start_new_thread
    monkeypatch.setattr(workers, "_workers", pool)

    def limited(*arguments):
        if len(pool._all) >= allowed:
            raise RuntimeError("can't start new thread")
        return start(*arguments)

    with monkeypatch.context() as limits:
        limits.setattr(_thread, "start_new_thread", limited)
        for calls in (1, 2):
            check_same_bits(gradients(inputs), expected)
            assert (len(pool._all), pool.refusals > 0) == (allowed, True)
            assert pool.refusals >= calls
        assert not pool.memory[workers.SLOT_BYTES // 8 * allowed + workers.WORKER]
    check_same_bits(gradients(inputs), expected)
    assert len(pool._all) == 3


@pytest.mark.usefixtures("threads")
def test_a_thread_that_ends_before_it_begins_is_not_waited_for(monkeypatch):
    """As one does that finds no memory. threading.Thread.start() would wait for it for ever."""
    inputs = make_inputs(Case((600,), (384,)), "float32", seed=9)
    lngrad.set_num_threads(3)
    expected = gradients(inputs)
    monkeypatch.setattr(workers, "_workers", workers._Workers())
    monkeypatch.setattr(_thread, "start_new_thread", lambda *arguments: 0)
    for _ in range(3):
        check_same_bits(gradients(inputs), expected)


def _asleep(pool):
    end = time.monotonic() + 20
    while pool.memory[0] != ASLEEP and time.monotonic() < end:
        time.sleep(0.001)
    return bool(pool.memory[0] == ASLEEP)


@pytest.mark.usefixtures("threads")
def test_a_worker_whose_call_was_interrupted_before_it_woke_is_not_lost(monkeypatch):
    monkeypatch.setattr(workers, "_semaphores", lambda: None)
    pool = workers._Workers()
    monkeypatch.setattr(workers, "_workers", pool)
    lngrad.set_num_threads(2)
    inputs = make_inputs(Case((600,), (384,)), "float32", seed=6)
    gradients(inputs)
    assert _asleep(pool)
    wake, interrupts = pool.wake, [KeyboardInterrupt()]

    def interrupted(bits):
        if interrupts:
            raise interrupts.pop()
        wake(bits)

    monkeypatch.setattr(pool, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gradients(inputs)
    assert not interrupts
    assert _asleep(pool)  # it woke, found nothing to do, and may be woken again
    gradients(inputs)
    assert _asleep(pool)


@pytest.mark.usefixtures("threads")
def test_a_post_too_many_wakes_nobody_for_good(monkeypatch):
    pool = workers._Workers()
    monkeypatch.setattr(workers, "_workers", pool)
    lngrad.set_num_threads(2)
    inputs = make_inputs(Case((600,), (384,)), "float32", seed=7)
    expected = gradients(inputs)
    assert _asleep(pool)
    worker = pool._all[0]
    _, post_it = _sleeping(worker._semaphore)
    post_it()
    post_it()
    assert _asleep(pool)
    stat = Path(f"/proc/self/task/{worker._words[Worker._fields.index('native_id')]}/stat")
    if stat.exists():
        end = time.monotonic() + 20
        while stat.read_text().rpartition(")")[2].split()[0] != "S":  # one that waits actively for good runs
            assert time.monotonic() < end
            time.sleep(0.001)
    check_same_bits(gradients(inputs), expected)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("when", ["late workers", "interrupted"])
def test_a_job_that_is_left_is_finished_or_taken_back(when, monkeypatch):
    """Workers that compiled code can't wake leave the job to Python."""
    lngrad.set_num_threads(2)
    inputs = make_inputs(Case((600,), (384,)), "float32", seed=4)
    monkeypatch.setattr(workers, "_semaphores", lambda: None)
    pool = workers._Workers()
    monkeypatch.setattr(workers, "_workers", pool)
    right = gradients(inputs)
    finished = []
    finish = workers.finish

    def watched(job, helpers):
        finished.append(job)
        if when == "interrupted" and job:
            raise KeyboardInterrupt
        finish(job, helpers)

    monkeypatch.setattr(workers, "finish", watched)
    for _ in range(3):
        deadline = threading.Event()
        while pool.memory[0] != 1 and not deadline.wait(0.01):
            pass
        if when == "interrupted":
            with pytest.raises(KeyboardInterrupt):
                gradients(inputs)
        else:
            check_same_bits(gradients(inputs), right)
    assert finished


def test_a_second_interrupt_leaves_no_job_that_workers_run(monkeypatch):
    """All jobs of a chain are joined, also if Ctrl-C comes again while the first is."""
    joined = []

    def join(job, slots, helpers, cancelling=False):
        joined.append(job)
        if len(joined) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_join", join)
    monkeypatch.setattr(workers, "_jobs", lambda chain: [(chain, None), (chain + 8, None)])
    with pytest.raises(KeyboardInterrupt):
        workers.abandon(1 << 20, 0)
    assert joined == [1 << 20, (1 << 20) + 8]
