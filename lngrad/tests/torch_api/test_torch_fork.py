"""Calls in a forked child of a process whose OpenMP threads have computed: the child has none of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PROGRAM = """
import os, sys, time
import torch
import torch.nn.functional as F
import lngrad, lngrad.torch

torch.set_num_threads(2)
lngrad.set_num_threads(2)
torch.manual_seed(0)
x, dy, weight = torch.randn(256, 1024), torch.randn(256, 1024), torch.rand(1024) + 0.5
leaf = x.clone().requires_grad_()

def call():
    y, total = F.rms_norm(leaf, (1024,), weight), lngrad.torch.add_rms_norm(x, dy, (1024,), weight)[1]
    (dx,) = torch.autograd.grad(y, leaf, dy)
    results = y, dx, total, lngrad.layer_norm(x, gamma=weight)[0]
    return [one.detach().numpy().tobytes() for one in results]

with lngrad.torch.override():
    before = call()
    call()
    child = os.fork()
    if child == 0:
        os._exit(0 if call() == before else 3)
    end, ended = time.monotonic() + 100, 0
    while not ended and time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, 9)
        sys.exit("the child hung")
    assert status == 0, status
    assert call() == before
"""


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_forked_child_does_not_wait_for_torchs_threads(native):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"LNGRAD_TORCH_NATIVE": native, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
