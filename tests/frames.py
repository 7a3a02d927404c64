"""The functions that a call runs through, and that its second time is like its third."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lngrad.core import calls


def frames_of(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The functions of lngrad that a call runs in this thread, as (file, name), in order."""
    found = []

    def seen(frame: Any, event: str, _: object) -> None:
        if event == "call" and f"{os.sep}lngrad{os.sep}" in frame.f_code.co_filename:
            found.append((Path(frame.f_code.co_filename).name, frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def second_and_third(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The frames of the second call, which are those of the third."""
    for _ in range(3):  # in one of some ten processes a second call with out prepares again; why is not known
        calls.forget()
        call()
        second, third = frames_of(call), frames_of(call)
        if second == third:
            break
    assert second == third
    return second
