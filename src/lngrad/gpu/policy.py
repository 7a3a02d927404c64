"""How the work of a GPU call is cut: which kernel, how large its tiles, how many programs. No data, no framework, no device.

Everything here is a function of the shape and the dtype. What is decided here about the order of a row's sums (blocks,
chunks) depends on N and the dtype alone, so that y and dx of a row need not depend on the batch around it; what is decided
about column sums depends on M too, but not on the device. Inside a block the compiler decides: tl.sum adds in the order of
the register layout, which is chosen for an architecture, and by what is known of the alignment of pointers and strides.

The figures are derived from the registers and memory of an H100 (132 multiprocessors, 64 Ki registers each, 50 MB of L2)
and from the compiler's reports in benchmarks/results/triton-resources.jsonl; none of them was tuned by a timing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lngrad.core.dtypes import ACCUMULATORS, bytes_of


@dataclass(frozen=True)
class Tiles:
    """Whole rows at a time, several in a tile where they are short.

    Attributes:
        rows: Of a tile.
        block, pieces: A program finishes this many blocks of this many columns of each row; block is a power of two.
        slabs: How many programs share a row.
        warps: 32 threads each.
        most_parts: How many rows of partial sums there may be: programs, or pairs of them.
        stages: How many tiles are on their way from memory at a time.
    """

    rows: int
    block: int
    pieces: int
    slabs: int
    warps: int
    most_parts: int
    stages: int

    def shared_bytes(self, dtype: str, dtotal: bool) -> int:
        """Shared memory that more than one stage takes, by the compiler's reports: dy, x, the other slab of gamma, dtotal."""
        slabs = (self.slabs + 1) * self.slabs + dtotal
        return slabs * self.rows * self.block * self.pieces * bytes_of(dtype) + 256


@dataclass(frozen=True)
class Chunks:
    """Long rows, chunk by chunk.

    Attributes:
        block: Columns of a chunk.
        chunks: Of a row.
        spread: Whether chunks of one row go to several programs, since there are too few rows; else one program takes all.
        warps, stages: See Tiles.
    """

    block: int
    chunks: int
    spread: bool
    warps: int
    stages: int

    @property
    def span(self) -> int:
        """Chunks that one program takes in the first kernel of a backward."""
        return 1 if self.spread else self.chunks

    @property
    def slots(self) -> int:
        """Programs that share a row there."""
        return self.chunks if self.spread else 1


@dataclass(frozen=True)
class Columns:
    """Long rows in the backward: the sums of rows first, then some columns of all rows a program, without partial sums.

    Attributes:
        sums: How the first kernel takes the rows.
        rows, block: The tile of the second.
        warps, stages: Of the second; see Tiles.
    """

    sums: Chunks
    rows: int
    block: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Finalize:
    """The sum over programs: rows partial sums at a time, block columns a program."""

    rows: int
    block: int
    warps: int


# By bytes of the accumulator: elements of a tile, slabs, warps and most_parts, for rows of up to elements·slabs columns.
# 16 elements a thread (8 in float64): two sums take 32 registers, dy, x and what is made of them about as many again; with
# 32 elements the sums alone would take half of the 128 registers that 4 programs of 128 threads leave, and spill.
# Bytes on their way decide the bandwidth: 3 TB/s times 700 ns is 16 KB a multiprocessor. Four tiles of 2048 elements of
# dy and x are 32 KB in 16 bits; from 4096 columns on a row or two are as much.
# Two slabs a row: 32 elements a thread spilled in every arrangement that was compiled. A pair of programs reads a row from
# memory once and once more from L2: 10 bytes an element of 16 bits at L2's 5.5 TB/s, beside 6 at the memory's 3 TB/s. In
# four slabs it would be 18, more than the memory takes; in float64, two slabs spill.
_BANDS = {
    4: ((2048, 1, 4, 1024), (4096, 1, 8, 1024), (8192, 1, 16, 512), (8192, 2, 16, 256)),
    8: ((1024, 1, 4, 1024), (2048, 1, 8, 1024), (4096, 1, 16, 512)),
}
# Of a chunk: 16 (8) elements a thread.
_CHUNK = {4: (4096, 8, 2), 8: (2048, 8, 2)}
# Fewer rows than this leave multiprocessors idle when a program takes a row. A constant, and not the device's own number.
_MULTIPROCESSORS = 132
# Rows of partial sums, written and read once, may take this share of the memory traffic,
_PARTS_SHARE = 0.025
# or this part of L2,
_PARTS_BYTES = 16 << 20
# but there are as many as keep a device busy that has twice the H100's room for programs,
_USUAL_PARTS = 256
# unless a program would get fewer than eight rows, and fewer programs would still keep most of the device busy.
_FEWEST_PARTS = 128
# A program adds up to this many tiles to one sum, so that errors of dgamma and dbeta grow with log M and not with M.
MOST_TILES = 256
# By columns: a warp reads 64 columns, 128 bytes in 16 bits, and 64 columns make 256 programs even of 16384 columns.
_COLUMNS = {4: (32, 64, 4, 2), 8: (16, 64, 4, 2)}


