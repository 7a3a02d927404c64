"""Named arrays from a file or folder, mapped into memory where the format allows it."""

from __future__ import annotations

import mmap
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lngrad.errors import FileFormatError
from lngrad.files import npy, safetensors

__all__ = ["Tensors", "read_tensors"]

Array = np.ndarray[Any, Any]


class Tensors(NamedTuple):
    """What was asked for and found, read-only, by name; and the names of what else there is."""

    arrays: dict[str, Array]
    others: list[str]


def read_tensors(path: Path, names: tuple[str, ...]) -> Tensors:
    """The named arrays of a .npz, a .safetensors or a folder of .npy; those that are absent are left out.

    Nothing is read yet of what can be mapped: .npy, .safetensors, and the members of a .npz that are stored without
    compression, but for their checksums. Nothing is ever unpickled.

    Args:
        path: The file or folder.
        names: Without ".npy".

    Raises:
        FileFormatError: One line that names the file and says what is wrong with it.
    """
    try:
        if path.is_dir():
            return _read_folder(path, names)
        if path.suffix == ".npz":
            return _read_npz(path, names)
        if path.suffix == ".safetensors":
            return Tensors(*safetensors.arrays_in(_map(path), names, str(path)))
    except OSError as reason:
        raise FileFormatError(f"{reason.filename or path}: can't be read: {reason.strerror or reason}") from None
    if not path.exists():
        raise FileFormatError(f"{path}: does not exist")
    raise FileFormatError(f"{path}: expected a .npz, a .safetensors or a folder of .npy files")


def _map(path: Path) -> Any:
    """A file's bytes, read when they are touched. An empty file can't be mapped."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""


def _read_folder(path: Path, names: tuple[str, ...]) -> Tensors:
    arrays, others = {}, []
    for file in sorted(path.glob("*.npy")):
        if file.stem in names:
            mapped = _map(file)
            arrays[file.stem] = npy.array_in(mapped, 0, len(mapped), str(file))
        else:
            others.append(file.stem)
    return Tensors(arrays, others)


# What zipfile raises about an archive that is not as it should be, or is in a way that it does not know.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


def _read_npz(path: Path, names: tuple[str, ...]) -> Tensors:
    arrays: dict[str, Array] = {}
    others = []
    try:
        with zipfile.ZipFile(path) as archive:
            mapped = _map(path)
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in names:
                    arrays[name] = _read_member(archive, mapped, member, f"{path}: {name}")
                else:
                    others.append(name)
    except FileFormatError:
        raise
    except _ZIP_ERRORS as reason:
        raise FileFormatError(f"{path}: is no .npz file, or is truncated or damaged: {reason}") from None
    return Tensors(arrays, others)


def _read_member(archive: zipfile.ZipFile, mapped: Any, member: zipfile.ZipInfo, where: str) -> Array:
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:  # 1: encrypted; zipfile says so
        data = archive.read(member)
        return npy.array_in(data, 0, len(data), where)
    start = _data_offset(mapped, member)
    stop = start + member.file_size
    if stop > len(mapped):
        raise FileFormatError(f"{where}: expected data up to byte {stop}, got a file of {len(mapped)}")
    array = npy.array_in(mapped, start, stop, where)
    if zlib.crc32(memoryview(mapped)[start:stop]) != member.CRC:
        raise FileFormatError(f"{where}: its data does not have the checksum that the .npz says; it is damaged")
    return array


def _data_offset(mapped: Any, member: zipfile.ZipInfo) -> int:
    """Where a member's data begins: behind its local header, whose extra field may differ from the directory's."""
    header = mapped[member.header_offset : member.header_offset + 30]
    if header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no member begins at byte {member.header_offset}")
    name_bytes, extra_bytes = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return member.header_offset + 30 + name_bytes + extra_bytes
