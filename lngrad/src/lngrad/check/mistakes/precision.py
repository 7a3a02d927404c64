"""Known mistakes of precision: what is rounded too early, kept too narrow, or rounded in another way; and their families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from lngrad.check.mistakes.changes import Changes, ExactCase, Family, each, from_output, narrow_variance
from lngrad.check.mistakes.terms import narrowed, row_mean, row_sum, wide
from lngrad.core.problem import Grads
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array

MAX_SEQUENTIAL = 8192  # rows, or columns, that are added one by one in Python
OF_SUMS = {"xhat of dgamma", "dy·xhat", "dy of dbeta"}
TF32 = {"tf32": (11, np.rint), "tf32 towards zero": (11, np.trunc)}
FORMATS = {**TF32, "two bfloat16": (16, np.rint)}  # digits, the first of which is not stored, and how they become whole
FP8 = {"fp8 E4M3": ml_dtypes.float8_e4m3fn, "fp8 E5M2": ml_dtypes.float8_e5m2}
DIGITS = {"float16": 11, "bfloat16": 8}


def _added(terms: Array, dtype: str, through: type = np.float64) -> Array:
    """The terms along the first axis, added one by one; each sum is rounded to `through`, and then to a narrow dtype."""
    totals = np.zeros(terms.shape[1:], numpy_dtype(dtype))
    for term in terms:
        totals = (totals.astype(np.float64) + term).astype(through).astype(totals.dtype)
    return totals.astype(np.float64)


def rounded(call: ExactCase, *places: str, dtype: str) -> Changes:
    """The right formulas of dx and dgamma, with what stands at some places rounded; only the results that have one of them.

    Args:
        places: Of dx dxhat, xhat, products (dxhat·xhat before their mean), terms (of both row sums), sums, means, bracket (what
            rstd multiplies) and norm (what dtotal is added to); of the column sums those of OF_SUMS.
    """
    t = call.terms
    if "norm" in places and call.inputs.dtotal is None:
        return None

    def at(place: str, value: Array) -> Array:
        return in_format(value, dtype) if place in places else value

    def mean(array: Array) -> Array:
        return at("means", at("sums", row_sum(at("terms", array))) / t.N)

    dxhat, xhat = at("dxhat", t.dxhat), at("xhat", t.xhat)
    first = mean(dxhat) if t.normalization.centred else 0.0
    bracket = at("bracket", dxhat - first - xhat * mean(at("products", dxhat * xhat)))
    grads = {"dx": at("norm", t.rstd * bracket) + t.dtotal}
    sums = {
        "dgamma": at("dy·xhat", t.dy * at("xhat of dgamma", t.xhat)).sum(0),
        "dbeta": at("dy of dbeta", t.dy).sum(0),
    }
    return (grads if {*places} - OF_SUMS else {}) | (sums if {*places} & OF_SUMS else {})


def uncentred_xhat(call: ExactCase) -> Changes:
    """xhat as x·rstd + b with b = −mean·rstd in float32, fused: what b's rounding loses stays."""
    t = call.terms
    bias = (-t.mean * t.rstd).astype(np.float32)
    return t.with_xhat((t.x * t.rstd + bias).astype(np.float32).astype(np.float64))


