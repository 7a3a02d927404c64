"""Every code block of a page is of a kind that conftest.py runs, or says that it is only shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^ *(?:```|~~~)(.*)$", re.MULTILINE)
RUN, SHOWN = {"python", "sh", "yaml"}, {"text", "c", "cpp", "mermaid"}
SKIPPED = re.compile(r'<!-- *skip: *next(.*?)-->', re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)|!\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_have_a_kind(page):
    fences = FENCE.findall(page.read_text("utf-8"))
    assert len(fences) % 2 == 0
    for language in fences[::2]:
        assert language.strip() in RUN | SHOWN, f"{page.name}: a block of {language or 'no language'!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_fenced(page):
    """Blocks by indentation have no language, so they would never run."""
    inside = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\n\n {4}(?!\s*[-*\d])\S.*", inside) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_that_does_not_run_says_why(page):
    for reason in SKIPPED.findall(page.read_text("utf-8")):
        assert re.search(r"\w{3,} \w+", reason), f"{page.name}: skip: next{reason}"


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / "docs").glob("*/*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for pair in LINK.findall(page.read_text("utf-8")):
        target = pair[0] or pair[1]
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
