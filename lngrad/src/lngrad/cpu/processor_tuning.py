"""What is best on each make of processor, as tables; policy.py looks them up. No bits depend on them.

Where each figure comes from: benchmarks/results/processor-tuning.txt. How to add a make: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple, TypeAlias

from lngrad.core.machine import processor_flags
from lngrad.cpu.jobs import GROUP

KIB = 1 << 10
FETCHED_FROM = 2 * GROUP  # columns from which on rows are fetched ahead, and taken as measured
AHEAD_BYTES = 8 * KIB  # that rows are fetched ahead at the least: less, and they come too late
SETS_BYTES = 4 * KIB  # that far apart, lines have the same place in a first-level cache
TOGETHER = -1  # as many rows as go together

Held: TypeAlias = Literal["second", "third", "last", "nearly full", "memory", "sum"]
BEYOND_THIRD: tuple[Held, ...] = "last", "nearly full", "memory"
BEYOND_SECOND: tuple[Held, ...] = "third", *BEYOND_THIRD
ANYWHERE: tuple[Held, ...] = "second", *BEYOND_SECOND


class Part(NamedTuple):
    """A part of a core's cache as a limit: its bytes over a divisor."""

    level: Literal["first_level", "second_level"]
    divisor: int


class Rung(NamedTuple):
    """A number of rows, for those calls that a rung of a ladder takes: the first one that does decides.

    Attributes:
        limit: Bytes of the longest row.
        rows: So many, or TOGETHER.
        nbytes: As many rows as take so many bytes, if these are more.
        apart: Rows a multiple of so many bytes apart alone.
        stays: Only if so many rows, beside those that go together, stay in the second level with gamma and both column sums.
        second_over: Only where the second level has more bytes.
        streamed: Only if the result is streamed.
    """

    limit: float | Part
    rows: int
    nbytes: int = 0
    apart: int = 1
    stays: bool = False
    second_over: int = 0
    streamed: bool = False


Ladder: TypeAlias = tuple[Rung, ...]


class Kind(NamedTuple):
    """Tuning of one kind of call.

    Attributes:
        together: How many go together.
        side_by_side: How many of them are written side by side at the most, where the result is streamed.
        ahead: How many rows on those lie that are fetched meanwhile; 0: none are.
        fetched_from: Columns from which on rows are fetched.
        fetched: What holds the tensors of those calls whose rows are fetched: the threads' second levels, a third of the last
            level, all of it, all of it nearly full (more than half, and the result is stored), or memory.
        result_fetched: The same of calls that fetch lines of their result, to write to them, if it is stored.
        measured: By what holds the tensors, in place of the ladders, for rows of FETCHED_FROM columns and more: bytes of the
            longest row, how many go together (TOGETHER: as the ladders say), how many rows on those lie that are fetched. Where
            there is none for what is no memory, the one for the last level holds. "sum": rows of one, or of its gradient.
    """

    together: Ladder
    side_by_side: Ladder = ()
    ahead: Ladder = (Rung(inf, TOGETHER, AHEAD_BYTES),)
    fetched_from: int = FETCHED_FROM
    fetched: tuple[Held, ...] = BEYOND_SECOND
    result_fetched: tuple[Held, ...] = ()
    measured: Mapping[Held, tuple[tuple[float, int, int], ...]] = {}  # nobody writes to it


class Streamed(NamedTuple):
    """Shares of the last level: a call whose tensors take as much streams its result. By one thread alone, by several together,
    and by several if it is a forward of elements of 4 bytes and more."""

    alone: float
    together: float
    forward: float


LARGE = Streamed(alone=3 / 4, together=3 / 4, forward=3 / 4)


@dataclass(frozen=True, eq=False)
class Tuning:
    """What is best on a make of processor.

    Attributes:
        forward, backward: Of elements of 4 bytes and more.
        forward_16, backward_16: Of elements of 2 bytes.
        streamed: From where on results are streamed.
        by_columns: How many rows a backward takes together that takes them by columns.
        whole_rows: Whether one thread alone takes rows whole that do not stay in its second level.
        rows_in_lanes: Bytes of the elements of which a forward over channels may have a row in each lane.
    """

    forward: Kind
    forward_16: Kind
    backward: Kind
    backward_16: Kind
    streamed: Streamed = LARGE
    by_columns: Ladder = (Rung(inf, 8),)
    whole_rows: bool = False
    rows_in_lanes: tuple[int, ...] = ()

    def kind(self, direction: str, itemsize: int) -> Kind:
        """The kind of calls in a direction, forward or backward, of elements of `itemsize` bytes."""
        kind: Kind = getattr(self, direction if itemsize >= 4 else f"{direction}_16")
        return kind


