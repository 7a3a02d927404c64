"""How the work of a GPU call is cut: which kernel, how large its tiles, how many programs. No data, no framework, no device.

Everything here is a function of the shape and the dtype. What is decided here about the order of a row's sums (blocks,
chunks) depends on N and the dtype alone, so that y and dx of a row need not depend on the batch around it; what is decided
about column sums depends on M too, but not on the device. Inside a block the compiler decides, unless LNGRAD_GPU_ORDERED=1:
tl.sum adds in the order of the register layout, which is chosen for an architecture, and by what is known of alignment.

The bands were chosen by timings on an H200 (132 multiprocessors, 64 Ki registers each; docs/gpu.md), those of float64 and of
rows beyond 16384 columns by the compiler's reports in benchmarks/results/triton-resources.jsonl.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from lngrad.support.dtypes import ACCUMULATORS, bytes_of

# Whether sums inside a block have a written order too, and what is fused is written: read once, off unless it is 1.
ORDERED = os.environ.get("LNGRAD_GPU_ORDERED") == "1"


@dataclass(frozen=True)
class Tiles:
    """Whole rows at a time, several in a tile where they are short.

    Attributes:
        rows: Of a tile.
        block, pieces: A program finishes this many blocks of this many columns of each row; block is a power of two.
        slabs: How many programs share a row.
        warps: 32 threads each.
        most_parts: Of a backward: how many rows of partial sums there may be: programs, or pairs of them.
        stages: How many tiles are on their way from memory at a time.
    """

    rows: int
    block: int
    pieces: int
    slabs: int
    warps: int
    most_parts: int = 0
    stages: int = 1

    def shared_bytes(self, dtype: str, dtotal: bool) -> int:
        """Shared memory of the stages, by the compiler's reports: dy, x, the other slab of gamma, dtotal."""
        slabs = (self.slabs + 1) * self.slabs + dtotal
        return (self.stages - 1) * slabs * self.rows * self.block * self.pieces * bytes_of(dtype) + 256


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
class AtOnce(Tiles):
    """Few rows in the backward: whole rows without partial sums, and columns by programs of their own in the same launch.

    Attributes:
        column_rows, column_block, column_stages: The tile of those; see Tiles.
    """

    column_rows: int = 0
    column_block: int = 0
    column_stages: int = 0


@dataclass(frozen=True)
class Finalize:
    """The sum over programs: rows partial sums at a time, block columns a program."""

    rows: int
    block: int
    warps: int


class Band(NamedTuple):
    """Rows of up to `columns` columns.

    Attributes:
        elements: Of a tile.
        slabs, warps, most_parts, stages: See Tiles.
    """

    columns: int
    elements: int
    slabs: int
    warps: int
    most_parts: int
    stages: int


class ForwardBand(NamedTuple):
    """Rows of up to `columns` columns in a forward; see Band. A tile is one row where that has more elements."""

    columns: int
    elements: int
    warps: int


# Fewer rows than this leave multiprocessors idle when a program takes a row. A constant, and not the device's own number:
# results do not depend on the device, and an H100 and an H200 have as many.
_MULTIPROCESSORS = 132
# By bytes of an element. What counts is bytes on their way: three tiles of dy and x, one of which is computed, for so many
# programs as a multiprocessor holds at once, and each of them once over all rows. With two tiles on their way and a number of
# programs that is no multiple of the multiprocessors, 16 bits reached 0.33 to 0.67 of a copy's speed on an H200, and 0.65 to
# 0.89 so. Fewer threads with more elements each are the faster: 32 elements take up to 255 registers, which is what eight
# warps have where one program fills a multiprocessor.
# Two slabs a row: a pair of programs reads a row from memory once and once more from L2; whole rows in one program spill.
_BANDS = {
    2: (
        Band(64, 2048, 1, 4, 4 * _MULTIPROCESSORS, 3),
        Band(128, 4096, 1, 8, 2 * _MULTIPROCESSORS, 3),
        Band(256, 1024, 1, 2, 8 * _MULTIPROCESSORS, 1),
        Band(1023, 1024, 1, 2, 8 * _MULTIPROCESSORS, 3),
        Band(2048, 2048, 1, 2, 4 * _MULTIPROCESSORS, 3),
        Band(2560, 4096, 1, 4, 2 * _MULTIPROCESSORS, 3),
        Band(4096, 4096, 1, 8, 2 * _MULTIPROCESSORS, 3),
        Band(8192, 8192, 1, 8, _MULTIPROCESSORS, 3),
        Band(16384, 8192, 2, 8, _MULTIPROCESSORS, 3),
    ),
    4: (
        Band(64, 2048, 1, 4, 2 * _MULTIPROCESSORS, 3),
        Band(128, 4096, 1, 8, _MULTIPROCESSORS, 3),
        Band(1023, 1024, 1, 2, 4 * _MULTIPROCESSORS, 3),
        Band(2048, 2048, 1, 2, 2 * _MULTIPROCESSORS, 3),
        Band(2560, 4096, 1, 8, 2 * _MULTIPROCESSORS, 3),
        Band(4096, 4096, 1, 8, _MULTIPROCESSORS, 3),
        Band(8192, 8192, 1, 8, _MULTIPROCESSORS, 3),
        Band(12288, 8192, 2, 8, _MULTIPROCESSORS, 1),
        Band(16384, 8192, 2, 16, _MULTIPROCESSORS, 2),  # eight warps would spill, and one stage on some architectures
    ),
    8: (
        Band(64, 1024, 1, 4, 8 * _MULTIPROCESSORS, 2),
        Band(128, 1024, 1, 8, 4 * _MULTIPROCESSORS, 2),  # four warps would spill
        Band(1024, 1024, 1, 4, 8 * _MULTIPROCESSORS, 2),
        Band(2048, 2048, 1, 8, 4 * _MULTIPROCESSORS, 2),
        Band(4096, 4096, 1, 16, 2 * _MULTIPROCESSORS, 2),
    ),
}
# By bytes of an element; a program takes one tile, and nothing is on its way beside it.
_FORWARD_BANDS = {
    2: (
        ForwardBand(64, 2048, 4),
        ForwardBand(128, 2048, 2),
        ForwardBand(1023, 1024, 2),
        ForwardBand(2560, 2048, 2),
        ForwardBand(12288, 4096, 4),
        ForwardBand(16384, 4096, 8),
    ),
    4: (
        ForwardBand(64, 2048, 4),
        ForwardBand(1023, 1024, 2),
        ForwardBand(2048, 2048, 2),
        ForwardBand(4096, 4096, 8),
        ForwardBand(8192, 4096, 4),
        ForwardBand(16384, 4096, 8),
    ),
    8: (
        ForwardBand(64, 1024, 8),  # four warps would put 8 bytes aside on sm_80
        ForwardBand(128, 512, 4),  # as would 1024 elements here
        ForwardBand(1024, 1024, 4),
        ForwardBand(2048, 2048, 8),
        ForwardBand(4096, 4096, 16),
    ),
}
# Columns of a chunk, warps and stages, by bytes of the accumulator. In a forward 32 elements a thread are the faster on an
# H200; the sums of a backward would spill so on sm_100, in float32.
_FORWARD_CHUNK = {4: (4096, 4, 3), 8: (2048, 8, 2)}
_SUMS_CHUNK = {4: (4096, 8, 2), 8: (2048, 8, 2)}
# A program gets at least so many rows, if the others still keep every multiprocessor busy.
_FEWEST_ROWS = 8
# A program adds up to this many tiles to one sum, so that errors of dgamma and dbeta grow with log M and not with M.
MAX_TILES = 256
# Up to so many rows, a second launch costs more than a way through all rows of some columns: four tiles, of which three
# are on their way together. By arithmetic (docs/decisions/0042-bands-of-an-h200.md); never timed.
_FEW_ROWS = 128
# By columns: a warp reads 64 columns, 128 bytes in 16 bits, and 64 columns make 256 programs even of 16384 columns.
_COLUMNS = {4: (32, 64, 4, 2), 8: (16, 64, 4, 2)}


