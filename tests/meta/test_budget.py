"""Each package has a budget of Python tokens, lines of C and lines of src; the pages have one of words: in pyproject.toml."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from functools import cache

import pytest

from packages import ROOT

FOLDERS = {
    "lngrad": ("lngrad",),
    "lngrad-ascend": ("lngrad-ascend",),
    "repository": ("tests", "scripts", "benchmarks"),
}
PAGES = ("*.md", "lngrad*/README.md", "docs/**/*.md")
# Pages that a script writes whole from data or code. Only a page that a test compares with its script belongs here.
GENERATED = {"docs/certificates.md", "docs/mistakes.md", "docs/upstream.md", "docs/versions.md"}
LONGEST_LINE = 128  # ruff's, for Python; a longer line of any language counts as so many as it would fill
KINDS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}

Counts = dict[str, dict[str, int]]


def budget():
    """[tool.lngrad.budget] of pyproject.toml: a table for each row; Python 3.10 has no tomllib."""
    text = (ROOT / "pyproject.toml").read_text("utf-8").split("[tool.lngrad.budget]")[1].split("\n[")[0]
    rows = re.findall(r"^([\w-]+) = \{(.*)\}", text, re.MULTILINE)
    return {name: {what: int(number) for what, number in re.findall(r"(\w+) = (\d+)", row)} for name, row in rows}


def files_of(folders):
    """Every file of these folders: those that git tracks or would, or all where this is no checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if (ROOT / ".git").exists() and found.returncode == 0:
        yield from (path for name in found.stdout.split("\0") if name and (path := ROOT / name).is_file())
    else:
        paths = (path for folder in folders for path in (ROOT / folder).rglob("*"))
        yield from (path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def tokens_of(text):
    """Names, operators, numbers and strings. An f-string is one of them in every Python, as it was before 3.12."""
    count = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name in ("FSTRING_START", "TSTRING_START"):
            count += not depth
            depth += 1
        elif name in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
        elif token.type in KINDS:
            count += not depth
    return count


def lines_of(text):
    return sum(max(1, -(-len(line) // LONGEST_LINE)) for line in text.splitlines())


@cache
def counted():
    """What there is of each thing that the budget limits."""
    found: Counts = {}
    for row, folders in FOLDERS.items():
        numbers = {"tokens": 0, "c_lines": 0, "src_lines": 0}
        for path in files_of(folders):
            if path.suffix == ".py":
                numbers["tokens"] += tokens_of(path.read_text("utf-8"))
            elif path.suffix in (".c", ".h", ".cpp", ".asc"):
                numbers["c_lines"] += lines_of(path.read_text("utf-8"))
            if path.relative_to(ROOT).parts[1] == "src":
                numbers["src_lines"] += lines_of(path.read_text("utf-8"))
        found[row] = {what: number for what, number in numbers.items() if number or row != "repository"}
    pages = {page for pattern in PAGES for page in ROOT.glob(pattern)} - {ROOT / page for page in GENERATED}
    words = sum(len(page.read_text("utf-8").split()) for page in pages if not page.name.endswith(".zh-CN.md"))
    return {**found, "pages": {"words": words}}


def over(limits, found):
    """A line for each thing of which there is more than the budget; "" if there is none."""
    return "\n".join(
        f"{row}: {found[row][what]:,} {what}, {found[row][what] - limit:,} more than the budget of {limit:,}. "
        "Take as much out elsewhere; only a number granted by an issue raises it (docs/decisions/0044-a-budget.md)."
        for row, numbers in limits.items()
        for what, limit in numbers.items()
        if found[row][what] > limit
    )


def test_the_repository_is_within_its_budget():
    assert (text := over(budget(), counted())) == "", text


def test_the_budget_limits_all_that_is_counted():
    assert {row: set(numbers) for row, numbers in budget().items()} == {
        row: set(numbers) for row, numbers in counted().items()
    }


@pytest.mark.parametrize(("row", "what"), [("lngrad", "tokens"), ("lngrad-ascend", "c_lines"), ("pages", "words")])
def test_a_token_more_than_the_budget_is_noticed(row, what):
    found = counted()
    assert over(found, found) == ""
    text = over({**found, row: {**found[row], what: found[row][what] - 1}}, found)
    assert re.match(rf"{row}: [\d,]+ {what}, 1 more than the budget of ", text), text
    assert "\n" not in text


def test_long_lines_and_nested_strings_are_no_saving():
    assert lines_of("\n" + "x" * 128 + "\n" + "x" * 129 + "\n" + "x" * 300) == 1 + 1 + 2 + 3
    assert tokens_of("x, y = f(1), 'a'  # why\n") == 10
    assert tokens_of("text = f'{a} and {f(b)!r:>{width}}'\n") == 3
    assert tokens_of("one_line = (\n    1,\n)\n") == tokens_of("one_line = (1,)\n")


def test_a_generated_page_says_so():
    for name in GENERATED:
        assert re.search(r"scripts/|docs/generate.py|_page.py|make matrix", (ROOT / name).read_text("utf-8")), name
