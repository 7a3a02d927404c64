"""The Python half of the library: the function that every C call ends in.

The library's C half starts the interpreter, or finds it running, and calls `attach` with the address of a place for
the callback. From then on each C call is one call of `serve` with the address of its frame.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence

from lngrad_ascend import acl
from lngrad_ascend.acl.memory import FIRST_ADDRESS
from lngrad_ascend.sdk.marshal import CALL_WORDS, DEVICE_SPAN, LIST_WORDS, RESULT_WORDS, TEXT_BYTES, entry_points
from lngrad_ascend.sdk.pointers import FIRST_HANDLE, HANDLE_SPAN, reserve
from lngrad_ascend.soc import Settings

# Numbers below 0 are not functions of CANN, but what the library itself asks for; -3: the text of a kernel's fault.
AT_EXIT, CONNECT_KERNELS = -1, -2

# How a frame begins: a function's number, then its words; and where its other parts are, as shim.h declares it.
_CALL = struct.Struct(f"=q{CALL_WORDS}Q")
_RESULTS = _CALL.size
_LIST = _RESULTS + 8 * RESULT_WORDS
_TEXT = _LIST + 8 * LIST_WORDS

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept: list[object] = []  # what C has the address of


class _Threads(threading.local):
    """Chooses what is simulated in each thread that calls for the first time."""

    def __init__(self, settings: Settings):
        self._settings = None if settings == Settings() else settings  # every thread begins with the default

    def welcome(self) -> None:
        """Choose, unless this thread has chosen before."""
        if self._settings is not None:
            self._settings.choose()
            self._settings = None


def attach(place: int, settings: Settings) -> None:
    """Write the callback's address to `place`, where the C half looks for it."""
    functions, threads = entry_points(settings.unified), _Threads(settings)
    reserve(FIRST_HANDLE, HANDLE_SPAN)
    reserve(FIRST_ADDRESS, DEVICE_SPAN)

    def serve(frame: int) -> None:
        number, *words = _CALL.unpack(ctypes.string_at(frame, _CALL.size))
        threads.welcome()
        if number < 0:
            _serve_library(number, frame)
            return
        results, values, text = functions[number](words)
        _write_words(frame + _LIST, values)
        if text is not None:
            _write_text(frame, text)
        _write_words(frame + _RESULTS, results)  # last: an interrupt leaves the failure that C wrote there

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
        _write_words(frame + _RESULTS, [ctypes.cast(bridge.RUN, ctypes.c_void_p).value or 0])
    else:
        _write_text(frame, bridge.last_fault() or "interrupted")


def _write_words(address: int, words: Sequence[int]) -> None:
    ctypes.memmove(address, struct.pack(f"={len(words)}q", *words), 8 * len(words))


def _write_text(frame: int, text: str) -> None:
    """A text with a zero at its end; it is cut where a frame has no more room."""
    place = ctypes.c_void_p.from_address(frame + _TEXT).value
    if place:
        content = text.encode(errors="replace")[: TEXT_BYTES - 1] + b"\0"
        ctypes.memmove(place, content, len(content))
