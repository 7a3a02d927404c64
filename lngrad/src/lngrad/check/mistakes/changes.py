"""A known mistake, its family, and how it changes a call: its inputs, or the gradients that are computed from right inputs.

A change takes the call and returns what it changes, by name; or None where the mistake makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.inputs import true_grads, with_own_statistics
from lngrad.check.mistakes.terms import OVER, Terms, chunk_means, narrowed, row_mean, terms_of, wide, without_nan
from lngrad.check.truth import true_forward
from lngrad.core import reference
from lngrad.core.problem import LAYER_NORM, Grads, Normalization
from lngrad.support.bounded_cache import cached_property
from lngrad.support.dtypes import UNIT_ROUNDOFF, numpy_dtype
from lngrad.testing import Inputs
from lngrad.typing import Array


@dataclass(frozen=True)
class ExactCase:
    """A case with its inputs, their terms and the right gradients in float64."""

    case: CheckCase
    raw: Inputs

    @cached_property
    def inputs(self) -> Inputs:
        """With the total for x, where there is a residual."""
        return replace(self.raw, x=self.raw.total, residual=None)

    @cached_property
    def terms(self) -> Terms:
        return terms_of(self.inputs)

    @cached_property
    def true(self) -> Grads:
        return true_grads(self.inputs)

    @property
    def centred(self) -> bool:
        return self.inputs.normalization.centred

    @property
    def normalized_axes(self) -> tuple[int, ...]:
        return tuple(range(self.inputs.x.ndim - self.inputs.normalized, self.inputs.x.ndim))

    @property
    def variance(self) -> Array:
        """That rstd was made of, without eps; 0 where nothing is left but rstd's own rounding."""
        under = 1 / wide(self.inputs.rstd) ** 2
        unit = UNIT_ROUNDOFF[np.asarray(self.raw.rstd).dtype.name]
        return np.asarray(np.where(np.abs(under - self.case.eps) <= 4 * unit * under, 0.0, under - self.case.eps))


@dataclass(frozen=True)
class ForwardCase(ExactCase):
    """The forward of a case, with statistics of its own in float64; an x with a gate before the norm is multiplied by it.

    is_cut: To some rows: nothing is known of the others.
    """

    is_cut: bool = False

    @cached_property
    def inputs(self) -> Inputs:
        raw = self.raw
        of_x, _, _ = reference.gate_factors(raw.gate, raw.normalization)
        first = raw.gate is not None and not raw.normalization.norm_before_gate
        x, gate = (wide(raw.x) * of_x, None) if first else (raw.total, raw.gate)
        return with_own_statistics(replace(raw, x=x, residual=None, gate=gate), self.case.eps)

    def y(self, inputs: Inputs | None = None, xhat: Array | None = None, bare: bool = False) -> Array:
        """y of other inputs, of another xhat, or xhat itself."""
        inputs = inputs or self.inputs
        statistics = np.shape(self.inputs.rstd)
        mean, rstd = (wide(array).reshape(statistics) for array in (inputs.mean, inputs.rstd))
        xhat = (wide(inputs.x) - mean) * rstd if xhat is None else xhat
        if bare:
            return xhat
        scale = inputs.normalization.scale(1.0 if inputs.gamma is None else wide(inputs.gamma))
        beta = 0.0 if inputs.beta is None else wide(inputs.beta)
        return np.asarray((xhat * scale + beta) * reference.gate_factors(inputs.gate, inputs.normalization)[1])

    @cached_property
    def results(self) -> dict[str, Array]:
        """The right ones."""
        return true_forward(self.case, self.raw)


Changes: TypeAlias = "dict[str, Any] | None"
Change = Callable[[ExactCase], Changes]
RstdOf = Callable[[Array, float, int], Array]  # from (variance, eps, number of columns)
# Families of statistics, x and gamma that a forward can have as well.
IN_FORWARDS = (
    "S04 S05 S06 S08 S09 S10 S11 S13 S18 S19 S21 S22 S23 S27 S28 P01 P02 P03 P04 P06 P07 P29 P41 P43 P44 "
    "I04 I12 I14 I16 I17 I18 I19 I24 I26 I35 I36 N01 N02 N17"
)
RETURNED = "returned "  # before a statistic of which y has the right one
SAME = 1e-3  # of rstd: what is given is x's own
FEW_COLUMNS = 1024  # of which a wrong gamma is recovered from dx, whatever it is
COMPRESSIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh, "arcsinh": np.arcsinh, "x/(1 + |x|)": lambda item: item / (1 + np.abs(item)),
    "sign·log(1 + |x|)": lambda item: np.sign(item) * np.log1p(np.abs(item)),
    "sign·√|x|": lambda item: np.sign(item) * np.sqrt(np.abs(item)),
}  # fmt: skip
CANCELLED = 1e-5  # of rstd: less is no cancellation


