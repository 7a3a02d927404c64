"""Paths that a file names, and files as mapped bytes."""

from __future__ import annotations

import mmap
from pathlib import Path

from lngrad.errors import FileFormatError
from lngrad.files.boundary import parsing


def inside(folder: Path, path: str) -> Path:
    """A path written in a file of a folder; it must stay in that folder.

    Raises:
        FileFormatError: It leaves the folder, or names no regular file.
    """
    where = f"{folder}: {path[:200]!r}"
    with parsing(where, "expected a path"):
        root = folder.resolve()
        full = (root / path).resolve()
        if not full.is_relative_to(root):
            raise FileFormatError(f"{where}: expected a path inside the folder of the file that names it")
        if not full.is_file():
            raise FileFormatError(f"{where}: no such file")
    return full


def map_file(path: Path) -> mmap.mmap | bytes:
    """A file's bytes, read when they are touched. An empty file can't be mapped."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
