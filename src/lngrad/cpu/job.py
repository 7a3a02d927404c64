"""Jobs in memory, packed and filled in by the field names of the kernels' own records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, TypeAlias

import numpy as np

from lngrad.cpu.jobs import ARGUMENTS, FUNCTION, NEXT, TASKS
from lngrad.typing import Address, Words

Record: TypeAlias = "NamedTuple"  # of kernels.numba_cpu.jobs, all of its fields int64


@dataclass(frozen=True)
class Job:
    """One job of a chain.

    Attributes:
        start: The word of the chain that it begins at.
        tasks: How many.
        elements: That all tasks go through together.
        fields: Of one of its records.
    """

    start: int
    tasks: int
    elements: int
    fields: tuple[str, ...]

    def word(self, field: str, record: int = 0) -> int:
        """The word of the chain that a field lies at."""
        return self.start + ARGUMENTS + record * len(self.fields) + self.fields.index(field)


class Chain:
    """Jobs that run one after the other, behind each other in one array."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._words: list[Words] = []

    def add(self, function: Address, tasks: int, elements: int, *records: Record) -> Job:
        """Append a job."""
        job = Job(sum(map(len, self._words)), tasks, elements, records[0]._fields)
        if self._words:
            self._words[-1][NEXT] = len(self._words[-1])
        self._words.append(new_job(function, tasks, *records))
        self.jobs.append(job)
        return job

    def words(self) -> Words:
        """The jobs as the compiled code reads them."""
        return np.concatenate(self._words)


def new_job(function: Address, tasks: int, *records: Record) -> Words:
    """A job by itself.

    Args:
        function: The address of the task function.
        tasks: How many.
        records: The arguments; one for all tasks, or one a task.
    """
    arguments: list[int] = [value for record in records for value in record]
    job = np.zeros(ARGUMENTS + len(arguments), np.int64)
    job[FUNCTION], job[TASKS] = function, tasks
    job[ARGUMENTS:] = arguments
    return job


def writer(words: Sequence[int | None], formats: str) -> Callable[[memoryview, tuple[float, ...]], None]:
    """A function (bytes of a chain, values) that writes value k at word words[k], as struct's formats[k]; None: nowhere.

    Words that follow each other are written together, so records whose fields stand in the order of the values are fast.
    """
    places = sorted((word, k) for k, word in enumerate(words) if word is not None)
    runs: list[list[tuple[int, int]]] = []
    for word, k in places:
        if runs and runs[-1][-1][0] == word - 1:
            runs[-1].append((word, k))
        else:
            runs.append([(word, k)])
    steps = []
    for run in runs:
        numbers = [k for _, k in run]
        ascending = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        pick = itemgetter(slice(numbers[0], numbers[-1] + 1)) if ascending else itemgetter(*numbers)
        steps.append((Struct("=" + "".join(formats[k] for k in numbers)).pack_into, 8 * run[0][0], pick))
    if len(runs) == 1 and numbers == list(range(len(words))):
        (pack_all, first, _), *_ = steps

        def write_all(chain: memoryview, values: tuple[float, ...]) -> None:
            pack_all(chain, first, *values)

        return write_all

    def write(chain: memoryview, values: tuple[float, ...]) -> None:
        for pack, at, pick in steps:
            pack(chain, at, *pick(values))

    return write
