"""A case: what one call is made of, whichever file format it was written in, and cases drawn at random."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any, Literal, TypeAlias

from lngrad.check.layouts import LAYOUTS
from lngrad.core.norms import NORMS
from lngrad.core.problem import ROLES, Normalization, Operator, Role
from lngrad.errors import FileFormatError
from lngrad.support.dtypes import DTYPES, accumulator_for, bytes_of
from lngrad.typing import Shape

INPUTS = ("dy", "x", "mean", "statistic", "gamma")  # statistic: rstd or variance, as `third` says
ADDED = ("residual", "dtotal", "gate")  # inputs besides, where x has a residual or a gate
PARAMETERS = ("gamma", "beta")
OF_ROWS = frozenset(name for name, role in ROLES.items() if role is not Role.PARAMETER)  # what each row has a part of
STATISTICS = frozenset(name for name, role in ROLES.items() if role is Role.STATISTIC)  # one number a row
FORWARD = frozenset(("y", "mean", "rstd", "total"))  # results that are no gradients

Results: TypeAlias = Any  # a named tuple of CheckCase.outputs

# The lowest and highest value, equal for a constant; further ones are forced on elements spread over the array.
# None: computed from x, for mean and statistic.
Range = tuple[float, ...] | None
DEFAULT_RANGE: Range = (-2.0, 2.0)


@dataclass(frozen=True)
class Source:
    """Where a case was written: for messages and for the command that reproduces it."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class CheckCase:
    """One call to be checked: a backward, or a forward and its derivative, or a forward alone.

    Attributes:
        name: Unique within a run.
        source: Where it was read.
        lead, normalized: x has the shape (*lead, *normalized).
        dtype, gamma_dtype, statistics_dtype: Of dy and x; of gamma, None without one; of mean and the statistic.
        output_dtypes: Of the results, by name; of those that are left out x's, dx's or gamma's.
        wanted: Names of the results that are wanted; None: all of the backward.
        third: What the statistic is: rstd, or the variance that eps is added to.
        eps: Used with a variance, and where statistics are computed from x.
        ranges: Of each input, by its name.
        files: Paths of inputs that are read instead of drawn, and of goldens ("golden_0", …), by name.
        surface: The implementation that the case is written for, or None for any.
        standard: The name of the rule to judge by, None for the command's.
        tolerances: (rtol, share of elements that may be off), and atol, where the case has its own.
        beta: Whether it has one, which a forward alone takes.
        norm: Its name in NORMS. Results that it does not have are dropped from output_dtypes and wanted.
        seed: Of its inputs; None for the run's.
        zeros: Inputs whose every fifth column is 0.
        layouts: How inputs lie in memory, by name, where that is not contiguous.
        recomputed: What becomes of a result that is right for mean and rstd of x, where the case gives others.
        of_total: Whose gradient a forward's dx is, where it has two of one total: x's, the residual's, or "" for the worse one.
        calls: How often it is called with the same inputs, at least.
        enabled: False for a case that its file has switched off.
        others: Columns and keys that were read and not used.
    """

    name: str
    source: Source
    lead: tuple[int, ...]
    normalized: tuple[int, ...]
    dtype: str
    gamma_dtype: str | None
    statistics_dtype: str
    output_dtypes: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] | None = None
    third: Literal["rstd", "variance"] = "rstd"
    eps: float = 1e-5
    ranges: dict[str, Range] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    surface: str | None = None
    standard: str | None = None
    tolerances: tuple[float, float] | None = None
    atol: float | None = None
    beta: bool = False
    norm: str = "layer_norm"
    seed: int | None = None
    zeros: tuple[str, ...] = ()
    layouts: dict[str, str] = field(default_factory=dict)
    recomputed: Literal["failed", "skipped"] = "failed"
    of_total: Literal["", "x", "residual"] = ""
    calls: int = 2
    enabled: bool = True
    others: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.lead, *self.normalized)

    @property
    def M(self) -> int:
        return math.prod(self.lead)

    @property
    def N(self) -> int:
        return math.prod(self.normalized)

    @property
    def nbytes(self) -> int:
        """Of all inputs and outputs."""
        full = (2 + 2 * self.residual + self.gated) * self.M * self.N * DTYPES[self.dtype].itemsize
        gamma = 0 if self.gamma_dtype is None else math.prod(self.parameters) * DTYPES[self.gamma_dtype].itemsize
        return full + gamma + 2 * self.M * DTYPES[self.statistics_dtype].itemsize + self.output_nbytes

    @property
    def output_nbytes(self) -> int:
        """Of the outputs that are wanted."""
        shapes = self.shapes_of_results()
        return sum(math.prod(shapes[name]) * bytes_of(self.output_dtypes[name]) for name in self.wanted or ())

    @property
    def normalization(self) -> Normalization:
        return NORMS[self.norm].normalization

    @property
    def residual(self) -> bool:
        return NORMS[self.norm].residual

    @property
    def gated(self) -> bool:
        return NORMS[self.norm].gated

    @property
    def parameters(self) -> Shape:
        """gamma's shape: that which is normalized, or one for each of x's first dimension."""
        is_own = self.normalization.modulated and self.gamma_dtype
        return (*self.lead[:1], *(1,) * (len(self.lead) - 1), *self.normalized) if is_own else self.normalized

    @property
    def operator(self) -> Operator:
        """The backward: what case files mean by results, by masks and by their dtypes."""
        return NORMS[self.norm].backward

    @property
    def outputs(self) -> tuple[str, ...]:
        """All results by name, the backward's first."""
        return NORMS[self.norm].outputs

    @property
    def has_gradients(self) -> bool:
        """Whether one is wanted."""
        return not FORWARD.issuperset(self.wanted or ())

    @property
    def output_mask(self) -> tuple[bool, ...]:
        """Whether each result is wanted, as files and functions have it."""
        return tuple(name in (self.wanted or ()) for name in self.operator.outputs)

    def results(self, arrays: Mapping[str, Any]) -> Results:
        """The results, of arrays by name; None where there is none."""
        return _of_names(self.outputs)(*map(arrays.get, self.outputs))

    def shapes_of_results(self, rows: int | None = None) -> dict[str, Shape]:
        """Shapes of the results by name, or of those of some rows."""
        lead = self.lead if rows is None or rows == self.M else (rows,)
        shapes = {
            Role.TENSOR: (*lead, *self.normalized), Role.STATISTIC: (*lead, *(1,) * len(self.normalized)),
            Role.PARAMETER: self.parameters,
        }  # fmt: skip
        return {name: shapes[ROLES[name]] for name in self.outputs}

    def of_norm(self, norm: str) -> CheckCase:
        """The same case of another norm. A result that this one lacks is wanted if all that only this one has are."""
        outputs, wanted = NORMS[norm].backward.outputs, self.wanted or ()
        all_dropped = all(name in wanted for name in self.operator.outputs if name not in outputs)
        kept = (name for name in outputs if (name in wanted if name in self.operator.outputs else all_dropped))
        return replace(self, norm=norm, wanted=tuple(kept))

    @property
    def label(self) -> str:
        """What tells it from others of a run: its name, and its seed where that is not the run's."""
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"

    @property
    def takes_statistics_of_x(self) -> bool:
        """Whether mean and the statistic are x's."""
        return self.ranges.get("mean", ()) is None and self.ranges.get("statistic", ()) is None

    def range_of(self, name: str) -> Range:
        if name == "mean" and not self.normalization.centred:
            return 0.0, 0.0
        return self.ranges.get(name, DEFAULT_RANGE)

    def __post_init__(self) -> None:
        """The rules that hold in every format. Sizes are arithmetic here: nothing has been allocated."""

        def need(holds: bool, name: str, expected: str, got: object) -> None:
            if not holds:
                raise FileFormatError(f"{self.source}: case {self.name!r}: {name}: expected {expected}, got {got}")

        need(self.norm in NORMS, "norm", f"one of {', '.join(NORMS)}", repr(self.norm))
        parameter = self.gamma_dtype or self.dtype
        of_dx = {"dx": self.dtype, "dgate": self.output_dtypes.get("dx", self.dtype)}
        of_role = {Role.TENSOR: self.dtype, Role.STATISTIC: "float64" if self.dtype == "float64" else "float32"}
        default = {name: of_dx.get(name, of_role.get(ROLES[name], parameter)) for name in self.outputs}
        declared = {name: self.output_dtypes.get(name, dtype) for name, dtype in default.items()}
        object.__setattr__(self, "output_dtypes", declared)
        wanted = self.operator.outputs if self.wanted is None else self.wanted
        object.__setattr__(self, "wanted", tuple(name for name in self.outputs if name in wanted))
        need(1 <= len(self.shape) <= 8, "x", "1 to 8 dimensions", len(self.shape))
        need(bool(self.normalized), "normalized shape", "at least 1 dimension", "()")
        for size in self.shape:
            need(0 <= size < 2**48, "x", "sizes from 0 to 2^48", size)
        dtypes = {"dtype": self.dtype, "gamma": parameter, "statistics": self.statistics_dtype, **declared}
        for name, dtype in dtypes.items():
            need(dtype in DTYPES, name, f"one of {', '.join(DTYPES)}", repr(dtype))
        for name, values in self.ranges.items():
            if values is not None:
                known = len(values) >= 2 and not any(map(math.isnan, values[:2]))
                need(known, f"range of {name}", "(low, high, special…)", values)
                need(values[0] <= values[1], f"range of {name}", "low <= high", values[:2])
        need({"dy", "x", "gamma"}.issuperset(self.zeros), "zeros", "some of dy, x, gamma", self.zeros)
        for name, layout in self.layouts.items():
            expected = f"one of {', '.join(LAYOUTS)} for some of {', '.join(INPUTS)}"
            need(name in INPUTS and layout in LAYOUTS, "layouts", expected, f"{layout!r} for {name!r}")
        need(math.isfinite(self.eps) and self.eps >= 0, "eps", "a number from 0", self.eps)


