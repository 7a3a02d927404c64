"""Named arrays to a file or folder that appears whole or not at all.

Everything is written, in the order of the rows, beside its place under a temporary name, brought to the disk, and renamed at
the end; then the folder is brought to the disk too, so that a power cut leaves the old content or the new one. Plain writes
rather than a mapping of the output: a full disk is then an error that can be told, where a mapping would end the process
with SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from lngrad.errors import FileFormatError
from lngrad.files.formats import npy_header, safetensors_header
from lngrad.support.trust import foreign_link
from lngrad.typing import Array, Shape

Tensors = dict[str, tuple[Shape, str]]  # shape and dtype by name
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1  # of Linux's renameat2


class Writer(Protocol):
    """A file in the making."""

    def append(self, name: str, rows: Array) -> None:
        """Write the next rows of an array. Arrays come one after the other, in the order of their announcement."""

    def close(self) -> None:
        """Finish the file."""


@contextmanager
def new_output(path: Path, tensors: Tensors, *, replace: bool = False, sync: bool = True) -> Iterator[Writer]:
    """A writer for a .npz, a .safetensors or a folder of .npy, which appears when the context is left without an error.

    Args:
        path: What it will be called; its suffix says which of the three, none says a folder.
        tensors: Shape and dtype of every array that will be written.
        replace: Whether something of that name may be there already. A folder is replaced only if it holds nothing but
            these arrays; a symbolic link, a pipe or a device never is.
        sync: Whether the content is on the disk before it has its name, which a power cut then can't take from it.

    Raises:
        FileFormatError: One line that names the path and says why it can't be written. If something of that name appeared
            meanwhile that may not be replaced, the line names the file beside it that has the content.
    """
    writers: dict[str, Any] = {".npz": _NpzWriter, ".safetensors": _SafetensorsWriter, "": _FolderWriter}
    if path.suffix not in writers:
        raise FileFormatError(f"{path}: expected a .npz, a .safetensors or a folder (no suffix), got {path.suffix!r}")

    def check(at: Path = path) -> None:
        _check_place(path, tensors, replace, at)

    check()
    replace = replace and os.path.lexists(path)  # what appears later is not what --force was meant for
    output = whole(path, replace=replace, sync=sync, check=check)
    with _errors_of(path), output as temporary, closing(writers[path.suffix](temporary, tensors)) as writer:
        yield writer


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise FileFormatError(f"{path}: can't be written: {reason.strerror or reason}") from None


@contextmanager
def whole(path: Path, *, replace: bool, sync: bool = True, check: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary name beside a path, which becomes the path when the context is left without an error.

    Args:
        path: The final name.
        replace: Whether something of that name may be there.
        sync: Whether the content is brought to the disk before, and the name after.
        check: Raises FileFormatError if what is at the given place may not be replaced.

    Raises:
        FileFormatError: Something appeared there meanwhile; the line names the file or folder beside it that has the content.
    """
    token = secrets.token_hex(4)
    temporary = path.with_name(f".{path.name[:80]}.{token}.tmp")
    try:
        yield temporary
        if sync:
            for place in (*temporary.rglob("*"), temporary):
                _to_disk(place)
        try:
            check(path)
            _publish(temporary, path, replace, check)
        except (FileFormatError, FileExistsError) as reason:
            kept = path.with_name(f"{path.stem}.{token}{path.suffix}")
            temporary.rename(kept)
            is_told = isinstance(reason, FileFormatError)
            words = str(reason) if is_told else f"{path}: appeared meanwhile, and is not replaced"
            raise FileFormatError(f"{words}; the content is in {kept.name}") from None
    except BaseException:
        with suppress(OSError):
            if temporary.is_dir():
                shutil.rmtree(temporary)
            else:
                temporary.unlink()
        raise
    if sync:
        _to_disk(path.parent)


def _to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk; for a folder as far as its file system can."""
    with suppress(OSError) if path.is_dir() else nullcontext():
        place = os.open(path, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def write_tensors(path: Path, arrays: dict[str, Array], *, sync: bool = True) -> None:
    """Whole arrays by name, as new_output writes them."""
    specs = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    with new_output(path, specs, sync=sync) as writer:
        for name, array in arrays.items():
            writer.append(name, array)


def check_place(path: Path, *, replace: bool) -> None:
    """Refuse what write_tensor would refuse: before there is an array."""
    if not path.parent.is_dir():
        raise FileFormatError(f"{path}: can't be written: there is no folder {path.parent}")
    if path.is_dir():
        raise FileFormatError(f"{path}: is a folder, and is not replaced")
    if path.is_file() and not replace:
        raise FileFormatError(f"{path}: exists already; another name, or --force to replace it")


def write_tensor(path: Path, array: Array, *, replace: bool = True, sync: bool = True) -> None:
    """One array: a .npy by that suffix, raw elements by any other; whole or not at all, if it is not a device or a pipe.

    Args:
        replace: Whether a file of that name may be there already.
        sync: As for new_output.

    Raises:
        FileFormatError: One line that names the path and says why it can't be written.
    """
    check_place(path, replace=replace)
    with _errors_of(path), _whole_file(path, replace, sync) as place, place.open("wb") as file:
        if path.suffix == ".npy":
            file.write(npy_header(array.shape, array.dtype.name))
        file.write(_bytes_of(array))


def _whole_file(path: Path, replace: bool = True, sync: bool = True) -> AbstractContextManager[Path]:
    """As whole, of the file where a link leads, unless the link is another user's; a device or a pipe is written to."""
    if (link := foreign_link(path)) is not None:
        raise FileFormatError(f"{path}: {link}, and is not followed")
    real = path.resolve()
    if real.exists() and not real.is_file():
        return nullcontext(real)
    return whole(real, replace=replace, sync=sync, check=lambda _: check_place(path, replace=replace))


