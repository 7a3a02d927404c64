"""oneDNN's layer normalization against float64, by the comparator of every other test."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from lngrad.core.problem import Forward, Grads
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Case, check_forward, check_grads, make_inputs
from peer_libraries import onednn

needs_onednn = pytest.mark.skipif(onednn.why_not() is not None, reason=str(onednn.why_not()))

CASES = (Case((67,), (7,)), Case((5, 13), (64,)), Case((200,), (768,)), Case((9,), (4096,)))


def single(inputs):
    """gamma and beta in float32, and empty results of that kind."""
    gamma, beta = (np.asarray(array, np.float32) for array in (inputs.gamma, inputs.beta))
    return gamma, beta, lambda shape: np.empty(shape, np.float32)


def or_skipped(make, *arguments):
    """A run, where this processor has one."""
    try:
        return make(*arguments)
    except onednn.OneDnnError as error:
        if "unimplemented" not in str(error):
            raise
        pytest.skip(str(error))


@needs_onednn
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_backward(case, dtype, threads):
    inputs = make_inputs(case, dtype)
    gamma, _, empty = single(inputs)
    rows = inputs.x.shape[:-1]
    variance = (1 / np.square(inputs.rstd.astype(np.float64)) - 1e-5).astype(np.float32).reshape(rows)
    dx, dgamma, dbeta = np.empty_like(inputs.x), empty(gamma.shape), empty(gamma.shape)
    onednn.set_num_threads(threads)
    mean = np.ascontiguousarray(inputs.mean).reshape(rows)
    run = or_skipped(onednn.backward, inputs.dy, inputs.x, mean, variance, gamma, dx, dgamma, dbeta)
    run()
    wanted = numpy_dtype(dtype)
    check_grads(Grads(dx, dgamma.astype(wanted), dbeta.astype(wanted)), inputs)


@needs_onednn
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case, dtype):
    inputs = make_inputs(case, dtype)
    gamma, beta, empty = single(inputs)
    rows = inputs.x.shape[:-1]
    y, mean, variance = np.empty_like(inputs.x), empty(rows), empty(rows)
    run = or_skipped(onednn.forward, inputs.x, gamma, beta, y, mean, variance)
    run()
    rstd = (1 / np.sqrt(variance.astype(np.float64) + 1e-5)).astype(np.float32)
    check_forward(Forward(y, mean[..., None], rstd[..., None]), inputs)


@needs_onednn
def test_the_implementation_has_a_name_and_the_library_a_version():
    inputs = make_inputs(CASES[1], "float32")
    gamma, beta, empty = single(inputs)
    rows = inputs.x.shape[:-1]
    run = onednn.forward(inputs.x, gamma, beta, np.empty_like(inputs.x), empty(rows), empty(rows))
    assert "layer_normalization" in run.implementation or "jit" in run.implementation
    assert onednn.version().startswith("3.")


@needs_onednn
def test_a_dtype_that_onednn_does_not_have():
    x = np.zeros((4, 8))
    with pytest.raises(onednn.OneDnnError, match="dtype: expected float16, bfloat16, float32, got float64"):
        onednn.forward(x, x[0], x[0], x, x[:, 0], x[:, 0])


@needs_onednn
def test_it_computes_right_beside_torch_in_either_order():
    """Both bring an OpenMP runtime."""
    pytest.importorskip("torch")
    program = """
import sys
import numpy as np
def torch_sum():
    import torch
    return float(torch.ones(1 << 20).sum())
def onednn_mean():
    from peer_libraries import onednn
    onednn.set_num_threads(2)
    x, one, y = np.full((4096, 64), 3, np.float32), np.ones(64, np.float32), np.empty((4096, 64), np.float32)
    mean, variance = np.empty(4096, np.float32), np.empty(4096, np.float32)
    onednn.forward(x, one, one, y, mean, variance)()
    return float(mean.min()), float(y.max())
first, second = (torch_sum, onednn_mean) if sys.argv[1] == "torch" else (onednn_mean, torch_sum)
print(first(), second(), first())
"""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for order, expected in (("torch", "1048576.0 (3.0, 1.0) 1048576.0"), ("onednn", "(3.0, 1.0) 1048576.0 (3.0, 1.0)")):
        done = subprocess.run(
            [sys.executable, "-c", program, order], capture_output=True, text=True, timeout=120, env=paths
        )
        assert done.stdout.strip() == expected, done.stderr


def test_without_the_wheel_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(onednn, "_path", lambda: None)
    onednn._onednn.cache_clear()
    assert onednn.why_not() == "onednn or onednn-cpu-gomp is not installed"
    onednn._onednn.cache_clear()
