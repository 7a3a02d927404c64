"""lngrad over several processes. The checks are in distributed_checks.py; here is what became of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.tensor")
sys.path.insert(0, str(Path(__file__).parent))

import distributed_checks  # torch may be missing
import distributed_harness

NAMED = [(size, name) for size, checks in distributed_checks.CHECKS.items() for name in checks]


@pytest.mark.timeout(600)  # the first check of a world waits for all of them, and perhaps for kernels to be compiled
@pytest.mark.parametrize(("size", "name"), NAMED, ids=lambda value: str(value))
def test_in_a_world(size, name):
    ranks = distributed_harness.results("distributed_checks")[size, name]
    errors = [text for rank, text in enumerate(ranks) if text and rank != distributed_checks.SILENT.get(name)]
    assert not errors, "\n".join(errors)


@pytest.mark.slow  # Inductor compiles C++ in both processes
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("way", ["override", "patch", "module"])
def test_compiled_data_parallel_training(way):
    assert distributed_harness.results("distributed_compiled")[2, way] == ["", ""]


def test_lngrad_torch_leaves_dtensors_alone():
    """They take a second to import."""
    heavy = ("torch.distributed.tensor", "lngrad.torch.sharded")
    program = f"import sys, lngrad.torch; print(*(name in sys.modules for name in {heavy}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
