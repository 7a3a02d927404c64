"""How a call fits the machine: how many rows go together, what is fetched ahead, what goes past the caches.

No bits depend on it.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from lngrad.core.machine import cache_bytes, processor_facts, processor_flags
from lngrad.core.problem import Problem
from lngrad.cpu.jobs import BACKWARD_ROWS, CACHE_LINE, FORWARD_ROWS, GROUP, LANES, MIXED_COLUMNS, STREAM_ALIGNMENT
from lngrad.cpu.makes import AHEAD_BYTES, FETCHED_FROM, OTHER, ROWS_BYTES, SETS_BYTES, Held, Make, make_of
from lngrad.support.dtypes import bytes_of

SHORT_BYTES = 1 << 8  # of a row, below which more of them go together
COUNTED_BYTES = 32 << 20  # of a last-level cache: virtual machines are told of all of the host's
WRITTEN_BYTES = 3 << 10  # of float32 rows that a backward with AVX-512 writes side by side
GROUP_BYTES = 4 << 20  # of dy and x of the rows whose sums and then columns threads share, at the most
MIXED_FROM = 1 << 16  # elements a thread from which on columns in another order pay
MIXED_SHAPE = 16  # columns over rows, above which they do not
SCRATCH_BYTES = 1 << 18  # of packed rows of a tensor at the most
HELD_SHARE = 5 / 4  # of the last level, up to which tensors whose result goes past it count as held
HELD_COLUMNS = 2048  # from which on they do not: 1900×4096 bfloat16 forward so 1.3 times as fast (EPYC 9004)


class Machine(NamedTuple):
    """What the choices depend on.

    Attributes:
        first_level, second_level: Bytes of a core's own caches.
        last_level: Bytes of the largest cache that it reaches.
        make: Of its processor.
        stores_lines: Whether one store writes a whole cache line, as with AVX-512.
    """

    first_level: int
    second_level: int
    last_level: int
    make: Make = OTHER
    stores_lines: bool = False

    @property
    def counted(self) -> int:
        """Bytes of the last level that a call may count on."""
        return min(self.last_level, COUNTED_BYTES)


@cache
def machine() -> Machine:
    """This one."""
    facts = processor_facts()
    return Machine(*cache_bytes(), make_of(facts), "avx512f" in processor_flags(facts))


def streams(nbytes: int, threads: int, forward: bool, itemsize: int, here: Machine) -> bool:
    """Whether the result of a call, whose tensors have so many bytes together, goes past the caches: they would evict it.

    A result whose lines no cache has is read from memory before it is written, but where it is streamed. In a loop of one call
    the lines are there; in a model, which comes back to a result's memory after many others, they are not.

    Intel Xeon, 5th generation: stored, 8192×1024 takes 1.15 times as long in the forward, 16384×1024 1.22 in the backward.
    AMD EPYC 9004 (32 MiB), before rows went together as was timed there: 2000×1024 float32, 24.6 MB, took 1.4 times as long
    streamed; since then stored, 1.35. The forward, 16.4 MB, takes 1.6 times as long streamed by 2 threads.

    AMD EPYC 9004, 18 MB, call and a reader of the result, time streamed over stored with 1 and 2 threads: inputs just written
    and the result's memory cold, backward of 3904×768 bfloat16 0.80 and 0.85, of 1952×768 float32 0.78 and 0.86, forward of
    8784×256 float32 0.83 and 0.86. In a loop of one call, 16 to 20 MB, 1.0 and 1.17 in the mean; the call alone 0.8 and 0.9.
    One thread from 13 MB on: 0.6 to 1.0, in the loop 0.7 to 1.0 without a reader, but for 64 columns, 1.1, and 8192.
    """
    stored = here.make.stored
    if threads == 1:
        share = stored.alone
    else:
        share = stored.forward if forward and itemsize >= 4 else stored.together
    return nbytes >= here.counted * share


def _tensor_bytes(problem: Problem) -> int:
    """Of all tensors of a call together, results included."""
    return len(problem.operator.tensors) * problem.M * problem.N * bytes_of(problem.dtype)


def _is_cached(problem: Problem, threads: int, here: Machine) -> bool:
    """Whether the threads' second levels hold all tensors."""
    return _tensor_bytes(problem) <= threads * here.second_level


