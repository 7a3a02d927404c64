"""Which paths nobody else can turn: what lies on the way to a file, links included, and who can change it.

A path in which only this user and root can change a folder or a link names the same file whenever it is opened. So what was
checked is what is loaded, without a descriptor that stays open.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_LINKS = 40  # on the way, as Linux has it


def steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link on the way to what a path names, and that itself; they end at what is not there.

    Raises:
        OSError: Something can't be looked at, or links lead in circles.
    """
    place, links = Path(path.anchor or Path.cwd().anchor), 0
    waiting = [*reversed(path.absolute().parts[1:])]
    yield place, place.lstat()
    while waiting:
        place = place.parent if (part := waiting.pop()) == ".." else place / part
        try:
            found = place.lstat()
        except FileNotFoundError:
            return
        yield place, found
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise OSError(f"{path}: links in a circle")
            target = place.readlink()
            waiting += reversed(target.parts[target.is_absolute() :])
            place = Path(target.anchor) if target.is_absolute() else place.parent


def distrust(folder: Path) -> str | None:
    """Why code from a folder must not be run: somebody else can write there, or turn a part of its path. None if nobody can."""
    if not hasattr(os, "geteuid"):
        return None
    try:
        way = list(steps(folder))
    except OSError:  # nor can it be opened
        return None
    last = way.pop() if folder.exists() else None
    for place, found in way:
        if (reason := others_in(found, on_the_way=True)) is not None:
            return f"{place}: {reason}"
    return None if last is None else others_in(last[1])


def anybody_can_make(folder: Path) -> bool:
    """Whether a folder is not there, and every user can make it."""
    with suppress(OSError):
        return not folder.exists() and bool([*steps(folder)][-1][1].st_mode & stat.S_ISVTX)
    return False


def others_in(found: os.stat_result, *, on_the_way: bool = False) -> str | None:
    """Who but this user (and root) can write to a file or folder, None if nobody.

    Args:
        found: What the system says of it.
        on_the_way: It is only a part of a path: a link; a folder with the sticky bit, as /tmp has, in which nobody renames
            what is ours; or one of whoever owns the root of the file system, who is not 0 inside of a namespace of users.
    """
    if found.st_uid not in (os.geteuid(), 0) and not (on_the_way and found.st_uid == Path("/").stat().st_uid):
        return f"it belongs to user {found.st_uid}"
    if on_the_way and (stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX):
        return None
    if found.st_mode & stat.S_IWOTH:
        return "every user can write there"
    if found.st_mode & stat.S_IWGRP and not (
        on_the_way and _is_private(found.st_gid)
    ):  # also one's own: others may be in it
        return f"group {found.st_gid} can write there"
    return None


def _is_private(group: int) -> bool:
    """Whether a group is that which this user has alone, under the same name: with those, umask 002 is usual."""
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and {*found.gr_mem} <= {name}


def foreign_link(path: Path) -> str | None:
    """A link on the way to a path that belongs to another user (but root), who can turn it; None if there is none."""
    if hasattr(os, "geteuid"):
        for place, found in steps(path):
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
                return f"{place} is a link of user {found.st_uid}"
    return None
