"""How threads share a job: each task once, a thread's own range first, and nothing after the job is cancelled."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from lngrad.cpu.entries import entry_function
from lngrad.cpu.jobs import ARGUMENTS, FUNCTION, MAX_RANGES, TASKS
from lngrad.support.addresses import address_of

EVERYTHING = 1 << 62


class Recorded:
    """A job whose tasks write down their numbers and threads."""

    def __init__(self, tasks, threads):
        self.ran: list[tuple[int, int]] = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        self._function = kind(lambda arguments, task, thread: self.ran.append((task, thread)))
        self._words = np.full(ARGUMENTS, 77, np.int64)  # what another job left there
        self._words[FUNCTION] = ctypes.cast(self._function, ctypes.c_void_p).value
        self._words[TASKS] = tasks
        self.address = address_of(self._words)
        entry_function("begin")(self.address, threads)


@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 16, 100])
@pytest.mark.parametrize("threads", [1, 2, 3, MAX_RANGES, MAX_RANGES + 3, 64])
def test_every_task_runs_once_whoever_comes(tasks, threads):
    for thread in {0, 1, threads - 1, 63}:
        job = Recorded(tasks, threads)
        assert entry_function("work")(job.address, thread, EVERYTHING)
        assert sorted(task for task, _ in job.ran) == list(range(tasks))
        assert entry_function("work")(job.address, thread, EVERYTHING)
        assert len(job.ran) == tasks


def test_a_thread_takes_its_own_range_first():
    for thread, order in ((0, [*range(16)]), (1, [*range(8, 16), *range(8)])):
        job = Recorded(16, 2)
        entry_function("work")(job.address, thread, EVERYTHING)
        assert [task for task, _ in job.ran] == order


def test_at_most_so_many_tasks_a_call():
    job = Recorded(5, 2)
    assert not entry_function("work")(job.address, 1, 3)
    assert len(job.ran) == 3
    assert entry_function("work")(job.address, 1, 3)
    assert len(job.ran) == 5


def test_no_task_begins_after_cancel():
    job = Recorded(16, 2)
    assert not entry_function("work")(job.address, 0, 3)
    entry_function("cancel")(job.address)
    assert entry_function("work")(job.address, 1, EVERYTHING)
    assert len(job.ran) == 3


def test_threads_together_run_every_task_once():
    job = Recorded(500, 4)
    work = entry_function("work")
    threads = [threading.Thread(target=work, args=(job.address, number, EVERYTHING)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(task for task, _ in job.ran) == list(range(500))