def _held(problem: Problem, threads: int, streamed: bool, here: Machine) -> Held:
    """What holds all tensors; see makes.Table."""
    if _is_cached(problem, threads, here):
        return "second"
    nbytes = _tensor_bytes(problem)
    if streamed:
        return "last" if problem.N < HELD_COLUMNS and nbytes < here.counted * HELD_SHARE else "memory"
    if nbytes >= here.counted:
        return "memory"
    return "nearly full" if nbytes > here.counted // 2 else "last"


def result_streams(problem: Problem, stride: int, threads: int, here: Machine) -> bool:
    """streams for a call's full output, every row of which must begin where a streaming store may.

    AMD EPYC 9004: several threads that stream y of a float32 forward wait for memory together. 25 to 29.5 MB stored, by 2
    threads, took 0.70 to 0.93 of the time (256 to 1024 columns; 2048 1.07 to 1.13), and 0.63 to 0.88 with a reader; by 1
    thread 1.1 to 1.7, 0.74 to 1.16. The backward 1.04 to 1.6 by 2 threads, 16 bits 1.1 to 1.86.
    """
    if problem.N < LANES or stride == 0 or stride % STREAM_ALIGNMENT != 0:
        return False
    forward = problem.operator.direction == "forward"
    return streams(_tensor_bytes(problem), threads, forward, bytes_of(problem.dtype), here)


