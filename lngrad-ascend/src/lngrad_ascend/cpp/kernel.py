"""A compiled kernel: what `launch` takes in the place of a Python function."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, repeat
from pathlib import Path

import numpy as np

from lngrad.errors import ShapeError
from lngrad.typing import Array
from lngrad_ascend.cpp.bridge import answer
from lngrad_ascend.cpp.compiling import build
from lngrad_ascend.cpp.session import Session, run_block
from lngrad_ascend.device.core import running
from lngrad_ascend.device.global_memory import GlobalAddress

_ALIGNMENT = 32  # of global memory
_NO_ACCESS = 0  # PROT_NONE


class CompiledKernel:
    """A kernel in C++, compiled for the simulated NPU.

    Call `launch(kernel, blocks, …)` with it. Its blocks run native code; every Ascend C call in them is answered by
    the simulator.

    Args:
        library: The shared library, from `build`.
        name: The kernel function's name.
    """

    def __init__(self, library: Path, name: str) -> None:
        self.__name__ = name
        self._library = ctypes.PyDLL(str(library))
        self._library.lngrad_bind(ctypes.py_object(answer))
        self._library.lngrad_entry.argtypes = (ctypes.c_void_p,)
        self._library.lngrad_exception.restype = ctypes.c_char_p
        self._code = ctypes.cast(self._library.lngrad_entry, ctypes.c_void_p).value or 0
        self._library.lngrad_kinds.restype = ctypes.c_char_p
        self._kinds = bytes(self._library.lngrad_kinds()).decode()  # of its parameters, as in lngrad/entry.h

    def __repr__(self) -> str:
        return f"CompiledKernel({self.__name__})"

    def __call__(self, *arguments: GlobalAddress | bytes | float) -> None:
        """Run one block: `launch` calls this.

        Args:
            arguments: Addresses of global memory, the tiling's bytes, and numbers, which get the parameter's type.

        Raises:
            ShapeError: The kernel takes another number of arguments, or an address where there is a number.
            DeviceFault: The kernel broke a rule; the text begins with its file and line.
        """
        if len(arguments) != len(self._kinds):
            raise ShapeError(
                f"{self.__name__}: expected {len(self._kinds)} arguments (arrays, numbers, workspace, tiling), "
                f"got {len(arguments)}"
            )
        tilings = [ctypes.create_string_buffer(text, len(text)) for text in arguments if isinstance(text, bytes)]
        addresses = iter([ctypes.addressof(tiling) for tiling in tilings])
        packed = map(self._packed, count(1), self._kinds, arguments, repeat(addresses))
        places = ctypes.create_string_buffer(b"".join(packed))
        session = Session(running(self.__name__), self._code)
        session.tilings = {ctypes.addressof(tiling): len(tiling) for tiling in tilings}
        run_block(session, self.__name__, lambda: int(self._library.lngrad_entry(places)), self._exception)

    def _packed(self, place: int, kind: str, argument: GlobalAddress | bytes | float, tilings: Iterator[int]) -> bytes:
        """The eight bytes of an argument, which a parameter of this kind reads."""
        is_address = isinstance(argument, GlobalAddress | bytes) or (kind == "P" and argument == 0)
        if is_address != (kind == "P"):
            got = argument.name if isinstance(argument, GlobalAddress) else repr(argument)
            expected = "an array" if kind == "P" else "a number"
            raise ShapeError(f"{self.__name__}: expected {expected} as argument {place}, got {got}")
        if kind in "fde":
            return struct.pack(f"<{kind}", argument).ljust(8, b"\0")
        number = next(tilings) if isinstance(argument, bytes) else int(argument)
        return (number & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")

    def _exception(self) -> str:
        return bytes(self._library.lngrad_exception()).decode(errors="replace")


def compile(
    path: str | os.PathLike[str],
    kernel: str,
    *,
    include: Sequence[str | os.PathLike[str]] = (),
    headers: Sequence[str | os.PathLike[str]] = (),
    define: Mapping[str, object] | None = None,
) -> CompiledKernel:
    """Compile a kernel that is written in Ascend C.

    Args:
        path: The C++ file.
        kernel: The ``__global__ __aicore__`` function, as C++ names it; a template with its arguments, as
            ``my_kernel<0>``.
        include: Folders to search for headers, before the file's own.
        headers: Headers to include ahead of the file, behind kernel_operator.h: those that an operator's build
            writes, with the tiling structs.
        define: Macros: name and value; None defines without a value.

    Returns:
        What `launch` takes in the place of a Python kernel. A library that an earlier process compiled is used again
        while no file that went into it has changed.

    Raises:
        CompileError: There is no compiler, or it refuses the file; the text names the line.
        FileNotFoundError: There is no such file.
    """
    macros = {name: None if value is None else str(value) for name, value in (define or {}).items()}
    library = build(Path(path), kernel, list(map(Path, include)), list(map(Path, headers)), macros)
    return CompiledKernel(library, kernel)


def guarded(array: Array) -> Array:
    """Copy an array to pages of its own, its end at a page that can't be read or written.

    A kernel's write behind the array, through a pointer of C++, ends the process there instead of breaking other memory. The
    last 31 bytes before that page may be the array's neighbours, because it begins at a multiple of 32 bytes.
    """
    page, nbytes = mmap.PAGESIZE, array.nbytes
    pages = -(-max(nbytes, 1) // page) * page
    memory = np.frombuffer(mmap.mmap(-1, pages + page), np.uint8)
    end = memory.ctypes.data + pages
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), _NO_ACCESS) != 0:
        raise MemoryError("the page behind an array could not be guarded")
    start = (pages - nbytes) // _ALIGNMENT * _ALIGNMENT
    copy = memory[start : start + nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
