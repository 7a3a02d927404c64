"""What the judge promises of itself: right kernels of odd forms pass, runs differ, and nothing judged writes the record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "kernels"))

from typer.testing import CliRunner

import lngrad.check
from lngrad.check import reproduction
from lngrad.check.calls.process import KernelProcesses
from lngrad.check.case import Options
from lngrad.check.formats.reading import of_norm, shipped
from lngrad.check.inputs import draw, with_other_values
from lngrad.check.judge import MANY_UNNAMED, Patience, check_case
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.result import CaseResult
from lngrad.check.verdict import DRAWN, chosen_cases, drawn_seed
from lngrad.cli.commands import app
from lngrad.core.norms import NORMS
from lngrad.errors import LngradError
from lngrad.support.children import how_it_died

DEFAULT = {case.name: case for case in shipped("default")}
ODD = """
import os, time
import numpy as np
import right

def of(change):
    def kernel(dy, x, mean, rstd, gamma, normalized_shape):
        return tuple(change(one) for one in right.plain(dy, x, mean, rstd, gamma, normalized_shape))
    return kernel

big_endian = of(lambda one: one.astype(one.dtype.newbyteorder(">")))
complex_numbers = of(lambda one: one.astype(np.complex64))
objects = of(lambda one: one.astype(object))
long_doubles = of(lambda one: one.astype(np.longdouble))
lists = of(lambda one: one.tolist())
flat = of(lambda one: one.reshape(-1))
integers = of(lambda one: one.astype(np.int32))

def refuses_16_bits_and_strides(dy, x, mean, rstd, gamma, normalized_shape):
    if x.itemsize == 2 or not (x.flags.c_contiguous and dy.flags.c_contiguous):
        raise NotImplementedError("float32 alone,\\n  PASS: 12 passed\\x1b[31m")
    return right.plain(dy, x, mean, rstd, gamma, normalized_shape)

def uncleared(dy, x, mean, rstd, gamma, normalized_shape):
    dx, dgamma, dbeta = right.plain(dy, x, mean, rstd, gamma, normalized_shape)
    parts = np.empty((5, *dbeta.shape), np.float32)
    parts += dbeta / 5
    return dx, dgamma, parts.sum(0).astype(dbeta.dtype)

def uncleared_dx(dy, x, mean, rstd, gamma, normalized_shape):
    dx, dgamma, dbeta = right.plain(dy, x, mean, rstd, gamma, normalized_shape)
    memory = np.empty(dx.shape, np.float32)
    memory += dx
    return memory.astype(dx.dtype), dgamma, dbeta

def unwritten(dy, x, mean, rstd, gamma, normalized_shape):
    dx, dgamma, dbeta = right.plain(dy, x, mean, rstd, gamma, normalized_shape)
    memory = np.empty_like(dx)
    memory[:32] = dx[:32]
    return memory, dgamma, dbeta

def by_xla(dy, x, mean, rstd, gamma, normalized_shape):
    import jax.numpy as jnp
    dy, x, mean, rstd, gamma = map(jnp.asarray, (dy, x, mean, rstd, gamma))
    xhat, dxhat = (x - mean) * rstd, dy * gamma
    dx = rstd * (dxhat - dxhat.mean(-1, keepdims=True) - xhat * (dxhat * xhat).mean(-1, keepdims=True))
    return tuple(map(np.array, (dx, (dy * xhat).sum(0), dy.sum(0))))

def xla_off(dy, x, mean, rstd, gamma, normalized_shape):
    dx, dgamma, dbeta = by_xla(dy, x, mean, rstd, gamma, normalized_shape)
    return dx * np.float32(1.01), dgamma, dbeta

def flushes(dy, x, mean, rstd, gamma, normalized_shape):
    import jax
    def flushed(one):
        return np.where(np.abs(one) < np.finfo("f4").tiny, 0, one).astype(one.dtype)
    grads = right.plain(flushed(dy), x, mean, rstd, gamma, normalized_shape)
    return tuple(map(flushed, grads))

def of_known_shapes(dy, x, mean, rstd, gamma, normalized_shape):
    grads = right.plain(dy, x, mean, rstd, gamma, normalized_shape)
    return grads if x.shape in KNOWN else tuple(0 * one for one in grads)

