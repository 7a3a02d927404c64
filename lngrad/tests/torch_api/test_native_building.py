"""The native library: built once by the user's compiler, kept by what it depends on, and done without where that fails."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch  # torch may be missing

from lngrad.support.cache_folder import keep
from lngrad.torch import native
from lngrad.torch.native import building

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="native code is made for Linux")

# A compiler that takes no minute: it notes that it was asked, and its library, made once, is a Python module that does nothing.
QUICK = """#!/bin/sh
[ "$1" = --version ] && { echo quick 1; exit; }
echo once >> "$(dirname "$0")/asked"
while [ "$1" != -o ]; do shift; done
cp %s "$2"
"""
MODULE = """#include <Python.h>
static PyModuleDef d = {PyModuleDef_HEAD_INIT, "lngrad_torch_native"};
PyObject* PyInit_lngrad_torch_native(void) { return PyModule_Create(&d); }
"""
REFUSES = "#!/bin/sh\necho 'torch.cpp:1: error: no such thing' >&2\nexit 1\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own, of a package without libraries."""
    monkeypatch.setattr(native, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.SWITCH, raising=False)
    return tmp_path / "cache" / "lngrad"


def compiler(tmp_path, monkeypatch, text):
    program = tmp_path / "compiler"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    """The library of the quick compiler."""
    if not any(os.access(Path(place) / "cc", os.X_OK) for place in os.environ["PATH"].split(os.pathsep)):
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("quick") / "nothing.so"
    source = library.with_suffix(".c")
    source.write_text(MODULE)
    include = sysconfig.get_paths()["include"]
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)], check=True)
    return library


@pytest.fixture
def quick(tmp_path, monkeypatch, folder, nothing):
    """The file that a quick compiler notes its calls in. Its library is tried without torch, which it has no use for."""
    compiler(tmp_path, monkeypatch, QUICK % nothing)
    assert building._TRIAL.count(", torch\n") == 1
    monkeypatch.setattr(building, "_TRIAL", building._TRIAL.replace(", torch\n", "\n"))
    return tmp_path / "asked"


def build(results):
    results.put(str(building.build()))


@pytest.mark.slow
def test_processes_that_build_at_once_build_one(quick, folder):
    program = quick.with_name("compiler")
    program.write_text(program.read_text().replace("cp ", "sleep 0.5\ncp "))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=build, args=(results,)) for _ in range(3)]
    for process in processes:
        process.start()
    paths = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(paths) == 1
    assert quick.read_text() == "once\n"
    assert str(native.find()) in paths
    assert building.state() in paths
    assert not [path for path in folder.iterdir() if path.is_dir()]  # no draft is left


def test_a_library_that_is_not_whole_is_as_if_it_were_not_there(quick):
    path = building.build()
    content = path.read_bytes()
    for spoilt in (content[:-1], b"", content[:1000] + b"?" + content[1001:]):
        path.write_bytes(spoilt)
        assert native.find() is None
        assert building.state() == "not built: lngrad info --warm"
    assert building.build() == path == native.find()
    assert quick.read_text() == "once\n" * 2
    path.rename(path.with_name("torch-other-compiler.so"))
    path.with_name("torch-other-compiler.so").rename(path.with_name(f"{path.stem}0.so"))  # as if of another compiler
    assert native.find() is None


def test_a_folder_that_others_can_write_is_not_used(quick, folder):
    """A library there may be anybody's, and its constructor would run."""
    building.build()
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="is not used: every user can write there"):
        assert native.find() is None
    with (
        pytest.warns(UserWarning, match="is not used: every user can write there"),
        pytest.raises(building.BuildError, match="no cache folder that nobody else can write to"),
    ):
        building.build()


def test_a_library_for_another_torch_or_other_sources_is_left_alone(quick, tmp_path, monkeypatch):
    ours = building.build()
    other = tmp_path / "torch"
    other.mkdir()
    (other / "version.py").write_text("__version__ = '9.9'")
    (other / "__init__.py").touch()
    with monkeypatch.context() as patch:
        patch.setattr(native, "torch_folder", lambda: other)
        assert native.find() is None
        theirs = building.build()  # as another environment does, which has the cache in common
        assert native.find() == theirs
    with monkeypatch.context() as patch:
        patch.setattr(native, "SOURCES", tmp_path)
        assert native.find() is None
    assert native.find() == ours


