"""Each advice is followed, and the model measures again: it saves about what was foretold, and the advice is gone."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_harness import E, F, bind, buffers, flag
from lngrad_ascend import ascendc
from lngrad_ascend.ascendc import (
    Adds,
    BlockReduceSum,
    DataCopy,
    GetBlockIdx,
    UnaryRepeatParams,
    WholeReduceSum,
    launch,
)
from lngrad_ascend.device.report import Cycles

N = 128 * 64  # floats of a block
Body = Callable[[Any, Any], None]


def on_a_tile(body: Body, rows: Callable[[int], int] = lambda block: 1, blocks: int = 1) -> tuple[Cycles, np.ndarray]:
    """Copy N floats in, run ``body`` on them (dst, src), copy N out: so often as ``rows`` says of the block."""

    def kernel(x, y):
        src, dst = buffers(2, N * 4)
        source, target = bind(x), bind(y + GetBlockIdx() * N)
        for _ in range(rows(GetBlockIdx())):
            DataCopy(src, source, N)
            flag(E.MTE2_V)
            body(dst, src)
            flag(E.V_MTE3)
            DataCopy(target, dst, N)
            flag(E.MTE3_MTE2)
            flag(E.MTE3_V)

    x, y = np.arange(N, dtype=F) % 7, np.zeros(N * blocks, F)
    cycles = launch(kernel, blocks, x, y, cycles=True).cycles
    assert cycles is not None
    return cycles, y


def check_advice(kind: str, before: Cycles, after: Cycles, near: float = 0.3) -> None:
    """The advice is given before, not after, and saves what it says, within ``near``."""
    (advice,) = (advice for advice in before.advice if advice.kind == kind)
    assert kind not in [advice.kind for advice in after.advice]
    assert before.cycles - after.cycles == pytest.approx(advice.cycles, rel=near)
    assert before.time_us - after.time_us == pytest.approx(advice.time_us, rel=near)


def one_by_one(dst, src):
    for row in range(0, N, 64):
        Adds(dst[row:], src[row:], 1.0, 64, 1, UnaryRepeatParams())


def at_once(dst, src):
    Adds(dst, src, 1.0, 64, N // 64, UnaryRepeatParams())


def test_repeats():
    (before, y), (after, z) = on_a_tile(one_by_one), on_a_tile(at_once)
    np.testing.assert_array_equal(y, z)
    check_advice("repeats", before, after)
    assert "test_advice.py" in next(advice.text for advice in before.advice if advice.kind == "repeats")


def sums(dst, src):
    Adds(dst, src, 0.0, N)
    WholeReduceSum(dst, src, 64, N // 64, 1, 1, 8)


def sums_of_blocks(dst, src):
    Adds(dst, src, 0.0, N)
    BlockReduceSum(src, src, N // 64, 64, 1, 1, 8)
    BlockReduceSum(dst, src, N // 512, 64, 1, 1, 8)


def test_reductions():
    (before, y), (after, z) = on_a_tile(sums), on_a_tile(sums_of_blocks)
    np.testing.assert_array_equal(y, z)
    check_advice("reductions", before, after)


def test_a_block_with_more_work():
    before, _ = on_a_tile(at_once, lambda block: 9 if block == 3 else 3, 4)
    after, _ = on_a_tile(at_once, lambda block: 4 + (block % 2), 4)
    (advice,) = (advice for advice in before.advice if advice.kind == "tail")
    assert advice.text.startswith("block 3 works 2.0 times as long as the mean")
    assert "tail" not in [advice.kind for advice in after.advice]
    assert 0.7 * advice.cycles <= before.cycles - after.cycles <= advice.cycles


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_masks():
    count, found = 180, []  # as in the manual's example: 4 cycles each, 720 in all
    x = np.arange(count * 64, dtype=F)
    for once in (0, 1):
        y = np.zeros_like(x)
        kernel = ascendc.compile(
            Path(__file__).parent / "programs" / "masks.cpp", "k", define={"COUNT": count, "ONCE": once}
        )
        found.append(launch(kernel, 1, x, y, cycles=True).cycles)
        np.testing.assert_array_equal(y, x + 1)
    check_advice("masks", *found)
    assert found[0].cycles - found[1].cycles == pytest.approx(720, rel=0.02)


def test_copies_buffers_and_banks_in_the_example(capsys):
    path = Path(__file__).parents[3] / "examples" / "ascendc_cycles.py"
    spec = importlib.util.spec_from_file_location("ascendc_cycles", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-2].split()[0]) >= 1.5
    x, gamma = np.ones((example.BLOCKS * example.ROWS, example.N), F), np.ones(example.N, F)
    found = []
    for step in example.STEPS:
        kernel = example.times_gamma(step)
        found.append(launch(kernel, example.BLOCKS, x, gamma, np.empty_like(x), cycles=True).cycles)
    for kind, before, after in zip(("copies", "buffers", "banks"), found[:-1], found[1:], strict=True):
        assert before.advice[0].kind == kind  # the first advice is the one that is followed
        check_advice(kind, before, after)
