"""From a C++ file with a kernel to a shared library, by the user's own compiler, kept by content."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path

from lngrad.errors import LngradError, page
from lngrad.support.cache_folder import keep, kept, trusted_folder
from lngrad.support.compilers import compiler_version, cxx_compiler, run_compiler
from lngrad_ascend import soc as socs
from lngrad_ascend.cpp.headers import digest, header_files, own_headers, write_files
from lngrad_ascend.cpp.op_host import operator_of, registers, texts_of, tiling_header
from lngrad_ascend.cpp.precompiled import AHEAD, TYPE_MACROS, link_precompiled

FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fno-gnu-unique", "-Wno-narrowing", "-w")
# Lanes of registers are C++: quick enough at -O2 only, cast to other types by reference, their products not fused with sums.
REGISTER_FLAGS = ("-O2", "-fno-strict-aliasing", "-ffp-contract=off")
MAX_ERRORS = 5  # lines of the compiler that an error repeats


class CompileError(LngradError, RuntimeError):
    """A kernel's file can't be compiled."""


_LAUNCH = re.compile(
    r"(?P<kernel>[A-Za-z_][\w:]*(?:<(?:[^<>;]|<[^<>;]*>)*>)?)\s*<<<(?P<numbers>[^<>;]*)>>>\s*\(\s*(?P<rest>\)?)"
)


def without_chevrons(text: str) -> str:
    """Write every launch as ACLRT_LAUNCH_KERNEL, which tikicpulib.h declares.

    Args:
        text: A C++ file.

    Returns:
        The file with the same lines. A launch's second number, the L2 control, has no meaning here.

    Raises:
        CompileError: A launch has not three numbers between its chevrons.
    """

    def plain(launch: re.Match[str]) -> str:
        numbers = [number.strip() for number in launch["numbers"].split(",")]
        numbers += ["nullptr"] * (len(numbers) == 2)  # without a stream: the default one
        if len(numbers) != 3:
            line = text.count("\n", 0, launch.start()) + 1
            raise CompileError(
                f"line {line}: {launch['kernel']}<<<…>>>: expected blocks, l2ctrl and stream, got {launch['numbers']!r}"
            )
        return f"ACLRT_LAUNCH_KERNEL({launch['kernel']})({numbers[0]}, {numbers[2]}{')' if launch['rest'] else ', '}"

    return _LAUNCH.sub(plain, text)


# The file that is compiled: it includes the kernel's, so that a template can be named as the kernel too.
_ENTRY = """\
{ahead}
#include "lngrad/python.h"
{headers}{source}

