"""`lngrad kernel run`: arrays from files, a tiling from JSON, exit codes, the picture of a race."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from kernel_command import kernel, needs_cxx, refuses

from lngrad.core.problem import Grads
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs
from lngrad_ascend.cli.kernel import kernel_run

pytestmark = needs_cxx
SAME_PATHS = True
KERNEL = Path(__file__).parents[3] / "examples" / "cpp" / "rows_backward.cpp"
M, N = 50, 64


@pytest.fixture
def words(tmp_path):
    """The inputs, and the command's words but for the file."""
    inputs = make_inputs(Case((M,), (N,)), "float32", 5)
    words = ["--kernel", "rows_backward", "--blocks", "4", "--workspace", str(8 * N * 4), "--no-auto-sync"]
    for name in ("dy", "x", "mean", "rstd", "gamma"):
        np.save(tmp_path / f"{name}.npy", getattr(inputs, name))
        words += ["--arg", f"{name}={tmp_path / name}.npy"]
    for name, shape in (("dx", f"{M},{N}"), ("dgamma", f"{N}"), ("dbeta", f"{N}")):
        words += ["--arg", f"{name}=empty:float32:{shape}", "--save", f"{name}={tmp_path / name}.npy"]
    (tmp_path / "tiling.json").write_text(json.dumps({"rows": M, "columns": N, "rowsPerBlock": ["uint32", 13]}))
    return inputs, [*words, "--tiling", str(tmp_path / "tiling.json")]


def run(*words):
    return kernel("run", *words)


def test_a_kernel_runs_on_files(words, tmp_path):
    inputs, options = words
    result = run(KERNEL, *options, "--report")
    assert result.exit_code == 0, result.output
    assert "rows_backward on Ascend910B1, 4 blocks" in result.output
    check_grads(Grads(*(np.load(tmp_path / f"{name}.npy") for name in ("dx", "dgamma", "dbeta"))), inputs)


def test_cycles_are_printed_and_written(words, tmp_path):
    inputs, options = words
    files = ["--cycles-json", tmp_path / "cycles.json", "--timeline", tmp_path / "timeline.svg"]
    result = run(KERNEL, *options, "--cycles", *files)
    assert result.exit_code == 0, result.output
    check_grads(Grads(*(np.load(tmp_path / f"{name}.npy") for name in ("dx", "dgamma", "dbeta"))), inputs)
    facts = json.loads((tmp_path / "cycles.json").read_text())
    assert f"{facts['time_us']:,.2f} µs by the" in result.output
    assert re.search(r"\d %  rows_backward\.cpp:\d+ \w+", result.output)
    assert len(facts["lines"]) == 5
    assert facts["cores"] == len(facts["blocks"]) == 4
    assert re.search(r": cycles [\d,]+ to [\d,]+<", (tmp_path / "timeline.svg").read_text())
    again = run(KERNEL, *options, *files)
    assert (again.exit_code, "--force" in again.output) == (2, True)


def test_the_example_of_its_help_runs(here):
    (example,) = re.findall(r"(?ms)^ *Example: lngrad kernel run (.*?)\n\n", kernel_run.__doc__)
    np.save("x.npy", np.arange(64, dtype=np.float32))
    Path("k.cpp").write_text(
        '#include "kernel_operator.h"\nusing namespace AscendC;\n'
        'extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)\n{\n'
        "    GlobalTensor<float> in, out;\n"
        "    in.SetGlobalBuffer((__gm__ float*)x, 64);\n    out.SetGlobalBuffer((__gm__ float*)y, 64);\n"
        "    for (int i = 0; i < 64; ++i) out.SetValue(i, 2.0f * in.GetValue(i));\n}\n"
    )
    result = run(*example.split())
    assert result.exit_code == 0, result.output
    check_same_bits(np.load("y.npy"), 2 * np.load("x.npy").reshape(2, 32))


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        *(
            pytest.param(f"{sign}int{bits}", marks=[pytest.mark.slow] * (bits > 8))
            for sign in ("", "u")
            for bits in (8, 16, 32, 64)
        ),
    ],
)
def test_arrays_of_whole_numbers_come_in_and_go_out(dtype, here):
    Path("k.cpp").write_text(
        '#include "kernel_operator.h"\nextern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y) {}\n'
    )
    x = np.random.default_rng(0).integers(0, 2, 32).astype(dtype)
    np.save("x.npy", x)
    words = ["--arg", "x=x.npy", "--arg", f"y=empty:{dtype}:2,16", "--save", "x=out.npy", "--save", "y=y.npy"]
    result = run("k.cpp", "--kernel", "k", *words)
    assert result.exit_code == 0, result.output
    assert np.load("out.npy").dtype == np.load("y.npy").dtype == np.dtype(dtype)
    np.testing.assert_array_equal(np.load("out.npy"), x)
    np.testing.assert_array_equal(np.load("y.npy"), np.full((2, 16), 0xFF if dtype == "uint8" else -1).astype(dtype))


