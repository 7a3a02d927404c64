"""Compiling, linking and running one file in one step."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from lngrad.errors import MISSING, LngradError, printable
from lngrad.support.children import how_it_died
from lngrad.support.compilers import c_compiler, cxx_compiler
from lngrad_ascend.cpp.bridge import SETTINGS_VARIABLE
from lngrad_ascend.cpp.compiling import without_chevrons
from lngrad_ascend.prototypes import HEADERS
from lngrad_ascend.sdk.graph_engine import operator_headers
from lngrad_ascend.sdk.toolkit import cflags, host, is_toolkit, libs, must_compile, required, write_toolkit
from lngrad_ascend.soc import Settings

TOO_LONG = 124  # as timeout(1)

# The compiler and the standard of a file by its suffix.
LANGUAGES = {".c": (c_compiler, "-std=gnu11")} | dict.fromkeys(
    (".cpp", ".cc", ".cxx", ".C"), (cxx_compiler, "-std=c++17")
)
_HOSTED = str(Path(__file__).with_name("hosted.py"))
_INSIDE = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-z,defs")  # as an executable: its own names first, none missing
_OPERATOR = re.compile(
    r'^\s*#\s*include\s*["<]((?:aclnnop/)?aclnn_\w+\.h|(?:\.\./)?op_graph/\w+_proto\.h)[">]', re.MULTILINE
)


def run_program(
    source: Path,
    arguments: Sequence[str],
    folder: Path | None,
    settings: Settings,
    time_limit: float | None = None,
    building: AbstractContextManager[object] | None = None,
    flags: Sequence[str] = (),
    rules: str = "",
) -> int:
    """Build a C or C++ file against a toolkit folder and run it, here and now.

    Args:
        source: the file; what it includes by name is looked for beside it.
        arguments: for the program.
        folder: the toolkit; written if it is not there. None: one that lasts as long as the program.
        settings: what the program sees, where a folder is written.
        time_limit: seconds for the program; None for any time.
        building: entered while the toolkit and the program are built, as to show that.
        flags: more, for the compiler.
        rules: how strict its launches are, as LNGRAD_KERNEL has it, which it replaces.

    Returns:
        The program's exit code; 128 and a signal's number if that ended it, 124 if it took too long.

    Raises:
        LngradError: no compiler, or it failed.
    """
    with tempfile.TemporaryDirectory(prefix="lngrad-sdk-") as scratch:
        toolkit = folder or Path(scratch) / "toolkit"
        program = Path(scratch) / source.stem
        with building or nullcontext():
            if not is_toolkit(toolkit):
                write_toolkit(toolkit, settings)
            python = host(toolkit)
            found = [*flags, *_INSIDE * bool(python), *cflags(toolkit), f"-I{source.resolve().parent}"]
            compile_program(plain_source(source, Path(scratch)), program, found, libs(toolkit))
        sys.stdout.flush()
        environment = {**os.environ, **({SETTINGS_VARIABLE: rules} if rules else {})}
        command = [python, "-I", _HOSTED] if python else []
        process = subprocess.Popen([*command, str(program), *arguments], env=environment)
        try:
            code = process.wait(time_limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGXCPU)  # a kernel tells where it is
            print(printable(f"lngrad: {source}: not done within {time_limit:g} s (--time-limit)"), file=sys.stderr)
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)
            code = TOO_LONG
        finally:
            process.kill()
            process.wait()
    if code < 0 and code != -getattr(signal, "SIGPIPE", 0):  # that is no crash: whoever read its output has gone
        print(printable(f"lngrad: {source}: {how_it_died(code, '')}"), file=sys.stderr)
    return code if code >= 0 else 128 - code


def plain_source(source: Path, folder: Path) -> Path:
    """The file, or for an .asc file one in the folder, in plain C++: its launches by macro, its lines as they were."""
    if source.suffix != ".asc":
        return source
    plain = folder / f"{source.stem}_asc.cpp"
    place = json.dumps(str(source.resolve()))
    text = without_chevrons(source.read_text(encoding="utf-8"))
    plain.write_text(f'#include "tikicpulib.h"\n#line 1 {place}\n{text}', encoding="utf-8")
    return plain


def _check_operators(source: Path) -> None:
    """Refuse a program of an operator that is not here: by its header, which is neither ours nor beside the program."""
    here = {Path(known).name for known in (*HEADERS, *operator_headers())}
    for path in _OPERATOR.findall(source.read_text(encoding="utf-8", errors="replace")):
        name = Path(path).name
        if name not in here and not (source.resolve().parent / path).is_file():
            words = name.removesuffix(".h").removesuffix("_proto").removeprefix("aclnn_").split("_")
            operator = "aclnn" * name.startswith("aclnn_") + "".join(map(str.capitalize, words))
            raise LngradError(f"{source}: expected operators that are here, got {operator} ({path}), which is not")


def compile_program(source: Path, program: Path, flags: Sequence[str], libs: Sequence[str]) -> None:
    """Build a program from one C or C++ file. Raises LngradError with what the compiler wrote."""
    if source.suffix not in LANGUAGES:
        raise LngradError(f"{source}: expected a file that ends in {', '.join(LANGUAGES)}")
    if not source.is_file():
        raise LngradError(f"{source}: {MISSING}")
    _check_operators(source)
    compiler, standard = LANGUAGES[source.suffix]
    command = [*required(compiler), standard, "-O1", "-g", *flags, str(source), "-o", str(program), *libs, "-lm"]
    must_compile(command, str(source))
