"""Run a kernel function on the simulated SoC: once a block, each block on a core of its own.

A kernel is a Python function that takes what a ``__global__ __aicore__`` function takes: one address an array, then
the workspace and the tiling where they are given. One block runs at a time, in a fixed order, so that every run gives
the same bits: until it ends or waits for a flag that is not up; then the next one in order goes on. Only while a
block waits do others get threads of their own, so that kernels without barriers between blocks run in the caller's
thread.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from lngrad.ascend import soc as socs
from lngrad.ascend.device.core import Core, Rules, Strictness
from lngrad.ascend.device.global_memory import GlobalAddress, GlobalRegion, GlobalRegions
from lngrad.ascend.device.pipes import S
from lngrad.ascend.device.races import GlobalOrder
from lngrad.ascend.device.report import BlockReport, LaunchReport, timeline_svg
from lngrad.ascend.device.running import current_core
from lngrad.ascend.device.sync import check_flags
from lngrad.ascend.faults import DeadlockFault, DeviceFault
from lngrad.ascend.tiling.structs import TilingStruct
from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import Array

NEW, RUNNING, WAITING, ENDED = "has not started", "runs", "waits", "has ended"
Barrier = tuple[object, int]  # a flag, and how often it has been used before


class _Abandoned(BaseException):
    """Unwinds a waiting block when another one has failed."""


class BlockSchedule:
    """The blocks of one launch, which take turns.

    Args:
        count: How many.
        run: Runs the kernel on the block of that index, to its end; makes the core when it starts.
    """

    def __init__(self, count: int, run: Callable[[int], None]) -> None:
        self._run = run
        self._states = [NEW] * count
        self._gates = defaultdict[int, threading.Semaphore](lambda: threading.Semaphore(0))
        self._threads: list[threading.Thread] = []
        self._sets: Counter[tuple[object, int]] = Counter()  # (flag, block) -> how often set
        self._waits: Counter[tuple[object, int]] = Counter()  # (flag, block) -> how often waited for
        self._snapshots = defaultdict[Barrier, dict[int, list[int]]](dict)  # what each block had finished
        self._passed: Counter[Barrier] = Counter()
        self._reasons: dict[int, tuple[Barrier, str]] = {}  # what a waiting block waits for
        self._failure: BaseException | None = None

    def run_all(self) -> None:
        """Run every block to its end.

        Raises:
            BaseException: The first one that a kernel raised.
            DeadlockFault: No block can go on.
        """
        self._drive(0)
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def set(self, core: Core, flag: object, snapshot: list[int]) -> None:
        """Note that a block has set a flag, and what it had finished; the flag is up when all have."""
        number = self._sets[flag, core.index]
        self._sets[flag, core.index] += 1
        self._snapshots[flag, number][core.index] = snapshot

    def wait(self, core: Core, flag: object, what: str) -> None:
        """Wait until a flag is up; other blocks run meanwhile.

        Raises:
            DeadlockFault: It will never be.
        """
        if self._failure is not None:
            raise _Abandoned
        index, count = core.index, len(self._states)
        if count > core.soc.vector_cores:
            raise DeadlockFault(
                f"{what}: {count} blocks wait for each other, and {core.soc.name} runs {core.soc.vector_cores} at a "
                "time: a device would hang"
            )
        barrier = (flag, self._waits[flag, index])
        self._waits[flag, index] += 1
        if len(self._snapshots[barrier]) != count:
            self._states[index], self._reasons[index] = WAITING, (barrier, what)
            following = self._next(index)
            if following is None:
                self._states[index] = RUNNING
                raise self._deadlock(index)
            if self._states[following] is NEW:
                target, context = socs.current(), contextvars.copy_context()

                def work() -> None:
                    socs.use(target.soc.name, cann=target.cann, mode=target.mode, rounding=target.rounding)
                    context.run(self._drive, following)

                thread = threading.Thread(target=work, name=f"block {following}", daemon=True)
                self._states[following] = RUNNING
                try:
                    thread.start()
                except RuntimeError as reason:  # a limit on threads
                    raise RuntimeError(f"launch: expected a thread for block {following}, got: {reason}") from None
                self._threads.append(thread)
            else:
                self._gates[following].release()
            self._gates[index].acquire()
            if self._failure is not None:
                raise _Abandoned
            self._states[index] = RUNNING
        snapshots = self._snapshots[barrier]
        core.clock.acquire(S, snapshots[index])
        core.clock.learn_others([snapshots[other] for other in range(count)])
        self._passed[barrier] += 1
        if self._passed[barrier] == count:
            del self._passed[barrier], self._snapshots[barrier]

    def _next(self, after: int) -> int | None:
        """Return the next block in turn that can run, or None."""
        for index in chain(range(after + 1, len(self._states)), range(after + 1)):
            state = self._states[index]
            if state is NEW or (
                state is WAITING and len(self._snapshots[self._reasons[index][0]]) == len(self._states)
            ):
                return index
        return None

    def _drive(self, index: int) -> None:
        """Run a block to its end, and then others that have not started, or let one that waits go on."""
        while True:
            self._states[index] = RUNNING
            try:
                self._run(index)
            except BaseException as error:
                self._fail(error)
            self._states[index] = ENDED
            if self._failure is not None:
                return
            following = self._next(index)
            if following is None:
                if WAITING in self._states:
                    self._fail(self._deadlock(index))
                return
            if self._states[following] is WAITING:
                self._gates[following].release()
                return
            index = following

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure, and let every waiting block unwind."""
        if isinstance(error, _Abandoned):
            return
        if self._failure is None:
            self._failure = error
            for index, state in enumerate(self._states):
                if state is WAITING:
                    self._gates[index].release()

    def _deadlock(self, index: int) -> DeadlockFault:
        waiting = [
            f"block {block} waits in {what}"
            for block, (_, what) in sorted(self._reasons.items())
            if self._states[block] is WAITING or (block == index and self._states[block] is RUNNING)
        ]
        ended = ", ".join(str(block) for block, state in enumerate(self._states) if state is ENDED)
        tail = f"; ended: {ended}" if ended else ""
        return DeadlockFault(f"deadlock: {'; '.join(waiting)}{tail}. A device would wait for ever [ErrorSync3]")


