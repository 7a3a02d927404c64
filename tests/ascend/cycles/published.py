"""Kernels whose times somebody has published for Atlas A2 and A3, written anew, and those times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lngrad.ascend.ascendc import (
    Add,
    CacheMode,
    DataCopy,
    GetBlockIdx,
    GlobalTensor,
    HardEvent,
    LaunchReport,
    SetFlag,
    TPosition,
    WaitFlag,
    launch,
)
from lngrad.ascend.device.core import running
from lngrad.ascend.device.local_tensor import memory_at

HALF = np.dtype(np.float16)
SIDE = 8192


class AddStage(NamedTuple):
    """A stage of the Add of two 8192 x 8192 half matrices in asc-devkit's examples (add_high_performance): its time, its
    vector unit's time, copies' elements, cores, buffers, whether inputs pass the L2 cache by, and where the second operand lies.
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
    AddStage(306.58, 15.885, 4096, 48),
    AddStage(268.5, 12.845, 16384, 48),
    AddStage(264.02, 12.846, 16384, 48, 2),
    AddStage(187.68, 12.846, 16384, 48, 2, True),
    AddStage(184.52, 6.954, 16256, 48, 2, True, True),
)


def add_stage(stage: AddStage, rows: int) -> LaunchReport:
    """Run a stage on ``rows`` rows of one core, with the memory shared by the stage's cores."""

    def add(x: object, y: object, z: object) -> None:
        core = running("add")
        tensors = [GlobalTensor(HALF) for _ in range(3)]
        for tensor, address in zip(tensors, (x, y, z), strict=True):
            tensor.SetGlobalBuffer(address)
        gx, gy, gz = tensors
        if stage.bypass:
            gx.SetL2CacheHint(CacheMode.CACHE_MODE_DISABLE)
            gy.SetL2CacheHint(CacheMode.CACHE_MODE_DISABLE)
        n, size = stage.elements, 32768
        x_at = (0, 2 * size if stage.apart else 3 * size)
        y_at = (2 * n, 2 * size + 2 * n) if stage.apart else (size, 4 * size)
        z_at = (4 * size, 4 * size + 2 * n) if stage.apart else (2 * size, 5 * size)
        if stage.elements == 4096:
            y_at, z_at = (size,), (2 * size,)

        def buffers(places: tuple[int, ...]) -> list:
            return [memory_at(core, TPosition.VECCALC, HALF, place, 2 * n) for place in places[: stage.buffers]]

        xs, ys, zs = buffers(x_at), buffers(y_at), buffers(z_at)
        count = rows * SIDE
        for number in range(stage.buffers):
            SetFlag(HardEvent.V_MTE2, number)
            SetFlag(HardEvent.MTE3_V, number)
        for turn, first in enumerate(range(0, count, n)):
            flag, part = turn % stage.buffers, min(n, count - first)
            one, two, out = xs[flag], ys[flag], zs[flag]
            WaitFlag(HardEvent.V_MTE2, flag)
            DataCopy(one, gx[first], part)
            DataCopy(two, gy[first], part)
            SetFlag(HardEvent.MTE2_V, flag)
            WaitFlag(HardEvent.MTE2_V, flag)
            WaitFlag(HardEvent.MTE3_V, flag)
            Add(out, one, two, part)
            SetFlag(HardEvent.V_MTE2, flag)
            SetFlag(HardEvent.V_MTE3, flag)
            WaitFlag(HardEvent.V_MTE3, flag)
            DataCopy(gz[first], out, part)
            SetFlag(HardEvent.MTE3_V, flag)
        for number in range(stage.buffers):
            WaitFlag(HardEvent.V_MTE2, number)
            WaitFlag(HardEvent.MTE3_V, number)

    assert GetBlockIdx is not None
    x = np.zeros(rows * SIDE, HALF)
    return launch(add, 1, x, x.copy(), x.copy(), cycles=stage.cores, soc="Ascend910B1")