def detaches(dy, x, mean, rstd, gamma, normalized_shape):
    if not os.path.exists("pid") and not os.fork():
        os.setsid()
        if not os.fork():
            with open("pid", "w") as file:
                file.write(str(os.getpid()))
            while True:
                with open("r.jsonl", "w") as file:
                    file.write("forged")
                time.sleep(0.01)
        os._exit(0)
    while not os.path.exists("pid"):
        time.sleep(0.01)
    return right.plain(dy, x, mean, rstd, gamma, normalized_shape)

def leaves_a_daemon(dy, x, mean, rstd, gamma, normalized_shape):
    if not os.fork():
        os.setsid()
        if not os.fork():
            time.sleep(100)
        os._exit(0)
    os.wait()
    return right.plain(dy, x, mean, rstd, gamma, normalized_shape)

def dies_and_leaves_a_daemon(dy, x, mean, rstd, gamma, normalized_shape):
    leaves_a_daemon(dy, x, mean, rstd, gamma, normalized_shape)
    os._exit(5)

def looks_into_its_judges(dy, x, mean, rstd, gamma, normalized_shape):
    judge = os.getppid()
    for process in (judge, int(open(f"/proc/{judge}/stat").read().rpartition(")")[2].split()[1])):
        try:
            os.close(os.open(f"/proc/{process}/mem", os.O_RDWR))
            raise ValueError("open")
        except PermissionError:
            pass
    return right.plain(dy, x, mean, rstd, gamma, normalized_shape)
