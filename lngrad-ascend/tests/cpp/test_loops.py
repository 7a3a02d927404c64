"""Copies of Ascend 950: NDDMA, the loop mode, and what DataCopyPad takes there."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from lngrad.testing import check_same_bits
from lngrad_ascend import ascendc, soc
from lngrad_ascend.faults import AscendWarning, BoundsFault, DeviceFault, OverlapFault, RaceFault, SyncFault

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

LOOPS = Path(__file__).with_name("programs") / "loops.cpp"
X = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
ROWS = X[:16].reshape(2, 8)


def run(which, fault=False, blocks=1, name="Ascend950"):
    """Run a copy. Returns the 256 floats of the buffer, and 256 behind them."""
    y = np.zeros(512, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AscendWarning)  # padding is left in y
        ascendc.launch(ascendc.compile(LOOPS, "loops"), blocks, X, y, tiling=bytes([which, fault]), soc=name)
    return y


def first(values):
    """The buffer's bytes where these come first, and zeros behind them."""
    values = np.asarray(values, np.float32).reshape(-1)
    return np.concatenate([values, np.zeros(256 - values.size, np.float32)])


def looped():
    rows = X[:60].reshape(12, 5)
    return np.pad(rows, ((0, 0), (0, 3)), constant_values=7)


@pytest.fixture(autouse=True)
def for_950():
    with soc.use("Ascend950"):
        yield


EDGES = ((1, 1), (3, 5))
RESULTS = {
    0: lambda: np.pad(ROWS, EDGES, constant_values=7),
    1: lambda: np.pad(ROWS, EDGES, mode="edge"),
    2: lambda: np.pad(ROWS, ((2, 2), (2, 2)), constant_values=7),
    3: lambda: X[:64].reshape(8, 8).T,
    4: looped,
    5: lambda: [*X[:5], *X[6:11], *X[12:17], 7],
    6: lambda: np.tile([*X[:5], *X[[0, 0, 0]]], 4),
    7: lambda: X[:256],
}


@pytest.mark.parametrize("which", RESULTS)
def test_what_a_copy_of_950_leaves_in_the_buffer(which):
    check_same_bits(run(which)[:256], first(RESULTS[which]()))


def test_copies_out_loop_too():
    check_same_bits(run(9), np.concatenate([first(X[:64])[:256], first(X[64:128])]))


@pytest.mark.parametrize(
    ("which", "blocks", "fault", "text"),
    [
        (3, 1, OverlapFault, "64 elements of NDDMA go to 15 places: dst strides overlap"),
        (
            4,
            1,
            SyncFault,
            r"end of kernel: SetLoopModePara \(2 times 3\) of loops.cpp:18 .*ResetLoopModePara is missing",
        ),
        (6, 1, BoundsFault, r"gaps are -20 to 2\^40 - 1 bytes in global memory .* on Ascend950, got -24 and 0"),
        (
            7,
            1,
            BoundsFault,
            r"SetLoopModePara \(2 times 3\) of loops.cpp:22 is in force and loops this copy: ResetLoopMode",
        ),
        (8, 2, RaceFault, "DataCopy at loops.cpp:26 of block 0 has written there. Missing between them: NdDmaDci"),
    ],
)
def test_what_is_wrong_with_a_copy_of_950(which, blocks, fault, text):
    run(which, blocks=blocks)  # its twin
    with pytest.raises(fault, match=text):
        run(which, True, blocks)


@pytest.mark.parametrize("which", [0, 4])
def test_other_products_have_no_such_copies(which):
    with pytest.raises(DeviceFault, match="needs architecture 3510, not Ascend910B1"):
        run(which, name="Ascend910B1")