def _accumulator_bytes(dtype: str) -> int:
    return bytes_of(ACCUMULATORS[dtype])


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


def _chunks(M: int, N: int, chunk: tuple[int, int, int]) -> Chunks:
    block, warps, stages = chunk
    return Chunks(block, -(-N // block), M < _MULTIPROCESSORS, warps, stages)


def forward(M: int, N: int, dtype: str) -> Tiles | Chunks:
    """The division of a forward.

    Args:
        M, N: Rows and columns, both at least 1.
        dtype: Of x.
    """
    for band in _FORWARD_BANDS[bytes_of(dtype)]:
        if band.columns >= N:
            padded = 1 << (N - 1).bit_length()
            block, pieces = _pieces(N, padded, 1 if N <= 8192 else 4)  # with four blocks some of the former would spill
            return Tiles(max(1, band.elements // padded), block, pieces, slabs=1, warps=band.warps)
    return _chunks(M, N, _FORWARD_CHUNK[_accumulator_bytes(dtype)])


def backward(M: int, N: int, dtype: str) -> Tiles | Columns:
    """The division of a backward; see forward."""
    for band in _BANDS[bytes_of(dtype)]:
        if band.columns >= N:
            padded = 1 << (N - 1).bit_length()
            block, pieces = _pieces(N, padded, 1 if padded <= (512 if dtype == "float64" else 1024) else 4)
            tiles = Tiles(band.elements * band.slabs // padded, block // band.slabs, pieces, *band[2:])
            if M <= _FEW_ROWS and tiles.slabs == 1:
                columns = 64 * tiles.warps // _accumulator_bytes(dtype)  # 16 elements a thread, 8 in float64
                few = replace(tiles, stages=1)
                # With three stages float32 would spill 8 bytes at 1536 columns (sm_80) and 8192 (sm_90).
                return AtOnce(**vars(few), column_rows=32, column_block=columns, column_stages=3 + (dtype == "float32"))
            return tiles
    accumulator = _accumulator_bytes(dtype)
    return Columns(_chunks(M, N, _SUMS_CHUNK[accumulator]), *_COLUMNS[accumulator])


def parts_for(regime: Tiles, M: int) -> int:
    """P: how many programs, or pairs of them, share the rows and leave a row of partial sums each.

    As many as run at once on the multiprocessors of an H200, or fewer whole turns of them where there are few rows.
    """
    tiles = -(-M // regime.rows)
    turns = max(1, M // _FEWEST_ROWS // _MULTIPROCESSORS)
    parts = min(regime.most_parts, turns * _MULTIPROCESSORS)
    needed = -(-tiles // (MAX_TILES * _MULTIPROCESSORS)) * _MULTIPROCESSORS
    return min(tiles, max(parts, needed))


def finalize_shape(N: int, dtype: str) -> Finalize:
    """Many partial sums at a time where there are few columns, so that neither leaves the device idle for long."""
    rows, block = (128, 16) if N <= 2048 else (64, 32)
    return Finalize(rows * 4 // _accumulator_bytes(dtype), block, 4)
