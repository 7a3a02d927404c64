"""A kernel that takes its process down: one line with the last Ascend C call, an exit code, and nothing half-written."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from kernel_command import kernel, needs_cxx

from lngrad_ascend.sdk import Settings, cflags, libs, write_toolkit
from lngrad_ascend.sdk.program import compile_program, run_program

pytestmark = needs_cxx
SAME_PATHS = True

KERNEL = r"""
#include "kernel_operator.h"
#include <cstdlib>
#include <fcntl.h>
#include <stdexcept>
#include <unistd.h>
using namespace AscendC; const __gm__ float TABLE[4] = {1, 2, 3, 4};
static int deep(int n) { volatile char big[4096]; big[0] = char(n); return deep(n + 1) + big[0]; }
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    GlobalTensor<float> in, out;
    in.SetGlobalBuffer((__gm__ float*)x, 64);
    out.SetGlobalBuffer((__gm__ float*)y, 64);
    float value = in.GetValue(3);
    volatile int zero = 0;
    if (TILING_KEY_IS(1)) { creat(__FILE__ ".runs", 0600); while (zero == 0) {} }
    if (TILING_KEY_IS(2)) abort();
    if (TILING_KEY_IS(3)) value = 7 / zero;
    if (TILING_KEY_IS(4)) value = deep(0);
    if (TILING_KEY_IS(5)) *(volatile int*)0x10 = 1;
    if (TILING_KEY_IS(6)) exit(0);
    if (TILING_KEY_IS(7)) throw std::out_of_range("too far");
    if (TILING_KEY_IS(8)) { for (int i = 0; i < 65; ++i) ((float*)y)[i] = i; }
    if (TILING_KEY_IS(9)) _exit(0);
    if (TILING_KEY_IS(10)) const_cast<volatile float*>(TABLE)[0] = value;
    out.SetValue(0, value);
}
"""
HEAP = "SIGSEGV: it touched memory that is not there, or called itself without end"
ENDS = {
    1: "k: not done within 1 s (--time-limit)",
    2: "k: SIGABRT: it called abort, or an assertion failed",
    3: "k: SIGFPE: a whole number was divided by zero",
    4: f"k: {HEAP}",
    5: f"k: {HEAP}",
    6: "k: it called exit",
    7: "block 0: k: it threw an exception: too far",
    8: f"k: {HEAP}",  # one element behind the output
    10: "k: SIGSEGV: it wrote to memory of its own that is constant, as a const table is",
}
# TILING_KEY_IS is a call of the simulator, in the line that goes wrong.
ENDS = {key: f"{text}; its last Ascend C call was at k.cpp:{15 + key}" for key, text in ENDS.items()}
AT = ENDS[1].removeprefix("k: not done within 1 s (--time-limit)")
ENDS[9] = "k: crashed (exit code 0)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("isolation")
    (folder / "k.cpp").write_text(KERNEL)
    np.save(folder / "x.npy", np.arange(64, dtype=np.float32))
    return folder


def words(folder, key, *more):
    saved = ["--arg", f"x={folder / 'x.npy'}", "--arg", "y=empty:float32:64", "--save", f"y={folder / 'y.npy'}"]
    return ["run", str(folder / "k.cpp"), "--kernel", "k", *saved, "--tiling-key", str(key), *more]


@pytest.mark.parametrize("key", ENDS)
def test_a_kernel_that_takes_its_process_down(folder, key):
    result = kernel(*words(folder, key, "--time-limit", "1"))
    assert (result.exit_code, result.output) == (1, f"lngrad: {ENDS[key]}\n")
    assert not (folder / "y.npy").exists()


def test_a_file_is_replaced_only_if_asked_for(folder):
    assert kernel(*words(folder, 0)).exit_code == 0
    (folder / "y.npy").write_bytes(b"mine")
    result = kernel(*words(folder, 0))
    assert (result.exit_code, (folder / "y.npy").read_bytes()) == (2, b"mine")
    assert "exists already; another name, or --force to replace it" in result.output
    result = kernel(*words(folder, 0, "--timeline", folder / "k.cpp"))
    assert (result.exit_code, (folder / "k.cpp").read_text()) == (2, KERNEL)
    assert kernel(*words(folder, 0, "--force")).exit_code == 0
    assert np.load(folder / "y.npy")[0] == 3
    (folder / "y.npy").unlink()


def _interrupted(command, folder):
    """What a command says that gets Ctrl-C when its endless kernel runs."""
    runs = folder / "k.cpp.runs"
    runs.unlink(missing_ok=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while process.poll() is None and not runs.exists():
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)[0], process.returncode


def test_ctrl_c_ends_an_endless_kernel(folder):
    code = f"import sys; sys.argv[1:] = {['kernel', *words(folder, 1)]!r}; from lngrad.cli.main import main; main()"
    output, code = _interrupted([sys.executable, "-c", code], folder)
    assert (code, output) == (130, "lngrad: interrupted\n")


MAIN = r"""
#include "tikicpulib.h"
#include "k.cpp"
#include <cstdio>
int main(int, char** words)
{
    ICPU_SET_TILING_KEY(std::atoi(words[1]));
    uint8_t *x = (uint8_t*)AscendC::GmAlloc(256), *y = (uint8_t*)AscendC::GmAlloc(256);
    std::memset(x, 0, 256);
    try {
        ICPU_RUN_KF(k, 1, x, y);
    } catch (const std::out_of_range& error) {
        std::printf("caught: %s\n", error.what());
        return 3;
    }
}
"""


def test_a_program_whose_kernel_takes_it_down(folder, capfd):
    toolkit, source = folder / "toolkit", folder / "main.cpp"
    source.write_text(MAIN)
    write_toolkit(toolkit)
    program = folder / "main"
    compile_program(source, program, [*cflags(toolkit), f"-I{folder}"], libs(toolkit))
    for key, code in ((4, -signal.SIGSEGV), (6, 1), (7, 3), (0, 0)):
        done = subprocess.run([str(program), str(key)], capture_output=True, text=True, check=False)
        output = {7: ("caught: too far\n", ""), 0: ("", "")}.get(key, ("", f"lngrad: {ENDS.get(key)}\n"))
        assert (done.returncode, done.stdout, done.stderr) == (code, *output)
    output, code = _interrupted([str(program), "1"], folder)
    assert (code, output) == (-signal.SIGINT, f"lngrad: k: it was interrupted{AT}\n")
    assert run_program(source, ["1"], toolkit, Settings(), time_limit=2) == 124
    stopped = f"lngrad: k: it was stopped{AT}\n"
    assert capfd.readouterr().err in (
        f"lngrad: {source}: not done within 2 s (--time-limit)\n{stopped}",
        f"{stopped}lngrad: {source}: not done within 2 s (--time-limit)\n",
    )
