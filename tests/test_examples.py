"""Every program in examples/ runs to its end: each checks what it claims, and exits with another code where that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = os.pathsep.join(str(ROOT / name / "src") for name in ("lngrad", "lngrad-ascend"))
PROGRAMS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))

NEEDS = {
    "distributed_layer_norm.py": ["torch"],
    "graph_export.py": ["torch"],
    "jax_digits.py": ["jax", "sklearn"],
    "models_against_torch.py": ["torch"],
    "precision_against_torch.py": ["torch"],
    "train_digits.py": ["sklearn"],
    "train_over_processes.py": ["torch"],
    "transformer_digits.py": ["torch", "sklearn", "matplotlib"],
    "triton_kernel.py": ["torch", "triton"],
}
ARGUMENTS = {"train_over_processes.py": ["1"], "transformer_digits.py": ["pictures"]}


# Ten seconds each. The others show the same calls, and tests/distributed what comes of a training step over processes.
DEAR = ["transformer_digits.py", "jax_digits.py", "train_over_processes.py"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in DEAR else name for name in PROGRAMS]
)
def test_the_example_runs(name, tmp_path):
    for module in NEEDS.get(name, []):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")
    command = [sys.executable, str(ROOT / "examples" / name), *ARGUMENTS.get(name, [])]
    # One thread of OpenMP: beside another test, two that wait for each other took ten times as long.
    environment = {
        **os.environ,
        "PYTHONPATH": SOURCES,
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip(), "an example says what it found"


def test_the_table_names_examples_that_exist():
    assert {*NEEDS, *ARGUMENTS} <= set(PROGRAMS)
