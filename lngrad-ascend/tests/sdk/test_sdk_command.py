"""The command `lngrad sdk`, by subprocess; what it refuses, in this process."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from building import needs_c

from lngrad.cli import commands, terminal
from lngrad_ascend.sdk import Settings, program
from lngrad_ascend.sdk import toolkit as toolkit_module

PROGRAMS = Path(__file__).with_name("programs")
WORDS, TWICE = PROGRAMS / "words.c", PROGRAMS / "twice.asc"


def lngrad(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lngrad", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@needs_c
def test_run_gives_the_program_its_words_and_returns_its_code(any_toolkit: Path) -> None:
    done = lngrad("sdk", any_toolkit, "--run", WORDS, "one", "-v", "--help", "--run")
    assert (done.returncode, done.stdout, done.stderr) == (42, "Ascend910B1 one -v --help --run", "")


@needs_c
def test_run_without_a_folder() -> None:
    done = lngrad("sdk", "--soc", "Ascend950", "--run", WORDS)
    assert (done.returncode, done.stdout) == (42, "Ascend950")


@needs_c
def test_writing_says_where_python_has_no_shared_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolkit_module, "_libpython", lambda: "")
    assert terminal.exit_code(commands.app, "sdk", str(tmp_path / "new")) == 0
    assert capsys.readouterr().err.startswith(
        f"warning: {sys.executable} has no shared library: programs start only by "
    )


@needs_c
def test_flags_for_a_compiler(toolkit: Path, tmp_path: Path) -> None:
    flags = lngrad("sdk", toolkit, "--cflags", "--libs").stdout
    both = lngrad("sdk", toolkit, "--cflags").stdout.split() + lngrad("sdk", toolkit, "--libs").stdout.split()
    assert shlex.split(flags) == both
    subprocess.run(["cc", WORDS, *both, "-o", tmp_path / "main"], check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True).stdout == "Ascend910B1"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "lngrad: DIR: expected a folder to write, or --run FILE\n"),
        (("--run",), "lngrad: --run: expected a C or C++ file after it\n"),
        (("no-such-folder", "--libs"), "lngrad: no-such-folder: expected a folder that `lngrad sdk` wrote\n"),
        (("new", "--mode", "lax"), "lngrad: --mode: expected 'strict' or 'compat', got 'lax'\n"),
        (("new", "--soc", "Ascend1"), "lngrad: --soc: expected one of "),
    ],
)
def test_refuses_in_one_line(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text_printed = terminal.exit_code(commands.app, "sdk", *arguments), capsys.readouterr().err
    assert code == 2
    assert text_printed.startswith(text)
    assert text_printed.count("\n") == 1


@needs_c
@pytest.mark.parametrize(
    ("name", "text"), [("main.py", "main.py: expected a file that ends in .c"), ("absent.c", "absent.c: no such file")]
)
def test_run_refuses_what_is_no_program(
    name: str, text: str, toolkit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").touch()
    code = terminal.exit_code(commands.app, "sdk", str(toolkit), "--run", str(tmp_path / name))
    assert code == 2
    assert text in capsys.readouterr().err


@needs_c
def test_a_program_that_a_signal_ends(tmp_path: Path, any_toolkit: Path) -> None:
    (tmp_path / "main.c").write_text("#include <stdlib.h>\nint main(void) { abort(); }\n")
    assert lngrad("sdk", any_toolkit, "--run", tmp_path / "main.c").returncode == 134


@needs_c
def test_kernel_run_writes_a_toolkit_for_a_whole_asc_file() -> None:
    done = lngrad("kernel", "run", TWICE, "-D", "BETWEEN=PipeBarrier<PIPE_ALL>();")
    assert done.returncode == 0, done.stderr


@needs_c
def test_kernel_run_builds_and_runs_a_whole_asc_file(
    tmp_path: Path, any_toolkit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    four = tmp_path / "four.asc"
    four.write_text("int main() { return 4; }\n")

    def found(folder: Path, settings: Settings) -> None:
        assert settings == Settings()
        folder.symlink_to(any_toolkit, target_is_directory=True)

    def here(*arguments: object) -> tuple[int, str]:
        """In this process, where the toolkit need not be compiled for each."""
        return terminal.exit_code(commands.app, "kernel", "run", *map(str, arguments)), "".join(capfd.readouterr())

    monkeypatch.setattr(program, "write_toolkit", found)
    code, printed = here(TWICE, "-D", "BETWEEN=")
    assert code == 1
    assert "twice.asc:14: Muls reads 256 bytes" in printed
    assert here(TWICE, "-D", "BETWEEN=", "--no-ordering")[0] == 0
    assert "a whole program FILE.asc" in here()[1]
    code, printed = here(TWICE, "-D", "BETWEEN=host[0] = 1;", "--time-limit", "50")
    assert (code, "does not compile" in printed or "error" in printed) == (2, True)
    assert here(four)[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        "--json -", "--save x=x.npy", "--timeline t.svg", "--cycles-json c.json", "--report", "--header {asc}", "--blocks 2",
        "--tiling {asc}", "--workspace 64", "--shape x=1", "--attr x=1", "--dtype float16", "--tiling-key 1", "--force",
    ],
)  # fmt: skip
def test_kernel_run_refuses_what_a_whole_program_has_itself(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(TWICE), *words.format(asc=TWICE).split()]
    assert terminal.exit_code(commands.app, "kernel", "run", *arguments) == 2
    expected = f"lngrad: {words.split()[0]}: expected a kernel file, got the program twice.asc\n"
    assert capsys.readouterr() == ("", expected)


@needs_c
@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_child_in_a_session_of_its_own_ends_at_the_time_limit(
    tmp_path: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = lngrad("sdk", toolkit, "--time-limit", 2, "--run", PROGRAMS / "detaches.c")
    assert (done.returncode, "not done within 2 s" in done.stderr) == (124, True), done.stderr
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
