"""Compiled functions by name: loaded from disk without a compiler, or else compiled, linked and kept.

Numba takes half a second to import, so it is imported when something must be compiled and not before.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any

from lngrad.cpu import cache, prebuilt
from lngrad.cpu.jobs import ENTRIES
from lngrad.errors import BackendUnavailable
from lngrad.support.cache_folder import keep, kept
from lngrad.support.dtypes import ACCUMULATORS
from lngrad.support.locks import fork_safe_lock, hold_while_forking
from lngrad.typing import Address

# Without libraries: a kernel needs a few functions of the C library, which this process has, and linking takes 5 ms, not 35.
_LINK = ("-shared", "-nostdlib", "-s", "-Wl,-z,noseparate-code", "-Wl,-z,noexecstack")
_LINKS = sys.platform.startswith("linux")  # elsewhere LLVM's own loader takes the object files

_addresses: dict[str, Address] = {}


class _Numba:
    """Numba's own lock, once Numba is loaded: a child forked while somebody compiles would find Numba and LLVM halfway."""

    def __init__(self) -> None:
        self._taken: list[Any] = []

    def acquire(self) -> None:
        loaded = sys.modules.get("numba.core.compiler_lock")
        self._taken.append(None if loaded is None else loaded.global_compiler_lock)
        if loaded is not None:
            self._taken[-1].acquire()

    def release(self) -> None:
        if (lock := self._taken.pop()) is not None:
            lock.release()


hold_while_forking(_Numba())
_compiling = fork_safe_lock()  # made after it: a fork takes this one first, as a call does


def kernel_address(name: str, dtype: str, accumulator: str) -> Address:
    """The address of a compiled function, which is found on disk, or compiled.

    Args:
        name: Of tasks.TASK_FUNCTIONS or TRIADS, void (int64 arguments, int64 task, int64 thread); of tasks.COPY_FUNCTIONS, void
            (int64 base, table, first, rows, N, packed); or of jobs.ENTRIES.
        dtype: Of the elements; of a copy, as the rows are stored; of an entry "".
        accumulator: Of the sums: float32 or float64; of a copy the dtype in which a kernel takes the rows; of an entry "".
    """
    kernel = "_".join(filter(None, (name, dtype, accumulator)))
    with _compiling:
        if kernel not in _addresses:
            address = _load(kernel, name) or _compile(kernel, name, dtype, accumulator)
            if not address:
                raise RuntimeError(f"kernel: expected an address of {kernel}, got 0")
            _addresses[kernel] = address
        return _addresses[kernel]


@functools.cache
def entry_address(name: str) -> Address:
    """The address of one of jobs.ENTRIES."""
    return kernel_address(name, "", "")


@functools.cache
def entry_function(name: str) -> Callable[..., int]:
    """One of jobs.ENTRIES; a call gives the GIL away."""
    entry = ENTRIES[name]
    result = ctypes.c_int64 if entry.returns else None
    return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * len(entry.parameters.split()))(entry_address(name))


def kernels() -> list[tuple[str, str, str]]:
    """All kernels that a call can ask for, as (name, dtype, accumulator), or of a copy (name, its dtype, the kernel's)."""
    from lngrad.cpu.kernels.tasks import COPY_FUNCTIONS, TASK_FUNCTIONS

    found = [(name, "", "") for name in ENTRIES]
    for dtype, accumulator in ACCUMULATORS.items():
        found += [(name, dtype, accumulator) for name in TASK_FUNCTIONS]
        others = {"float32": "float64", "float64": "float32"}[accumulator]  # another dgamma's dtype
        found.append(("combine", dtype, others))
        found += [(name, dtype, to) for to in dict.fromkeys((dtype, accumulator, "float64")) for name in COPY_FUNCTIONS]
    return found


