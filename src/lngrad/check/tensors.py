"""Tensors in files: .bin (raw), .npy, members of .npz and .safetensors; sizes are checked before anything is read."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.formats.literals import LiteralError, parse_json
from lngrad.dtypes import DTYPES
from lngrad.errors import FileFormatError

__all__ = ["inside", "read_tensor", "read_together", "write_tensor", "write_together"]

_SAFE = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
MOST_HEADER = 1 << 20


def inside(folder: Path, path: str) -> Path:
    """A path written in a file of a folder, which must stay in that folder.

    Raises:
        FileFormatError: It does not, or names no regular file.
    """
    if "\0" in path:
        raise FileFormatError(f"{folder}: {path!r}: expected a path")
    root = folder.resolve()
    full = (root / path).resolve()
    if not full.is_relative_to(root):
        raise FileFormatError(f"{folder}: {path!r}: expected a path inside the folder of the file that names it")
    if not full.is_file():
        raise FileFormatError(f"{folder}: {path!r}: no such file")
    return full


def read_tensor(path: Path, dtype: str, shape: tuple[int, ...] | None, max_bytes: int) -> Any:
    """One tensor of a .bin or .npy file, mapped. bfloat16 in .npy is NumPy's raw V2.

    Args:
        path: The file.
        dtype: What it must have; a raw file is taken at its word.
        shape: What it must have; None takes a .npy's own and makes a .bin flat.
        max_bytes: More are refused.
    """
    if path.suffix == ".npy":
        return _shaped(path, _npy(path, max_bytes), dtype, shape)
    size, item = path.stat().st_size, DTYPES[dtype].itemsize
    _allowed(path, size, max_bytes)
    count = math.prod(shape) if shape is not None else size // item
    if size != count * item:
        raise FileFormatError(f"{path}: expected {count * item} bytes for {shape} {dtype}, got {size}")
    if size == 0:
        return np.empty(shape or (0,), DTYPES[dtype])
    return np.memmap(path, DTYPES[dtype], "r").reshape(shape if shape is not None else (count,))


def _npy(path: Path, max_bytes: int) -> Any:
    _allowed(path, path.stat().st_size, max_bytes)
    try:
        if _header_elements(path) == 0:
            return np.load(path, allow_pickle=False)
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, TypeError, MemoryError, OverflowError) as error:
        raise FileFormatError(f"{path}: not a .npy file of numbers: {str(error)[:160]}") from None


def _header_elements(path: Path) -> int:
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("object arrays are pickles, which are never read")
    return math.prod(shape)


def _shaped(path: Path, array: Any, dtype: str, shape: tuple[int, ...] | None) -> Any:
    if array.dtype == np.dtype("V2") and dtype == "bfloat16":
        array = array.view(DTYPES["bfloat16"])
    if array.dtype != DTYPES[dtype]:
        raise FileFormatError(f"{path}: expected {dtype}, got {array.dtype}")
    if shape is not None and array.shape != shape:
        if array.size != math.prod(shape):
            raise FileFormatError(f"{path}: expected shape {shape}, got {array.shape}")
        array = array.reshape(shape)
    return array


def read_together(path: Path, max_bytes: int) -> dict[str, Any]:
    """All tensors of a .npz or .safetensors file, by name."""
    _allowed(path, path.stat().st_size, max_bytes)
    return _npz(path, max_bytes) if path.suffix == ".npz" else _safetensors(path)


def _npz(path: Path, max_bytes: int) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            _allowed(path, sum(member.file_size for member in archive.infolist()), max_bytes)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, NotImplementedError, MemoryError) as error:
        raise FileFormatError(f"{path}: not a .npz file of numbers: {str(error)[:160]}") from None
    return {name: a.view(DTYPES["bfloat16"]) if a.dtype == np.dtype("V2") else a for name, a in arrays.items()}


def _safetensors(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if not 2 <= length <= min(MOST_HEADER, size - 8):
            raise FileFormatError(f"{path}: expected a safetensors header inside {size} bytes, got {length}")
        try:
            header = parse_json(file.read(length).decode())
        except (LiteralError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path}: safetensors header: {error}") from None
    if not isinstance(header, dict):
        raise FileFormatError(f"{path}: safetensors header: expected a mapping")
    data = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.empty(0, np.uint8)
    return {name: _safe_tensor(path, name, entry, data) for name, entry in header.items() if name != "__metadata__"}


def _safe_tensor(path: Path, name: str, entry: Any, data: Any) -> Any:
    where = f"{path}: tensor {name[:80]!r}"
    try:
        dtype, shape, (start, end) = _SAFE[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(value) is int and value >= 0 for value in (*shape, start, end))
    except (KeyError, TypeError, ValueError):
        raise FileFormatError(f"{where}: expected dtype F16, BF16, F32 or F64, a shape and two offsets") from None
    if not whole or end > data.size or start > end or end - start != math.prod(shape) * DTYPES[dtype].itemsize:
        raise FileFormatError(f"{where}: shape {shape} and offsets {start}, {end} do not fit {data.size} bytes of data")
    return data[start:end].view(DTYPES[dtype]).reshape(shape) if end > start else np.empty(shape, DTYPES[dtype])


def write_tensor(path: Path, array: Any) -> None:
    """One tensor, as .bin or .npy by the suffix."""
    if path.suffix == ".npy":
        np.save(path, array.view("V2") if array.dtype == DTYPES["bfloat16"] else array)
    else:
        path.write_bytes(np.ascontiguousarray(array).tobytes())


def write_together(path: Path, arrays: dict[str, Any]) -> None:
    """Tensors by name, as .npz or .safetensors by the suffix."""
    if path.suffix == ".npz":
        bits = {name: a.view("V2") if a.dtype == DTYPES["bfloat16"] else a for name, a in arrays.items()}
        np.savez(path, **bits)
        return
    spelled = {name: code for code, name in _SAFE.items()}
    header, start = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": spelled[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, start := start + array.nbytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())


def _allowed(path: Path, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise FileFormatError(f"{path}: {size} bytes, more than --max-bytes {max_bytes} allows")
