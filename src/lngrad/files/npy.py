"""The .npy format: its header, in bytes, both ways. Nothing here unpickles.

NumPy has no name for bfloat16 and saves ml_dtypes' as raw items of two bytes, `V2`. We write the same, and read every
plain `V2` as bfloat16: no other number of two bytes is saved under that name.
"""

from __future__ import annotations

import ast
import io
import math
import mmap
from typing import TypeAlias

import numpy as np

from lngrad.core.dtypes import numpy_dtype
from lngrad.errors import FileFormatError
from lngrad.files.boundary import parsing
from lngrad.typing import Array, Shape

Buffer: TypeAlias = "bytes | mmap.mmap"

_MAGIC = b"\x93NUMPY"
_MOST_HEADER = 10_000  # characters, as NumPy has it: parsing a longer one can exhaust the interpreter's stack


def array_in(buffer: Buffer, start: int, stop: int, where: str) -> Array:
    """The array that the bytes start … stop-1 of a buffer are the .npy file of, as a view of them.

    Args:
        buffer: Bytes or a mapping; the array is read-only if it is.
        start, stop: Where the file lies in it; it must fill them.
        where: What to call it in an error.

    Raises:
        FileFormatError: It is no .npy file, contains Python objects, or its data is not as long as its header says.
    """
    text, data = _header_text(buffer, start, stop, where)
    with parsing(where, "its .npy header is damaged"):
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
    if stop - data != nbytes:
        raise FileFormatError(
            f"{where}: expected {nbytes} bytes of data for {dtype} of shape {shape}, got {stop - data}; "
            f"is the file {'truncated' if stop - data < nbytes else 'damaged'}?"
        )
    with parsing(where, "its .npy header is damaged"):  # NumPy has limits of its own: 64 dimensions, 2^63 bytes
        return np.ndarray(shape, dtype, buffer, data, order="F" if fortran else "C")


def _header_text(buffer: Buffer, start: int, stop: int, where: str) -> tuple[str, int]:
    """The header, a Python literal, and where the data begins."""
    begin = bytes(buffer[start : min(stop, start + 12)])
    if begin[:6] != _MAGIC:
        raise FileFormatError(f"{where}: is no .npy file (it does not begin with {_MAGIC!r})")
    size_bytes = 2 if begin[6:7] == b"\x01" else 4  # of the field that says how long the header is
    text_at = start + 8 + size_bytes
    length = int.from_bytes(begin[8 : 8 + size_bytes], "little")
    if len(begin) < 12 or begin[6] not in (1, 2, 3) or length > _MOST_HEADER or text_at + length > stop:
        raise FileFormatError(f"{where}: its .npy header is cut off or damaged")
    return bytes(buffer[text_at : text_at + length]).decode("utf-8" if begin[6] == 3 else "latin1", "replace"), (
        text_at + length
    )


def header_of(shape: Shape, dtype: str) -> bytes:
    """All of a .npy file that comes before its data, for an array in C order."""
    stream = io.BytesIO()
    header = {"descr": numpy_dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()
