"""Where the two packages of the repository are, for tests about both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = {"lngrad": ROOT / "lngrad", "lngrad_ascend": ROOT / "lngrad-ascend"}  # by the name that is imported
SOURCES = {package: folder / "src" / package for package, folder in FOLDERS.items()}
TESTS = (*(folder / "tests" for folder in FOLDERS.values()), ROOT / "tests")


def sources(pattern: str = "*.py") -> Iterator[tuple[str, Path]]:
    """Files of both packages, with the names that pages use: core/plan.py of lngrad, lngrad_ascend/soc.py of the other."""
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob(pattern)):
            yield str(path.relative_to(folder if package == "lngrad" else folder.parent)), path


def source_file(name: str) -> Path:
    """The file that a page calls so."""
    package = "lngrad_ascend" if name.startswith("lngrad_ascend/") else "lngrad"
    return SOURCES[package] / name.removeprefix("lngrad_ascend/")


def test_files() -> Iterator[Path]:
    for folder in TESTS:
        yield from sorted(folder.rglob("test_*.py"))


test_files.__test__ = False  # not a test, though pytest would take it for one where it is imported
