"""Random cases: shapes, dtypes, masks, layouts and ranges by the number of a case and a seed, the same on every machine."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

from lngrad.check.case import CheckCase, Range, Source
from lngrad.core.dtypes import accumulator_for

FUZZ = "--fuzz"  # where such a case was "written": the option that draws it

_MOST_ELEMENTS = 1 << 17
_DTYPES = ("float32", "float32", "float32", "bfloat16", "float16", "float64")
_EDGES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_RANGES: tuple[dict[str, Range], ...] = ({}, {}, {}, {"x": (9.0, 11.0)}, {"x": (-5.0, 5.0), "dy": (-5.0, 5.0)})
_ALL = (True, True, True)
_MASKS = (_ALL, _ALL, (True, False, True), (False, True, True), (True, False, False))
_LAYOUTS = ("shared", "every second", "reversed axes", "backwards", "offset")


def fuzzed(count: int, seed: int) -> list[CheckCase]:
    """So many cases; mean and rstd are x's. The first of a larger number are those of a smaller one."""
    return [_case(number, seed) for number in range(count)]


def _case(number: int, seed: int) -> CheckCase:
    rng = Random(f"{seed}:{number}")
    lead, normalized = [_size(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))], [_size(rng)]
    if rng.random() < 0.2:
        normalized.append(rng.randint(1, 9))
    for sizes in (lead, normalized):  # at most so many elements together, and neither side takes all of them
        while prod(sizes) > _MOST_ELEMENTS >> 3:
            sizes[sizes.index(max(sizes))] //= 2
    while prod(lead) * prod(normalized) > _MOST_ELEMENTS:
        one = lead if prod(lead) > prod(normalized) else normalized
        one[one.index(max(one))] //= 2
    dtype = rng.choice(_DTYPES)
    gamma = rng.choice((dtype, dtype, accumulator_for(dtype), None))
    parameter: Any = gamma or dtype
    layouts = {rng.choice(("dy", "x")): rng.choice(_LAYOUTS)} if lead and rng.random() < 0.2 else {}
    return CheckCase(
        name=f"fuzz {number}", source=Source(f"{FUZZ} {number + 1}"), lead=tuple(lead), normalized=tuple(normalized),
        dtype=dtype, gamma_dtype=gamma, statistics_dtype=accumulator_for(dtype), output_dtypes=(dtype, parameter, parameter),
        output_mask=rng.choice(_MASKS),
        third=rng.choice(("rstd", "rstd", "variance")), ranges={"mean": None, "statistic": None, **rng.choice(_RANGES)},
        layouts=layouts,
    )  # fmt: skip


def _size(rng: Random) -> int:
    """Small, or next to a power of two, or anything."""
    return rng.choice((rng.randint(1, 9), rng.choice(_EDGES) + rng.randint(-1, 1), int(2 ** rng.uniform(0, 13))))