@cache
def _of_names(names: tuple[str, ...]) -> Any:
    return namedtuple("Results", names)  # the names are a norm's


@dataclass(frozen=True)
class Options:
    """What a run of the command is about, besides the cases.

    Attributes:
        impl: Name of the implementation.
        standard: Name of the standard, for cases that have none of their own; "auto" for stable where x is float32 or float64
            and mixed where it has 16 bits.
        level: Of the standard `dual`.
        third: Implementation that gives the third-party result of `dual`.
        against: A folder of dumps to be judged instead of an implementation's results, or None.
        seed: Of the inputs.
        max_bytes: A case whose arrays take more is not run.
        block_bytes: Results are judged in blocks of rows that take about this much.
        timed: Whether right ones are timed.
        explained: How much is said of a failure: "whole"; "brief", what it looks like; or "not".
        likely: Known mistakes that explained failures before: where one explains this too, no other is looked for.
        repeatable: Whether equal calls must give equal bits.
        fail_fast: Whether a run ends with its first failure.
        allowed: Inputs that an implementation may change.
        repeated: Whether the seed was given, so that an earlier run may have had the same inputs.
        invoked: The command up to the cases, for the line that reproduces a failure.
        selected: The rest of the command: which cases.
    """

    impl: str = "numba_cpu"
    standard: str = "auto"
    level: str = "L1"
    third: str = "torch"
    against: str | None = None
    seed: int = 0
    max_bytes: int = 8 << 30
    block_bytes: int = 512 << 20
    timed: bool = False
    explained: Literal["whole", "brief", "not"] = "whole"
    likely: tuple[str, ...] = ()
    repeatable: bool = False
    fail_fast: bool = False
    allowed: tuple[str, ...] = ()
    repeated: bool = False
    invoked: str = ""
    selected: str = ""


