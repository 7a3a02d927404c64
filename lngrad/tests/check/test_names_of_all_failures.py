"""The names of all failures of a kernel together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lngrad.check.case import Options
from lngrad.check.reports.journal import Journal, finish, read_journal
from lngrad.check.result import CaseResult, OutputResult, settled, tally
from lngrad.check.verdict import summary

OUTPUT = OutputResult("dx", "float32", (2, 3), False, (), 1.0, 1.0, 1.0, 9.0, ())


def result(mistake: str | None, *alternatives: str, status: Any = "failed", name: str = "case") -> CaseResult:
    return CaseResult(
        name, "memory", status, "", "", "exact", mistake=mistake, sentence=f"about {mistake}",
        alternatives=tuple((alternative, f"about {alternative}") for alternative in alternatives), key=name,
    )  # fmt: skip


def names(*results: CaseResult) -> list[str | None]:
    return [item.mistake for item in settled(results)]


def test_the_number_that_all_cases_have_in_common_is_named():
    """Parts of 8 rows and of 16 leave the same rest of many numbers of rows."""
    drawn = [
        result("parts of 8", "parts of 16"),
        result("parts of 16"),
        result("last row", "parts of 8", "parts of 16"),
    ]
    assert names(*drawn) == ["parts of 16"] * 3
    first = settled(drawn)[0]
    assert first.sentence == "about parts of 16"
    assert first.alternatives == (("parts of 8", "about parts of 8"),)


def test_a_name_that_explains_no_more_cases_than_another_stays():
    assert names(result("a", "b"), result("b", "a")) == ["a", "b"]
    assert names(result("a", "b"), result("a", "b")) == ["a", "a"]


def test_a_name_of_one_case_that_many_others_have_not_becomes_a_likeness():
    failures = [*[result("a")] * 4, result("b"), result(None), result("a; c"), result(None, status="passed")]
    assert names(*failures) == ["a"] * 4 + [None, None, "a; c", None]
    assert settled(failures)[4].sentence == (
        "4 other cases have another mistake: a. This one alone looks like b: about b"
    )
    assert names(*failures[1:]) == ["a"] * 3 + ["b", None, "a; c", None]


@pytest.mark.parametrize("seen", ["not repeatable", "layout ignored", "an earlier call's results"])
def test_what_was_seen_stays_and_outvotes_nothing(seen):
    assert names(*[result("a")] * 9, result(seen)) == ["a"] * 9 + [seen]
    assert names(*[result(seen)] * 9, result("a")) == [seen] * 9 + ["a"]


def test_a_name_at_a_place_is_of_the_kind_of_that_name():
    failures = [*[result("a in dx alone")] * 9, result("a"), result("a in part of the rows; b"), result("b")]
    assert names(*failures) == ["a in dx alone"] * 9 + ["a", "a in part of the rows; b", None]


def test_names_that_most_failures_have_not_are_likenesses_and_all_failures_are_counted():
    """Noise: 64 of 70 failures without a name, and six with one each."""
    unexplained = replace(result(None), sentence="no known mistake explains it. dx: off", outputs=(OUTPUT,))
    failures = [*[unexplained] * 64, *(result(name) for name in "abcdef")]
    assert names(*failures) == [None] * 70
    assert settled(failures)[-1].sentence == "Nothing explains 64 other cases. This one alone looks like f: about f"
    assert tally([*failures, result(None), result(None, status="passed")]) == [
        ("no known mistake", 64), *((name, 1) for name in "abcdef"), ("did not finish", 1)
    ]  # fmt: skip
    assert names(*failures[-25:]) == [None] * 19 + [*"abcdef"]
    assert names(*failures, result("not repeatable")) == [None] * 64 + [*"abcdef", "not repeatable"]


def test_a_mistake_in_several_spellings_is_one():
    """The column that gamma is read from depends on the case's size."""
    failures = [result(f"gamma of the column {size} before in bfloat16") for size in (4, 12, 60)]
    assert tally([*failures, result("b 1e-05")]) == [("gamma of the column … before in bfloat16", 3), ("b 1e-05", 1)]
    assert names(*[result("b")] * 10, *failures) == ["b"] * 10 + [item.mistake for item in failures]
    assert settled([*failures, *failures[:1], result("b")])[-1].sentence.startswith(
        "4 other cases have another mistake: gamma of the column … before in bfloat16. This one"
    )


def test_nothing_becomes_of_nothing():
    assert settled([]) == []
    assert names(result(None), result(None, status="passed")) == [None, None]


def test_a_journal_has_the_names_that_are_settled(tmp_path, make_case):
    path = tmp_path / "results.jsonl"
    failures = [result("parts of 8", "parts of 16", name="one"), result("parts of 16", name="other")]
    with Journal(path) as journal:
        for item in failures:
            journal.append(item)
    cases = [make_case(name=difference.name) for difference in failures]
    finish(path, summary(settled(failures), cases, Options(), None, 1.0))
    assert {item.mistake for item in read_journal(path).values()} == {"parts of 16"}
    assert list(read_journal(path).values()) == settled(failures)


def test_a_run_that_was_stopped_is_no_pass(make_case):
    cases = [make_case(name=name) for name in ("one", "other")]
    passed = [result(None, status="passed", name=case.name) for case in cases]
    assert summary(passed, cases, Options(), None, 1.0).verdict == "PASS"
    stopped = summary(passed[:1], cases, Options(), None, 1.0)
    assert (stopped.verdict, stopped.not_run) == ("INCONCLUSIVE", 1)
    assert summary([result("a", name="one")], cases, Options(), None, 1.0).verdict == "FAIL"


def test_what_parts_failures_without_a_name_from_cases_that_pass_is_their_name(make_case):
    cases = [make_case(name=f"{number}", lead=(2, 3) if number < 3 else (6,)) for number in range(8)]
    nameless = replace(result(None), sentence="no known mistake explains it.")
    results = [
        replace(nameless if number < 3 else result(None, status="passed"), name=f"{number}") for number in range(8)
    ]
    found = summary(results, cases, Options(), None, 1.0)
    assert [(item.name, item.cases) for item in found.mistakes] == [("wrong only for several leading dimensions", 3)]
    assert summary(results, [replace(case, lead=(6,)) for case in cases], Options(), None, 1.0).mistakes[0].name is None
