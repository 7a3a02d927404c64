"""From the sources to the library, by the user's compiler. Off every call's path: `lngrad info --warm` asks for it."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lngrad.errors import LngradError
from lngrad.support.cache_folder import keep, trusted_folder
from lngrad.support.compilers import CXX_COMPILERS, compiler_version, cxx_compiler, python, run_compiler
from lngrad.torch import native

FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
LIBRARIES = ("torch_python", "torch_cpu", "c10")
MAX_SHOWN = 2000  # characters of a compiler's complaint
# What a library must do before it is kept: be loaded beside torch, in a process of its own.
_TRIAL = f"""
import importlib.machinery, importlib.util, sys, torch
loader = importlib.machinery.ExtensionFileLoader({native.MODULE!r}, sys.argv[1])
loader.exec_module(importlib.util.module_from_spec(importlib.util.spec_from_loader({native.MODULE!r}, loader)))
"""


class BuildError(LngradError, RuntimeError):
    """The native code can't be built here; everything works without it."""


def state() -> str:
    """In one line, whether there is a library, and if not, why."""
    if native.is_off():
        return f"switched off by {native.SWITCH}=0"
    if (library := native.find()) is not None:
        return f"compiled in the package ({library})" if library.parent == native.PREBUILT else str(library)
    missing = _missing()
    return f"none: {missing}; small calls of torch go through Python" if missing else "not built: lngrad info --warm"


def _missing() -> str | None:
    """What a build would lack here."""
    if sys.platform != "linux":
        return f"made for Linux, and this is {sys.platform}"
    try:
        cxx_compiler()
    except FileNotFoundError:
        return f"no C++ compiler ($CXX, {', '.join(CXX_COMPILERS)})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no Python.h, which a package such as python3-dev has"
    return None


def build() -> Path:
    """Build the library for the torch that is installed, or find it. Processes that build at once wait for one of them.

    Returns:
        The library. It was made by the compiler that is found now.

    Raises:
        BuildError: There is no compiler or no Python.h, or the compiler refuses the sources.
        OSError, RuntimeError: The cache folder can't be written.
    """
    if missing := _missing():
        raise BuildError(f"native code: {missing}")
    folder = trusted_folder()
    if folder is None:
        raise BuildError("native code: there is no cache folder that nobody else can write to")
    compiler, stamp = cxx_compiler(), native.stamp()
    library = folder / f"torch-{stamp}-{native.digest(compiler_version(*compiler).encode())}.so"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _one_at_a_time(folder / "torch-native.lock"):
        if library in native.libraries(stamp):
            return library
        with tempfile.TemporaryDirectory(dir=folder) as name:
            draft = Path(name) / f"{native.MODULE}.so"
            _run(command(compiler, native.torch_folder(), native.SOURCES, draft))
            _run(python(_TRIAL, str(draft)))
            keep(library, draft.read_bytes())
        made_for = stamp.partition("-")[0]
        for old in folder.glob(f"torch-{made_for}-*.so"):  # by another compiler, or of other sources
            if old != library:
                old.unlink(missing_ok=True)  # who has loaded it keeps it
    return library


def command(compiler: list[str], torch: Path, sources: Path, library: Path) -> list[str]:
    """What compiles sources to a library for the torch in a folder, with the headers of this Python."""
    include = torch / "include"
    includes = [
        f"-I{folder}" for folder in (include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"])
    ]
    links = [f"-L{torch / 'lib'}", *(f"-l{name}" for name in LIBRARIES)]
    return [*compiler, *FLAGS, *includes, str(sources / "torch.cpp"), "-o", str(library), *links]


def _run(command: list[str]) -> None:
    done = run_compiler(command, **{native.SWITCH: "0"})
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip()[:MAX_SHOWN]
        raise BuildError(f"native code: {command[0]} failed: {complaint}")


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    import fcntl  # not on every system; where it is missing nothing is built

    with lock.open("w") as file:
        with suppress(OSError):  # a file system without locks: two builds do the same, and one is kept
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
