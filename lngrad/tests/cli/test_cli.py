"""The command line as users meet it: a process, its lines, its exit code, and what it leaves on disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import lngrad
from lngrad import errors
from lngrad.cli import commands, demo, info, terminal
from lngrad.core.problem import Grads
from lngrad.errors import FileFormatError
from lngrad.files import writing
from lngrad.files.reading import read_tensors
from lngrad.support.dtypes import DTYPES
from lngrad.testing import Case, Inputs, check_grads, check_same_bits, make_inputs

CASE = Case((3, 50), (24,))
SAME_PATHS = True


def cli(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lngrad", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def refused(text: str, *arguments: object) -> None:
    """The command, in this process, says one line with this text, and ends with 2."""
    result = CliRunner().invoke(commands.app, list(map(str, arguments)))
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert text in result.stderr
    assert result.stdout == ""


def arrays_of(inputs: Inputs) -> dict[str, Any]:
    names = ("dy", "x", "mean", "rstd", "gamma")
    return {name: getattr(inputs, name) for name in names if getattr(inputs, name) is not None}


def save(path: Path, arrays: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file(arrays, path)
    else:
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    return path


def results_in(path: Path) -> Grads:
    arrays = read_tensors(path, Grads._fields).arrays
    return Grads(*map(arrays.get, Grads._fields))


@pytest.mark.parametrize(
    ("dtype", "source", "target"),
    [
        ("float32", "in.npz", "out.npz"),
        ("bfloat16", "in", "out.safetensors"),
        ("float16", "in.safetensors", "out"),
        ("bfloat16", "in.npz", "out"),
    ],
)
def test_run(tmp_path, dtype, source, target):
    inputs = make_inputs(CASE, dtype)
    result = cli("run", save(tmp_path / source, arrays_of(inputs)), "-o", tmp_path / target, "--block-bytes", 1)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert f"dx (3, 50, 24) {dtype}, dgamma (24,) {dtype}, dbeta (24,) {dtype} (numba_cpu, " in result.stdout
    got = results_in(tmp_path / target)
    check_grads(got, inputs)
    expected = lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    check_same_bits(got, expected)
    assert {entry.name for entry in tmp_path.iterdir()} == {source, target}


def test_run_with_every_option(tmp_path):
    inputs = make_inputs(Case((20,), (4, 6), gamma=False), "float32")
    others = {f"label {number}": np.zeros(3) for number in range(100)}
    source = save(tmp_path / "in.npz", {"dy": inputs.dy, "x": inputs.x, **others})
    (tmp_path / "out.npz").write_text("old")
    choices = ("--backend", "numpy_cpu", "--output-mask", "dx,dbeta", "--threads", 1)
    numbers = ("--eps", 0.001, "--normalized-dims", 2)
    result = cli("run", source, "-o", tmp_path / "out.npz", *choices, *numbers, "--force")
    assert result.returncode == 0, result.stderr
    assert result.stderr == f"lngrad: {source}: not used: {', '.join(list(others)[:8])} and 92 more\n"
    assert "dx (20, 4, 6) float32, dbeta (4, 6) float32 (numpy_cpu, " in result.stdout
    forward = lngrad.layer_norm(inputs.x, normalized_shape=(4, 6), eps=1e-3, backend="numpy_cpu")
    judged = Inputs(**{**vars(inputs), "mean": forward.mean, "rstd": forward.rstd})
    check_grads(results_in(tmp_path / "out.npz"), judged, output_mask=(True, False, True))


def test_the_bits_do_not_depend_on_blocks_or_threads(tmp_path):
    inputs = make_inputs(Case((1000,), (24,)), "bfloat16")
    source = save(tmp_path / "in.npz", arrays_of(inputs))
    contents = set()
    for number, options in enumerate((["--threads", 1], ["--block-bytes", 1], ["--block-bytes", 40_000])):
        assert cli("run", source, "-o", tmp_path / f"{number}.npz", *options).returncode == 0
        contents.add((tmp_path / f"{number}.npz").read_bytes())
    assert len(contents) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA bounds mapped memory on Linux alone")
@pytest.mark.parametrize("target", ["out", "out.npz", "out.safetensors"])
def test_arrays_larger_than_memory(tmp_path, target):
    """1 GiB each of x, dy and dx, computed in 512 MiB that may be allocated."""
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (1 << 20, 256)).flush()
    os.link(tmp_path / "x.npy", tmp_path / "dy.npy")
    program = (
        "import resource as r; r.setrlimit(r.RLIMIT_DATA, (1 << 29, 1 << 29))\nfrom lngrad.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, "run", str(tmp_path), "-o", str(tmp_path / target)]
    result = subprocess.run([*command, "--block-bytes", str(1 << 26)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    dx = read_tensors(tmp_path / target, ("dx",)).arrays["dx"]
    assert dx.shape == (1 << 20, 256)
    assert not dx[:: 1 << 16].any()


def test_bad_inputs_are_one_line_each(tmp_path):
    inputs = make_inputs(CASE, "float32")
    arrays = arrays_of(inputs)
    good = save(tmp_path / "good.npz", arrays)
    output = tmp_path / "out.npz"

    cut = tmp_path / "cut.npz"
    cut.write_bytes(good.read_bytes()[:-100])
    refused(f"{cut}: is no .npz file, or is truncated or damaged", "run", cut, "-o", output)

    pickled = tmp_path / "pickled"
    save(pickled, arrays)
    np.save(pickled / "x.npy", np.array([{}], object), allow_pickle=True)
    refused(f"{pickled / 'x.npy'}: contains Python objects", "run", pickled, "-o", output)

    short = save(tmp_path / "short.npz", {**arrays, "rstd": inputs.rstd[:1]})
    refused(f"{short}: rstd: expected 150 elements, one per row of x (3, 50, 24)", "run", short, "-o", output)
    missing = save(tmp_path / "missing.npz", {"x": inputs.x})
    refused(f"{missing}: dy: is missing; expected dy and x, got x", "run", missing, "-o", output)
    integers = save(tmp_path / "integers.npz", {**arrays, "dy": np.ones((3, 50, 24), np.int32)})
    refused(f"{integers}: dy: expected float16, bfloat16, float32 or float64, got int32", "run", integers, "-o", output)

    text = tmp_path / "good.txt"
    text.write_text("1 2 3")
    refused(f"{text}: expected a .npz, a .safetensors or a folder of .npy files", "run", text, "-o", output)
    refused("absent.npz: no such file or folder", "run", tmp_path / "absent.npz", "-o", output)
    refused(f"{good}: eps: has no effect where rstd is given", "run", good, "-o", output, "--eps", 1)
    assert not output.exists()


def test_bad_outputs_and_options_are_one_line_each(tmp_path):
    good = save(tmp_path / "good.npz", arrays_of(make_inputs(CASE, "float32")))
    before = good.read_bytes()
    refused("expected a .npz, a .safetensors or a folder", "run", good, "-o", tmp_path / "out.csv")
    refused("can't be written: there is no folder", "run", good, "-o", tmp_path / "nowhere" / "out.npz")
    refused("good.npz: is the input, and is not replaced", "run", good, "-o", good, "--force")
    (tmp_path / "there.npz").write_text("mine")
    refused("exists already; another name, or --force", "run", good, "-o", tmp_path / "there.npz")
    refused(
        "lngrad: --backend: expected one of numba_cpu", "run", good, "-o", tmp_path / "out.npz", "--backend", "abacus"
    )
    refused("--output-mask: expected some of", "run", good, "-o", tmp_path / "out.npz", "--output-mask", "dx,dy")
    assert {entry.name for entry in tmp_path.iterdir()} == {"good.npz", "there.npz"}
    assert good.read_bytes() == before
    assert (tmp_path / "there.npz").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    good = save(tmp_path / "good.npz", arrays_of(make_inputs(CASE, "float32")))
    (tmp_path / "locked").mkdir(mode=0o500)
    refused("can't be written: Permission denied", "run", good, "-o", tmp_path / "locked" / "out.npz")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(tmp_path, monkeypatch):
    """As /dev/full tells it: the write fails, not the opening."""
    monkeypatch.setattr(writing.secrets, "token_hex", lambda size: "x")
    (tmp_path / ".out.safetensors.x.tmp").symlink_to("/dev/full")
    dx = np.zeros((1000, 1000), np.float32)

    def write() -> None:
        with writing.new_output(tmp_path / "out.safetensors", {"dx": (dx.shape, "float32")}) as output:
            output.append("dx", dx)

    with pytest.raises(FileFormatError, match=r"out\.safetensors: can't be written: No space left on device"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_run_leaves_nothing(tmp_path, number, code):
    """The input is a sparse file, large in name only; a slow backend gives time to interrupt it."""
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (1 << 20, 64))
    del x
    os.link(tmp_path / "x.npy", tmp_path / "dy.npy")
    output = tmp_path / "out" / "grads.safetensors"
    output.parent.mkdir()
    command = ["run", tmp_path, "-o", output, "--backend", "numpy_cpu", "--block-bytes", 1 << 20]
    process = subprocess.Popen(
        [sys.executable, "-m", "lngrad", *map(str, command)], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has it ignored
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(output.parent.iterdir()) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    assert [entry.suffix for entry in output.parent.iterdir()] == [".tmp"]
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors == ("lngrad: interrupted\n" if number == signal.SIGINT else "")
    assert list(output.parent.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_during_an_import_is_an_interrupted_command(tmp_path):
    """The signal comes while a text is executed, as imports do for dataclasses: under -m Python then ends by SIGINT."""
    program = (
        "import os, signal\n"
        "def interrupted():\n    exec('os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(10**6): pass', globals())\n"
        "from lngrad.cli import info, main\n"
        "info.backends = interrupted\n"
        "main.main()"
    )
    (tmp_path / "program.py").write_text(program)
    command, source = [sys.executable, "-m", "program", "info"], str(Path(lngrad.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (130, "lngrad: interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("module", ["typer", "lngrad.cli.commands"])
def test_ctrl_c_before_the_command_is_known_is_one_line(module):
    program = (
        "import os, signal, sys\n"
        "from lngrad.cli import main\n"
        "class Finder:\n    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "main.main()"
    )
    result = subprocess.run([sys.executable, "-c", program, "info"], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "lngrad: interrupted\n")


KERNEL = """\
#include "kernel_operator.h"
#include <cstdio>
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y) {
    AscendC::GlobalTensor<float>().SetGlobalBuffer((__gm__ float*)x);
#ifdef ENDLESS
    for (;;) puts("a line");
#endif
}
"""
KERNEL_RUN = "kernel run k.cpp --kernel k --arg x=x.npy --arg y=empty:float32:2,32"


def files_of_examples(folder: Path) -> None:
    """What the examples of the commands' help read."""
    np.save(folder / "x.npy", np.ones((2, 32), np.float32))
    (folder / "k.cpp").write_text(KERNEL)
    save(folder / "in.npz", arrays_of(make_inputs(CASE, "float32")))
    (folder / "cases").symlink_to(Path(__file__).parents[3] / "cases")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
