"""Makes of processor: what was measured on each of them, as data. policy.py decides with it; no bits depend on it."""

from __future__ import annotations

from math import inf
from typing import Literal, NamedTuple, TypeAlias

from lngrad.core.machine import processor_flags
from lngrad.cpu.jobs import GROUP

KIB = 1 << 10
ROWS_BYTES = 1 << 14  # of rows that a forward takes together: half of a common first-level cache
FETCHED_FROM = 2 * GROUP  # columns from which on rows are fetched ahead
AHEAD_BYTES = 1 << 13  # that rows are fetched ahead at the least: less, and they come too late
SETS_BYTES = 1 << 12  # that far apart, lines have the same place in a first-level cache

Held: TypeAlias = Literal["second", "last", "nearly full", "memory"]


class Rows(NamedTuple):
    """How rows of at most `row_bytes` are taken; shorter ones belong to the entries before.

    Attributes:
        row_bytes: Of the longest of them.
        together: How many go side by side.
        ahead: How many rows ahead are fetched meanwhile; 0: nothing is.
    """

    row_bytes: float
    together: int
    ahead: int


class Table(NamedTuple):
    """What was measured for one kind of call.

    Attributes:
        direction: forward or backward.
        words: Whether an element has 4 bytes or more, not 2.
        held: What holds the tensors together: the threads' second levels, the last level, the last level nearly full (more than
            half of it, and the result is stored), or memory. Where there is no table for the second levels or a nearly full
            last one, that for the last level holds.
        rows: By their length; the last entry takes all that are longer.
    """

    direction: str
    words: bool
    held: Held
    rows: tuple[Rows, ...]


class Stored(NamedTuple):
    """Shares of the last level: a call whose tensors take as much streams its result.

    Attributes:
        alone: If one thread computes it, which waits for every line that it stores to.
        together: If several do, which wait for the memory together.
        forward: If several do, and it is a forward of elements of 4 bytes and more.
    """

    alone: float = 3 / 4
    together: float = 3 / 4
    forward: float = 3 / 4


class Make(NamedTuple):
    """A make of processor, and what was measured there.

    The figures of `measured` are in benchmarks/results/experiments.csv, all others with the functions of policy.py.

    Attributes:
        measured: How rows of FETCHED_FROM columns and more are taken, by what was timed there. Where it says nothing, the rules
            of policy.py do, which the other attributes steer.
        forward_bytes: Of rows of 4-byte elements and more that a forward takes together.
        forward_fetched_from: Columns from which on a forward fetches rows ahead.
        fetches_cached: Whether it does so if the second level holds all tensors.
        ahead_share: Of the second level; where rows together take more, the next alone is fetched.
        stored: Up to where results are stored.
        forward_few: Which rows of 4-byte elements and more a forward streams few side by side.
        unfetched_share: Of the last level; where the tensors take no more, a backward fetches nothing, nor any call results.
        backward_ahead_bytes: Of rows of 4-byte elements or more that a backward fetches ahead at the least.
        next_row_from: Bytes of such a row from which on a backward fetches the next alone.
        backward_few_up_to: Bytes of the longest such row of which a backward streams few side by side.
        backward_few: So many of them at the least.
        unfetched_from: Bytes of such a row above which a backward fetches nothing, and takes four rows together, or two.
        fetches_result: Of which elements lines of a result that is stored are fetched before they are written.
        forward_stays: Whether 16-bit rows that a forward takes together and fetches must stay in the second level.
        backward_stays: Whether rows that a backward takes together and fetches must stay in the second level.
        rows_apart: Rows that a backward takes together at the least, and two where they have the same place in the first level;
            0 for as many as fit.
        crowded_bytes: Rows a multiple of so many bytes apart crowd each other, so a backward takes two together; 0: none do.
        whole_rows: Whether one thread alone takes rows whole that do not stay in its second level.
        rows_in_lanes: Of which elements a forward over channels may have a row in each lane.
    """

    measured: tuple[Table, ...] = ()
    forward_bytes: int = ROWS_BYTES
    forward_fetched_from: int = FETCHED_FROM
    fetches_cached: bool = False
    ahead_share: float = inf
    stored: Stored = Stored()
    forward_few: Literal["none", "same place", "all"] = "none"
    unfetched_share: float = 0
    backward_ahead_bytes: int = AHEAD_BYTES
    next_row_from: float = inf
    backward_few_up_to: int = 0
    backward_few: int = 1
    unfetched_from: float = inf
    fetches_result: Literal["none", "16 bits", "all"] = "none"
    forward_stays: bool = False
    backward_stays: bool = False
    rows_apart: int = 0
    crowded_bytes: int = 0
    whole_rows: bool = False
    rows_in_lanes: Literal["none", "16 bits", "all"] = "none"

    def rows_of(self, direction: str, words: bool, held: Held) -> tuple[Rows, ...]:
        """The table of one kind of call; empty where nothing was measured."""
        tables = {(table.direction, table.words, table.held): table.rows for table in self.measured}
        rows = tables.get((direction, words, held), ())
        return rows if rows or held == "memory" else tables.get((direction, words, "last"), ())