# The defaults, for makes that nobody measured: as many rows as stay in the first level, by its size, and in fours from four on.
# Where a store writes half a cache line, few are streamed side by side, and one where all have the same place in the cache.
# Where it writes a whole one (AVX-512), the sums of four rows go side by side as well.
FORWARD = (
    Rung(255, 32), Rung(1 * KIB, 16), Rung(1365, 12), Rung(2 * KIB, 8), Rung(4 * KIB, 4), Rung(5461, 3), Rung(8 * KIB, 2),
    Rung(inf, 1),
)  # fmt: skip
FORWARD_LINES = (*FORWARD[:4], Rung(5461, 4), Rung(8 * KIB, 2), Rung(inf, 1))
FORWARD_LINES_16 = (*FORWARD[:4], Rung(inf, 4))
SHORT_BACKWARD = (
    Rung(255, 16), Rung(Part("first_level", 32), 8), Rung(Part("first_level", 16), 4), Rung(Part("first_level", 8), 2),
)  # fmt: skip
BACKWARD = (*SHORT_BACKWARD, Rung(inf, 4, second_over=1 << 20), Rung(inf, 2))
HALF_LINES = Kind(FORWARD, side_by_side=(Rung(inf, 1, apart=SETS_BYTES), Rung(inf, 2, SETS_BYTES)))
HALF_LINES_BACKWARD = Kind(
    BACKWARD,
    side_by_side=(Rung(inf, 1, apart=SETS_BYTES), Rung(inf, 2, SETS_BYTES // 2)),
    ahead=(Rung(inf, TOGETHER, streamed=True), Rung(inf, TOGETHER, AHEAD_BYTES)),
)
OTHER = Tuning(HALF_LINES, HALF_LINES, HALF_LINES_BACKWARD, HALF_LINES_BACKWARD)
OTHER_LINES = Tuning(Kind(FORWARD_LINES), Kind(FORWARD_LINES_16), Kind(BACKWARD), Kind(BACKWARD))

ZEN_3_BACKWARD = HALF_LINES_BACKWARD._replace(
    together=(Rung(255, 16), Rung(inf, 2, apart=SETS_BYTES), Rung(Part("first_level", 32), 8), Rung(inf, 4)),
    fetched=BEYOND_THIRD,
)
ZEN_3 = replace(OTHER, backward=ZEN_3_BACKWARD, backward_16=ZEN_3_BACKWARD)

# Of a backward of 4-byte elements: 3 KiB of rows are written side by side, up to rows of 8 KiB.
FEW_BACKWARD = (Rung(192, 16), Rung(384, 8), Rung(768, 4), Rung(1536, 2), Rung(8 * KIB, 1))
STAYING = Rung(inf, 1, stays=True), Rung(inf, 0)
INTEL_FORWARD = Kind(
    (Rung(255, 32), Rung(512, 16), Rung(682, 12), Rung(1 * KIB, 8), Rung(2730, 4), Rung(4 * KIB, 2), Rung(inf, 1)),
    side_by_side=(Rung(128, 32), Rung(256, 16), Rung(512, 8), Rung(1 * KIB, 4), Rung(2 * KIB, 2), Rung(inf, 1)),
    ahead=(Rung(Part("second_level", 16), TOGETHER, AHEAD_BYTES), Rung(inf, 1)),
    fetched_from=GROUP,
    fetched=ANYWHERE,
)
INTEL_TOGETHER = (
    *SHORT_BACKWARD, Rung(inf, 4, stays=True, second_over=1 << 20), Rung(inf, 2, stays=True), *BACKWARD[-2:],
)  # fmt: skip
INTEL_BACKWARD = Kind(INTEL_TOGETHER, FEW_BACKWARD, (Rung(KIB - 1, TOGETHER, AHEAD_BYTES, stays=True), *STAYING))
INTEL = Tuning(
    forward=INTEL_FORWARD,
    forward_16=INTEL_FORWARD._replace(
        together=FORWARD_LINES_16,
        side_by_side=(),
        ahead=(Rung(Part("second_level", 64), TOGETHER, AHEAD_BYTES), Rung(inf, 1)),
    ),
    backward=INTEL_BACKWARD,
    backward_16=INTEL_BACKWARD._replace(
        side_by_side=(), ahead=(Rung(inf, TOGETHER, AHEAD_BYTES, stays=True), *STAYING)
    ),
)
INTEL_AVX2 = Tuning(
    forward=INTEL_FORWARD._replace(
        together=(*INTEL_FORWARD.together[:4], Rung(2 * KIB, 4), Rung(2730, 3), *INTEL_FORWARD.together[5:]),
        side_by_side=HALF_LINES.side_by_side,
    ),
    forward_16=INTEL_FORWARD._replace(together=FORWARD, side_by_side=HALF_LINES.side_by_side),
    backward=INTEL_BACKWARD._replace(
        side_by_side=HALF_LINES_BACKWARD.side_by_side,
        ahead=(Rung(KIB - 1, TOGETHER, stays=True, streamed=True), *INTEL_BACKWARD.ahead),
    ),
    backward_16=INTEL_BACKWARD._replace(
        side_by_side=HALF_LINES_BACKWARD.side_by_side,
        ahead=(
            Rung(inf, TOGETHER, stays=True, streamed=True), Rung(inf, 1, stays=True, streamed=True),
            Rung(inf, 0, streamed=True), *INTEL.backward_16.ahead,
        ),
    ),
)  # fmt: skip
# Measured on one that calls itself model 167, Rocket Lake's number, but has AMX, 2 MiB of second level and 480 MiB of the last.
INTEL_AMX = replace(
    INTEL,
    forward=INTEL.forward._replace(result_fetched=BEYOND_SECOND),
    forward_16=INTEL.forward_16._replace(result_fetched=BEYOND_SECOND),
    backward=INTEL_BACKWARD._replace(
        side_by_side=(*FEW_BACKWARD[:3], Rung(4 * KIB, 2)),
        ahead=(Rung(KIB - 1, TOGETHER, stays=True), *STAYING),
        result_fetched=BEYOND_SECOND,
    ),
    backward_16=INTEL.backward_16._replace(result_fetched=BEYOND_SECOND),
)
ZEN_4 = Tuning(  # AVX-512 on data paths of 256 bits
    forward=Kind(FORWARD_LINES, measured={
        "second": (
            (384, 32, 32), (512, 16, 16), (2 * KIB, 8, 8), (4 * KIB - 1, 4, 4), (4 * KIB, 8, 0), (8 * KIB - 1, 4, 0),
            (8 * KIB, 1, 0), (inf, 4, 0),
        ),
        "last": (
            (512, 16, 0), (2 * KIB, 8, 8), (4 * KIB - 1, 4, 4), (6 * KIB, 1, 1), (8 * KIB - 1, 4, 0), (8 * KIB, 1, 0),
            (inf, 4, 0),
        ),
        "nearly full": (
            (256, 16, 0), (512, 4, 1), (1 * KIB, 1, 0), (2.5 * KIB, 1, 1), (4 * KIB - 1, 1, 0), (6 * KIB, 1, 1),
            (8 * KIB - 1, 4, 0), (8 * KIB, 1, 0), (inf, 4, 0),
        ),
        "memory": (
            (256, 16, 0), (512, 4, 1), (1 * KIB, 1, 0), (2.5 * KIB, 1, 1), (6 * KIB, 1, 0), (12 * KIB, 2, 1),
            (inf, 1, 0),
        ),
    }),
    forward_16=Kind(FORWARD_LINES_16, measured={
        "second": ((inf, 32, 0),),
        "last": ((255, 32, 32), (768, 16, 16), (2 * KIB, 8, 8), (4 * KIB - 1, 4, 4), (4 * KIB, 1, 1), (inf, 4, 0)),
        "memory": ((255, 32, 32), (300, 16, 16), (640, 8, 8), (1 * KIB, 4, 4), (inf, 1, 1)),
    }),
    backward=Kind(BACKWARD, measured={
        "last": (
            (512, 16, 0), (4 * KIB - 1, 8, 0), (4 * KIB, 2, 0), (7 * KIB, 8, 0), (8 * KIB - 1, 4, 0), (8 * KIB, 2, 0),
            (11 * KIB, 4, 0), (inf, 2, 0),
        ),
        "memory": (
            (256, 8, 8), (384, 8, 0), (512, 4, 0), (1 * KIB, 2, 0), (2.5 * KIB, 1, 0), (4 * KIB - 1, 8, 0),
            (4 * KIB, 4, 0), (5 * KIB, 8, 0), (8 * KIB - 1, 4, 0), (8 * KIB, 2, 0), (11 * KIB, 4, 0), (inf, 2, 0),
        ),
    }),
    backward_16=Kind(BACKWARD, measured={
        "second": ((4 * KIB - 1, 16, 0), (inf, 4, 0)),
        "last": (
            (255, 16, 32), (1 * KIB, 8, 8), (4 * KIB - 1, 4, 4), (4 * KIB, 2, 2), (8 * KIB - 1, 4, 4), (8 * KIB, 2, 2),
            (11 * KIB, 4, 4), (inf, 2, 0),
        ),
        "memory": (
            (150, 16, 32), (256, 8, 8), (512, 4, 1), (1.5 * KIB, 2, 1), (2 * KIB, 1, 1), (4 * KIB, 2, 2),
            (8 * KIB - 1, 4, 4), (8 * KIB, 2, 2), (inf, 4, 4),
        ),
    }),
    streamed=Streamed(alone=3 / 8, together=1 / 2, forward=7 / 8),
    by_columns=(Rung(inf, 2, apart=SETS_BYTES), Rung(inf, 8)),
    whole_rows=True,
    rows_in_lanes=(2,),
)  # fmt: skip
ZEN_5 = Tuning(
    forward=Kind(
        FORWARD_LINES,
        side_by_side=(
            *(Rung(nbytes, SETS_BYTES // nbytes, apart=nbytes) for nbytes in (256, 512, 1 * KIB, 2 * KIB)),
            Rung(inf, 1, apart=SETS_BYTES),
        ),
        fetched_from=GROUP,
        measured={"sum": ((2 * KIB, 8, 0), (32 * KIB, 4, 0), (inf, 1, 0))},
    ),
    forward_16=Kind(
        FORWARD_LINES_16,
        ahead=(Rung(128 * KIB - 1, TOGETHER, AHEAD_BYTES), Rung(inf, 0)),  # four and the next four fill the second level
        fetched_from=GROUP,
        result_fetched=BEYOND_THIRD,
    ),
    backward=Kind(
        (
            *SHORT_BACKWARD, Rung(8 * KIB, 2), Rung(inf, 2, apart=4 * SETS_BYTES), Rung(Part("second_level", 22), 4),
            Rung(inf, 2),
        ),
        side_by_side=FEW_BACKWARD,
        ahead=(Rung(8 * KIB, TOGETHER, AHEAD_BYTES), Rung(inf, 0)),
        fetched=BEYOND_THIRD,
        measured={"sum": ((2 * KIB, TOGETHER, 0), (4 * KIB, 1, 1), (inf, TOGETHER, 0))},
    ),
    backward_16=Kind(BACKWARD, fetched=BEYOND_THIRD, result_fetched=BEYOND_THIRD),
    by_columns=(Rung(inf, 2, apart=4 * SETS_BYTES), Rung(inf, 8)),
    whole_rows=True,
    rows_in_lanes=(2, 4),
)  # fmt: skip


def tuning_of(facts: dict[str, str]) -> Tuning:
    """The tuning of the make of a processor with these facts."""
    vendor, flags = facts.get("vendor_id"), processor_flags(facts)
    lines = "avx512f" in flags
    if vendor == "AuthenticAMD":
        kind = facts.get("cpu family", ""), lines
        return {("25", False): ZEN_3, ("25", True): ZEN_4, ("26", True): ZEN_5}.get(
            kind, OTHER_LINES if lines else OTHER
        )
    if vendor == "GenuineIntel":
        amx = facts.get("model") == "167" and "amx_bf16" in flags
        return (INTEL_AMX if amx else INTEL) if lines else INTEL_AVX2
    return OTHER_LINES if lines else OTHER