@pytest.mark.parametrize(
    "words",
    [
        "info",
        "--help",
        "certify --impl numpy_cpu --trials 1",
        "check --impl numpy_cpu --limit 1",
        "golden cases -o goldens --limit 1",
        "run in.npz -o out.npz --backend numpy_cpu",
        *(
            pytest.param(words, marks=pytest.mark.slow)  # they train, measure or compile first
            for words in (
                "bench --quick --scopes kernel --cases 512x384 --dtypes float32",
                "demo --epochs 1",
            )
        ),
    ],
)
def test_a_reader_that_has_gone_ends_the_command_quietly(words, tmp_path):
    """141 as from `lngrad … | head -1` in a shell with pipefail; what is no progress bar is not said either."""
    files_of_examples(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lngrad", *words.split()]
    environment = {**os.environ, "PYTHONPATH": str(Path(lngrad.__file__).parents[1])}
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    os.close(writing)
    assert result.returncode == 141, result.stderr
    assert words.startswith("demo") or result.stderr == ""


HOSTILE = "x\x1b[31m\x07\u202e\u2066\x9b.npz"
ALL = (*commands.COMMANDS, *commands.ADDED)
WRONG = [  # for each command a word that it does not know, a file that is not there, and its own choices
    "X",
    "--X",
    *(f"{command.words} --X" for command in ALL),
    "bench --dtypes X",
    "bench --cases X",
    "certify --impl X",
    "check X",
    "check --against X",
    "check --compare X",
    "check --impl X",
    "check --impl cmd:X",
    "check --limit X",
    "demo --epochs X",
    "golden X -o goldens",
    "info X",
    "kernel X",
    "kernel run X --kernel k --arg x=x.npy",
    "kernel test X",
    "run X -o out.npz",
    "run X -o out.npz --backend X",
    "sdk --run X",
    "sdk toolkit --soc X",
    "tiling --shape X",
    "tiling --shape 2,32,16 --soc X",
]


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_word_moves_nothing_on_the_terminal(words, capsys):
    """The texts about usage too, which are the library's."""
    code = terminal.exit_code(commands.app, *(word.replace("X", HOSTILE) for word in words.split()))
    text_of_output = "".join(capsys.readouterr())
    assert code == 2, text_of_output
    assert r"\u202e" in text_of_output or "Input should be" in text_of_output
    assert all(letter.isprintable() or letter == "\n" for letter in text_of_output)


@pytest.mark.parametrize(
    "words",
    [
        "run missing.npz -o x.npz",
        "golden missing.csv -o x",
        "check missing.csv",
        "check --against missing",
        "check --compare missing.jsonl",
        "kernel run missing.cpp --kernel k --arg x=x.npy",
        "kernel run missing.cpp --arg x=x.npy",
        "kernel run -I missing pyproject.toml",
        "kernel test missing",
        "golden missing",
        "run missing.npz",
        "sdk --run missing.c",
    ],
)
def test_a_missing_file_is_named_first_and_in_the_same_words(words):
    name = next(word for word in words.split() if word.startswith("missing"))
    refused(f"lngrad: {name}: no such file or folder", *words.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tiling --soc Ascend910B", {"Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4"}),
        ("tiling --api LayerNormGrad", {"LayerNormGrad", "LayerNormGradBeta"}),
        ("check --standard m", {"mixed"}),
        ("check missing.csv --impl num", {"numba_cpu", "numpy_cpu"}),
        ("certify --impl asc", {"ascend_sim", "ascendc:"}),
        ("golden --format np", {"npy", "npz"}),
        ("run --norm r", {"rms_norm"}),
        ("check --norm add", {"add_layer_norm", "add_rms_norm"}),
    ],
)
def test_the_shell_completes_values(line, offered):
    words = {"_TYPER_COMPLETE_ARGS": f"lngrad {line}", "_LNGRAD_COMPLETE": "complete_fish"}
    result = cli(**words, _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert (set(result.stdout.split()), result.stderr) == (offered, "")


def test_a_page_is_named_by_where_it_can_be_read():
    shown = Path(errors.page("ascend-c"))
    assert shown.is_file() if shown.is_absolute() else str(shown) == "docs/ascend-c.md in lngrad's sources"
    assert errors.page("ascend-c") in " ".join(cli("kernel", "run", "-h", COLUMNS="300").stdout.split())


def test_a_missing_program_of_check_ends_with_2():
    refused("--impl: cmd: ./nowhere: no such program", "check", "--limit", 2, "--impl", "cmd:./nowhere {in} {out}")


def test_help_and_version():
    assert cli("--version").stdout == f"lngrad {lngrad.__version__}\n"
    text = cli("--help").stdout
    shown = re.findall(r"(?m)^  (\w+) ", text.partition("Commands:")[2])
    assert shown == list(dict.fromkeys(command.words.split()[0] for command in ALL))
    assert "..." not in text.partition("Commands:")[2], "a sentence that does not fit"
    assert "--output-mask" in cli("run", "-h").stdout
    assert cli("run").returncode == 2


def test_the_command_alone_says_what_to_do_next():
    result = cli()
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"lngrad {lngrad.__version__}: ")
    assert len(lines) == 6
    assert max(map(len, lines)) <= 60  # a narrow terminal
    assert all(line.startswith("  lngrad ") for line in lines[1:])
    assert {line.split()[1] for line in lines[1:]} <= {*(command.words for command in ALL), "--help"}


