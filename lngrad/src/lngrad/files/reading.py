"""Arrays from files: named ones from a file or folder, and single ones; mapped into memory where the format allows it.

The only reader of arrays: `lngrad run`, case folders, dumps and goldens all come through here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lngrad.errors import MISSING, FileFormatError
from lngrad.files.boundary import as_format_error, check_regular, map_file, one_line
from lngrad.files.formats import Buffer, npy_array, npz_arrays, safetensors_arrays
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array, Shape


class Tensors(NamedTuple):
    """The arrays that were wanted and found, read-only, by name; and the names of all others."""

    arrays: dict[str, Array]
    others: list[str]


def read_tensors(path: Path, names: tuple[str, ...] | None = None, max_bytes: int | None = None) -> Tensors:
    """The named arrays of a .npz, a .safetensors or a folder of .npy, or all of them; absent ones are left out.

    What can be mapped is not read yet: .npy, .safetensors, and the members of a .npz that are stored without
    compression, except for their checksums. Nothing is ever unpickled.

    Args:
        path: The file or folder.
        names: Without ".npy"; None: all.
        max_bytes: A larger file, or larger members of a .npz, are refused. None: what is mapped has no limit, and compressed
            members that of npz_arrays.

    Raises:
        FileFormatError: One line that names the file and says what is wrong with it.
    """
    with as_format_error(path, "can't be read"):
        if path.is_dir():
            return _read_folder(path, names, max_bytes)
        if path.suffix == ".npz":
            _check_size(path, max_bytes)
            return Tensors(*npz_arrays(path, names, max_bytes))
        if path.suffix == ".safetensors":
            return Tensors(*safetensors_arrays(_mapped(path, max_bytes), names, str(path)))
        if not path.exists():
            raise FileFormatError(f"{path}: {MISSING}")
    raise FileFormatError(f"{path}: expected a .npz, a .safetensors or a folder of .npy files")


def read_tensor(path: Path, dtype: str, shape: Shape | None, max_bytes: int | None = None) -> Array:
    """One array of a .npy file, or of a file of raw elements; mapped.

    Args:
        path: A .npy says its own dtype and shape; anything else is raw.
        dtype: What it must have; a raw file is taken at its word.
        shape: What it must have, or as many elements as that; None takes a .npy's own, and makes a raw file flat.
        max_bytes: A larger file is refused. None: no limit.

    Raises:
        FileFormatError: One line that names the file and says what is wrong with it.
    """
    with as_format_error(path, "can't be read"):
        mapped = _mapped(path, max_bytes)
        if path.suffix == ".npy":
            array = npy_array(mapped, str(path))
            if array.dtype != numpy_dtype(dtype):
                raise FileFormatError(f"{path}: expected {dtype}, got {array.dtype}")
            if shape is not None and array.size != math.prod(shape):
                raise FileFormatError(f"{path}: expected shape {shape}, got {array.shape}")
            return array if shape is None else array.reshape(shape)
        wanted = numpy_dtype(dtype)
        flat = (len(mapped) // wanted.itemsize,) if shape is None else shape
        if len(mapped) != math.prod(flat) * wanted.itemsize:
            expected = math.prod(flat) * wanted.itemsize
            raise FileFormatError(f"{path}: expected {expected} bytes for {dtype} of shape {flat}, got {len(mapped)}")
        return np.ndarray(flat, wanted, mapped)


def _read_folder(path: Path, names: tuple[str, ...] | None, max_bytes: int | None) -> Tensors:
    arrays, others = {}, []
    for file in sorted(path.glob("*.npy")):
        if names is None or file.stem in names:
            arrays[file.stem] = npy_array(_mapped(file, max_bytes), str(file))
        else:
            others.append(one_line(file.stem))
    return Tensors(arrays, others)


def _mapped(path: Path, max_bytes: int | None) -> Buffer:
    _check_size(path, max_bytes)
    return map_file(path)


def _check_size(path: Path, max_bytes: int | None) -> None:
    check_regular(path)
    if max_bytes is not None and path.stat().st_size > max_bytes:
        raise FileFormatError(f"{path}: {path.stat().st_size} bytes, more than --max-bytes {max_bytes} allows")
