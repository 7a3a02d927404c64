"""The libraries of kernels in C++: whole or not there, of the files that they were made of, and done without a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lngrad.support.cache_folder import kept
from lngrad.support.compilers import compiler_version
from lngrad_ascend.cpp import compiling, precompiled

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the compiler of these tests is a shell script")

# A compiler that takes no seconds: its library is the text of the kernel's file. It notes that it was asked.
QUICK = """#!/bin/sh
[ "$1" = --version ] && { echo quick 1; exit; }
echo once >> "$(dirname "$0")/asked"
while [ "$1" != -MF ]; do shift; done
echo "kernel.so: $(dirname "$0")/kernel.cpp" > "$2"
while [ "$1" != -o ]; do shift; done
sleep 0.2
cat "$(dirname "$0")/kernel.cpp" > "$2"
"""

# The same as GCC, which takes precompiled headers: it notes what it compiled, and behind which ones.
QUICK_GCC = QUICK.replace("quick 1", "quick 1, Free Software Foundation").replace(
    "echo once >>",
    """here=$(dirname "$0")
for last; do case $last in -I*) include=${last#-I};; c++-header) header=1;; esac; done
[ $header ] && { sleep 0.2; echo header >> "$here/asked"; echo precompiled > "$last"; exit; }
head -c 11 "$include/lngrad/ahead.h.gch" >> "$here/behind" 2> /dev/null || echo nothing >> "$here/behind"
echo once >>""",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a compiler and a kernel's file; the cache is its folder `cache`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiler = tmp_path / "compiler"
    compiler.write_text(QUICK)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(compiling, "_temporary", [])
    (tmp_path / "kernel.cpp").write_text("the first kernel")
    return tmp_path


def build(folder: Path) -> bytes | None:
    """The content of the library, as whoever loads it finds it."""
    return kept(compiling.build(folder / "kernel.cpp", "kernel", [], [], {}))


def asked(folder: Path) -> int:
    return len((folder / "asked").read_text().splitlines())


def test_a_library_is_found_while_its_files_are_as_they_were(folder):
    assert build(folder) == build(folder) == b"the first kernel"
    assert asked(folder) == 1
    (folder / "kernel.cpp").write_text("the second kernel")
    assert build(folder) == build(folder) == b"the second kernel"
    assert asked(folder) == 2
    assert sorted(path.suffix for path in (folder / "cache" / "lngrad").iterdir()) == [".json", ".so"]
    if os.name == "posix":
        assert (folder / "cache" / "lngrad").stat().st_mode & 0o077 == 0


def test_a_library_that_is_cut_off_or_another_s_is_compiled_again(folder):
    """Loaded, it would end the process with SIGBUS, at every run."""
    library = compiling.build(folder / "kernel.cpp", "kernel", [], [], {})
    whole = library.read_bytes()
    other = compiling.build(folder / "kernel.cpp", "other", [], [], {})
    for spoilt in (whole[: len(whole) // 2], b"", b"?" + whole[1:], other.read_bytes()):
        library.write_bytes(spoilt)
        before = asked(folder)
        assert build(folder) == b"the first kernel"
        assert (library.read_bytes(), asked(folder)) == (whole, before + 1)


def test_threads_that_build_at_once_all_get_it(folder):
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, [folder] * 4)) == [b"the first kernel"] * 4
    assert sorted(path.suffix for path in (folder / "cache" / "lngrad").iterdir()) == [".json", ".so"]


def test_what_a_killed_process_left_is_in_nobody_s_way(folder, monkeypatch):
    """Also where this process has its number."""
    library = compiling.build(folder / "kernel.cpp", "kernel", [], [], {})
    draft: list[Path] = []
    write, replace = Path.write_bytes, Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, target: draft.append(path) or replace(path, target))
    library.unlink()
    assert build(folder) == b"the first kernel"
    library.unlink()
    for path in draft:
        write(path, b"half")
    assert build(folder) == b"the first kernel"
    assert sorted(path.suffix for path in library.parent.iterdir()) == [".json", ".so"]


PROGRAM = """
import sys
from pathlib import Path
from lngrad_ascend.cpp import compiling
from lngrad.support.cache_folder import kept
for _ in range(2):
    library = compiling.build(Path(sys.argv[1]), "kernel", [], [], {})
    print(kept(library).decode(), library.parent.parent, sep="|")
"""


@pytest.mark.parametrize("refused", ["it can't be made", "every user can write there"])
def test_a_cache_that_can_not_be_used_is_done_without(folder, refused):
    """The library lies in a folder of the process, which goes with it; what somebody planted is not loaded."""
    cache = folder / "cache"
    (folder / "temporary").mkdir()
    planted = []
    if refused == "it can't be made":
        cache.write_text("no folder")
    else:
        build(folder)
        (cache / "lngrad").chmod(0o777)
        planted = sorted((cache / "lngrad").iterdir())
    before = asked(folder) if planted else 0
    environment = {**os.environ, "TMPDIR": str(folder / "temporary")}
    command = [sys.executable, "-c", PROGRAM, str(folder / "kernel.cpp")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (refused in result.stderr) == bool(planted)
    assert result.stdout.splitlines() == [f"the first kernel|{folder / 'temporary'}"] * 2
    assert asked(folder) == before + 1
    assert not list((folder / "temporary").iterdir())
    assert not planted or sorted((cache / "lngrad").iterdir()) == planted


def test_a_file_that_changes_while_it_is_compiled_is_an_error(folder):
    script = (folder / "compiler").read_text()
    (folder / "compiler").write_text(f'{script}echo more >> "$(dirname "$0")/kernel.cpp"\n')
    with pytest.raises(compiling.CompileError, match="changed while it was compiled"):
        build(folder)


@pytest.fixture
def precompiling(folder, monkeypatch):
    """Behind which precompiled headers each kernel was compiled, so far."""
    (folder / "compiler").write_text(QUICK_GCC)
    precompiled._precompiled.cache_clear()
    compiler_version.cache_clear()
    yield lambda: (folder / "behind").read_text().replace("precompiled", "precompiled\n").split()
    precompiled._precompiled.cache_clear()


def headers(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "lngrad").glob("*.gch"))


def test_kernels_are_compiled_behind_a_precompiled_header(folder, precompiling, monkeypatch):
    for text in ("first", "second"):
        (folder / "kernel.cpp").write_text(text)
        assert build(folder) == text.encode()
    assert (folder / "asked").read_text().split() == ["header", "once", "once"]
    (whole,) = headers(folder)
    for spoilt in (b"", whole.read_bytes()[:20], b"?" + whole.read_bytes()[1:]):  # another process made half of it
        precompiled._precompiled.cache_clear()
        whole.write_bytes(spoilt)
        compiling.build(folder / "kernel.cpp", "kernel", [], [], {"SPOILT": str(len(spoilt))})
        assert kept(whole) == b"precompiled\n"
    assert precompiling() == ["precompiled"] * 5
    for most, kernel in ((2, "other"), (1, "last")):  # of other versions of lngrad
        changed = {**precompiled.own_headers(), "lngrad/ahead.h": f"// {kernel}"}
        monkeypatch.setattr(precompiled, "own_headers", lambda changed=changed: changed)
        monkeypatch.setattr(precompiled, "MOST", most)
        precompiled._precompiled.cache_clear()
        compiling.build(folder / "kernel.cpp", kernel, [], [], {})
        assert (len(headers(folder)), whole in headers(folder)) == (most, most == 2)


def test_processes_that_precompile_at_once_all_get_it(folder, precompiling):
    program = "import pathlib, sys; from lngrad_ascend.cpp.compiling import build; "
    program += "build(pathlib.Path(sys.argv[1]), sys.argv[2], [], [], {})"
    commands = [[sys.executable, "-c", program, str(folder / "kernel.cpp"), f"kernel{number}"] for number in range(3)]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in processes] == [0] * 3
    assert precompiling() == ["precompiled"] * 3
    (whole,) = headers(folder)
    assert kept(whole) == b"precompiled\n"


def test_a_header_of_the_users_comes_before_the_precompiled_one(folder, precompiling):
    (folder / "own" / "lngrad").mkdir(parents=True)
    (folder / "own" / "lngrad" / "types.h").touch()
    compiling.build(folder / "kernel.cpp", "kernel", [folder / "own"], [], {})
    assert precompiling() == ["nothing"]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_macro_that_headers_ask_for_is_not_lost(tmp_path):
    """K_MAX_SHAPE_DIM is 8 in the precompiled header."""
    source = tmp_path / "kernel.cpp"
    for value, more in (("8", {}), ("4", {"K_MAX_SHAPE_DIM": "4"})):
        text = f'static_assert(K_MAX_SHAPE_DIM == {value}, ""); extern "C" __global__ __aicore__ void kernel(GM_ADDR x) {{}}'
        source.write_text(text)
        assert kept(compiling.build(source, "kernel", [], [], more))


def test_the_compiler_is_the_one_that_is_chosen(monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} -m 'two words'")
    assert compiling.compiler() == [sys.executable, "-m", "two words"]
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(compiling.CompileError, match=r"^compiler: CXX: expected .*; set CXX or install g\+\+$"):
        compiling.compiler()