OTHERS = [
    command for command in ALL if command.words not in ("demo", "kernel test")
]  # its example runs in test_demo.py


@pytest.mark.parametrize("command", OTHERS, ids=lambda command: command.words)
def test_the_example_of_a_commands_help_runs(command, tmp_path):
    (example,) = re.findall(r"(?m)^ *Example: lngrad (.*)$", command.function.__doc__)
    assert example.startswith(command.words)
    if command.words in ("sdk", "kernel run") and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    files_of_examples(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(Path(lngrad.__file__).parents[1])}
    line = [sys.executable, "-m", "lngrad", *example.split()]
    result = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout or (tmp_path / "y.npy").exists()


def test_a_shell_completes_commands():
    """As the script of --show-completion asks; bash, zsh and fish differ in what they read."""
    words = {"_LNGRAD_COMPLETE": "complete_bash", "COMP_WORDS": "lngrad ce", "COMP_CWORD": "1"}
    assert cli(**words).stdout.split() == ["certify"]
    shown = cli("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    assert "_LNGRAD_COMPLETE=complete_bash" in shown


def test_a_completion_that_can_not_be_installed_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    detect = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path / "file")}
    result = cli("--install-completion", "bash", **detect)
    assert result.returncode == 1
    assert re.fullmatch(r"lngrad: .*file.*\n", result.stderr)


