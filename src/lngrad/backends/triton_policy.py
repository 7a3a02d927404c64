"""How the work of a GPU call is cut: which kernel, how large its tiles, how many programs. No data, no framework.

What decides the order of a row's sums (the tile, the chunk) depends on N and the dtype alone, so a row's dx is the same
whatever the batch around it. How many programs share the rows may depend on M and on the device.

The figures are derived from the registers and memory of an H100 (132 multiprocessors, 64 Ki registers each, 50 MB of L2)
and from the compiler's reports in benchmarks/results/triton-resources.jsonl; none of them was tuned by a timing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "COLUMNS",
    "DTYPE_BYTES",
    "Chunks",
    "Columns",
    "Finalize",
    "Tiles",
    "choose",
    "finalize_shape",
    "programs_for",
]

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Tiles:
    """Whole rows in registers, several in a tile where they are short.

    Attributes:
        rows, block: The tile; block is N padded to a power of two.
        warps: 32 threads each.
        programs_per_sm: How many programs walk over the tiles, for each multiprocessor.
        stages: How many tiles are on their way from memory at a time.
    """

    rows: int
    block: int
    warps: int
    programs_per_sm: int
    stages: int


@dataclass(frozen=True)
class Chunks:
    """Rows that do not fit: columns chunk by chunk, once for the sums, and once more from L2."""

    rows: int
    block: int
    warps: int
    programs_per_sm: int
    stages: int


@dataclass(frozen=True)
class Columns:
    """Few long rows: the sums of all chunks first, then some columns of all rows a program, without partial sums."""

    chunk: Chunks
    rows: int
    block: int
    warps: int


@dataclass(frozen=True)
class Finalize:
    """The sum over programs: rows partial sums at a time, block columns a program."""

    rows: int
    block: int
    warps: int


@dataclass(frozen=True)
class _Band:
    """Tiles of rows up to `widest` padded columns."""

    widest: int
    elements: int
    warps: int
    programs_per_sm: int
    stages: int


# 16 elements a thread (8 in float64): two sums take 32 registers, dy, x and what is made of them about as many again; with
# 32 elements the sums alone would take half of the 128 registers that 4 programs of 128 threads leave, and spill.
# Bytes on their way decide the bandwidth: 3 TB/s times 700 ns is 16 KB a multiprocessor. Four tiles of 2048 elements of
# dy and x are 32 KB in 16 bits; from 4096 columns on a row or two are as much.
_BANDS = {
    4: (_Band(2048, 2048, 4, 4, 2), _Band(4096, 4096, 8, 2, 2), _Band(8192, 8192, 16, 1, 2)),
    8: (_Band(1024, 1024, 4, 4, 2), _Band(2048, 2048, 8, 2, 2), _Band(4096, 4096, 16, 1, 2)),
}
# Of a chunk: the 16 (8) elements a thread of the bands, with 16 warps, since one program a multiprocessor must keep it busy.
_CHUNK_ELEMENTS = {4: 8192, 8: 4096}
_CHUNK_WARPS = 16
# The second sweep should find dy and x in L2: this much of 50 MB is left beside partial sums and dx.
L2_BYTES = 36 << 20
# Programs that are thought to run at once when the rows of a chunk are chosen: a constant, and not the device's own number,
# for the order of a row's sums must not depend on the device.
_CHUNK_PROGRAMS = 132
# A program adds up to this many tiles to one sum, so that errors of dgamma and dbeta grow with log M and not with M.
# A row of partial sums for 256 tiles costs less than one percent of the memory traffic.
MOST_TILES = 256
# By columns: a warp reads 64 columns, 128 bytes in 16 bits, and 64 columns make 256 programs even of 16384 columns.
COLUMNS = {4: (32, 64, 4), 8: (16, 64, 4)}


def _accumulator_bytes(dtype: str) -> int:
    return 8 if dtype == "float64" else 4


def choose(M: int, N: int, dtype: str, multiprocessors: int) -> Tiles | Chunks | Columns:
    """The regime of a backward, and of a forward as far as Tiles or Chunks.

    Args:
        M, N: Rows and columns, both at least 1.
        dtype: Of x.
        multiprocessors: Of the device.
    """
    accumulator, itemsize = _accumulator_bytes(dtype), DTYPE_BYTES[dtype]
    padded = 1 << (N - 1).bit_length()
    for band in _BANDS[accumulator]:
        if padded <= band.widest:
            return Tiles(band.elements // padded, padded, band.warps, band.programs_per_sm, band.stages)
    # More rows at a time touch the partial sums less often, as long as dy and x of all of them stay in L2.
    row_bytes = _CHUNK_PROGRAMS * 2 * N * itemsize
    rows = next((rows for rows in (4, 2) if rows * row_bytes <= L2_BYTES), 1)
    chunk = Chunks(rows, _CHUNK_ELEMENTS[accumulator] // rows, _CHUNK_WARPS, 1, 1)
    idle = -(-M // rows) < multiprocessors
    in_cache = 2 * M * N * itemsize <= L2_BYTES
    if idle or in_cache:
        return Columns(chunk, *COLUMNS[accumulator])
    return chunk


def programs_for(regime: Tiles | Chunks, M: int, multiprocessors: int) -> int:
    """P: how many programs share the rows, and leave a row of partial sums each."""
    tiles = max(1, -(-M // regime.rows))
    return min(tiles, max(regime.programs_per_sm * multiprocessors, -(-tiles // MOST_TILES)))


def finalize_shape(N: int, dtype: str) -> Finalize:
    """Many partial sums at a time where there are few columns, so that neither leaves the device idle for long."""
    rows, block = (128, 16) if N <= 2048 else (64, 32)
    return Finalize(rows * 4 // _accumulator_bytes(dtype), block, 4)
