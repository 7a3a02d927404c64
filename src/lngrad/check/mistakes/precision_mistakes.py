"""Known mistakes of precision: the last part of the table."""

from __future__ import annotations

from lngrad.check.mistakes import precision
from lngrad.check.mistakes.mistake import Family, each

BOTH = ("bfloat16", "float16")
DTYPES = each(dtype=BOTH)
PARTS = (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64)  # of the rows: what torch makes of so many threads
BLOCKS = each(dtype=BOTH, block=(32, 64, 128, 256))
ACCUMULATED = "dgamma and dbeta are accumulated in {dtype}"
OF_BLOCKS = " over blocks of {block} rows, whose sums are then added in float32: keep the partial sums in float32 too."
ADD = 'def add(terms):\n    return reduce(lambda total, term: (total + term).astype("{dtype}"), terms, 0)\n'
SUMS = "dgamma, dbeta = ({} for one in (dy * xhat, dy))"
NARROW = 'one.astype("{dtype}")'
IN_BLOCKS = "sum(add(part).astype(x.dtype) for part in np.split({}, range({{block}}, len(dy), {{block}})))"
OF_PARTS = "np.add.reduceat(one, range(0, len(dy), {block}), axis=0)"


def _sums(code: str, name: str, sentence: str, change: object, values: object, example: str) -> Family:
    return Family(code, name, sentence, results=change, values=values, by_size=True, sums_only=True, example=example)  # type: ignore[arg-type]  # the same types


