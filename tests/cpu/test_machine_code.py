"""Object files that are put into memory here compute what LLVM's own loader would have them compute; others are refused."""

from __future__ import annotations

import ctypes
import os

import pytest

from lngrad.cpu import machine_code
from lngrad.cpu.machine_code import NotLinked, foreign, link

llvm = pytest.importorskip("llvmlite.binding")
pytestmark = pytest.mark.skipif(foreign() is not None, reason="object files of another system")

# Constants, one of them an address; a function of the same file, and two of the C library; a variable that nobody uses.
PROGRAM = """
@primes = internal constant [8 x i64] [i64 2, i64 3, i64 5, i64 7, i64 11, i64 13, i64 17, i64 19]
@where = internal constant ptr @primes
@empty = common global ptr null
declare ptr @memset(ptr, i32, i64)
declare i64 @labs(i64)
define internal i64 @prime(i64 %k) noinline {
  %table = load volatile ptr, ptr @where
  %at = getelementptr [8 x i64], ptr %table, i64 0, i64 %k
  %value = load i64, ptr %at
  ret i64 %value
}
define i64 @answer(ptr %memory, i64 %k) {
  %filled = call ptr @memset(ptr %memory, i32 7, i64 5)
  %value = call i64 @prime(i64 %k)
  %minus = sub i64 0, %value
  %back = call i64 @labs(i64 %minus)
  ret i64 %back
}
"""
MODELS = [("pic", "small"), ("static", "large")]


def compiled(text, reloc="pic", model="small", triple=None):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    module = llvm.parse_assembly(text)
    return target.create_target_machine(opt=2, reloc=reloc, codemodel=model).emit_object(module)


@pytest.mark.parametrize(("reloc", "model"), MODELS)
def test_constants_calls_and_the_c_library(reloc, model):
    answer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(
        link(compiled(PROGRAM, reloc, model), "answer")
    )
    memory = ctypes.create_string_buffer(b"________")
    assert [answer(ctypes.addressof(memory), k) for k in range(8)] == [2, 3, 5, 7, 11, 13, 17, 19]
    assert memory.value == b"\x07" * 5 + b"___"


def test_a_forked_child_has_it_too():
    answer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(link(compiled(PROGRAM), "answer"))
    child = os.fork()
    if child == 0:
        os._exit(answer(ctypes.addressof(ctypes.create_string_buffer(8)), 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 19


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (PROGRAM, "question", "no function question"),
        ("declare void @numba_has_this()\ndefine void @f() { call void @numba_has_this() ret void }", "f", "C library"),
        (
            "@count = internal global i64 0\ndefine void @f() { store i64 1, ptr @count ret void }",
            "f",
            "neither code nor",
        ),
        ("@count = external global i64\ndefine ptr @f() { ret ptr @count }", "f", "relocation|C library"),
    ],
)
def test_what_is_not_known_is_refused(text, name, message):
    with pytest.raises(NotLinked, match=message):
        link(compiled(text), name)


def test_what_is_no_object_file_is_refused():
    code = compiled(PROGRAM)
    for broken in (b"", b"\x7fELF", code[:100], code[:-30], b"MZ" + code[2:], code[:18] + b"\xb7" + code[19:]):
        with pytest.raises(NotLinked, match="object file"):
            link(broken, "answer")


def test_another_system_is_named(monkeypatch):
    monkeypatch.setattr(machine_code.platform, "machine", lambda: "riscv64")
    with pytest.raises(NotLinked, match="linux on riscv64"):
        link(compiled(PROGRAM), "answer")


def test_a_system_that_allows_no_new_code_is_no_crash(monkeypatch):
    def refuse(start, nbytes):
        raise OSError(13, "mprotect")

    monkeypatch.setattr(machine_code, "_allow_execution", refuse)
    with pytest.raises(NotLinked, match=r"memory: .*mprotect"):
        link(compiled(PROGRAM), "answer")