FUZZ = "--fuzz"  # where a random case was "written": the option that draws it
SHIPPED = "default cases", "family cases"  # where those that come with lngrad were "written"

_MAX_ELEMENTS = 1 << 17
_DTYPES = ("float32", "float32", "float32", "bfloat16", "float16", "float64")
_EDGES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_RANGES: tuple[dict[str, Range], ...] = ({}, {}, {}, {"x": (9.0, 11.0)}, {"x": (-5.0, 5.0), "dy": (-5.0, 5.0)})
_WANTED = (None, None, ("dx", "dbeta"), ("dgamma", "dbeta"), ("dx",))
_LAYOUTS = ("shared", "every second", "reversed axes", "backwards", "offset", "corner")


def fuzzed(count: int, seed: int) -> list[CheckCase]:
    """So many random cases by a seed, the same on every machine: shapes, dtypes, masks, layouts and ranges.

    Mean and rstd are x's. The first of a larger number are those of a smaller one.
    """
    return [_case(number, seed) for number in range(count)]


def _case(number: int, seed: int) -> CheckCase:
    rng = Random(f"{seed}:{number}")
    lead, normalized = [_size(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))], [_size(rng)]
    if rng.random() < 0.2:
        normalized.append(rng.randint(1, 9))
    for sizes in (lead, normalized):  # at most so many elements together, and neither side takes all of them
        while math.prod(sizes) > _MAX_ELEMENTS >> 3:
            sizes[sizes.index(max(sizes))] //= 2
    while math.prod(lead) * math.prod(normalized) > _MAX_ELEMENTS:
        larger = lead if math.prod(lead) > math.prod(normalized) else normalized
        larger[larger.index(max(larger))] //= 2
    dtype = rng.choice(_DTYPES)
    gamma = rng.choice((dtype, dtype, accumulator_for(dtype), None))
    layouts = {rng.choice(("dy", "x")): rng.choice(_LAYOUTS)} if lead and rng.random() < 0.2 else {}
    return CheckCase(
        name=f"fuzz {number}", source=Source(f"{FUZZ} {number + 1}"), lead=tuple(lead), normalized=tuple(normalized),
        dtype=dtype, gamma_dtype=gamma, statistics_dtype=accumulator_for(dtype), wanted=rng.choice(_WANTED),
        third=rng.choice(("rstd", "rstd", "variance")), ranges={"mean": None, "statistic": None, **rng.choice(_RANGES)},
        layouts=layouts,
    )  # fmt: skip


def _size(rng: Random) -> int:
    """Small, or next to a power of two, or anything."""
    return rng.choice((rng.randint(1, 9), rng.choice(_EDGES) + rng.randint(-1, 1), int(2 ** rng.uniform(0, 13))))
