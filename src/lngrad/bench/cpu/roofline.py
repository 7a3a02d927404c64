"""The roofline of this machine at this moment, measured in the same rounds as the kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lngrad.core.arrays import Output, address_of, empty
from lngrad.core.threads import get_num_threads
from lngrad.cpu.entries import task_function
from lngrad.cpu.jobs import TRIAD_BLOCK, Triad, new_job
from lngrad.cpu.workers import run_job

FLOATS = 1 << 24  # of each of three arrays: 64 MiB, twice a large last-level cache


class Roofline:
    """Reads two arrays of 64 MiB and streams out a third, with all threads."""

    nbytes = 3 * 4 * FLOATS

    def __init__(self) -> None:
        shape = (FLOATS,)
        self._arrays = [empty("numpy", Output.of(shape, "float32")) for _ in range(3)]
        for number, array in enumerate(self._arrays):
            array[...] = np.float32(number)
        tasks = FLOATS // TRIAD_BLOCK
        record = Triad(*map(address_of, self._arrays), elements=FLOATS)
        self._job, self._tasks = new_job(task_function("triad_streamed", "float32", "float32"), tasks, record), tasks

    def call(self) -> Callable[[], None]:
        """One pass over the three arrays."""
        address, threads = address_of(self._job), get_num_threads()

        def once() -> None:
            run_job(address, self._tasks, FLOATS, threads)

        return once