def test_a_locale_without_a_character_is_no_failure():
    """The arrow in a case's line becomes a question mark."""
    words = ("--impl", "mutant:gamma forgotten", "--filter", "=65 by 64")
    result = cli("check", *words, PYTHONIOENCODING="ascii")
    assert result.returncode == 1, result.stderr
    assert "? dx float32" in " ".join(result.stdout.split())


def test_help_loads_neither_numba_nor_a_framework():
    heavy = ("numba", "torch", "sklearn", "rich.progress")
    program = f"import sys, lngrad.cli.main; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_info(capsys):
    info.info()
    text = capsys.readouterr().out
    for line in (
        f"lngrad +{lngrad.__version__}",
        "backend numba_cpu +available",
        "threads +[0-9]+ ",
        "kernel cache +/",
        "lngrad demo +(installed|pip install 'lngrad\\[demo\\]')",
    ):
        assert re.search(rf"(?m)^{line}", text), text


def test_info_needs_no_torch():
    program = "import sys; sys.modules['torch'] = None; from lngrad.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", program, "info"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert re.search(r"(?m)^torch native code +none, without torch$", result.stdout), result.stdout


def test_info_ends_with_what_to_install_for_what(monkeypatch, capsys):
    """Every extra of the distribution, and what it installs."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name != "all"}
    assert {name: {re.split(r"[^\w-]", need)[0] for need in needs} - {"lngrad"} for name, needs in extras.items()} == {
        name: {part for part in distributions if name != "bench" or part != "torch"}
        for name, (_, *distributions) in info.EXTRAS.items()
    }

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(info, "version", missing)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("CXX", f"{sys.executable} -O1")
    info.info()
    lines = capsys.readouterr().out.splitlines()
    compilers = [line.split("  ")[-1].strip() for line in lines[-len(extras) - 2 : -len(extras)]]
    assert compilers == [
        "expected a C compiler (cc, gcc, clang, or $CC), found none",
        f"installed: {sys.executable} -O1",
    ]
    assert [line.split("  ")[-1].strip() for line in lines[-len(extras) :]] == [
        f"pip install 'lngrad[{name}]'" for name in info.EXTRAS
    ]


def test_info_tells_what_the_last_run_left_to_aten(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    program = (
        "import torch, lngrad.torch\n"
        "with lngrad.torch.override():\n"
        "    for _ in range(3): torch.nn.functional.layer_norm(torch.empty(0, 4), [4])\n"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=True)
        info.info()
        text = capsys.readouterr().out
        assert re.search(
            r"(?m)^left to torch +by -c, which ended 20..-..-.. ..:.. UTC, and why:\n +3 × native_layer_norm: x is empty$",
            text,
        )
    (tmp_path / "lngrad" / "fallbacks.json").write_text("[1]")
    info.info()
    assert "left to torch" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "lngrad").glob("fallbacks*")] == ["fallbacks.json"]


def test_info_says_why_there_is_no_kernel_cache(tmp_path):
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")}
    program = "import sys; sys.modules['torch'] = None; from lngrad.cli.main import main; main()"  # a second to import
    plain, warm = (
        subprocess.run([sys.executable, "-c", program, "info", *more], capture_output=True, text=True, env=environment)
        for more in ([], ["--warm"])
    )
    assert "kernels are compiled anew in every process" in plain.stdout
    assert warm.returncode == 2
    assert "the kernels can't be kept" in warm.stderr


def test_warm_knows_every_kernel():
    from lngrad.cpu import entries
    from lngrad.cpu.kernels.tasks import TASK_FUNCTIONS

    compiled = entries.kernels()
    assert len(compiled) == len(set(compiled))
    assert sum(name in TASK_FUNCTIONS for name, *_ in compiled) == len(DTYPES) * (len(TASK_FUNCTIONS) + 1)
    assert {("combine", "float16", "float64"), ("combine", "float64", "float32")} <= set(compiled)


def test_a_call_finds_what_was_compiled_ahead():
    """In a process of its own: no call asks for a function that warm has not compiled."""
    program = """
