"""The command `lngrad sdk`, by subprocess; what it refuses, in this process."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from programs import needs_c

from lngrad.cli import commands, terminal
from lngrad_ascend.sdk import Settings, program

PROGRAM = """
#include <stdio.h>
#include "acl/acl.h"
#include "beside.h"
int main(int count, char **arguments)
{
    if (aclInit(NULL) != ACL_SUCCESS) return 1;
    printf("%s", aclrtGetSocName());
    for (int i = 1; i < count; i++) printf(" %s", arguments[i]);
    return BESIDE;
}
"""


def lngrad(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lngrad", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "beside.h").write_text("#define BESIDE 42\n")
    (tmp_path / "main.c").write_text(PROGRAM)
    return tmp_path / "main.c"


@needs_c
def test_run_gives_the_program_its_words_and_returns_its_code(source: Path, any_toolkit: Path) -> None:
    done = lngrad("sdk", any_toolkit, "--run", source, "one", "-v", "--help", "--run")
    assert (done.returncode, done.stdout, done.stderr) == (42, "Ascend910B1 one -v --help --run", "")


@needs_c
def test_run_without_a_folder(source: Path) -> None:
    done = lngrad("sdk", "--soc", "Ascend950", "--run", source)
    assert (done.returncode, done.stdout) == (42, "Ascend950")


@needs_c
def test_flags_for_a_compiler(source: Path, toolkit: Path, tmp_path: Path) -> None:
    flags = lngrad("sdk", toolkit, "--cflags", "--libs").stdout
    both = lngrad("sdk", toolkit, "--cflags").stdout.split() + lngrad("sdk", toolkit, "--libs").stdout.split()
    assert shlex.split(flags) == both
    subprocess.run(["cc", source, *both, "-o", tmp_path / "main"], check=True)
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
    name: str, text: str, toolkit: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source.parent / "main.py").touch()
    code = terminal.exit_code(commands.app, "sdk", str(toolkit), "--run", str(source.parent / name))
    assert code == 2
    assert text in capsys.readouterr().err


@needs_c
def test_a_program_that_a_signal_ends(tmp_path: Path, any_toolkit: Path) -> None:
    (tmp_path / "main.c").write_text("#include <stdlib.h>\nint main(void) { abort(); }\n")
    assert lngrad("sdk", any_toolkit, "--run", tmp_path / "main.c").returncode == 134


WHOLE = """
#include "acl/acl.h"
#include "kernel_operator.h"
using namespace AscendC;
__global__ __vector__ void twice(__gm__ uint8_t* x)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 256);
    LocalTensor<float> local = buffer.Get<float>();
    GlobalTensor<float> memory;
    memory.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x), 64);
    DataCopy(local, memory, 64);
    BETWEEN
    Muls(local, local, 2.0f, 64);
    PipeBarrier<PIPE_ALL>();
    DataCopy(memory, local, 64);
}
int main()
{
    float host[64] = {21}, *device;
    aclInit(nullptr);
    aclrtSetDevice(0);
    aclrtMalloc(reinterpret_cast<void**>(&device), sizeof host, ACL_MEM_MALLOC_HUGE_FIRST);
    aclrtMemcpy(device, sizeof host, host, sizeof host, ACL_MEMCPY_HOST_TO_DEVICE);
    twice<<<1, 0, nullptr>>>(reinterpret_cast<uint8_t*>(device));
    if (aclrtSynchronizeDevice() != ACL_SUCCESS) return 3;
    aclrtMemcpy(host, sizeof host, device, sizeof host, ACL_MEMCPY_DEVICE_TO_HOST);
    return host[0] == 42 ? 0 : 4;
}
"""


@needs_c
def test_kernel_run_builds_and_runs_a_whole_asc_file(
    tmp_path: Path, any_toolkit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    twice, four = tmp_path / "twice.asc", tmp_path / "four.asc"
    twice.write_text(WHOLE)
    four.write_text("int main() { return 4; }\n")
    done = lngrad("kernel", "run", twice, "-D", "BETWEEN=PipeBarrier<PIPE_ALL>();")
    assert done.returncode == 0, done.stderr

    def found(folder: Path, settings: Settings) -> None:
        assert settings == Settings()
        folder.symlink_to(any_toolkit, target_is_directory=True)

    def here(*arguments: object) -> tuple[int, str]:
        """In this process, where the toolkit need not be compiled for each."""
        return terminal.exit_code(commands.app, "kernel", "run", *map(str, arguments)), "".join(capfd.readouterr())

    monkeypatch.setattr(program, "write_toolkit", found)
    code, printed = here(twice, "-D", "BETWEEN=")
    assert code == 1
    assert "twice.asc:15: Muls reads 256 bytes" in printed
    assert here(twice, "-D", "BETWEEN=", "--no-ordering")[0] == 0
    assert "a whole program FILE.asc" in here()[1]
    code, printed = here(twice, "-D", "BETWEEN=host[0] = 1;", "--time-limit", "50")
    assert (code, "does not compile" in printed or "error" in printed) == (2, True)
    assert here(four)[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        "--json", "--save x=x.npy", "--timeline t.svg", "--cycles-json c.json", "--report", "--header {asc}", "--blocks 2",
        "--tiling {asc}", "--workspace 64", "--shape x=1", "--attr x=1", "--dtype float16", "--tiling-key 1", "--force",
    ],
)  # fmt: skip
def test_kernel_run_refuses_what_a_whole_program_has_itself(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "twice.asc").write_text(WHOLE)
    arguments = [str(tmp_path / "twice.asc"), *words.format(asc=tmp_path / "twice.asc").split()]
    assert terminal.exit_code(commands.app, "kernel", "run", *arguments) == 2
    expected = f"lngrad: {words.split()[0]}: expected a kernel file, got the program twice.asc\n"
    assert capsys.readouterr() == ("", expected)


DETACHES = """
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    if (fork() == 0) {
        setsid();
        FILE *file = fopen("pid", "w");
        fprintf(file, "%d", getpid());
        fclose(file);
        close(1), close(2);
        sleep(200);
        return 0;
    }
    sleep(200);
    return 0;
}
"""


@needs_c
@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_child_in_a_session_of_its_own_ends_at_the_time_limit(
    tmp_path: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.c").write_text(DETACHES)
    monkeypatch.chdir(tmp_path)
    done = lngrad("sdk", toolkit, "--time-limit", 2, "--run", "main.c")
    assert (done.returncode, "not done within 2 s" in done.stderr) == (124, True), done.stderr
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