extern "C" void lngrad_bind(_object* answer) {{ lngrad::python = answer, lngrad::run = lngrad::ask_python; }}
extern "C" const char* lngrad_kinds() {{ return lngrad::kinds(&{kernel}); }}
static thread_local std::string lngrad_thrown;
extern "C" const char* lngrad_exception() {{ return lngrad_thrown.c_str(); }}
extern "C" int lngrad_entry(void* const* arguments)
{{
    const lngrad::Watch watch("{kernel}");
    lngrad_thrown.clear();
    try {{
        return lngrad::call_kernel(&{kernel}, arguments);
    }} catch (...) {{
        lngrad_thrown = lngrad::thrown();
        return 2;
    }}
}}
"""


def compiler() -> list[str]:
    """Return the command of the C++ compiler: ``$CXX``, else the first of c++, g++ and clang++ that is installed.

    Raises:
        CompileError: There is none.
    """
    try:
        return cxx_compiler()
    except FileNotFoundError as reason:
        raise CompileError(f"compiler: {reason}; set CXX or install g++") from None


def flags_of(soc: socs.Soc) -> tuple[str, ...]:
    """Return the flags that kernels for a SoC have behind those of all."""
    return REGISTER_FLAGS if soc.regbase else ()


def build(
    source: Path, kernel: str, include: Sequence[Path], ahead: Sequence[Path], define: Mapping[str, str | None]
) -> Path:
    """Compile a kernel, or find what an earlier process compiled.

    Arguments and errors are those of `kernel.compile`; ``ahead`` are headers to include before the source.

    Returns:
        The shared library. It is kept as long as no file that went into it changes.
    """
    source = source.resolve(strict=True)
    included = "".join(_header(path.resolve(strict=True), kernel, source) for path in ahead)
    if not re.fullmatch(r"[A-Za-z_][\w:]*(<[\w:, ]*>)?", kernel):
        raise CompileError(f"kernel: expected the name of a C++ function, got {kernel!r}")
    options = [TYPE_MACROS, *(f"-I{folder}" for folder in (*include, source.parent))]
    macros = {name: "1" if value is None else value for name, value in define.items()}
    options += [f"-D{name}={value}" for name, value in macros.items() if name in _asked_for()]
    included = (
        "".join(f"#define {name} {value}\n" for name, value in macros.items() if name not in _asked_for()) + included
    )
    if hasattr(ctypes.CDLL(None), kernel):
        included += renaming(kernel)
    text = _ENTRY.format(ahead=AHEAD, headers=included, source=_source(source), kernel=kernel)
    return library(text, source, kernel, options)


@cache
def _asked_for() -> frozenset[str]:
    """Macros that our headers ask for; all others come behind them, so that they change no word of ours."""
    return frozenset(re.findall(r"(?:#ifn?def|\bdefined\(?) *(\w+)", "\n".join(own_headers().values())))


def library(text: str, source: Path, kernel: str, options: Sequence[str], parts: Sequence[Path] = ()) -> Path:
    """Compile an entry file, or find its library.

    Args:
        text: The entry's; it includes ``source``, which must not change meanwhile.
        source, kernel: For the texts of errors.
        options: The compiler's.
        parts: Files that are compiled for themselves, and linked to it.
    """
    defined = {option.removeprefix("-D").partition("=")[0] for option in options}
    macros = socs.current().soc.macros.items()
    options = [*options, *(f"-D{name}={value}" for name, value in macros if name not in defined)]
    flags = [*FLAGS, *flags_of(socs.current().soc)]
    words = [text, *map(str, parts), *flags, *options, compiler_version(*compiler()), *chain(*header_files().items())]
    key = digest("\0".join(words).encode())
    trusted = trusted_folder()
    for folder in (trusted, *_temporary):
        library = None if folder is None else _fresh(folder, key[:32])
        if library is not None:
            return library
    before = digest(source.read_bytes())
    content, files = _compile(text, source, kernel, flags, options, parts)
    if files.get(str(source), before) != before:
        raise CompileError(f"{source}: changed while it was compiled")
    if trusted is not None:
        with suppress(OSError):  # full, or read-only
            return _keep(trusted, key[:32], content, files)
    return _keep(_folder_of_process(), key[:32], content, files)


def _header(path: Path, kernel: str, source: Path) -> str:
    """The include line of a header ahead; for one of op_host, the tiling structs that it registers."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not registers(text):
        return f"#include {json.dumps(str(path))}\n"
    structs = tiling_header([text], operator_of(kernel), "\n".join(texts_of(source).values()))
    if not structs:
        raise CompileError(
            f"{path}: expected REGISTER_TILING_DATA_CLASS({operator_of(kernel)}, …) for {kernel}, got none"
        )
    return structs.replace("#pragma once\n", "")


def renaming(kernel: str) -> str:
    """The macro that renames a kernel with the name of a C function; it follows the headers that declare the function."""
    return f"#define {kernel} {kernel}_kernel\n"


def _source(path: Path) -> str:
    """What an entry includes: the kernel's file, or its text where launches have to do nothing."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not _LAUNCH.search(text):
        return f"#include {json.dumps(str(path))}"
    return f"#line 1 {json.dumps(str(path))}\n" + _LAUNCH.sub(
        lambda launch: f"LNGRAD_ELSEWHERE({launch['rest'] or ''}", text
    )


def _fresh(folder: Path, key: str) -> Path | None:
    """Return a key's library if it is whole and no file that it was made of has changed."""
    made_of = kept(_list_of(folder, key))
    if made_of is None:
        return None
    try:
        if any(digest(Path(path).read_bytes()) != was for path, was in json.loads(made_of).items()):
            return None
    except OSError:  # one is not there any more
        return None
    library = _library_of(folder, key, made_of)
    return None if kept(library) is None else library


def _keep(folder: Path, key: str, content: bytes, files: dict[str, str]) -> Path:
    """Write a library, and then what it was made of; remove those of other files."""
    made_of = json.dumps(files).encode()
    library = _library_of(folder, key, made_of)
    keep(library, content)
    keep(_list_of(folder, key), made_of)
    for old in folder.glob(f"ascendc-{key}-*.so"):
        if old != library:
            old.unlink(missing_ok=True)  # who has loaded it keeps it
    return library


