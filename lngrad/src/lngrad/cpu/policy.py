"""How a call fits the machine: how many rows go together, what is fetched ahead, what goes past the caches.

What is best where stands in the tables of processor_tuning.py. No bits depend on it.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from lngrad.core.machine import cache_bytes, processor_facts
from lngrad.core.problem import Problem
from lngrad.cpu.jobs import CACHE_LINE, GROUP, LANES, MIXED_COLUMNS, STREAM_ALIGNMENT
from lngrad.cpu.processor_tuning import FETCHED_FROM, OTHER, SETS_BYTES, TOGETHER, Held, Ladder, Part, Tuning, tuning_of
from lngrad.support.dtypes import bytes_of

USABLE_BYTES = 32 << 20  # of a last-level cache at the most: virtual machines are told of all of the host's
GROUP_BYTES = 4 << 20  # of dy and x of the rows whose sums and then columns threads share, at the most
MIXED_FROM = 1 << 16  # elements a thread from which on columns in another order pay
MIXED_SHAPE = 16  # columns over rows, above which they do not
SCRATCH_BYTES = 1 << 18  # of packed rows of a tensor at the most
HELD_SHARE = 5 / 4  # of the last level, up to which tensors whose result goes past it count as held
HELD_COLUMNS = 2048  # from which on they do not


class Machine(NamedTuple):
    """Facts that the choices depend on.

    Attributes:
        first_level, second_level: Bytes of a core's own caches.
        last_level: Bytes of the largest cache that it reaches.
        tuning: What is best on its make.
    """

    first_level: int
    second_level: int
    last_level: int
    tuning: Tuning = OTHER

    @property
    def usable_last_level(self) -> int:
        """Bytes of the last level that a call may count on."""
        return min(self.last_level, USABLE_BYTES)


@cache
def this_machine() -> Machine:
    """The machine at hand."""
    return Machine(*cache_bytes(), tuning_of(processor_facts()))


def _rows_by(
    ladder: Ladder,
    N: int,
    itemsize: int,
    machine: Machine,
    *,
    together: int = 0,
    tensors: int = 2,
    streamed: bool = False,
) -> int | None:
    """The row count from the first matching rung, None if none matches. `together`: rows already grouped, which count towards
    the second level's limit, with their rows of `tensors` tensors."""
    row_bytes = N * itemsize
    for limit, rows, nbytes, apart, stays, second_over, only_streamed in ladder:
        most = getattr(machine, limit.level) // limit.divisor if isinstance(limit, Part) else limit
        if row_bytes > most or row_bytes % apart or machine.second_level <= second_over or only_streamed > streamed:
            continue
        answer = max(together if rows == TOGETHER else rows, nbytes // row_bytes)
        if not stays or fits_second_level(together + answer, N, itemsize, machine, tensors):
            return answer
    return None


def fits_second_level(rows: int, N: int, itemsize: int, machine: Machine, tensors: int = 2) -> bool:
    """Whether so many rows of so many tensors stay in a second-level cache, beside gamma and both column sums."""
    return (tensors * rows * itemsize + 3 * max(4, itemsize)) * N <= machine.second_level


def _tensor_bytes(problem: Problem) -> int:
    """Bytes of all tensors of a call, results included."""
    return len(problem.operator.tensors) * problem.M * problem.N * bytes_of(problem.dtype)


def _held(problem: Problem, threads: int, streamed: bool, machine: Machine) -> Held:
    """The cache level that holds all tensors of a call."""
    nbytes, usable = _tensor_bytes(problem), machine.usable_last_level
    if nbytes <= threads * machine.second_level:
        return "second"
    if 3 * nbytes <= usable:
        return "third"
    if streamed:
        return "last" if problem.N < HELD_COLUMNS and nbytes < usable * HELD_SHARE else "memory"
    if nbytes >= usable:
        return "memory"
    return "nearly full" if nbytes > usable // 2 else "last"


def streams(nbytes: int, threads: int, forward: bool, itemsize: int, machine: Machine) -> bool:
    """Whether the result of a call, whose tensors have so many bytes together, goes past the caches: they would evict it.

    A result whose lines no cache has is read from memory before it is written, but where it is streamed. In a loop of one call
    the lines are there; in a model, which comes back to a result's memory after many others, they are not.
    """
    streamed = machine.tuning.streamed
    several = streamed.forward if forward and itemsize >= 4 else streamed.together
    share = streamed.alone if threads == 1 else several
    return nbytes >= machine.usable_last_level * share


def result_streams(problem: Problem, stride: int, threads: int, machine: Machine) -> bool:
    """streams for a call's full output, every row of which must begin where a streaming store may."""
    if problem.N < LANES or stride == 0 or stride % STREAM_ALIGNMENT != 0:
        return False
    forward = problem.operator.direction == "forward"
    return streams(_tensor_bytes(problem), threads, forward, bytes_of(problem.dtype), machine)


def rows_of(problem: Problem, itemsize: int, threads: int, streamed: bool, machine: Machine) -> tuple[int, int]:
    """(rows per group, prefetch distance in rows), for elements of `itemsize` bytes."""
    N, direction = problem.N, problem.operator.direction
    if N >= FETCHED_FROM:
        measured, held = machine.tuning.kind(direction, itemsize).measured, _held(problem, threads, streamed, machine)
        of_sum = measured.get("sum") if {"residual", "dtotal"} & set(problem.operator.tensors) else None
        table = of_sum or measured.get(held) or (held != "memory" and measured.get("last")) or ()
        _, together, ahead = next((row for row in table if N * itemsize <= row[0]), (0, TOGETHER, 0))
        if together != TOGETHER:
            return together, ahead
    together = side_by_side(rows_together(direction, N, itemsize, machine), streamed, direction, N, itemsize, machine)
    return together, rows_ahead(problem, threads, together, machine, streamed)


def rows_together(direction: str, N: int, itemsize: int, machine: Machine) -> int:
    """The group size in rows: they stay in the first level between a forward's three visits, or a backward's two."""
    if direction == "forward" and N < 2 * LANES:
        return LANES
    return _rows_by(machine.tuning.kind(direction, itemsize).together, N, itemsize, machine) or 1


def side_by_side(rows: int, streamed: bool, direction: str, N: int, itemsize: int, machine: Machine) -> int:
    """The number of rows written side by side: all that are not streamed.

    A store of half a line that waits for its other half while other rows are written breaks the write combining.
    """
    most = _rows_by(machine.tuning.kind(direction, itemsize).side_by_side, N, itemsize, machine) if streamed else None
    return rows if most is None else min(rows, most)


def rows_ahead(problem: Problem, threads: int, together: int, machine: Machine, streamed: bool = False) -> int:
    """The prefetch distance in rows while `together` rows are computed; 0: off."""
    itemsize, tensors = bytes_of(problem.dtype), len(problem.operator.tensors) - 1
    kind = machine.tuning.kind(problem.operator.direction, itemsize)
    if kind.fetched_from > problem.N or _held(problem, threads, streamed, machine) not in kind.fetched:
        return 0
    ahead = _rows_by(kind.ahead, problem.N, itemsize, machine, together=together, tensors=tensors, streamed=streamed)
    return ahead or 0


def fetches_result(problem: Problem, threads: int, ahead: int, machine: Machine, streamed: bool) -> bool:
    """Whether lines of the result are fetched to be written, where rows `ahead` are fetched at all.

    A store to a line that no cache of the core has waits for it, and many rows side by side hide which is next.
    """
    kind = machine.tuning.kind(problem.operator.direction, bytes_of(problem.dtype))
    return not streamed and ahead > 0 and _held(problem, threads, streamed, machine) in kind.result_fetched


def takes_whole_rows(rows: int, N: int, itemsize: int, threads: int, machine: Machine) -> bool:
    """Whether a backward takes few long rows whole, so many together, and not by columns: one thread alone may."""
    return threads == 1 and (machine.tuning.whole_rows or fits_second_level(rows, N, itemsize, machine))


def rows_by_columns(N: int, itemsize: int, machine: Machine) -> int:
    """The group size of a backward by columns, in rows."""
    return _rows_by(machine.tuning.by_columns, N, itemsize, machine) or 1


def group_bytes(threads: int, machine: Machine) -> int:
    """Bytes of dy and x, in whole rows, whose sums and then columns are done together.

    They stay in the threads' second-level caches where these are large enough, else in the last. Fewer rows would read and
    write the column sums too often.
    """
    own = threads * machine.second_level // 2
    return min(own, GROUP_BYTES) if own >= GROUP_BYTES // 2 else GROUP_BYTES


def scratch_bytes(machine: Machine) -> int:
    """Bytes of a tensor's rows that a thread packs at a time: a quarter of its second level, for up to four tensors."""
    return min(SCRATCH_BYTES, machine.second_level // 4)


def lanes_are_rows(N: int, itemsize: int, column_step: int, machine: Machine) -> bool:
    """Whether the forward takes rows that lie beside each other as lanes, and does not turn them in a scratch before.

    A cache line of each column, and the two that are fetched, take half of the first level. With more columns, and for float32
    columns that have the same place in that cache, lines are gone before their other rows come.
    """
    fits = machine.first_level // 2 >= 3 * CACHE_LINE * N
    return fits and itemsize in machine.tuning.rows_in_lanes and (itemsize < 4 or column_step % SETS_BYTES != 0)


def mixed_columns(problem: Problem, dtype: str, threads: int) -> int:
    """The number of columns of gamma, beta and a backward's column sums in the order of load_mixed.

    In bfloat16 that halves what widening takes. None where a row ends in a part of a vector; nor in small calls and few long
    rows, since gamma and beta are mixed by jobs of their own; nor in a forward whose groups can't begin on cache lines.
    """
    M, N = problem.M, problem.N
    if problem.operator.direction == "forward" and N % GROUP != 0:
        return 0
    if dtype != "bfloat16" or N % LANES != 0 or MIXED_FROM * threads > M * N or M * MIXED_SHAPE < N:
        return 0
    return N - N % MIXED_COLUMNS


def power_of_two(number: int) -> int:
    """The largest one that is not above a number; 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)