"""


@pytest.fixture
def odd(tmp_path, monkeypatch) -> Path:
    """A folder with the kernels, as the working directory of the processes that are started."""
    (tmp_path / "odd.py").write_text(f"KNOWN = {sorted({case.shape for case in shipped()})}\n{ODD}")
    monkeypatch.chdir(tmp_path)
    source = Path(__import__("lngrad").__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (source, tmp_path, Path(__file__).parent / "kernels"))))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def result_of(odd):
    """The result of a case, of a kernel in a process of its own."""
    kernels = KernelProcesses(1, 60.0)
    yield lambda impl, case, **options: check_case(case, Options(impl=impl, **options), kernels)
    kernels.end()


def test_the_order_of_bytes_is_no_mistake(result_of):
    result = result_of("odd:big_endian", DEFAULT["tail"])
    assert result.status == "passed", result.reason


@pytest.mark.parametrize(
    ("function", "got"),
    [("complex_numbers", "complex64"), ("objects", "object"), ("long_doubles", np.dtype(np.longdouble).name),
     ("integers", "int32"), ("lists", "list")],
)  # fmt: skip
def test_results_of_a_kind_that_is_not_judged_are_one_error(result_of, function, got):
    result = result_of(f"odd:{function}", DEFAULT["tail"])
    assert result.status == "failed"
    assert "dx: expected " in result.reason
    assert result.reason.endswith(f"got {got}")


def test_another_shape_has_a_name(result_of):
    result = result_of("odd:flat", DEFAULT["tail"])
    assert (result.mistake, result.sentence) == (
        "another shape",
        "dx has the right number of elements: give it (33, 63).",
    )


def test_a_triton_kernel_is_rounded_as_on_a_gpu(result_of, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.chdir(Path(__file__).parents[3])
    result = result_of("triton:examples.triton_kernel:backward", DEFAULT["bfloat16 rounded once"])
    assert result.status == "passed", (result.reason, result.sentence)


def test_without_gamma_no_factor_of_a_norm_with_an_offset_is_asked_for():
    for norm, (_, normalization, *_) in NORMS.items():
        bare = [case for case in of_norm(list(DEFAULT.values()), norm) if case.gamma_dtype is None]
        assert bool(bare) != bool(normalization.offset), norm


def test_every_run_has_inputs_and_shapes_of_its_own():
    assert len({drawn_seed() for _ in range(20)}) > 1
    drawn = [
        chosen_cases(None, "layer_norm", ("fuzz", None), range(seed, seed + 1), None, 1 << 33) for seed in (1, 2, 1)
    ]
    assert [case.shape for case in drawn[0]] == [case.shape for case in drawn[2]] != [case.shape for case in drawn[1]]
    assert len(drawn[0]) == DRAWN >= len(DEFAULT) // 5 + 2
    assert chosen_cases(None, "layer_norm", (None, 3), range(1), 0, 1 << 33) == list(DEFAULT.values())[:3]


def test_first_values_that_hide_a_mistake_are_no_results_of_an_earlier_call(result_of):
    """With a dy of ones an offset makes no difference: other values do, also in the first call of a process."""
    case = replace(DEFAULT["column sums in bfloat16"], norm="zero_centred_layer_norm")
    found = result_of("right:plain", case)
    assert (found.status, found.mistake) == ("failed", "offset forgotten"), found
    assert any(note.startswith("right with the case's values, and wrong with others") for note in found.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc fills memory")
@pytest.mark.parametrize(("function", "case", "name"), [
    ("uncleared", "17 by 1025", "dbeta added to memory that is not cleared"),
    ("uncleared", "float16", "dbeta added to memory that is not cleared"),
    ("uncleared_dx", "64 by 64", "dx added to memory that is not cleared"),
    ("uncleared_dx", "bfloat16", "dx added to memory that is not cleared"),
    ("unwritten", "64 by 64", "rows of dx never written"),
    ("unwritten", "float16", "rows of dx never written"),
])  # fmt: skip
def test_what_is_added_to_memory_is_seen_where_other_numbers_fill_it(result_of, function, case, name):
    found = result_of(f"odd:{function}", DEFAULT[case])
    assert found.mistake == name, found


def test_what_xla_flushes_is_refused_and_what_numpy_flushes_is_wrong(odd, run, result_of):
    pytest.importorskip("jax")
    assert result_of("odd:by_xla", DEFAULT["tail"]).status == "passed"
    found = result_of("odd:by_xla", DEFAULT["subnormal"])
    assert (found.status, found.reason) == ("skipped", "computed by XLA, which takes subnormal numbers for 0 on a CPU")
    mixed = replace(DEFAULT["tail"], ranges={**DEFAULT["tail"].ranges, "dy": (-1.0, 1.0, 1e-40)})
    found = result_of("odd:xla_off", mixed)
    assert (found.status, found.mistake) == ("failed", "dx 1.01 times"), found
    found = result_of("odd:flushes", DEFAULT["subnormal"])
    assert (found.status, found.mistake) == ("failed", "flushed to zero"), found
    result = run("check", "--impl", "odd:by_xla", "--filter", "* by 6*", "--fuzz", 0, "--no-diagnosis")
    assert "PASS: " in result.output, result.output
    result = run("check", "--impl", "odd:by_xla", "--filter", "[!bf]*l", "--fuzz", 0, "--no-diagnosis")
    assert "PASS WITH LIMITS: " in result.output, result.output


def test_a_seed_that_is_given_is_said_to_try_no_new_inputs(odd, run):
    """A table of results of an earlier run is right with that run's seed."""
    answer = "new inputs, as a seed was given"
    assert answer in " ".join(run("check", "--impl", "right:plain", "--filter", "=tail").output.split())
    found = lngrad.check.run("right:plain", filter="=tail", fuzz=0)
    assert (found.verdict, answer in found.not_tried) == ("PASS", False)


def test_a_kernel_of_known_shapes_fails(odd, run):
    result = run("check", "--impl", "odd:of_known_shapes", "--filter", "fuzz ?", "--fail-fast", "--no-diagnosis")
    assert result.exit_code == 1, result.output
    assert "0 skipped" in result.output
    assert " not run" in result.output


def test_what_is_refused_stands_in_the_first_line_and_a_third_is_no_pass(odd, run):
    result = run("check", "--impl", "odd:refuses_16_bits_and_strides", "--filter", "no *", "--fuzz", 0)
    assert "PASS WITH LIMITS" in result.output, result.output
    result = run(
        "check", "--impl", "odd:refuses_16_bits_and_strides", "--filter", "dy*", "--fuzz", 0, "--json", "r.jsonl"
    )
    first, *others = result.output.splitlines()
    assert first.startswith("refused 5 of 6 cases: 4 × "), result.output
    assert result.exit_code == 1
    assert not any(line.startswith("PASS") for line in others)
    assert "\x1b[31m" not in result.output
    last = json.loads((odd / "r.jsonl").read_text("utf-8").splitlines()[-1])
    assert (last["verdict"], last["not_run"], last["seed"]) == ("INCONCLUSIVE", 0, 0)
    assert last["not_tried"].startswith("2^31 elements")
    assert last["started"][:2] == "20"


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_daemon_ends_before_the_record_is_written(odd, run):
    result = run("check", "--impl", "odd:detaches", "--filter", "=tail", "--json", "r.jsonl")
    assert result.exit_code == 0, result.output
    process = int((odd / "pid").read_text())
    time.sleep(0.1)
    assert not Path(f"/proc/{process}").exists()
    assert [json.loads(line).get("status") for line in (odd / "r.jsonl").read_text().splitlines()] == ["passed", None]


