"""Where compiled kernels are kept between processes, and of what each kept file is.

A kernel's key is a hash of all that decides its machine code: the definitions in the sources that it reaches, what compiles
them, the processor and Numba's settings. The key is in the name of its file and in the name of the function in it. A file that
can't be written is not kept.
The folder is `$XDG_CACHE_HOME/lngrad` or `~/.cache/lngrad`. Nothing here imports Numba.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import NamedTuple

from lngrad.core import column_tree
from lngrad.core.machine import processor_identity
from lngrad.cpu.jobs import ENTRIES
from lngrad.cpu.processors import CHOICE
from lngrad.support.cache_folder import cache_folder, keep, kept, trusted_folder
from lngrad.support.trust import distrust

LIBRARY, OBJECT = ".so", ".o"  # a kernel that is linked, and one that LLVM must load
_KERNEL = "kernel "  # before the name of a row of a table of kernels
_KEPT_STAMPS = 8  # files of stamps, of as many states of the sources
_KEPT_SECONDS = 30 * 86400  # since a kernel of other sources or another target was last used
_NOTED_SECONDS = 86400  # between two notes of that

_SETTINGS_CHARACTERS = 1 << 20  # of Numba's file

_HERE = Path(__file__).parent
_PACKAGE = "lngrad.cpu.kernels"
_COMPILER = _HERE / "compiling.py"
SOURCES = {  # what is compiled, by the name of its module; the column tree's CHUNK is compiled in
    **{f"{_PACKAGE}.{path.stem}": path for path in sorted((_HERE / "kernels").glob("*.py"))},
    "lngrad.cpu.jobs": _HERE / "jobs.py",
    "lngrad.core.column_tree": Path(column_tree.__file__),
}


class _Source(NamedTuple):
    """A module's definitions as (code without docstrings and comments, names used) by name, and where other names are from.

    What belongs to the module as a whole, such as a call that registers operators, has the name "".
    """

    definitions: dict[str, list[tuple[str, set[str]]]]
    imports: dict[str, tuple[str, str]]


def _parse(text: bytes) -> _Source:
    source = _Source({}, {})
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            source.imports.update(
                {alias.asname or alias.name: (statement.module, alias.name) for alias in statement.names}
            )
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            for name, node in _named(statement):
                used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                source.definitions.setdefault(name, []).append((_code(node), used))
    return source


def _named(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """The names that a statement defines, or is registered for. A dictionary of kernels has one for each of them."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        calls = [decorator for decorator in statement.decorator_list if isinstance(decorator, ast.Call)]
        registered_for = [argument.id for call in calls for argument in call.args if isinstance(argument, ast.Name)]
        yield from ((name, statement) for name in (statement.name, *registered_for))
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from ((part.id, statement) for part in ast.walk(target) if isinstance(part, ast.Name))
        if isinstance(statement.value, ast.Dict):
            for key, value in zip(statement.value.keys, statement.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Lambda):
                    yield f"{_KERNEL}{key.value}", value
    else:
        yield "", statement


def _code(node: ast.AST) -> str:
    """The code of a definition, whatever its layout, comments and docstrings."""
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part, clean=False) is not None:
            del part.body[0]
    return ast.dump(node)


def _reached(sources: dict[str, _Source], module: str, name: str) -> set[str]:
    """The code of all definitions that one reaches, by its names, by theirs, and so on."""
    found, waiting, seen = set(), [(module, name)], set()
    while waiting:
        place = waiting.pop()
        module, name = place
        if place in seen or module not in sources:
            continue
        seen.add(place)
        source = sources[module]
        if name in source.imports:
            waiting.append(source.imports[name])
        elif name in source.definitions:
            waiting.append((module, ""))
            for code, used in source.definitions[name]:
                found.add(code)
                waiting += [(module, other) for other in used]
    return found


def stamps(texts: dict[str, bytes], compiler: bytes) -> dict[str, str]:
    """For each kernel a hash of the sources that it reaches, and of what compiles it.

    Args:
        texts: The sources by module, as in SOURCES.
        compiler: The source of what compiles.
    """
    sources = {module: _parse(text) for module, text in texts.items()}
    always = {_code(ast.parse(compiler))} | _reached(sources, f"{_PACKAGE}.simd", "STORAGES")
    found = {}
    kernels = [name for name in sources[f"{_PACKAGE}.tasks"].definitions if name.startswith(_KERNEL)]
    for module, name in [
        *((entry.module, name) for name, entry in ENTRIES.items()),
        *(("tasks", name) for name in kernels),
    ]:
        code = always | _reached(sources, f"{_PACKAGE}.{module}", name)
        found[name.removeprefix(_KERNEL)] = hashlib.sha256("\n".join(sorted(code)).encode()).hexdigest()
    return found