def _list_of(folder: Path, key: str) -> Path:
    return folder / f"ascendc-{key}.json"


def _library_of(folder: Path, key: str, made_of: bytes) -> Path:
    """The path of a library, by its content: a process that has loaded a path gets the same library for it again."""
    return folder / f"ascendc-{key}-{digest(made_of)[:16]}.so"


_temporary: list[Path] = []  # the folder of this process, where nothing can be kept


def _folder_of_process() -> Path:
    """A folder that is removed when this process ends."""
    if not _temporary:
        folder, owner = Path(tempfile.mkdtemp(prefix="lngrad-")), os.getpid()
        atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
        _temporary.append(folder)
    return _temporary[0]


def folder_for(name: str) -> Path:
    """A folder of this name that lasts as long as compiled libraries do."""
    return (trusted_folder() or _folder_of_process()) / name


def _compile(
    text: str, source: Path, kernel: str, flags: Sequence[str], options: Sequence[str], parts: Sequence[Path]
) -> tuple[bytes, dict[str, str]]:
    """The library, and a digest of each file that went into it, by path."""
    with tempfile.TemporaryDirectory() as name:
        draft = Path(name)
        write_files(draft / "include", header_files())
        if AHEAD in text:
            link_precompiled(draft / "include", compiler(), flags, options)
        entry = draft / "entry.cpp"
        entry.write_text(text, encoding="utf-8")
        command, objects, used = [*compiler(), *flags, *options, f"-I{draft / 'include'}"], list[str](), set[Path]()
        for number, file in enumerate([*parts, entry]):
            target = draft / ("kernel.so" if file is entry else f"part{number}.o")
            linked = objects if file is entry else ["-c"]
            done = run_compiler(
                [*command, "-MMD", "-MF", str(draft / "files.d"), str(file), *linked, "-o", str(target)]
            )
            if done.returncode:
                raise CompileError(_explained(done.stderr, source, kernel, draft))
            objects.append(str(target))
            # The compiler's make rule names the files that it read, but for those of the system.
            words = (draft / "files.d").read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2]
            used |= {Path(word.replace("\\ ", " ")) for word in re.findall(r"(?:\\ |\S)+", words)}
        files = {str(path): digest(path.read_bytes()) for path in used if draft not in path.parents}
        return (draft / "kernel.so").read_bytes(), files


_MISSING = (
    re.compile(r"‘(?P<name>[A-Z]\w+)’ is not a member of ‘AscendC(?:::\w+)*’"),
    re.compile(r"no member named '(?P<name>[A-Z]\w+)' in namespace 'AscendC"),
    re.compile(r"‘(?P<name>[A-Z]\w+)’ (?:was not declared in this scope|does not name a type)"),
    re.compile(r"there are no arguments to ‘(?P<name>[A-Z]\w+)’ that depend on a template parameter"),
    re.compile(r"use of undeclared identifier '(?P<name>[A-Z]\w+)'"),
)
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.MULTILINE)


@cache
def _declared(name: str) -> bool:
    """Whether the headers declare a name, so that something else is missing."""
    return any(re.search(rf"\b{name}\b", text) for text in header_files().values())


def _explained(output: str, source: Path, kernel: str, draft: Path) -> str:
    """Return the compiler's first errors, those about Ascend C in our words."""
    lines: list[str] = []
    for error in _ERROR.finditer(output):
        place, text = f"{error['file']}:{error['line']}", error["text"]
        if Path(error["file"]).name == "entry.cpp" and draft in Path(error["file"]).parents:
            place, text = str(source), f"kernel: expected a function of this file, got {kernel!r} ({text})"
        if "lngrad_tiling_struct" in text:
            text = (
                "GET_TILING_DATA: expected REGISTER_TILING_DEFAULT(Struct) ahead of it, or op_host's header (--header)"
            )
        for pattern in _MISSING:
            missing = pattern.search(text)
            if missing and not _declared(missing["name"]):
                text = f"{missing['name']} is not declared; as an Ascend C API it is not simulated: {page('ascend-c')}"
                break
        line = f"{place}: {text}"
        if line not in lines:
            lines.append(line)
    if not lines:
        return f"{source}: {output.strip()[:2000]}"
    rest = f"\n… and {len(lines) - MAX_ERRORS} more" if len(lines) > MAX_ERRORS else ""
    return "\n".join(lines[:MAX_ERRORS]) + rest
