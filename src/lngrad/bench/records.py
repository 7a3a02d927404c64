"""Records: one JSON line a timing, append-only, one file a machine."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import lngrad
from lngrad.bench.cases import Job
from lngrad.bench.measure import Timing
from lngrad.system.machine import caches, processor

__all__ = ["append", "machine", "read", "record"]


def machine() -> dict[str, Any]:
    """Processor, threads, last-level cache and system: what a timing can be compared within."""
    found = caches()
    return {
        "cpu": processor(),
        "cores": lngrad.get_num_threads(),
        "cache": found[-1] if found else "unknown",
        "system": f"{platform.system()} {platform.machine()}",
    }


def _commit() -> str:
    folder = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "release"


def record(
    scope: str,
    job: Job,
    timings: dict[str, Timing],
    roofline: Timing | None,
    roofline_bytes: int,
    versions: dict[str, str],
) -> dict[str, Any]:
    """One line: our timing of a job, the ratio to each peer, and the share of the roofline.

    Times are in microseconds a call, bandwidths in GB/s (10^9 bytes).
    """
    ours = timings["lngrad"]
    line: dict[str, Any] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "scope": scope,
        **asdict(job),
        "backend": "numba_cpu",
        "rounds": ours.rounds,
        "time_us": {name: _microseconds(timing) for name, timing in timings.items()},
        "ratio": {name: round(timing.median / ours.median, 3) for name, timing in timings.items() if name != "lngrad"},
        "bytes": job.nbytes,
        "bandwidth": round(job.nbytes / ours.median / 1e9, 2),
    }
    if roofline is not None:
        line["roofline"] = round(roofline_bytes / roofline.median / 1e9, 2)
        line["of_roofline"] = round(line["bandwidth"] / line["roofline"], 3)
    line["commit"] = _commit()
    line["versions"] = {
        "lngrad": lngrad.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        **versions,
    }
    line["machine"] = machine()
    return line


def _microseconds(timing: Timing) -> dict[str, float]:
    return {
        "minimum": round(timing.minimum * 1e6, 2),
        "median": round(timing.median * 1e6, 2),
        "p90": round(timing.p90 * 1e6, 2),
    }


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines to a file of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
