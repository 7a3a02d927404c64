"""The three formats of arrays on disk, in bytes, both ways: .npy, .npz (a zip archive of those) and .safetensors.

Nothing here unpickles. NumPy has no name for bfloat16 and saves ml_dtypes' as raw items of two bytes, `V2`. We write the
same, and read every plain `V2` as bfloat16: no other number of two bytes is saved under that name. A .safetensors file
begins with eight bytes that say how long its header is; the header, JSON, says for each name a dtype, a shape and where
its bytes lie in the data behind it. Source: the format's own description in the safetensors repository.
"""

from __future__ import annotations

import ast
import io
import json
import math
import mmap
import zipfile
import zlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lngrad.errors import FileFormatError
from lngrad.files.boundary import as_format_error, map_file, one_line, parse_json
from lngrad.support.dtypes import DTYPES, bytes_of, numpy_dtype
from lngrad.typing import Array, Shape

Buffer: TypeAlias = "bytes | mmap.mmap | memoryview"
_NPY_MAGIC = b"\x93NUMPY"
_MAX_NPY_HEADER = 10_000  # characters, as NumPy has it: parsing a longer one can exhaust the interpreter's stack
_ZIP_ENCRYPTED = 1  # the bit of a member's flags
_ZIP_LOCAL_HEADER = 30  # bytes, before the name
MAX_UNPACKED_BYTES = 1 << 30
_MAX_SAFETENSORS_HEADER = 100_000_000  # bytes: the format's own limit
_SAFETENSORS_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_SAFETENSORS_CODES = {name: code for code, name in _SAFETENSORS_DTYPES.items()}


def npy_array(buffer: Buffer, where: str) -> Array:
    """The array of a .npy file, as a view of its bytes, and read-only if they are.

    Args:
        buffer: The whole file, and nothing behind it.
        where: What to call it in an error.

    Raises:
        FileFormatError: It is no .npy file, contains Python objects, or its data is not as long as its header says.
    """
    text, data = _npy_header_text(buffer, where)
    with as_format_error(where, "its .npy header is damaged"):
        header = ast.literal_eval(text)
        shape, fortran = tuple(map(int, header["shape"])), bool(header["fortran_order"])
        dtype = np.lib.format.descr_to_dtype(header["descr"])
        if len(header) != 3 or any(size < 0 for size in shape):
            raise ValueError("expected descr, fortran_order and shape, whose sizes are not negative")
    if dtype.hasobject:
        raise FileFormatError(f"{where}: contains Python objects; expected numbers, and unpickling could run anything")
    if dtype == np.dtype("V2"):
        dtype = numpy_dtype("bfloat16")
    nbytes = math.prod(shape) * dtype.itemsize
    got = len(buffer) - data
    if got != nbytes:
        raise FileFormatError(
            f"{where}: expected {nbytes} bytes of data for {dtype} of shape {shape}, got {got}; "
            f"is the file {'truncated' if got < nbytes else 'damaged'}?"
        )
    with as_format_error(where, "its .npy header is damaged"):  # NumPy has limits of its own: 64 dimensions, 2^63 bytes
        return np.ndarray(shape, dtype, buffer, data, order="F" if fortran else "C")


def _npy_header_text(buffer: Buffer, where: str) -> tuple[str, int]:
    """The header, a Python literal, and where the data begins."""
    begin = bytes(buffer[:12])
    if begin[:6] != _NPY_MAGIC:
        raise FileFormatError(f"{where}: is no .npy file (it does not begin with {_NPY_MAGIC!r})")
    size_bytes = 2 if begin[6:7] == b"\x01" else 4  # of the field that says how long the header is
    text_at = 8 + size_bytes
    length = int.from_bytes(begin[8 : 8 + size_bytes], "little")
    if len(begin) < 12 or begin[6] not in (1, 2, 3) or length > _MAX_NPY_HEADER or text_at + length > len(buffer):
        raise FileFormatError(f"{where}: its .npy header is cut off or damaged")
    data = text_at + length
    return bytes(buffer[text_at:data]).decode("utf-8" if begin[6] == 3 else "latin1", "replace"), data


