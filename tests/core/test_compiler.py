"""Which compilers are the user's: one answer for every entry point that compiles."""

from __future__ import annotations

import sys

import pytest

from lngrad.ascend.cpp.compiling import CompileError, compiler
from lngrad.core.machine import c_compiler, cxx_compiler


def test_a_chosen_compiler_may_have_options(monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} -m 'two words'")
    assert cxx_compiler() == compiler() == [sys.executable, "-m", "two words"]


def test_a_chosen_compiler_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(FileNotFoundError, match=r"^CXX: expected a C\+\+ compiler, got 'no-such-compiler', which"):
        cxx_compiler()
    with pytest.raises(CompileError, match=r"^compiler: CXX: expected .*; set CXX or install g\+\+$"):
        compiler()


def test_none_is_told_with_the_names(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(FileNotFoundError, match=r"^expected a C compiler \(cc, gcc, clang, or \$CC\), found none$"):
        c_compiler()
