"""Results in a file as they come, one JSON line each: what --json writes, and what --resume reads."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import IO, Any

from lngrad.check.case import CheckCase
from lngrad.check.judge import Options
from lngrad.check.result import CaseResult
from lngrad.errors import FileFormatError
from lngrad.files.boundary import as_format_error, parse_json, read_text

MOST_BYTES = 1 << 30
_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def key_of(case: CheckCase, options: Options) -> str:
    """Of everything that a result depends on: the case as read, and the options; not the code of the implementation."""
    asked = [options.impl, options.standard, options.level, options.third, options.against, options.seed]
    text = json.dumps([case.to_json(), asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def append(file: IO[str], result: CaseResult) -> None:
    """Write a line at once, so that an interrupted run keeps it."""
    file.write(json.dumps(_plain(result.to_json()), ensure_ascii=False, allow_nan=False) + "\n")
    file.flush()


def read_journal(path: Path) -> dict[str, CaseResult]:
    """Results by key. A last line that was cut off is dropped.

    Raises:
        FileFormatError: Another line is no result; the line is named.
    """
    found: dict[str, CaseResult] = {}
    lines = read_text(path, MOST_BYTES).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        try:
            with as_format_error(where, "expected a result of lngrad check"):
                result = CaseResult.from_json(_numbers(parse_json(line, where)))
        except FileFormatError:
            if number == len(lines):
                break
            raise
        found[result.key] = result
    return found


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: words for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _numbers(value: Any) -> Any:
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return value
