"""The .safetensors format: its header, in bytes, both ways.

Eight bytes say how long the header is; the header, JSON, says for each name a dtype, a shape and where its bytes lie in
the data behind it. Source: the format's own description in the safetensors repository.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from lngrad.core.dtypes import bytes_of, numpy_dtype
from lngrad.errors import FileFormatError
from lngrad.files.boundary import parsing
from lngrad.files.npy import Buffer
from lngrad.files.text import parse_json
from lngrad.typing import Array, Shape

_MOST_HEADER = 100_000_000  # bytes: the format's own limit
_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_CODES = {name: code for code, name in _NAMES.items()}


def arrays_in(buffer: Buffer, names: tuple[str, ...] | None, where: str) -> tuple[dict[str, Array], list[str]]:
    """The named arrays of a .safetensors file that it has, or all, as views of it, and the names of all others.

    Args:
        buffer: The whole file, bytes or a mapping.
        names: Nothing else is looked at, so the others may have any dtype. None: all.
        where: What to call the file in an error.

    Raises:
        FileFormatError: The header is damaged, or an array's dtype, shape and place do not agree with it or the file.
    """
    length = int.from_bytes(buffer[:8], "little")
    if len(buffer) < 8 or length > min(_MOST_HEADER, len(buffer) - 8):
        raise FileFormatError(f"{where}: is no .safetensors file, or is truncated in its header")
    with parsing(where, "its .safetensors header is damaged"):
        header = parse_json(bytes(buffer[8 : 8 + length]).decode(), f"{where}: its .safetensors header is damaged")
        if not isinstance(header, dict):
            raise ValueError("expected a mapping")
    header.pop("__metadata__", None)
    if names is None:
        names = tuple(header)
    arrays = {name: _array(buffer, 8 + length, header[name], f"{where}: {name}") for name in names if name in header}
    return arrays, [name for name in header if name not in arrays]


def _array(buffer: Buffer, data: int, entry: Any, where: str) -> Array:
    with parsing(where, "its entry in the .safetensors header is damaged"):
        code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
            raise ValueError("expected sizes and offsets that are whole numbers from 0")
        if code not in _NAMES:
            raise FileFormatError(f"{where}: expected one of {', '.join(_NAMES)}, got {code!r:.40}")
    dtype = numpy_dtype(_NAMES[code])
    nbytes = math.prod(shape) * dtype.itemsize
    if end - begin != nbytes:
        raise FileFormatError(f"{where}: expected {nbytes} bytes for {code} of shape {shape}, got {end - begin}")
    if data + end > len(buffer):
        raise FileFormatError(
            f"{where}: expected data up to byte {data + end}, got a file of {len(buffer)}; is it truncated?"
        )
    with parsing(where, "its entry in the .safetensors header is damaged"):
        return np.ndarray(shape, dtype, buffer, data + begin)


def header_of(tensors: dict[str, tuple[Shape, str]]) -> tuple[bytes, dict[str, int]]:
    """All of a .safetensors file that comes before its data, and where in the file each array begins.

    Args:
        tensors: Shape and dtype by name. Wider dtypes are put first, so that every array begins at a multiple of its
            item size, as the format's own writer does.
    """
    header, places, at = {}, {}, 0
    for name in sorted(tensors, key=lambda name: (-bytes_of(tensors[name][1]), name)):
        shape, dtype = tensors[name]
        nbytes = math.prod(shape) * bytes_of(dtype)
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": (at, at + nbytes)}
        places[name] = at
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, {name: 8 + len(text) + place for name, place in places.items()}
