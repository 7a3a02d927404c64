from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tile_harness import SOCS

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name, monkeypatch):
    """Import an example; a tiling struct of its own resolves its types through sys.modules."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("soc", SOCS)
@pytest.mark.parametrize("name", ["ascendc_layer_norm_grad", "ascendc_layer_norm_grad_beta", "ascendc_chain"])
def test_the_sample_kernels_check_themselves(name, soc, capsys, monkeypatch):
    assert load(name, monkeypatch).main(soc) == 0
    assert capsys.readouterr().out.endswith("ok\n")


@pytest.mark.parametrize("soc", SOCS)
def test_the_race_is_found_and_drawn(soc, capsys, monkeypatch, tmp_path):
    picture = tmp_path / "race.svg"
    assert load("ascendc_find_a_race", monkeypatch).main(soc, picture) == 0
    out = capsys.readouterr().out
    assert "DataCopy writes 1024 bytes of a VECCALC TBuf" in out
    assert "HardEvent::V_MTE2" in out
    assert out.endswith("ok\n")
    assert picture.read_text(encoding="utf-8").startswith("<svg")
