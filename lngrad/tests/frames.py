"""The functions that a call runs through, and that its second time is like its third."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lngrad

PACKAGE = f"{Path(lngrad.__file__).parent}{os.sep}"


def frames_of(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The functions of lngrad that a call runs in this thread, as (file, name), in order.

    Of `finish` only its name: what it runs depends on whether another thread is late.
    """
    found: list[tuple[str, str]] = []
    finishing: list[Any] = []

    def seen(frame: Any, event: str, _: object) -> None:
        if event == "return" and finishing == [frame]:
            finishing.clear()
        if event == "call" and not finishing and frame.f_code.co_filename.startswith(PACKAGE):
            found.append((Path(frame.f_code.co_filename).name, frame.f_code.co_name))
            finishing.extend([frame] if found[-1] == ("workers.py", "finish") else [])

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # what a collection calls is none of the call's
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return found


def second_and_third(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The frames of the second call, which are those of the third."""
    call()
    second, third = frames_of(call), frames_of(call)
    assert second == third
    return second
