"""Compile torch's native code for the releases of torch that wheels bring a library for; prebuilt.py --torch packs them.

    python scripts/native_code.py                     for this machine's architecture, into build/native/x86_64
    python scripts/native_code.py --for aarch64 2.13  one of them, for another architecture

pip fetches each torch, 1 to 6 GB in all. The headers and three libraries of it are kept in build/torch, and nothing of it is
run. The compiler is g++, for another architecture such as Debian's g++-aarch64-linux-gnu. A minute of processor time each.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from lngrad.cpu.processors import HERE
from lngrad.support.cache_folder import keep, kept

ROOT = Path(__file__).parents[1]
# The last of each minor version from pyproject.toml's lower bound on. Those of one minor version have the same headers.
RELEASES = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
MANYLINUX = "manylinux_2_28"  # torch's own wheels
MAX_VERSIONS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}  # what the oldest such system has
# Headers that keep a library from needing newer systems: the first is found before the C library's own, whose variable says
# whether to lock; the second has a function compiled that only newer C++ libraries have.
OLDER = {
    "sys/single_threaded.h": "#pragma once\nstatic const char __libc_single_threaded = 0;\n",
    "older.h": "#include <sstream>\ntemplate std::string std::stringbuf::str() const &;\n",
}
# What a library takes of Python: functions and objects that have been there, the same, from Python 3.10 to 3.14.
OF_PYTHON = """
PyArg_ParseTuple PyBool_FromLong PyBool_Type PyByteArray_AsString PyByteArray_Size PyByteArray_Type PyBytes_AsString
PyBytes_AsStringAndSize PyBytes_Size PyCapsule_GetPointer PyDict_GetItemString PyErr_Clear PyErr_Fetch PyErr_Format
PyErr_NormalizeException PyErr_Occurred PyErr_Restore PyErr_SetObject PyErr_SetString PyEval_RestoreThread
PyEval_SaveThread PyExc_KeyError PyExc_MemoryError PyExc_RuntimeError PyExc_TypeError PyExc_ValueError
PyException_SetCause PyException_SetContext PyException_SetTraceback PyFloat_AsDouble PyFloat_FromDouble
PyFloat_Type PyFrame_GetBack PyFrame_GetCode PyFrame_GetLineNumber PyGILState_Check PyGILState_Ensure
PyGILState_Release PyImport_ImportModule PyList_GetItem PyList_New PyList_SetItem PyList_Size PyList_Type
PyLong_AsLongLong PyLong_AsUnsignedLongLong PyLong_AsVoidPtr PyLong_FromLongLong PyLong_FromSsize_t
PyLong_FromVoidPtr PyLong_Type PyModule_Create2 PyObject_Call PyObject_CallFunctionObjArgs PyObject_CallObject
PyObject_GetAttrString PyObject_HasAttrString PyObject_IsInstance PyObject_IsTrue PyObject_Str
PyObject_VectorcallDict PySequence_GetItem
PySequence_Size PySequence_Tuple PyTuple_GetItem PyTuple_New PyTuple_Pack PyTuple_SetItem PyTuple_Size
PyType_IsSubtype PyUnicode_AsEncodedString PyUnicode_AsUTF8AndSize PyUnicode_AsUTF8String PyUnicode_FromString
_Py_Dealloc _Py_FalseStruct _Py_NoneStruct _Py_NotImplementedStruct _Py_TrueStruct
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minors", nargs="*", metavar="MINOR", help="such as 2.13; all without any")
    parser.add_argument("--for", dest="architecture", default=HERE, choices=["x86_64", "aarch64"])
    options = parser.parse_args()
    for library in libraries(options.architecture, options.minors):
        print(f"{library}: {library.stat().st_size / 1e3:,.0f} kB")


def minor_of(release: str) -> str:
    return release.rpartition(".")[0]


def libraries(architecture: str, minors: list[str] | None = None) -> list[Path]:
    """The libraries for an architecture; those that are there and fit the sources are left as they are."""
    return [build(release, architecture) for release in RELEASES if not minors or minor_of(release) in minors]


def build(release: str, architecture: str) -> Path:
    from lngrad.torch import native
    from lngrad.torch.native.building import command

    library = ROOT / "build" / "native" / architecture / native.name_of(minor_of(release))
    if kept(library) is not None:
        return library
    compiler = ["g++" if architecture == HERE else f"{architecture}-linux-gnu-g++"]
    with TemporaryDirectory() as name:
        draft = Path(name, "draft.so")
        for header, text in OLDER.items():
            Path(name, header).parent.mkdir(exist_ok=True)
            Path(name, header).write_text(text)
        more = ["-s", f"-I{name}", "-include", "older.h", f"-ffile-prefix-map={ROOT}=lngrad"]
        subprocess.run([*command(compiler, fetched(release, architecture), native.SOURCES, draft), *more], check=True)
        content = draft.read_bytes()
    wrong = unfit(content)
    if wrong:
        raise SystemExit(f"{library.name}: needs {', '.join(wrong)}, which not every system and Python has")
    keep(library, content)
    return library


def unfit(content: bytes) -> list[str]:
    """What a library needs that an older system or another Python may lack."""
    versions = {
        (name.decode(), tuple(map(int, number.split(b"."))))
        for name, number in re.findall(rb"\0(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)(?=\0)", content)
    }
    newer = [f"{name}_{'.'.join(map(str, version))}" for name, version in versions if version > MAX_VERSIONS[name]]
    return sorted(newer + [name for name in undefined(content) - {*OF_PYTHON.split()} if re.match("_?Py[A-Z_]", name)])


def undefined(library: bytes) -> set[str]:
    """The names that an ELF library for a little-endian machine of 64 bits takes from others."""
    sections, size, number = struct.unpack_from("<Q", library, 40)[0], *struct.unpack_from("<HH", library, 58)
    found = set()
    for k in range(number):
        _, kind, _, _, offset, length, link, _, _, _ = struct.unpack_from("<IIQQQQIIQQ", library, sections + k * size)
        if kind != 11:  # SHT_DYNSYM
            continue
        (strings,) = struct.unpack_from("<Q", library, sections + link * size + 24)
        for at in range(offset + 24, offset + length, 24):  # the first is none
            name, _, _, place, _, _ = struct.unpack_from("<IBBHQQ", library, at)
            if place == 0:
                end = library.index(b"\0", strings + name)
                found.add(library[strings + name : end].decode())
    return found


def fetched(release: str, architecture: str) -> Path:
    """The folder of a torch, with its headers and what is linked with."""
    from lngrad.torch.native.building import LIBRARIES

    folder = ROOT / "build" / "torch" / architecture / release
    if not (folder / "torch").is_dir():
        draft = folder.with_name(f"{release}.part")
        with TemporaryDirectory() as name:
            asked = ["--only-binary", ":all:", "--platform", f"{MANYLINUX}_{architecture}", "--python-version", "3.11"]
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name, *asked]
            # A constraint of the user's would allow one release alone.
            environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
            subprocess.run([*pip, f"torch=={release}"], check=True, env=environment)
            (wheel,) = Path(name).glob("torch-*.whl")
            wanted = re.compile(rf"torch/(include/.*|lib/lib({'|'.join(LIBRARIES)})\.so)")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(draft, [name for name in archive.namelist() if wanted.fullmatch(name)])
        draft.rename(folder)
    return folder / "torch"


if __name__ == "__main__":
    main()