NUMBERS = Path(__file__).with_name("numbers.cpp")
_FOUR = ["--arg", "n=-5", "--arg", "scale=1.25", "--arg", "flag=200:uint8", "--arg", "offset=0.5:float16"]


def test_numbers_are_passed_by_value(here):
    words = ["--kernel", "numbers", "--arg", "x=empty:float32:4", *_FOUR, "--save", "x=x.npy"]
    result = run(NUMBERS, *words)
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(np.load("x.npy"), [-5, 1.25, 200, 0.5])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--arg", "x=3", *_FOUR], "numbers: expected an array as argument 1, got 3"),
        (["--arg", "x=empty:float32:4", "--arg", "n=empty:float32:4", *_FOUR[2:]],
         "numbers: expected a number as argument 2, got n"),
        (["--arg", "x=empty:float32:4", "--arg", "n=300:uint8"], "--arg n: expected a number of uint8, got 300"),
        (["--arg", "n=1.5:int32"], "--arg n: expected a number of int32, got 1.5"),
        (["--arg", "x=empty:float32:4", "--arg", "n=1"], "expected 5 arguments (arrays, numbers, workspace, tiling), got 2"),
        (["--arg", "n=1", "--save", "n=n.npy"], "--save: expected NAME=FILE.npy with a NAME of "),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(words, text, here):
    result = run(NUMBERS, "--kernel", "numbers", *words)
    assert result.exit_code in (1, 2)
    assert text in " ".join(result.output.split())


def test_a_race_ends_with_1_and_leaves_its_picture(words, tmp_path):
    changed = tmp_path / KERNEL.name
    changed.write_text(KERNEL.read_text().replace("            Wait<HardEvent::V_MTE3>();\n", "", 1))
    result = run(changed, *words[1], "--timeline", tmp_path / "race.svg")
    assert result.exit_code == 1
    assert "SetFlag<HardEvent::V_MTE3>" in " ".join(result.output.split())
    assert (tmp_path / "race.svg").read_text().startswith("<svg")
    assert not (tmp_path / "dx.npy").exists()


@pytest.mark.parametrize(
    ("words_", "text"),
    [
        (["--arg", "x"], "--arg: expected NAME=FILE.npy, NAME=empty:DTYPE:SHAPE or NAME=NUMBER, got 'x'"),
        (["--arg", "x=empty:float31:2"], "--arg x: expected a dtype of float16"),
        (["--arg", "x=empty:float32:2,b"], "--arg x: expected empty:DTYPE:SHAPE"),
        (["--arg", "x=empty:float32:2", "--save", "y=y.npy"], "--save: expected NAME=FILE.npy with a NAME of x"),
        (["--arg", "x=missing.npy"], "missing.npy"),
    ],
)
def test_wrong_words_end_with_2(words_, text):
    refuses(text, "run", KERNEL, "--kernel", "rows_backward", *words_)


def test_a_damaged_tiling_file_ends_with_2(words, tmp_path):
    (tmp_path / "tiling.json").write_text('{"rows": "many"}')
    refuses("rows: expected a number, [type, number] or an object, got 'many'", "run", KERNEL, *words[1])
