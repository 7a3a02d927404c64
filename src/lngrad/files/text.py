"""Text and JSON from files: sizes first, then UTF-8, then the grammar; every error names the file and the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lngrad.errors import FileFormatError
from lngrad.files.boundary import parsing

MOST_TEXT_BYTES = 64 << 20
MOST_DIGITS = 40  # of an integer: a longer one becomes a float


def read_text(path: Path, max_bytes: int = MOST_TEXT_BYTES) -> str:
    """A file of UTF-8, with or without a byte order mark.

    Raises:
        FileFormatError: It can't be read, is longer than max_bytes, or is not UTF-8.
    """
    with parsing(path, "can't be read"):
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
    with parsing(where, "is no JSON"):
        try:
            return json.loads(text, parse_int=_integer)
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{where}: line {error.lineno}, column {error.colno}: {error.msg}") from None
        except RecursionError:
            raise FileFormatError(f"{where}: too many brackets inside each other") from None


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= MOST_DIGITS else float(text)