def _check_place(path: Path, tensors: Tensors, replace: bool, at: Path) -> None:
    """Raise FileFormatError, about path, if what is at `at` (path, or where it stepped aside) may not be replaced."""
    if not path.parent.is_dir():
        raise FileFormatError(f"{path}: can't be written: there is no folder {path.parent}")
    if not os.path.lexists(at):
        return
    if at.is_symlink() or not (at.is_dir() or at.is_file()):  # to replace it would not write where it leads
        kind = "symbolic link" if at.is_symlink() else "pipe, socket or device"
        raise FileFormatError(f"{path}: is a {kind}, and is not replaced")
    if at.is_dir() != (path.suffix == ""):
        raise FileFormatError(f"{path}: is a {'folder' if at.is_dir() else 'file'}, and is not replaced")
    holds = sorted(entry.name for entry in at.iterdir()) if at.is_dir() else []
    if at.is_dir() and not holds:
        return
    if not replace:
        raise FileFormatError(f"{path}: exists already; another name, or --force to replace it")
    foreign = [name for name in holds if name.removesuffix(".npy") not in ("dx", "dgamma", "dbeta", *tensors)]
    if foreign:
        raise FileFormatError(f"{path}: holds more than gradients ({foreign[0]}), and is not replaced")


def _publish(temporary: Path, path: Path, replace: bool, check: Callable[[Path], None]) -> None:
    """Give what is written its name. What appeared there after the check is not replaced, where the system can see to that.

    Raises:
        FileExistsError: Something is there.
        FileFormatError: What is there may not be replaced, by `check`.
    """
    if not (temporary.is_dir() and path.is_dir()):
        if replace:
            temporary.replace(path)
        else:
            _rename_to_new(temporary, path)
        return
    # A folder that is not empty can't be renamed over: the old one steps aside first, and comes back if that fails.
    old = temporary.with_suffix(".old")
    path.rename(old)
    try:
        check(old)  # after it stepped aside, nobody puts anything into it any more
        _rename_to_new(temporary, path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old)


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Rename, or raise FileExistsError if there is something of the new name: in one step where the system has one."""
    with suppress(AttributeError):  # a C library without it
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE) == 0:
            return
        if (reason := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOSYS):  # those of a file system without it
            raise OSError(reason, os.strerror(reason), str(path))
    if temporary.is_dir():
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        temporary.rename(path)
    else:
        os.link(temporary, path)
        temporary.unlink()


def _bytes_of(rows: Array) -> Any:
    """An array's elements in C order, as something that can be written; bfloat16 has no buffer of its own."""
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


def write_text(path: Path, text: str) -> None:
    """A file of UTF-8, whole or not at all; one of that name is replaced, and a device or a pipe is written to.

    Raises:
        FileFormatError: One line that names the path and says why it can't be written.
    """
    with _errors_of(path), _whole_file(path) as place:
        place.write_text(text, "utf-8", errors="replace")


class _FolderWriter:
    def __init__(self, path: Path, tensors: Tensors):
        path.mkdir()
        self._files: dict[str, IO[bytes]] = {}
        for name, (shape, dtype) in tensors.items():
            self._files[name] = (path / f"{name}.npy").open("wb")
            self._files[name].write(npy_header(shape, dtype))

    def append(self, name: str, rows: Array) -> None:
        self._files[name].write(_bytes_of(rows))

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _SafetensorsWriter:
    def __init__(self, path: Path, tensors: Tensors):
        header, self._places = safetensors_header(tensors)
        self._file = path.open("wb")
        self._file.write(header)

    def append(self, name: str, rows: Array) -> None:
        data = _bytes_of(rows)
        self._file.seek(self._places[name])
        self._file.write(data)
        self._places[name] += len(data)

    def close(self) -> None:
        self._file.close()


class _NpzWriter:
    """Members are stored, so that they can be mapped, and bear no date, so that equal arrays are equal files."""

    def __init__(self, path: Path, tensors: Tensors):
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)
        self._tensors = tensors
        self._name = ""
        self._member: Any = None

    def append(self, name: str, rows: Array) -> None:
        if name != self._name:
            self._finish()
            self._name = name
            self._member = self._archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)
            self._member.write(npy_header(*self._tensors[name]))
        self._member.write(_bytes_of(rows))

    def _finish(self) -> None:
        if self._member is not None:
            self._member.close()

    def close(self) -> None:
        try:
            self._finish()
            self._archive.close()
        except OSError:
            file, self._archive.fp = (
                self._archive.fp,
                None,
            )  # or it is closed again when it is deleted, with a traceback
            with suppress(OSError, AttributeError):  # None: it was closed
                file.close()  # type: ignore[union-attr]
            raise
