"""A page in two languages has the same sections, tables, code, pictures and figures in both, so that neither goes stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAIRS = [(path.with_name(path.name.replace(".zh-CN", "")), path) for path in sorted(ROOT.glob("*.zh-CN.md"))]
PAIRS += [
    (path.with_name(path.name.replace(".zh-CN", "")), path) for path in sorted((ROOT / "docs").glob("*.zh-CN.md"))
]


def skeleton(page: Path) -> dict[str, list[str]]:
    """What must be the same in both languages. Generated tables and hidden blocks are left out."""
    text = re.sub(
        r"<!-- bench:begin -->.*?<!-- bench:end -->|<!-- invisible.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL
    )
    code = re.findall(r"^ *```.*?^ *```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    rows = [row.strip("| ").partition("|")[0].strip() for row in re.findall(r"^\|.*$", prose, re.MULTILINE)]
    return {
        "sections": [heading.split(" ")[0] for heading in re.findall(r"^#+ ", prose, re.MULTILINE)],
        "code": code,
        "tables": [row for row in rows if "`" in row or re.search(r"\d", row)],
        "pictures": re.findall(r"!\[[^\]]*\]\(([^)]+)\)", prose),
        "bold figures": re.findall(r"\*\*([\d.]+×)\*\*", prose),
        "versions and shapes": re.findall(r"\d+ × \d+|\d+\.\d+\.\d+|\d{1,3},\d{3}", prose),
        "links": sorted(set(re.findall(r"\]\((docs/[^)#]*|[A-Z]+\.md)\)", prose)) - {"README.md"}),
    }


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda path: path.name)
def test_both_languages_have_the_same(english, chinese):
    one, other = skeleton(english), skeleton(chinese)
    for what in one:
        assert one[what] == other[what], what


def test_there_is_a_pair():
    assert (ROOT / "README.md", ROOT / "README.zh-CN.md") in PAIRS
