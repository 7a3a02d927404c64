"""Kernels whose times somebody has published for Atlas A2 and A3, written anew, and those times.

A kernel runs on one core, with that core's rows or some of them, and the memory is shared by all cores: ``cycles=48``. What
takes fewer rows is scaled up to all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lngrad_ascend import ascendc
from lngrad_ascend.ascendc import (
    Add,
    CacheMode,
    DataCopy,
    GlobalTensor,
    HardEvent,
    SetFlag,
    TPosition,
    WaitFlag,
    launch,
)
from lngrad_ascend.device.core import running
from lngrad_ascend.device.local_tensor import memory_at
from lngrad_ascend.device.report import Cycles

ROOT = Path(__file__).parents[3]
SOC, CORES = "Ascend910B1", 48
HALF = np.dtype(np.float16)
TYPES = {"float16": "half", "bfloat16": "bfloat16_t", "float32": "float"}


class Timed(NamedTuple):
    """A kernel's published time, the model's for the rows that all cores have, and the model's report."""

    published_us: float
    model_us: float
    cycles: Cycles

    @property
    def ratio(self) -> float:
        """The model's through the published."""
        return self.model_us / self.published_us


def timed(published_us: float, cycles: Cycles | None, times: float = 1.0) -> Timed:
    """Scale the cycles of some rows to ``times`` as many."""
    assert cycles is not None
    return Timed(published_us, (cycles.time_us - cycles.launch_us) * times + cycles.launch_us, cycles)


# Add of two matrices -------------------------------------------------------------------------------------------------------

SIDE, PART = 8192, 171  # rows of a core where 48 share them


class AddStage(NamedTuple):
    """A stage of the Add of two 8192 x 8192 matrices of half in asc-devkit (examples, add_high_performance).

    Its time and its vector unit's, elements of a copy, cores, buffers, whether the inputs pass the L2 cache by, and whether the
    operands lie in other bank groups.
    """

    time_us: float
    vector_us: float
    elements: int
    cores: int
    buffers: int = 1
    bypass: bool = False
    apart: bool = False


ADD_STAGES = (
    AddStage(6909.6, 761.65, 4096, 1),
    AddStage(306.58, 15.885, 4096, CORES),
    AddStage(268.5, 12.845, 16384, CORES),
    AddStage(264.02, 12.846, 16384, CORES, 2),
    AddStage(187.68, 12.846, 16384, CORES, 2, True),
    AddStage(184.52, 6.954, 16256, CORES, 2, True, True),
)


def add(stage: AddStage) -> Timed:
    """Run a stage on the rows that one of 48 cores has."""
    n, size, count = stage.elements, 32768 if stage.elements > 4096 else 8192, PART * SIDE
    places = [[0, size, 2 * size], [3 * size, 4 * size, 5 * size]]
    if stage.apart:
        places = [[0, 2 * n, 4 * size], [2 * size, 2 * size + 2 * n, 4 * size + 2 * n]]

    def kernel(x: Any, y: Any, z: Any) -> None:
        core, outside = running("add"), [GlobalTensor(HALF) for _ in range(3)]
        for tensor, address in zip(outside, (x, y, z), strict=True):
            tensor.SetGlobalBuffer(address)
        if stage.bypass:
            for tensor in outside[:2]:
                tensor.SetL2CacheHint(CacheMode.CACHE_MODE_DISABLE)
        inside = [
            [memory_at(core, TPosition.VECCALC, HALF, at, 2 * n) for at in buffer] for buffer in places[: stage.buffers]
        ]
        for flag in range(stage.buffers):
            SetFlag(HardEvent.V_MTE2, flag)
            SetFlag(HardEvent.MTE3_V, flag)
        for turn, first in enumerate(range(0, count, n)):
            flag, part = turn % stage.buffers, min(n, count - first)
            first_term, second_term, out = inside[flag]
            WaitFlag(HardEvent.V_MTE2, flag)
            DataCopy(first_term, outside[0][first], part)
            DataCopy(second_term, outside[1][first], part)
            SetFlag(HardEvent.MTE2_V, flag)
            WaitFlag(HardEvent.MTE2_V, flag)
            WaitFlag(HardEvent.MTE3_V, flag)
            Add(out, first_term, second_term, part)
            SetFlag(HardEvent.V_MTE2, flag)
            SetFlag(HardEvent.V_MTE3, flag)
            WaitFlag(HardEvent.V_MTE3, flag)
            DataCopy(outside[2][first], out, part)
            SetFlag(HardEvent.MTE3_V, flag)
        for flag in range(stage.buffers):
            WaitFlag(HardEvent.V_MTE2, flag)
            WaitFlag(HardEvent.MTE3_V, flag)

    x, z = np.ones(count, HALF), np.zeros(count, HALF)
    report = launch(kernel, 1, x, x, z, cycles=stage.cores, soc=SOC)
    assert (z == 2).all()
    return timed(stage.time_us, report.cycles, SIDE / PART if stage.cores == 1 else 1.0)


