"""The house has a budget of lines, files and words, in pyproject.toml; a decision record alone raises it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "decisions" / "0044-a-budget-of-lines-and-words.md"
LONGEST_LINE = 128  # ruff's, for Python; a longer line of any language counts as so many as it would fill
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")  # without their Chinese twins


def budget() -> dict[str, int]:
    """[tool.lngrad.budget] of pyproject.toml; Python 3.10 has no tomllib."""
    table = (ROOT / "pyproject.toml").read_text("utf-8").split("[tool.lngrad.budget]")[1].split("\n[")[0]
    return {name: int(number) for name, number in re.findall(r"^(\w+) = (\d+)", table, re.MULTILINE)}


def source_files() -> list[Path]:
    """Every file under src: those that git tracks or would, or all where this is no checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "src"]
    done = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if (ROOT / ".git").exists()
        else None
    )
    if done is not None and done.returncode == 0:
        return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def lines_of(text: str) -> int:
    return sum(max(1, -(-len(line) // LONGEST_LINE)) for line in text.splitlines())


def counted() -> dict[str, int]:
    """What there is of each thing that the budget limits."""
    files = source_files()
    pages = [page for pattern in PAGES for page in ROOT.glob(pattern) if not page.name.endswith(".zh-CN.md")]
    return {
        "src_lines": sum(lines_of(path.read_text("utf-8")) for path in files),
        "python_files": sum(path.suffix == ".py" for path in files),
        "words": sum(len(page.read_text("utf-8").split()) for page in pages),
    }


def over(limits: Mapping[str, int], found: Mapping[str, int]) -> str:
    """A line for each thing of which there is more than the budget; "" if there is none."""
    return "\n".join(
        f"{name}: {found[name]:,}, {found[name] - limit:,} more than the budget of {limit:,}. Take as much out elsewhere; "
        f"only a row in docs/decisions/{RECORD.name} that says what was bought may raise it."
        for name, limit in limits.items()
        if found[name] > limit
    )


def test_the_house_is_within_its_budget():
    assert (text := over(budget(), counted())) == "", text


@pytest.mark.parametrize("name", ["src_lines", "python_files", "words"])
def test_one_more_than_the_budget_is_noticed(name):
    found = counted()
    assert over(found, found) == ""
    text = over({**found, name: found[name] - 1}, found)
    assert re.match(rf"{name}: [\d,]+, 1 more than the budget of ", text), text
    assert "\n" not in text


def test_long_lines_are_no_saving():
    assert lines_of("\n" + "x" * 128 + "\n" + "x" * 129 + "\n" + "x" * 300) == 1 + 1 + 2 + 3


def test_the_record_of_decisions_has_this_budget():
    """Its newest row has the numbers of pyproject.toml, so that none changes without a row; CONTRIBUTING states them."""
    rows = re.findall(
        r"^\| (\d{4}-\d\d-\d\d) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\S.*) \|$", RECORD.read_text("utf-8"), re.M
    )
    assert [date for date, *_ in rows] == sorted(date for date, *_ in rows)
    newest = [int(number.replace(",", "")) for number in rows[-1][1:4]]
    assert newest == list(budget().values())
    assert list(budget()) == ["src_lines", "python_files", "words"]
    assert all(number in (ROOT / "CONTRIBUTING.md").read_text("utf-8") for number in rows[-1][1:4])
