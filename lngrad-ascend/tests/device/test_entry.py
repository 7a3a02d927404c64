"""The entry that other fronts use: plain integers, or the same as bytes."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from lngrad_ascend import ascendc as asc
from lngrad_ascend.device.copies import Blocks, copy_global
from lngrad_ascend.device.core import running
from lngrad_ascend.device.descriptors import BITS, COUNT, PACKED, Descriptor
from lngrad_ascend.device.global_tensor import GlobalTensor
from lngrad_ascend.device.numerics import CPP_NAMES, DTYPES
from lngrad_ascend.device.operations import OPERATIONS
from lngrad_ascend.device.pipes import HardEvent
from lngrad_ascend.faults import BoundsFault, DeviceFault, LifetimeFault, RaceFault
from tile_harness import check_same_bits

F = np.float32
N = 64
OPCODES = {operation.name: code for code, operation in enumerate(OPERATIONS)}
FLOAT = CPP_NAMES.index("float")
TYPES = FLOAT | FLOAT << 8 | FLOAT << 16


def described(name, dst, src0, src1, n, form=COUNT, high=0, repeat=0):
    return Descriptor(
        OPCODES[name], TYPES, form, n, high, repeat, 1, 1, 1, 8, 8, 8,
        dst.start, dst.end, src0.start, src0.end, src1.start, src1.end,
    )  # fmt: skip


def front(source, target, leave_out_flag=False):
    """A kernel that says everything in numbers, as a compiled one does."""
    core = running("front")
    pipe, inward, outward = asc.TPipe(), asc.TBuf(), asc.TBuf()
    for buf in (inward, outward):
        pipe.InitBuffer(buf, 4 * N)
    a, b = inward.Get(F), outward.Get(F)
    addresses = [g.array.__array_interface__["data"][0] for g in (source, target)]
    regions = [core.regions.find("front", address, 4 * N) for address in addresses]
    whole = Blocks(1, 4 * N, 4 * N, 4 * N)
    remotes = [
        GlobalTensor.at(region, address - region.start, region.data.size, np.dtype(F))
        for region, address in zip(regions, addresses, strict=True)
    ]
    copy_global(("k.cpp", 10), "DataCopy", a, remotes[0], whole, inward=True)
    if not leave_out_flag:
        asc.SetFlag(HardEvent.MTE2_V, 0)
        asc.WaitFlag(HardEvent.MTE2_V, 0)
    packed = PACKED.pack(*described("Add", b, a, a, N))
    core.issue(("k.cpp", 13), 0.0, b.handle, a.handle, a.handle, packed)
    core.issue(("k.cpp", 14), 0.5, b.handle, b.handle, 0, tuple(described("Muls", b, b, b, -1, BITS, 0, 1)))
    asc.PipeBarrier(asc.PIPE_ALL)
    copy_global(("k.cpp", 15), "DataCopy", b, remotes[1], whole, inward=False)


def test_a_kernel_in_numbers():
    source, target = np.arange(N, dtype=F), np.zeros(N, F)
    report = asc.launch(front, 1, source, target)
    check_same_bits("target", target, source)
    assert report.blocks[0].instructions == {"DataCopy": 2, "Add": 1, "Muls": 1}


def test_its_faults_name_its_lines():
    with pytest.raises(RaceFault, match=r"DataCopy at k.cpp:10 .*, then Add at k.cpp:13"):
        asc.launch(lambda s, t: front(s, t, True), 1, np.ones(N, F), np.ones(N, F))


def test_addresses_outside_every_array():
    def kernel(memory):
        core = running("kernel")
        start = memory.array.__array_interface__["data"][0]
        assert core.regions.find("DataCopy", start + 32, 32).name == "arrays[0]"
        for address, nbytes in ((start + 32, 4 * N), (start - 64, 32), (8, 8)):
            with pytest.raises(
                BoundsFault, match=f"{nbytes} bytes of global memory at {address:#x} belong to no array"
            ):
                core.regions.find("DataCopy", address, nbytes)

    asc.launch(kernel, 1, np.ones(N, F))


def test_handles_die():
    pipe = asc.TPipe()
    que = asc.TQue(asc.TPosition.VECOUT, 1)
    pipe.InitBuffer(que, 1, 4 * N)
    old = que.AllocTensor(F)
    que.FreeTensor(old)
    new = que.AllocTensor(F)
    descriptor = tuple(described("Duplicate", new, new, new, N)._replace(types=FLOAT))
    pipe.core.issue(("k.cpp", 1), 1.0, new.handle, 0, 0, descriptor)
    with pytest.raises(LifetimeFault, match=r"Duplicate: dst .* was freed"):
        pipe.core.issue(("k.cpp", 2), 1.0, old.handle, 0, 0, descriptor)


def test_a_plan_is_made_once_and_there_is_a_limit(monkeypatch):
    from lngrad_ascend.device import core as module

    monkeypatch.setattr(module, "MAX_PLANS", 4)
    pipe, buf = asc.TPipe(), asc.TBuf()
    pipe.InitBuffer(buf, 4 * N)
    local = buf.Get(F)
    for count in (1, 2, 3, 4, 5, 1, 2):
        asc.Duplicate(local, count, count)
        assert len(pipe.core._plans) <= 4
    assert local.GetValue(0) == 2.0


def test_the_tables_agree():
    assert len(CPP_NAMES) == len(DTYPES)
    assert PACKED.size == 8 * len(Descriptor._fields)
    for code, operation in enumerate(OPERATIONS):
        assert OPCODES[operation.name] == code
        if (
            operation.name == "SelectScalar" or operation.operands.mathematical
        ):  # a form of Select; functions of C++ alone
            continue
        function = getattr(asc, operation.name)
        assert operation.name in asc.__all__
        assert function.__name__ == operation.name
        assert function.__doc__
        assert next(iter(inspect.signature(function).parameters)) == "dst"


def test_nothing_runs_outside_a_launch():
    with pytest.raises(DeviceFault, match="front: no kernel is running"):
        running("front")
