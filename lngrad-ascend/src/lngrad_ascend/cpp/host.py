"""What tiling/tiling_api.h and platform_ascendc.h ask, by the name of the C++ function: ``answer``.

Sizes of temporary buffers are those of asc-devkit's tiling functions for A2; `Operation.temporary` has what is regular.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from lngrad_ascend import soc as socs
from lngrad_ascend.device.operations import OPERATIONS
from lngrad_ascend.faults import TilingError
from lngrad_ascend.tiling import host_functions
from lngrad_ascend.tiling.host_functions import align_up
from lngrad_ascend.tiling.structs import DeepNormTiling, SoftMaxTiling, TilingStruct

REPEAT, BLOCK_BYTES = 256, 32
_FACTORS = {operation.name: operation.temporary for operation in OPERATIONS if operation.operands.mathematical}
_PREFIX, _SIZES, _FACTOR = "Get", "MaxMinTmpSize", "TmpBufferFactorSize"
Sizes = tuple[int, int]  # the largest and the smallest


def _power(n: int, size: int, reuse: int, whole: int, tensors: int) -> Sizes:
    if whole:
        return (6 if tensors else 7) * max(n * size, REPEAT), (6 if tensors else 7) * REPEAT
    if size == 4:
        factor = 4 if tensors else 5
        return factor * max(n * size, REPEAT) + REPEAT, factor * REPEAT + REPEAT
    return 14 * max(n * size, REPEAT // 2) + REPEAT, 7 * REPEAT + REPEAT


def _exp(n: int, size: int, reuse: int) -> Sizes:
    buffers = 4 if size == 2 else 2 if reuse else 3
    return buffers * max(4 * n, REPEAT), buffers * REPEAT


def _acosh(n: int, size: int, reuse: int) -> Sizes:
    factor = _FACTORS["Acosh"][size == 4]
    return max(factor * n, REPEAT) * size, factor * REPEAT


# Those that are not a factor times the bytes: (elements, bytes of a type, isReuseSource, …).
_IRREGULAR: dict[str, Callable[..., Sizes]] = {
    "Power": _power,
    "Exp": _exp,
    "Acosh": _acosh,
    "Axpy": lambda n, size, reuse: (4 * max(n * size, REPEAT), 4 * REPEAT) if size == 2 else (0, 0),
    "Clamp": lambda n, size, reuse: (max(n, REPEAT // size), REPEAT // size),
    "DropOut": lambda n, size, reuse: (max(8 * n, 2 * REPEAT), 2 * REPEAT),
    "AscendQuant": lambda n, size, reuse: (align_up(max(2 * n, 2 * REPEAT), BLOCK_BYTES), 2 * REPEAT),
    "Fma": lambda n, size, reuse: (0, 0),
    "Gelu": lambda n, size, reuse: (max(12 * n, 3 * REPEAT), 3 * REPEAT),
    "Log2": lambda n, size, reuse: (max(4 * n, REPEAT), REPEAT) if size == 2 else (0, 0),
    "ReGlu": lambda n, size, reuse: (6 * max(n * size, REPEAT), 6 * REPEAT) if size == 2 else (REPEAT, REPEAT),
}  # fmt: skip


VECTOR = 64  # floats of a repeat


def _softmax_size(name: str, shape: Sequence[int], numbers: Sequence[int]) -> Sizes:
    """The buffers of SoftMax, LogSoftMax and SoftMaxGrad (isFront) on A2."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    size, front = numbers[0], bool(numbers[1])
    blocks = BLOCK_BYTES // size
    row = blocks + columns + VECTOR
    if name == "SoftMaxGrad":
        row = 2 * blocks + 3 * columns + VECTOR if size == 2 else row if front else row + blocks
    return 4 * rows * row, 4 * row


def _flash_row(rows: int, columns: int, half: bool, per_block: int, basic: bool) -> tuple[int, bool]:
    """Floats that a row of SoftmaxFlashV2 needs, and whether whole blocks of 8 rows of 64 columns are computed."""
    if basic and columns % VECTOR == 0 and rows % 8 == 0:
        return per_block + columns * half + (2 if columns == 16 * VECTOR else 1) * VECTOR, True
    return (2 * per_block + columns if half else per_block) + VECTOR, False


