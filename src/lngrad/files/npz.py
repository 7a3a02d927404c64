"""The .npz format: a zip archive of .npy files. Members that are stored without compression are mapped."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from lngrad.errors import FileFormatError
from lngrad.files import npy
from lngrad.files.boundary import parsing
from lngrad.files.places import map_file
from lngrad.typing import Array

_ENCRYPTED = 1  # the bit of a member's flags
_LOCAL_HEADER = 30  # bytes, before the name


def arrays_in(path: Path, names: tuple[str, ...] | None, max_bytes: int | None) -> tuple[dict[str, Array], list[str]]:
    """The named arrays of an archive, or all, and the names of all others.

    Args:
        path: The file.
        names: Without ".npy"; None: all.
        max_bytes: Of all members together, uncompressed; None: no limit.

    Raises:
        FileFormatError: The archive or a member is damaged, encrypted or larger than allowed.
    """
    arrays: dict[str, Array] = {}
    others = []
    with parsing(path, "is no .npz file, or is truncated or damaged"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if max_bytes is not None and size > max_bytes:
            raise FileFormatError(f"{path}: {size} bytes, more than --max-bytes {max_bytes} allows")
        mapped = map_file(path)
        for member in members:
            name = member.filename.removesuffix(".npy")
            if names is None or name in names:
                arrays[name] = _read_member(archive, mapped, member, f"{path}: {name}")
            else:
                others.append(name)
    return arrays, others


def _read_member(archive: zipfile.ZipFile, mapped: npy.Buffer, member: zipfile.ZipInfo, where: str) -> Array:
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:  # zipfile says that it is encrypted
        with parsing(where, "can't be unpacked; the .npz is damaged or encrypted"):
            data = archive.read(member)
        return npy.array_in(data, 0, len(data), where)
    start = _data_offset(mapped, member, where)
    stop = start + member.file_size
    if stop > len(mapped):
        raise FileFormatError(f"{where}: expected data up to byte {stop}, got a file of {len(mapped)}")
    array = npy.array_in(mapped, start, stop, where)
    if zlib.crc32(memoryview(mapped)[start:stop]) != member.CRC:
        raise FileFormatError(f"{where}: its data does not have the checksum that the .npz says; it is damaged")
    return array


def _data_offset(mapped: npy.Buffer, member: zipfile.ZipInfo, where: str) -> int:
    """Where a member's data begins: behind its local header, whose extra field may differ from the directory's."""
    header = mapped[member.header_offset : member.header_offset + _LOCAL_HEADER]
    if header[:4] != b"PK\x03\x04":
        raise FileFormatError(f"{where}: no member begins at byte {member.header_offset}; the .npz is damaged")
    name_bytes, extra_bytes = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return member.header_offset + _LOCAL_HEADER + name_bytes + extra_bytes