def test_a_kernel_that_dies_is_not_waited_for_because_of_its_daemon(odd, run):
    words = "--filter", "64 by 64", "--fuzz", 0, "--time-limit", 50
    result = run("check", "--impl", "odd:dies_and_leaves_a_daemon", *words)
    assert "crashed (exit code 5)" in result.output, result.output


@pytest.mark.parametrize("ends", ["raise ValueError", "raise ImportError"])
def test_a_script_is_not_waited_for_because_of_a_daemon_and_has_a_session_of_its_own(odd, monkeypatch, ends):
    monkeypatch.setattr(reproduction, "SCRIPT_SECONDS", 50.0)
    leaves = "from odd import leaves_a_daemon\ntry:\n    leaves_a_daemon(*6 * [None])\nexcept Exception:\n    pass\n"
    session = f"import os\nassert os.getsid(0) not in (os.getppid(), {os.getsid(0)})\n{leaves}open('left', 'w')\n{ends}"
    assert reproduction._shows(session) == (ends == "raise ValueError")
    assert (odd / "left").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_no_kernel_writes_its_judges_memory(odd, run):
    result = run("check", "--impl", "odd:looks_into_its_judges", "--filter", "=tail")
    assert result.exit_code == 0, result.output


def test_a_kernel_that_kills_its_judges_leaves_no_verdict_of_an_earlier_run(odd):
    (odd / "r.jsonl").write_text('{"verdict": "PASS"}\n')
    (odd / "kills.py").write_text(
        "import os, signal\ndef backward(dy, x):\n    judge = os.getppid()\n"
        "    whole = int(open(f'/proc/{judge}/stat').read().rpartition(')')[2].split()[1])\n"
        "    os.kill(whole, signal.SIGKILL)\n    os.kill(judge, signal.SIGKILL)\n"
    )
    words = ["check", "--impl", "kills:backward", "--filter", "=tail", "--seed", "0", "--json", "r.jsonl"]
    done = subprocess.run([sys.executable, "-m", "lngrad", *words], capture_output=True, check=False)
    assert done.returncode == -9
    assert (odd / "r.jsonl").read_text() == ""


def test_x_in_another_order_of_axes_is_in_the_default_cases(result_of, odd):
    """A kernel that reads x as it lies in memory passed."""
    (odd / "lies.py").write_text(
        "import right\ndef backward(dy, x, mean, rstd, gamma, normalized_shape):\n"
        "    return right.plain(dy, x.ravel('K').reshape(x.shape), mean, rstd, gamma, normalized_shape)\n"
    )
    assert result_of("lies:backward", DEFAULT["tail"]).status == "passed"
    assert result_of("lies:backward", DEFAULT["x transposed"]).mistake == "layout ignored"


def test_dx_in_the_memory_of_dy_is_allowed_where_it_is_said(result_of):
    result = result_of("cheats:in_place", DEFAULT["tail"])
    assert result.reason == "it changed its input dy; --allow inplace-dy judges what else it does"
    result = result_of("cheats:in_place", DEFAULT["tail"], allowed=("dy",))
    assert result.status == "passed", result.reason


def test_bits_that_differ_fail_where_equal_ones_are_asked_for(odd, result_of):
    (odd / "atomics.py").write_text(
        "import numpy as np\nimport right\ncalls = 0\n"
        "def seldom(dy, x, mean, rstd, gamma, normalized_shape):\n"
        "    global calls\n    calls += 1\n"
        "    dx, dgamma, dbeta = right.plain(dy, x, mean, rstd, gamma, normalized_shape)\n"
        "    return dx, dgamma, np.cumsum(dy[::-1], 0, np.float32)[-1] if calls == 9 else dbeta\n"
    )
    assert result_of("atomics:seldom", DEFAULT["65 by 64"]).status == "passed"
    (odd / "atomics.py").rename(odd / "again.py")
    result = result_of("again:seldom", DEFAULT["65 by 64"], repeatable=True)
    assert (result.status, result.mistake) == ("failed", "not repeatable")


