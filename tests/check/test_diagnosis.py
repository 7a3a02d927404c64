"""Every known mistake, made on random cases, is named; a right result never is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lngrad.check.calls.kernel import Here
from lngrad.check.case import CheckCase, Source
from lngrad.check.implementations import Implementation, NotApplicable, find
from lngrad.check.implementations.implementation import unprepared
from lngrad.check.inputs import draw, true_grads
from lngrad.check.judge import Options, check_case
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.diagnosis import diagnose
from lngrad.check.mistakes.symptoms import describe
from lngrad.core.problem import Grads
from lngrad.errors import BackendUnavailable
from lngrad.support.addresses import as_numpy

FROM_X = {"mean": None, "statistic": None}
GIVEN = {"mean": (-1.0, 1.0), "statistic": (0.3, 2.0)}
SMALL = {"ranges": {**FROM_X, "x": (-0.006, 0.006)}, "third": "variance"}
STREAM = {"norm": "add_rms_norm"}
BRAIN = {"dtype": "bfloat16", "gamma_dtype": "bfloat16", "output_dtypes": ("bfloat16",) * 3, "standard": "stable"}
# Where a mistake shows: eps beside a small variance, recomputing where the given statistics are others.
WHERE = {
    "eps added twice": {"ranges": {**FROM_X, "x": (-0.006, 0.006)}, "third": "variance"},
    "eps missing": {"ranges": {**FROM_X, "x": (-0.006, 0.006)}, "third": "variance"},
    "eps 1e-12 for 1e-5": {"ranges": {**FROM_X, "x": (-0.006, 0.006)}, "third": "variance"},
    "eps 1e-5 for 1e-12": {"ranges": {**FROM_X, "x": (-0.006, 0.006)}, "third": "variance", "eps": 1e-12},
    **{
        f"eps {eps:.3g}": {**SMALL, "eps": 3e-6, "norm": "rms_norm"}
        for eps in (1e-3, 1e-6, 1e-8, 2.0**-23, 2.0**-10, 2.0**-7)
    },
    "mean subtracted": {"norm": "rms_norm"},
    "variance about the mean": {"norm": "rms_norm"},
    "mean of dxhat subtracted": {"norm": "gemma_rms_norm"},
    "layer normalization for RMSNorm": STREAM,
    "layer normalization for RMSNorm, with its own statistics": {"norm": "rms_norm"},
    "offset forgotten": {"norm": "gemma_rms_norm"},
    "offset added twice": {"norm": "zero_centred_layer_norm"},
    "dtotal forgotten": STREAM,
    "dtotal added twice": {"norm": "deep_norm"},
    "dtotal times rstd": {"norm": "add_layer_norm"},
    "dtotal added to dy": STREAM,
    "residual forgotten": {"norm": "add_layer_norm"},
    "residual added after the norm": STREAM,
    "alpha forgotten": {"norm": "deep_norm"},
    "alpha on the residual": {"norm": "deep_norm"},
    "total not rounded": {
        "norm": "deep_norm", "dtype": "bfloat16", "gamma_dtype": "bfloat16", "output_dtypes": ("bfloat16",) * 3
    },
    "statistics recomputed": {"ranges": GIVEN},
    "mean recomputed": {"ranges": GIVEN},
    "extra term of the tile formula": {"ranges": GIVEN},
    "uncentred variance": {"ranges": {**FROM_X, "x": (0.5, 2.5)}},
    "variance by cancellation": {"ranges": {**FROM_X, "x": (1000.0, 1001.0)}},
    "eps outside the root": {"ranges": {**FROM_X, "x": (-0.006, 0.006)}},
    "variance over N - 1, in its derivative too": SMALL,
    "variance over N - 1 and eps outside the root, in its derivative too": SMALL,
    "rstd taken for a variance": {"ranges": {**FROM_X, "x": (-6.0, 6.0)}},
    "variance of a padded row": {"ranges": {**FROM_X, "x": (0.0, 2.0)}, "normalized": (37,)},
    "row means rounded to float16": {"standard": "stat"},
    "row means rounded to bfloat16": {"standard": "stat"},
    "products rounded to bfloat16": {"standard": "stat", "lead": (150,)},
    "products rounded to float16": {"standard": "exact", "lead": (150,)},
    **{
        f"{dtype} sums in blocks of {block} rows{rest}": {"lead": (2 * block + 9,)}
        for dtype in ("bfloat16", "float16")
        for block in (32, 64, 128, 256)
        for rest in ("", " of rounded products")
    },
    **{
        f"statistics of x rounded to {dtype}": {"standard": "exact"} for dtype in ("bfloat16", "float16")
    },
    **{
        f"{name}, recomputed from x": {"ranges": {**GIVEN, "x": (-0.006, 0.006)}}
        for name in ("variance over N - 1", "eps outside the root", "eps missing", "eps added twice")
    },
    **{
        f"{kind} averaged over chunks of {chunk}": {"normalized": (chunk + chunk // 2 + 3,)}
        for chunk in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
        for kind in ("statistics", "variance")
    },
    **{
        f"row offset in {kind}{stores}": {"lead": (1300,), "normalized": (61,)}
        for kind in ("int16", "uint16")
        for stores in ("", " of loads and stores")
    },
    **{
        f"gamma broadcast along {axes}": {"normalized": (4, 5, 3)}
        for axes in ("axis 0", "axis 1", "axis 2", "axes 0 and 1", "axes 0 and 2", "axes 1 and 2")
    },
    **{
        f"xhat from y/{how} at {least:g}": {"ranges": {**FROM_X, "gamma": (-3 * least, 3 * least)}}
        for how in ("gamma clamped", "max(gamma)")
        for least in (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
    },
    **{
        f"{dtype} sums of {groups} groups of rows": {"lead": (4 * groups + 9,)}
        for dtype in ("bfloat16", "float16")
        for groups in (64, 96, 128, 256)
    },
    **{
        f"{dtype} sums of blocks of {block} rows": {"lead": (9 * block + 5,)}
        for dtype in ("bfloat16", "float16")
        for block in (2, 4, 8, 16, 32, 64, 128, 256)
    },
    **{
        f"{dtype} sums after each block of {block} rows": {"lead": (9 * block + 5,)}
        for dtype in ("bfloat16", "float16")
        for block in (8, 16, 32, 64, 128, 256)
    },
    **{f"odd partial sum of {rows} rows lost in a tree": {"lead": (11 * rows + 1,)} for rows in (1, 8, 16, 32, 64, 128, 256)},
    **{  # of neighbours a power of two remains, so more than the last part must be lost
        f"odd partial sum of {rows} rows lost in a tree of neighbours": {"lead": ((50 if rows > 1 else 400) * rows,)}
        for rows in (1, 8, 16, 32, 64, 128, 256)
    },
    **{f"dtotal modulo {1 << bits}": {**STREAM, "normalized": ((1 << bits) + 9,)} for bits in range(5, 11)},
    **{f"gamma modulo {1 << bits}": {"lead": (3,), "normalized": (max(1 << bits, 1024) + 9,)} for bits in range(6, 17)},
    **{f"{what} read in x's dtype": {"dtype": "bfloat16"} for what in ("gamma", "mean and rstd")},
    **{f"row index in uint16{rest}": {"lead": (65600,), "normalized": (5,)} for rest in ("", " of loads and stores")},
    **{f"norm's part rounded to {dtype} before dtotal is added": STREAM for dtype in ("bfloat16", "float16")},
    "dx zero without gamma": {"gamma_dtype": None},
    "results flushed to zero": {"ranges": {**FROM_X, "dy": (-3e-38, 3e-38)}},
    "dx flushed to zero": {"ranges": {**FROM_X, "dy": (-3e-38, 3e-38)}},
    "inputs flushed to zero": {"ranges": {**FROM_X, "dy": (-3e-38, 3e-38)}},
    "dx truncated": BRAIN,
    "results truncated": BRAIN,
    **{f"{name} of the column's index": {"lead": (24,), "normalized": (24,)} for name in ("statistics", "mean", "rstd")},
    "dtotal added to dxhat": STREAM,
    "xhat by cancellation": {"ranges": {**FROM_X, "x": (1e6, 1.001e6)}, "normalized": (1,)},
    "half-away rounding": {
        "lead": (3,), "dtype": "bfloat16", "gamma_dtype": "bfloat16", "output_dtypes": ("bfloat16",) * 3,
        "normalized": (400,), "standard": "binary",
    },
}  # fmt: skip
# One result, two names: a variance of 1e-5 does not show whether 1e-12 is added to it.
ALIKE = {"eps 1e-12 for 1e-5": "eps missing"}


def family(name: str | None) -> str:
    """Parts of 16 rows and of 32 leave the same rest of most numbers of rows, and tiles of 16 and of 32 may be one."""
    return re.sub(r" of \d+ |tile \d+|chunks of \d+", " of K ", ALIKE.get(name or "", name or "none"))


def shape(name: str, seed: int) -> dict[str, object]:
    """A random shape that the mistake makes a difference to."""
    rng = np.random.default_rng(seed)
    lead = (int(rng.integers(3, 8)), int(rng.integers(9, 13)))
    normalized = (int(rng.integers(2, 5)), int(rng.integers(5, 8)))
    found = re.search(r"last (?:part|tile) of (\d+)", name)
    if found and "rows" in name:
        lead = (int(found[1]) + int(rng.integers(2, 7)),)
    elif parts := re.search(r"in (\d+) parts", name):
        lead = (int(parts[1]) * int(rng.integers(4, 8)) - 1,)
    elif found:
        lead, normalized = (int(rng.integers(3, 9)),), (int(found[1]) + int(rng.integers(2, 7)),)
    return {"lead": lead, "normalized": normalized}


# Names that differ in their numbers alone are one row of the catalogue: by default the first of them.
FIRST = {re.sub(r"\d+(\.\d+)?(e-\d+)?", "K", name): name for name in reversed(MISTAKES)}.values()
ONCE = [pytest.param(name, 1, marks=() if name in FIRST else pytest.mark.slow) for name in MISTAKES]


@pytest.mark.parametrize(
    ("name", "cases"), ONCE + [pytest.param(name, 10, marks=pytest.mark.slow) for name in MISTAKES]
)
def test_every_mistake_is_named_on_nine_of_ten_random_cases(make_case, name, cases):
    named = []
    for seed in range(cases):
        case = make_case(**({"name": f"{name} {seed}", "standard": "exact"} | shape(name, seed) | WHERE.get(name, {})))
        result = check_case(case, Options(impl=f"mutant:{name}", seed=seed))
        assert result.status == "failed", result
        named.append(family(result.mistake))
    assert named.count(family(name)) >= 0.9 * cases, named


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("standard", ["exact", "mixed", "stat", "close", "cosine", "binary"])
def test_a_right_result_is_never_given_a_mistake(make_case, dtype, standard):
    for seed in range(4):
        case = make_case(dtype=dtype, gamma_dtype=dtype, output_dtypes=(dtype,) * 3,
                         statistics_dtype="float64" if dtype == "float64" else "float32", standard=standard)  # fmt: skip
        result = check_case(case, Options(seed=seed))
        assert result.mistake is None
        assert result.status == "passed" or result.sentence.startswith("no mistake: every element is right")


def right_results(number):
    """Random right results of all our backends, in all dtypes, and their cases."""
    rng = np.random.default_rng(14)
    numpy_cpu, numba_cpu, ascend_sim = (find(name) for name in ("numpy_cpu", "numba_cpu", "ascend_sim"))
    try:
        triton_gpu = find("triton_gpu")
        import interpreted  # noqa: F401
    except BackendUnavailable:
        triton_gpu = numpy_cpu
    # A simulator's call and an interpreter's take a hundred times as long.
    impls = [numba_cpu, numpy_cpu, numba_cpu, ascend_sim, numba_cpu, numpy_cpu, numba_cpu, triton_gpu]
    for turn in range(number):
        dtype = ("float32", "bfloat16", "float16", "float64")[turn % 4]
        lead = tuple(int(size) for size in rng.integers(1, 9, rng.integers(1, 3)))
        normalized = tuple(int(size) for size in rng.integers(1, 12, rng.integers(1, 3)))
        wide = "float64" if dtype == "float64" else "float32"
        parameter = dtype if rng.random() < 0.5 else wide
        ranges = {
            "mean": None,
            "statistic": None,
            "x": tuple(sorted(rng.uniform(-1, 1, 2) * 10.0 ** rng.integers(-3, 4))),
        }
        case = CheckCase(
            name=f"right {turn}", source=Source("memory"), lead=lead, normalized=normalized, dtype=dtype,
            gamma_dtype=parameter if rng.random() < 0.9 else None, statistics_dtype=wide,
            output_dtypes=(dtype, parameter, parameter), ranges=GIVEN if turn % 7 == 0 else ranges,
        )  # fmt: skip
        given = draw(case, turn, 0, case.M, 1 << 30)
        try:
            yield case, given, impls[turn // 4 % len(impls)](case, given)
        except NotApplicable:
            yield case, given, numpy_cpu(case, given)


def never_named(number):
    for case, given, got in right_results(number):
        arrays = Grads(*(as_numpy(one) for one in got))
        shares = {name: np.full((1, 1), 2.0) for name in ("dx", "dgamma", "dbeta")}
        found = diagnose(case, given, arrays, shares)
        assert found.mistake is None, (case, found)
        assert found.sentence.startswith("no mistake: every element is right"), (case, found)


def test_hundreds_of_right_results_are_never_named():
    never_named(400)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_right_results_are_never_named():
    never_named(10_000)


def test_an_unknown_mistake_is_described(make_case):
    case = make_case(lead=(40,), normalized=(96,))
    given = draw(case, 0, 0, 40, 1 << 30)
    truth = true_grads(given.exact)
    dx = truth.dx.copy()
    dx[:, 64:] = np.tanh(dx[:, 64:])
    got = Grads(*(one.astype(np.float32) for one in truth._replace(dx=dx)))
    share = np.where(dx != truth.dx, 2.0, 0.0)
    found = diagnose(case, given, got, {"dx": share})
    assert found.mistake is None
    assert "dx: wrong from column 64 to the end, the edge of a tile of 64: the last tile" in found.sentence


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_result_that_hides_what_is_not_finite_is_judged_and_diagnosed(make_case, value):
    """NaN masked to 0, and infinities clamped, in a result whose right one has them."""

    def masked(a):
        with np.errstate(all="ignore"):
            grads = find("numpy_cpu").backward(a)()
        return Grads(*(np.nan_to_num(as_numpy(one), nan=0.0, posinf=1e4, neginf=-1e4) for one in grads))

    case = make_case(ranges={"mean": None, "statistic": None, "x": (-2.0, 2.0, value), "dy": (-2.0, 2.0, value)})
    result = check_case(case, Options(), lambda name: Here(Implementation("masked", unprepared(masked))))
    assert result.status == "failed"
    assert result.reason.startswith("dx: ")
    assert len(result.outputs) == 3
    assert result.mistake == "NaN or infinity lost"
    assert "are they masked or clamped?" in result.sentence


def test_a_diagnosis_that_fails_leaves_the_verdict(make_case, monkeypatch):
    def fails(*arguments):
        raise np.linalg.LinAlgError("SVD did not converge")

    case = make_case()
    whole = check_case(case, Options(impl="mutant:gamma forgotten"))
    monkeypatch.setattr("lngrad.check.trial.diagnose", fails)
    result = check_case(case, Options(impl="mutant:gamma forgotten"))
    assert (result.status, result.reason, result.outputs) == (whole.status, whole.reason, whole.outputs)
    assert result.mistake is None
    assert result.sentence == "no diagnosis: it failed with LinAlgError: SVD did not converge"


def changed(change):
    golden = np.random.default_rng(0).standard_normal((32, 48))
    got = golden.copy()
    change(got, golden)
    off = ~(np.abs(got - golden) <= 1e-6)
    return describe("dx", got, golden, np.where(off, 2.0, 0.0))


def assign(where, value):
    def change(got, golden):
        got[where] = value

    return change


def scale(where, factor):
    def change(got, golden):
        got[where] *= factor

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (assign(np.s_[3, 5], np.nan), "dx: NaN in 1 of 32 rows, first at row 3, column 5"),
        (assign(np.s_[3, 5], np.inf), "dx: infinity in 1 of 32 rows"),
        (assign(np.s_[:], 0.0), "dx: all zeros: never written"),
        (scale(np.s_[:], 2.0), "dx: 2 times what it should be, everywhere"),
        (scale(np.s_[:], -1.0), "dx: the sign is turned"),
        (scale(np.s_[5], 1.3), "dx: wrong in row 5 only"),
        (scale(np.s_[16:], 1.3), "dx: wrong from row 16 to the end, the edge of a tile of 16: the last tile"),
        (scale(np.s_[4:9], 1.3), "dx: wrong in rows 4 to 8 only"),
        (scale(np.s_[1::4], 1.3), "dx: wrong in every 4th row, from 1 on"),
        (scale(np.s_[:, 2::8], 1.3), "dx: wrong in every 8th column, from 2 on"),
    ],
)
def test_patterns(change, text):
    assert changed(change).startswith(text)


def test_a_result_stored_in_16_bits_on_the_way_is_described():
    import ml_dtypes

    golden = np.random.default_rng(0).standard_normal((32, 48))
    got = golden.astype(ml_dtypes.bfloat16).astype(np.float64)
    text = describe("dx", got, golden, np.full(golden.shape, 2.0))
    assert text == "dx: right to 8 bits: stored or rounded in bfloat16 on the way"


@pytest.mark.parametrize(("impl", "status"), [("numba_cpu", "passed"), ("mutant:bfloat16 sums", "failed")])
def test_a_result_much_worse_than_a_third_party_s_fails_the_dual_standard(make_case, impl, status):
    case = make_case(lead=(200,), normalized=(40,), standard="dual")
    result = check_case(case, Options(impl=impl, third="numpy_cpu", level="L0"))
    assert result.status == status, result
