"""The Python half of the library's in-process form: the function that every C call ends in.

The library's C half starts the interpreter, or finds it running, and calls `attach` with the address of a place for
the callback. From then on each C call is one call of `_serve` with the address of its frame.
"""

from __future__ import annotations

import ctypes

from lngrad_ascend import acl
from lngrad_ascend.acl.memory import FIRST_ADDRESS
from lngrad_ascend.sdk.marshal import (
    AT_EXIT,
    CALL,
    CONNECT_KERNELS,
    DEVICE_SPAN,
    LIST_WORDS,
    RESULT_WORDS,
    Dispatcher,
    Threads,
    pack,
    packed_text,
)
from lngrad_ascend.sdk.pointers import FIRST_HANDLE, HANDLE_SPAN, HostMemory, reserve
from lngrad_ascend.soc import Settings

# Where the parts of a frame begin, as shim.h declares it.
_RESULTS = CALL.size
_LIST = _RESULTS + 8 * RESULT_WORDS
_TEXT = _LIST + 8 * LIST_WORDS

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept: list[object] = []  # what C has the address of


def attach(place: int, settings: Settings) -> None:
    """Write the callback's address to `place`, where the C half looks for it."""
    dispatcher, host = Dispatcher(settings.unified), HostMemory()
    threads = Threads(settings)
    reserve(FIRST_HANDLE, HANDLE_SPAN)
    reserve(FIRST_ADDRESS, DEVICE_SPAN)

    def serve(frame: int) -> None:
        number, *words = CALL.unpack(ctypes.string_at(frame, CALL.size))
        threads.welcome()
        if number < 0:
            _serve_library(number, frame)
            return
        results, values, text = dispatcher.call(number, words, host)
        _write(frame + _RESULTS, pack(results))
        if values:
            _write(frame + _LIST, pack(values))
        if text is not None:
            _write_text(frame, text)

    callback = _Callback(serve)
    _kept.append(callback)
    ctypes.c_void_p.from_address(place).value = ctypes.cast(callback, ctypes.c_void_p).value


def _serve_library(number: int, frame: int) -> None:
    """Reply what the library asks for itself."""
    if number == AT_EXIT:
        acl.aclrtSynchronizeDevice()  # what waits in streams is run before the process ends
        return
    from lngrad_ascend.cpp import bridge  # not needed by programs without kernels

    if number == CONNECT_KERNELS:
        _write(frame + _RESULTS, pack([ctypes.cast(bridge.RUN, ctypes.c_void_p).value or 0]))
    else:
        _write_text(frame, bridge.last_fault())


def _write_text(frame: int, text: str) -> None:
    place = ctypes.c_void_p.from_address(frame + _TEXT).value
    if place:
        _write(place, packed_text(text) + b"\0")


def _write(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))
