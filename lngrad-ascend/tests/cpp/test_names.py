"""Names that kernels of CANN's operator libraries use, against NumPy; those of the cube refuse when they are called."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lngrad_ascend import ascendc
from lngrad_ascend.faults import DeviceFault

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
PROGRAMS = Path(__file__).with_name("programs")


def test_a_list_of_tensors():
    """The layout that the kit's sources publish: how far away the addresses are; index and axes, shape; the addresses."""
    a, b = np.float32([[3, 1]]), np.float32([[5, 1, 1]])
    shapes = [2 | 0 << 32, 1, 2, 2 | 1 << 32, 1, 3]
    words = [8 * (1 + len(shapes)), *shapes, a.ctypes.data, b.ctypes.data]
    y = np.zeros(8, np.float32)
    ascendc.launch(ascendc.compile(PROGRAMS / "list_of_tensors.cpp", "k"), 1, np.array(words, np.uint64), a, b, y)
    np.testing.assert_array_equal(y, [2, 2, 3, 3, 2, 3, 5, 5])


@pytest.fixture(scope="module")
def kernel():
    return ascendc.compile(PROGRAMS / "names.cpp", "names")


def arrays():
    rng = np.random.default_rng(3)
    x, mask = rng.standard_normal(128).astype(np.float32), (rng.random(128) < 0.5).astype(np.uint8)
    return x, mask, np.zeros(2048, np.float32)


def test_what_they_compute(kernel):
    x, mask, y = arrays()
    ascendc.launch(kernel, 1, x, mask, y)
    np.testing.assert_array_equal(y[:128], np.abs(x))
    assert (y[136], y[144]) == (2 | 1 << 3 | 5 << 4 | 27 << 12, 1)
    rest = np.r_[:8, 24:128]
    np.testing.assert_array_equal(y[128:256][rest], np.tanh(x.astype(np.float64)).astype(np.float32)[rest])
    np.testing.assert_array_equal(y[256:384], np.where(mask, np.float32(7), x))
    assert np.abs(y[384:386] - x.astype(np.float64).reshape(2, 64).sum(1)).max() < 1e-5
    order = np.argsort(-x[:64], kind="stable")
    np.testing.assert_array_equal(y[512:576], x[:64][order])
    np.testing.assert_array_equal(y[576:640].view(np.uint32), order)
    bits = np.unpackbits(y[640:644].view(np.uint8), bitorder="little")
    lanes = np.arange(128)
    np.testing.assert_array_equal(bits, (x == np.abs(x)) & (lanes >= 4) & (lanes < 8))
    assert (y[644:1024] == 0.5).all()
    total = (x + np.abs(x)) * np.abs(x)
    below = np.concatenate([(x < total)[:64]] * 2)
    np.testing.assert_array_equal(y[1024:1152], np.where(below, x, total))
    np.testing.assert_array_equal(y[1152:1216].view(np.uint32), np.arange(64) | order)
    size = np.abs(x)
    by_address = size[:64] + np.float32(2)
    by_address[:16] *= 3
    by_address[16:32] = size[:16]
    np.testing.assert_array_equal(y[1280:1344], by_address)
    assert np.abs(y[1344:1346] - size.astype(np.float64).reshape(2, 64)[:, :16].sum(1)).max() < 1e-5
    np.testing.assert_array_equal(y[1352:1354], size[:16].reshape(2, 8).max(1))
    assert (y[1360], y[1361:1362].view(np.uint32)[0]) == (size[:16].min(), size[:16].argmin())
    least = np.argsort(x.reshape(4, 32), axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(y[1216:1248].reshape(4, 8)[:, :3], np.take_along_axis(x.reshape(4, 32), least, 1))
    np.testing.assert_array_equal(y[1248:1280].view(np.int32).reshape(4, 8)[:, :3], least)


def test_the_cube_refuses(kernel):
    with pytest.raises(DeviceFault, match="IterateAll of Matmul: the cube is not simulated"):
        ascendc.launch(kernel, 2, *arrays())
