"""The process around the library: threads, exits, forks, Python inside and outside, an environment that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from building import build, needs_c, run

from lngrad_ascend.sdk import Settings, write_toolkit
from lngrad_ascend.sdk import toolkit as toolkit_module

PROGRAMS = Path(__file__).with_name("programs")


def output(toolkit: Path, folder: Path, name: str, *flags: str, code: int = 0) -> str:
    """What a program prints."""
    done = run(build(toolkit, PROGRAMS / f"{name}.c", folder, *flags))
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


OUTPUTS = {
    "last_error_of_each_thread": "none here\n",
    "first_call_from_any_thread": "done\n",
    "calls_while_the_process_ends": "0\n",
    "forked_before_the_first_call": "0\n",  # as any process
    "initialise_again": "100001\n",
    "following_addresses_and_handles": "1 1\n",
    "host_memory_for_the_device": "0 100000\n0\n",
    "getters": "2 3 4 1 2 6 4 6 0 1\n0 161002 tensor: expected a living aclTensor, got a destroyed one\n",
    "null_where_a_result_goes": "100000 devPtr: expected where to write to, got a null pointer\n"
    "161001 offset: expected where to write to, got a null pointer\n",
    "not_supported": "200001 aclDumpOpTensors: expected a device, which this host is not\n",
    "host_memory": "7 0 100000\n",
}


@needs_c
@pytest.mark.parametrize("name", OUTPUTS)
def test_output_of_a_program(name: str, toolkit: Path, tmp_path: Path) -> None:
    assert output(toolkit, tmp_path, name) == OUTPUTS[name]


@needs_c
@pytest.mark.parametrize("end", ["return 0;", "exit(0);", "aclFinalize(); return 0;", "_exit(0);"])
def test_ends_with_work_in_a_stream(end: str, toolkit: Path, tmp_path: Path) -> None:
    output(toolkit, tmp_path, "ends_with_work_in_a_stream", f"-DEND={end}")


@needs_c
def test_a_forked_child_is_refused_with_a_text(toolkit: Path, tmp_path: Path) -> None:
    text = output(toolkit, tmp_path, "forked_child")
    assert text.startswith("500001 lngrad: this process was forked from one that had called acl functions")
    assert text.endswith("child ended with 7, parent gets 0\n")


@needs_c
@pytest.mark.parametrize("arguments", ["host, 64, WILD, 64, ACL_MEMCPY_HOST_TO_HOST",
                                       "WILD, 64, host, 64, ACL_MEMCPY_HOST_TO_HOST",
                                       "WILD, 64, device, 64, ACL_MEMCPY_DEVICE_TO_HOST",
                                       "device, 64, WILD, 64, ACL_MEMCPY_HOST_TO_DEVICE"])  # fmt: skip
def test_a_wild_host_pointer_is_refused(arguments: str, toolkit: Path, tmp_path: Path) -> None:
    text = output(toolkit, tmp_path, "wild_host_pointer", f"-DCALL=aclrtMemcpy({arguments})")
    assert "able bytes of host memory, got the pointer 0x10" in text
    assert text.startswith("100000 ")


@needs_c
def test_inside_a_python_program(toolkit: Path) -> None:
    command = [sys.executable, PROGRAMS / "inside_python.py", toolkit / "lib64" / "libascendcl.so"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@needs_c
def test_an_environment_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit_module, "PYTHON", "/no/such/venv/bin/python")
    write_toolkit(tmp_path / "toolkit")
    done = run(build(tmp_path / "toolkit", PROGRAMS / "nothing.c", tmp_path))
    message = "lngrad: the Python environment that wrote this toolkit is gone: /no/such/venv/bin/python. "
    message += "Write the folder again, with `lngrad sdk DIR`\n"
    assert (done.returncode, done.stdout, done.stderr) == (9, message, message)


@needs_c
def test_a_package_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package" / "lngrad_ascend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('half installed')")
    monkeypatch.setattr(toolkit_module, "PACKAGES", (str(package.parent),))
    write_toolkit(tmp_path / "toolkit")
    done = run(build(tmp_path / "toolkit", PROGRAMS / "nothing.c", tmp_path))
    assert (done.returncode, done.stdout) == (9, "lngrad: Python could not start: ImportError: half installed\n")


@needs_c
@pytest.mark.parametrize(
    ("settings", "name", "text"),
    [
        (Settings(soc="Ascend950", mode="compat"), "soc_name", "Ascend950\n"),
        (Settings(unified=True), "host_memory_for_the_device", "1 0\n4\n"),
    ],
)
def test_the_program_sees_what_the_folder_was_written_with(
    settings: Settings, name: str, text: str, tmp_path: Path
) -> None:
    write_toolkit(tmp_path / "toolkit", settings)
    assert output(tmp_path / "toolkit", tmp_path, name) == text


@needs_c
def test_inside_a_program_with_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit_module, "VERSION", "2.7")
    write_toolkit(tmp_path / "toolkit")
    library = tmp_path / "toolkit" / "lib64" / "libascendcl.so"
    program = "import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).aclInit(None) == 500001; assert 'lngrad' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith(f"lngrad: this program contains Python {sys.version[:4]}")
    assert done.stderr.endswith("the toolkit is of Python 2.7. Write the folder with the program's Python\n")


@needs_c
def test_a_python_without_a_shared_library(static_toolkit: Path, tmp_path: Path) -> None:
    text = output(static_toolkit, tmp_path, "nothing", code=9)
    assert text.startswith(f"lngrad: {sys.executable} has no shared library (libpython3.")
    assert text.endswith("or run the source with `lngrad sdk DIR --run`, which needs none\n")
