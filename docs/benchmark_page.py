"""The benchmark page: all records of all machines in one self-contained HTML file.

`make docs` writes docs/benchmarks.html with it. The page loads nothing and sends nothing; its script filters and
draws what is embedded in it.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmark_tables import SCOPES

from lngrad.bench.records import Record, threads_of
from peer_libraries.plots import PEER_NAMES

__all__ = ["page"]

TEMPLATE = Path(__file__).with_name("benchmarks.template.html")
MARK = "/*RECORDS*/"


def page(machines: dict[str, list[Record]]) -> str:
    """The page of records by the name of their machine."""
    data = {
        "machines": list(machines),
        "scopes": list(SCOPES),
        "peers": PEER_NAMES,
        "records": [
            _compact(number, line)
            for number, lines in enumerate(machines.values())
            for line in lines
            if line["scope"] in SCOPES and line["ratio"]
        ],
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    template = TEMPLATE.read_text(encoding="utf-8")
    return template.replace(MARK, text)


def _compact(machine: int, line: Record) -> Record:
    """What the page shows of a record."""
    return {
        "machine": machine,
        "scope": line["scope"],
        "threads": threads_of(line),
        "M": line["M"],
        "N": line["N"],
        "dtype": line["dtype"],
        "date": line["date"],
        "commit": line["commit"],
        "us": line["time_us"]["lngrad"]["median"],
        "ratio": line["ratio"],
        "roofline": line.get("of_roofline"),
        "versions": {name: line["versions"][name] for name in line["ratio"] if name in line["versions"]},
    }
