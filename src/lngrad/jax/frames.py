"""XLA's foreign-function interface: how a call lies in memory, and how it is answered. No jax, no arithmetic.

XLA calls a handler with the address of a call frame, a C struct with the addresses of all buffers. The handler is a Python
function behind ctypes, so it holds the GIL but while a kernel runs. Source: xla/ffi/api/c_api.h, versions 0.1 to 0.3, which
jaxlib ships (jax.ffi.include_dir()); XLA promises to keep the layout, and asks every handler which version it knows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

Buffer = tuple[int, str, tuple[int, ...]]  # address, dtype, shape; contiguous in row-major order

DTYPES = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}  # XLA_FFI_DataType

# Places of fields, in words of 8 bytes.
FRAME_WORDS, BUFFER_WORDS, API_WORDS = 21, 6, 7
EXTENSION, API = 1, 2  # in XLA_FFI_CallFrame
ARGS_SIZE, ARGS, RETS_SIZE, RETS, ATTRS = 7, 9, 12, 14, 20  # in its args, rets and attrs
VERSION, ERROR_CREATE = 4, 6  # in XLA_FFI_Api: major and minor version in one word; a function
MAJOR = 0
METADATA, METADATA_VERSION, METADATA_TRAITS = 3, 3, 4  # in XLA_FFI_Metadata_Extension and XLA_FFI_Metadata
INTERNAL, CANCELLED = 13, 1  # XLA_FFI_Error_Code

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _ErrorArgs(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("errc", ctypes.c_int),
    )


@cache
def _array(words: int) -> Any:
    return ctypes.c_int64 * words


_frame, _buffer = _array(FRAME_WORDS).from_address, _array(BUFFER_WORDS).from_address


def _words(address: int, count: int) -> list[int]:
    return _array(count).from_address(address)[:]  # type: ignore[no-any-return]


def make_handler(run: Callable[[tuple[int, ...], list[Buffer], list[Buffer]], None]) -> Any:
    """A C function that XLA can call.

    Args:
        run: (attribute, arguments, results): computes, from any thread, and writes all results. Of the call's attributes
            there must be one alone, an array of int64. What it raises ends the XLA program with an error.

    Returns:
        The function. It must be kept as long as XLA may call it.
    """

    def handle(address: int) -> int | None:
        frame = _frame(address)[:]
        try:
            if frame[EXTENSION]:
                _introduce(frame[EXTENSION], frame[API])
            else:
                attribute = _words(_words(frame[ATTRS], 1)[0], 3)  # XLA_FFI_Array: dtype, size, data
                run(
                    tuple(_words(attribute[2], attribute[1])),
                    _buffers(frame[ARGS], frame[ARGS_SIZE]),
                    _buffers(frame[RETS], frame[RETS_SIZE]),
                )
        except BaseException as reason:  # Ctrl-C too: C code can't pass it on, and the results are not there
            return _error(frame[API], reason)
        return None

    return _HANDLER(handle)


def _buffers(address: int, count: int) -> list[Buffer]:
    buffers = []
    for pointer in _words(address, count):
        _, _, dtype, data, rank, dims = _buffer(pointer)[:]
        name = DTYPES[dtype & 0xFFFFFFFF]  # an enum of 4 bytes, then padding
        buffers.append((data, name, tuple(_words(dims, rank))))
    return buffers


def _introduce(extension: int, api: int) -> None:
    """Answer XLA's question which version the handler knows: any minor one, which only adds fields, of major version 0."""
    metadata = _words(extension, METADATA + 1)[METADATA]
    minor = _words(api, API_WORDS)[VERSION] >> 32
    ctypes.c_int64.from_address(metadata + 8 * METADATA_VERSION).value = minor << 32 | MAJOR
    ctypes.c_uint32.from_address(metadata + 8 * METADATA_TRAITS).value = 0


def _error(api: int, reason: BaseException) -> int:
    """An XLA_FFI_Error, which XLA will free."""
    text = f"lngrad: {type(reason).__name__}: {reason}"
    code = INTERNAL if isinstance(reason, Exception) else CANCELLED
    arguments = _ErrorArgs(_ErrorArgs.errc.offset + _ErrorArgs.errc.size, None, text.encode(), code)
    create = _HANDLER(_words(api, API_WORDS)[ERROR_CREATE])
    return create(ctypes.addressof(arguments))  # type: ignore[no-any-return]
