"""What lngrad raises. Every text names the argument, the rule with its numbers, and what came."""

from __future__ import annotations

__all__ = [
    "BackendUnavailable",
    "DtypeError",
    "FileFormatError",
    "LngradError",
    "OverlapError",
    "PeerError",
    "ShapeError",
    "WorkspaceError",
]


class LngradError(Exception):
    """Base of everything that lngrad raises on purpose."""


class ShapeError(LngradError, ValueError):
    """A shape, a number of elements or a number of dimensions breaks a rule."""


class DtypeError(LngradError, TypeError):
    """A dtype, an array kind or a device is not one that this call takes."""


class OverlapError(LngradError, ValueError):
    """An output shares memory with an input or another output in a way that would lose data."""


class WorkspaceError(LngradError, ValueError):
    """The workspace handed to ``execute`` is missing, too small or misaligned."""


class BackendUnavailable(LngradError, RuntimeError):
    """The backend that was asked for does not exist here, or does not take this problem."""


class PeerError(LngradError, RuntimeError):
    """Another process of a group failed, or did not come to a collective before the group's timeout."""


class FileFormatError(LngradError, ValueError):
    """A file cannot be read as what it claims to be, or lacks what the command needs."""
