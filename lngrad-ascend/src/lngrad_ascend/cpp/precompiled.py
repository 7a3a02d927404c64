"""The headers ahead of every kernel, compiled once for each compiler and SoC: half of the time that a kernel takes to compile.

GCC takes such a file only where the macros that are defined ahead of it mean the same, and reads the headers otherwise. Other
compilers do without.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path

from lngrad.support.cache_folder import keep, kept, mark_used, trusted_folder
from lngrad.support.compilers import compiler_version, run_compiler
from lngrad_ascend import soc as socs
from lngrad_ascend.cpp.headers import digest, own_headers, write_files

AHEAD = '#include "lngrad/ahead.h"'
TYPE_MACROS = "-DLNGRAD_TYPE_MACROS"
_HEADER = Path("lngrad", "ahead.h")
MOST = 3  # for each compiler and SoC: other versions of lngrad have theirs there


def link_precompiled(include: Path, compiler: Sequence[str], flags: Sequence[str], options: Sequence[str]) -> None:
    """Put the precompiled header into an include folder, if there is one for it.

    Args:
        include: The folder, with all headers.
        compiler: Its command.
        flags: What every kernel has.
        options: What a kernel has beside them. A folder of its own with a header of ours would be searched first.
    """
    folder, version = trusted_folder(), compiler_version(*compiler)
    folders = [Path(option[2:]) for option in options if option.startswith("-I")]
    if folder is None or TYPE_MACROS not in options or "Free Software Foundation" not in version:
        return
    if any((place / name).exists() for place in folders for name in own_headers()):
        return
    macros = [TYPE_MACROS, *(f"-D{name}={value}" for name, value in socs.current().soc.macros.items())]
    precompiled = _precompiled(folder, (*compiler, *flags, *macros), version)
    if precompiled is not None:
        (include / _HEADER).with_suffix(".h.gch").symlink_to(precompiled)


@cache
def _precompiled(folder: Path, command: tuple[str, ...], version: str) -> Path | None:
    """The file in the cache folder, compiled or found whole; None if it can't be made or kept."""
    words = "\0".join([*command, version, *chain(*own_headers().items())])
    macros = digest("\0".join(command).encode())[:16]
    path = folder / f"ascendc-{macros}-{digest(words.encode())[:16]}.gch"
    if kept(path) is not None:
        mark_used(path)
        return path
    with tempfile.TemporaryDirectory() as name, suppress(OSError):
        include, compiled = Path(name) / "include", Path(name) / "ahead.gch"
        write_files(include, own_headers())
        header = ["-x", "c++-header", f"-I{include}", str(include / _HEADER), "-o", str(compiled)]
        if run_compiler([*command, *header]).returncode == 0:
            keep(path, compiled.read_bytes())
            for old in sorted(folder.glob(f"ascendc-{macros}-*.gch"), key=lambda old: old.stat().st_mtime)[:-MOST]:
                old.unlink(missing_ok=True)  # who reads it keeps it
            return path
    return None
