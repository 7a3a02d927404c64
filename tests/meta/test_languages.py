"""A page in two languages has the same sections, tables, code, names and figures in both, so that neither goes stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHINESE = sorted([*ROOT.glob("*.zh-CN.md"), *(ROOT / "docs").rglob("*.zh-CN.md")])
CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)]*)\)")
FIGURE = re.compile(r"\d+(?:[.,]\d+)+×?|\d{2,}×?")  # a single digit may be a word in the other language
# Generated tables, which are in English alone, and what no reader sees.
LEFT_OUT = re.compile(r"<!-- (bench|corpus):begin -->.*?<!-- \1:end -->|<!--.*?-->", re.DOTALL)


def english_of(page):
    return page.with_name(page.name.replace(".zh-CN", ""))


def of_any_language(link):
    """A link without its language, and without the name of a heading, which differs."""
    return link.partition("#")[0].replace(".zh-CN", "")


def content(text):
    """What a translation leaves as it is: names in backticks, figures, links."""
    without_code = SPAN.sub("", text)
    return {
        "names": sorted({" ".join(span.split()) for span in SPAN.findall(text)}),
        "figures": sorted(set(FIGURE.findall(LINK.sub("]", without_code)))),
        "links": sorted({of_any_language(link) for link in LINK.findall(without_code)} - {""}),
    }


def sections(page):
    """Each section's level, code, tables row by row, and prose."""
    text = LEFT_OUT.sub("", page.read_text("utf-8"))
    itself = page.name.partition(".")[0]
    text = re.sub(rf"\]\({itself}(\.zh-CN)?\.md", "](", text)  # a page may send its reader to the other language
    blocks = iter(CODE.findall(text))
    found = []
    for part in re.split(r"^(?=#+ )", CODE.sub("```", text), flags=re.MULTILINE):
        rows = re.findall(r"^\|.*$", part, re.MULTILINE)
        found.append(
            {
                "level": len(re.match("#*", part)[0]),
                "code": [next(blocks) for _ in range(part.count("```"))],
                "tables": [{"cells": row.count("|"), **content(row)} for row in rows],
                "points": len(re.findall(r"^[*-] ", part, re.MULTILINE)),
                **content(re.sub(r"^\|.*$|```", "", part, flags=re.MULTILINE)),
            }
        )
    return found


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_both_languages_have_the_same(page):
    english, chinese = sections(english_of(page)), sections(page)
    assert [section["level"] for section in english] == [section["level"] for section in chinese]
    for number, (ours, theirs) in enumerate(zip(english, chinese, strict=True)):
        for what in ours:
            assert ours[what] == theirs[what], f"section {number}: {what}"


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_a_chinese_page_leads_to_chinese_pages(page):
    """Where there is one; the link on its top leads to the English page, and the English page's to it."""
    other = english_of(page).name
    assert f"[English]({other})" in page.read_text("utf-8").split("##")[0]
    assert f"[中文]({page.name})" in english_of(page).read_text("utf-8").split("##")[0]
    for link in LINK.findall(page.read_text("utf-8")):
        target = page.parent / link.partition("#")[0]
        translated = target.with_suffix(".zh-CN.md")
        assert target.suffix != ".md" or target.name == other or not translated.exists(), link


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_a_chinese_page_marks_links_to_english_ones(page):
    text = page.read_text("utf-8").replace(f"[English]({english_of(page).name})", "")
    for found in re.finditer(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)(（英文）)?", text):
        assert found[1].endswith(".zh-CN.md") != bool(found[2]), found[0]


def test_there_are_pairs():
    names = {page.name for page in CHINESE}
    assert {
        f"{name}.zh-CN.md" for name in ("README", "ascend", "ascend-tile", "ascend-sdk", "ascend-c", "registers")
    } == names
