"""A kernel that the cycle model's advice makes faster, step by step.

Run it anywhere: ``python examples/ascendc_cycles.py``. Each step does what the first advice of the step before says, computes
the same, and is measured by the model again: copies of 16 KB, two buffers, other banks.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from lngrad_ascend.ascendc import (
    DataCopy,
    GetBlockIdx,
    GlobalTensor,
    HardEvent,
    Mul,
    SetFlag,
    TBuf,
    TPipe,
    TPosition,
    TQue,
    WaitFlag,
    float32,
    launch,
)

ROWS, N, BLOCKS = 256, 128, 4  # rows of a block


class Step(NamedTuple):
    """How the kernel is written: rows of a copy, buffers of a queue, bytes between x and gamma."""

    rows: int = 1
    buffers: int = 1
    apart: int = 0


STEPS = (Step(), Step(rows=32), Step(rows=32, buffers=2), Step(rows=32, buffers=2, apart=256))


def times_gamma(step: Step):
    """Return the kernel y = x * gamma, row by row."""

    def kernel(x, gamma, y):
        pipe, first = TPipe(), GetBlockIdx() * ROWS * N
        x_in, gamma_in, y_out = (GlobalTensor(float32) for _ in range(3))
        x_in.SetGlobalBuffer(x + first, ROWS * N)
        gamma_in.SetGlobalBuffer(gamma)
        y_out.SetGlobalBuffer(y + first, ROWS * N)
        queue_x, queue_y = TQue(TPosition.VECIN, step.buffers), TQue(TPosition.VECOUT, step.buffers)
        buffer, gap = TBuf(), TBuf()
        count = step.rows * N
        pipe.InitBuffer(queue_x, step.buffers, count * 4)
        if step.apart:
            pipe.InitBuffer(gap, step.apart)
        pipe.InitBuffer(buffer, N * 4)
        pipe.InitBuffer(queue_y, step.buffers, count * 4)
        scale = buffer.Get(float32)
        DataCopy(scale, gamma_in, N)
        SetFlag(HardEvent.MTE2_V, 0)
        WaitFlag(HardEvent.MTE2_V, 0)
        for start in range(0, ROWS * N, count):
            rows = queue_x.AllocTensor(float32)
            DataCopy(rows, x_in[start], count)
            queue_x.EnQue(rows)
            rows, out = queue_x.DeQue(), queue_y.AllocTensor(float32)
            for row in range(step.rows):
                Mul(out[row * N :], rows[row * N :], scale, N)
            queue_x.FreeTensor(rows)
            queue_y.EnQue(out)
            out = queue_y.DeQue()
            DataCopy(y_out[start], out, count)
            queue_y.FreeTensor(out)

    return kernel


def main() -> int:
    """Run every step; print its time and the advice that leads to the next one. Return the exit code."""
    rng = np.random.default_rng(0)
    x, gamma = rng.standard_normal((BLOCKS * ROWS, N), dtype=np.float32), rng.standard_normal(N, dtype=np.float32)
    times, wrong = [], 0
    for step in STEPS:
        y = np.empty_like(x)
        cycles = launch(times_gamma(step), BLOCKS, x, gamma, y, cycles=True).cycles
        wrong += bool((y != x * gamma).any())
        times.append(cycles.time_us - cycles.launch_us)
        print(f"{step}: {times[-1]:.2f} µs")
        for advice in cycles.advice[:1]:
            print(f"  {advice.text}: {advice.time_us:.2f} µs")
    print(f"{times[0] / times[-1]:.1f} times as fast")
    print("wrong" if wrong else "ok")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
