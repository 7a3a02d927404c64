"""User code that comes anywhere: signal handlers, and the __del__ that the garbage collector runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def at_every_line(module: ModuleType, call: Callable[[], object]) -> Iterator[set[int]]:
    """Inside, this thread makes a call before each line of a module. Gives the lines at which it did."""
    lines: set[int] = set()
    calling = False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal calling
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line" and not calling:
            calling = True
            lines.add(frame.f_lineno)
            call()
            calling = False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