# x + residual, then RMSNorm ------------------------------------------------------------------------------------------------


class RmsRow(NamedTuple):
    """A row of tilelang-mlir-ascend's pull request 140: sizes, dtype, TileLang's time, VEC, MTE2 and MTE3 in per cent."""

    rows: int
    columns: int
    dtype: str
    time_us: float
    shares: tuple[float, float, float]


RMS_ROWS = (
    RmsRow(32, 4096, "bfloat16", 4.8, (33.7, 29.6, 19.6)),
    RmsRow(256, 4096, "bfloat16", 11.68, (50.8, 34.9, 37.3)),
    RmsRow(512, 4096, "float16", 12.961, (49.4, 34.0, 30.2)),
    RmsRow(2048, 8192, "bfloat16", 67.483, (86.5, 35.0, 35.3)),
    RmsRow(12288, 1024, "float16", 41.042, (83.7, 80.9, 66.6)),
    RmsRow(12288, 1024, "bfloat16", 57.982, (90.7, 44.4, 44.1)),
    RmsRow(12288, 4096, "bfloat16", 309.912, (69.2, 49.9, 37.8)),
    RmsRow(8192, 16384, "float16", 825.913, (42.3, 63.4, 33.9)),
    RmsRow(8192, 32768, "float16", 1773.331, (38.7, 68.9, 34.7)),
    RmsRow(12288, 32768, "float32", 5597.724, (19.4, 80.0, 31.2)),
)


def add_rms_norm(row: RmsRow) -> Timed:
    """Run examples/cpp/add_rms_norm.cpp on a core's rows, on at most 64 of long ones."""
    dtype = np.dtype(getattr(ml_dtypes, row.dtype, None) or row.dtype)
    each = -(-row.rows // CORES)
    rows = each if row.columns <= 8192 else min(each, 64)
    piece = row.columns if row.columns <= 8192 else 4096 * 2 // dtype.itemsize
    tile = min(max(1, 8192 // row.columns), rows)
    rng = np.random.default_rng(0)
    x, residual = (rng.standard_normal((rows, row.columns), np.float32).astype(dtype) for _ in range(2))
    gamma, y, total = rng.standard_normal(row.columns, np.float32).astype(dtype), np.zeros_like(x), np.zeros_like(x)
    tiling = struct.pack("<6If", rows, row.columns, rows, tile, piece, 1 + (row.columns <= 16384), 1e-6)
    kernel = ascendc.compile(ROOT / "examples/cpp/add_rms_norm.cpp", f"add_rms_norm<{TYPES[row.dtype]}>")
    cores = -(-row.rows // each)
    report = launch(kernel, 1, x, residual, gamma, y, total, tiling=tiling, cycles=cores, soc=SOC)
    exact = total.astype(np.float64)
    exact *= gamma.astype(np.float64) / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6)
    assert (abs(y.astype(np.float64) - exact) <= 2.0**-6 * abs(exact) + 2.0**-6).all()
    return timed(row.time_us, report.cycles, each / rows)


# LayerNorm's backward ------------------------------------------------------------------------------------------------------

# FlagGems' pull request 4916, Ascend 910C: rows, columns, torch_npu's time.
BACKWARDS = ((32768, 128, 22.743), (32768, 256, 33.001), (32768, 32, 16.591))


def norm_backward(rows: int, columns: int, published_us: float) -> Timed:
    """Run norm_backward.cpp on the rows of one of 48 cores."""
    each = -(-rows // CORES)
    rng = np.random.default_rng(0)
    dy, x = (rng.standard_normal((each, columns), np.float32).astype(HALF) for _ in range(2))
    gamma, wide = rng.standard_normal(columns, np.float32), x.astype(np.float64)
    mean, rstd = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    dx, sums = np.zeros_like(x), np.zeros((2, columns), np.float32)
    tiling = struct.pack("<4I", each, columns, each, min(128, 8192 // columns))
    kernel = ascendc.compile(Path(__file__).with_name("norm_backward.cpp"), "norm_backward")
    statistics: Sequence[Any] = mean.astype(np.float32), rstd.astype(np.float32)
    report = launch(kernel, 1, dy, x, *statistics, gamma, dx, *sums, tiling=tiling, cycles=CORES, soc=SOC)
    xhat, dxhat = (wide - mean[:, None]) * rstd[:, None], dy.astype(np.float64) * gamma
    exact = dxhat - dxhat.mean(1, keepdims=True) - xhat * (dxhat * xhat).mean(1, keepdims=True)
    assert abs(dx - exact * rstd[:, None]).max() < 0.01
    assert abs(sums - [(dy * xhat).sum(0), dy.sum(0, dtype=np.float64)]).max() < 1e-3
    return timed(published_us, report.cycles)
