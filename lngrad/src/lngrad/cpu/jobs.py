"""Jobs: what the host and the compiled code agree on, and how the host packs it into memory.

A job is an array of int64: the head, then records of arguments. Both sides read and write a record by the names below, so a
field is added here and used where it is needed, and nowhere else. Nothing here imports Numba.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, TypeAlias

import numpy as np

from lngrad.cpu.processors import ARCHITECTURE
from lngrad.typing import Address, Words

LANES = 8  # elements of a vector
GROUP = 4 * LANES  # that a row sum takes in one step, each of the four vectors into a sum of its own
MIXED_COLUMNS = 2 * GROUP  # of bfloat16 rows whose order is changed are a multiple of so many
STREAM_ALIGNMENT = 64  # bytes that an address must be a multiple of, for a store past the caches
# Columns whose share of a row sum is kept in vectors. Segments are added by the binary tree of their number.
SEGMENT = 512
SCRATCH_TENSORS = 5  # whose rows a thread may have packed; a backward with a gate has three more, of products
LANES_BYTES, LANES_COLUMN_BYTES = 5120, 384  # of a thread's scratch where lanes are rows: 40 vectors, 3 for each column
BLOCK_SEGMENTS = 8  # that one thread takes of a long row, where threads share rows
FORWARD_ROWS = 4 * LANES  # that the forward takes together
BACKWARD_ROWS = 2 * LANES  # that the backward takes together
# |mean|·rstd from which on xhat takes what the mean lost by its rounding; below, that is 2.4e-7 of xhat at most.
COMPENSATED_FROM = 8.0

# The head of a job. NEXT is how many words on the next job of a chain begins, 0 at its end. So many THREADS go through the
# TASKS, BATCH of them between two looks at Ctrl-C; whether it WAKES workers that sleep, and the bits of those TO_WAKE that
# compiled code could not. The tasks are cut into RANGES ranges, at most MAX_RANGES, and each range has a ticket in a cache line
# of its own, since several threads write it.
CACHE_LINE = 128 if ARCHITECTURE == "aarch64" else 64  # the longest: Apple's processors have 128 bytes
FUNCTION, TASKS, NEXT, RANGES, THREADS, BATCH, WAKES, TO_WAKE, TICKETS = *range(8), CACHE_LINE // 8
TICKET_WORDS, MAX_RANGES = CACHE_LINE // 8, 8
ARGUMENTS = TICKETS + MAX_RANGES * TICKET_WORDS

SERIAL_ELEMENTS = 1 << 15  # below, one core is done before a second has joined (10 µs)
WAKING_ELEMENTS = 1 << 17  # below, a sleeping worker would come too late (about 50 µs), one that still waits would not
BATCH_ELEMENTS = 1 << 26  # between two looks at Ctrl-C: some 30 ms

# What a worker's slot holds beside the address of a job; no job has these addresses.
IDLE, ASLEEP = 0, 1
WORKER = 1  # the word of a slot that holds the address of its worker's record; 0 if compiled code can't wake that
PAUSES = 2  # the word that says for how many pauses one waits actively
SLOT_BYTES = CACHE_LINE
MASK_BYTES = 128  # of a set of processors, a bit each


class Entry(NamedTuple):
    """A compiled function that Python calls: its parameters, whether it returns something, an int64 each, and its file of
    kernels/."""

    parameters: str
    returns: bool = False
    module: str = "pool"


ENTRIES = {
    "run_chain": Entry("job slots workers", returns=True),
    "begin": Entry("job threads"),
    "work": Entry("job thread most", returns=True),
    "cancel": Entry("job"),
    "join": Entry("job slots workers", returns=True),
    "run_worker": Entry("slot thread"),
    "wait_pauses": Entry("pauses"),
    "worker_main": Entry("worker"),
    "share": Entry("first stop job"),
    "xla_call": Entry("frame", returns=True, module="xla"),
    "xla_keep": Entry("frame call table", module="xla"),
}

DX, DGAMMA, DBETA = 1, 2, 4  # bits of Backward.wants


class Kind(NamedTuple):
    """Parts of an operator that its row tasks are compiled for.

    Attributes:
        mean: Whether rows are centred.
        beta: Whether there is a beta in the forward, and a dbeta in the backward.
        gate: Whether there is a gate.
    """

    mean: bool
    beta: bool
    gate: bool


LAYER = Kind(mean=True, beta=True, gate=False)
RMS = Kind(mean=False, beta=False, gate=False)
GATED = Kind(mean=False, beta=False, gate=True)
KINDS = {LAYER: "", RMS: "rms_", GATED: "gated_"}  # the prefix of its tasks' names


Record: TypeAlias = "NamedTuple"  # all of its fields int64


def bits_of(number: float) -> int:
    """The int64 with the bits of a float64, as a record holds it."""
    return int(np.float64(number).view(np.int64))


def _record(name, fields):
    names = fields.split()
    return namedtuple(name, names, defaults=(0,) * len(names))


# Addresses first, then bytes from row to row, tables of how rows lie (0: there is none), and how the work is cut: slot_bytes of
# a tensor in the scratch, thread_bytes of a thread. What layer normalization writes stands together, in the order of its
# arguments: apart it took 0.5 µs more a call. sample_rows,
# sample_tasks: so many rows, and tasks, have a gamma and a beta of their own.
# ahead: so many rows on lie those that are fetched while these are computed, 0 if all are in the cache already.
# fetches_result: whether lines of the result are fetched too, to be written, while the rows before them are computed.
# norm_before_gate: as in Normalization.
# mixed: so many columns of gamma, beta and the slots are in the order of simd.load_mixed, whole MIXED_COLUMNS of them.
# completes: whether what the means lost by their rounding is found from x; lost: what xhat lost so, if somebody has found it.
Backward = _record(
    "Backward",
    "dy x mean rstd gamma dx dtotal slots scratch row_sums "
    "M N dy_stride x_stride dtotal_stride dx_stride dy_table x_table dtotal_table dx_table "
    "wants streaming ahead fetches_result rows_at_once chunks_per_task slots_per_task block_rows first_row "
    "stop_row completes lost mixed sample_rows sample_tasks gate gate_table dgate dgate_table norm_before_gate "
    "slot_bytes thread_bytes gate_stride dgate_stride",
)

Forward = _record(
    "Forward",
    "x gamma beta y mean rstd eps residual total alpha "  # eps, alpha: the bits of a float64
    "scratch M N x_stride residual_stride y_stride total_stride x_table residual_table y_table total_table "
    "streaming ahead fetches_result rows_per_task rows_at_once block_rows mixed sample_rows gate gate_table norm_before_gate "
    "slot_bytes thread_bytes gate_stride",
)

# dgamma or dbeta is 0 where another job rounds it, or nobody wants it.
Combine = _record("Combine", "dgamma dbeta slots slot_stride parts N columns_per_task mixed sample_tasks")

# Task k converts the elements at source to target; as many as elements says. The tasks' records follow each other.
# offset: the bits of a float64, which is added where the task says so; then task k takes row k of a source whose rows lie so
# many bytes apart, mixed: as in Backward.
Convert = _record("Convert", "source target elements offset mixed stride")

# row_numbers: slice_moments' (3, M), the row means of slice_dx (2, M), else lanes (M, sums, LANES). lost: (M,).
Slice = _record(
    "Slice",
    "dy x result mean rstd gamma beta row_numbers dtotal lost "
    "M N dy_stride x_stride result_stride dtotal_stride streaming rows_per_task rows_at_once",
)

# Of the memory's own speed: result = a + b, arrays of so many float32, TRIAD_BLOCK of them a task.
TRIAD_BLOCK = 1 << 16
Triad = _record("Triad", "a b result elements")

# The table of XLA's calls. host: the function that answers what is not in it, of a frame and a word for what it returns.
# begun, ended: how many calls were. threads: the address of the number that was chosen. heads: of so many (size, a power of 2)
# lists of prepared calls. allocate, free, advise: C functions of memory. slots: of the workers. interrupted: what an error is
# created from where the host's function did not come to its end.
XlaTable = _record("XlaTable", "host begun ended threads heads size allocate free advise slots interrupted")

# A prepared call of XLA's: the next of its list, memory that is kept for it (0: none, or in use), its hash, and its facts as
# kernels/xla.py compares them. Memory of so many bytes begins with the image's words; pairs of a word and an offset
# in the memory are regions, pairs of the number of a buffer and the word that its address goes to places, pairs of the number
# of a buffer and bytes those that get huge pages. streams: the word that says whether the result whose address lies in the
# word `streamed` goes past the caches. helpers: workers that it needs. keeps: whether memory is kept.
Prepared = _record(
    "Prepared",
    "next kept hash facts image image_words nbytes regions regions_count places places_count huge huge_count "
    "streams streamed helpers keeps",
)

# A worker: its slot and number, the number by which the system knows its thread, the C functions by which it sleeps and is
# woken and what they are called with, the C functions that ask for and choose processors (0 where there are none), and memory
# for two sets of them and a word that says whether somebody uses these.
Worker = _record("Worker", "slot thread native_id wait post semaphore getcpu getaffinity setaffinity masks")


@dataclass(frozen=True)
class ChainedJob:
    """One job of a chain.

    Attributes:
        start: The word of the chain that it begins at.
        tasks: How many.
        elements: That all tasks go through together.
        threads: That work on them.
        fields: Of one of its records.
    """

    start: int
    tasks: int
    elements: int
    threads: int
    fields: tuple[str, ...]

    def word(self, field: str, record: int = 0) -> int:
        """The word of the chain that a field lies at."""
        return self.start + ARGUMENTS + record * len(self.fields) + self.fields.index(field)


class Chain:
    """Jobs that run one after the other, behind each other in one array, each with up to `threads` threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.jobs: list[ChainedJob] = []
        self._words: list[Words] = []

    def add(self, function: Address, tasks: int, elements: int, *records: Record) -> ChainedJob:
        """Append a job."""
        words = new_job(function, tasks, elements, self._threads, *records)
        job = ChainedJob(sum(map(len, self._words)), tasks, elements, int(words[THREADS]), records[0]._fields)
        self._words.append(words)
        self.jobs.append(job)
        return job

    def words(self, *, linked: bool = True) -> Words:
        """The jobs as the compiled code reads them; not linked, each is a chain by itself."""
        for words in self._words[:-1]:
            words[NEXT] = len(words) * linked
        return np.concatenate(self._words)


def write_head(job: Words, function: Address, tasks: int, elements: int, threads: int) -> None:
    """Write what a job's head says of its work; the arguments are those of new_job."""
    job[FUNCTION], job[TASKS] = function, tasks
    job[THREADS] = 1 if elements < SERIAL_ELEMENTS else min(threads, tasks)
    job[BATCH] = max(1, tasks * BATCH_ELEMENTS // (elements + 1))
    job[WAKES] = elements >= WAKING_ELEMENTS


def new_job(function: Address, tasks: int, elements: int, threads: int, *records: Record) -> Words:
    """A job by itself.

    Args:
        function: The address of the task function.
        tasks: How many.
        elements: That all tasks go through together: how much help is worth asking for.
        threads: At most this many work on it.
        records: The arguments; one for all tasks, or one a task.
    """
    arguments: list[int] = [value for record in records for value in record]
    job = np.zeros(ARGUMENTS + len(arguments), np.int64)
    write_head(job, function, tasks, elements, threads)
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
