"""host_rules.csv names the tests of each row of docs/ascend.md: rows and tests must exist, and every rule must be there."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import test_graph
import test_rules

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs" / "ascend.md").read_text("utf-8")
with (FOLDER / "host_rules.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))
TEXT = "\n".join(row["tests"] for row in ROWS)
NAMED = re.compile(r"`(?:(test_\w+)\.py::)?(test_\w+)(?:\[([^\]<]+)\])?`")
HOST = [file for folder in ("acl", "aclnn", "graph") for file in (FOLDER / folder).glob("test_*.py")]
IDS = {"test_rule": set(test_rules.RULES), "test_graph": set(test_graph.RULES)}


def test_every_row_is_on_the_page():
    """The return codes of documents, which the page repeats no more, are rows of the file alone."""
    for row in ROWS:
        if row["section"].startswith("Return codes of"):
            continue
        assert f"# {row['section']}\n" in PAGE
        assert not row["row"] or f"| {row['row']} |" in PAGE, row["row"]


def test_every_test_that_a_row_names_exists():
    source = "\n".join(file.read_text() for file in (*HOST, FOLDER / "test_soc.py"))
    functions = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    named = NAMED.findall(TEXT)
    assert len(named) > 100
    for module, function, case in named:
        assert function in functions, function
        assert not case or case in IDS[module or function], case


def test_every_rule_has_a_row():
    assert set(test_rules.RULES) <= {case for module, _, case in NAMED.findall(TEXT) if not module}
