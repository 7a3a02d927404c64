"""Faults of kernels in registers, each beside its twin, which is right and says nothing."""

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

from lngrad.testing import check_same_bits
from lngrad_ascend import ascendc, soc
from lngrad_ascend.faults import (
    AlignmentFault,
    AscendWarning,
    BoundsFault,
    DeviceFault,
    LifetimeFault,
    OverlapFault,
    PoisonFault,
    RaceFault,
)

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

PAIRS = Path(__file__).with_name("programs") / "register_pairs.cpp"
NAMES = re.findall(r"^PAIR\((\w+)", PAIRS.read_text(), re.MULTILINE)
X = np.random.default_rng(0).standard_normal(64).astype(np.float32)
HALVES = np.frombuffer(X.tobytes(), np.float16)


def run(name, fault, **options):
    """Run a kernel of a pair. Returns y, and its warnings and remarks."""
    y = np.zeros(64, np.float32)
    with warnings.catch_warnings(), soc.use("Ascend950"):
        warnings.simplefilter("ignore", AscendWarning)
        kernel = ascendc.compile(PAIRS, "register_pairs")
        report = ascendc.launch(kernel, 1, X, y, tiling=bytes([NAMES.index(name), fault]), **options)
    return y, [*chain(report.warnings(), report.remarks())]


class Pair(NamedTuple):
    """A faulty kernel and its twin.

    Attributes:
        name: In register_pairs.cpp.
        fault: What the faulty one raises; None if it gives a warning.
        text: What is in that.
        result: What the twin writes to the first places of y; the rest stays 0.
    """

    name: str
    fault: type[Exception] | None
    text: str
    result: Callable[[], np.ndarray] = lambda: X


ROWS = (
    Pair("bar", RaceFault, r"loaded at .*:\d+, and the store of .*LocalMemBar<MemType::VEC_STORE, MemType::VEC_LOAD>",
         lambda: 2 * X),
    Pair("tail_store", BoundsFault, "writes 224 bytes at byte 288, behind the end of the VECCALC TBuf", lambda: X[:8]),
    Pair("tail_reduce", PoisonFault, "was never written", lambda: X[:8].reshape(4, 2).sum(1).reshape(2, 2).sum(1).sum()[None]),
    Pair("counter", BoundsFault, "writes 224 bytes at byte 544"),
    Pair("narrow", None, "made for elements of 4 bytes and is used on elements of 2: 64 of these",
         lambda: (HALVES + np.float16(0)).view(np.float32)),
    Pair("packed", None, "dst has elements of 2 bytes; this StoreDist stores 1",
         lambda: X.astype(np.float16).view(np.float32)),
    Pair("blank_register", PoisonFault, r"a register that nothing had written, declared at register_pairs.cpp:\d+"),
    Pair("partly_blank", PoisonFault, "a register that nothing had written", lambda: X[:8]),
    Pair("blank_mask", PoisonFault, "a mask that nothing had written", lambda: X + 1),
    Pair("compared", PoisonFault, "was never written", lambda: (X[:8] > 0).astype(np.float32)),
    Pair("load_pre", PoisonFault, "LoadUnAlignPre comes first", lambda: X[1:9]),
    Pair("store_post", PoisonFault, "the last 28 bytes stay .*StoreUnAlignPost is missing", lambda: [*X[:30], *X[:2]]),
    Pair("alignment", AlignmentFault, "must be a multiple of 32 bytes here, got byte 4", lambda: X[8:16]),
    Pair("flag_in", RaceFault, "SetFlag<HardEvent::MTE2_V>", lambda: 2 * X),
    Pair("flag_out", RaceFault, "SetFlag<HardEvent::V_MTE3>"),
    Pair("freed", LifetimeFault, "was freed and must not be used any more"),
    Pair("blank_index", PoisonFault, "Gather: the index of lane 0 has no value", lambda: X[::-1]),
    Pair("scattered", OverlapFault, "index 62 comes twice"),
    Pair("outside", BoundsFault, "the address must lie in the Unified Buffer"),
    Pair("no_function", DeviceFault, "registers live in a vector function"),
    Pair("wrapped", DeviceFault, "a loop counter of uint16_t begins again at 65536"),
    Pair("control_set", None, "ResetCtrlSpr is missing"),
)  # fmt: skip


@pytest.mark.parametrize("pair", ROWS, ids=lambda pair: pair.name)
def test_a_fault_is_found_and_its_twin_says_nothing(pair):
    y, texts = run(pair.name, False)
    result = np.asarray(pair.result(), np.float32)
    check_same_bits(y, np.concatenate([result, np.zeros(64 - result.size, np.float32)]))
    assert texts == []
    if pair.fault is None:
        assert [pair.text in text for text in run(pair.name, True)[1]] == [True]
    else:
        with pytest.raises(pair.fault, match=pair.text) as caught:
            run(pair.name, True)
        assert "register_pairs.cpp:" in str(caught.value)


def test_every_pair_is_run():
    assert [pair.name for pair in ROWS] == NAMES