import numpy as np, lngrad
from lngrad.cpu import entries
for kernel in entries.kernels():
    if kernel[1:] == ("", "") or kernel == ("forward_rows", "float32", "float32"):
        entries.kernel_address(*kernel)
compiled = set(entries._addresses)
lngrad.set_num_threads(2)
lngrad.layer_norm(np.ones((1 << 14, 64), np.float32))
print(set(entries._addresses) == compiled, {"forward_rows_float32_float32", "run_worker", "join"} <= compiled)
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "True True\n"


def test_info_tells_of_kept_kernels(tmp_path, monkeypatch, capsys):
    from lngrad.cpu import cache
    from lngrad.support.cache_folder import kept

    lngrad.layer_norm(np.ones((2, 3), np.float32))  # kept from now on, if they were not
    kernels = [file for file in cache.FOLDER.iterdir() if re.match(r"(?!stamps|torch|ascendc)\w+-", file.name)]
    for kernel in [file for file in kernels if kept(file) is not None][:2]:
        shutil.copy(kernel, tmp_path)
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    info.info()
    assert re.search(r"\(2 files, \d+ kB; loaded ", capsys.readouterr().out)
    next(tmp_path.iterdir()).write_bytes(b"")
    info.info()
    assert "1 not whole, compiled again when needed" in capsys.readouterr().out


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    with pytest.raises(typer.Exit) as ended:
        demo.demo()
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "lngrad: needs scikit-learn: pip install 'lngrad[demo]'\n"