@dataclass(frozen=True)
class Mistake:
    """One mistake: its family with numbers in the fields. It changes the inputs, or else the gradients."""

    family: Family
    sentence: str
    inputs: Change | None
    results: Change | None
    of_forward: Callable[[ForwardCase], Changes] | None = None

    def forward(self, call: ForwardCase) -> dict[str, Array] | None:
        """The forward's results with the mistake, in float64; None where it makes no difference."""
        if self.of_forward is None or not call.inputs.x.size:
            return None
        with np.errstate(all="ignore"):
            if (changed := self.of_forward(call)) is None:
                return None
            inputs = replace(call.inputs, **{name: item for name, item in changed.items() if name in vars(call.inputs)})
            computed: dict[str, Any] = {"y": call.y(inputs), "mean": wide(inputs.mean), "rstd": wide(inputs.rstd)}
        computed["total"] = wide(changed["x"]) if "x" in changed else call.results.get("total")
        computed |= {name.removeprefix(RETURNED): item for name, item in changed.items() if name not in vars(inputs)}
        return {name: without_nan(computed[name].reshape(right.shape), right) for name, right in call.results.items()}

    def changed(self, call: ExactCase) -> Inputs | None:
        """The inputs with the mistake; None where it makes no difference or is none of the inputs."""
        if self.inputs is None or not call.inputs.x.size:
            return None
        with np.errstate(all="ignore"):
            changed = self.inputs(call)
        return None if changed is None else replace(call.inputs, **changed)

    def gradients(self, call: ExactCase) -> Grads | None:
        """The gradients with the mistake, in float64; None where it makes no difference."""
        if self.results is None:
            inputs = self.changed(call)
            grads = None if inputs is None else true_grads(inputs)
        else:
            with np.errstate(all="ignore"):
                changed = self.results(call) if call.inputs.x.size else None
            pairs = zip(Grads._fields, call.true, strict=True)
            grads = (
                None if changed is None else Grads(*(changed.get(name, old).reshape(old.shape) for name, old in pairs))
            )
        return grads if grads is None or self.family.unwritten else Grads(*map(without_nan, grads, call.true))


Changing: TypeAlias = Callable[..., Changes] | tuple[Any, ...]


@dataclass(frozen=True)
class Family:
    """A row of the table: a kind of mistake, what to say about it, and how to make it.

    Attributes:
        code: To cite it. A code is never given to another family.
        name, sentence: With the fields of `values` in braces.
        inputs, results: A change of the inputs, or of the gradients, with what it takes besides the call and the values.
        forward: A change of a forward, of a mistake that is none of a backward; of those in IN_FORWARDS, `inputs` is one.
        values: What the fields are, one mapping a mistake.
        example: Lines of a kernel that has it, in place of the right ones.
        norm: Of the example.
        by_size: Its result depends on an order of sums that only the author knows: alike, not equal.
        rounding: It changes roundings only, so only bits show it.
        unwritten: NaN in its results stands for what memory held.
        sums_only: It leaves dx alone, and takes long to make: not looked at where dgamma and dbeta are right.
        dx_only: The same of dgamma and dbeta.
    """

    code: str
    name: str
    sentence: str
    inputs: Changing | None = None
    results: Changing | None = None
    forward: Changing | None = None
    values: Iterable[Mapping[str, Any]] = ()
    example: str = ""
    norm: str = "layer_norm"
    by_size: bool = False
    rounding: bool = False
    sums_only: bool = False
    dx_only: bool = False
    unwritten: bool = False

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        """Every mistake of the family, by its name."""
        for values in self.values or ({},):
            forward = self.inputs if self.code[3:] in IN_FORWARDS else self.forward
            changes = (
                None if change is None else _with(change, values) for change in (self.inputs, self.results, forward)
            )
            yield self.name.format(**values), Mistake(self, self.sentence.format(**values), *changes)


def _with(change: Changing, values: Mapping[str, Any]) -> Change:
    function, *more = change if isinstance(change, tuple) else (change,)
    return lambda call: function(call, *more, **values)


