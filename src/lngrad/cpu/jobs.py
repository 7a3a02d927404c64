"""What the host and the compiled code agree on: the words of a job, and the sizes that decide the order of a sum.

A job is an array of int64: the head, then one record of arguments. Both sides read and write a record by the names below,
so a field is added here and used where it is needed, and nowhere else. Nothing here imports Numba.
"""

from __future__ import annotations

from collections import namedtuple

LANES = 8  # elements of a vector
GROUP = 4 * LANES  # that a row sum takes in one step, each of the four vectors into a sum of its own
STREAM_ALIGNMENT = 32  # bytes that an address must be a multiple of, for a store past the caches
SEGMENT = 4096  # columns whose share of a row sum is kept in vectors; 16 KB of float32, half of a common L1
SHORT = 256  # up to this many columns four rows go together, so that their sums hide each other's latency
MOST_ROWS = 2 * LANES  # that the forward takes together: more crowd the first-level cache

# The head of a job. NEXT is how many words on the next job of a chain begins, 0 at its end. The tasks are cut into RANGES
# ranges, at most MOST_RANGES, and each range has a ticket in a cache line of its own, since several threads write it.
FUNCTION, TASKS, NEXT, RANGES, TICKETS = 0, 1, 2, 3, 8
TICKET_WORDS, MOST_RANGES = 8, 8
ARGUMENTS = TICKETS + MOST_RANGES * TICKET_WORDS

# What a worker's slot holds beside the address of a job; no job has these addresses.
IDLE, ASLEEP = 0, 1
WORKER = 1  # the word of a slot that holds the address of its worker's record; 0 if compiled code can't wake that
SLOT_BYTES = 64
MASK_BYTES = 128  # of a set of processors, a bit each

# The functions by which threads work on jobs: their parameters, each an int64, and whether they return one.
POOL = {
    "run_alone": ("job", False),
    "begin": ("job threads", False),
    "work": ("job thread most", True),
    "close": ("job", False),
    "lead": ("job threads slots wanted most", True),
    "settle": ("job slots workers", True),
    "serve": ("slot thread", False),
    "live": ("worker", False),
    "share": ("first stop job", False),
}

DX, DGAMMA, DBETA = 1, 2, 4  # bits of Backward.wants


def _record(name, fields):
    names = fields.split()
    return namedtuple(name, names, defaults=(0,) * len(names))


# Addresses first, then bytes from row to row, tables of how rows lie (0: there is none), the functions that copy rows by them,
# and how the work is cut. ahead: so many rows on lie those that are fetched while these are computed, 0 if all are in the cache
# already.
Backward = _record(
    "Backward",
    "dy x mean rstd gamma dx slots scratch row_sums "
    "M N dy_stride x_stride dx_stride dy_table x_table dx_table "
    "gather scatter wants streaming ahead chunks_per_task slots_per_task block_rows first_row stop_row",
)

Forward = _record(
    "Forward",
    "x gamma beta y mean rstd eps "  # eps: the bits of a float64
    "scratch M N x_stride y_stride x_table y_table gather scatter streaming ahead rows_per_task rows_at_once block_rows",
)

# dgamma or dbeta is 0 where another job rounds it, or nobody wants it.
Combine = _record("Combine", "dgamma dbeta slots slot_stride parts N columns_per_task")

# Task k converts the elements at source to target; as many as elements says. The tasks' records follow each other.
Convert = _record("Convert", "source target elements")

# row_numbers: two or three per row, (2 or 3, M).
Slice = _record(
    "Slice",
    "dy x result mean rstd gamma beta row_numbers M N dy_stride x_stride result_stride streaming rows_per_task",
)

# Of the memory's own speed: result = a + b, arrays of so many float32, TRIAD_BLOCK of them a task.
TRIAD_BLOCK = 1 << 16
Triad = _record("Triad", "a b result elements")

# A worker: its slot and number, the number by which the system knows its thread, the C functions by which it sleeps and is
# woken and what they are called with, the C functions that tell and choose processors (0 where there are none), and room for
# two sets of them and a word that says whether somebody uses these.
Worker = _record("Worker", "slot thread native_id wait post alarm getcpu getaffinity setaffinity masks")
