"""The page docs/versions.md, from the records that scripts/matrix.py keeps in docs/versions.json."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"

# The columns of versions; what else a set brings is in the records.
SHOWN = ("numpy", "numba", "ml_dtypes", "typer", "rich")
DOORS = {"core": "", "jax": "jax", "torch": "torch"}  # what is in front of a set's name

HEAD = """\
# Versions

Made by `make matrix`; the records are in `docs/versions.json`. The sdist and the wheel are built once. For each row
the wheel is installed into an empty environment outside of the checkout, with the lowest or the highest version of
every dependency that `pyproject.toml` claims and this Python has a wheel of. Then a copy of the tests runs there.
"""

CHECKS = """\
* **install**: `pip check` finds no conflict, `import lngrad` comes from the environment, and the sdist installs too.
* **commands**: every command's help; `lngrad`, `info`, `run`, `tiling`, `check` with its HTML report, `demo`.
* **types**, on the highest versions: mypy reads the installed package and reveals the types of a sample.
* **tests**: arguments, float64 reference, golden bits of every dtype, formats of cases;
  for jax and torch the tests of that front door.
"""


class Record(TypedDict, total=False):
    """What one environment showed. A check has the text "passed", or what went wrong."""

    python: str  # "3.12.1"; of one that could not be had, "3.15"
    door: str  # core, jax or torch
    level: str  # lowest, highest, or torch's version
    versions: dict[str, str]
    checks: dict[str, str]
    tests: str  # "512 passed, 3 skipped"
    lngrad: str
    date: str
    missing: str  # why this Python could not be had


def key(record: Record) -> tuple[tuple[int, ...], str, str]:
    """Python's minor version, door and level: a new record takes the place of one with the same key."""
    minor = tuple(int(part) for part in record["python"].split(".")[:2])
    return minor, record.get("door", ""), record.get("level", "")


def read() -> list[Record]:
    """All records, sorted; none where none is kept."""
    return json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else []


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Both, sorted, the new ones in place of old ones. A Python that some machine had is not missing."""
    found = {key(record): record for record in [*old, *new]}
    had = {minor for (minor, _, _), record in found.items() if "missing" not in record}
    kept = [record for (minor, _, _), record in found.items() if "missing" not in record or minor not in had]
    return sorted(kept, key=lambda record: (*key(record)[:2], record.get("level") != "lowest", key(record)))


def passed(record: Record) -> bool:
    """Whether everything that was tried passed, and something was."""
    checks = record.get("checks", {})
    return bool(checks) and all(result == "passed" for result in checks.values())


def result(record: Record) -> str:
    """A row's third cell."""
    failures = [f"**{name}**: {text}" for name, text in record["checks"].items() if text != "passed"]
    return "; ".join(failures) or f"passed, {record['tests'].partition(' ')[0]} tests"


def page(records: list[Record]) -> str:
    """The text of docs/versions.md."""
    had = [record for record in records if "missing" not in record]
    lines = [HEAD, f"| Python | set | result | {' | '.join(SHOWN)} | door | date |", f"|{'---|' * (len(SHOWN) + 5)}"]
    for record in had:
        versions, door = record["versions"], DOORS[record["door"]]
        cells = [record["python"], f"{door} {record['level']}".strip(), result(record)]
        cells += [*(versions.get(name, "–") for name in SHOWN), f"{door} {versions.get(door, '–')}" if door else "–"]
        cells.append(record["date"])
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", CHECKS]
    if missing := [record for record in records if "missing" in record]:
        lines.append("Not had here:\n")
        lines += [f"* Python {record['python']}: {record['missing']}" for record in missing]
        lines.append("")
    lines += ["All versions of each environment, by name:\n"]
    for record in had:
        names = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
        title = f"Python {record['python']}, {DOORS[record['door']]} {record['level']}".replace("  ", " ")
        lines.append(textwrap.fill(f"* {title}: {names}.", 100, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(lines).rstrip() + "\n"


def write(records: list[Record]) -> None:
    """Keep the records, and write the page."""
    RECORDS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(records), encoding="utf-8")
