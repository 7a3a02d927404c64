"""The same bits in every floating-point mode of the caller's thread, whatever the number of threads; and the mode comes back.

A thread's mode says how results are rounded and whether subnormals are flushed. Threads of a pool have modes of their own, so
without care a result depends on which thread computed which row.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import lngrad
from lngrad.support.compilers import c_compiler
from lngrad.testing import check_same_bits

libm = ctypes.CDLL(None)
ROUNDING = {"x86_64": {"down": 0x400, "up": 0x800, "to zero": 0xC00}}  # fenv.h
pytestmark = pytest.mark.skipif(sys.platform != "linux" or not hasattr(libm, "fesetround"), reason="needs glibc's fenv")


@contextmanager
def rounding(direction):
    before = libm.fegetround()
    assert libm.fesetround(direction) == 0
    try:
        yield
        assert libm.fegetround() == direction  # what was there came back
    finally:
        libm.fesetround(before)


@contextmanager
def flushing():
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor can't flush subnormals")
    try:
        yield
        assert torch.tensor([2.0**-130]).mul(0.5).item() == 0  # still flushed
    finally:
        torch.set_flush_denormal(False)


def sample():
    """Rows of ordinary numbers, a few dy of 2^-115, and products that are subnormal."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1024, 256), dtype=np.float32)
    dy = rng.standard_normal((1024, 256), dtype=np.float32)
    dy[rng.random(dy.shape) < 0.1] *= np.float32(2.0**-115)
    dy[::3] *= np.float32(2.0**-120)
    gamma, beta = rng.standard_normal((2, 256), dtype=np.float32)
    gamma[::5] *= np.float32(2.0**-20)
    return x, dy, gamma, beta


def by_numpy(x, dy, gamma, beta):
    y, mean, rstd = lngrad.layer_norm(x, gamma, beta)
    of_rms = lngrad.rms_norm(x, gamma, residual=dy)
    return (y, mean, rstd, *of_rms, *lngrad.layer_norm_backward(dy, x, mean, rstd, gamma))


def by_torch(x, dy, gamma, beta):
    torch = pytest.importorskip("torch")
    import lngrad.torch

    x, gamma, beta = (torch.from_numpy(array.copy()).requires_grad_() for array in (x, gamma, beta))
    y = lngrad.torch.layer_norm(x, (256,), gamma, beta)
    y.backward(torch.from_numpy(dy))
    return tuple(tensor.detach().numpy() for tensor in (y, x.grad, gamma.grad, beta.grad))


def by_override(x, dy, gamma, beta):
    torch = pytest.importorskip("torch")
    import lngrad.torch

    x, gamma, beta = (torch.from_numpy(array.copy()).requires_grad_() for array in (x, gamma, beta))
    with lngrad.torch.override():
        y = torch.nn.functional.layer_norm(x, (256,), gamma, beta)
        y.backward(torch.from_numpy(dy))
    return tuple(tensor.detach().numpy() for tensor in (y, x.grad, gamma.grad, beta.grad))


def by_jax(x, dy, gamma, beta):
    jax = pytest.importorskip("jax")
    import lngrad.jax

    def norm(x, gamma, beta):
        return lngrad.jax.layer_norm(x, gamma, beta)

    y, back = jax.vjp(norm, *map(jax.numpy.asarray, (x, gamma, beta)))
    return tuple(np.asarray(array) for array in (y, *back(jax.numpy.asarray(dy))))


WAYS: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    "numpy": by_numpy, "torch": by_torch, "override": by_override, "jax": by_jax,
}  # fmt: skip


@pytest.fixture
def threads():
    before = lngrad.get_num_threads()
    yield lngrad.set_num_threads
    lngrad.set_num_threads(before)


@pytest.mark.skipif("numba_cpu" not in lngrad.backends(), reason="no compiled kernels")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["down", "up", "to zero", "flushing"])
def test_the_bits_do_not_depend_on_the_mode_nor_on_threads_in_it(threads, way, mode):
    directions = ROUNDING.get(platform.machine(), {})
    if mode != "flushing" and mode not in directions:
        pytest.skip("fenv.h's numbers of this processor are not in the table")
    call, arrays = WAYS[way], sample()
    threads(1)
    expected = call(*arrays)
    for number in (1, 2, 3):
        threads(number)
        call(*arrays)  # what is computed once, such as a plan, in the usual mode
        with flushing() if mode == "flushing" else rounding(directions[mode]):
            got = call(*arrays)
        for result, other in zip(got, expected, strict=True):
            check_same_bits(result, other)


@pytest.mark.skipif("numba_cpu" not in lngrad.backends(), reason="no compiled kernels")
def test_a_library_of_fast_math_changes_nothing(threads, tmp_path):
    """Loading what was linked with -ffast-math by an older gcc flushes subnormals in the loading thread alone."""
    if c_compiler() is None:
        pytest.skip("no C compiler")
    (tmp_path / "fast.c").write_text(
        "#include <xmmintrin.h>\n__attribute__((constructor)) void f(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }\n"
    )
    built = subprocess.run(
        [*c_compiler(), "-shared", "-fPIC", "-o", tmp_path / "fast.so", tmp_path / "fast.c"], check=False
    )
    if built.returncode:
        pytest.skip("not an x86 compiler")
    program = f"""
import ctypes, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import lngrad
from test_floating_point_modes import by_numpy, sample
from lngrad.testing import check_same_bits
lngrad.set_num_threads(1)
expected = by_numpy(*sample())
arrays = sample()
ctypes.CDLL({str(tmp_path / "fast.so")!r})
for number in (1, 2):
    lngrad.set_num_threads(number)
    for one, other in zip(by_numpy(*arrays), expected, strict=True):
        check_same_bits(one, other)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
