"""The schedule of a launch: what waits for what, what is reported, on which SoC."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from published import ADD_STAGES, CORES, add

from device_harness import E, F, bind, buffer, buffers, flag
from lngrad_ascend import tiling
from lngrad_ascend.ascendc import (
    Add,
    Adds,
    BinaryRepeatParams,
    DataCopy,
    Duplicate,
    GetBlockIdx,
    Mul,
    PipeBarrier,
    SyncAll,
    launch,
    pipe_t,
)
from lngrad_ascend.device import cycle_figures as figures
from lngrad_ascend.device import cycles
from lngrad_ascend.device.core import running
from lngrad_ascend.device.cycles import timing_of
from lngrad_ascend.device.local_tensor import memory_at
from lngrad_ascend.device.operations import OPERATIONS
from lngrad_ascend.device.unified_buffer import TPosition
from lngrad_ascend.faults import DeviceFault, TilingError
from tile_harness import make_case, run_beta, run_grad


def cycles_of(body, count=4096, blocks=1, **options):
    """The cycles of copying ``count`` floats in, ``body(dst, src, work)``, copying them out; dst is y in the end."""

    def kernel(x, y):
        src, dst, work = buffers(3, count * 4)
        DataCopy(src, bind(x), count)
        PipeBarrier(pipe_t.PIPE_ALL)
        body(dst, src, work)
        PipeBarrier(pipe_t.PIPE_ALL)
        DataCopy(bind(y + GetBlockIdx() * count), dst, count)

    x, y = np.arange(count, dtype=F), np.zeros(count * blocks, F)
    report = launch(kernel, blocks, x, y, cycles=options.pop("cycles", True), **options)
    return report.cycles


def added(dst, src, work):
    Adds(dst, src, 1.0, 4096)


EMPTY = cycles_of(lambda dst, src, work: Adds(dst, src, 1.0, 4096)).cycles  # 64 repeats


class TestSchedule:
    def test_a_repeat_is_a_cycle(self):
        longer = cycles_of(lambda dst, src, work: Adds(dst, src, 1.0, 8192), 8192)
        copies = 4096 * 4 * (1 / figures.COPY_RATE[2] + 1 / figures.COPY_RATE[3])
        assert longer.cycles - EMPTY == pytest.approx(64 + copies, rel=1e-6)

    def test_who_needs_a_result_waits_for_it(self):
        def independent(dst, src, work):
            Adds(work, src, 1.0, 2048)
            Adds(dst, src, 1.0, 4096)

        def dependent(dst, src, work):
            Adds(work, src, 1.0, 2048)
            Add(dst, src, src, 4096)
            Add(dst, dst, work, 2048)

        start = figures.TIMINGS["Add"].start
        first, second = cycles_of(independent).cycles, cycles_of(dependent).cycles
        assert first - EMPTY == pytest.approx(32, abs=figures.MASK + figures.ISSUE)
        assert second - first >= start  # the third waits for the second

    def test_two_sources_in_one_bank_group_take_turns(self):
        def run(place):
            def kernel(x, y):
                core = running("kernel")
                src, other, dst = (
                    memory_at(core, TPosition.VECCALC, np.dtype(F), at, 16384) for at in (0, place, 0x20000)
                )
                DataCopy(src, bind(x), 4096)
                DataCopy(other, bind(x), 4096)
                PipeBarrier(pipe_t.PIPE_ALL)
                Add(dst, src, other, 4096)
                PipeBarrier(pipe_t.PIPE_ALL)
                DataCopy(bind(y), dst, 4096)

            return launch(kernel, 1, np.zeros(4096, F), np.zeros(4096, F), cycles=True).cycles

        together, apart = run(0x8000), run(0x8000 + 256)
        assert together.cycles - apart.cycles == 64
        assert [advice.kind for advice in together.advice] == ["banks"]
        assert not apart.advice

    @pytest.mark.parametrize(("stride", "repeats"), [(1, 1), (8, 4), (16, 8)])
    def test_blocks_of_a_source_in_one_bank_group(self, stride, repeats):
        """The manual's examples: with block strides of 8 a repeat takes 4 cycles, with 16 it takes 8."""

        def strided(stride):
            return lambda dst, src, work: Mul(dst, src, src, 64, 32, BinaryRepeatParams(1, stride, stride, 8, 1, 1))

        assert cycles_of(strided(stride), 2048).cycles - cycles_of(strided(1), 2048).cycles == 32 * (repeats - 1)

    def test_blocks_meet_at_a_barrier(self):
        def uneven(dst, src, work):
            for _ in range(20 if GetBlockIdx() == 1 else 1):
                Adds(dst, src, 1.0, 4096)
            SyncAll()
            Adds(dst, src, 2.0, 4096)

        found = cycles_of(uneven, blocks=2)
        assert found.blocks[0] == pytest.approx(found.blocks[1], abs=1)
        assert "SyncAll" in found.guesses

    def test_more_blocks_than_cores_take_turns(self):
        few, many = cycles_of(added, blocks=40, soc="Ascend910B3"), cycles_of(added, blocks=41, soc="Ascend910B3")
        assert (few.cores, many.cores) == (40, 40)
        assert many.cycles == pytest.approx(2 * few.cycles, rel=0.01)

    @pytest.mark.parametrize("waits", [True, False])
    def test_turns_of_a_loop_that_are_left_out_change_nothing(self, waits, monkeypatch):
        def kernel(x, y):
            (src, dst), source = buffers(2, 4096), bind(x)
            DataCopy(src, source, 1024)
            flag(E.MTE2_V)
            for turn in range(300):
                Adds(dst, src, 1.0, 1024)
                Add(dst, dst, src, 64 if turn < 150 else 512)
                if waits:
                    flag(E.V_MTE2, 1)
                    DataCopy(src, source, 1024)
                    flag(E.MTE2_V, turn % 2)
                    Mul(dst, dst, src, 1024)

        found = []
        for least in (cycles.LEAST, 1 << 40):  # as it is; and with every turn
            monkeypatch.setattr(cycles, "LEAST", least)
            found.append(launch(kernel, 1, np.ones(1024, F), np.zeros(8, F), cycles=True).cycles)
        first, second = found
        assert first.cycles == pytest.approx(second.cycles, rel=1e-9)
        assert first.shares == pytest.approx(second.shares, rel=1e-9)
        assert sum(line.cycles for line in first.lines) == pytest.approx(first.cycles, rel=0.02)
        for line, whole in zip(first.lines, second.lines, strict=True):
            assert (line.line, line.name, [what for what, _ in line.waits]) == (
                whole.line, whole.name, [what for what, _ in whole.waits]
            )  # fmt: skip
            assert line.cycles == pytest.approx(whole.cycles, abs=0.01 * first.cycles)
        assert [advice.text for advice in first.advice] == [advice.text for advice in second.advice]

    def test_cores_share_the_memory(self):
        alone, shared = (add(ADD_STAGES[1]._replace(cores=cores)).cycles for cores in (1, CORES))
        assert shared.cores == CORES
        assert shared.cycles > 1.5 * alone.cycles


