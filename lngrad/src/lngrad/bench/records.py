"""Records: one JSON line a timing, append-only, one file a machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from lngrad.bench.cases import Job
from lngrad.core.machine import caches, instruction_sets, processor

Record: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, int, Job]
Case: TypeAlias = tuple[int, int, str]  # M, N, dtype

_STANDARD = {"torch", "jax"}


def machine() -> Record:
    """What decides timings: processor, instruction sets, cores, last-level cache, system."""
    found = caches()
    return {
        "cpu": processor(),
        "instruction_sets": instruction_sets(),
        "cores": os.cpu_count(),
        "cache": found[-1] if found else "unknown",
        "system": f"{platform.system()} {platform.machine()}",
    }


def commit() -> str:
    """The commit of the running sources, with + if they are changed; "release" if installed."""
    folder = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()

    found = git("rev-parse", "--short", "HEAD")
    return f"{found}{'+' if git('status', '--porcelain', '.') else ''}" if found else "release"


def threads_of(line: Record) -> int:
    """The threads of a record; the first records have them among the machine's facts."""
    threads: int = line.get("threads") or line["machine"]["cores"]
    return threads


def key_of(line: Record) -> Key:
    """The key of a record."""
    return (
        line["scope"],
        threads_of(line),
        Job(line["M"], line["N"], line["dtype"], line["op"], line.get("norm", "layer_norm")),
    )


def finished(lines: Iterable[Record], peers: Iterable[str], rounds: int) -> dict[Key, Record]:
    """The newest records of what need not be timed again.

    Args:
        lines: Records; those of other sources or another machine do not count.
        peers: That a record must have, or have passed over.
        rounds: That it must have at the least.
    """
    here, now, wanted = machine(), commit(), set(peers)
    return {
        key_of(line): line
        for line in lines
        if line["commit"] == now
        and {name: line["machine"].get(name) for name in here} == here
        and (line["rounds"] >= rounds or line["scope"] == "first_call")
        and wanted <= {*line["ratio"], *line.get("passed_over", ())}
    }


def best(line: Record) -> tuple[str, float]:
    """The fastest peer of a record, and its time ÷ ours: a case is won against this one, or not at all."""
    ratios: dict[str, float] = line["ratio"]
    return min(ratios.items(), key=lambda item: item[1])


def append(path: Path, lines: list[Record]) -> None:
    """Add lines to a file of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read(path: Path) -> list[Record]:
    """All records of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def newest(lines: Iterable[Record], scope: str, threads: int | None = None) -> dict[Case, Record]:
    """The newest record of each case of a scope that was compared with torch or JAX.

    Others, such as MindSpore, are compared in environments of their own, and do not replace it.

    Args:
        lines: Records of one machine.
        scope: Of the records.
        threads: Of the records; None: the most.
    """
    lines = [line for line in lines if line["scope"] == scope and not _STANDARD.isdisjoint(line["ratio"])]
    wanted = threads or max(map(threads_of, lines), default=0)
    return {(line["M"], line["N"], line["dtype"]): line for line in lines if threads_of(line) == wanted}
