"""`lngrad kernel run --json`: a verdict for programs; warnings and the number of remarks for people."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kernel_command import kernel, needs_cxx

import lngrad
from lngrad_ascend.cpp import isolated
from lngrad_ascend.faults import AscendWarning, DeviceFault

pytestmark = needs_cxx
SAME_PATHS = True

KERNEL = r"""
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y, GM_ADDR mode)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> memory;
    GlobalTensor<float> in, out;
    in.SetGlobalBuffer((__gm__ float*)x, 64);
    out.SetGlobalBuffer((__gm__ float*)y, 64);
    pipe.InitBuffer(memory, 256);
    LocalTensor<float> a = memory.Get<float>();
    DataCopy(a, in, 64);
    if (*mode != 1) SetFlag<HardEvent::MTE2_V>(0), WaitFlag<HardEvent::MTE2_V>(0);
    Adds(a, a, 1.0f, 64);
    if (*mode == 4) PipeBarrier<PIPE_V>();
    Adds(a, a, 1.0f, 64);
    printf("hello\n");
    SetFlag<HardEvent::V_MTE3>(0);
    WaitFlag<HardEvent::V_MTE3>(0);
    if (*mode == 2) SetAtomicAdd<float>();
    while (*mode == 3) {}
#ifdef CALLS_NOTHING
    NoSuchCall(a);
#endif
    DataCopy(out, a, 64);
}
"""


@pytest.fixture
def run(here):
    Path("k.cpp").write_text(KERNEL)
    np.save("x.npy", np.ones(64, np.float32))
    np.save("y.npy", np.zeros(64, np.float32))

    def run(mode, *words):
        np.save("mode.npy", np.uint8([mode] * 32))
        arrays = [word for name in ("x", "y", "mode") for word in ("--arg", f"{name}={name}.npy")]
        return kernel("run", "k.cpp", "--kernel", "k", *arrays, *words)

    return run


def verdict(result):
    return json.loads(result.stdout.splitlines()[-1])


def test_a_kernel_that_is_right(run):
    result = run(4, "--json", "-")
    assert result.exit_code == 0, result.output
    assert verdict(result) == {
        "format": 1, "lngrad": lngrad.__version__, "verdict": "passed", "fault": None, "kind": None, "line": None,
        "missing": None, "warnings": [], "remarks": [],
    }  # fmt: skip
    assert run(4, "--json", "verdict.json").exit_code == 0
    assert json.loads(Path("verdict.json").read_text()) == verdict(result)


def test_what_only_the_compiler_orders_is_a_remark(run):
    found = verdict(run(0, "--json", "-", "--save", "y=out.npy"))
    assert (found["verdict"], len(found["remarks"])) == ("passed", 1)
    assert found["remarks"][0].startswith("needs auto-sync: ")
    assert "Missing between them: PipeBarrier<PIPE_V>()" in found["remarks"][0]
    np.testing.assert_array_equal(
        np.load("out.npy"), np.full(64, 3, np.float32)
    )  # what the second run wrote stays there
    assert not verdict(run(0, "--json", "-", "--no-ordering"))["remarks"]
    plain = run(0)
    assert (plain.exit_code, plain.stderr.splitlines()[-1]) == (0, "remarks: 1 (--remarks prints them)")


def test_a_fault(run):
    result = run(1, "--json", "-")
    found = verdict(result)
    assert result.exit_code == 1
    assert (found["verdict"], found["kind"], found["line"]) == ("fault", "RaceFault", "k.cpp:15")
    assert found["missing"] == "SetFlag<HardEvent::MTE2_V> and WaitFlag<HardEvent::MTE2_V> (or EnQue and DeQue)"
    assert found["fault"].startswith("block 0: k.cpp:15: Adds reads 256 bytes")
    assert not result.stderr


def test_a_warning(run):
    found = verdict(run(2, "--json", "-"))
    assert (found["verdict"], found["fault"]) == ("warned", None)
    assert "SetAtomicNone is missing" in found["warnings"][0]
    assert "warning: k.cpp:21: SetAtomicAdd" in run(2).stderr


def test_a_kernel_that_hangs(run):
    result = run(3, "--json", "-", "--time-limit", "1")
    found = verdict(result)
    assert (result.exit_code, found["verdict"], found["kind"]) == (1, "crashed", None)
    assert found["line"] == "k.cpp:20"


def test_a_call_that_is_not_there(run):
    result = run(0, "--json", "-", "-D", "CALLS_NOTHING")
    found = verdict(result)
    assert (result.exit_code, found["verdict"]) == (2, "does not compile")
    assert (found["line"].rpartition("/")[2], found["missing"]) == ("k.cpp:24", "NoSuchCall")


def test_a_fault_keeps_the_warnings_before_it(monkeypatch):
    def launch(*_, **__):
        warnings.warn("what explains it", AscendWarning, stacklevel=1)
        raise DeviceFault("block 0: wrong")

    sent, options = [], {"soc": None, "blocks": 1, "timeline": False}
    for name, value in (("compile", lambda **_: None), ("launch", launch)):
        monkeypatch.setattr(isolated, name, value)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    isolated._work(SimpleNamespace(send=sent.append), isolated.Request({"kernel": "k"}, {}, options, None, []))
    assert sent == [None, isolated.Result("block 0: wrong", kind="DeviceFault", warnings=("what explains it",))]