def narrow_sums(
    call: ExactCase, products: bool = False, only: str = "", *, dtype: str, parts: int = 1, block: int = 0
) -> Changes:
    """Column sums kept in a 16-bit dtype, in `parts` equal blocks of rows, as threads keep them, or in blocks of so many.

    With `products`, these are rounded before they are added; with `only`, the other sum is right.
    """
    t = call.terms
    step = block or max(-(-t.M // parts), 1)
    blocks = -(-t.M // step)
    if block > t.M or min(step, t.M) > MAX_SEQUENTIAL or (not block and (blocks != parts or (parts > 1 and step < 2))):
        return None
    added = np.stack([t.dy * t.xhat, t.dy], axis=1)
    if products:
        added = narrowed(added, dtype)
    padded = np.zeros((blocks * step, *added.shape[1:]))  # an added zero changes no sum
    padded[: t.M] = added
    whole = _added(padded.reshape(blocks, step, *added.shape[1:]).swapaxes(0, 1), dtype).sum(0)
    return {name: sum_ for name, sum_ in zip(("dgamma", "dbeta"), whole, strict=True) if only in ("", name)}


def narrow_sums_of_blocks(call: ExactCase, each: bool, dtype: str, block: int) -> Changes:
    """The sums of blocks of so many rows, added in a narrow dtype: each one rounded before, or with what it is added to."""
    t = call.terms
    starts = np.arange(0, t.M, block)
    if not 2 <= len(starts) <= MAX_SEQUENTIAL:
        return None
    parts = np.add.reduceat(np.stack([t.dy * t.xhat, t.dy], axis=1), starts, axis=0)
    dgamma, dbeta = _added(narrowed(parts, dtype) if each else parts, dtype, np.float64 if each else np.float32)
    return {"dgamma": dgamma, "dbeta": dbeta}


def narrow_groups(call: ExactCase, dtype: str, groups: int) -> Changes:
    """Rounded products added in a narrow dtype, in so many groups of every groups-th row."""
    t = call.terms
    if groups >= t.M or t.M // groups > MAX_SEQUENTIAL:
        return None
    added = narrowed(np.stack([t.dy * t.xhat, t.dy], axis=1), dtype)
    rows = np.concatenate([added, np.zeros((-t.M % groups, *added.shape[1:]))]).reshape(-1, groups, *added.shape[1:])
    dgamma, dbeta = _added(rows, dtype).sum(0)
    return {"dgamma": dgamma, "dbeta": dbeta}


def narrow_row_sums(call: ExactCase, dtype: str) -> Changes:
    """The row sums, and what they add, in a narrow dtype, column by column."""
    t = call.terms
    if not 2 <= t.N <= MAX_SEQUENTIAL:
        return None
    added = np.stack([narrowed(array, dtype) for array in t.averaged])
    first, second = _added(np.moveaxis(added, 2, 0), dtype)[..., None] / t.N
    return {"dx": t.dx(first, second)}


def in_format(array: Array, format: str) -> Array:
    """Numbers of another format: of so many digits, of 16 bits, or of fp8 with its range."""
    if format in FP8:
        return array.astype(np.float32).astype(FP8[format]).astype(np.float64)
    if format not in FORMATS:
        return narrowed(array, format)
    (mantissa, exponent), (digits, whole) = np.frexp(array), FORMATS[format]
    return np.asarray(np.ldexp(whole(np.ldexp(mantissa, digits)), exponent - digits))


def operands(call: ExactCase, format: str, **_: str) -> Changes:
    """The operands of row and column sums in another format, as a matrix unit takes them."""
    t = call.terms
    dy, xhat, dxhat = (in_format(array, format) for array in (t.dy, t.xhat, t.dxhat))
    dx = t.dx(row_mean(dxhat) * t.normalization.centred, row_mean(dxhat * xhat))
    return {"dx": dx, "dgamma": (dy * xhat).sum(0), "dbeta": dy.sum(0)}


def inputs_in_format(call: ExactCase, format: str, **_: str) -> Changes:
    inputs = {name: getattr(call.inputs, name) for name in ("dy", "x", "gamma")}
    changed = {name: in_format(wide(array), format) for name, array in inputs.items() if array is not None}
    return changed if any((array != wide(inputs[name])).any() for name, array in changed.items()) else None


# Of results.


def _cut(call: ExactCase, names: Sequence[str], whole: Callable[[Array], Array]) -> Changes:
    """Results of 16 bits whose digits are made whole numbers by a function."""
    cut = {}
    for name, dtype in call.case.output_dtypes.items():
        if dtype in DIGITS and name in names:
            mantissa, exponent = np.frexp(getattr(call.true, name).astype(np.float32).astype(np.float64))
            cut[name] = np.ldexp(whole(np.ldexp(mantissa, DIGITS[dtype])), exponent - DIGITS[dtype])
    return cut or None


def truncated(call: ExactCase, *names: str) -> Changes:
    """16-bit results cut to their digits, towards zero."""
    return _cut(call, names or Grads._fields, np.trunc)


def half_away(call: ExactCase) -> Changes:
    """Ties rounded away from zero."""
    return _cut(call, Grads._fields, lambda item: np.copysign(np.floor(np.abs(item) + 0.5), item))


def _flushed(array: Array, dtype: str) -> Array:
    return np.where(np.abs(array) < float(ml_dtypes.finfo(numpy_dtype(dtype)).smallest_normal), 0.0, array)


def flushed_results(call: ExactCase, *names: str) -> Changes:
    """What is smaller than the smallest normal number of its dtype is zero."""
    dtypes = {name: call.case.output_dtypes[name] for name in names or call.case.operator.outputs}
    flushed = {name: _flushed(getattr(call.true, name), dtype) for name, dtype in dtypes.items()}
    return flushed if any((flushed[name] != getattr(call.true, name)).any() for name in flushed) else None


def flushed_inputs(call: ExactCase) -> Changes:
    changed = {}
    for name in ("dy", "x", "gamma"):
        if (array := getattr(call.inputs, name)) is not None:
            exact = wide(array)
            changed[name] = _flushed(exact, np.asarray(array).dtype.name)
            if (changed[name] == exact).all():
                del changed[name]
    return changed or None


# The families: the last part of the table.

BOTH = ("bfloat16", "float16")
DTYPES = each(dtype=BOTH)
IN_FORMATS = tuple(
    {"format": name, "digits": f", {FORMATS[name][0]} digits" if name in FORMATS else ""} for name in (*FORMATS, *FP8)
)
PARTS = (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64)  # of the rows: what torch makes of so many threads
BLOCKS = each(dtype=BOTH, block=(32, 64, 128, 256))
ACCUMULATED = "dgamma and dbeta are accumulated in {dtype}"
OF_BLOCKS = " over blocks of {block} rows, whose sums are then added in float32: keep the partial sums in float32 too."
ADD = 'def add(terms):\n    return reduce(lambda total, term: (total + term).astype("{dtype}"), terms, 0)\n'
SUMS = "dgamma, dbeta = ({} for one in (dy * xhat, dy))"
NARROW = 'one.astype("{dtype}")'
IN_BLOCKS = "sum(add(part).astype(x.dtype) for part in np.split({}, range({{block}}, len(dy), {{block}})))"
SHORT = (
    "def short(one):\n    mantissa, exponent = np.frexp(one)\n"
    "    return np.ldexp(np.rint(mantissa * 2.0**11), exponent - 11)  # as tf32\n"
)
OF_PARTS = "np.add.reduceat(one, range(0, len(dy), {block}), axis=0)"


def _sums(code: str, name: str, sentence: str, change: object, values: object, example: str) -> Family:
    return Family(code, name, sentence, results=change, values=values, by_size=True, sums_only=True, example=example)  # type: ignore[arg-type]  # the same types


PRECISION = (
    _sums("LN-P12", "{dtype} sums", ACCUMULATED + ": keep them in float32 and round once.", narrow_sums, DTYPES,
          ADD + SUMS.format("add(one)")),
    _sums("LN-P13", "{dtype} sums in {parts} parts",
          ACCUMULATED + ", in {parts} parts of the rows (one a thread or core, say): keep them in float32 and round once.",
          narrow_sums, each(dtype=BOTH, parts=PARTS),
          ADD + SUMS.format("sum(add(part).astype(x.dtype) for part in np.array_split(one, {parts}))")),
    _sums("LN-P14", "{dtype} sums of rounded products",
          ACCUMULATED + ", and so are the products that are added: keep both in float32 and round once.",
          (narrow_sums, True), DTYPES, ADD + SUMS.format(f"add({NARROW})")),
    _sums("LN-P15", "{dtype} sums in blocks of {block} rows", ACCUMULATED + OF_BLOCKS, narrow_sums, BLOCKS,
          ADD + SUMS.format(IN_BLOCKS.format("one"))),
    _sums("LN-P16", "{dtype} sums in blocks of {block} rows of rounded products", ACCUMULATED + OF_BLOCKS, (narrow_sums, True),
          BLOCKS, ADD + SUMS.format(IN_BLOCKS.format(NARROW))),
    _sums("LN-P17", "{dtype} sums of blocks of {block} rows", "blocks of {block} rows are summed, and these sums are added up "
          "in {dtype}: keep dgamma and dbeta in float32 until all rows are in them, and round once.",
          (narrow_sums_of_blocks, True), each(dtype=BOTH, block=(2, 4, 8, 16, 32, 64, 128, 256)),
          ADD + SUMS.format('add(' + OF_PARTS + '.astype("{dtype}"))')),
    *(_sums(code, f"{{dtype}} sums of {only} alone{', of rounded products' * products}",
            f"{only} is accumulated in {{dtype}}, the other column sum is not: keep it in float32 and round once.",
            (narrow_sums, products, only), DTYPES,
            ADD + f"one = {'dy * xhat' if only == 'dgamma' else 'dy'}\n{only} = add({NARROW if products else 'one'})")
      for code, only, products in (("LN-P18", "dgamma", False), ("LN-P19", "dbeta", False), ("LN-P20", "dgamma", True),
                                   ("LN-P21", "dbeta", True))),
    _sums("LN-P22", "{dtype} sums of {groups} groups of rows", "the partial sums of dgamma and dbeta are kept in {dtype}, "
          "{groups} of them, each of every {groups}th row, as in Triton's tutorial, whose buffers have the weight's dtype: "
          "make them float32.", narrow_groups, each(dtype=BOTH, groups=(64, 96, 128, 256)),
          ADD + SUMS.format('sum(add(one[start::{groups}].astype("{dtype}")).astype(x.dtype) for start in range({groups}))')),
    Family("LN-P23", "xhat rounded to {dtype}", "xhat is rounded to {dtype} before dx and dgamma are computed from it: keep it "
           "in float32.", results=(rounded, "xhat", "xhat of dgamma"), values=DTYPES, example='xhat = xhat.astype("{dtype}")'),
    Family("LN-P24", "products rounded to {dtype}", "xhat and dy·xhat are rounded to {dtype} before they are summed: keep them "
           "in float32.", results=(rounded, "xhat of dgamma", "dy·xhat"), values=DTYPES, by_size=True,
           example='dgamma = (dy * xhat.astype("{dtype}")).astype("{dtype}").sum(0, dtype=x.dtype)'),
    Family("LN-P25", "dy·xhat rounded to {dtype}", "the products dy·xhat are rounded to {dtype} before they are summed: keep "
           "them in float32.", results=(rounded, "dy·xhat"), values=each(dtype=(*BOTH, "tf32 towards zero")), by_size=True,
           example='dgamma = (dy * xhat).astype("{dtype}").sum(0, dtype=x.dtype)'),
    Family("LN-P45", "terms of the column sums rounded to {dtype}", "dy·xhat and dy are rounded to {dtype}, 11 digits, before "
           "they are summed, as a matrix unit takes them: ask for float32 there.",
           results=(rounded, "dy·xhat", "dy of dbeta"), values=each(dtype=tuple(TF32)), by_size=True,
           example=SHORT + "dgamma, dbeta = short(dy * xhat).sum(0), short(dy).sum(0)"),
    Family("LN-P26", "xhat by cancellation", "xhat is x·rstd - mean·rstd in float32, two large numbers that cancel: subtract "
           "the mean from x first.", results=uncentred_xhat, by_size=True,
           example='xhat = (x * rstd + (-mean * rstd).astype("float32")).astype("float32")'),
    Family("LN-P27", "results flushed to zero", "what is smaller than the smallest normal number of a result's dtype is zero: "
           "subnormal results are flushed.", results=flushed_results, example="dx, dgamma, dbeta = "
           "(np.where(np.abs(one) < np.finfo(\"float32\").tiny, 0, one) for one in (dx, dgamma, dbeta))"),
    Family("LN-P28", "dx flushed to zero", "what is smaller than the smallest normal number of dx's dtype is zero in dx: "
           "subnormal results are flushed.", results=(flushed_results, "dx"),
           example='dx = np.where(np.abs(dx) < np.finfo("float32").tiny, 0, dx)'),
    Family("LN-P29", "inputs flushed to zero", "subnormal elements of dy, x or gamma are read as zero.",
           flushed_inputs, example='dy = np.where(np.abs(dy) < np.finfo("float32").tiny, 0, dy)'),
    Family("LN-P30", "dx truncated", "dx is cut to its 16 bits, towards zero: round it to nearest, ties to even.",
           results=(truncated, "dx"), example='dx = (dx.astype("float32").view("int32") & -65536).view("float32")'),
    Family("LN-P31", "results truncated", "results are cut to their 16 bits, towards zero: round them to nearest, ties to "
           "even.", results=truncated, example="dx, dgamma, dbeta = ((one.astype(\"float32\").view(\"int32\") & -65536)"
           ".view(\"float32\") for one in (dx, dgamma, dbeta))"),
    Family("LN-P32", "norm's part rounded to {dtype} before dtotal is added", "the norm's own part of dx is rounded to {dtype}"
           ", and then dtotal is added: add in float32 and round once.", results=(rounded, "norm"), values=DTYPES,
           dx_only=True, norm="add_rms_norm", example='dx = (rstd * (dxhat - xhat * second)).astype("{dtype}") + dtotal'),
    Family("LN-P33", "bracket of dx rounded to {dtype}", "dxhat less its two terms is rounded to {dtype} before it is "
           "multiplied by rstd: keep it in float32.", results=(rounded, "bracket"), values=DTYPES, dx_only=True,
           example='dx = rstd * (dxhat - first - xhat * second).astype("{dtype}")'),
    Family("LN-P34", "dxhat·xhat rounded to {dtype} before its mean", "the products dxhat·xhat are rounded to {dtype} before "
           "they are added up: keep them in float32.", results=(rounded, "products"), values=DTYPES, dx_only=True,
           example='second = (dxhat * xhat).astype("{dtype}").mean(1, keepdims=True, dtype=x.dtype)'),
    Family("LN-P35", "products and row sums rounded to {dtype}", "what the two row sums add is rounded to {dtype}, and so are "
           "the sums: keep them in float32.", results=(rounded, "terms", "sums"), values=DTYPES, dx_only=True,
           example='sums = [one.astype("{dtype}").sum(1, keepdims=True, dtype=x.dtype) for one in (dxhat, dxhat * xhat)]\n'
           'first, second = (one.astype("{dtype}").astype(x.dtype) / x.shape[1] for one in sums)'),
    Family("LN-P36", "row sums added up in {dtype}", "the two row sums, and what they add, are kept in {dtype}: keep them in "
           "float32.", results=narrow_row_sums, values=DTYPES, dx_only=True, by_size=True,
           example=ADD + 'first, second = (add(one.T.astype("{dtype}"))[:, None].astype(x.dtype) / x.shape[1] '
           "for one in (dxhat, dxhat * xhat))"),
    Family("LN-P37", "xhat rounded to {dtype} in dgamma", "xhat is rounded to {dtype} before dgamma sums dy·xhat: keep it in "
           "float32.", results=(rounded, "xhat of dgamma"), values=DTYPES,
           example='dgamma = (dy * xhat.astype("{dtype}")).sum(0)'),
    _sums("LN-P38", "{dtype} sums after each block of {block} rows", "dgamma and dbeta are kept in {dtype} from one block of "
          "{block} rows to the next: keep them in float32 until all rows are in them, and round once.",
          (narrow_sums_of_blocks, False),
          each(dtype=BOTH, block=(8, 16, 32, 64, 128, 256)), ADD + SUMS.format("add(" + OF_PARTS + ")")),
    Family("LN-P39", "half-away rounding", "ties are rounded away from zero, as Atlas A2 does for bfloat16; the golden rounds "
           "them to even.", results=half_away, rounding=True),
    Family("LN-P40", "sums of operands in {format}", "what row and column sums multiply and add is rounded to "
           "{format}{digits}, as a matrix unit takes it: ask for float32 there.", results=operands, values=IN_FORMATS,
           example=SHORT + "first, second = (one.mean(1, keepdims=True) "
           "for one in (short(dxhat), short(dxhat) * short(xhat)))\n"
           "dgamma, dbeta = (short(dy) * short(xhat)).sum(0), short(dy).sum(0)"),
    Family("LN-P41", "dy, x and gamma rounded to {format}", "dy, x and gamma are rounded to {format}{digits} before anything "
           "is computed from them.", inputs_in_format, values=IN_FORMATS,
           example=SHORT + "dy, x, gamma = short(dy), short(x), short(gamma)"),
    Family("LN-P42", "xhat from y rounded to {dtype}", "xhat is recovered as (y - beta)/gamma from a y that is rounded to "
           "{dtype}: keep x, mean and rstd for the backward.", results=from_output, values=DTYPES,
           example='xhat = (xhat * gamma).astype("{dtype}").astype(x.dtype) / gamma'),
    Family("LN-P43", "squares rounded to {dtype} in the variance", "the variance adds squares that are rounded to {dtype}; "
           "float16 has no number beyond 65504, 256 squared: square and add in float32.", (narrow_variance, True),
           values=DTYPES, example='squares = ((x - mean) ** 2).astype("{dtype}").astype(x.dtype)\n'
           "rstd = 1 / np.sqrt(squares.mean(1, keepdims=True) + eps)"),
    Family("LN-P44", "variance with eps rounded to {dtype}", "variance + eps is rounded to {dtype}, in which eps is lost "
           "beside all but the smallest variance: add in float32.", (narrow_variance, False), values=DTYPES,
           example='rstd = 1 / np.sqrt((variance + eps).astype("{dtype}").astype(x.dtype))'),
)  # fmt: skip