class TestReport:
    def test_without_it_is_none(self):
        report = launch(lambda x: None, 1, np.zeros(8, F))
        assert report.cycles is None
        assert json.loads(report.to_json())["kernel"] == "<lambda>"

    def test_a_kernel_that_does_nothing(self):
        cycles = launch(lambda x: None, 1, np.zeros(8, F), cycles=True).cycles
        assert (cycles.cycles, cycles.lines, cycles.advice) == (0, (), ())
        assert cycles.time_us == cycles.launch_us
        assert "0.00" not in cycles.table().splitlines()[0]

    def test_lines_add_up_and_say_what_they_wait_for(self):
        found = cycles_of(added)
        assert sum(line.cycles for line in found.lines) == pytest.approx(found.cycles)
        assert all(re.fullmatch(r"test_cycles\.py:\d+", line.line) for line in found.lines)
        (vector,) = (line for line in found.lines if line.name == "Adds")
        assert vector.waits[0][0].startswith("MTE2 at test_cycles.py:")
        assert set(found.shares) == {"S", "V", "MTE2", "MTE3"}
        assert 0 < found.shares["V"] < found.shares["MTE2"] < 1

    def test_json_and_table(self):
        found = cycles_of(added, blocks=3)
        facts = json.loads(found.to_json())
        assert facts["cycles"] == found.cycles
        assert len(facts["blocks"]) == 3
        table = found.table()
        assert f"{found.time_us:,.2f} µs by the model" in table
        assert found.roofline in table

    def test_the_timeline_has_every_turn_of_a_loop(self):
        def kernel(x):
            local = buffer(4096)
            for _ in range(200):
                Duplicate(local, 1.0, 1024)

        picture = launch(kernel, 1, np.zeros(8, F), cycles=True, timeline=True).timeline_svg()
        begins = re.findall(r"cycles ([\d,]+) to", picture)
        assert len(begins) == len(set(begins)) == 200

    def test_the_timeline_is_to_scale(self):
        def kernel(x, y):
            tensor = buffer(65536)
            DataCopy(tensor, bind(x), 16384)
            flag(E.MTE2_V)
            Adds(tensor, tensor, 1.0, 16384)

        report = launch(kernel, 2, np.zeros(16384, F), np.zeros(8, F), cycles=True, timeline=True)
        space = "{http://www.w3.org/2000/svg}"
        boxes = {
            group.find(f"{space}title").text: float(group.find(f"{space}rect").get("width"))
            for group in ElementTree.fromstring(report.timeline_svg()).iter(f"{space}g")
        }
        assert len(boxes) == 4  # two instructions a block; flags take no time
        spans = {}
        for title, width in boxes.items():
            begin, end = (
                float(number.replace(",", "")) for number in re.search(r"cycles ([\d,]+) to ([\d,]+)$", title).groups()
            )
            spans[title.split(" at ")[0]] = width / (end - begin)
        assert len({round(number, 2) for number in spans.values()}) == 1

    def test_tile_apis_have_cycles(self):
        """A larger temporary buffer is never slower, and one row at a time is much."""
        apis = {
            "LayerNormGrad": lambda case, nbytes: run_grad(case, stack_bytes=nbytes, cycles=True)[-1],
            "LayerNormGradBeta": lambda case, nbytes: run_beta(case.x, case.dy, stack_bytes=nbytes, cycles=True)[-1],
        }

        def of_first(run, case, sizes):
            """The cycles with the first of these sizes that the kernel runs with, or None."""
            for nbytes in sizes:
                with contextlib.suppress(DeviceFault, TilingError):
                    return run(case, nbytes).cycles.cycles
            return None

        shapes = (
            (1, 8, 64),
            (2, 16, 64),
            (2, 32, 64),
            (1, 8, 256),
            (1, 16, 256),
            (1, 8, 512),
            (1, 4, 1024),
            (1, 1, 2048),
        )
        ratios = {api: [] for api in apis}
        for (api, run), shape, dtype in itertools.product(apis.items(), shapes, (np.float16, F)):
            words, case = ((*shape, shape[-1]), np.dtype(dtype).itemsize, False), make_case(*shape, dtype, 0)
            largest, smallest = getattr(tiling, f"Get{api}MaxMinTmpSize")(*words)
            safe = tiling.safe_stack_bytes(api, *words)
            few = of_first(run, case, (smallest, safe))
            many = of_first(run, case, (largest, *range(192 << 10, max(safe, 4096), -4096), safe))
            if few and many:
                assert few >= many > 100
                ratios[api].append(few / many)
        assert all(ratios.values())
        assert max(itertools.chain(*ratios.values())) > 2


class TestFigures:
    def test_every_instruction_has_one_or_is_a_guess(self):
        names = {operation.name for operation in OPERATIONS}
        others = {"DataCopy", "TransDataTo5HD", "GatherMask"}
        assert set(figures.TIMINGS) <= names | others
        guessed = {name for name in names if not timing_of(name).sourced}
        assert {"Add", "Cast", "WholeReduceSum", "Brcb"}.isdisjoint(guessed)
        assert {"Tanh", "PowerOfTensor", "Neg"} <= guessed

    @pytest.mark.parametrize(
        ("soc", "sourced"), [("Ascend910B1", True), ("Ascend910_93", True), ("Ascend950", False), ("Ascend310P", False)]
    )
    def test_a_soc_without_figures_is_marked(self, soc, sourced):
        found = cycles_of(added, soc=soc)
        assert ("the SoC's figures" in found.guesses) is not sourced
        assert found.soc == soc
