"""Run a kernel function on the simulated SoC: once a block, each block on a core of its own.

A kernel is a Python function that takes what a ``__global__ __aicore__`` function takes: one address an array, then
the workspace and the tiling where they are given. One block runs at a time, in a fixed order, so that every run gives
the same bits: until it ends or waits for a flag that is not up; then the next one in order goes on. Only while a
block waits do others get threads of their own, so that kernels without barriers between blocks run in the caller's
thread.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.errors import DtypeError, ShapeError
from lngrad.support.addresses import address_of
from lngrad.typing import Array
from lngrad_ascend import soc as socs
from lngrad_ascend.device.core import Core, Rules, Strictness, current_core
from lngrad_ascend.device.cycle_report import analyse
from lngrad_ascend.device.cycles import Trace
from lngrad_ascend.device.global_memory import GlobalAddress, GlobalRegion, GlobalRegions
from lngrad_ascend.device.races import GlobalOrder
from lngrad_ascend.device.report import BlockReport, LaunchReport, site_text, timeline_svg
from lngrad_ascend.device.schedule import BlockSchedule
from lngrad_ascend.device.sync import check_flags
from lngrad_ascend.faults import AscendWarning, BoundsFault, DeviceFault
from lngrad_ascend.tiling.structs import TilingStruct


def launch(
    kernel: Callable[..., None],
    block_num: int,
    *arrays: Array | None,
    workspace: int | Array | None = None,
    tiling: bytes | TilingStruct | None = None,
    tiling_key: int = 0,
    soc: str | socs.Soc | None = None,
    strictness: Strictness = "checked",
    auto_sync: bool = True,
    ordering: bool = True,
    timeline: bool = False,
    cycles: bool | int = False,
    memory: Sequence[GlobalRegion] = (),
) -> LaunchReport:
    """Run ``kernel`` on ``block_num`` blocks, in place on ``arrays``.

    Blocks run one after the other in a fixed order, and take turns where they wait for each other or poll memory.

    Args:
        kernel: Called once a block as ``kernel(address, …[, workspace][, tiling])``.
        block_num: Blocks; more than the SoC has vector cores run in turns on a device.
        arrays: Contiguous NumPy arrays; results are written into them. None is a null address, as of an optional input.
        workspace: Bytes of scratch in global memory, or an array of uint8; filled with 0xFF when allocated here.
        tiling: A struct or its bytes; the kernel reads it with CopyTiling or GET_TILING_DATA.
        tiling_key: What TILING_KEY_IS compares with.
        soc: Default: this thread's.
        strictness: "checked": what CANN's CPU checker reports is an error. "device": what the hardware runs without a
            word runs: use after FreeTensor, tensors never freed, content that survives FreeTensor; reading bytes
            never written warns.
        auto_sync: Whether the compiler inserts barriers between vector instructions and flags around scalar accesses,
            as it does unless told not to.
        ordering: Whether races are looked for: two accesses to the same bytes, one of them a write, that no flag,
            queue or barrier orders.
        timeline: Whether every instruction is kept for ``LaunchReport.timeline_svg``.
        cycles: Whether ``LaunchReport.cycles`` says how long a device would take, by a model; above 1, as if so many cores
            each did what these blocks did, and shared the memory's rate.
        memory: More global memory, which a compiled kernel may touch by address.

    Raises:
        DeviceFault: A kernel broke a rule; the text starts with the block.
        ShapeError, DtypeError: An array is not contiguous, or not an array; wrong arguments.
    """
    target = socs.get(soc)
    if not 1 <= block_num <= 65535:
        raise ShapeError(f"block_num: expected 1 to 65535, got {block_num}")
    if strictness not in ("checked", "device"):
        raise ShapeError(f"strictness: expected 'checked' or 'device', got {strictness!r}")
    arguments: list[Any] = _arguments(arrays, workspace)
    addresses = [one for one in arguments if isinstance(one, GlobalAddress)]
    if tiling is not None:
        arguments.append(tiling.to_bytes() if isinstance(tiling, TilingStruct) else bytes(tiling))
    rules = Rules(strictness, auto_sync, ordering, timeline, bool(cycles))
    order, own = GlobalOrder(), [GlobalRegion(a.array, a.name) for a in addresses]
    regions = GlobalRegions([*own, *memory])
    reports: dict[int, BlockReport] = {}
    kept: dict[int, Core] = {}
    traces: dict[int, Trace] = {}

    def run(index: int) -> None:
        core = Core(target, index=index, count=block_num, rules=rules, order=order)
        core.regions, core.tiling_key, core.schedule = regions, tiling_key, schedule
        _run_block(kernel, core, arguments)
        reports[index] = core.report()
        if timeline:
            kept[index] = core
        traces[index] = core.trace or Trace()

    schedule = BlockSchedule(block_num, target, run)
    free = [one.data for one in (*own, *memory) if one.data.flags.writeable]
    sealed = [(one, one.data.copy()) for one in own if not any(np.may_share_memory(one.data, other) for other in free)]
    schedule.run_all()
    for one, before in sealed:
        if (one.data != before).any():
            ctypes.memmove(one.start, address_of(before), before.nbytes)
            raise BoundsFault(f"{one.name} is read-only, and the kernel has written it through a pointer of C++")
    blocks = tuple(reports[index] for index in range(block_num))
    report, spans = LaunchReport(getattr(kernel, "__name__", "kernel"), target.name, target.ub_bytes, blocks), None
    if cycles:
        every, known = [traces[index] for index in range(block_num)], sum(a.array.nbytes for a in addresses)
        took, runs = analyse(report, target, every, None if cycles is True else cycles, known)
        report = replace(report, cycles=took)
        if timeline:
            spans = {
                id(one): (a, b) for run in runs for one, a, b in zip(run.placed, run.begins, run.ends, strict=True)
            }
    if timeline:
        arrows = [arrow for core in kept.values() for arrow in core.arrows]
        logs = [(f"block {index}", kept[index].log) for index in range(block_num)]
        report = replace(report, timeline=timeline_svg(logs, arrows, spans))
    report = replace(report, padded=_padded(order, [one for one in own if one.name != "workspace"], memory))
    for text in report.warnings():
        warnings.warn(text, AscendWarning, stacklevel=2)
    return report


def _padded(order: GlobalOrder, arrays: Sequence[GlobalRegion], memory: Sequence[GlobalRegion]) -> tuple[str, ...]:
    """What is told of arrays that end up with padding in them."""
    told: dict[tuple[str, str], int] = {}
    for span in order.padded():
        for region in (one for one in (*arrays, *memory) if one.start <= span.start < one.stop):
            key = (f"{site_text(span.writer[3])}: {span.writer[0]}", region.name)
            told[key] = told.get(key, 0) + span.stop - span.start
    return tuple(
        f"{by}: {nbytes} bytes of {name} are left holding what DataCopyPad filled blocks up to 32 bytes with: rows in the "
        "Unified Buffer begin 32 bytes apart"
        for (by, name), nbytes in told.items()
    )


def _arguments(arrays: tuple[Array | None, ...], workspace: int | Array | None) -> list[GlobalAddress | int]:
    for index, array in enumerate(arrays):
        if not isinstance(array, np.ndarray | None):
            raise DtypeError(f"arrays[{index}]: expected a NumPy array, got {type(array).__name__}")
    places: list[GlobalAddress | int] = [
        0 if array is None else GlobalAddress(array, f"arrays[{index}]") for index, array in enumerate(arrays)
    ]
    if workspace is not None:
        memory = np.full(workspace, 0xFF, np.uint8) if isinstance(workspace, int) else workspace
        places.append(GlobalAddress(memory, "workspace"))
    return places


def _run_block(kernel: Callable[..., None], core: Core, arguments: list[Any]) -> None:
    token = current_core.set(core)
    core.quiet = True
    try:
        # Infinities and NaN are results on the device, not events; that a half becomes one is worth a word.
        with np.errstate(all="ignore", over="call", call=core.overflowed):
            kernel(*arguments)
        core.check_leaks()
        check_flags(core)
        if core.atomic is not None:
            core.site = core.atomic_site
            core.warn(
                "SetAtomicAdd, SetAtomicMax or SetAtomicMin is still on at the kernel's end: SetAtomicNone is missing"
            )
    except DeviceFault as fault:
        fault.args = (f"block {core.index}: {fault}",)
        raise
    finally:
        current_core.reset(token)
