"""What a signal's handler raises at any line of the Python that C++ has entered."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lngrad.core.problem import Grads
from lngrad.testing import Case, check_same_bits, make_inputs
from lngrad_ascend import ascendc, soc
from lngrad_ascend.cpp import bridge
from lngrad_ascend.cpp.session import run_block
from lngrad_ascend.device.schedule import RUNNING, WAITING, BlockSchedule, _Abandoned
from lngrad_ascend.sdk import attach
from lngrad_ascend.soc import Settings

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "examples" / "cpp" / "rows_backward.cpp"
# What is called from C, and the files where C is called in this way.
ENTRY, OUTWARD = re.compile(r"\b(?:PY|C)FUNCTYPE|\bPyObject_Call|\bPyRun_"), {"cpu/entries.py", "jax/calls.py"}
M, N, BLOCKS = 4, 64, 2
FAILURE = 500001
TURNS = [method for method in vars(BlockSchedule).values() if hasattr(method, "__code__")]
needs_cxx = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


class Late(Exception):
    """What the handler raises."""


def traced(call, codes, stop=None):
    """Call, and raise Late in the first frame of ``codes`` that comes to the place ``stop``. Returns all places."""
    places = {}

    def trace(frame, event, arg):
        if frame.f_code not in codes:
            return None
        place = frame.f_code, event, frame.f_lineno
        places[place] = None
        if place == stop:
            sys.settrace(None)
            raise Late
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return [*places]


@needs_cxx
@pytest.mark.parametrize(
    "codes",
    [
        pytest.param({bridge.answer.__code__}, id="answers"),
        pytest.param({method.__code__ for method in TURNS}, id="turns of blocks", marks=pytest.mark.slow),
    ],
)
def test_a_launch(codes):
    inputs = make_inputs(Case((M,), (N,)), "float32", 0)
    kernel = ascendc.compile(ROWS, "rows_backward", define={"COLUMN_SUMS": 1})
    grads = Grads(np.empty_like(inputs.x), np.empty_like(inputs.gamma), np.empty_like(inputs.gamma))

    def launch():
        ascendc.launch(
            kernel, BLOCKS, inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, *grads,
            workspace=2 * N * 4 * BLOCKS, tiling=struct.pack("<3I", M, N, M // BLOCKS),
        )  # fmt: skip

    threads, places = threading.active_count(), traced(launch, codes)
    right = [array.copy() for array in grads]
    assert len(places) > 15
    for place in places:
        with pytest.raises(Late):
            traced(launch, codes, place)
        assert threading.active_count() == threads, place
    launch()
    for array, expected in zip(grads, right, strict=True):
        check_same_bits(array, expected)


def test_a_block_that_waits_after_another_was_interrupted_goes_on():
    blocks = BlockSchedule(2, soc.get(), lambda index: None)
    blocks._states[:], blocks._failure = [WAITING, RUNNING], KeyboardInterrupt()
    with pytest.raises(_Abandoned):
        blocks._switch(1, 0)


def test_a_call_of_a_c_program(monkeypatch):
    monkeypatch.setattr(attach, "reserve", lambda start, span: None)
    monkeypatch.setattr(attach, "entry_points", lambda unified: {0: lambda words: ([0], [7], "text")})
    monkeypatch.setattr(attach, "_kept", [])
    place, text = ctypes.c_void_p(), ctypes.create_string_buffer(attach.TEXT_BYTES)
    attach.attach(ctypes.addressof(place), Settings())
    serve = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(place.value)
    frame = (ctypes.c_int64 * (attach._TEXT // 8 + 1))()

    def call():
        frame[:] = [0] * len(frame)
        text.value = b""
        frame[attach._RESULTS // 8], frame[attach._TEXT // 8] = FAILURE, ctypes.addressof(text)
        serve(ctypes.addressof(frame))
        return frame[attach._RESULTS // 8], frame[attach._LIST // 8], text.value

    codes = {attach._write_words.__code__, attach._write_text.__code__}
    codes |= {code for code in attach.attach.__code__.co_consts if getattr(code, "co_name", "") == "serve"}
    monkeypatch.setattr(sys, "unraisablehook", lambda error: None)
    assert call() == (0, 7, b"text")
    failed = 0
    for stop in traced(call, codes):
        traced(call, codes, stop)
        replied = frame[attach._RESULTS // 8], frame[attach._LIST // 8], text.value
        assert replied[0] == FAILURE or replied == (0, 7, b"text"), stop
        failed += replied[0] == FAILURE
    assert failed > 10


def test_a_kernel_of_a_c_program(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda error: None)
    code, outcome = bridge._answer_program.__code__, ctypes.c_int(1)
    traced(lambda: bridge.RUN(0, ctypes.addressof(outcome)), {code}, (code, "call", code.co_firstlineno))
    assert outcome.value == 1
    with pytest.raises(KeyboardInterrupt, match="k was interrupted"):
        run_block(SimpleNamespace(error=None), "k", lambda: outcome.value, str)


def test_the_page_names_every_way_into_python():
    _, section = (ROOT / "docs" / "state.md").read_text("utf-8").split("## Where others enter Python")
    page = set(re.findall(r"`([\w/]+/[\w/]+\.\w+)`", section.partition("\n## ")[0]))
    found = set()
    for package in ("lngrad", "lngrad-ascend"):
        source = ROOT / package / "src"
        for path in source.rglob("*.*"):
            if path.suffix in (".py", ".h", ".c", ".cpp") and ENTRY.search(path.read_text("utf-8")):
                found.add(str(path.relative_to(source)).removeprefix("lngrad/"))
    assert found - OUTWARD == page
