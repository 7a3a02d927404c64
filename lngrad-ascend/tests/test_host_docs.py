"""host_rules.csv names the tests of each row of docs/ascend.md: rows and tests must exist, and every rule must be there."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import test_aclnn_rules
import test_added_norms
import test_fused_norms
import test_graph
import test_layer_norm_rules
import test_rms_norm

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs" / "ascend.md").read_text("utf-8")
with (FOLDER / "host_rules.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))
TEXT = "\n".join(row["tests"] for row in ROWS)
NAMED = re.compile(r"`(?:(test_\w+)\.py::)?(test_\w+)(?:\[([^\]<]+)\])?`")
HOST = (
    "test_acl",
    "test_acl_programs",
    "test_aclnn",
    "test_aclnn_property",
    "test_aclnn_rules",
    "test_added_norm_ops",
    "test_added_norms",
    "test_fused_norms",
    "test_graph",
    "test_graph_torch",
    "test_layer_norm",
    "test_layer_norm_rules",
    "test_rms_norm",
    "test_soc",
)
IDS = {
    "test_rule": set(test_aclnn_rules.RULES),
    "test_difference": set(test_aclnn_rules.DIFFERENCES),
    "test_forward_rule": set(test_layer_norm_rules.RULES),
    "test_forward_difference": set(test_layer_norm_rules.DIFFERENCES),
    "test_added_rule": set(test_added_norms.RULES),
    "test_added_difference": set(test_added_norms.STRICT_RULES),
    "test_fused_rule": set(test_fused_norms.RULES),
    "test_rms_rule": set(test_rms_norm.RULES),
    "test_rms_difference": set(test_rms_norm.STRICT_RULES),
}


def test_every_row_is_on_the_page():
    """The return codes of documents, which the page repeats no more, are rows of the file alone."""
    for row in ROWS:
        if row["section"].startswith("Return codes of"):
            continue
        assert f"# {row['section']}\n" in PAGE
        assert not row["row"] or f"| {row['row']} |" in PAGE, row["row"]


def test_every_test_that_a_row_names_exists():
    source = "\n".join(next(FOLDER.rglob(f"{name}.py")).read_text() for name in HOST)
    functions = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    ids = IDS | {"test_graph": set(test_graph.RULES)}
    named = NAMED.findall(TEXT)
    assert len(named) > 100
    for module, function, case in named:
        assert function in functions, function
        assert not case or case in ids[module or function], case


def test_every_rule_and_difference_has_a_row():
    named = {(function, case) for module, function, case in NAMED.findall(TEXT) if not module}
    for function, cases in IDS.items():
        for case in cases:
            assert (function, case) in named, case
