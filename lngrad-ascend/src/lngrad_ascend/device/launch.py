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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.errors import DtypeError, LngradError, ShapeError
from lngrad.support.addresses import address_of
from lngrad.typing import Array
from lngrad_ascend import soc as socs
from lngrad_ascend.device.core import BlockResult, Core, Rules, Strictness
from lngrad_ascend.device.cycle_report import analyse
from lngrad_ascend.device.cycles import Run
from lngrad_ascend.device.global_memory import GlobalAddress, GlobalRegion, GlobalRegions
from lngrad_ascend.device.races import GlobalOrder
from lngrad_ascend.device.report import LaunchReport, site_text, timeline_svg
from lngrad_ascend.device.schedule import BlockSchedule
from lngrad_ascend.faults import AscendWarning, BoundsFault
from lngrad_ascend.tiling.structs import TilingStruct


def launch(
    kernel: Callable[..., None],
    block_num: int,
    *arrays: Array | float | None,
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
    names: Sequence[str] = (),
) -> LaunchReport:
    """Run ``kernel`` on ``block_num`` blocks, in place on ``arrays``.

    Blocks run one after the other in a fixed order, and take turns where they wait for each other or poll memory.

    Args:
        kernel: Called once a block as ``kernel(address, …[, workspace][, tiling])``.
        block_num: Blocks; more than the SoC has vector cores run in turns on a device.
        arrays: Contiguous NumPy arrays; results are written into them. None is a null address, as of an optional input;
            a number is passed by value.
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
        cycles: Whether ``LaunchReport.cycles`` says how long a device would take, by a model; n > 1: extrapolate to n
            cores, which share the memory's rate.
        memory: More global memory, which a compiled kernel may touch by address.
        names: The arrays' names in messages. Default: arrays[0], ….

    Raises:
        DeviceFault: A kernel broke a rule; the text starts with the block.
        ShapeError, DtypeError: An array is not contiguous, or not an array; wrong arguments.
    """
    target = socs.get(soc)
    if not 1 <= block_num <= 65535:
        raise ShapeError(f"block_num: expected 1 to 65535, got {block_num}")
    if strictness not in ("checked", "device"):
        raise ShapeError(f"strictness: expected 'checked' or 'device', got {strictness!r}")
    arguments: list[Any] = _arguments(arrays, workspace, names or [f"arrays[{index}]" for index in range(len(arrays))])
    own = [GlobalRegion(argument.array, argument.name) for argument in arguments if isinstance(argument, GlobalAddress)]
    if tiling is not None:
        arguments.append(tiling.to_bytes() if isinstance(tiling, TilingStruct) else bytes(tiling))
    rules = Rules(strictness, auto_sync, ordering, timeline, bool(cycles))
    order, regions = GlobalOrder(), GlobalRegions([*own, *memory])
    results: dict[int, BlockResult] = {}
    warned: list[dict[tuple[str, str], str]] = []  # of each block

    def run(index: int) -> None:
        core = Core(
            target, index=index, count=block_num, rules=rules, order=order, regions=regions, schedule=schedule,
            tiling_key=tiling_key,
        )  # fmt: skip
        warned.append(core.warnings)
        with core.entered():
            kernel(*arguments)
            core.finish()
        results[index] = core.result()

    schedule = BlockSchedule(block_num, target, run)
    try:
        with _read_only(own, memory):
            schedule.run_all()
    except LngradError:  # what was warned of may explain it
        for text in dict.fromkeys(text for texts in warned for text in texts.values()):
            warnings.warn(text, AscendWarning, stacklevel=2)
        raise
    blocks = [results[index] for index in range(block_num)]
    lasting = [*(region for region in own if region.name != "workspace"), *memory]
    report = LaunchReport(
        getattr(kernel, "__name__", "kernel"), target.name, target.ub_bytes, tuple(block.report for block in blocks),
        padded=_padded(order, lasting),
    )  # fmt: skip
    runs: list[Run] = []
    if cycles:
        nbytes, traces = sum(region.data.size for region in own), [block.trace for block in blocks]
        model, runs = analyse(report, target, traces, None if cycles is True else cycles, nbytes)
        report = replace(report, cycles=model)
    if timeline:
        report = replace(report, timeline=_timeline(blocks, runs))
    for text in report.warnings():
        warnings.warn(text, AscendWarning, stacklevel=2)
    return report


@contextmanager
def _read_only(own: Sequence[GlobalRegion], memory: Sequence[GlobalRegion]) -> Iterator[None]:
    """Refuse what a kernel has written through pointers of C++ to arrays that are read-only."""
    free = [region.data for region in (*own, *memory) if region.data.flags.writeable]
    sealed = [region for region in own if not any(np.may_share_memory(region.data, other) for other in free)]
    copies = [region.data.copy() for region in sealed]
    yield
    for region, before in zip(sealed, copies, strict=True):
        if (region.data != before).any():
            ctypes.memmove(region.start, address_of(before), before.nbytes)
            raise BoundsFault(f"{region.name} is read-only, and the kernel has written it through a pointer of C++")


def _timeline(blocks: Sequence[BlockResult], runs: Sequence[Run]) -> str:
    """The picture of all blocks; to scale where there are schedules."""
    spans = {
        id(instruction): (begin, end)
        for run in runs
        for instruction, begin, end in zip(run.placed, run.begins, run.ends, strict=True)
    }
    logs = [(f"block {index}", block.log) for index, block in enumerate(blocks)]
    return timeline_svg(logs, [arrow for block in blocks for arrow in block.arrows], spans)


def _padded(order: GlobalOrder, arrays: Sequence[GlobalRegion]) -> tuple[str, ...]:
    """The warnings of arrays that end up with padding in them."""
    nbytes = Counter[tuple[str, str]]()
    for span in order.padded():
        for region in arrays:
            if region.start <= span.start < region.stop:
                nbytes[f"{site_text(span.writer[3])}: {span.writer[0]}", region.name] += span.stop - span.start
    return tuple(
        f"{by}: {count} bytes of {name} are left holding what DataCopyPad filled blocks up to 32 bytes with: rows in the "
        "Unified Buffer begin 32 bytes apart"
        for (by, name), count in nbytes.items()
    )


def _arguments(
    arrays: Sequence[Array | float | None], workspace: int | Array | None, names: Sequence[str]
) -> list[GlobalAddress | float]:
    places: list[GlobalAddress | float] = []
    for name, array in zip(names, arrays, strict=True):
        if isinstance(array, np.ndarray):
            places.append(GlobalAddress(array, name))
        elif array is None or isinstance(array, (int, float, np.number, np.bool_)):
            places.append(array.item() if isinstance(array, np.generic) else array or 0)
        else:
            raise DtypeError(f"{name}: expected a NumPy array or a number, got {type(array).__name__}")
    if workspace is not None:
        memory = np.full(workspace, 0xFF, np.uint8) if isinstance(workspace, int) else workspace
        places.append(GlobalAddress(memory, "workspace"))
    return places
