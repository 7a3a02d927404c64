"""The core on which the kernel of this thread runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from lngrad.ascend.faults import DeviceFault

if TYPE_CHECKING:
    from lngrad.ascend.device.core import Core

current_core: ContextVar[Core | None] = ContextVar("current_core", default=None)


def running(api: str) -> Core:
    """Return the core that runs the calling kernel.

    Raises:
        DeviceFault: No kernel runs.
    """
    core = current_core.get()
    if core is None:
        raise DeviceFault(f"{api}: no kernel is running; launch() runs one")
    return core
