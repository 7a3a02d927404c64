"""What orders the pipes of a core: every rule broken once, and the same kernel with the order it
needs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from device_harness import E, F, bind, buffers, flag
from lngrad_ascend import ascendc as asc
from lngrad_ascend.faults import RaceFault, SyncFault

N = 64


def double_by_flags(source, target, leave_out=None):
    """Copy in, double, copy out through TBufs, so that flags alone order the pipes."""
    inward, outward = buffers(2)
    for step in range(2):
        asc.DataCopy(inward, bind(source)[step * N], N)
        if leave_out != "MTE2_V":
            flag(E.MTE2_V)
        asc.Add(outward, inward, inward, N)
        if leave_out != "V_MTE3":
            flag(E.V_MTE3)
        asc.DataCopy(bind(target)[step * N], outward, N)
        if leave_out != "V_MTE2":
            flag(E.V_MTE2)
        if leave_out != "MTE3_V":
            flag(E.MTE3_V)


def run(kernel, *arrays, **options):
    return asc.launch(kernel, 1, *arrays, **options)


class TestFlags:
    def test_the_whole_kernel_runs(self):
        source, target = np.arange(2 * N, dtype=F), np.zeros(2 * N, F)
        run(double_by_flags, source, target)
        assert (target == 2 * source).all()

    @pytest.mark.parametrize(
        ("missing", "second", "first"),
        [
            ("MTE2_V", "Add", "DataCopy"),
            ("V_MTE3", "DataCopy", "Add"),
            ("V_MTE2", "DataCopy", "Add"),
            ("MTE3_V", "Add", "DataCopy"),
        ],
    )
    def test_a_missing_flag_is_named_with_both_lines(self, missing, second, first):
        arrays = np.arange(2 * N, dtype=F), np.zeros(2 * N, F)
        with pytest.raises(RaceFault) as caught:
            run(lambda s, t: double_by_flags(s, t, missing), *arrays)
        text = str(caught.value)
        assert f"SetFlag<HardEvent::{missing}> and WaitFlag<HardEvent::{missing}>" in text
        assert text.index(f"{first} at test_order.py:") < text.rindex(f"{second} at test_order.py:")
        assert "[ErrorSync2]" in text
        lines = [int(part.split(" ")[0].rstrip(":")) for part in text.split("test_order.py:")[1:]]
        code = Path(__file__).read_text(encoding="utf-8").splitlines()
        assert all(f"asc.{name}(" in code[line - 1] for name, line in zip((first, second), lines, strict=True))

    def test_without_the_detector_nothing_is_found(self):
        arrays = np.arange(2 * N, dtype=F), np.zeros(2 * N, F)
        run(lambda s, t: double_by_flags(s, t, "MTE2_V"), *arrays, ordering=False)

    def test_the_order_is_transitive(self):
        def kernel(source, target):
            (inward,) = buffers(1)
            asc.DataCopy(inward, bind(source), N)
            flag(E.MTE2_V)
            flag(E.V_MTE3)  # MTE3 waits for V, which waits for MTE2
            asc.DataCopy(bind(target), inward, N)

        target = np.zeros(N, F)
        run(kernel, np.ones(N, F), target)
        assert target.all()

    def test_set_twice(self):
        def kernel():
            asc.TPipe()
            asc.SetFlag(E.MTE2_V, 1)
            asc.SetFlag(E.MTE2_V, 1)

        with pytest.raises(
            SyncFault, match=r"SetFlag<MTE2_V>\(1\): the flag is raised already, at test_order.py:\d+.*Sync4"
        ):
            run(kernel)

    def test_wait_without_set(self):
        with pytest.raises(SyncFault, match=r"WaitFlag<V_MTE2>\(0\): no SetFlag has raised the flag.*ErrorSync3"):
            run(lambda: asc.WaitFlag(E.V_MTE2, 0))

    def test_set_without_wait(self):
        with pytest.raises(SyncFault, match=r"1 flags were never waited for: SetFlag<V_S>\(2\) at test_order.py:\d+"):
            run(lambda: asc.SetFlag(E.V_S, 2))
        run(lambda: asc.SetFlag(E.V_S, 2), strictness="device")

    @pytest.mark.parametrize("event", [E.MTE1_M, E.V_V, E.FIX_S])
    def test_pipes_that_a_vector_core_does_not_have(self, event):
        with pytest.raises(SyncFault, match=f"HardEvent::{event.name} is not between two pipes"):
            run(lambda: asc.SetFlag(event, 0))

    @pytest.mark.parametrize(("soc", "limit"), [("Ascend910B1", 8), ("Ascend910A", 4)])
    def test_ids(self, soc, limit):
        run(lambda: flag(E.MTE2_V), soc=soc)
        with pytest.raises(SyncFault, match=f"an event id is 0 to {limit - 1} on {soc}, got {limit}"):
            run(lambda: asc.SetFlag(E.MTE2_V, limit), soc=soc)

    def test_event_ids_of_the_pipe(self):
        def kernel():
            pipe = asc.TPipe()
            assert asc.GetTPipePtr().core is pipe.core
            assert pipe.FetchEventID(E.V_MTE2) == pipe.FetchEventID(E.V_MTE2) == 0
            taken = [pipe.AllocEventID(E.V_MTE2) for _ in range(8)]
            assert taken == list(range(8))
            assert pipe.FetchEventID(E.MTE2_V) == 0
            with pytest.raises(SyncFault, match="all 8 ids of V_MTE2 are taken"):
                pipe.AllocEventID(E.V_MTE2)
            pipe.ReleaseEventID(E.V_MTE2, 3)
            assert pipe.FetchEventID(E.V_MTE2) == 3
            with pytest.raises(SyncFault, match="id 3 of V_MTE2 was not taken"):
                pipe.ReleaseEventID(E.V_MTE2, 3)

        run(kernel)


class TestBarriers:
    @staticmethod
    def two_adds(barrier):
        def kernel():
            a, b = buffers(2)
            asc.Duplicate(a, 1.0, N)
            if barrier:
                asc.PipeBarrier(asc.PIPE_V)
            asc.Add(b, a, a, N)

        return kernel

    def test_vector_instructions_need_barriers_without_auto_sync(self):
        run(self.two_adds(False))
        run(self.two_adds(True), auto_sync=False)
        run(self.two_adds(False), auto_sync=False, soc="Ascend950")  # the hardware orders them there
        with pytest.raises(RaceFault, match=r"Duplicate at .*, then Add at .*PipeBarrier<PIPE_V>\(\) \[ErrorSync1\]"):
            run(self.two_adds(False), auto_sync=False)

    def test_independent_instructions_need_none(self):
        def kernel():
            a, b, c = buffers(3)
            for tensor in (a, b, c):
                asc.Duplicate(tensor, 1.0, N)
            asc.PipeBarrier(asc.PIPE_V)
            asc.Muls(a, a, 2.0, N)  # in place: an instruction does not race with itself
            asc.Add(c, b, b, N)

        run(kernel, auto_sync=False)

    def test_a_tile_api_brings_its_own_barriers(self):
        from tile_harness import make_case, run_grad

        run_grad(make_case(1, 8, 16, "f4", seed=1))

    @pytest.mark.parametrize("barrier", [None, asc.PIPE_MTE2, asc.PIPE_ALL])
    def test_copies_into_one_place(self, barrier):
        def kernel(source):
            (a,) = buffers(1)
            asc.DataCopy(a, bind(source), N)
            if barrier is not None:
                asc.PipeBarrier(barrier)
            asc.DataCopy(a, bind(source), N)

        if barrier is None:
            with pytest.raises(RaceFault, match=r"Missing between them: PipeBarrier<PIPE_MTE2>\(\)"):
                run(kernel, np.ones(N, F))
        else:
            run(kernel, np.ones(N, F))

    def test_through_global_memory(self):
        def kernel(memory, ordered):
            a, b = buffers(2)
            asc.Duplicate(a, 1.0, N)
            flag(E.V_MTE3)
            asc.DataCopy(bind(memory), a, N)
            if ordered:
                flag(E.MTE3_MTE2)
            asc.DataCopy(b, bind(memory), N)

        run(lambda m: kernel(m, True), np.zeros(N, F))
        with pytest.raises(
            RaceFault, match=r"reads 256 bytes of arrays\[0\] that DataCopy writes.*HardEvent::MTE3_MTE2"
        ):
            run(lambda m: kernel(m, False), np.zeros(N, F))

    def test_scalar_accesses(self):
        def kernel(ordered):
            a, b = buffers(2)
            asc.Duplicate(a, 1.0, N)
            if ordered:
                flag(E.V_S)
            a.SetValue(0, a.GetValue(1) + 1)
            if ordered:
                flag(E.S_V)
            asc.Add(b, a, a, N)

        run(lambda: kernel(False))
        run(lambda: kernel(True), auto_sync=False, soc="Ascend950")
        with pytest.raises(RaceFault, match=r"HardEvent::V_S"):
            run(lambda: kernel(False), auto_sync=False)

    def test_a_pipe_of_the_cube(self):
        with pytest.raises(SyncFault, match="PIPE_M is not a pipe of a vector core"):
            run(lambda: asc.PipeBarrier(asc.pipe_t.PIPE_M))


class TestQueuesOrder:
    def test_use_after_free_is_a_race_on_a_device(self):
        def kernel(source):
            pipe = asc.TPipe()
            que, out = asc.TQue(asc.TPosition.VECIN, 1, name="q"), asc.TBuf()
            pipe.InitBuffer(que, 1, 4 * N)
            pipe.InitBuffer(out, 4 * N)
            for _ in range(2):
                local = que.AllocTensor(F)
                asc.DataCopy(local, bind(source), N)
                que.EnQue(local)
                local = que.DeQue()
                que.FreeTensor(local)
                asc.Add(out.Get(F), local, local, N)  # the next copy may overwrite it

        with pytest.raises(RaceFault, match=r"DataCopy writes 256 bytes of buffer 0 of q .*HardEvent::V_MTE2"):
            run(kernel, np.ones(N, F), strictness="device")

    def test_two_buffers_in_turn(self):
        def kernel(source, target):
            pipe = asc.TPipe()
            inward, outward = asc.TQue(asc.TPosition.VECIN, 2), asc.TQue(asc.TPosition.VECOUT, 2)
            for que in (inward, outward):
                pipe.InitBuffer(que, 2, 4 * N)
            for step in range(5):
                local = inward.AllocTensor(F)
                asc.DataCopy(local, bind(source)[step * N], N)
                inward.EnQue(local)
                local, result = inward.DeQue(), outward.AllocTensor(F)
                asc.Adds(result, local, 1.0, N)
                inward.FreeTensor(local)
                outward.EnQue(result)
                result = outward.DeQue()
                asc.DataCopy(bind(target)[step * N], result, N)
                outward.FreeTensor(result)
            inward.FreeAllEvent()

        source, target = np.arange(5 * N, dtype=F), np.zeros(5 * N, F)
        run(kernel, source, target)
        assert (target == source + 1).all()


class TestPictures:
    def test_a_race_comes_with_one(self):
        arrays = np.arange(2 * N, dtype=F), np.zeros(2 * N, F)
        with pytest.raises(RaceFault) as caught:
            run(lambda s, t: double_by_flags(s, t, "V_MTE3"), *arrays)
        root = ElementTree.fromstring(caught.value.svg)
        red = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("stroke") == "#c00"]
        assert len(red) == 2
        texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any(text.startswith("missing: SetFlag<HardEvent::V_MTE3>") for text in texts)
        assert sum(text.startswith("test_order.py:") for text in texts) >= 2

    def test_a_launch_has_a_timeline_if_it_keeps_one(self):
        arrays = np.arange(2 * N, dtype=F), np.zeros(2 * N, F)
        report = run(double_by_flags, *arrays, timeline=True)
        root = ElementTree.fromstring(report.timeline_svg())
        titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        assert len(titles) == 2 * (3 + 8)  # three instructions and four flags a step
        assert any(title.startswith("block 0: Add at test_order.py:") for title in titles)
        texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"copy in", "copy out", "Add", "SetFlag", "WaitFlag"} <= texts
        assert sum(re.fullmatch(r":\d+", text) is not None for text in texts) >= 3  # lines of the source
        arrows = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("marker-end")]
        assert len(arrows) == 8
        with pytest.raises(ValueError, match="launch kept no timeline"):
            run(double_by_flags, *arrays).timeline_svg()


class TestQueues:
    def test_buffers_are_handed_out_in_turn_and_a_taken_one_is_passed_over(self):
        starts = []

        def kernel():
            pipe, queue = asc.TPipe(), asc.TQue(asc.TPosition.VECIN, 2)
            pipe.InitBuffer(queue, 3, 32)
            kept = None
            for turn in range(5):
                local = queue.AllocTensor(F)
                starts.append(local.GetPhyAddr() // 32)
                if turn == 1:
                    kept = local
                else:
                    queue.FreeTensor(local)
            queue.FreeTensor(kept)

        run(kernel)
        assert starts == [0, 1, 2, 0, 2]

    @pytest.mark.parametrize("named", [False, True])
    def test_a_queue_between_two_positions_orders_the_copies(self, named):
        P = asc.TPosition

        def kernel(source, target):
            pipe, queue = asc.TPipe(), asc.TQue(P.VECCALC, 1, binds=(P.VECIN, P.VECOUT))
            pipe.InitBuffer(queue, 1, 4 * N)
            local = queue.AllocTensor(F)
            asc.DataCopy(local, bind(source), N)
            queue.EnQue(local, (P.GM, P.VECIN) if named else None)
            local = queue.DeQue()
            asc.DataCopy(bind(target), local, N)
            queue.FreeTensor(local)

        x, y = np.random.default_rng(0).standard_normal((2, N)).astype(F)
        if named:  # MTE2_V orders no copy out
            with pytest.raises(RaceFault, match="MTE2_MTE3"):
                run(kernel, x, y)
        else:
            run(kernel, x, y)
            np.testing.assert_array_equal(y, x)