def test_a_demo_folder_that_can_not_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused("file: File exists", "demo", "-o", tmp_path / "file")


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def full() -> dict[str, str]:
        raise MemoryError

    monkeypatch.setattr(info, "backends", full)
    with pytest.raises(typer.Exit) as ended:
        terminal.in_one_line(info.info)()
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "lngrad: not enough memory\n"


@pytest.mark.parametrize(
    "words", ["golden", "kernel run", "bench --rounds x", "nosuch", "check --nosuch", "check --impl"]
)
def test_a_wrong_use_is_one_line(words, capsys):
    assert terminal.exit_code(commands.app, *words.split()) == 2
    (line,) = "".join(capsys.readouterr()).splitlines()
    assert re.fullmatch(r"lngrad[a-z ]*: [a-z].*; see lngrad[a-z ]* --help", line), line


def test_info_says_of_a_torch_that_is_too_old_that_it_is_not_used(tmp_path):
    (tmp_path / "torch-2.9.1.dist-info").mkdir()
    (tmp_path / "torch-2.9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    stub = "from types import SimpleNamespace as N; cuda, library = N(is_available=lambda: False), N(get_kernel=print)"
    (tmp_path / "torch.py").write_text(f"__version__ = '2.9.1'; {stub}\n")
    source = str(Path(lngrad.__file__).parents[1])
    text_of_output = cli("info", PYTHONPATH=os.pathsep.join([str(tmp_path), source])).stdout
    assert re.search(
        r"(?m)^torch tensors, .* not used: lngrad.torch: expected torch 2.10 or later, got 2.9.1$", text_of_output
    )


def test_what_takes_long_is_said_once(tmp_path, monkeypatch, capsys):
    from lngrad.cpu import cache, compiling, entries

    monkeypatch.setattr(cache, "FOLDER", None)
    monkeypatch.setattr(entries, "Timer", lambda seconds, tell: threading.Timer(seconds / 200, tell))
    compiled = compiling.compile_kernel
    monkeypatch.setattr(compiling, "compile_kernel", lambda *key: (time.sleep(0.5), compiled(*key))[1])
    entries._tell.cache_clear()
    for _ in range(2):
        assert entries._compile("begin", "begin", "", "")
    line = "lngrad: compiling kernels for this processor, once; `lngrad info --warm` compiles all ahead\n"
    assert capsys.readouterr().err == line


def test_programs_that_compile_run_elsewhere_and_tell_what_went_wrong():
    from lngrad.cpu.entries import compile_elsewhere

    wrong = compile_elsewhere(["pass", "raise SystemExit('no')", "import os; os._exit(5)", "pass"])
    assert list(wrong) == ["", "no", "exit code 5", ""]


@pytest.mark.parametrize("words", ["kernel run k.cpp --kernel k", "kernel --help", "sdk", "tiling --shape 2,32,16"])
def test_a_command_of_a_package_that_is_not_installed_says_what_to_install(words, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\nfind = m.entry_points\nm.entry_points = lambda **names: find(group='none')\n"
    )
    result = cli(*words.split(), PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    if "--help" in words:
        assert "Needs lngrad-ascend." in result.stdout
    else:
        name = words.split()[0]
        assert result.returncode == 2
        assert result.stderr == f"lngrad: {name}: needs lngrad-ascend: pip install lngrad-ascend\n"
