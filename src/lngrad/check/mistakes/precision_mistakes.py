"""Known mistakes of precision: the last part of the table."""

from __future__ import annotations

from lngrad.check.mistakes import precision
from lngrad.check.mistakes.mistake import Mistake

BOTH = ("bfloat16", "float16")
PARTS = (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64)  # of the rows: what torch makes of so many threads


def _narrow_sums(dtype: str, how: str, *, parts: int = 1, block: int = 0, products: bool = False) -> Mistake:
    change = precision.narrow_sums(dtype, parts, block, products)
    return Mistake(f"dgamma and dbeta are accumulated in {dtype}{how}", results=change, by_size=True, sums_only=True)


PRECISION: dict[str, Mistake] = {
    **{f"{dtype} sums": _narrow_sums(dtype, ": keep them in float32 and round once.") for dtype in BOTH},
    **{
        f"{dtype} sums in {parts} parts": _narrow_sums(
            dtype, f", in {parts} parts of the rows (one a thread or core, say): keep them in float32 and round once.",
            parts=parts)
        for dtype in BOTH
        for parts in PARTS
    },
    **{
        f"{dtype} sums of rounded products": _narrow_sums(
            dtype, ", and so are the products that are added: keep both in float32 and round once.", products=True)
        for dtype in BOTH
    },
    **{
        f"{dtype} sums in blocks of {block} rows{' of rounded products' * products}": _narrow_sums(
            dtype,
            f" over blocks of {block} rows, whose sums are then added in float32: keep the partial sums in float32 too.",
            block=block, products=products)
        for dtype in BOTH
        for block in (32, 64, 128, 256)
        for products in (False, True)
    },
    **{
        f"{dtype} sums of blocks of {block} rows": Mistake(
            f"blocks of {block} rows are summed, and these sums are added up in {dtype}: keep dgamma and dbeta in float32 "
            "until all rows are in them, and round once.",
            results=precision.narrow_sums_of_blocks(dtype, block, each=True), by_size=True, sums_only=True)
        for dtype in BOTH
        for block in (2, 4, 8, 16, 32, 64, 128, 256)
    },
    **{
        f"{dtype} sums of {only} alone{', of rounded products' * products}": Mistake(
            f"{only} is accumulated in {dtype}, the other column sum is not: keep it in float32 and round once.",
            results=precision.narrow_sum(dtype, only, products), by_size=True, sums_only=True)
        for dtype in BOTH
        for products in (False, True)
        for only in ("dgamma", "dbeta")
    },
    **{
        f"{dtype} sums of {groups} groups of rows": Mistake(
            f"the partial sums of dgamma and dbeta are kept in {dtype}, {groups} of them, each of every {groups}th row, as in "
            "Triton's tutorial, whose buffers have the weight's dtype: make them float32.",
            results=precision.narrow_groups(dtype, groups), by_size=True, sums_only=True)
        for dtype in BOTH
        for groups in (64, 96, 128, 256)
    },
    **{
        f"xhat rounded to {dtype}": Mistake(
            f"xhat is rounded to {dtype} before dx and dgamma are computed from it: keep it in float32.",
            results=precision.narrow_xhat(dtype, "dx", "dgamma"))
        for dtype in BOTH
    },
    **{
        f"{name} rounded to {dtype}": Mistake(
            f"{what} rounded to {dtype} before they are summed: keep them in float32.",
            results=precision.narrow_products(dtype, xhat), by_size=True)
        for dtype in BOTH
        for name, what, xhat in (("products", "xhat and dy·xhat are", True), ("dy·xhat", "the products dy·xhat are", False))
    },
    "xhat by cancellation": Mistake(
        "xhat is x·rstd - mean·rstd in float32, two large numbers that cancel: subtract the mean from x first.",
        results=precision.uncentred_xhat, by_size=True),
    "results flushed to zero": Mistake(
        "what is smaller than the smallest normal number of a result's dtype is zero: subnormal results are flushed.",
        results=precision.flushed_results),
    "dx flushed to zero": Mistake(
        "what is smaller than the smallest normal number of dx's dtype is zero in dx: subnormal results are flushed.",
        results=lambda call: precision.flushed_results(call, "dx")),
    "inputs flushed to zero": Mistake(
        "subnormal elements of dy, x or gamma are read as zero.", inputs=precision.flushed_inputs),
    "dx truncated": Mistake(
        "dx is cut to its 16 bits, towards zero: round it to nearest, ties to even.",
        results=lambda call: precision.truncated(call, "dx")),
    "results truncated": Mistake(
        "results are cut to their 16 bits, towards zero: round them to nearest, ties to even.",
        results=precision.truncated),
    **{
        f"{name} {dtype}{rest}": Mistake(sentence.format(dtype), results=change(dtype), by_size=by_size, dx_only=True)
        for dtype in BOTH
        for name, rest, sentence, change, by_size in (
            ("norm's part rounded to", " before dtotal is added", "the norm's own part of dx is rounded to {}, and then dtotal "
             "is added: add in float32 and round once.", precision.narrow_before_dtotal, False),
            ("bracket of dx rounded to", "", "dxhat less its two terms is rounded to {} before it is multiplied by rstd: keep "
             "it in float32.", precision.narrow_bracket, False),
            ("dxhat·xhat rounded to", " before its mean", "the products dxhat·xhat are rounded to {} before they are added up: "
             "keep them in float32.", precision.narrow_before_mean, False),
            ("products and row sums rounded to", "", "what the two row sums add is rounded to {}, and so are the sums: keep "
             "them in float32.", precision.narrow_row_sums_once, False),
            ("row sums added up in", "", "the two row sums, and what they add, are kept in {}: keep them in float32.",
             precision.narrow_row_sums, True),
        )
    },
    **{
        f"xhat rounded to {dtype} in dgamma": Mistake(
            f"xhat is rounded to {dtype} before dgamma sums dy·xhat: keep it in float32.",
            results=precision.narrow_xhat(dtype, "dgamma"))
        for dtype in BOTH
    },
    **{
        f"{dtype} sums after each block of {block} rows": Mistake(
            f"dgamma and dbeta are kept in {dtype} from one block of {block} rows to the next: keep them in float32 until all "
            "rows are in them, and round once.",
            results=precision.narrow_sums_of_blocks(dtype, block, each=False), by_size=True, sums_only=True)
        for dtype in BOTH
        for block in (8, 16, 32, 64, 128, 256)
    },
    "half-away rounding": Mistake(
        "ties are rounded away from zero, as Atlas A2 does for bfloat16; the golden rounds them to even.",
        results=precision.half_away, rounding=True),
}  # fmt: skip