PRECISION = (
    _sums("LN-P12", "{dtype} sums", ACCUMULATED + ": keep them in float32 and round once.", precision.narrow_sums, DTYPES,
          ADD + SUMS.format("add(one)")),
    _sums("LN-P13", "{dtype} sums in {parts} parts",
          ACCUMULATED + ", in {parts} parts of the rows (one a thread or core, say): keep them in float32 and round once.",
          precision.narrow_sums, each(dtype=BOTH, parts=PARTS),
          ADD + SUMS.format("sum(add(part).astype(x.dtype) for part in np.array_split(one, {parts}))")),
    _sums("LN-P14", "{dtype} sums of rounded products",
          ACCUMULATED + ", and so are the products that are added: keep both in float32 and round once.",
          (precision.narrow_sums, True), DTYPES, ADD + SUMS.format(f"add({NARROW})")),
    _sums("LN-P15", "{dtype} sums in blocks of {block} rows", ACCUMULATED + OF_BLOCKS, precision.narrow_sums, BLOCKS,
          ADD + SUMS.format(IN_BLOCKS.format("one"))),
    _sums("LN-P16", "{dtype} sums in blocks of {block} rows of rounded products", ACCUMULATED + OF_BLOCKS,
          (precision.narrow_sums, True), BLOCKS,
          ADD + SUMS.format(IN_BLOCKS.format(NARROW))),
    _sums("LN-P17", "{dtype} sums of blocks of {block} rows", "blocks of {block} rows are summed, and these sums are added up "
          "in {dtype}: keep dgamma and dbeta in float32 until all rows are in them, and round once.",
          (precision.narrow_sums_of_blocks, True),
          each(dtype=BOTH, block=(2, 4, 8, 16, 32, 64, 128, 256)),
          ADD + SUMS.format('add(' + OF_PARTS + '.astype("{dtype}"))')),
    *(_sums(code, f"{{dtype}} sums of {only} alone{', of rounded products' * products}",
            f"{only} is accumulated in {{dtype}}, the other column sum is not: keep it in float32 and round once.",
            (precision.narrow_sum, only, products), DTYPES,
            ADD + f"one = {'dy * xhat' if only == 'dgamma' else 'dy'}\n{only} = add({NARROW if products else 'one'})")
      for code, only, products in (("LN-P18", "dgamma", False), ("LN-P19", "dbeta", False), ("LN-P20", "dgamma", True),
                                   ("LN-P21", "dbeta", True))),
    _sums("LN-P22", "{dtype} sums of {groups} groups of rows", "the partial sums of dgamma and dbeta are kept in {dtype}, "
          "{groups} of them, each of every {groups}th row, as in Triton's tutorial, whose buffers have the weight's dtype: "
          "make them float32.", precision.narrow_groups, each(dtype=BOTH, groups=(64, 96, 128, 256)),
          ADD + SUMS.format('sum(add(one[start::{groups}].astype("{dtype}")).astype(x.dtype) for start in range({groups}))')),
    Family("LN-P23", "xhat rounded to {dtype}",
           "xhat is rounded to {dtype} before dx and dgamma are computed from it: keep it in float32.",
           results=(precision.rounded, "xhat", "xhat of dgamma"), values=DTYPES,
           example='xhat = xhat.astype("{dtype}")'),
    Family("LN-P24", "products rounded to {dtype}",
           "xhat and dy·xhat are rounded to {dtype} before they are summed: keep them in float32.",
           results=(precision.rounded, "xhat of dgamma", "dy·xhat"), values=DTYPES, by_size=True,
           example='dgamma = (dy * xhat.astype("{dtype}")).astype("{dtype}").sum(0, dtype=x.dtype)'),
    Family("LN-P25", "dy·xhat rounded to {dtype}",
           "the products dy·xhat are rounded to {dtype} before they are summed: keep them in float32.",
           results=(precision.rounded, "dy·xhat"), values=DTYPES, by_size=True,
           example='dgamma = (dy * xhat).astype("{dtype}").sum(0, dtype=x.dtype)'),
    Family("LN-P26", "xhat by cancellation",
           "xhat is x·rstd - mean·rstd in float32, two large numbers that cancel: subtract the mean from x first.",
           results=precision.uncentred_xhat, by_size=True,
           example='xhat = (x * rstd + (-mean * rstd).astype("float32")).astype("float32")'),
    Family("LN-P27", "results flushed to zero", "what is smaller than the smallest normal number of a result's dtype is zero: "
           "subnormal results are flushed.", results=precision.flushed_results, example="dx, dgamma, dbeta = "
           "(np.where(np.abs(one) < np.finfo(\"float32\").tiny, 0, one) for one in (dx, dgamma, dbeta))"),
    Family("LN-P28", "dx flushed to zero", "what is smaller than the smallest normal number of dx's dtype is zero in dx: "
           "subnormal results are flushed.", results=(precision.flushed_results, "dx"),
           example='dx = np.where(np.abs(dx) < np.finfo("float32").tiny, 0, dx)'),
    Family("LN-P29", "inputs flushed to zero", "subnormal elements of dy, x or gamma are read as zero.",
           precision.flushed_inputs, example='dy = np.where(np.abs(dy) < np.finfo("float32").tiny, 0, dy)'),
    Family("LN-P30", "dx truncated", "dx is cut to its 16 bits, towards zero: round it to nearest, ties to even.",
           results=(precision.truncated, "dx"),
           example='dx = (dx.astype("float32").view("int32") & -65536).view("float32")'),
    Family("LN-P31", "results truncated",
           "results are cut to their 16 bits, towards zero: round them to nearest, ties to even.",
           results=precision.truncated, example="dx, dgamma, dbeta = ((one.astype(\"float32\").view(\"int32\") & -65536)"
           ".view(\"float32\") for one in (dx, dgamma, dbeta))"),
    Family("LN-P32", "norm's part rounded to {dtype} before dtotal is added", "the norm's own part of dx is rounded to {dtype}"
           ", and then dtotal is added: add in float32 and round once.", results=(precision.rounded, "norm"), values=DTYPES,
           dx_only=True, norm="add_rms_norm", example='dx = (rstd * (dxhat - xhat * second)).astype("{dtype}") + dtotal'),
    Family("LN-P33", "bracket of dx rounded to {dtype}", "dxhat less its two terms is rounded to {dtype} before it is "
           "multiplied by rstd: keep it in float32.", results=(precision.rounded, "bracket"), values=DTYPES, dx_only=True,
           example='dx = rstd * (dxhat - first - xhat * second).astype("{dtype}")'),
    Family("LN-P34", "dxhat·xhat rounded to {dtype} before its mean", "the products dxhat·xhat are rounded to {dtype} before "
           "they are added up: keep them in float32.", results=(precision.rounded, "products"), values=DTYPES, dx_only=True,
           example='second = (dxhat * xhat).astype("{dtype}").mean(1, keepdims=True, dtype=x.dtype)'),
    Family("LN-P35", "products and row sums rounded to {dtype}", "what the two row sums add is rounded to {dtype}, and so are "
           "the sums: keep them in float32.", results=(precision.rounded, "terms", "sums"), values=DTYPES, dx_only=True,
           example='sums = [one.astype("{dtype}").sum(1, keepdims=True, dtype=x.dtype) for one in (dxhat, dxhat * xhat)]\n'
           'first, second = (one.astype("{dtype}").astype(x.dtype) / x.shape[1] for one in sums)'),
    Family("LN-P36", "row sums added up in {dtype}", "the two row sums, and what they add, are kept in {dtype}: keep them in "
           "float32.", results=precision.narrow_row_sums, values=DTYPES, dx_only=True, by_size=True,
           example=ADD + 'first, second = (add(one.T.astype("{dtype}"))[:, None].astype(x.dtype) / x.shape[1] '
           "for one in (dxhat, dxhat * xhat))"),
    Family("LN-P37", "xhat rounded to {dtype} in dgamma",
           "xhat is rounded to {dtype} before dgamma sums dy·xhat: keep it in float32.",
           results=(precision.rounded, "xhat of dgamma"), values=DTYPES,
           example='dgamma = (dy * xhat.astype("{dtype}")).sum(0)'),
    _sums("LN-P38", "{dtype} sums after each block of {block} rows", "dgamma and dbeta are kept in {dtype} from one block of "
          "{block} rows to the next: keep them in float32 until all rows are in them, and round once.",
          (precision.narrow_sums_of_blocks, False),
          each(dtype=BOTH, block=(8, 16, 32, 64, 128, 256)), ADD + SUMS.format("add(" + OF_PARTS + ")")),
    Family("LN-P39", "half-away rounding",
           "ties are rounded away from zero, as Atlas A2 does for bfloat16; the golden rounds them to even.",
           results=precision.half_away, rounding=True),
)  # fmt: skip
