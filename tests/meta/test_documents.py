"""Every code block of a page is of a kind that conftest.py runs, or says that it is only shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import PurePath

import pytest

from packages import ROOT, SOURCES, sources, test_files

PAGES = sorted(
    [
        *ROOT.glob("README*.md"),
        *ROOT.glob("lngrad*/README.md"),
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "reference").glob("*.md"),
        *(ROOT / "docs" / "tutorials").glob("*.md"),
    ]
)
FENCE = re.compile(r"^ *(?:```|~~~)(.*)$", re.MULTILINE)
RUN, SHOWN = {"python", "sh", "console", "c", "cpp", "yaml", "json"}, {"text", "mermaid"}
SKIPPED = re.compile(r"<!-- *skip: *next(.*?)-->", re.DOTALL)
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
    for pair in LINK.findall(re.sub(r"`[^`]*`", "", page.read_text("utf-8"))):
        target = pair[0] or pair[1]
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_tests_that_a_page_names_exist():
    tests = "".join(path.read_text("utf-8") for path in test_files())
    for page in [*PAGES, *(ROOT / "docs").glob("*/*.md")]:
        for name in re.findall(r"`(test_\w+)`", page.read_text("utf-8")):
            assert re.search(rf"^ *def {name}\(", tests, re.MULTILINE), f"{page.name}: {name}"


def test_the_index_of_decisions_has_each_once_with_its_title():
    folder = ROOT / "docs" / "decisions"
    pages = sorted(folder.glob("0*.md"))
    rows = re.findall(
        r"^\| (\d+) \| \[(.*)\]\((.*)\) \| \S.* \|$", (folder / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert [name for _, _, name in rows] == [page.name for page in pages]
    assert len({number for number, _, _ in rows}) == len(rows)
    for page, (number, title, name) in zip(pages, rows, strict=True):
        assert int(name[:4]) == int(number)
        assert page.read_text("utf-8").startswith(f"# {number}. {title}\n")


OURS = [ROOT / "CONTRIBUTING.md", *ROOT.glob("lngrad*/README.md"), *sorted((ROOT / "docs").glob("*.md"))]
THEIRS = {
    "dist/",
    "lib64/",
    "fallbacks.json",
    "tiling.json",
    "case.json",
    "manifest.json",
    "my_kernel.py",
    "my_kernels.py",
}  # written, or a user's
NAMED = re.compile(r"`((?:[\w.]+/)+(?:[\w.]+)?|\w+\.(?:py|toml|md|json))`")


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    """By their path from the root, from a package or its folder, or by a name that some folder has."""
    names = {path.name for _, path in sources()} | {f"{path.name}/" for _, path in sources("*") if path.is_dir()}
    for name in NAMED.findall(page.read_text("utf-8")):
        places = [ROOT / name, *(place / name for source in SOURCES.values() for place in (source, source.parent))]
        generic = "NAME" in name or name.endswith(".h") or name in THEIRS
        assert generic or name in names or any(place.exists() for place in places), f"{page.name}: {name}"


def test_the_page_of_rooms_names_every_module():
    """By its name, or by that of its folder inside a room."""
    page = (ROOT / "docs" / "rooms.md").read_text("utf-8")
    named = set(re.findall(r"`(?:\w+/)*(\w+)(?:\.py|/)?`", page))
    modules = [PurePath(name) for name, _ in sources()]
    assert [path for path in modules if not {path.stem, *path.parts[1:-1]} & {*named, "__init__"}] == []


def test_a_block_can_be_run_alone():
    """The last block of a page whose blocks use names of those above."""
    page = "docs/reference/errors.md"
    last = max(
        place for place, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), 1) if line[:4] == ">>> "
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{page}::line:{last},column:1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "1 passed" in result.stdout, result.stdout + result.stderr
