"""What lngrad raises. Every text names the argument, the rule with its numbers, and what came."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = [
    "BackendUnavailable",
    "DtypeError",
    "FileFormatError",
    "LngradError",
    "NumberError",
    "OverlapError",
    "PeerError",
    "ShapeError",
    "WorkspaceError",
]


MISSING = "no such file or folder"  # behind a path, in every error
MAX_FOREIGN = 500  # characters of another program's text in a message of ours
SITE = ""  # the address of the pages once they have one, as https://HOST/; until then they are files of a checkout


class LngradError(Exception):
    """Base of everything that lngrad raises on purpose."""


class ShapeError(LngradError, ValueError):
    """A shape, a number of elements or a number of dimensions breaks a rule."""


class DtypeError(LngradError, TypeError):
    """A dtype, an array kind or a device is not one that this call takes."""


class NumberError(LngradError, ValueError):
    """A number is not one that this call takes: infinite, NaN, or no number at all."""


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


def install_command(extra: str) -> str:
    """What you type to add an extra's packages to an installed lngrad; pip does not look for lngrad itself then."""
    return f"pip install 'lngrad[{extra}]'"


def page(name: str) -> str:
    """Where a reader finds a page of docs/: its address, its file in this checkout, or its place in lngrad's sources."""
    if SITE:
        return f"{SITE}{name}/"
    file = Path(__file__).parents[3] / "docs" / f"{name}.md"
    return str(file) if file.is_file() else f"docs/{name}.md in lngrad's sources"


def printable(text: str, *, markup: bool = False) -> str:
    """Foreign text, as a name from a file, so that a terminal or a page shows it and obeys nothing in it.

    Control characters (ESC, so that no escape sequence is left), bidirectional controls and all else that has no shape of
    its own become escapes such as \\x1b and \\u202e. Line ends and tabs stay.

    Args:
        text: As it came.
        markup: For rich's markup: `[` opens no style, and `:fire:` is no emoji.
    """
    text = "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )
    if not markup:
        return text
    # A style without effect keeps apart what rich would read as one thing. Rich drops a backslash before a bracket.
    return re.sub(r"\\+$", lambda found: 2 * found[0] + "[none][/none]", re.sub(r"[\[:]", _apart, text))


def flattened(text: str) -> str:
    """Foreign text as a part of a line: no line end in it begins a line of ours, and it has at most MAX_FOREIGN characters."""
    return printable(" ".join(text.split()))[:MAX_FOREIGN]


def _apart(found: re.Match[str]) -> str:
    return ("\\" if found[0] == "[" else "") + found[0] + "[none][/none]"