INTEL = Make(
    forward_bytes=ROWS_BYTES // 2,
    forward_fetched_from=GROUP,
    fetches_cached=True,
    ahead_share=1 / 16,
    forward_few="all",
    next_row_from=1 << 10,
    backward_few_up_to=2 * SETS_BYTES,
    backward_stays=True,
)
# Measured on one that calls itself model 167, Rocket Lake's number, but has AMX, 2 MiB of second level and 480 MiB of the last.
INTEL_AMX = INTEL._replace(backward_ahead_bytes=0, backward_few_up_to=SETS_BYTES, backward_few=2, fetches_result="all")
ZEN_3 = Make(unfetched_share=1 / 3, rows_apart=4)
ZEN_4 = Make(  # AVX-512 on data paths of 256 bits
    measured=(
        Table("forward", words=True, held="second", rows=(
            Rows(384, 32, 32), Rows(512, 16, 16), Rows(2 * KIB, 8, 8), Rows(4 * KIB - 1, 4, 4), Rows(4 * KIB, 8, 0),
            Rows(8 * KIB - 1, 4, 0), Rows(8 * KIB, 1, 0), Rows(inf, 4, 0),
        )),
        Table("forward", words=False, held="second", rows=(Rows(inf, 32, 0),)),
        Table("backward", words=False, held="second", rows=(Rows(4 * KIB - 1, 16, 0), Rows(inf, 4, 0))),
        Table("forward", words=True, held="last", rows=(
            Rows(512, 16, 0), Rows(2 * KIB, 8, 8), Rows(4 * KIB - 1, 4, 4), Rows(6 * KIB, 1, 1), Rows(8 * KIB - 1, 4, 0),
            Rows(8 * KIB, 1, 0), Rows(inf, 4, 0),
        )),
        Table("forward", words=True, held="nearly full", rows=(
            Rows(256, 16, 0), Rows(512, 4, 1), Rows(1 * KIB, 1, 0), Rows(2.5 * KIB, 1, 1), Rows(4 * KIB - 1, 1, 0),
            Rows(6 * KIB, 1, 1), Rows(8 * KIB - 1, 4, 0), Rows(8 * KIB, 1, 0), Rows(inf, 4, 0),
        )),
        Table("forward", words=True, held="memory", rows=(
            Rows(256, 16, 0), Rows(512, 4, 1), Rows(1 * KIB, 1, 0), Rows(2.5 * KIB, 1, 1), Rows(6 * KIB, 1, 0),
            Rows(12 * KIB, 2, 1), Rows(inf, 1, 0),
        )),
        Table("forward", words=False, held="last", rows=(
            Rows(255, 32, 32), Rows(768, 16, 16), Rows(2 * KIB, 8, 8), Rows(4 * KIB - 1, 4, 4), Rows(4 * KIB, 1, 1),
            Rows(inf, 4, 0),
        )),
        Table("forward", words=False, held="memory", rows=(
            Rows(255, 32, 32), Rows(300, 16, 16), Rows(640, 8, 8), Rows(1 * KIB, 4, 4), Rows(inf, 1, 1),
        )),
        Table("backward", words=True, held="last", rows=(
            Rows(512, 16, 0), Rows(4 * KIB - 1, 8, 0), Rows(4 * KIB, 2, 0), Rows(7 * KIB, 8, 0), Rows(8 * KIB - 1, 4, 0),
            Rows(8 * KIB, 2, 0), Rows(11 * KIB, 4, 0), Rows(inf, 2, 0),
        )),
        Table("backward", words=True, held="memory", rows=(
            Rows(256, 8, 8), Rows(384, 8, 0), Rows(512, 4, 0), Rows(1 * KIB, 2, 0), Rows(2.5 * KIB, 1, 0),
            Rows(4 * KIB - 1, 8, 0), Rows(4 * KIB, 4, 0), Rows(5 * KIB, 8, 0), Rows(8 * KIB - 1, 4, 0), Rows(8 * KIB, 2, 0),
            Rows(11 * KIB, 4, 0), Rows(inf, 2, 0),
        )),
        Table("backward", words=False, held="last", rows=(
            Rows(255, 16, 32), Rows(1 * KIB, 8, 8), Rows(4 * KIB - 1, 4, 4), Rows(4 * KIB, 2, 2), Rows(8 * KIB - 1, 4, 4),
            Rows(8 * KIB, 2, 2), Rows(11 * KIB, 4, 4), Rows(inf, 2, 0),
        )),
        Table("backward", words=False, held="memory", rows=(
            Rows(150, 16, 32), Rows(256, 8, 8), Rows(512, 4, 1), Rows(1.5 * KIB, 2, 1), Rows(2 * KIB, 1, 1),
            Rows(4 * KIB, 2, 2), Rows(8 * KIB - 1, 4, 4), Rows(8 * KIB, 2, 2), Rows(inf, 4, 4),
        )),
    ),
    stored=Stored(alone=3 / 8, together=1 / 2, forward=7 / 8),
    crowded_bytes=SETS_BYTES,
    whole_rows=True,
    rows_in_lanes="16 bits",
)  # fmt: skip
ZEN_5 = Make(
    forward_fetched_from=GROUP,
    forward_few="same place",
    unfetched_share=1 / 3,
    backward_few_up_to=2 * SETS_BYTES,
    unfetched_from=2 * SETS_BYTES,
    fetches_result="16 bits",
    forward_stays=True,
    crowded_bytes=4 * SETS_BYTES,
    whole_rows=True,
    rows_in_lanes="all",
)
OTHER = Make()


def make_of(facts: dict[str, str]) -> Make:
    """The make of a processor with these facts."""
    vendor, flags = facts.get("vendor_id"), processor_flags(facts)
    if vendor == "AuthenticAMD":
        kind = facts.get("cpu family", ""), "avx512f" in flags
        return {("25", False): ZEN_3, ("25", True): ZEN_4, ("26", True): ZEN_5}.get(kind, OTHER)
    if vendor == "GenuineIntel":
        return INTEL_AMX if facts.get("model") == "167" and "amx_bf16" in flags else INTEL
    return OTHER
