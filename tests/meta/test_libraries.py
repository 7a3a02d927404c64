"""docs/libraries.md is the page of its records, and its findings are scripts that need neither lngrad nor many lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 20


@pytest.fixture
def libraries(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import inspect_libraries

    return inspect_libraries


def test_the_page_is_that_of_its_records(libraries):
    records = libraries.read()
    assert libraries.PAGE.read_text("utf-8") == libraries.page(records)
    assert len({one["package"] if "package" in one else one["title"].partition(",")[0] for one in records}) >= 12


def test_every_norm_that_is_run_is_there(libraries, monkeypatch):
    import library_norms

    names = [name for row in libraries.LIBRARIES.values() for name in row.norms.values()]
    assert [name for name in names if name != "onednn" and not callable(getattr(library_norms, name, None))] == []


def test_a_finding_is_of_a_row_and_its_script_is_short(libraries):
    keys = {one["key"] for one in libraries.read()}
    for one in libraries.FINDINGS:
        assert keys.issuperset(one.keys), one.keys
        if one.script:
            text = (ROOT / "docs" / "libraries" / one.script).read_text("utf-8")
            assert len(text.splitlines()) <= LONGEST, one.script
            assert "lngrad" not in text
    scripts = {path.name for path in (ROOT / "docs" / "libraries").glob("*.py")}
    assert scripts == {one.script for one in libraries.FINDINGS if one.script}
    assert sum(bool(one.script) and not one.known for one in libraries.FINDINGS) >= 3


@pytest.mark.parametrize("name", ["torch_layer_norm_sums.py", "torch_layer_norm_statistics.py"])
def test_scripts_of_torch_run(name):
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "libraries" / name)], capture_output=True, text=True, check=True
    )
    assert "gradient of weight: off by " in done.stdout


def test_cases_for_an_interpreter_are_the_others(libraries, tmp_path):
    large = len(libraries.LARGE)
    made = [path.read_text("utf-8").count("- {name:") for path in libraries._small(tmp_path)]
    shipped = [
        (libraries.CASES / name).read_text("utf-8").count("- {name:") for name in ("default.yaml", "family.yaml")
    ]
    assert made == [shipped[0] - large, shipped[1]]