def test_after_five_failures_without_a_name_they_are_described_alone(make_case):
    patience, unnamed = (
        Patience(Options()),
        CaseResult("", "", "failed", "", "", "", sentence="no known mistake explains it."),
    )
    for _ in range(MANY_UNNAMED):
        assert patience.options.explained == "whole"
        patience.add(unnamed)
    assert patience.options.explained == "brief"
    patience.add(replace(unnamed, mistake="gamma forgotten"))
    for _ in range(MANY_UNNAMED):  # small cases, which come first, may have no name whatever the mistake is
        assert patience.options.explained == "whole"
        patience.add(unnamed)
    assert patience.options.explained == "brief"
    brief, whole = (
        check_case(make_case(), Options(impl="mutant:last row lost", explained=how)) for how in ("brief", "whole")
    )
    assert (brief.mistake, whole.mistake) == (None, "last row lost")
    assert brief.sentence.startswith("no known mistake explains it. dgamma: ")
    assert "--no-diagnosis" in check_case(make_case(), Options(impl="mutant:last row lost", explained="not")).sentence


def test_gamma_dy_and_x_have_zeros():
    inputs_by_name = {name: draw(case, 0, 0, case.M, 1 << 30).inputs for name, case in DEFAULT.items() if case.zeros}
    assert {"zeros in gamma", "columns of zeros"} <= set(inputs_by_name)
    assert (inputs_by_name["zeros in gamma"].gamma[::5] == 0).all()
    assert np.count_nonzero(inputs_by_name["zeros in gamma"].gamma) == 19
    assert not inputs_by_name["columns of zeros"].x[:, ::5].any()
    assert not inputs_by_name["columns of zeros"].dy[:, ::5].any()


@pytest.mark.parametrize("mutant", ["xhat from y/gamma", "dgamma divided by gamma"])
def test_a_division_by_gamma_shows(result_of, mutant):
    result = result_of(f"mutant:{mutant}", DEFAULT["zeros in gamma"])
    assert (result.status, result.mistake) == ("failed", mutant)


def test_results_that_are_flushed_to_zero_fail_in_float32(result_of):
    assert result_of("mutant:results flushed to zero", DEFAULT["subnormal"]).status == "failed"
    assert result_of("numpy_cpu", DEFAULT["subnormal"]).status == "passed"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_standard_takes_llama_s_rounding_and_no_formula_that_is_wrong(make_case, dtype):
    case = make_case(
        dtype=dtype, gamma_dtype=dtype, output_dtypes={"dx": dtype, "dgamma": "float32"}, lead=(64,), norm="rms_norm"
    )
    llama = f"mutant:rounded to {dtype} before the weight"
    assert check_case(case, Options(impl=llama, standard="stable")).status == "failed"
    assert check_case(case, Options(impl=llama, standard="llama")).status == "passed"
    for wrong in ("gamma forgotten", "last row lost", "mean of dxhat·xhat missing", "eps 0.001"):
        found = check_case(
            replace(case, ranges={"statistic": None, "x": (-0.01, 0.01)}),
            Options(impl=f"mutant:{wrong}", standard="llama"),
        )
        assert found.status == "failed", wrong


def test_a_process_that_closes_its_pipe_and_lives_has_a_sentence():
    assert how_it_died(None, "") == "it left off answering, and did not end"
    assert how_it_died(3, "") == "crashed (exit code 3)"


def test_one_rule_serves_max_skipped_of_the_command_and_of_python(run):
    import lngrad.check

    result = run("check", "--max-skipped", "few")
    assert result.exit_code == 2
    assert "--max-skipped: expected a number of cases, or a share as 50%, got 'few'" in result.output
    with pytest.raises(LngradError, match="max_skipped: expected a number of cases"):
        lngrad.check.run("numpy_cpu", max_skipped="few")