def _accumulator_bytes(dtype: str) -> int:
    return bytes_of(ACCUMULATORS[dtype])


def _tiles(N: int, dtype: str, *, merged: bool) -> Tiles | None:
    """Tiles for rows of N columns, or None where they are too long."""
    padded = 1 << (N - 1).bit_length()
    merged = merged or padded <= (512 if dtype == "float64" else 1024)
    for elements, slabs, warps, most_parts in _BANDS[_accumulator_bytes(dtype)]:
        if padded <= elements * slabs:
            block, pieces = _pieces(N, padded, 1 if merged else 4)
            return Tiles(elements * slabs // padded, block // slabs, pieces, slabs, warps, most_parts, stages=2)
    return None


def _pieces(N: int, padded: int, most: int) -> tuple[int, int]:
    """A row as equal blocks: eighths of the next power of two, as many as it takes; merged while even and more than `most`.

    A row of 5120 columns is 5/8 of one of 8192 so, and no padded block. Only the last block needs a mask, so four blocks
    are better than one for a backward of 8192 as well (float32, sm_90: 317 instructions in the loop over tiles for 361);
    up to 1024 columns (512 in float64), where a tile has several rows, they are one. Blocks of fewer than 64 columns would
    make loads of single elements.
    """
    block = max(padded // 8, min(padded, 64))
    pieces = -(-N // block)
    while pieces > most and pieces % 2 == 0:
        block, pieces = block * 2, pieces // 2
    return block, pieces


def _chunks(M: int, N: int, dtype: str) -> Chunks:
    block, warps, stages = _CHUNK[_accumulator_bytes(dtype)]
    return Chunks(block, -(-N // block), M < _MULTIPROCESSORS, warps, stages)


def forward(M: int, N: int, dtype: str) -> Tiles | Chunks:
    """How a forward is cut.

    Args:
        M, N: Rows and columns, both at least 1.
        dtype: Of x.
    """
    tiles = _tiles(N, dtype, merged=True)  # with four blocks some would spill
    if tiles is None:
        return _chunks(M, N, dtype)
    if dtype == "float64" and N <= 64:
        return replace(tiles, warps=8)  # with four, division and square root put 8 bytes aside on sm_80
    return replace(tiles, block=tiles.block * tiles.slabs, slabs=1)  # without column sums a whole row fits


def backward(M: int, N: int, dtype: str) -> Tiles | Columns:
    """How a backward is cut; see forward."""
    return _tiles(N, dtype, merged=False) or Columns(_chunks(M, N, dtype), *_COLUMNS[_accumulator_bytes(dtype)])


def parts_for(regime: Tiles, M: int, N: int, dtype: str) -> int:
    """P: how many programs, or pairs of them, share the rows and leave a row of partial sums each.

    A power of two where there are tiles enough, so that it divides the usual numbers of rows.
    """
    itemsize, accumulator = bytes_of(dtype), _accumulator_bytes(dtype)
    tiles = -(-M // regime.rows)
    by_traffic = int(_PARTS_SHARE * 3 * itemsize * M) // (4 * accumulator)
    by_cache = _PARTS_BYTES // (2 * accumulator * N)
    parts = min(regime.most_parts, max(_USUAL_PARTS, by_traffic, by_cache), max(_FEWEST_PARTS, M // 8))
    return min(tiles, max(1 << (parts.bit_length() - 1), -(-tiles // MOST_TILES)))


def finalize_shape(N: int, dtype: str) -> Finalize:
    """Many partial sums at a time where there are few columns, so that neither leaves the device idle for long."""
    rows, block = (128, 16) if N <= 2048 else (64, 32)
    return Finalize(rows * 4 // _accumulator_bytes(dtype), block, 4)
