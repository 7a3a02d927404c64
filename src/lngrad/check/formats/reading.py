"""From paths to cases: which format a file has, and which of its cases are wanted."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path

from lngrad.check.case import CheckCase
from lngrad.check.formats.atk import read_atk
from lngrad.check.formats.cells import names_unique
from lngrad.check.formats.dump_names import dumps_in
from lngrad.check.formats.folders import MANIFEST, read_folder
from lngrad.check.formats.own import read_own
from lngrad.check.formats.ttk import read_ttk
from lngrad.errors import FileFormatError
from lngrad.files.boundary import as_format_error, read_text

_READERS: dict[str, Callable[[str, str], list[CheckCase]]] = {
    ".csv": read_ttk, ".json": read_atk, ".yaml": read_own, ".yml": read_own,
}  # fmt: skip


def shipped() -> Path:
    """The case file that comes with lngrad: inside of the installed package, or in cases/ of a checkout."""
    inside = Path(__file__).parents[1] / "cases"
    return (inside if inside.is_dir() else Path(__file__).parents[4] / "cases") / "ttk_aclnn.csv"


def read_cases(paths: Sequence[Path], max_bytes: int) -> list[CheckCase]:
    """The cases of all paths, in their order; a folder without dumps stands for the case files in it.

    Raises:
        FileFormatError: A path can't be read as what its suffix says; file, line and column are named.
    """
    cases = []
    for path in paths:
        with as_format_error(path, "can't be read as cases"):
            cases += _read(path, max_bytes)
    if not cases:
        raise FileFormatError(f"{', '.join(map(str, paths))}: expected at least one case, got none")
    return names_unique(cases)


def _read(path: Path, max_bytes: int) -> list[CheckCase]:
    if path.is_dir():
        inner = sorted(path.iterdir())
        dumped = (path / MANIFEST).is_file() or dumps_in(path) or any(dumps_in(one) for one in inner if one.is_dir())
        files = [one for one in inner if one.suffix in _READERS and one.is_file()]
        folders = [one for one in inner if one.is_dir() and (one / MANIFEST).is_file()]
        if dumped and not files:
            return read_folder(path, max_bytes)
        if (path / MANIFEST).is_file():
            return read_folder(path, max_bytes)
        if not files and not folders:
            raise FileFormatError(f"{path}: expected case files (.csv, .json, .yaml) or a folder of dumps")
        return [case for one in (*files, *folders) for case in _read(one, max_bytes)]
    if path.suffix not in _READERS:
        raise FileFormatError(f"{path}: expected .csv (TTK), .json (ATK), .yaml (lngrad) or a folder")
    return _READERS[path.suffix](read_text(path), str(path))


def select(cases: Sequence[CheckCase], pattern: str | None, limit: int | None) -> list[CheckCase]:
    """The cases whose name matches: a part of it, a shell pattern, or =NAME for exactly one; at most `limit`."""
    chosen = list(cases)
    if pattern:
        if pattern.startswith("="):
            chosen = [case for case in chosen if case.name == pattern[1:]]
        elif set(pattern) & set("*?["):
            chosen = [case for case in chosen if fnmatch.fnmatchcase(case.name, pattern)]
        else:
            chosen = [case for case in chosen if pattern in case.name]
        if not chosen:
            raise FileFormatError(f"--filter: none of {len(cases)} cases matches {pattern!r}")
    return chosen if limit is None else chosen[:limit]