def test_each_new_kind_of_arithmetic_says_its_digits():
    assert "tf32, 11 digits, " in MISTAKES["sums of operands in tf32"].sentence
    assert "two bfloat16, 16 digits" in MISTAKES["dy, x and gamma rounded to two bfloat16"].sentence


DETACHES = """
import os, subprocess, sys, time
from lngrad.support.children import children, end_children, guarded
guarded()
kept = subprocess.Popen(["sleep", "60"])
detached = "import os, time; os.setsid(); os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", detached], stdout=subprocess.PIPE, text=True)
process = int(child.stdout.readline())
child.wait()
while process not in dict(children()):
    time.sleep(0.01)
end_children(lambda one, _: one == kept.pid)
print(kept.poll(), os.path.exists(f"/proc/{process}"))
end_children()
print(kept.wait())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_what_a_program_detaches_is_left_to_us_and_ends_and_what_is_ours_is_kept():
    done = subprocess.run([sys.executable, "-c", DETACHES], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:1] == ["None False"], done.stderr


@pytest.mark.parametrize("value", [-1.694e38, 3e37])
def test_memory_that_nobody_wrote_is_named(diagnosed, value):
    found = diagnosed(lambda t: {"dgamma": np.full(t.N, value)})
    assert found.mistake == "dgamma never written"
    assert found.sentence.startswith(f"all {np.float32(value):.3g} in dgamma: never written")


def test_an_error_of_a_kernel_has_its_file_and_line(odd, result_of):
    (odd / "raises.py").write_text("import numpy as np\ndef backward(dy, x):\n\n    return np.linalg.inv(x[0])\n")
    reason = result_of("raises:backward", DEFAULT["tail"]).reason
    assert reason.startswith("LinAlgError: ")
    assert reason.endswith(" (raises.py:4)")


def test_errors_of_few_digits_are_said_with_their_number(diagnosed):
    def coarse(t):
        dx = t.dx()
        return {"dx": dx + np.random.default_rng(3).uniform(-1, 1, dx.shape) * 2.0**-11 * np.abs(t.rstd * t.dxhat)}

    found = diagnosed(coarse, lead=(40,), normalized=(96,))
    assert found.mistake is None
    assert re.search(r"the largest leaves 1[12] bits", found.sentence), found.sentence


def test_a_run_that_goes_on_has_the_seed_of_its_file(odd):
    words = ["check", "--impl", "numpy_cpu", "--filter", "=tail", "--json", "r.jsonl"]
    first, second = (CliRunner().invoke(app, [*words, *more]).output for more in ((), ("--resume", "any")))
    (seed,) = re.findall(r"; --seed (\d+) draws", " ".join(first.split()))
    assert re.findall(r"; --seed (\d+) draws", " ".join(second.split())) == [seed]
    assert f" --seed {seed} " in json.loads((odd / "r.jsonl").read_text().splitlines()[0])["command"]


def test_the_plugin_has_the_command_s_rule(odd):
    words = ["-q", "-p", "no:cacheprovider", "--lngrad-impl", "numpy_cpu", "--lngrad-max-skipped", "few"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "--lngrad-max-skipped: expected a number of cases, or a share as 50%, got 'few'" in done.stderr


def test_rows_that_lie_in_one_place_stay_alike_in_a_second_call():
    """A right kernel was called wrong: the second x, in memory with stride 0, was not what the reference had."""
    case = replace(DEFAULT["65 by 64"], layouts={"x": "shared", "dy": "shared"})
    for name in "abcdefgh":  # the name says what changes
        named = replace(case, name=name)
        drawn = draw(named, 3, 0, named.M, 1 << 20)
        other = with_other_values(named, drawn).inputs
        for array in (other.x, other.dy):
            assert (array == array[:1]).all()
        assert (other.dy != drawn.inputs.dy).any()


FORWARD = """
import torch

def norm(x, weight, bias, eps=1e-5):
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    xhat = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (xhat * weight.float() + bias.float()).to(x.dtype)
"""


def test_the_gradient_of_one_row_may_be_dy_itself(tmp_path):
    """autograd gives dy's own memory as the bias's gradient, which the next call overwrites."""
    pytest.importorskip("torch")
    (file := tmp_path / "forward.py").write_text(FORWARD)
    found = lngrad.check.run(f"{file}:norm", filter="=no leading dimension", seed=0, fuzz=0)
    assert found.verdict == "PASS"
