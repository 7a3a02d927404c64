"""Names of what was seen or found by search, and not in the catalogue: what each means, and where to look."""

from __future__ import annotations

import re

from lngrad.check.mistakes.gates import SENTENCES
from lngrad.check.result import EARLIER, NO_NAME, NOT_EXPLAINED

CALLS = "`lngrad check` calls a kernel several times: docs/check.md says how."
_RESULT = "(dx|dgamma|dbeta|dgate|y|mean|rstd|total)"
_MEAN = "(the )?(mean of dxhat(·xhat)?|(two )?row means)"
# By a pattern of its names.
DESCRIBED = {
    # What calls show.
    "not repeatable": f"Equal calls gave different results, not all right: a race, a sum that nobody cleared, memory "
    f"that nobody "
    f"wrote. {CALLS}",
    EARLIER: f"A call is right alone and wrong after others: a cache or a workspace outlives a call. {CALLS}",
    "results that change": f"A result changed after the call had returned: it lies in an input's memory, or was not "
    f"ready. {CALLS}",
    "layout ignored": "Right for contiguous inputs and wrong for these strides: use the strides, or take a contiguous copy.",
    "number of threads": "Wrong with another number of threads: look at what each thread adds to, and how many "
    "partial sums are read.",
    "NaN or infinity lost": "Results are finite where the inputs' NaN or infinity must reach them: a mask, a clamp or "
    "a maximum.",
    ".* added to memory that is not cleared": "With other numbers in memory the result is another: clear what is added to.",
    "inputs overwritten": "The kernel writes to its inputs, which others may still read: write to memory of its own.",
    "no gradient": "The backward returns nothing for an input that has a gradient, or autograd ends in the forward.",
    "backward raises": "The forward takes the inputs, and the backward raises an exception.",
    "another shape|another dtype": "A result has another shape or dtype than the case declares; the sentence says which.",
    "column sums of no rows": "Without rows, dgamma and dbeta are 0, and must be written.",
    "(.* )?never written": "The result has zeros, or what memory held, throughout: the store, the launch or the "
    "addition is missing.",
    "flushed to zero": "Subnormal numbers become 0 on the way, as XLA and fast-math flags have it.",
    "computed in float32": "float64 results are right to float32: a cast to float32 on the way.",
    "overflow in 16 bits|row sums overflow float16": "A product or a sum is beyond 65504, float16's largest number: "
    "use float32.",
    # Formulas of dx.
    "all gradients .* times": "dy has a factor, as of dropout, of a loss scale or of a mean.",
    ".*mean of dxhat.* missing|dxhat missing": "dx lacks this term of rstd·(dxhat − mean(dxhat) − xhat·mean(dxhat·xhat)).",
    ".*mean of dxhat.* subtracted": "dx subtracts a mean that this norm's gradient does not have.",
    f"{_MEAN} over a padded N": "A row sum is divided by N rounded up to the size of a tile: divide by N itself.",
    f"{_MEAN} over .*": "A row mean goes over something else than the N elements of its row: see the name's end.",
    "means over .*": "Both row means go over something else than the row; the sentence says what.",
    f"gamma (outside|twice in) {_MEAN}": "gamma stands where it does not belong: both means are of dxhat = dy·gamma.",
    "part of the columns in .*": "A row mean does not take every column once: a mask, a last tile or a step of the "
    "loop is wrong.",
    "means of each tile|sums of a tile for the row's|sums up to the tile|unweighted means of chunks":
    "The row means are of tiles of columns: add the sums of all tiles up, and divide by N, before dx is computed.",
    "row (sums|means) kept in .*": "The row sums or means are numbers of a narrow dtype: keep them in float32.",
    "dx times a factor a .*": "Each row, or each column, of dx has a factor; the name's end says which, if that is known.",
    "another (gamma|beta).*": "Other elements of it are used: look at the index of its load.",
    # Sums over rows.
    "part of the rows in the column sums": "dgamma and dbeta do not count every row once: look at M's last tile, and "
    "at partial sums.",
    f"part of the columns of {_RESULT}": "Whole columns of the result are lost or counted twice: look at N's last tile.",
    f"{_RESULT} over (the columns|gamma's last size)": "The result is summed over other axes than all leading ones.",
    "additions lost": "Additions of several threads or programs went to one element, and some were overwritten: use atomics.",
    # Where results lie, and what they have besides.
    f"(rows|columns) of {_RESULT} (never written|counted twice|in other places)": "Right but for whole rows or "
    "columns: look at the "
    "mask, the index and the grid of the store.",
    f"{_RESULT} clipped": "The result is cut at one number: a clamp, or saturation in a narrow dtype.",
    f"{_RESULT} rounded to .*": "The result is right to a narrower dtype than it has: store it in its own.",
    ".* (added to|subtracted from) .*": "The result is right but for something that is added; the sentence says where "
    "it may come from.",
    # Statistics.
    ".* of other rows(.*)": "Rows take what belongs to other rows: an index is not the row's, or is not moved on with "
    "the tile.",
    "rstd clamped": "rstd has a largest value: the variance is clamped.",
    "another (eps|rstd|mean|mean and rstd)|mean off by a constant": "The results obey the formula with other "
    "statistics: another eps, an approximate root, a rounding, or statistics of other elements.",
    "(mean|rstd) rounded to .*": "A statistic is kept in 16 bits: keep it in float32.",
    # Anything else that a search combines.
    ".* times( in y)?": "The result, or a term of it, has this factor: N, M and their quotients hint at a mean for a sum, or "
    "a sum for a mean.",
    ".* for .*": "One expression stands where the other belongs: `A for B` has A in the kernel, and B in the formula.",
    # Kernels that nothing explains.
    "right only .*|wrong only .*": "No formula explains the failures; but one fact of the cases parts those that pass "
    "from those that "
    "fail. Look at the code that this fact decides.",
    NO_NAME: "No known mistake and no formula explains the results: `failures[].where` and `reason` say where they are off.",
    NOT_EXPLAINED: "--no-diagnosis judges alone.",
    "did not finish": "The kernel raised an exception, crashed or took too long; the reason says which.",
}  # fmt: skip


def described(name: str) -> str | None:
    """What a name means; None if it is none of these."""
    for form, sentence in SENTENCES.items():
        if name.startswith(before := form.removesuffix("{}")):
            return sentence.format(name.removeprefix(before))
    return next((text for pattern, text in DESCRIBED.items() if re.fullmatch(pattern, name)), None)
