"""The C and C++ examples, and random calls of every entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from building import EXAMPLES, build, needs_c, needs_cxx, run
from fuzz import fuzz_program

from lngrad_ascend.sdk import Settings, write_toolkit
from lngrad_ascend.sdk.program import run_program

SANITIZE = "-fsanitize=address"
THREADS = Path(__file__).parent / "programs" / "threads.c"


@needs_c
def test_the_c_example(toolkit: Path, tmp_path: Path) -> None:
    done = run(build(toolkit, EXAMPLES / "c" / "layer_norm.c", tmp_path, "-std=c11", "-lm"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused with 161001: gradWeightOut: expected a tensor, as outputMask[1] is true" in done.stdout


@needs_cxx
def test_the_cxx_example(toolkit: Path, tmp_path: Path) -> None:
    done = run(build(toolkit, EXAMPLES / "cpp" / "layer_norm.cpp", tmp_path, "-std=c++11"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "host memory: data: expected an address inside device memory from aclrtMalloc" in done.stdout


@needs_cxx
def test_inside_python_threads_of_the_program_come_and_go(static_toolkit: Path) -> None:
    assert run_program(EXAMPLES / "cpp" / "layer_norm.cpp", [], static_toolkit, Settings()) == 0


@needs_c
def test_random_calls_get_a_code(toolkit: Path, tmp_path: Path) -> None:
    done = run(build(toolkit, fuzz_program(tmp_path), tmp_path), "4000", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_c
@pytest.mark.slow
def test_many_random_calls_get_a_code(toolkit: Path, tmp_path: Path) -> None:
    program = build(toolkit, fuzz_program(tmp_path), tmp_path)
    for seed in range(3, 7):
        done = run(program, "50000", str(seed))
        assert done.returncode == 0, done.stdout + done.stderr


@needs_cxx
@pytest.mark.slow
def test_under_address_sanitizer(tmp_path: Path) -> None:
    """The library and the programs; not Python, which keeps what it has until the process ends.

    The sanitizer brings C++'s operator new[] into C programs too, so that arrays come from it; they free them with free.
    """
    toolkit = tmp_path / "toolkit"
    write_toolkit(toolkit, Settings(), flags=["-g", SANITIZE])
    fuzz = tmp_path / "fuzz"
    fuzz.mkdir()
    options = "detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1"
    programs = [
        (build(toolkit, EXAMPLES / "c" / "layer_norm.c", tmp_path, SANITIZE, "-lm"), ()),
        (build(toolkit, fuzz_program(fuzz), fuzz, SANITIZE), ("20000", "11")),
    ]
    (tmp_path / "cpp").mkdir()
    programs.append((build(toolkit, EXAMPLES / "cpp" / "layer_norm.cpp", tmp_path / "cpp", SANITIZE), ()))
    for program, arguments in programs:
        done = run(program, *arguments, ASAN_OPTIONS=options)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_c
@pytest.mark.slow
def test_under_thread_sanitizer(tmp_path: Path) -> None:
    """The library and a program of eight threads; not Python, of which the sanitizer knows the locks."""
    write_toolkit(tmp_path / "toolkit", Settings(), flags=["-g", "-fsanitize=thread"])
    done = run(build(tmp_path / "toolkit", THREADS, tmp_path, "-fsanitize=thread"), TSAN_OPTIONS="halt_on_error=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
