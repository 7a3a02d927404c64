"""Names say what a thing is: no variable, argument or attribute has a name that is only a word of the sentence around it."""

from __future__ import annotations

import ast

import pytest

from packages import ROOT

WORDS = {"one", "given", "told", "said", "there", "made", "some"}
FOLDERS = ("lngrad", "lngrad-ascend", "tests", "scripts", "benchmarks", "examples", "docs", "cases")


def bindings(tree):
    """Every name that is bound, with its line: by assignment, as a parameter, in a loop, a pattern or an `as`."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


def grammar_in(text):
    return sorted({(name, line) for name, line in bindings(ast.parse(text)) if name in WORDS}, key=lambda pair: pair[1])


def programs():
    yield ROOT / "conftest.py"
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("text", [
    "one = 1", "for given in x: pass", "[told for told in x]", "def f(said): pass", "lambda there: 0", "x.made = 1",
    "with x as some: pass", "import x as one", "(given := 1)", "try: pass\nexcept E as made: pass", "one, two = x",
    "def f(*, told=1): pass", "def f(*some): pass", "match x:\n    case [*said]: pass", "one: int = 1",
])  # fmt: skip
def test_a_binding_is_found(text):
    assert len(grammar_in(text)) == 1


def test_what_is_no_binding_is_left():
    assert grammar_in("from hypothesis import given\n@given(x)\ndef f(x): return x.one + said(some) + f(made=1)") == []


def test_names_are_nouns():
    found = {
        str(path.relative_to(ROOT)): names for path in programs() if (names := grammar_in(path.read_text("utf-8")))
    }
    lines = [f"{path}:{line}: {name}" for path, names in found.items() for name, line in names]
    assert {line for line in lines if line.partition(":")[0] not in LEFT} == set(), "name the thing itself"
    assert [path for path in LEFT if path not in found] == [], "these have none any more: take them off the list"


# Files that still have such names. The list only shrinks.
LEFT: set[str] = set()
