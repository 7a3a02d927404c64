"""What both forms of the library share: the sizes of a call's frame, and what each thread of a program simulates."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

from lngrad.ascend.sdk.settings import Settings

# The frame of a call: words that come, words that go back, numbers of an array, bytes of a text.
CALL_WORDS, RESULT_WORDS, LIST_WORDS, TEXT_BYTES = 16, 8, 32, 4096

# Numbers below 0 are not functions of CANN, but what the library itself asks for.
AT_EXIT, CONNECT_KERNELS, KERNEL_FAULT = -1, -2, -3

CALL = struct.Struct(f"={1 + CALL_WORDS}q")  # a function's number, then its words: how a frame begins


def pack(words: Sequence[int]) -> bytes:
    """Words as they lie in a frame."""
    return struct.pack(f"={len(words)}q", *words)


def packed_text(text: str | None) -> bytes:
    """A text as C has it, without the zero at its end; it is cut where a frame has no more room."""
    return b"" if text is None else text.encode(errors="replace")[: TEXT_BYTES - 1]


class Threads(threading.local):
    """Chooses what is simulated in each thread that calls for the first time."""

    def __init__(self, settings: Settings):
        self._settings = None if settings == Settings() else settings  # every thread begins with the default

    def welcome(self) -> None:
        """Choose, unless this thread has chosen before."""
        if self._settings is not None:
            self._settings.choose()
            self._settings = None
