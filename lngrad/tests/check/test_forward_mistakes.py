"""A wrong forward is named: each mistake by what its example computes, and what no table has by numbers that are fitted."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from lngrad.check.inputs import draw
from lngrad.check.mistakes.catalogue import FAMILIES, MISTAKES
from lngrad.check.mistakes.changes import ForwardCase
from lngrad.check.mistakes.diagnosis import Diagnosis, diagnose
from lngrad.check.mistakes.explain import kernels
from lngrad.check.mistakes.terms import wide
from lngrad.check.truth import scales_of, truth_of
from lngrad.core.norms import NORMS
from lngrad.support.dtypes import accumulator_for, numpy_dtype
from lngrad.testing import error_share

OF_FORWARD = [row for row in FAMILIES if row.forward]
FACTS = {
    "LN-F10": {"wanted": ("y",)}, "LN-F11": {"wanted": ("y",)}, "LN-F12": {"normalized": (5, 6), "wanted": ("y",)},
    "LN-F20": {"ranges": {"x": (-0.006, 0.006)}},
    "LN-F21": {"ranges": {"x": (-6.0, 6.0)}},
}  # fmt: skip


@pytest.fixture
def of_forward(make_case):
    """A case whose forward alone is judged, and its inputs."""

    def computed(wanted=(), **facts):
        ranges = {"mean": None, "statistic": None, "x": (-1.0, 3.0)} | facts.pop("ranges", {})
        facts = {
            "lead": (11,),
            "normalized": (37,),
            "dtype": "float32",
            "gamma_dtype": "float32",
            "output_dtypes": {},
        } | facts
        case = make_case(**facts, ranges=ranges, statistics_dtype=accumulator_for(facts["dtype"]))
        case = replace(case, wanted=wanted or NORMS[case.norm].outputs[len(case.operator.outputs) :], beta=True)
        return case, draw(case, 0, 0, case.M, 1 << 30)

    return computed


def diagnosis_of(case, drawn, results) -> Diagnosis:
    """What is said of float64 results by name, rounded to the case's dtypes."""
    truth, scales = truth_of(case, drawn.exact), scales_of(case, drawn.exact)
    got = {
        name: np.asarray(array).reshape(truth[name].shape).astype(numpy_dtype(case.output_dtypes[name]))
        for name, array in results.items() if name in case.wanted
    }  # fmt: skip
    shares = {
        name: error_share(array, truth[name], scales[name], accumulator_for(array.dtype.name))
        for name, array in got.items()
    }
    wrong = {name: share.reshape(case.M, -1) for name, share in shares.items() if (share > 1).any()}
    assert wrong
    return diagnose(case, drawn, case.results(got), wrong)


def run_example(text, case, inputs):
    N = case.N
    tensors = {name: getattr(inputs, name) for name in ("x", "residual", "gate")}
    arguments = {name: wide(array).reshape(-1, N) for name, array in tensors.items() if array is not None}
    arguments |= {
        name: wide(array).reshape(-1) for name in ("gamma", "beta") if (array := getattr(inputs, name)) is not None
    }
    arguments |= {
        "eps": case.eps,
        "alpha": case.normalization.alpha,
        "lead": case.lead,
        "normalized_shape": case.normalized,
    }
    names = {}
    exec(compile(text, "example", "exec"), names)  # noqa: S102  # the examples are ours
    wanted = re.search(r"def forward\((.*)\)", text)[1].split(", ")
    results = names["forward"](**{name: arguments[name] for name in wanted})
    return dict(zip(re.search(r"return (.*)$", text)[1].split(", "), results, strict=True))


@pytest.mark.parametrize("listed", OF_FORWARD, ids=lambda row: row.code)
def test_an_example_has_its_mistake_and_its_twin_is_right(of_forward, listed):
    name, _ = next(listed.mistakes())
    case, drawn = of_forward(norm=listed.norm, **FACTS.get(listed.code, {}))
    wrong, right = kernels(listed, name)
    computed = run_example(right, case, drawn.exact)
    truth = truth_of(case, drawn.exact)
    for label, array in computed.items() if len(case.wanted) > 1 else ():
        assert np.abs(array.reshape(truth[label].shape) - truth[label]).max() <= 1e-6 * np.abs(truth[label]).max(), (
            label
        )
    found = diagnosis_of(case, drawn, run_example(wrong, case, drawn.exact))
    assert name in (found.mistake, *dict(found.alternatives)), found


@pytest.mark.parametrize(
    "name",
    ["eps outside the root", "variance over N - 1", "variance of a padded row", "mean ignored", "gamma transposed"],
)
def test_a_mistake_of_statistics_or_gamma_is_named_in_a_forward_too(of_forward, name):
    case, drawn = of_forward(normalized=(5, 6), ranges={"x": (-0.003, 0.006)})
    found = diagnosis_of(case, drawn, MISTAKES[name].forward(ForwardCase(case, drawn.exact)))
    assert name in (found.mistake, *dict(found.alternatives)), found


@pytest.mark.parametrize(("change", "name"), [
    (lambda t: {"y": 2 * t["y"]}, "y 2 times"),
    (lambda t: {"y": t["y"] + 1}, "y = xhat·gamma + beta + 1·1"),
    (lambda t: {"y": np.roll(t["y"], 1, 0)}, "rows of y in other places"),
    (lambda t: {"y": np.clip(t["y"], -2, 2)}, "y clipped"),
])  # fmt: skip
def test_a_forward_that_no_known_mistake_explains_has_a_formula(of_forward, change, name):
    case, drawn = of_forward()
    truth = truth_of(case, drawn.exact)
    found = diagnosis_of(case, drawn, truth | change(truth))
    assert found.mistake == name, found
    assert found.formulas
