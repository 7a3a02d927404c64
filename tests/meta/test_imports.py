"""`import lngrad` is light, and this test can tell when it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numba", "llvmlite", "torch", "jax", "triton", "matplotlib", "sklearn", "typer", "rich", "safetensors")

PROGRAM = """
import sys
{imports}
print(sorted(name for name in {heavy} if name in sys.modules))
"""


def loaded_by(imports):
    program = PROGRAM.format(imports=imports, heavy=HEAVY)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_import_lngrad_loads_nothing_heavy():
    assert loaded_by("import lngrad") == "[]"


def test_testing_and_reference_load_nothing_heavy():
    assert loaded_by("import lngrad.testing, lngrad.core.reference") == "[]"


def test_jax_is_loaded_by_its_door_alone():
    pytest.importorskip("jax")
    assert "jax" in loaded_by("import lngrad.jax")
    assert loaded_by("import lngrad.core.memory, lngrad.core.fallbacks") == "[]"


def test_no_folder_of_tests_has_the_name_of_a_library(pytestconfig):
    """Where that is not installed, Python would import the folder for it, and nothing would be skipped."""
    for folder in map(Path, pytestconfig.getini("pythonpath")):
        assert not {entry.name for entry in folder.iterdir()} & {*HEAVY, "numpy", "onnx", "mindspore", "transformers"}


@pytest.mark.parametrize("name", ["numba", "rich"])
def test_the_check_can_fail(name):
    assert name in loaded_by(f"import lngrad, {name}")


def test_the_default_backend_loads_numba_to_compile_only(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    call = (  # dbeta alone, which compiles in a second
        "import lngrad, numpy as np; x = np.ones((2, 3), np.float32); "
        "lngrad.layer_norm_backward(x, x, x[:, 0], x[:, 0], output_mask=(False, False, True))"
    )
    assert loaded_by(call) == "['llvmlite', 'numba']"
    assert loaded_by(call) == "[]"


def test_numpy_cpu_needs_no_numba():
    call = "import lngrad, numpy as np; lngrad.layer_norm(np.ones((2, 3), np.float32), backend='numpy_cpu')"
    assert loaded_by(call) == "[]"


def test_layers_are_kept():
    """import-linter's contracts in pyproject.toml."""
    result = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout
