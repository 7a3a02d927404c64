from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_host_program_prints_the_documents_values(capsys):
    assert runpy.run_path(str(EXAMPLES / "aclnn_layer_norm_backward.py"))["main"]() == 0
    assert capsys.readouterr().out.splitlines() == [
        "gradInput [[-2.0, -94.0], [-877.5, -1747.5]]",
        "gradWeight [20.0, 62.0]",
        "gradBias [6.0, 8.0]",
        "ok",
    ]


def test_the_exported_graph_runs(capsys):
    pytest.importorskip("torch")
    assert runpy.run_path(str(EXAMPLES / "graph_export.py"))["main"]() == 0
    out = capsys.readouterr().out
    assert "captured lngrad.layer_norm_grad.default, lngrad.layer_norm_grad_v3.default" in out
    assert out.endswith("ok\n")
