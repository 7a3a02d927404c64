"""Every known mistake, made on random cases, is named; a right result never is."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from planted import CASE_OF, GIVEN, family, shape

from lngrad.check.calls.kernel import Here
from lngrad.check.case import CheckCase, Source
from lngrad.check.implementations import Implementation, NotApplicable, find
from lngrad.check.implementations.implementation import unprepared
from lngrad.check.inputs import draw, true_grads
from lngrad.check.judge import Options, check_case
from lngrad.check.mistakes.catalogue import FAMILIES, MISTAKES
from lngrad.check.mistakes.diagnosis import diagnose
from lngrad.check.mistakes.symptoms import describe
from lngrad.check.standards import STANDARDS
from lngrad.core.problem import Grads
from lngrad.errors import BackendUnavailable
from lngrad.support.addresses import as_numpy

# By default the first of each family.
FIRST = {next(family.mistakes())[0] for family in FAMILIES}
OF_BACKWARD = [name for name, mistake in MISTAKES.items() if not mistake.family.forward]
ONCE = [pytest.param(name, 1, marks=() if name in FIRST else pytest.mark.slow) for name in OF_BACKWARD]


@pytest.mark.parametrize(
    ("name", "cases"), ONCE + [pytest.param(name, 10, marks=pytest.mark.slow) for name in OF_BACKWARD]
)
def test_every_mistake_is_named_on_nine_of_ten_random_cases(make_case, name, cases):
    named = []
    for seed in range(cases):
        case = make_case(
            **({"name": f"{name} {seed}", "standard": "exact"} | shape(name, seed) | CASE_OF.get(name, {}))
        )
        result = check_case(case, Options(impl=f"mutant:{name}", seed=seed))
        assert result.status == "failed", result
        named.append(family(result.mistake))
    assert named.count(family(name)) >= 0.9 * cases, named


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("standard", ["exact", "mixed", "stat", "close", "cosine", "binary"])
def test_a_right_result_is_never_given_a_mistake(make_case, dtype, standard):
    for seed in range(4):
        case = make_case(dtype=dtype, gamma_dtype=dtype, output_dtypes={},
                         statistics_dtype="float64" if dtype == "float64" else "float32", standard=standard)  # fmt: skip
        result = check_case(case, Options(seed=seed))
        assert result.mistake is None
        assert result.status == "passed" or result.sentence.startswith("no mistake: every element is right")


def right_results(number):
    """Random right results of all our backends, in all dtypes, and their cases."""
    rng = np.random.default_rng(14)
    numpy_cpu, numba_cpu = find("numpy_cpu"), find("numba_cpu")
    triton_gpu = ascend_sim = numpy_cpu
    with suppress(BackendUnavailable):
        ascend_sim = find("ascend_sim")
    with suppress(BackendUnavailable):
        triton_gpu = find("triton_gpu")
        import interpreted  # noqa: F401
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
            output_dtypes={}, ranges=GIVEN if turn % 7 == 0 else ranges,
        )  # fmt: skip
        drawn = draw(case, turn, 0, case.M, 1 << 30)
        try:
            yield case, drawn, impls[turn // 4 % len(impls)](case, drawn)
        except NotApplicable:
            yield case, drawn, numpy_cpu(case, drawn)


def never_named(number):
    for case, drawn, got in right_results(number):
        arrays = got._replace(**{name: as_numpy(array) for name, array in got._asdict().items() if array is not None})
        shares = {name: np.full((1, 1), 2.0) for name in got._fields}
        found = diagnose(case, drawn, arrays, shares)
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
    drawn = draw(case, 0, 0, 40, 1 << 30)
    truth = true_grads(drawn.exact)
    dx = truth.dx.copy()
    dx[:, 64:] = np.sin(3 * dx[:, 64:])
    got = Grads(*(array.astype(np.float32) for array in truth._replace(dx=dx)))
    share = np.where(dx != truth.dx, 2.0, 0.0)
    found = diagnose(case, drawn, got, {"dx": share})
    assert found.mistake is None
    assert "dx: wrong from column 64 to the end, the edge of a tile of 64: the last tile" in found.sentence


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_result_that_hides_what_is_not_finite_is_judged_and_diagnosed(make_case, value):
    """NaN masked to 0, and infinities clamped, in a result whose right one has them."""

    def masked(a):
        with np.errstate(all="ignore"):
            grads = find("numpy_cpu").backward(a)()
        return Grads(*(np.nan_to_num(as_numpy(grad), nan=0.0, posinf=1e4, neginf=-1e4) for grad in grads))

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


@pytest.mark.parametrize(("impl", "status"), [("numba_cpu", "passed"), ("mutant:bfloat16 sums", "failed")])
def test_a_result_much_worse_than_a_third_party_s_fails_the_dual_standard(make_case, impl, status):
    case = make_case(lead=(200,), normalized=(40,), standard="dual")
    result = check_case(case, Options(impl=impl, third="numpy_cpu", level="L0"))
    assert result.status == status, result


NANS = """
import numpy as np
from lngrad import layer_norm_backward
def nan(dy, x, mean, rstd, gamma):
    results = layer_norm_backward(dy, x, mean, rstd, gamma, backend="numpy_cpu")
    return [np.where(np.isinf(array), np.nan, array).astype(array.dtype) for array in results]
"""


@pytest.mark.parametrize("standard", STANDARDS)
def test_nan_where_finite_inputs_overflow_fails_by_every_standard(make_case, tmp_path, standard):
    (tmp_path / "nans.py").write_text(NANS)
    case = make_case(
        lead=(40,), normalized=(64,), dtype="float16", gamma_dtype="float16", ranges={"dy": (30000.0, 60000.0)},
        output_dtypes=dict.fromkeys(("dx", "dgamma", "dbeta"), "float16"),
    )  # fmt: skip
    options = {"standard": standard, "third": "numpy_cpu", "explained": "not"}
    result = check_case(case, Options(impl=f"{tmp_path / 'nans.py'}:nan", **options))
    assert result.status == "failed", result
    assert "got nan" in result.reason


def test_one_result_that_was_never_written_has_a_name(diagnosed):
    for which in ("dgamma", "dbeta"):
        found = diagnosed(lambda t, which=which: {which: np.zeros(t.N)})
        assert found.mistake == f"{which} never written"
    assert (
        diagnosed(lambda t: {"dgamma": np.zeros(t.N), "dbeta": np.zeros(t.N)}).mistake
        == "dgamma and dbeta never written"
    )
    assert (
        diagnosed(lambda t: {"dx": 0 * t.dy, "dgamma": np.zeros(t.N), "dbeta": np.zeros(t.N)}).mistake
        == "never written"
    )


def test_a_division_by_rows_stays_open_where_there_are_as_many_columns(diagnosed):
    found = diagnosed(lambda t: {"dgamma": (t.dy * t.xhat).sum(0) / t.M}, lead=(24,), normalized=(24,))
    assert {found.mistake, *dict(found.alternatives)} == {"dgamma 1/N times", "dgamma 1/M times"}


def test_rstd_squared_and_the_variance_are_told_from_another_rstd(diagnosed):
    facts = {"ranges": {"mean": None, "statistic": None}, "eps": 1e-3, "third": "variance"}
    for name, new in (
        ("rstd squared", lambda t: t.rstd**2),
        ("variance in rstd's place", lambda t: t.rstd**-2.0 - 1e-3),
    ):
        found = diagnosed(lambda t, new=new: t.with_xhat((t.x - t.mean) * new(t), new(t)), **facts)
        assert found.mistake == name
