"""Where a file's content comes in: one clear error for whatever a parser raises, paths, bytes, text and JSON."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.errors import MISSING, FileFormatError, LngradError, printable

MAX_REASON_CHARACTERS = 160  # characters of the parser's own words
MAX_TEXT_BYTES = 64 << 20
MAX_DIGITS = 40  # of an integer: a longer one becomes a float


@contextmanager
def as_format_error(where: object, what: str) -> Iterator[None]:
    """Turn every exception raised inside into a FileFormatError.

    A damaged file can make a parser raise almost anything: zipfile lets LZMAError, zlib.error and NotImplementedError
    through, the parser of .npy headers TokenError and OverflowError, PyYAML ConstructorError. A list of these is never
    complete, so all are caught here; the original stays the cause, so that a defect of ours can still be found.

    Args:
        where: The file, and the place in it if one is known.
        what: What is wrong if anything is, as "its .npy header is damaged".

    Raises:
        FileFormatError: "WHERE: WHAT (the parser's own words)"; or that the file can't be read.
    """
    try:
        yield
    except LngradError:
        raise
    except OSError as error:
        raise FileFormatError(f"{error.filename or where}: can't be read: {error.strerror or error}") from error
    except Exception as error:
        words = (str(error).splitlines() or [""])[0][:MAX_REASON_CHARACTERS] or type(error).__name__
        raise FileFormatError(f"{where}: {what} ({words})") from error


def inside(folder: Path, path: str) -> Path:
    """A path written in a file of a folder; it must stay in that folder.

    Raises:
        FileFormatError: It leaves the folder, or names no regular file.
    """
    where = f"{folder}: {path[:200]!r}"
    with as_format_error(where, "expected a path"):
        root = folder.resolve()
        full = (root / path).resolve()
        if not full.is_relative_to(root):
            raise FileFormatError(f"{where}: expected a path inside the folder of the file that names it")
        if not full.is_file():
            raise FileFormatError(f"{where}: {MISSING}")
    return full


def check_regular(path: Path) -> None:
    """Refuse what is no file: opening a pipe would wait for a writer, for ever if none comes.

    Raises:
        FileFormatError: It is a folder, a pipe, a socket or a device.
    """
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "pipe" if path.is_fifo() else "socket or device"
        raise FileFormatError(f"{path}: expected a file, got a {kind}")


def one_line(text: str) -> str:
    """A name that a file gives, printable and on one line: a newline in it would forge a line of ours."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def check_whole(name: str, array: Any) -> None:
    """Refuse to touch a mapped array whose file is shorter by now: the system would end the process (SIGBUS).

    Raises:
        FileFormatError: The file was cut off since it was mapped.
    """
    while isinstance(array, (np.ndarray, memoryview)):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    if isinstance(array, mmap.mmap) and array.size() < len(array):
        raise FileFormatError(
            f"{name}: expected a file of {len(array)} bytes as before, got {array.size()}: it was truncated"
        )


def map_file(path: Path) -> mmap.mmap | bytes:
    """A file's bytes, read when they are touched. An empty file can't be mapped."""
    check_regular(path)
    with path.open("rb") as file:
        size = file.seek(0, 2)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """A file of UTF-8, with or without a byte order mark.

    Raises:
        FileFormatError: It can't be read, is longer than max_bytes, or is not UTF-8.
    """
    with as_format_error(path, "can't be read"):
        if path.parent != Path("/dev/fd"):  # a shell's <(command), which has a writer
            check_regular(path)
        size = path.stat().st_size
        if size > max_bytes:
            raise FileFormatError(f"{path}: expected at most {max_bytes} bytes, got {size}")
        content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not UTF-8 at byte {error.start}") from None


def parse_json(text: str, where: object) -> Any:
    """JSON with NaN and Infinity, which Python writes.

    Raises:
        FileFormatError: It is none; line and column are named.
    """
    with as_format_error(where, "is no JSON"):
        try:
            return json.loads(
                text, parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else float(digits)
            )
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{where}: line {error.lineno}, column {error.colno}: {error.msg}") from None
        except RecursionError:
            raise FileFormatError(f"{where}: too many brackets inside each other") from None
