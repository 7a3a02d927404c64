"""Right gradients, or which mistake: `lngrad check`. `lngrad.check.run` is the same for Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lngrad.check.verdict import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lngrad.check.verdict import run

    return run
