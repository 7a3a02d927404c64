"""A race between two pipes, found: a kernel that forgets one flag, and the same kernel with it.

Two pieces of memory take turns, so that the copy of the next tile runs while the vector unit works
on this one. Flags say when a piece is full, and when it may be filled again. Run it anywhere:
``python examples/ascendc_find_a_race.py [SoC]``. It prints the fault of the wrong kernel, writes
its picture to race.svg, checks the results of the right one, and exits with 1 where one is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from lngrad_ascend import soc
from lngrad_ascend.ascendc import (
    Adds,
    DataCopy,
    GlobalTensor,
    HardEvent,
    SetFlag,
    TBuf,
    TPipe,
    WaitFlag,
    float32,
    launch,
)
from lngrad_ascend.faults import RaceFault

TILE, TILES = 256, 6


def add_one(x, y, wait_before_reuse):
    """y = x + 1, tile by tile, with two pieces of memory on each side."""
    pipe = TPipe()
    xGlobal, yGlobal = GlobalTensor(float32), GlobalTensor(float32)
    xGlobal.SetGlobalBuffer(x)
    yGlobal.SetGlobalBuffer(y)
    inward, outward = [], []
    for pieces in (inward, outward):
        for _ in range(2):
            buf = TBuf()
            pipe.InitBuffer(buf, 4 * TILE)
            pieces.append(buf.Get(float32))
    for tile in range(TILES):
        turn = tile % 2
        if wait_before_reuse and tile >= 2:
            WaitFlag(HardEvent.V_MTE2, turn)  # the vector unit has read the tile before the last
        DataCopy(inward[turn], xGlobal[tile * TILE], TILE)
        SetFlag(HardEvent.MTE2_V, turn)
        WaitFlag(HardEvent.MTE2_V, turn)
        if tile >= 2:
            WaitFlag(HardEvent.MTE3_V, turn)
        Adds(outward[turn], inward[turn], 1.0, TILE)
        if wait_before_reuse and tile < TILES - 2:
            SetFlag(HardEvent.V_MTE2, turn)
        SetFlag(HardEvent.V_MTE3, turn)
        WaitFlag(HardEvent.V_MTE3, turn)
        DataCopy(yGlobal[tile * TILE], outward[turn], TILE)
        if tile < TILES - 2:
            SetFlag(HardEvent.MTE3_V, turn)


def main(name: str, picture: Path = Path("race.svg")) -> int:
    """Run both kernels on the SoC ``name``; return the exit code."""
    x = np.random.default_rng(0).normal(size=TILE * TILES).astype(float32)
    y = np.zeros_like(x)
    with soc.use(name):
        try:
            launch(lambda x, y: add_one(x, y, False), 1, x, y)
        except RaceFault as fault:
            print(f"found: {fault}")
            picture.write_text(fault.svg, encoding="utf-8")
        else:
            print("wrong: the race was not found")
            return 1
        print(launch(lambda x, y: add_one(x, y, True), 1, x, y))
    wrong = int(np.count_nonzero(y != x + np.float32(1)))
    print(f"{wrong} of {y.size} elements are wrong" if wrong else "ok")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [soc.DEFAULT]))
