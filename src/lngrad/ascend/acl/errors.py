"""The text of the last error of each thread, beside the number that a function returns."""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import TypeVar

from lngrad.errors import LngradError

__all__ = ["Refused", "aclGetRecentErrMsg", "report"]

Code = TypeVar("Code", bound=IntEnum)


class Refused(LngradError):
    """A rule of the host interfaces is broken: the code to return and the text to keep. Never leaves ``ascend``."""

    def __init__(self, code: IntEnum, text: str):
        super().__init__(text)
        self.code, self.text = code, text


class _Thread(threading.local):
    text: str | None = None


_thread = _Thread()


def report(code: Code, text: str) -> Code:
    """Keep the text of an error for this thread, and give its code back to be returned."""
    _thread.text = text
    return code


def aclGetRecentErrMsg() -> str | None:
    """Return the text of this thread's last error, and forget it. None: there was none since the last call.

    C: ``const char *aclGetRecentErrMsg()``
    """
    text, _thread.text = _thread.text, None
    return text
