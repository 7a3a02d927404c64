"""How a GPU call is cut: pure functions of the shape and the dtype."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from lngrad.gpu import policy
from lngrad.gpu.policy import AtOnce, Chunks, Columns, Tiles

WIDTHS = [1, 2, 3, 63, 64, 65, 100, 129, 768, 1000, 1024, 1025, 1536, 2304, 3072, 4097, 5120, 6144, 7168, 8192]
LONG = [8193, 10240, 12288, 16384, 16385, 131072, 262144]
DTYPES = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N", [*WIDTHS, *LONG])
def test_blocks_cover_a_row_and_the_last_alone_is_ragged(N, dtype):
    """The kernels mask the last block alone, so all others must be full."""
    for tiles in (policy.forward(1000, N, dtype), policy.backward(1000, N, dtype)):
        if not isinstance(tiles, Tiles):
            continue
        columns = tiles.block * tiles.slabs
        assert (tiles.pieces - 1) * columns < N <= tiles.pieces * columns
        assert tiles.block & (tiles.block - 1) == 0
        assert tiles.rows & (tiles.rows - 1) == 0
        threads = 32 * tiles.warps
        assert tiles.rows * tiles.block >= threads or tiles.pieces == 1
        if tiles.slabs == 2:  # the last block of each slab, and one more, are masked
            full = (tiles.pieces * 2 - 2) * tiles.block
            assert full < N


@pytest.mark.parametrize(
    ("N", "eighths"), [(5120, 5), (6144, 6), (7168, 7), (8192, 8), (2304, 5), (3072, 6), (1536, 6)]
)
def test_rows_between_powers_of_two_take_their_share(N, eighths):
    tiles = policy.backward(4096, N, "bfloat16")
    assert isinstance(tiles, Tiles)
    assert tiles.block * tiles.pieces * 8 == eighths * (1 << (N - 1).bit_length())


def test_regimes():
    assert isinstance(policy.backward(100, 16384, "float32"), Tiles)
    assert isinstance(policy.backward(100, 16385, "float32"), Columns)
    assert isinstance(policy.backward(100, 4097, "float64"), Columns)
    assert isinstance(policy.forward(100, 16384, "float32"), Tiles)
    few, many = policy.forward(3, 16385, "float32"), policy.forward(3000, 16385, "float32")
    assert isinstance(few, Chunks)
    assert isinstance(many, Chunks)
    assert (few.spread, many.spread) == (True, False)
    assert few.block == many.block  # or the order of a row's sums would depend on the batch


@pytest.mark.parametrize("N", [64, 5120, 16384, 131072])
def test_what_orders_the_sums_of_a_row_does_not_depend_on_the_batch(N):
    for choose in (policy.forward, policy.backward):
        cuts = [choose(M, N, "bfloat16") for M in (1, 100, 10**4, 10**7)]
        orders = {
            (cut.sums.block,) if isinstance(cut, Columns) else (cut.block, getattr(cut, "pieces", None)) for cut in cuts
        }
        assert len(orders) == 1


def test_few_rows_take_one_launch():
    """And their dx the blocks that more rows have."""
    for N in (64, 768, 5120, 8192):
        few, many = policy.backward(128, N, "bfloat16"), policy.backward(129, N, "bfloat16")
        assert isinstance(few, AtOnce)
        assert not isinstance(many, AtOnce)
        assert (few.rows, few.block, few.pieces) == (many.rows, many.block, many.pieces)
        assert few.column_rows * few.column_block == 16 * 32 * few.warps
    assert not isinstance(policy.backward(128, 8193, "bfloat16"), AtOnce)  # two programs a row write where both read


def test_no_device_is_asked():
    """Two models of GPU add in the same order: no function here takes anything of a device."""
    for function in (policy.forward, policy.backward, policy.parts_for, policy.finalize_shape):
        assert set(inspect.signature(function).parameters) <= {"regime", "M", "N", "dtype"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N", [64, 768, 4096, 8192, 16384])
@pytest.mark.parametrize("M", [1, 7, 512, 4096, 2**16, 2**20, 2**26])
def test_partial_sums_are_few(M, N, dtype):
    tiles = policy.backward(M, N, dtype)
    if not isinstance(tiles, Tiles):
        return
    parts = policy.parts_for(tiles, M)
    rows_of_tiles = -(-M // tiles.rows)
    assert 1 <= parts <= rows_of_tiles
    assert -(-rows_of_tiles // parts) <= policy.MAX_TILES
    assert parts <= max(132, tiles.most_parts, -(-rows_of_tiles // policy.MAX_TILES) + 131)
    if M >= 2**16:
        assert parts >= min(132, rows_of_tiles)  # or the device would idle


@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_share_the_multiprocessors_evenly(dtype):
    """Where there are rows enough, each has as many programs as the others, and they fit beside one another."""
    for N in (64, 256, 768, 1024, 2048, 4096, 5120, 8192, 12288, 16384):
        tiles = policy.backward(2**15, N, dtype)
        if isinstance(tiles, Tiles):
            parts = policy.parts_for(tiles, 2**15)
            assert parts == tiles.most_parts
            assert parts % 132 == 0
            assert parts // 132 * tiles.warps <= 64


def test_stages_come_down_to_what_fits():
    """Two tiles on their way take their own size, three take twice that."""
    three = policy.backward(2**16, 8192, "bfloat16")
    assert isinstance(three, Tiles)
    assert three.stages == 3
    two = replace(three, stages=2)
    assert three.shared_bytes("bfloat16", False) - 256 == 2 * (two.shared_bytes("bfloat16", False) - 256) == 2 * 32768
    assert replace(three, stages=1).shared_bytes("bfloat16", True) == 256