def launch(
    kernel: Callable[..., None],
    block_num: int,
    *arrays: Array,
    workspace: int | Array | None = None,
    tiling: bytes | TilingStruct | None = None,
    tiling_key: int = 0,
    soc: str | socs.Soc | None = None,
    strictness: Strictness = "checked",
    auto_sync: bool = True,
    ordering: bool = True,
    timeline: bool = False,
    memory: Sequence[GlobalRegion] = (),
) -> LaunchReport:
    """Run ``kernel`` on ``block_num`` blocks, in place on ``arrays``.

    Blocks run one after the other in a fixed order, and take turns where they wait for each other.

    Args:
        kernel: Called once a block as ``kernel(address, …[, workspace][, tiling])``.
        block_num: Blocks; more than the SoC has vector cores run in turns on a device.
        arrays: Contiguous NumPy arrays; results are written into them.
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
    addresses = _addresses(arrays, workspace)
    arguments: list[Any] = list(addresses)
    if tiling is not None:
        arguments.append(tiling.to_bytes() if isinstance(tiling, TilingStruct) else bytes(tiling))
    rules = Rules(strictness, auto_sync, ordering, timeline)
    order, regions = GlobalOrder(), GlobalRegions([*(GlobalRegion(a.array, a.name) for a in addresses), *memory])
    reports: dict[int, BlockReport] = {}
    kept: dict[int, Core] = {}

    def run(index: int) -> None:
        core = Core(target, index=index, count=block_num, rules=rules, order=order)
        core.regions, core.tiling_key, core.schedule = regions, tiling_key, schedule
        _run(kernel, core, arguments)
        reports[index] = BlockReport.of(core)
        if timeline:
            kept[index] = core

    schedule = BlockSchedule(block_num, run)
    schedule.run_all()
    picture = None
    if timeline:
        arrows = [arrow for core in kept.values() for arrow in core.arrows]
        picture = timeline_svg([(f"block {index}", kept[index].log) for index in range(block_num)], arrows)
    blocks = tuple(reports[index] for index in range(block_num))
    return LaunchReport(getattr(kernel, "__name__", "kernel"), target.name, target.ub_bytes, blocks, picture)


def _addresses(arrays: tuple[Array, ...], workspace: int | Array | None) -> list[GlobalAddress]:
    for index, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            raise DtypeError(f"arrays[{index}]: expected a NumPy array, got {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise ShapeError(f"arrays[{index}]: global memory must be contiguous, got strides {array.strides}")
    addresses = [GlobalAddress(array, f"arrays[{index}]") for index, array in enumerate(arrays)]
    if workspace is not None:
        memory = np.full(workspace, 0xFF, np.uint8) if isinstance(workspace, int) else workspace
        addresses.append(GlobalAddress(memory, "workspace"))
    return addresses


def _run(kernel: Callable[..., None], core: Core, arguments: list[Any]) -> None:
    token = current_core.set(core)
    core.quiet = True
    try:
        with np.errstate(all="ignore"):  # infinities and NaN are results on the device, not events
            kernel(*arguments)
        for pipe in core.pipes:
            pipe.check_leaks()
        check_flags(core)
    except DeviceFault as fault:
        fault.args = (f"block {core.index}: {fault}",)
        raise
    finally:
        current_core.reset(token)