def each(**fields: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    """Every combination of the fields' values, the first field slowest."""
    return tuple(dict(zip(fields, values, strict=True)) for values in product(*fields.values()))


# Of the inputs.


def rstd_as(call: ExactCase, new: RstdOf) -> Changes:
    return {"rstd": new(call.variance, call.case.eps, call.case.N)}


def with_eps(call: ExactCase, new: Callable[[float], float]) -> Changes:
    """rstd with another eps."""
    if new(call.case.eps) == call.case.eps:
        return None
    return {"rstd": 1 / np.sqrt(np.maximum(call.variance + new(call.case.eps), 0))}


def narrow_statistics(call: ExactCase, *names: str, dtype: str) -> Changes:
    """mean and rstd, or one of them, rounded to 16 bits."""
    narrow = numpy_dtype(dtype)
    if np.asarray(call.inputs.rstd).dtype == narrow or (names == ("mean",) and not call.centred):
        return None
    return {name: wide(np.asarray(getattr(call.inputs, name)).astype(narrow)) for name in names}


def narrow_input(call: ExactCase, name: str, dtype: str) -> Changes:
    """dy, x or gamma rounded to 16 bits; None where it is 16 bits wide already."""
    array = getattr(call.inputs, name)
    if array is None:
        return None
    rounded = wide(np.asarray(array).astype(numpy_dtype(dtype)))
    return None if (rounded == wide(array)).all() else {name: rounded}


def statistics_of(call: ExactCase, x: Any, normalization: Normalization) -> Changes:
    forward = reference.layer_norm(x, normalized=call.inputs.normalized, eps=call.case.eps, normalization=normalization)
    return {"mean": forward.mean, "rstd": forward.rstd}


def statistics_of_x(call: ExactCase) -> Changes:
    return statistics_of(call, call.inputs.x, call.inputs.normalization)


def centred(call: ExactCase, statistics: Change = lambda call: {}) -> Changes:
    """Layer normalization's gradients, of RMSNorm's call with other statistics."""
    if call.centred:
        return None
    return {"normalization": call.inputs.normalization._replace(centred=True), **(statistics(call) or {})}


def rstd_of_layer_norm(call: ExactCase) -> Changes:
    return {"rstd": (statistics_of(call, call.inputs.x, LAYER_NORM) or {})["rstd"]}


def offset_times(call: ExactCase, factor: float) -> Changes:
    norm = call.inputs.normalization
    return {"normalization": norm._replace(offset=factor * norm.offset)} if norm.offset else None


def dtotal_times(call: ExactCase, factor: Any) -> Changes:
    dtotal = call.inputs.dtotal
    return None if dtotal is None else {"dtotal": factor * wide(dtotal)}


def dtotal_in_dy(call: ExactCase) -> Changes:
    inputs = call.inputs
    return None if inputs.dtotal is None else {"dy": wide(inputs.dy) + wide(inputs.dtotal), "dtotal": None}


def dtotal_in_dxhat(call: ExactCase) -> Changes:
    """dtotal added to dy·gamma; without gamma, that is dy."""
    inputs, t = call.inputs, call.terms
    if inputs.dtotal is None or inputs.gamma is None:
        return None
    dy = t.dy + np.where(t.gamma == 0, 0.0, t.dtotal / np.where(t.gamma == 0, 1.0, t.gamma))
    return {"dy": dy.reshape(inputs.dy.shape), "dtotal": None}


def summand(call: ExactCase, own_statistics: bool = False) -> Changes:
    """x alone, without the residual beside it."""
    x = call.raw.x
    if call.raw.residual is None:
        return None
    return {"x": x, **((statistics_of(call, x, call.inputs.normalization) or {}) if own_statistics else {})}


def other_total(call: ExactCase, alpha: float | None, of_residual: float | None, rounded: bool = True) -> Changes:
    """Another sum of x and residual: their factors, None for alpha."""
    x, residual, right = call.raw.x, call.raw.residual, call.inputs.normalization.alpha
    factors = [right if array is None else array for array in (alpha, of_residual)]
    if residual is None or (rounded and right == 1):
        return None
    total = factors[0] * wide(x) + factors[1] * wide(residual)
    return {"x": wide(total.astype(x.dtype)) if rounded else total}


def statistics_of_narrow_x(call: ExactCase, dtype: str) -> Changes:
    x = wide(call.inputs.x)
    rounded = narrowed(x, dtype)
    return None if (rounded == x).all() else statistics_of(call, rounded, call.inputs.normalization)


def recomputed(call: ExactCase, new: RstdOf) -> Changes:
    """Other statistics than those that are given, and with another rstd than x's."""
    own = statistics_of_x(call) or {}
    if np.abs(own["rstd"].reshape(-1) / wide(call.inputs.rstd).reshape(-1) - 1).max() < SAME:
        return None
    variance = np.maximum(1 / own["rstd"] ** 2 - call.case.eps, 0)
    return {"mean": own["mean"], "rstd": new(variance, call.case.eps, call.case.N)}


def corrected(call: ExactCase, outside: bool) -> Changes:
    """The gradients of what divides the variance by N - 1, with eps under the root or outside."""
    t, eps = call.terms, call.case.eps
    if t.N < 2 or not call.centred:
        return None
    root = np.sqrt(np.maximum(call.variance.reshape(t.M, 1), 0) * t.N / (t.N - 1) + (0.0 if outside else eps))
    rstd = 1 / (root + (eps if outside else 0.0))
    xhat = (t.x - t.mean) * rstd
    second = xhat * (t.dxhat * xhat).sum(1, keepdims=True) / (t.N - 1) / (root * rstd)
    return {"dx": rstd * (t.dxhat - row_mean(t.dxhat) - second) + t.dtotal, "dgamma": (t.dy * xhat).sum(0)}


def of_sum_of_squares(call: ExactCase) -> Changes:
    t = call.terms
    root = np.sqrt(t.N)
    return None if t.N < 2 else {"dx": (t.dx() - t.dtotal) / root + t.dtotal, "dgamma": call.true.dgamma / root}


def statistics_of_chunks(call: ExactCase, mean_too: bool, chunk: int) -> Changes:
    """The averages of a row's chunks averaged, the shorter last one as if it were as long."""
    t = call.terms
    if chunk >= t.N or not t.N % chunk:
        return None

    def average(array: Array) -> Array:
        return row_mean(chunk_means(array, chunk))

    mean = (average(t.x) if mean_too else row_mean(t.x)) if call.centred else 0.0
    variance = average((t.x - mean) ** 2)
    shape = np.asarray(call.inputs.rstd).shape
    changed = {"rstd": (1 / np.sqrt(variance + call.case.eps)).reshape(shape)}
    return changed | ({"mean": np.asarray(mean).reshape(shape)} if call.centred else {})


def clamped(call: ExactCase, signed: bool, least: float) -> Changes:
    """xhat from y and a gamma that is clamped."""
    t = call.terms
    size, sign = (np.abs(t.gamma), np.where(t.gamma < 0, -1.0, 1.0)) if signed else (t.gamma, 1.0)
    small = sign * np.maximum(size, least)
    return None if (small == t.gamma).all() else t.with_xhat(t.xhat * t.gamma / small)


def variance_within_chunks(call: ExactCase, chunk: int) -> Changes:
    """Partial variances that are merged without what the chunks' means differ by."""
    t = call.terms
    if chunk >= t.N:
        return None
    between = row_mean((np.repeat(chunk_means(t.x, chunk), chunk, axis=1)[:, : t.N] - row_mean(t.x)) ** 2)
    variance = call.variance - between.reshape(call.variance.shape)
    return {"rstd": 1 / np.sqrt(np.maximum(variance, 0) + call.case.eps)}


def rstd_of_part(call: ExactCase, derived: bool = False, *, share: int) -> Changes:
    """RMSNorm's rstd of the first columns alone; with `derived`, its gradient goes to these alone."""
    t, columns = call.terms, call.terms.N // share
    if call.centred or columns < 1:
        return None
    rstd = 1 / np.sqrt(row_mean(t.x[:, :columns] ** 2) + call.case.eps)
    if not derived:
        return {"rstd": rstd.reshape(np.shape(call.inputs.rstd))}
    xhat = t.x * rstd
    second = xhat * (t.dxhat * xhat).sum(1, keepdims=True) / columns * (np.arange(t.N) < columns)
    return {"dx": rstd * (t.dxhat - second) + t.dtotal, "dgamma": (t.dy * xhat).sum(0)}


def narrow_variance(call: ExactCase, squares: bool, dtype: str) -> Changes:
    """The variance, with eps, in 16 bits; or its squares, which are not finite beyond 255 in float16."""
    if not squares:
        return rstd_as(call, lambda variance, eps, N: 1 / np.sqrt(narrowed(variance + eps, dtype)))
    t = call.terms
    variance = row_mean(narrowed((t.x - t.mean) ** 2, dtype))
    return {"rstd": (1 / np.sqrt(variance + call.case.eps)).reshape(np.shape(call.inputs.rstd))}


def mean_of_x(call: ExactCase) -> Changes:
    return {"mean": wide(call.inputs.x).mean(call.normalized_axes, keepdims=True)}


def uncentred_variance(call: ExactCase) -> Changes:
    squares = (wide(call.inputs.x) ** 2).mean(call.normalized_axes, keepdims=True)
    return {"rstd": 1 / np.sqrt(squares + call.case.eps)}


def cancelling_variance(call: ExactCase) -> Changes:
    """The variance as E[x²] − E[x]², in float32."""
    if not call.centred:
        return None
    x, axes = np.asarray(call.inputs.x).astype(np.float32), call.normalized_axes
    mean = x.mean(axes, keepdims=True, dtype=np.float32)
    variance = (x * x).mean(axes, keepdims=True, dtype=np.float32) - mean * mean
    rstd = 1 / np.sqrt(np.maximum(variance, 0).astype(np.float64) + call.case.eps)
    exact = (statistics_of_x(call) or {})["rstd"]
    return {"rstd": rstd} if np.abs(rstd / exact - 1).max() > CANCELLED else None


def padded_variance(call: ExactCase) -> Changes:
    """The columns that fill a row up to a power of two are zeros, and (0 − mean)² is counted for each."""
    N = call.case.N
    padding = (1 << max(0, N - 1).bit_length()) - N
    if not padding:
        return None
    variance = call.variance.reshape(-1) + padding / N * wide(call.inputs.mean).reshape(-1) ** 2
    return {"rstd": 1 / np.sqrt(variance + call.case.eps)}


# Of the gradients.


def means_times(call: ExactCase, first: float, second: float) -> Changes:
    """Each of the two row means, times a factor."""
    return {"dx": call.terms.dx(first * call.terms.means[0], second * call.terms.means[1])}


def means_divided(call: ExactCase, axis: int | None = None) -> Changes:
    """Both row sums divided by the size of one normalized axis, or by nothing."""
    t, shape = call.terms, call.inputs.normalized_shape
    size = 1 if axis is None else shape[axis] if shape else 0
    return None if size in (0, t.N) else {"dx": t.dx(*(mean * t.N / size for mean in t.means))}


def means_by_column(call: ExactCase, *which: bool) -> Changes:
    """The row means, or one of them, of the row of the column's index in a square tile; 0 beyond the last row."""
    t = call.terms
    if not t.M or t.N < 2 or (which[0] and not call.centred):
        return None
    tile = 1 << (t.N - 1).bit_length()
    rows = np.arange(t.M)[:, None] // tile * tile + np.arange(t.N)
    spread = (np.append(mean, np.zeros(tile))[rows] for mean in t.means)
    return {"dx": t.dx(*(other if wrong else mean for other, mean, wrong in zip(spread, t.means, which, strict=True)))}


def means_over(call: ExactCase, which: str) -> Changes:
    """Both means over something else than the row."""
    t, over = call.terms, OVER[which]
    return {"dx": t.dx(*(over.mean(t, product) for product in t.averaged))} if over.applies(t) else None


def extra_term(call: ExactCase) -> Changes:
    # pd_var·(1/H)·Σ(-2(x - mean)), divided by H: zero where mean is the row's mean.
    t = call.terms
    pd_var = -0.5 * (t.dxhat * t.xhat).sum(1, keepdims=True) * t.rstd**2
    return {"dx": call.true.dx.reshape(t.dy.shape) + pd_var * (-2 * t.xhat / t.rstd).mean(1, keepdims=True) / t.N}


def gamma_in_sums(call: ExactCase) -> Changes:
    t = call.terms
    return None if call.inputs.gamma is None else {"dgamma": (t.dxhat * t.xhat).sum(0), "dbeta": t.dxhat.sum(0)}


def from_output(call: ExactCase, dtype: str = "", whole: bool = True) -> Changes:
    """xhat as y/gamma, of a y rounded to 16 bits, or where gamma is 0; without `whole`, dgamma alone is divided by gamma."""
    t = call.terms
    if call.inputs.gamma is None or not (dtype or (t.gamma == 0).any()):
        return None
    y = t.xhat * t.gamma
    if not whole:
        return {"dgamma": ((t.dy * y).sum(0) / t.gamma[0])}
    return t.with_xhat((narrowed(y, dtype) if dtype else y) / t.gamma)


def compressed(call: ExactCase, function: str) -> Changes:
    """Gradients through a function that makes large ones small."""
    return {name: COMPRESSIONS[function](gradient) for name, gradient in call.true._asdict().items()}


def dx_without_gamma(call: ExactCase) -> Changes:
    """Without gamma, dx is what a dxhat of zeros, or of ones, gives."""
    return None if call.inputs.gamma is not None or call.terms.N < 2 else {"dx": call.terms.dtotal + 0 * call.terms.dy}
