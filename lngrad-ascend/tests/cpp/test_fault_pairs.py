"""Faults of public reports that a first run does not show: each beside its twin, which is right and says nothing."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lngrad_ascend import ascendc
from lngrad_ascend.faults import AscendWarning, BoundsFault, DeviceFault, PoisonFault, RaceFault

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

PAIRS = Path(__file__).with_name("programs") / "pairs.cpp"
NAMES = re.findall(r"KERNEL (\w+)\(", PAIRS.read_text())

X = np.random.default_rng(0).standard_normal(65600).astype(np.float32)
DTYPES = {"float": np.float32, "half": np.float16, "int32_t": np.int32}
NEW = np.frombuffer(b"\xff" * 512, np.float32)  # as memory is allotted


def run(name, fault, x, y, dtype="float", blocks=1, **options):
    """Run a kernel of a pair. Returns its warnings and remarks."""
    kernel, which = ascendc.compile(PAIRS, f"pairs<{dtype}>"), bytes([NAMES.index(name), fault])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AscendWarning)
        report = ascendc.launch(kernel, blocks, x, y, tiling=which, **options)
    return report.warnings(), report.remarks()


class Pair(NamedTuple):
    """A faulty kernel and its twin.

    Attributes:
        name: In pairs.cpp.
        fault: What the faulty one raises; None if it gives a warning or a remark.
        text: What is in that.
        result: What the twin makes of x, at the places `at` of y.
        size: Elements of x; y has `results`.
        same: Whether the faulty one has the twin's results.
    """

    name: str
    fault: type[Exception] | None
    text: str
    result: Callable[[np.ndarray], np.ndarray] | None = None
    at: slice = slice(None)
    size: int = 64
    results: int = 64
    dtype: str = "float"
    blocks: int = 1
    same: bool = False


PAIR_ROWS = (
    Pair("atomic_none", None, "SetAtomicNone is missing", lambda x: np.tile(x, 2), results=128, same=True),
    Pair("rows", None, "24 bytes of arrays[1] are left holding what DataCopyPad filled", lambda x: 2 * x, size=20, results=20),
    Pair("rows", None, "22 bytes of arrays[1] are left holding", lambda x: 2 * x, size=20, results=20, dtype="half"),
    Pair("rounded_up", None, "12 bytes of arrays[1]", lambda x: x, at=slice(10), size=10, results=16, same=True),
    Pair("overflow", None, "Muls: a result is beyond 65504", dtype="half"),
    Pair(
        "lines", RaceFault, "blocks 0 and 1 write one line of 64 bytes",
        lambda x: np.arange(1, 5), at=slice(0, 64, 16), blocks=4,
    ),
    Pair(
        "cache", RaceFault, r"reads 4 bytes of arrays\[1\] that SetValue at .*DataCacheCleanAndInvalid",
        lambda x: np.array([3]), at=slice(64, 65), results=128,
    ),
    Pair("unread", None, "is overwritten before anything has read what DataCopy"),
    Pair("repeats", BoundsFault, "repeatTime must be .* got 256; a device takes 0", size=65600),
    Pair("lengths", BoundsFault, "got 65568; a device takes 32", size=65600),
)  # fmt: skip


@pytest.mark.parametrize("pair", PAIR_ROWS, ids=lambda pair: f"{pair.name}-{pair.dtype}")
def test_a_fault_is_found_and_its_twin_says_nothing(pair):
    x = X[: pair.size].astype(DTYPES[pair.dtype])
    x = np.linspace(2, 9, 64).astype(np.float16) if pair.name == "overflow" else x
    for fault in (False, True):
        y = np.zeros(pair.results, x.dtype)
        if fault and pair.fault is not None:
            with pytest.raises(pair.fault, match=pair.text):
                run(pair.name, True, x, y, pair.dtype, pair.blocks)
            continue
        texts = [*chain(*run(pair.name, fault, x, y, pair.dtype, pair.blocks))]
        assert [pair.text in text for text in texts] == [True] * fault
        if pair.result is not None and (pair.same or not fault):
            np.testing.assert_array_equal(y[pair.at], pair.result(x))


@pytest.mark.parametrize(("dtype", "kind"), DTYPES.items())
def test_an_atomic_sum_needs_memory_that_somebody_has_cleared(dtype, kind):
    x, y = np.ones(64, kind), NEW.copy().view(kind)[:128].copy()
    with pytest.raises(PoisonFault, match=r"arrays\[1\] has no value in 64 of the elements"):
        run("atomic_none", 0, x, y, dtype)
    y[:] = 0
    assert run("atomic_none", 0, x, y, dtype) == ((), ())
    y.view(np.uint8)[:] = 0xFF
    _, texts = run("atomic_none", 0, x, y, dtype, strictness="device")
    assert "clear them first" in str(texts)


def test_what_is_no_fault_elsewhere():
    """A float is no half, and a line of one block is its own."""
    large = np.linspace(2, 9, 64, dtype=np.float32) * np.float32(1e20)
    assert run("overflow", 1, large, np.zeros(64, np.float32)) == ((), ())
    assert run("lines", 1, X[:64].copy(), np.zeros(64, np.float32), blocks=1) == ((), ())


@pytest.mark.filterwarnings("ignore::lngrad_ascend.faults.AscendWarning")
def test_a_device_takes_the_rest_of_a_number():
    y = np.zeros(64, np.float32)
    _, texts = run("lengths", 1, X, y, strictness="device")
    np.testing.assert_array_equal(y[:8], X[:8])
    assert "a device takes 32" in str(texts)


def test_warnings_come_from_launch():
    with pytest.warns(AscendWarning, match=r"pairs.cpp:\d+: SetAtomicAdd"):
        ascendc.launch(
            ascendc.compile(PAIRS, "pairs<float>"), 1, X[:64].copy(), np.zeros(128, np.float32), tiling=bytes([0, 1])
        )


def test_python_kernels_clean_the_cache():
    def body(x, cleans):
        memory, buf = ascendc.GlobalTensor(np.float32), ascendc.TBuf()
        memory.SetGlobalBuffer(x)
        ascendc.TPipe().InitBuffer(buf, 256)
        memory.SetValue(0, 1)
        if cleans:
            ascendc.DataCacheCleanAndInvalid(memory)
        ascendc.DataCopy(buf.Get(np.float32), memory, 8)

    ascendc.launch(lambda x: body(x, True), 1, X[:64].copy())
    with pytest.raises(DeviceFault, match="DataCacheCleanAndInvalid"):
        ascendc.launch(lambda x: body(x, False), 1, X[:64].copy())
