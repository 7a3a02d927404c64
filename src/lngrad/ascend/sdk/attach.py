"""The Python half of the library's in-process form: the function that every C call ends in.

The library's C half starts the interpreter, or finds it running, and calls `attach` with the address of a place for
the callback. From then on each C call is one call of `_serve` with the address of its frame.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from lngrad.ascend import acl
from lngrad.ascend.sdk.handles import FIRST_HANDLE, HANDLE_SPAN
from lngrad.ascend.sdk.host_memory import InProcess, reserve
from lngrad.ascend.sdk.marshal import DEVICE_SPAN, FIRST_ADDRESS, Doors
from lngrad.ascend.sdk.settings import Settings

__all__ = ["CALL_WORDS", "LIST_WORDS", "RESULT_WORDS", "TEXT_BYTES", "attach"]

# The frame of a call, as the C half declares it.
CALL_WORDS, RESULT_WORDS, LIST_WORDS, TEXT_BYTES = 16, 8, 32, 4096


class _Frame(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_int64),
        ("words", ctypes.c_int64 * CALL_WORDS),
        ("results", ctypes.c_int64 * RESULT_WORDS),
        ("list", ctypes.c_int64 * LIST_WORDS),
        ("text", ctypes.c_void_p),
    )


_Callback = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Frame))
_kept: list[object] = []  # what C has the address of


def attach(place: int, settings: Settings) -> None:
    """Write the address of the callback where the C half looks for it.

    Args:
        place: the address of a pointer.
        settings: what the folder was written with.
    """
    doors, host = Doors(settings.unified), InProcess()
    threads = _Threads(settings)
    reserve(FIRST_HANDLE, HANDLE_SPAN)
    reserve(FIRST_ADDRESS, DEVICE_SPAN)

    def serve(pointer: object) -> None:
        frame = pointer.contents  # type: ignore[attr-defined]
        if frame.function < 0:
            _serve_program(frame, threads)
            return
        threads.welcome()
        results, values, text = doors.answer(frame.function, frame.words[:], host)
        frame.results[: len(results)] = results
        if values:
            frame.list[: len(values)] = values
        if text is not None:
            _put_text(frame, text)

    callback = _Callback(serve)
    _kept.append(callback)
    ctypes.c_void_p.from_address(place).value = ctypes.cast(callback, ctypes.c_void_p).value


# Numbers below 0 are not functions of CANN, but what the library itself asks for.
AT_EXIT, CONNECT_KERNELS, KERNEL_FAULT = -1, -2, -3


def _serve_program(frame: Any, threads: _Threads) -> None:
    if frame.function == AT_EXIT:
        acl.aclrtSynchronizeDevice()  # what waits in streams is run before the process ends
        return
    from lngrad.ascend.cpp import bridge, host  # not needed by programs without kernels

    threads.welcome()
    if frame.function == CONNECT_KERNELS:
        frame.results[0] = ctypes.cast(bridge.RUN, ctypes.c_void_p).value
    else:
        _put_text(frame, host.last_fault())


def _put_text(frame: Any, text: str) -> None:
    if frame.text:
        content = text.encode(errors="replace")[: TEXT_BYTES - 1] + b"\0"
        ctypes.memmove(frame.text, content, len(content))


class _Threads(threading.local):
    """Chooses what is simulated in each thread that calls for the first time."""

    def __init__(self, settings: Settings):
        self._settings = None if settings == Settings() else settings  # every thread begins with the default

    def welcome(self) -> None:
        if self._settings is not None:
            self._settings.choose()
            self._settings = None