def test_another_compiler_builds_anew_and_leaves_one_library(quick, tmp_path, folder, monkeypatch):
    first = building.build()
    (tmp_path / "newer").mkdir()
    program = tmp_path / "newer" / "compiler"
    program.write_text((tmp_path / "compiler").read_text().replace("quick 1", "quick 2"))
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    assert building.build() != first
    assert len(list(folder.glob("torch-*.so"))) == 1


@pytest.fixture
def package(monkeypatch, quick):
    """A package that brings a library for torch 2.13, which says nothing but its own name."""
    monkeypatch.setattr(torch, "__version__", "2.13.1+cu130")
    path = native.PREBUILT / native.name_of("2.13")
    keep(path, b"of the package")
    return path


def test_the_package_s_own_library_comes_first(package, quick, monkeypatch):
    built = building.build()
    assert list(native.fitting()) == [package, built]
    assert building.state() == f"compiled in the package ({package})"
    package.chmod(0o666)  # whoever can install can write there
    assert native.find() == package
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.find() is None


@pytest.mark.parametrize(
    "version", ["2.13.0a0+git1", "2.13.0a0+5228986c39.nv25.06", "2.13.0.dev20260601", "2.14.0", "3.0"]
)
def test_a_torch_that_nobody_built_for_gets_a_build_on_demand(version, package, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert native.find() is None
    assert building.state() == "not built: lngrad info --warm"
    assert building.build() == native.find()


def test_a_library_of_the_package_that_does_not_fit_gives_way(package, tmp_path, monkeypatch):
    built = building.build()
    asked = []
    monkeypatch.setattr(native, "_loaded", lambda path: asked.append(Path(path)) or (path == str(built) or None))
    monkeypatch.setattr(native, "module", None)
    assert native.load() is True  # the package's can't be loaded
    assert asked == [package, built]
    package.write_bytes(package.read_bytes()[:-1])
    assert native.find() == built
    keep(package, b"of the package")
    monkeypatch.setattr(native, "made_of", lambda: "0" * native.DIGITS)  # of other sources
    assert native.find() is None


def test_the_library_takes_nothing_of_one_python_alone(library, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    native_code = pytest.importorskip("native_code")  # the matrix has the tests alone
    needs = native_code.undefined(library.read_bytes())
    assert {"PyModule_Create2", "PyGILState_Ensure", "_Py_NoneStruct"} <= needs
    assert not [name for name in native_code.unfit(library.read_bytes()) if "Py" in name]


def test_a_compiler_that_refuses_is_told_of(tmp_path, monkeypatch, folder):
    compiler(tmp_path, monkeypatch, REFUSES)
    with pytest.raises(building.BuildError, match="error: no such thing"):
        building.build()
    assert native.find() is None


def test_what_can_not_be_loaded_is_not_kept(tmp_path, monkeypatch, folder):
    compiler(tmp_path, monkeypatch, '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho no library > "$2"\n')
    with pytest.raises(building.BuildError, match="ImportError"):
        building.build()
    assert not list(folder.glob("torch-*.so"))


def test_without_a_compiler_info_says_so(monkeypatch, folder):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert building.state().startswith("none: no C++ compiler")
    with pytest.raises(building.BuildError, match=r"no C\+\+ compiler"):
        building.build()


def test_a_variable_switches_it_off(quick, monkeypatch):
    building.build()
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.find() is None
    assert building.state() == "switched off by LNGRAD_TORCH_NATIVE=0"


def test_the_compiler_ends_with_the_process_that_asked_for_it(tmp_path, monkeypatch, folder):
    """Also the compilers that a compiler's driver starts."""
    driver = '#!/bin/sh\n[ "$1" = --version ] && exit\nsleep 60 &\necho $! > "$(dirname "$0")/busy"\nwait\n'
    compiler(tmp_path, monkeypatch, driver)
    builder = multiprocessing.get_context("spawn").Process(target=building.build)
    builder.start()
    busy = tmp_path / "busy"
    wait_until(lambda: busy.exists() and busy.read_text().strip())
    builder.kill()
    builder.join()
    wait_until(lambda: not is_running(int(busy.read_text())))


def wait_until(done):
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
