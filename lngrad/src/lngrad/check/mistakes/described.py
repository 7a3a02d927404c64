"""Names of what was seen or found by search, and not in the catalogue: what each means, and where to look."""

from __future__ import annotations

import re

from lngrad.check.mistakes.gates import SENTENCES
from lngrad.check.result import EARLIER, NO_NAME, NOT_EXPLAINED

_OF = "(dx|dgamma|dbeta|dgate|y|mean|rstd|total)"
_MEAN = "(the )?(mean of dxhat(·xhat)?|(two )?row means)"
# By a pattern of its names: what calls show, formulas of dx, sums, places, statistics, and what is left.
DESCRIBED = {
    "not repeatable": "equal calls gave different results, not all right: a race, or a sum or memory that nobody cleared.",
    EARLIER: "a call is right alone and wrong after others: a cache or a workspace outlives a call.",
    "results that change": "a result changed after the call: it lies in an input's memory, or was not ready.",
    "layout ignored": "right for contiguous inputs and wrong for these strides: use the strides, or take a copy.",
    "number of threads": "wrong with another number of threads: how many partial sums are written, and read?",
    "NaN or infinity lost": "results are finite where the inputs' NaN or infinity must reach them: a mask or a clamp.",
    ".* added to memory that is not cleared": "with other numbers in memory the result is another: clear it first.",
    "inputs overwritten": "the kernel writes to its inputs, which others may still read: write to memory of its own.",
    "no gradient": "the backward returns nothing for an input, or autograd ends in the forward.",
    "backward raises": "the forward takes the inputs, and the backward raises an exception.",
    "another shape|another dtype": "a result has another shape or dtype than the case declares.",
    "column sums of no rows": "without rows, dgamma and dbeta are 0, and must be written.",
    "(.* )?never written": "zeros, or what memory held, throughout: a store, a launch or an addition is missing.",
    "flushed to zero": "subnormal numbers become 0 on the way, as XLA and fast-math flags have it.",
    "computed in float32": "float64 results are right to float32: there is a cast to float32 on the way.",
    "overflow in 16 bits|row sums overflow float16": "a product or a sum is beyond 65504, float16's largest number.",
    "all gradients .* times": "dy has a factor, as of dropout, of a loss scale or of a mean.",
    ".*mean of dxhat.* missing|dxhat missing": "dx = rstd·(dxhat − mean(dxhat) − xhat·mean(dxhat·xhat)) lacks this term.",
    ".*mean of dxhat.* subtracted": "dx subtracts a mean that this norm's gradient does not have.",
    f"{_MEAN} over a padded N": "a row sum is divided by N rounded up to the size of a tile: divide by N itself.",
    f"{_MEAN} over .*|means over .*": "a row mean goes over something else than the N elements of its row.",
    f"gamma (outside|twice in) {_MEAN}": "gamma stands where it does not belong: both means are of dxhat = dy·gamma.",
    "part of the columns in .*": "a row mean does not take every column once: look at the mask and the last tile.",
    ".* of each tile|sums of a tile for .*|sums up to the tile|unweighted means of chunks": "the row means are of tiles of "
    "columns: add the sums of all tiles up, and divide by N, before dx is computed.",
    "row (sums|means) kept in .*": "the row sums or means are numbers of a narrow dtype: keep them in float32.",
    "dx times a factor a .*": "each row, or each column, of dx has a factor; the name's end says which, if known.",
    "another (gamma|beta).*": "other elements of it are used: look at the index of its load.",
    "part of the rows in the column sums": "dgamma and dbeta do not count every row once: look at M's last tile.",
    f"part of the columns of {_OF}": "whole columns are lost or counted twice: look at N's last tile.",
    f"{_OF} over (the columns|gamma's last size)": "the result is summed over other axes than all leading ones.",
    "additions lost": "additions of several threads or programs overwrote each other: use atomics.",
    f"(rows|columns) of {_OF} .*": "right but for whole rows or columns: the mask, the index or the grid of the store.",
    f"{_OF} clipped": "the result is cut at one number: a clamp, or saturation in a narrow dtype.",
    f"{_OF} rounded to .*": "it is right to a narrower dtype than it has: keep it in float32, or in its own.",
    ".* (added to|subtracted from) .*": "right but for something added, as old memory, another gradient or a decay.",
    ".* of other rows(.*)": "rows take what belongs to other rows: an index is not the row's, or is not moved on.",
    "rstd clamped": "rstd has a largest value: the variance is clamped.",
    "another (eps|rstd|mean|mean and rstd)|mean off by a constant": "right with other statistics: another eps, an "
    "approximate root, a rounding, or statistics of other elements.",
    ".* times( in y)?": "a factor of the result or of a term; N and M stand for a mean in place of a sum, or a sum for one.",
    ".* for .*": "`A for B`: the kernel has A where the formula has B.",
    "wrong only for .*": "nothing explains the failures, but all of them have this fact, and no case that passed has.",
    NO_NAME: "no formula explains the results: `failures[].where` and `reason` say where they are off.",
    NOT_EXPLAINED: "--no-diagnosis judges alone.",
    "did not finish": "the kernel raised an exception, crashed or took too long; the reason says which.",
}  # fmt: skip


def described(name: str) -> str | None:
    """What a name means; None if it is none of these."""
    for form, sentence in SENTENCES.items():
        if name.startswith(before := form.removesuffix("{}")):
            return sentence.format(name.removeprefix(before))
    return next((text for pattern, text in DESCRIBED.items() if re.fullmatch(pattern, name)), None)
