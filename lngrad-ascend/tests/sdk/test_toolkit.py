"""The folder: what is in it, what writing refuses, and what programs find with it."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from building import EXAMPLES, needs_c, needs_cxx, run

from lngrad.errors import LngradError
from lngrad_ascend.faults import UnknownSoc
from lngrad_ascend.prototypes import FUNCTIONS
from lngrad_ascend.sdk import Settings, cflags, is_toolkit, libs, write_toolkit
from lngrad_ascend.sdk.toolkit import LIBRARIES


def test_the_library_has_every_name_that_programs_link(toolkit: Path) -> None:
    for name in LIBRARIES:
        assert (toolkit / "lib64" / f"lib{name}.so").resolve() == (toolkit / "lib64" / "liblngrad_cann.so").resolve()


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_the_library_exports_the_table_and_what_kernels_connect_with(toolkit: Path) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", toolkit / "lib64" / "liblngrad_cann.so"], capture_output=True
    )
    assert set(re.findall(rb" T (\w+)", listed.stdout)) == {
        b"lngrad_kernel_connect",
        b"lngrad_kernel_fault",
        *(function.name.encode() for function in FUNCTIONS.values()),
    }


def test_a_written_folder_is_written_anew(toolkit: Path) -> None:
    assert is_toolkit(toolkit)
    (toolkit / "include" / "acl" / "acl.h").write_text("broken")
    write_toolkit(toolkit)
    assert "broken" not in (toolkit / "include" / "acl" / "acl.h").read_text()


@needs_c
def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(LngradError, match="expected a new or empty folder"):
        write_toolkit(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@needs_c
def test_a_full_disk_leaves_nothing_that_is_refused_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, write, written = tmp_path / "toolkit", Path.write_text, []

    def full(path: Path, text: str, **options: str) -> int:
        written.append(path)
        if len(written) == 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **options)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(LngradError, match=r"toolkit: can't be written: No space left on device$"):
            write_toolkit(folder)
    assert len(written) == 40
    assert not list(folder.iterdir())
    with pytest.raises(LngradError, match=r"library: .*failed"):
        write_toolkit(folder, flags=["-no-such-flag"])
    assert not list(folder.iterdir())
    write_toolkit(folder)
    assert is_toolkit(folder)


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LngradError, match=r"^expected a C compiler \(cc, gcc, clang, or \$CC\), found none$"):
        write_toolkit(tmp_path / "toolkit")
    assert not (tmp_path / "toolkit").exists()


def test_a_compiler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(LngradError, match="CC: expected a C compiler, got 'no-such-compiler'"):
        write_toolkit(tmp_path / "toolkit")


@needs_c
def test_what_the_compiler_says_is_shown(tmp_path: Path) -> None:
    with pytest.raises(LngradError, match=r"(?s)the toolkit's library: cc failed with 1:.*no-such-flag"):
        write_toolkit(tmp_path / "toolkit", flags=["--no-such-flag"])


def test_settings_that_do_not_exist() -> None:
    with pytest.raises(UnknownSoc, match="soc: expected one of"):
        Settings(soc="Ascend1")
    with pytest.raises(ValueError, match="mode: expected 'strict' or 'compat'"):
        Settings(mode="lax")  # type: ignore[arg-type]


@needs_cxx
def test_the_link_line_of_the_documents(toolkit: Path, tmp_path: Path) -> None:
    """set_env.sh and the documents' own g++ line, word for word."""
    script = f"""
        set -e
        source {toolkit}/set_env.sh
        c++ {EXAMPLES}/cpp/layer_norm.cpp -I$ASCEND_HOME_PATH/include -I$ASCEND_HOME_PATH/include/aclnn \
            -I$ASCEND_HOME_PATH/include/aclnnop -L$ASCEND_HOME_PATH/lib64 \
            -lopapi_nn -lopapi_math -lascendcl -lnnopbase -o {tmp_path}/main
        {tmp_path}/main
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ok\n")


@needs_c
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_cmake_package(toolkit: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        f"""
        cmake_minimum_required(VERSION 3.16)
        project(example C)
        find_package(lngrad-cann REQUIRED)
        add_executable(one {EXAMPLES}/c/layer_norm.c)
        target_link_libraries(one PRIVATE lngrad::cann m)
        add_executable(two {EXAMPLES}/c/layer_norm.c)
        target_link_libraries(two PRIVATE ascendcl nnopbase opapi_math opapi_nn m)
        """
    )
    configure = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={toolkit}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    for name in ("one", "two"):
        assert run(tmp_path / "build" / name).stdout.endswith("ok\n")


def test_flags_name_existing_folders_and_files(toolkit: Path) -> None:
    *folders, option, macros = cflags(toolkit)
    assert folders
    assert all(flag.startswith("-I") and Path(flag.removeprefix("-I")).is_dir() for flag in folders)
    assert option == "-include"
    assert Path(macros).is_file()
    assert all((toolkit / "lib64" / f"lib{flag.removeprefix('-l')}.so").exists() for flag in libs(toolkit)[2:])