def programs_for(wanted: Iterable[tuple[str, str, str]], each: int = 1) -> list[str]:
    """Programs for `compile_elsewhere`: they compile those of these `kernels` that are needed and not kept, so many each."""
    if prebuilt.why_not() is None or cache.why_not() or find_spec("numba") is None:
        return []
    missing = [kernel for kernel in wanted if not _load("_".join(filter(None, kernel)), kernel[0])]
    program = "from lngrad.cpu.entries import kernel_address\nfor one in {}: kernel_address(*one)"
    count = -(-len(missing) // each)
    return [program.format(missing[i::count]) for i in range(count)]


def compile_elsewhere(programs: Iterable[str]) -> Iterator[str]:
    """Run programs that compile, two at a time in processes of their own; yield what went wrong in each, "" if nothing did."""
    from concurrent.futures import ThreadPoolExecutor

    from lngrad.support.compilers import python, run_compiler

    pool = ThreadPoolExecutor(2)
    try:
        for done in pool.map(lambda program: run_compiler(python(program)), programs):
            yield done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _load(kernel: str, name: str) -> Address | None:
    """The address of a kernel that the package brings, or that is kept."""
    found = prebuilt.library()
    if not isinstance(found, str):
        library, processor = found
        address = _open(library, prebuilt.symbol(kernel, processor))
        if address:
            return address
    symbol = cache.symbol(kernel, name)
    for suffix in (cache.LIBRARY, cache.OBJECT):
        file = cache.path(kernel, name, suffix)
        content = None if file is None else kept(file)
        if file is None or content is None or symbol.encode() not in content:  # none, not whole, or another kernel's
            continue
        cache.mark_used(file)
        if suffix == cache.LIBRARY:
            address = _open(file, symbol)
        else:
            with _numba_compiles():
                from lngrad.cpu.compiling import load_by_llvm

            address = load_by_llvm(symbol, content)
        if address:
            return address
    return None


@contextmanager
def _numba_compiles() -> Iterator[None]:
    """Let Numba compile although NUMBA_DISABLE_JIT is set: that is for functions whose Python somebody debugs."""
    config = import_module("numba").config
    disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0
    try:
        yield
    finally:
        config.DISABLE_JIT = disabled


def _compile(kernel: str, name: str, dtype: str, accumulator: str) -> Address:
    """Compile a kernel and keep it: as a library where that can be linked and opened, else as an object file."""
    try:
        with _numba_compiles():
            from lngrad.cpu.compiling import compile_kernel, load_by_llvm
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("numba", "llvmlite"):
            raise
        reason = f"it is not compiled in the package ({prebuilt.why_not() or 'not among its kernels'})"
        raise BackendUnavailable(f"kernel: {kernel} needs Numba, as {reason}: {prebuilt.INSTALL}") from None

    symbol = cache.symbol(kernel, name)
    (late := Timer(2.0, _tell)).start()
    try:
        with _numba_compiles():
            code = compile_kernel(symbol, name, dtype, accumulator)
    finally:
        late.cancel()
    library, address = _link(code), None
    for suffix, content in ((cache.LIBRARY, library), (cache.OBJECT, code)):
        file = cache.path(kernel, name, suffix)
        if file is None or content is None or address:
            continue
        try:
            keep(file, content)
        except OSError:  # full, or read-only
            break
        cache.remove_old(file)
        if suffix == cache.LIBRARY:
            address = _open(file, symbol)
            if not address:  # such as on a file system from which nothing is executed
                file.unlink(missing_ok=True)
    return address or load_by_llvm(symbol, code)


@functools.cache
def _tell() -> None:
    sys.stderr.write(  # at once: others may write beside it
        "lngrad: compiling kernels for this processor, once; `lngrad info --warm` compiles all ahead\n"
    )


def _link(code: bytes) -> bytes | None:
    """The shared library of an object file, by the system's linker; None where there is none."""
    if not _LINKS:
        return None
    import subprocess  # these three take 15 ms, and a call with kept kernels does not need them
    from tempfile import TemporaryDirectory

    from lngrad.support.compilers import c_compiler

    try:
        with TemporaryDirectory() as folder:
            source, target = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
            source.write_bytes(code)
            command = [*c_compiler(), *_LINK, "-o", str(target), str(source)]
            done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
            return target.read_bytes() if done.returncode == 0 else None
    except OSError:  # no compiler, or no room
        return None


def _open(library: Path, symbol: str) -> Address | None:
    """The address of a function of a shared library. ctypes binds all symbols at once: a missing one is an error here."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(str(library)), symbol), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