def _flash_size(shape: Sequence[int], numbers: Sequence[int]) -> Sizes:
    size, size2, basic = numbers
    rows, columns = math.prod(shape[:-1]), shape[-1]
    row, blocks = _flash_row(8 if basic else rows, columns, size == 2, BLOCK_BYTES // size2, bool(basic))
    return 4 * rows * row, 4 * row * (8 if blocks else 1)


def _softmax_tiling(shape: Sequence[int], size: int, work: int, row: int, basic: bool = True) -> SoftMaxTiling:
    """Rows in pieces that fit the buffer; basic: whole blocks of 8 rows of 64 columns stay together."""
    rows, columns, blocks = math.prod(shape[:-1]), shape[-1], BLOCK_BYTES // size
    base = min(work // 4 // row, rows)
    if 8 < base < rows:
        base = base // 8 * 8
    if basic and base > 8 and rows % 8 == 0 and columns % VECTOR == 0:
        base = base // 8 * 8
        while rows % base:
            base -= 8
        while base * columns >= VECTOR * REPEAT:
            base //= 2
    tail = rows % base if base else 0
    return SoftMaxTiling(
        rows, columns, rows * columns, rows, blocks, rows * blocks, base, columns, base * columns, base, blocks,
        base * blocks, rows // base if base else 0, tail, tail * columns, tail * blocks,
    )  # fmt: skip


def _sum_size(n: int, size: int) -> Sizes:
    whole = align_up(-(-n * size // REPEAT), BLOCK_BYTES // size) * size
    return whole, whole


def _cumsum_size(rows: int, columns: int, size: int, last: int) -> Sizes:
    if not last:
        return (rows * columns * 4, rows * columns * 4) if size == 2 else (0, 0)
    # Two transposed copies of 16 rows at a time, and one more for half.
    least = 16 * columns * (2 * size + 2 * (size == 2))
    return -(-rows // 16) * least, least


def _words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _sizes(name: str, shape: Sequence[int], numbers: Sequence[int]) -> bytes:
    count, size = math.prod(shape) if shape else 0, numbers[0]
    if count <= 0:
        raise TilingError(f"Get{name}{_SIZES}: srcShape: expected elements, got {list(shape)}")
    if name in _IRREGULAR:
        return _words(*_IRREGULAR[name](count, *numbers))
    factor = _FACTORS[name][size == 4]
    return _words(factor * max(count * size, REPEAT), factor * REPEAT)


_VERSIONS = {1001: 0, 2002: 2, 3002: 3, 3510: 5}  # platform_ascendc::SocVersion; the others are 910B


def _platform() -> bytes:
    soc = socs.get(None)
    cubes = soc.vector_cores // 2 if soc.arch in (2201, 3510) else soc.vector_cores
    return struct.pack("<5q", soc.vector_cores, cubes, soc.ub_bytes, soc.arch, _VERSIONS.get(soc.arch, 1))


def _select_size(rows: int, columns: int, size: int, mask_size: int, reuse: int, mask_columns: int) -> Sizes:
    def needed(count: int) -> int:
        extra = mask_columns != columns and not reuse and mask_columns > 1
        whole = align_up(rows * columns * mask_size, BLOCK_BYTES)
        return max(1024, 2 * align_up(count, BLOCK_BYTES) + 512) + extra * whole

    return needed(rows * columns), needed(min(rows * columns, 4096))


def _dequant_size(*shape: int) -> Sizes:
    *rows, columns, size = shape
    if size != 4:
        raise TilingError(f"GetAscendDequantMaxMinTmpSize: typeSize: expected 4, got {size}")
    fixed = VECTOR + columns + BLOCK_BYTES // 4  # a repeat behind the end, and the scales with a block
    return 4 * (fixed + math.prod(rows) * columns), 4 * (fixed + columns)


def _antiquant_size(*shape: int) -> Sizes:
    rows, *_, scales, half = shape
    if half:
        return 0, 0
    per_channel = 4 * (2 * scales + VECTOR * rows)
    return (per_channel, per_channel) if scales > 1 else (4 * math.prod(shape[:-2]), 1024)


def _welford_size(rows: int, columns: int, size: int, size2: int, reuse: int, inplace: int) -> Sizes:
    # Of asc-devkit's test of WelfordUpdate: for 64 elements 3 repeats of half, 1 of float that may be overwritten, else 2.
    least = REPEAT * (3 if size == 2 else 1 if reuse else 2)
    return -(-rows * columns // VECTOR) * least, least


def _welford_finalize_size(*shape: int) -> Sizes:
    columns = shape[-3]  # before the bytes of the type and isReuseSource
    return 4 * 2 * (VECTOR + max(columns, VECTOR)), 4 * 4 * VECTOR


def _normalize_size(rows: int, columns: int, gamma_size: int, size: int, *flags: int) -> Sizes:
    row = align_up(4 * align_up(columns, BLOCK_BYTES // size), BLOCK_BYTES)
    return 2 * row + 2 * align_up(rows, 8) * row, max(
        align_up(4 * rows, BLOCK_BYTES), (2 if gamma_size == 4 else 4) * row
    )


def _deep_norm_size(batch: int, sequence: int, columns: int, size: int, reuse: int, basic: int) -> Sizes:
    buffers, statistics = 2 if reuse and size == 4 else 3, 2 * align_up(4 * batch * sequence, BLOCK_BYTES)
    if (
        not 0 < columns <= 2040
        or columns * size % BLOCK_BYTES
        or (basic and (columns % VECTOR or batch * sequence % 8))
    ):
        raise TilingError(
            f"GetDeepNormMaxMinTmpSize: expected H of whole blocks up to 2040, for isBasicBlock of 64 and B * S of 8, got H "
            f"{columns}, B * S {batch * sequence}"
        )
    return tuple(buffers * align_up(4 * n, BLOCK_BYTES) + statistics for n in (batch * sequence * columns, columns))  # type: ignore[return-value]


def _deep_norm_tiling(shape: Sequence[int], real: int, work: int, size: int, reuse: int, basic: int) -> DeepNormTiling:
    batch, sequence, columns = shape
    least = _deep_norm_size(batch, sequence, columns, size, reuse, basic)[1]
    if work < least or not 0 < real <= columns:
        raise TilingError(
            f"GetDeepNormTilingInfo: expected at least {least} bytes and originH up to {columns}, got {work} and {real}"
        )
    rows, count, buffers = batch * sequence, batch * sequence * columns, 2 if reuse and size == 4 else 3
    statistics = align_up(rows, BLOCK_BYTES // 4)
    first = 0 if size == 4 else 2 * statistics
    piece = min((work // 4 - first) // buffers // columns * columns, count)
    if basic and piece >= 8 * columns:
        piece = piece // (8 * columns) * (8 * columns)
    tail = count % piece
    return DeepNormTiling(
        batch, sequence, columns, real, count, rows, buffers, 0, statistics, statistics, statistics, work // 4, piece, first,
        first + piece, first + 2 * piece, count // piece, piece, tail, count - tail, piece // columns, tail // columns,
        rows - tail // columns, piece, piece // columns, 1 / real,
    )  # fmt: skip


_PLAIN: dict[str, Callable[..., Sizes]] = {
    "GetAscendDequantMaxMinTmpSize": _dequant_size,
    "GetAscendAntiQuantMaxMinTmpSize": _antiquant_size,
    "GetSelectMaxMinTmpSize": _select_size,
    "GetWelfordUpdateMaxMinTmpSize": _welford_size,
    "GetWelfordFinalizeMaxMinTmpSize": _welford_finalize_size,
    "GetNormalizeMaxMinTmpSize": _normalize_size,
    "GetDeepNormMaxMinTmpSize": _deep_norm_size,
    "GetSumMaxMinTmpSize": _sum_size,
    "GetCumSumMaxMinTmpSize": _cumsum_size,
}


def answer(name: str, shape: Sequence[int], numbers: Sequence[int]) -> bytes:
    """Return the bytes that a C++ function writes through its references.

    Raises:
        TilingError: A broken rule; or there is no such function.
    """
    bare = name.removeprefix(_PREFIX).removesuffix(_SIZES).removesuffix(_FACTOR)
    if name == "PlatformAscendC":
        return _platform()
    if name.endswith(_FACTOR):
        return _words(_FACTORS[bare][numbers[0] == 4] if bare in _FACTORS else 0, 0)
    if bare in _FACTORS or bare in _IRREGULAR:
        return _sizes(bare, shape, numbers)
    if name == "GetSoftMaxFlashV2MaxMinTmpSize":
        return _words(*_flash_size(shape, numbers))
    if name == "SoftMaxFlashV2TilingFunc":
        size, size2, work, basic = numbers
        row, blocks = _flash_row(math.prod(shape[:-1]), shape[-1], size == 2, BLOCK_BYTES // size2, bool(basic))
        return _softmax_tiling(shape, size2, work, row, blocks).to_bytes()
    if name.endswith("TmpSize") and bare.startswith(("SoftMax", "LogSoftMax")):
        return _words(*_softmax_size(bare, shape, numbers))
    if name == "SoftMaxTilingFunc":
        size, work, front, grad = numbers
        row = _softmax_size("SoftMaxGrad" if grad else "SoftMax", shape, (size, front))[1] // 4
        return _softmax_tiling(shape, size, work, row).to_bytes()
    if name == "GetDeepNormTilingInfo":
        return _deep_norm_tiling(shape, *numbers).to_bytes()
    if name in _PLAIN:
        return _words(*_PLAIN[name](*shape, *numbers))
    function: Callable[..., TilingStruct | Sizes] | None = getattr(host_functions, name, None)
    if function is None:
        raise TilingError(f"{name}: this tiling function is not simulated")
    found = function(list(shape), *numbers)
    return found.to_bytes() if isinstance(found, TilingStruct) else _words(*found)
