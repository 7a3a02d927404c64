"""Named arrays to a file or folder that appears whole or not at all.

Everything is written, in the order of the rows, beside its place under a temporary name, and renamed at the end. Plain
writes rather than a mapping of the output: a full disk is then an error that can be told, where a mapping would end the
process with SIGBUS.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from lngrad.errors import FileFormatError
from lngrad.files.formats import npy_header, safetensors_header
from lngrad.typing import Array, Shape

Tensors = dict[str, tuple[Shape, str]]  # shape and dtype by name


class Writer(Protocol):
    """A file in the making."""

    def append(self, name: str, rows: Array) -> None:
        """Write the next rows of an array. Arrays come one after the other, in the order of their announcement."""

    def close(self) -> None:
        """Finish the file."""


@contextmanager
def new_output(path: Path, tensors: Tensors, *, replace: bool = False) -> Iterator[Writer]:
    """A writer for a .npz, a .safetensors or a folder of .npy, which appears when the context is left without an error.

    Args:
        path: What it will be called; its suffix says which of the three, none says a folder.
        tensors: Shape and dtype of every array that will be written.
        replace: Whether something of that name may be there already. A folder is replaced only if it holds nothing but
            these arrays; a symbolic link, a pipe or a device never is.

    Raises:
        FileFormatError: One line that names the path and says why it can't be written.
    """
    writers: dict[str, Any] = {".npz": _NpzWriter, ".safetensors": _SafetensorsWriter, "": _FolderWriter}
    if path.suffix not in writers:
        raise FileFormatError(f"{path}: expected a .npz, a .safetensors or a folder (no suffix), got {path.suffix!r}")
    _check_place(path, tensors, replace)
    with _errors_of(path), _whole(path) as temporary, closing(writers[path.suffix](temporary, tensors)) as writer:
        yield writer


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise FileFormatError(f"{path}: can't be written: {reason.strerror or reason}") from None


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary name beside a path, which becomes the path when the context is left without an error."""
    temporary = path.with_name(f".{path.name[:80]}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        _publish(temporary, path)
    except BaseException:
        with suppress(OSError):
            if temporary.is_dir():
                shutil.rmtree(temporary)
            else:
                temporary.unlink()
        raise


def write_tensors(path: Path, arrays: dict[str, Array]) -> None:
    """Whole arrays by name, as new_output writes them."""
    with new_output(path, {name: (array.shape, array.dtype.name) for name, array in arrays.items()}) as writer:
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


def write_tensor(path: Path, array: Array, *, replace: bool = True) -> None:
    """One array: a .npy by that suffix, raw elements by any other; whole or not at all, if it is not a device or a pipe.

    Args:
        replace: Whether a file of that name may be there already.

    Raises:
        FileFormatError: One line that names the path and says why it can't be written.
    """
    check_place(path, replace=replace)
    real = path.resolve()
    output = nullcontext(real) if real.exists() and not real.is_file() else _whole(real)
    with _errors_of(path), output as place, place.open("wb") as file:
        if path.suffix == ".npy":
            file.write(npy_header(array.shape, array.dtype.name))
        file.write(_bytes_of(array))


def _check_place(path: Path, tensors: Tensors, replace: bool) -> None:
    if not path.parent.is_dir():
        raise FileFormatError(f"{path}: can't be written: there is no folder {path.parent}")
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not (path.is_dir() or path.is_file()):  # to replace it would not write where it leads
        kind = "symbolic link" if path.is_symlink() else "pipe, socket or device"
        raise FileFormatError(f"{path}: is a {kind}, and is not replaced")
    if path.is_dir() != (path.suffix == ""):
        raise FileFormatError(f"{path}: is a {'folder' if path.is_dir() else 'file'}, and is not replaced")
    holds = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if path.is_dir() and not holds:
        return
    if not replace:
        raise FileFormatError(f"{path}: exists already; another name, or --force to replace it")
    foreign = [name for name in holds if name.removesuffix(".npy") not in ("dx", "dgamma", "dbeta", *tensors)]
    if foreign:
        raise FileFormatError(f"{path}: holds more than gradients ({foreign[0]}), and is not replaced")


def _publish(temporary: Path, path: Path) -> None:
    if not (temporary.is_dir() and path.exists()):
        temporary.replace(path)
        return
    # A folder that is not empty can't be renamed over: the old one steps aside first, and comes back if that fails.
    old = temporary.with_suffix(".old")
    path.rename(old)
    try:
        temporary.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old)


def _bytes_of(rows: Array) -> Any:
    """An array's elements in C order, as something that can be written; bfloat16 has no buffer of its own."""
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


def write_text(path: Path, text: str) -> None:
    """A file of UTF-8, whole or not at all; one of that name is replaced, and a device or a pipe is written to.

    Raises:
        FileFormatError: One line that names the path and says why it can't be written.
    """
    real = path.resolve()
    with _errors_of(path):
        if real.exists() and not real.is_file():
            real.write_text(text, "utf-8", errors="replace")
            return
        with _whole(real) as temporary:
            temporary.write_text(text, "utf-8", errors="replace")


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
        self._finish()
        self._archive.close()