def npy_header(shape: Shape, dtype: str) -> bytes:
    """All of a .npy file that comes before its data, for an array in C order."""
    stream = io.BytesIO()
    header = {
        "descr": (numpy_dtype(dtype) if dtype in DTYPES else np.dtype(dtype)).str,
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def npz_arrays(path: Path, names: tuple[str, ...] | None, max_bytes: int | None) -> tuple[dict[str, Array], list[str]]:
    """The named arrays of an archive, or all, and the names of all others.

    Args:
        path: The file.
        names: Without ".npy"; None: all.
        max_bytes: Of all members together, uncompressed; None: MAX_UNPACKED_BYTES of those that are wanted and
            compressed, which alone are read into memory.

    Raises:
        FileFormatError: The archive or a member is damaged, encrypted or larger than allowed.
    """
    arrays: dict[str, Array] = {}
    with as_format_error(path, "is no .npz file, or is truncated or damaged"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if max_bytes is not None and size > max_bytes:
            raise FileFormatError(f"{path}: {size} bytes, more than --max-bytes {max_bytes} allows")
        wanted = [member for member in members if names is None or _name_of(member) in names]
        unpacked = sum(member.file_size for member in wanted if member.compress_type != zipfile.ZIP_STORED)
        if max_bytes is None and unpacked > MAX_UNPACKED_BYTES:
            raise FileFormatError(
                f"{path}: {unpacked} bytes to unpack into memory, more than {MAX_UNPACKED_BYTES}; --max-bytes allows more"
            )
        mapped = map_file(path)
        for member in wanted:
            name = _name_of(member)
            arrays[name] = _read_member(archive, mapped, member, f"{path}: {one_line(name)}")
        others = [one_line(_name_of(member)) for member in members if _name_of(member) not in arrays]
    return arrays, others


def _name_of(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _read_member(archive: zipfile.ZipFile, mapped: Buffer, member: zipfile.ZipInfo, where: str) -> Array:
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ZIP_ENCRYPTED:  # of which zipfile says so
        with as_format_error(where, "can't be unpacked; the .npz is damaged or encrypted"):
            data = archive.read(member)
        return npy_array(data, where)
    start = _data_offset(mapped, member, where)
    stop = start + member.file_size
    if stop > len(mapped):
        raise FileFormatError(f"{where}: expected data up to byte {stop}, got a file of {len(mapped)}")
    content = memoryview(mapped)[start:stop]
    array = npy_array(content, where)
    if zlib.crc32(content) != member.CRC:
        raise FileFormatError(f"{where}: its data does not have the checksum that the .npz says; it is damaged")
    return array


def _data_offset(mapped: Buffer, member: zipfile.ZipInfo, where: str) -> int:
    """The offset of a member's data: behind its local header, whose extra field may differ from the directory's."""
    header = mapped[member.header_offset : member.header_offset + _ZIP_LOCAL_HEADER]
    if header[:4] != b"PK\x03\x04":
        raise FileFormatError(f"{where}: no member begins at byte {member.header_offset}; the .npz is damaged")
    name_bytes, extra_bytes = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return member.header_offset + _ZIP_LOCAL_HEADER + name_bytes + extra_bytes


def safetensors_arrays(buffer: Buffer, names: tuple[str, ...] | None, where: str) -> tuple[dict[str, Array], list[str]]:
    """The named arrays of a .safetensors file that it has, or all, as views of it, and the names of all others.

    Args:
        buffer: The whole file, bytes or a mapping.
        names: Nothing else is looked at, so the others may have any dtype. None: all.
        where: What to call the file in an error.

    Raises:
        FileFormatError: The header is damaged, or an array's dtype, shape and place do not agree with it or the file.
    """
    length = int.from_bytes(buffer[:8], "little")
    if len(buffer) < 8 or length > min(_MAX_SAFETENSORS_HEADER, len(buffer) - 8):
        raise FileFormatError(f"{where}: is no .safetensors file, or is truncated in its header")
    with as_format_error(where, "its .safetensors header is damaged"):
        header = parse_json(bytes(buffer[8 : 8 + length]).decode(), f"{where}: its .safetensors header is damaged")
        if not isinstance(header, dict):
            raise ValueError("expected a mapping")
    header.pop("__metadata__", None)
    if names is None:
        names = tuple(header)
    arrays = {
        name: _safetensors_array(buffer, 8 + length, header[name], f"{where}: {one_line(name)}")
        for name in names
        if name in header
    }
    return arrays, [one_line(name) for name in header if name not in arrays]


def _safetensors_array(buffer: Buffer, data: int, entry: Any, where: str) -> Array:
    with as_format_error(where, "its entry in the .safetensors header is damaged"):
        code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
            raise ValueError("expected sizes and offsets that are whole numbers from 0")
        if code not in _SAFETENSORS_DTYPES:
            raise FileFormatError(f"{where}: expected one of {', '.join(_SAFETENSORS_DTYPES)}, got {code!r:.40}")
    dtype = numpy_dtype(_SAFETENSORS_DTYPES[code])
    nbytes = math.prod(shape) * dtype.itemsize
    if end - begin != nbytes:
        raise FileFormatError(f"{where}: expected {nbytes} bytes for {code} of shape {shape}, got {end - begin}")
    if data + end > len(buffer):
        raise FileFormatError(
            f"{where}: expected data up to byte {data + end}, got a file of {len(buffer)}; is it truncated?"
        )
    with as_format_error(where, "its entry in the .safetensors header is damaged"):
        return np.ndarray(shape, dtype, buffer, data + begin)


def safetensors_header(tensors: dict[str, tuple[Shape, str]]) -> tuple[bytes, dict[str, int]]:
    """All of a .safetensors file that comes before its data, and where in the file each array begins.

    Args:
        tensors: Shape and dtype by name. Wider dtypes are put first, so that every array begins at a multiple of its
            item size, as the format's own writer does.
    """
    header, places, at = {}, {}, 0
    for name in sorted(tensors, key=lambda name: (-bytes_of(tensors[name][1]), name)):
        shape, dtype = tensors[name]
        nbytes = math.prod(shape) * bytes_of(dtype)
        header[name] = {"dtype": _SAFETENSORS_CODES[dtype], "shape": shape, "data_offsets": (at, at + nbytes)}
        places[name] = at
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, {name: 8 + len(text) + place for name, place in places.items()}
