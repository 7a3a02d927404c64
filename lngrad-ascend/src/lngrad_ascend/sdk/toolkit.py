"""The toolkit folder: what lies in it, as a table of files, and how it is written.

Layout, as the toolkit of CANN has it::

    include/    acl/ aclnn/ aclnnop/        headers of host programs
                kernel_operator.h, …        headers of kernels, from lngrad_ascend.cpp
                graph/ ge/ op_graph/        headers of graph programs
    lib64/      liblngrad_cann.so, and the names that programs link as links to it
    share/      a CMake package
    src/        the C files that lib64 was made of
    set_env.sh  README.md
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files as resources
from pathlib import Path

import lngrad
from lngrad.errors import LngradError
from lngrad.support.compilers import c_compiler, run_compiler
from lngrad_ascend.cpp.headers import header_files, write_files
from lngrad_ascend.sdk import texts
from lngrad_ascend.sdk.c_sources import entry_points, frame_header, headers
from lngrad_ascend.sdk.graph_engine import operator_headers
from lngrad_ascend.soc import Settings, get

LIBRARY = "liblngrad_cann.so"
LIBRARIES = ("ascendcl", "acl_rt", "nnopbase", "opapi", "opapi_nn", "opapi_math", "cust_opapi")
# The -I of the documents, and of builds of graph programs.
INCLUDE_FOLDERS = ("include", "include/aclnn", "include/aclnnop", "include/graph", "include/ge")
LINKED = ("opapi_nn", "opapi_math", "ascendcl", "nnopbase")  # the -l of the documents
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread")
PYTHON, VERSION = sys.executable, f"{sys.version_info.major}.{sys.version_info.minor}"
# The folders that have this package, and lngrad.
PACKAGES = tuple(
    dict.fromkeys(str(Path(file).resolve().parents[up]) for file, up in ((__file__, 2), (lngrad.__file__, 1)))
)
SOURCES = ("interpreter.c", "kernels.c", "shim.h")  # written by hand


def write_toolkit(folder: Path, settings: Settings | None = None, flags: Sequence[str] = ()) -> None:
    """Write a folder, and build its library with the user's C compiler.

    Args:
        folder: where; one that an earlier call wrote is written anew, any other one must be empty or absent.
        settings: what its programs see.
        flags: more flags for the compiler.

    Raises:
        LngradError: there is no compiler, or it failed, or the folder is something else or can't be written; a new one is empty
            afterwards.
    """
    compiler = required(c_compiler)
    if folder.exists() and not is_toolkit(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise LngradError(f"{folder}: expected a new or empty folder, or one that `lngrad sdk` wrote")
    is_new = not is_toolkit(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, _files(folder.resolve(), settings or Settings()))
        _build(folder, [*compiler, *FLAGS, *flags])
    except BaseException as reason:
        if is_new:  # half a folder would be neither empty nor a toolkit the next time
            for entry in folder.iterdir() if folder.is_dir() else ():
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
        if isinstance(reason, OSError):
            raise LngradError(f"{folder}: can't be written: {reason.strerror or reason}") from None
        raise


def _build(folder: Path, compiler: list[str]) -> None:
    """The library of a folder that has its sources, and the names that programs link."""
    (folder / "lib64").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # a program that runs keeps the library it has
        built = Path(scratch) / LIBRARY
        command = [*compiler, f"-Wl,-soname,{LIBRARY}", f"-I{folder / 'src'}", *_include(folder)]
        command += [*map(str, sorted((folder / "src").glob("*.c"))), "-o", str(built), "-ldl"]
        must_compile(command, "the toolkit's library")
        os.replace(built, folder / "lib64" / LIBRARY)
    for link in (folder / "lib64" / f"lib{name}.so" for name in LIBRARIES):
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(LIBRARY)
        except OSError:  # a file system without links
            shutil.copy2(link.parent / LIBRARY, link)


def is_toolkit(folder: Path) -> bool:
    """Whether write_toolkit wrote this folder."""
    return (folder / "src" / "entry_points.c").is_file() and (folder / "include" / "acl" / "acl.h").is_file()


def cflags(folder: Path) -> list[str]:
    """Flags by which a compiler finds the headers and defines the SoC's macros."""
    soc = folder.resolve() / "include" / "lngrad" / "soc.h"
    return [*_include(folder.resolve()), *(["-include", str(soc)] if soc.is_file() else [])]  # older folders lack it


def host(folder: Path) -> str:
    """Return the Python that must contain programs of this folder because it has no shared library; "" where it has one."""
    python, libpython = texts.python_of((folder / "src" / "environment.h").read_text())
    return "" if libpython else python


def libs(folder: Path) -> list[str]:
    """Flags that link a program which finds its library without LD_LIBRARY_PATH."""
    library = folder.resolve() / "lib64"
    return [f"-L{library}", f"-Wl,-rpath,{library}", *(f"-l{name}" for name in LINKED)]


def _include(folder: Path) -> list[str]:
    return [f"-I{folder / path}" for path in INCLUDE_FOLDERS]


def _files(folder: Path, settings: Settings) -> dict[str, str]:
    """Every file but the library, by its path."""
    shim = resources("lngrad_ascend.sdk") / "shim"
    return {
        **{f"include/{path}": text for path, text in (headers() | header_files() | graph_headers()).items()},
        "include/lngrad/soc.h": "".join(
            f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in get(settings.soc).macros.items()
        ),
        **{f"src/{name}": (shim / name).read_text() for name in SOURCES},
        "src/frame.h": frame_header(),
        "src/entry_points.c": entry_points(),
        "src/environment.h": texts.environment_header(PYTHON, _libpython(), VERSION, PACKAGES, settings),
        "share/cmake/lngrad-cann/lngrad-cann-config.cmake": texts.cmake_package(LIBRARIES, LIBRARY, INCLUDE_FOLDERS),
        "set_env.sh": texts.set_env(),
        "README.md": texts.readme(folder, settings),
    }


def graph_headers() -> dict[str, str]:
    """Return the headers of graph programs by path: those of the folder include, and the operators' own."""
    folder = Path(__file__).with_name("include")
    texts = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.h")}
    aliases = dict.fromkeys(("ge/ge_api_types.h", "ge/ge_ir_build.h"), '#include "ge/ge_api.h"\n')
    return texts | operator_headers() | aliases


def _libpython() -> str:
    """Python's shared library, or "" where Python has none."""
    names = [str(sysconfig.get_config_var(variable) or "") for variable in ("INSTSONAME", "LDLIBRARY")]
    folders = [str(sysconfig.get_config_var("LIBDIR") or ""), os.path.join(sys.base_prefix, "lib")]
    paths = [os.path.join(folder, name) for folder in folders for name in names if ".so" in name]
    return next((path for path in paths if os.path.exists(path)), "")


def required(find: Callable[[], list[str]]) -> list[str]:
    """The command of a compiler. Raises LngradError where there is none."""
    try:
        return find()
    except FileNotFoundError as reason:
        raise LngradError(str(reason)) from None


def must_compile(command: list[str], what: str) -> None:
    done = run_compiler(command)
    if done.returncode != 0:
        raise LngradError(f"{what}: {command[0]} failed with {done.returncode}:\n{done.stderr or done.stdout}".rstrip())