def written_together(rows: int, streamed: bool, forward: bool, row_bytes: int, itemsize: int, here: Machine) -> int:
    """How many of so many rows are written side by side: all that are not streamed.

    AVX2 stores half a line. One that waits for its other half while other rows are written breaks the write combining, and most
    of all where rows have the same place in the first-level cache. AMD EPYC 7003, times as fast as four and more rows in the
    forward: one row of 16384×1024 float32 3.2, two of 16384×512 1.5, four of 32768×256 1.3; in the backward: one row of
    8192×1024 float32 1.2, two of 32768×256 1.3, of 65536×128 1.3. In 16 bits as one row, the rule before: eight of 200000×64
    1.9, two of 4096×3072 1.2.

    Where a store writes a line, rows from memory still compete. AMD EPYC 9005, float32, with 1 and 2 threads, times as fast as
    all that stay in the cache: backward of 65536×256 with two 1.35 and 1.15, of 21845×768 with one 1.33 and 1.06, of 16384×1024
    1.04 to 1.17; from 4096 columns on one is slower, 0.91 to 1.03. The forward loses where rows have the same place: 131072×128
    with eight 1.34 and 1.22, 65536×256 with four 1.34 and 1.11, 16384×1024 with one 1.23 and 1.13. 16 bits wait for arithmetic:
    0.6 to 1.1 with fewer rows.

    Intel Xeon, 5th generation, the same: forwards of every width, 87381×192 with four 1.12 and 1.12, 65536×256 with four 1.13
    and 1.11, 32768×512 with two 1.11 and 1.08, 16384×1024 with one 1.10 and 1.15, 8192×2048 with one 1.17 and 1.18; backwards
    of 4096×768 with one 1.24, 16384×1024 1.06 and 1.15, 8192×2048 1.02 and 1.09, but 5461×3072 0.94 and 0.93. An Intel Xeon
    with AMX likes one row less: against one, two of 32768×512 1.11 and 1.05, of 16384×1024 1.07 and 1.01, four of 8192×2048
    1.11 and 1.03, but two of 4096×768 0.97 and 0.95.
    """
    if not streamed:
        return rows
    if not here.stores_lines:
        if row_bytes % SETS_BYTES == 0:
            return 1
        return min(rows, max(2, SETS_BYTES // (1 if forward else 2) // row_bytes))
    if forward:
        same_place = row_bytes % SETS_BYTES == 0 or SETS_BYTES % row_bytes == 0
        few = here.make.forward_few == "all" or (here.make.forward_few == "same place" and same_place)
        fewest, written_bytes = 1, SETS_BYTES
    else:
        few = row_bytes <= here.make.backward_few_up_to
        fewest, written_bytes = here.make.backward_few, WRITTEN_BYTES
    if itemsize < 4 or not few:
        return rows
    return min(rows, max(fewest, power_of_two(written_bytes // row_bytes)))


def rows_of(problem: Problem, itemsize: int, threads: int, streamed: bool, here: Machine) -> tuple[int, int]:
    """How many rows of so many bytes an element go side by side, and how many rows on those lie that are fetched meanwhile.

    What was measured on this make, else by the rules below.
    """
    row_bytes, direction = problem.N * itemsize, problem.operator.direction
    for rows in here.make.rows_of(direction, itemsize >= 4, _held(problem, threads, streamed, here)):
        if problem.N >= FETCHED_FROM and row_bytes <= rows.row_bytes:
            return rows.together, rows.ahead
    together = (forward_rows_together if direction == "forward" else backward_rows_together)(problem.N, itemsize, here)
    together = written_together(together, streamed, direction == "forward", row_bytes, itemsize, here)
    return together, rows_ahead(problem, threads, together, here, streamed)


def power_of_two(number: int) -> int:
    """The largest one that is not above a number; 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)


def rows_ahead(problem: Problem, threads: int, together: int, here: Machine, streamed: bool = False) -> int:
    """How many rows on those lie that are fetched while `together` rows are computed.

    0 if a thread's share of all tensors fits into its second-level cache: then requests would go there for nothing (512×384
    float32 backward 0.85 of the time without, Intel Xeon). 0 for the shortest rows too: the processor by itself fetches more of
    them than groups cover (backward of 50000×37 float32 with 1 thread 0.85 → 0.71 ms, AMD EPYC 9005). 0 for a backward there
    whose tensors take a third of the last level: 512×384 1.09 and 1.13 times as fast with 1 and 2 threads, 2000×768 bfloat16
    1.04 and 1.06; with a half 0.97 and 1.04, and the forward loses up to a tenth. On a 7003 as well: 1024×256 1.19, 1024×1024
    1.15.

    1, the next row alone, for the float32 backward on Intel, unless rows are short: 65536×256 1.15 to 1.22 times as fast as
    with eight, 1024×1024 1.03 to 1.11, 4096×768 1.04, 16384×1024 alike; 16 bits and the forward lose up to a fifth. On an Intel
    Xeon with AMX short float32 rows of a backward are fetched no further on than they go together: 262144×64 1.17 and 1.07
    times as fast as 8 KiB ahead, 131072×128 1.15 and 1.11, 150000×96 1.06 and 1.02, RMSNorm alike. The next row alone for a
    forward on Intel whose rows together take a sixteenth of the second level: with those ahead and the results they would fill
    it. 64×65536 bfloat16 and float16 1.11 to 1.23, 128×32768 1.03 and 1.09. Its shortest rows are fetched too: 32 to 63 float32
    columns 1.08 to 1.17, 16 bits 0.98 to 1.03; and what fits into the second level: 1024×256 float32 1.24 and 1.15 with eight
    rows together, 500×512 1.22 and 1.09, from 16×64 to 400×256 0.97 to 1.20, 16 bits 0.97 to 1.04.

    A forward on an AMD EPYC 9005 has its shortest rows fetched too: 50000×37 float32 1.02 to 1.07 times as fast, 16 bits 1.00.
    None where four 16-bit rows and the next four would fill the second level: 64×65536 1.24 and 1.31 times as fast with 1
    thread, 1.18 and 1.22 with 2, 128×65536 0.97 to 1.11.

    No more for a backward on Intel than stay: where four of four 16-bit rows pushed each other out, 256×65536 1.23 with the
    next alone; where not even that stays beside two float32 rows, 1.07 to 1.2 with none (a Xeon with AMX, 2 MiB). Nothing of
    long float32 rows on an AMD EPYC 9005: backward_rows_together.
    """
    make, itemsize, tensors = here.make, bytes_of(problem.dtype), len(problem.operator.tensors)
    row_bytes = problem.N * itemsize
    cached = _is_cached(problem, threads, here)
    if problem.operator.direction == "forward":
        if make.forward_fetched_from > problem.N or (cached and not make.fetches_cached):
            return 0
        if together * row_bytes > here.second_level * make.ahead_share:
            return 1
        rows = max(together, AHEAD_BYTES // row_bytes)
        stays = itemsize > 2 or (together + rows) * row_bytes < here.second_level
        return rows if stays or not make.forward_stays else 0
    if problem.N < FETCHED_FROM or cached or _tensor_bytes(problem) <= here.counted * make.unfetched_share:
        return 0
    if itemsize >= 4 and row_bytes > make.unfetched_from:
        return 0
    if itemsize >= 4 and row_bytes >= make.next_row_from:
        wanted = 1
    elif streamed and not here.stores_lines:
        wanted = together
    else:
        wanted = max(together, (AHEAD_BYTES if itemsize < 4 else make.backward_ahead_bytes) // row_bytes)
    if not make.backward_stays:
        return wanted
    return next((rows for rows in (wanted, 1) if stay(together + rows, problem.N, itemsize, here, tensors - 1)), 0)


def fetches_result(problem: Problem, threads: int, ahead: int, here: Machine, streamed: bool) -> bool:
    """Whether lines of the result are fetched to be written, some rows before they are, where rows `ahead` are fetched at all.

    A store to a line that is in no cache of the core waits for it, and many rows side by side hide from the processor which is
    next. In the first calls after something else had the caches: 4096×256 float32 forward 1.65 times as fast, backward 1.30,
    4096×768 bfloat16 1.26 and 1.15; in a loop of equal calls 0.95 to 1.08, but 0.95 to 0.97 where the second level holds all
    (1 thread, Intel Xeon with AMX). AMD EPYC 9005, the same: 4096×768 in 16 bits, forward 1.33 and 1.21, backward 1.27; float32
    gains from half of the last level on, 1.09 to 1.18, but with less loses 0.92 to 0.97, so none is fetched there.
    """
    elements = here.make.fetches_result
    if elements == "none" or (elements == "16 bits" and bytes_of(problem.dtype) > 2):
        return False
    fits = _is_cached(problem, threads, here) or _tensor_bytes(problem) <= here.counted * here.make.unfetched_share
    return not streamed and ahead > 0 and not fits


def scratch_bytes(here: Machine) -> int:
    """Bytes of a tensor's rows that a thread packs at a time: a quarter of its second level, for up to four tensors.

    8×384×14×14 float32 over channels, 256 → 128 KiB: backward 0.78 to 0.89 of the least time; larger images, whose blocks
    have hundreds of rows either way, alike (AMD EPYC 7003, 512 KiB).
    """
    return min(SCRATCH_BYTES, here.second_level // 4)


def forward_rows_together(N: int, itemsize: int, here: Machine) -> int:
    """How many rows the forward takes together: they stay in the first-level cache between its three visits.

    Fours where there are so many, since y is written four rows at a time. With AVX-512 their sums go side by side too, where
    one row alone waits for its own additions: at least four in 16 bits, and no three. 2048×5120 bfloat16 1.27 and 1.25 times as
    fast as one with 1 and 2 threads, 512×3072 1.24 and 1.33 as two, 64×65536 1.23 and 1.22 as one; 4915×1280 float32 1.22 and
    1.02 as three (AMD EPYC 9005). In float32 longer rows wait for memory: 1228×5120 0.92 and 0.95.

    Thirty-two of the shortest, since the divisions and roots of so many go side by side: 50000×37 1.07 to 1.14 times as fast as
    sixteen in three dtypes, 100000×64 in 16 bits 1.05 to 1.14, but 0.95 to 1.07 in float32 (AMD EPYC 9005).

    Half as many on an Intel Xeon, but for 16 bits: 256 to 1024 float32 columns of 1 to 16 MB 1.02 to 1.15 times as fast and,
    with the next rows fetched, up to 1.29; 1024 columns of less 0.94 to 0.97.
    """
    rows_bytes = here.make.forward_bytes if itemsize >= 4 else ROWS_BYTES
    if N < 2 * LANES:
        return LANES
    if N * itemsize < SHORT_BYTES:
        return FORWARD_ROWS
    rows = min(2 * LANES, rows_bytes // (N * itemsize))
    if here.stores_lines and (rows == 3 or itemsize == 2):
        rows = max(rows, 4)
    return rows - rows % 4 if rows >= 4 else max(1, rows)


def lanes_are_rows(N: int, itemsize: int, column_step: int, here: Machine) -> bool:
    """Whether the forward takes rows that lie beside each other as lanes, and does not turn them in a scratch before.

    On an AMD EPYC 9005, if a cache line of each column, and the two that are fetched, take half of the first level. Time of a
    forward over channels in that of turned rows, with 1 and 2 threads: 8×96×56×56 0.64 and 0.83, bfloat16 0.75 and 0.86;
    32×64×56×56 0.72 and 0.74, bfloat16 0.58 and 0.69. With more columns lines are gone before their other rows come:
    8×384×14×14 1.2 to 1.35. So are those of float32 columns a multiple of 4 KiB apart, in the same sets: 32×64×64×64 1.19 and
    1.27, but bfloat16 0.77 and 0.81. With AVX2 alone 1.0 to 1.4, on the same machine. On an AMD EPYC 9004 48 to 80 bfloat16 or
    float16 columns took 0.71 to 0.98, float32 ones 0.91 to 1.5.
    """
    wanted, fits = here.make.rows_in_lanes, here.first_level // 2 >= 3 * CACHE_LINE * N
    if itemsize == 4:
        return wanted == "all" and fits and column_step % SETS_BYTES != 0
    return wanted != "none" and fits and itemsize == 2


def stay(rows: int, N: int, itemsize: int, here: Machine, tensors: int = 2) -> bool:
    """Whether so many rows of so many tensors stay in a second-level cache, beside gamma and both column sums."""
    return (tensors * rows * itemsize + 3 * max(4, itemsize)) * N <= here.second_level


def backward_rows_together(N: int, itemsize: int, here: Machine) -> int:
    """How many rows the backward takes together: so many have dy and x in half of the first-level cache.

    Where that is one, more still pay, since they save reading and writing the column sums: beside a loop in C 2048×5120 float32
    took 1.01 to 1.06 times as long with four rows, 1.17 to 1.25 with one (1 thread, an Intel Xeon with 2 MiB a core). That loop
    was best with two on an AMD EPYC 9004 (1 MiB). A power of two: 1024 float32 columns took 1.11 times as long as the
    loop with two rows, 1.15 with three, 1.27 with four (AMD EPYC 9005). Four on an AMD EPYC 7003 where rows have places of
    their own in the first level: 1.04 to 1.15 times as fast as two in three dtypes and ten widths; else two, 1.2 to 1.35.
    Two where four do not stay in the second level but two do: 256×65536 float32 1.14 to 1.24 (Intel Xeon with AMX, 2 MiB).

    Sixteen of the shortest, whose sums are divided side by side: 16 to 48 columns 1.05 to 1.12 times as fast as eight in three
    dtypes, 100000×64 in 16 bits 1.07 to 1.12, 128 columns 1.03, 64 float32 columns 0.96 to 1.03 (AMD EPYC 9005).

    Float32 rows of more than 8 KiB on an AMD EPYC 9005, nothing fetched: four 1.10 to 1.33 times as fast with 1 thread as two
    with fetching (1.0 to 1.1 with 2 threads, which the memory holds up); but where rows are a multiple of 16 KiB apart, 4096,
    8192, 12288, 16384 columns and so on, two 1.09 to 1.26, four 0.94 to 1.03. Two too where four take half of the second level
    with gamma and both sums: 12288 columns and more.
    """
    row_bytes = N * itemsize
    if row_bytes < SHORT_BYTES:
        return BACKWARD_ROWS
    if itemsize >= 4 and row_bytes > here.make.unfetched_from:
        half = here._replace(second_level=here.second_level // 2)
        return 4 if stay(4, N, itemsize, half) and not _crowd(row_bytes, here) else 2
    rows = here.first_level // 2 // (2 * row_bytes)
    if rows < 2:
        rows = 4 if here.second_level > 1 << 20 else 2
        if here.make.backward_stays and not stay(rows, N, itemsize, here) and stay(2, N, itemsize, here):
            rows = 2
    if here.make.rows_apart:
        rows = 2 if row_bytes % SETS_BYTES == 0 else max(rows, here.make.rows_apart)
    return min(LANES, power_of_two(rows))


def _crowd(row_bytes: int, here: Machine) -> bool:
    """Whether rows of so many bytes, one behind the other, crowd each other."""
    return here.make.crowded_bytes > 0 and row_bytes % here.make.crowded_bytes == 0


def takes_whole_rows(rows: int, N: int, itemsize: int, threads: int, here: Machine) -> bool:
    """Whether a backward takes few long rows whole, so many together, and not by columns.

    One thread alone does where they stay in its cache: 64×16384 1.2 to 1.5 times as fast (Intel Xeon with AMX). On an AMD EPYC
    9005 always: 32 and 64 rows of 65536 and 131072 1.22 to 1.59 in float32, 1.1 to 1.76 in 16 bits.
    """
    return threads == 1 and (here.make.whole_rows or stay(rows, N, itemsize, here))


def rows_by_columns(row_bytes: int, here: Machine) -> int:
    """How many rows a backward takes together that takes them by columns.

    Two where rows crowd each other, on an AMD EPYC 9005: 64×65536 and 32×65536 float16 1.17 and 1.20 times as fast as eight,
    128×16384 bfloat16 1.30, float32 0.98 to 1.18; of other widths 0.83 to 0.96 (2 threads).
    """
    return 2 if _crowd(row_bytes, here) else LANES


def mixed_columns(problem: Problem, dtype: str, threads: int) -> int:
    """How many columns of gamma, beta and a backward's column sums are in the order of load_mixed.

    In bfloat16 it halves what widening takes: in the cache the backward 1.13 to 1.17 times as fast, the forward 1.10 to 1.15
    (512×384, 1024×1024, AMD EPYC 9005), compiled for AVX2 1.07 to 1.20. It spares instructions on every make, and was timed on
    that one. None where a row ends in a part of a vector. Gamma and beta are mixed by jobs of their own, so small calls and few
    long rows do not gain: 64×64 backward 0.92, 256×64 forward 0.91; with 2 threads 64×65536 forward 0.84, 256×8192 0.92. Nor
    does a forward whose rows do not begin on cache lines, as its groups can't begin there either: 1024×200 0.93, 2000×600 0.92.
    """
    M, N = problem.M, problem.N
    if problem.operator.direction == "forward" and N % GROUP != 0:
        return 0
    if dtype != "bfloat16" or N % LANES != 0 or MIXED_FROM * threads > M * N or M * MIXED_SHAPE < N:
        return 0
    return N - N % MIXED_COLUMNS


def group_bytes(threads: int, here: Machine) -> int:
    """How many bytes of dy and x, whole rows of them, have their sums and then their columns done together.

    They stay in the threads' second-level caches where these are large enough, else in the last: 64×16384 1.02 to 1.14 times as
    fast with 2 MiB as with 4, 64×65536 0.97 to 1.13 (2 threads, Intel Xeon with AMX, 2 MiB each). Fewer rows would read and
    write the column sums too often: 512 KiB 0.4 to 0.85 of the speed of 2 MiB in eight of nine cases.
    """
    own = threads * here.second_level // 2
    return min(own, GROUP_BYTES) if own >= GROUP_BYTES // 2 else GROUP_BYTES