def sources() -> list[bytes]:
    """All that is compiled, and behind it what compiles."""
    return [path.read_bytes() for path in (*SOURCES.values(), _COMPILER)]


@cache
def _stamps() -> dict[str, str]:
    """`stamps` of what is installed. They take 0.2 s, so they are kept, by a hash of the files as they are."""
    *texts, compiler = sources()
    state = hashlib.sha256(b"\0".join([*texts, compiler, Path(__file__).read_bytes(), _PYTHON.encode()]))
    file = None if FOLDER is None else FOLDER / f"stamps-{state.hexdigest()[:16]}.json"
    known = None if file is None else kept(file)
    if known is not None:
        return dict(json.loads(known))
    found = stamps(dict(zip(SOURCES, texts, strict=True)), compiler)
    if FOLDER is not None and file is not None:
        with suppress(OSError):
            keep(file, json.dumps(found).encode())
            for old in sorted(FOLDER.glob("stamps-*"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT_STAMPS]:
                old.unlink(missing_ok=True)
    return found


def _versions() -> list[str]:
    """The compilers' distributions, such as numba-0.68.1.dist-info: importlib.metadata takes twenty times as long."""
    found = [_PYTHON]
    for name in ("numba", "llvmlite"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            found += sorted(path.name for path in Path(spec.origin).parents[1].glob(f"{name}-*-info"))
    return found


def _target() -> str:
    """The target and the tools of compiled kernels: this processor, Numba's settings, versions."""
    return "\n".join([processor_identity(), repr(sorted(SETTINGS.items())), _settings_file(), *_versions()])


def _settings_file() -> str:
    """Numba's file in the working directory. Which processor is compiled for, only the environment says: see functions.py."""
    file = Path(".numba_config.yaml")
    try:
        if not file.is_file():  # a pipe or a device, which Numba does not read either
            return ""
        with file.open(encoding="utf-8", errors="replace") as text:
            return text.read(_SETTINGS_CHARACTERS)
    except OSError:
        return ""


_PYTHON = sys.implementation.cache_tag or ""
SETTINGS = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_") or name == CHOICE}
TARGET = _target()
FOLDER = trusted_folder()


def why_not() -> str | None:
    """Why kernels are not kept, None if they are."""
    if FOLDER is None:
        try:
            return f"{cache_folder()} is not used: {distrust(cache_folder())}"
        except RuntimeError:
            return "there is no home directory"
    from tempfile import TemporaryFile

    try:
        FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        TemporaryFile(dir=FOLDER).close()
    except OSError:
        return f"{FOLDER} can't be written"
    return None


def stamp(name: str) -> str:
    """A hash of the sources of a kernel by the name of its function."""
    return _stamps()[name]


def symbol(kernel: str, name: str) -> str:
    """The name that a kernel's function has in its file: it names all that its machine code depends on.

    Args:
        kernel: Its name with those of its dtypes.
        name: That of its function alone.
    """
    return f"lngrad_{kernel}_{hashlib.sha256(repr((kernel, stamp(name), TARGET)).encode()).hexdigest()[:32]}"


def path(kernel: str, name: str, suffix: str) -> Path | None:
    """The file of a kernel, None where none is kept."""
    if FOLDER is None:
        return None
    return FOLDER / f"{kernel}-{stamp(name)[:8]}-{symbol(kernel, name).rpartition('_')[2][:16]}{suffix}"


def mark_used(file: Path) -> None:
    """Note by a kernel's file that it is in use, once a day."""
    with suppress(OSError):
        if time() - file.stat().st_mtime > _NOTED_SECONDS:
            os.utime(file)


def remove_old(file: Path) -> None:
    """Remove the files of a kernel beside `file` that nobody used for long; other versions of lngrad have theirs here, too."""
    kernel, since = file.stem.rsplit("-", 2)[0], time() - _KEPT_SECONDS
    with suppress(OSError):
        for other in file.parent.glob(f"{kernel}-????????-????????????????.*"):
            if other != file and other.stat().st_mtime < since:
                other.unlink(missing_ok=True)
