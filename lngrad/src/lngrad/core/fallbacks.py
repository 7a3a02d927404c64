"""Counts of calls that aten's own kernels computed while ours were in place: in this process, and in the last one that ended.

No torch is imported here, so that `lngrad info` can tell without it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from lngrad.support.cache_folder import trusted_folder, write_whole

MAX_TOLD = 20  # reasons that are kept for the next process, the most frequent ones

_counts: Counter[str] = Counter()


def count(operator: str, reason: object) -> None:
    """Count a call that went to aten's own kernel."""
    if not _counts:
        atexit.register(_keep, os.getpid())
    _counts[f"{operator}: {reason}"] += 1


def counts() -> dict[str, int]:
    """This process's counts by "operator: reason"."""
    return dict(_counts)


def last_run() -> str | None:
    """The record of the last process with fallbacks, a reason a line, or None."""
    try:
        if (file := _file()) is None:
            return None
        kept = json.loads(file.read_text(encoding="utf-8"))
        lines = (f"{number} × {reason}" for reason, number in kept["counts"].items())
        return "\n".join((f"by {kept['program']}, which ended {kept['ended']}, and why:", *lines))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # none, or not one of ours
        return None


def _file() -> Path | None:
    """None where there is no folder that nobody else can write to."""
    folder = trusted_folder(warns=False)
    return None if folder is None else folder / "fallbacks.json"


def _keep(process: int) -> None:
    """Leave the counts for `lngrad info`; a forked child has not counted them, and what can't be written is not needed."""
    if os.getpid() != process:
        return
    kept = {
        "program": Path(sys.argv[0]).name or "python",
        "ended": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "counts": dict(_counts.most_common(MAX_TOLD)),
    }
    with contextlib.suppress(OSError):
        if (file := _file()) is not None:
            write_whole(file, json.dumps(kept).encode())
