"""What `lngrad check --explain` says of a mistake: every example runs, has the mistake, and is right when mended."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import CASE_OF, family, shape

from lngrad.check.inputs import draw
from lngrad.check.mistakes.catalogue import FAMILIES, MISTAKES
from lngrad.check.mistakes.explain import explained, kernels, right_lines
from lngrad.check.mistakes.terms import wide
from lngrad.check.result import SEEN

PAGE = Path(__file__).parents[3] / "docs" / "mistakes.md"
WITHOUT_EXAMPLE = {
    "total not rounded",
    "gamma read in x's dtype",
    "mean and rstd read in x's dtype",
    "half-away rounding",
}


def test_every_family_has_an_example_but_for_four():
    assert {row.name for row in FAMILIES if not row.example} == WITHOUT_EXAMPLE


def run_example(text: str, inputs: Any, eps: float) -> dict[str, Any]:
    """The results of an example's function, called in float64 with rows and columns."""
    N = int(np.prod(inputs.normalized_shape))
    arguments = {
        name: wide(getattr(inputs, name)).reshape(-1, columns)
        for name, columns in {"dy": N, "x": N, "residual": N, "dtotal": N, "mean": 1, "rstd": 1}.items()
        if getattr(inputs, name) is not None
    }
    arguments |= {
        "gamma": np.ones(N) if inputs.gamma is None else wide(inputs.gamma).reshape(-1),
        "variance": np.maximum(arguments["rstd"] ** -2.0 - eps, 0), "eps": eps, "alpha": inputs.normalization.alpha,
        "lead": inputs.x.shape[: -inputs.normalized], "normalized_shape": inputs.normalized_shape,
    }  # fmt: skip
    names: dict[str, Any] = {}
    exec(compile(text, "example", "exec"), names)  # noqa: S102  # the examples are ours
    wanted = re.search(r"def backward\((.*)\)", text)[1].split(", ")
    with np.errstate(all="ignore"):
        results = names["backward"](**{name: arguments[name] for name in wanted})
    return dict(zip(("dx", "dgamma", "dbeta"), results, strict=True))


@pytest.mark.parametrize(
    "listed", [row for row in FAMILIES if row.example and not row.forward], ids=lambda row: row.code
)
def test_an_example_has_its_mistake_and_its_twin_is_right(make_case, judged, listed):
    name, _ = next(listed.mistakes())
    facts = shape(name, 0) | CASE_OF.get(name, {}) | {"norm": listed.norm}
    facts.pop("standard", None)
    case = make_case(**facts)
    drawn = draw(case, 0, 0, case.M, 1 << 30)
    wrong, right = kernels(listed, name)
    assert len(wrong.splitlines()) <= 20
    mended = judged(case, drawn, run_example(right, drawn.exact, case.eps))
    assert mended.mistake is None, mended
    found = judged(case, drawn, run_example(wrong, drawn.exact, case.eps))
    named = {
        family(mistake and mistake.removesuffix(" in dx alone"))
        for mistake in (found.mistake, *dict(found.alternatives))
    }
    assert family(name) in named, found


def test_codes_are_unique_and_the_page_has_them_all(monkeypatch):
    """A code that has been published stays with its family: the page, which docs/generate.py writes, is their list."""
    monkeypatch.syspath_prepend(PAGE.parent)
    import mistakes_page

    assert PAGE.read_text("utf-8") == mistakes_page.page()
    codes = sorted(row.code for row in FAMILIES)
    numbers = Counter(code[3] for code in codes)
    assert codes == [
        f"LN-{letter}{number:02}" for letter in sorted(numbers) for number in range(1, numbers[letter] + 1)
    ]
    assert numbers.keys() == mistakes_page.LETTERS.keys()


def test_a_mistake_is_explained_by_its_name_its_code_and_the_name_of_a_report():
    text = explained("mean of dxhat missing")
    assert text.startswith("LN-X02  mean of dxhat missing\nWhat: dx lacks the row mean of dy·gamma: subtract it.\n")
    assert "Formula: dx = rstd·(dxhat − xhat·mean_dxhat_xhat); right: dx = rstd·(dxhat − mean_dxhat − " in text
    assert "\n    dx = rstd * (dxhat - xhat * second)  # wrong\n" in text
    assert explained("ln-x02") == explained("mean of dxhat missing in part of the rows") == text
    assert explained("bfloat16 sums in 7 parts").startswith("LN-P13  bfloat16 sums in 7 parts\n")
    assert explained("mean of dxhat missing; dy ignored") == f"{text}\n\n{explained('LN-I01')}"
    assert len(right_lines("layer_norm")) == 5


def test_a_misspelt_name_gets_the_nearest_three(run):
    result = run("check", "--explain", "gama forgoten")
    assert result.exit_code == 2
    text_of_output = " ".join(result.output.split())
    assert text_of_output.startswith(
        "lngrad: --explain: expected the name or code of a known mistake, such as gamma forgotten, "
    )
    assert text_of_output.endswith("got 'gama forgoten'")
    mutant = run("check", "--impl", "mutant:gama forgoten")
    assert mutant.exit_code == 2
    assert f"mutant: expected one of {len(MISTAKES)} known mistakes, such as gamma forgotten, " in " ".join(
        mutant.output.split()
    )
    assert run("check", "--explain", "LN-G04").output.startswith("LN-G04  sums added twice\n")


@pytest.mark.parametrize("name", [
    *sorted(name for name in SEEN if name not in MISTAKES), "last part of … rows lost", "dgamma 1/M times; dbeta 1/M times",
    "dx never written", "silu' forgotten in dgate", "dtotal forgotten in the residual's gradient alone",
    "computed in float32", "part of the rows in the column sums", "dy·x for dy·xhat in dgamma", "no known mistake",
    "part of the columns in the mean of dxhat", "mean of dxhat N times",
])  # fmt: skip
def test_names_that_are_in_no_catalogue_are_explained(name):
    assert "\nWhat: " in explained(name)


def test_a_name_of_nothing_gets_no_suggestion():
    with pytest.raises(ValueError, match="of a known mistake, got 'foo bar baz'"):
        explained("foo bar baz")


@pytest.mark.slow
def test_every_mistake_is_explained():
    assert all(explained(name).splitlines()[0].endswith(f"  {name}") for name in MISTAKES)
