"""A simulated vector core: every instruction enters here, as plain integers, and is checked here.

``Core.issue`` takes vector instructions; `copies.copy_global`, by way of ``Core.touch``, those between global memory and
the Unified Buffer. LocalTensor's methods, the functions that Python kernels call and compiled kernels all end here, so
that there is one place for the rules, the counters and the texts.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from lngrad.typing import Array, Dtype
from lngrad_ascend import soc as socs
from lngrad_ascend.device.cycles import Trace
from lngrad_ascend.device.descriptors import PACKED, Descriptor, check_place
from lngrad_ascend.device.global_memory import GlobalRegion, GlobalRegions
from lngrad_ascend.device.operations import OPERATIONS
from lngrad_ascend.device.pipes import (
    ALWAYS,
    IN_ORDER,
    MTE2,
    PIPE_WORDS,
    READ_V,
    VECTOR,
    WRITE_V,
    PipeClock,
    S,
    Snapshot,
    V,
)
from lngrad_ascend.device.planning import PlannedInstruction, plan_instruction
from lngrad_ascend.device.races import LINE_BYTES, NO_READS, READ, WRITE, Conflict, GlobalOrder, Span, race
from lngrad_ascend.device.report import (
    NOBODY,
    BlockReport,
    Instruction,
    Site,
    caller,
    kernel_site,
    site_text,
)
from lngrad_ascend.device.schedule import BlockSchedule
from lngrad_ascend.device.unified_buffer import ALLOCATED, ENQUED, UNUSED, VECIN, Allocation, UnifiedBuffer
from lngrad_ascend.faults import (
    AscendWarning,
    DeviceFault,
    LeakFault,
    LifetimeFault,
    PoisonFault,
    QueueFault,
    RaceFault,
    SyncFault,
)

Strictness = Literal["checked", "device"]
MAX_PLANS = 8192
TEMPORARY = "the framework's temporary buffer"
POLLS, PLACES = 8, 256  # reads of one of so many places, and of no new one: then other blocks have their turn
RECENT = 256  # instructions that the picture of a race shows


@dataclass(frozen=True)
class Rules:
    """The strictness of a launch.

    Attributes:
        strictness: "checked": what CANN's CPU checker reports, and more, is an error. "device": what the hardware
            runs without an error, runs: use after FreeTensor, content that survives it, tensors never freed, the states
            of queues.
        auto_sync: Whether the compiler inserts barriers between vector instructions, and flags around scalar
            accesses.
        ordering: Whether races between pipes and between blocks are looked for.
        timeline: Whether every instruction is kept for the picture in the report.
        cycles: Whether what the cycles are computed from is kept.
    """

    strictness: Strictness = "checked"
    auto_sync: bool = True
    ordering: bool = True
    timeline: bool = False
    cycles: bool = False


@dataclass
class Tally:
    """The counts of a block: bytes moved; instructions, calls of tile APIs and instructions inside these, by name."""

    bytes_in: int = 0
    bytes_out: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    tile_apis: Counter[str] = field(default_factory=Counter)
    api_instructions: Counter[str] = field(default_factory=Counter)


class BlockResult(NamedTuple):
    """The report of a block, the events that its cycles are computed from, and the instructions and arrows to draw."""

    report: BlockReport
    trace: Trace
    log: Sequence[Instruction]
    arrows: Sequence[tuple[Instruction, Instruction]]


class Core:
    """A vector core that runs one block.

    Args:
        soc: The SoC.
        index: Of the block.
        count: How many blocks were launched.
        rules: How strict.
        order: Accesses to global memory, shared by the blocks of a launch.
        size: Bytes of the Unified Buffer where they are not the SoC's.
        regions: The arrays of the launch, by address; None outside a launch.
        schedule: What lets blocks wait for each other; None outside a launch.
        tiling_key: What TILING_KEY_IS compares with.

    A launch calls ``entered`` around the kernel, ``finish`` at its end, and takes the ``result``. A vector instruction
    enters by ``issue``, other accesses by ``access`` and ``touch`` (of the Unified Buffer), ``touch_global`` and
    ``scalar_global``; ``reads`` and ``writes`` let other blocks go on where one polls memory. A tile API runs inside
    ``tile_api``, and counts by ``looped`` what one NumPy call stands for. ``record`` keeps what touches no memory.
    ``tolerate``, ``warn`` and ``remark`` are for rules that not everybody enforces; ``owner`` is for their texts.

    Attributes:
        checked: Whether the order of queues and the life of tensors are enforced.
        has_pipe: Whether the kernel has made a TPipe.
        site: Where the tile API that runs now was called; None outside of one.
        atomic_site: Where it was set.
        atomic: The element type of SetAtomicAdd, SetAtomicMax or SetAtomicMin, or None.
        combine: What such a copy makes of two elements.
        control: Where bits of CTRL were set, as long as any is.
        loops: By whether copies go inward, what SetLoopModePara has set (``loops.LoopMode``).
        refreshed: What other cores had finished at NdDmaDci, as far as this one knew; None: it was not called.
        quiet: Whether NumPy's warnings are silenced, once for a kernel.
        running: The vector instruction that is computed, or was last.
    """

    def __init__(
        self,
        soc: socs.Soc,
        *,
        index: int = 0,
        count: int = 1,
        rules: Rules | None = None,
        order: GlobalOrder | None = None,
        size: int | None = None,
        regions: GlobalRegions | None = None,
        schedule: BlockSchedule | None = None,
        tiling_key: int = 0,
    ) -> None:
        self.soc = soc
        self.index = index
        self.count = count
        self.rules = rules or Rules()
        self.checked = self.rules.strictness == "checked"
        self.ub = UnifiedBuffer(soc, size)
        self.clock = PipeClock(self.rules.ordering, self.rules.auto_sync, soc.arch == 3510, index)
        self.trace = self.clock.trace = Trace(apart=self.rules.timeline) if self.rules.cycles else None
        self.order = order or GlobalOrder()
        self.tally = Tally()
        most = None if self.rules.timeline else RECENT
        self.log: deque[Instruction] = deque(maxlen=most)
        self.arrows: deque[tuple[Instruction, Instruction]] = deque(maxlen=most)
        self.has_pipe = False
        self.site: Site | None = None
        self.atomic: Dtype | None = None
        self.mutexes: dict[int, Snapshot | None] = {}  # what the last unlock has finished; None: locked
        self.atomic_site: Site | None = None
        self.combine: Callable[..., object] = np.add
        self.loops: dict[bool, Any] = {}
        self.control: Site | None = None
        self.refreshed: list[Snapshot] | None = None
        self.quiet = False
        self.regions, self.schedule, self.tiling_key = regions, schedule, tiling_key
        self.polled: dict[tuple[int, int], int] = {}  # how often places of global memory were read, from `fresh` on
        self.fresh = self.held = 0  # held: the sum of the Unified Buffer's words when others had their turn
        self.flags: dict[tuple[int, int], tuple[list[int], Instruction]] = {}
        self.remarks: dict[str, None] = {}
        self.warnings: dict[tuple[str, str], str] = {}  # by place and words
        self.running: PlannedInstruction | None = None
        self.events = defaultdict[int, set[int]](set)
        self._plans: dict[Sequence[int] | bytes, PlannedInstruction] = {}
        self._counts = [0] * len(OPERATIONS)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run a kernel: what it calls goes to this core, and the text of a fault starts with the block."""
        token = current_core.set(self)
        self.quiet = True
        try:
            # Infinities and NaN are results on the device, not events; that a half becomes one is worth a word.
            with np.errstate(all="ignore", over="call", call=self.overflowed):
                yield
        except DeviceFault as fault:
            fault.args = (f"block {self.index}: {fault}",)
            raise
        finally:
            current_core.reset(token)

    def finish(self) -> None:
        """Check what a kernel leaves at its end; "device" leaves flags and tensors to the next one.

        Raises:
            LeakFault: Tensors were not freed.
            SyncFault: Flags are raised.
        """
        self.check_leaks()
        if self.flags and self.checked:
            left = ", ".join(
                f"{instruction[0]} at {site_text(instruction[3])}" for _, instruction in self.flags.values()
            )
            raise SyncFault(f"end of kernel: {len(self.flags)} flags were never waited for: {left} [ErrorSync3]")
        for mode in self.loops.values():
            self.tolerate(
                SyncFault(f"end of kernel: {mode.describe()} and was never reset: ResetLoopModePara is missing")
            )
        if self.control is not None:
            self.site = self.control
            self.warn(
                "SetCtrlSpr: bits are still set at the kernel's end, for the next kernel too: ResetCtrlSpr is missing"
            )
        if self.atomic is not None:
            self.site = self.atomic_site
            self.warn(
                "SetAtomicAdd, SetAtomicMax or SetAtomicMin is still on at the kernel's end: SetAtomicNone is missing"
            )

    def issue(
        self,
        site: Site,
        scalar: float,
        dst: int,
        src0: int,
        src1: int,
        descriptor: tuple[int, ...] | bytes,
        src2: int = 0,
    ) -> None:
        """Check and execute one vector instruction.

        Args:
            site: Where the kernel issues it: (file, line) or (code, offset).
            scalar: The scalar operand, where there is one.
            dst, src0, src1: Handles of the tensors: which life of which allocation they belong to.
            descriptor: A ``Descriptor`` as a tuple, or its integers as bytes (``PACKED``).
            src2: Handle of a third source.

        Raises:
            DeviceFault: A rule is broken.
            DtypeError: A type that the instruction does not take.
        """
        plan = self._plans.get(descriptor) or self._plan(descriptor, (dst, src0, src1, src2))
        handles = self.ub.handles
        for handle, (role, bit) in zip((dst, src0, src1, src2), plan.uses):  # noqa: B905
            allocation = handles[handle]
            if allocation.handle != handle or allocation.forbidden & bit:
                start = plan.write.start if bit == WRITE_V else -1
                self.refuse(plan.name, role, allocation, handle, start, V, bit == WRITE_V)
        instruction = (plan.name, V, self.index, self.site or site)
        poisoned = self._order(plan, instruction)
        if self.ub.stale:
            self._warn_stale([run for access in plan.reads for run in access.runs])
            self.ub.unmark_stale(plan.write.runs)
        if poisoned:
            self._spread(plan, instruction, scalar)
        if self.ub.padded:
            self._carry_padding(plan)
        self.running = plan
        arguments = (scalar,) if plan.arguments is None else plan.arguments
        if self.quiet:
            plan.function(*arguments)
        else:
            with np.errstate(all="ignore"):
                plan.function(*arguments)
        epoch = self.clock.now[V]
        for access in plan.reads:
            for span in access.spans:
                if span.read_epochs[V] != epoch:
                    span.read_epochs[V], span.readers[V] = epoch, instruction
        for span in plan.write.spans:
            if not (poisoned or span.valid):
                self.ub.give_value(span)
            span.writer, span.write_epoch, span.writer_pipe = instruction, epoch, V
        if poisoned:
            self.ub.doubt(plan.write.runs)
        if self.trace is not None:
            self.trace.issued(plan, instruction)
        if plan.waits:
            self.clock.acquire(S, self.clock.release(V))
        self._counts[plan.op] += 1
        self.log.append(instruction)

    def _order(self, plan: PlannedInstruction, instruction: Instruction) -> bool:
        """Check that what an instruction touches is in order. Return whether it reads bytes that have no value."""
        known, poisoned = self.clock.known[V], False
        for access in plan.reads:
            for span in access.spans:
                if not (span.live and span.valid and span.write_epoch <= known[span.writer_pipe]):
                    access.spans = tuple(self._check_read(access.runs, instruction))
                    poisoned = not self.ub.settle(access.spans) or poisoned
                    break
        for span in plan.write.spans:
            if span.live and span.write_epoch <= known[span.writer_pipe]:
                epochs = span.read_epochs
                if epochs[1] <= known[1] and epochs[3] <= known[3] and epochs[0] <= known[0]:
                    continue
            plan.write.spans = tuple(self._check_write(plan.write.role, plan.write.runs, instruction))
            break
        return poisoned

    def _spread(self, plan: PlannedInstruction, instruction: Instruction, scalar: float) -> None:
        """Let dst have no value where it depends on bytes that have none; offsets must have one."""
        poison = self.ub.poison
        if plan.name == "Gather":
            self.report_poison(plan.reads[1].role, plan.reads[1].runs, instruction)
        for access in plan.reads:
            self.trace_poison(access.runs, instruction)
        plan.spread(poison, scalar)

    def trace_poison(self, runs: Sequence[tuple[int, int]], instruction: Instruction) -> None:
        """Keep who was the first to read bytes that have no value."""
        for start, stop in runs:
            for number in np.unique(self.ub.poison[start:stop]).tolist():
                origin = self.ub.origin(number)
                origin.first = origin.first or instruction

    def _carry_padding(self, plan: PlannedInstruction) -> None:
        """Let dst hold padding where an elementwise instruction makes it of padding; whatever else is written is none."""
        padding = self.ub.padding
        if OPERATIONS[plan.op].operands.elementwise and any(
            padding[start:stop].any() for access in plan.reads for start, stop in access.runs
        ):
            plan.spread(padding, 1)
        else:
            self.ub.pad(plan.write.runs, 0)

    def overflowed(self, *_: object) -> None:
        """Warn of a half that a vector instruction has made infinite of finite ones."""
        if self.running is not None and self.running.half:
            self.warn(f"{self.running.name}: a result is beyond 65504, the largest half, and becomes infinity")

    def _plan(self, descriptor: tuple[int, ...] | bytes, handles: tuple[int, int, int, int]) -> PlannedInstruction:
        d = Descriptor(*(PACKED.unpack(descriptor) if isinstance(descriptor, bytes) else descriptor))
        roles = ("dst", *OPERATIONS[d.op].operands.sources)
        places = dict(zip(roles, zip(handles, (d.dst, d.src0, d.src1, d.src2), strict=True), strict=False))
        places["sharedTmpBuffer"] = (handles[2], d.src1)

        def names(role: str) -> str:
            handle, start = places[role]
            return f"{role} ({self.ub.handles[handle].name} at byte {start})"

        plan = plan_instruction(d, self.ub, names, self.tolerate)
        plan.descriptor = d  # in the counter mode, planning has another form of it
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[descriptor] = plan
        if plan.write.runs:
            self.ub.peak = min(max(self.ub.peak, plan.write.runs[-1][1]), self.ub.size)
        return plan

    def touch(
        self, instruction: Instruction, role: str, handle: int, runs: Sequence[tuple[int, int]], bit: int,
        carries: bool = False, poisoned: bool = False,
    ) -> None:  # fmt: skip
        """Check and keep one access to the Unified Buffer that is not a planned instruction.

        Args:
            instruction: What makes it, and on which pipe.
            role: Its operand.
            handle: Of the tensor.
            runs: Byte ranges.
            bit: What it does, as in ``Allocation.forbidden``.
            carries: Whether the caller carries on which bytes have no value; else reading them is reported.
            poisoned: Whether the caller has already noted which bytes a write gives a value; else it gives one to all.
        """
        pipe, writing = instruction[1], not bit & 9
        allocation = self.ub.handles[handle]
        if allocation.handle != handle or allocation.forbidden & bit:
            start = runs[0][0] if runs else allocation.start
            self.refuse(instruction[0], role, allocation, handle, start, pipe, writing)
        if writing:
            if self.ub.padded:
                self.ub.pad(runs, 0)
            for span in self._check_write(role, runs, instruction):
                if pipe == MTE2 == span.writer_pipe and span.writer is not NOBODY and max(span.read_epochs) < 0:
                    self.remark(
                        f"{instruction[0]}: {role} ({self.owner(span.start)}) is overwritten before anything has read what "
                        f"{span.writer[0]} at {site_text(span.writer[3])} copied there [ErrorWrite3]"
                    )
                if poisoned:
                    span.valid = False
                    self.ub.settle((span,))
                elif not span.valid:
                    self.ub.give_value(span)
                span.writer = instruction
                span.write_epoch, span.writer_pipe = self.clock.now[pipe], pipe
                span.read_epochs[:] = NO_READS  # they are in order before this write, and it before the next one
            if runs:
                self.ub.peak = max(self.ub.peak, runs[-1][1])
        else:
            spans = self._check_read(runs, instruction)
            if not self.ub.settle(spans) and not carries:
                self.report_poison(role, runs, instruction)
            for span in spans:
                span.read_epochs[pipe], span.readers[pipe] = self.clock.now[pipe], instruction
        if self.ub.stale:
            (self.ub.unmark_stale if writing else self._warn_stale)(runs)

    def _check_read(self, runs: Sequence[tuple[int, int]], instruction: Instruction) -> list[Span]:
        known = self.clock.known[instruction[1]]
        read: list[Span] = []
        for start, stop in runs:
            spans = self.ub.spans.cover(start, stop)
            for span in spans:
                if span.write_epoch > known[span.writer_pipe]:
                    self._unordered(span, span.writer, True, instruction, False)
            read += spans
        return read

    def _check_write(self, role: str, runs: Sequence[tuple[int, int]], instruction: Instruction) -> list[Span]:
        known = self.clock.known[instruction[1]]
        merged = []
        for start, stop in runs:
            spans = self.ub.spans.cover(start, stop)
            for span in spans:
                # Reads since the last write first: they are what the kernel's author has in mind.
                for pipe, epoch in enumerate(span.read_epochs):
                    if epoch > known[pipe] and span.readers[pipe] is not instruction:
                        self._unordered(span, span.readers[pipe], False, instruction, True)
                if span.write_epoch > known[span.writer_pipe] and span.writer is not instruction:
                    self._unordered(span, span.writer, True, instruction, True)
            merged.append(spans[0] if len(spans) == 1 else self.ub.spans.merge(start, stop))
        return merged

    def _unordered(self, span: Span, earlier: Instruction, wrote: bool, later: Instruction, writes: bool) -> None:
        """Refuse a race; where the scalar unit comes second, auto_sync lets it wait, and with it all that follows."""
        if later[1] == S and self.rules.auto_sync:
            self.clock.acquire(S, self.clock.release(earlier[1]))
            return
        conflict = Conflict(earlier, wrote, span.stop - span.start)
        raise race(conflict, later, writes, self.owner(span.start), self.log, self.arrows)

    def report_poison(self, role: str, runs: Sequence[tuple[int, int]], instruction: Instruction) -> None:
        """Refuse a use of bytes that have no value; "device" warns, for the hardware uses something.

        Raises:
            PoisonFault: Naming who made them, who read them first, and who uses them.
        """
        for start, stop in runs:
            holes = np.flatnonzero(self.ub.poison[start:stop])
            if not holes.size:
                continue
            first = start + int(holes[0])
            origin = self.ub.origin(int(self.ub.poison[first]))
            by = origin.first
            text = (
                f"{instruction[0]}: {role} ({self.owner(start)}) {origin.text} at byte {first}, {holes.size} of the "
                f"{stop - start} bytes read hold no value"
                + (f"; the first to read such bytes was {by[0]} at {site_text(by[3])}" if by else "")
                + " [ErrorRead2]"
            )
            if self.checked:
                raise PoisonFault(text)
            self.warn(text)
            self.ub.poison[start:stop] = 0

    def tolerate(self, fault: DeviceFault) -> None:
        """Raise a fault that only the checker has; "device" remarks it, for the hardware runs on."""
        if self.checked:
            raise fault
        self.remark(str(fault))

    def remark(self, text: str) -> None:
        """Keep what is harmless here and worth a look, once a place."""
        self.remarks.setdefault(f"{site_text(self.site or kernel_site())}: {text}")

    def warn(self, text: str) -> None:
        """Keep what runs on a device, and probably gives another result than is wanted: once a place, whatever its numbers."""
        site = site_text(self.site or kernel_site())
        self.warnings.setdefault((site, re.sub(r"\d+", "", text)), f"{site}: {text}")
        if self.schedule is None:  # no launch will give it
            warnings.warn(f"{site}: {text}", AscendWarning, stacklevel=2)

    def _warn_stale(self, runs: Sequence[tuple[int, int]]) -> None:
        for text in self.ub.take_stale(runs):
            self.warn(text)

    def owner(self, start: int) -> str:
        """Return who owns a byte of the Unified Buffer, for texts."""
        every = (*self.ub.allocations, self.ub.compared)
        names = (a.name for a in every if a.start <= start < a.start + a.size)
        return f"{next(names, TEMPORARY)} at byte {start}"

    def refuse(
        self, api: str, role: str, allocation: Allocation, handle: int, start: int, pipe: int, writing: bool
    ) -> None:
        """Refuse a tensor that is dead, and remark one whose queue has it in a state that forbids the access.

        Raises:
            LifetimeFault: It was freed.
            QueueFault: The state forbids it, and no races are looked for.
        """
        if not self.checked and allocation.handle != handle and allocation in self.ub.allocations:
            return  # freed, or handed out again: the hardware does not know
        name = f"{allocation.name} at byte {allocation.start if start < 0 else start}"
        code = "ErrorWrite1" if writing else "ErrorRead1"
        if allocation.handle != handle:
            raise LifetimeFault(f"{api}: {role} ({name}) was freed and must not be used any more [{code}]")
        inward = allocation.position is VECIN
        step = "the copy and the computation" if inward else "the computation and the copy"
        if allocation.state is ENQUED:
            text = f"{api}: {role} ({name}) waits in its queue, DeQue it first [ErrorBuffer2]"
        else:
            if allocation.state is ALLOCATED:
                fix = f"EnQue and DeQue it between {step}"
            else:
                fix = f"free it and allocate a new one before the next {'copy' if inward else 'computation'}"
            text = (
                f"{api}: {role} ({name}) is {allocation.state.value}, {PIPE_WORDS[pipe]} must not use it: {fix} "
                "[ErrorBuffer2]"
            )
        if not self.rules.ordering:
            raise QueueFault(text)
        # Whether something is missing, the search for races knows.
        self.remark(text)
        allocation.forbidden = 0

    def record(self, name: str, pipe: int, site: Site | None = None) -> Instruction:
        """Keep an instruction in the log, where a tile API or the function that calls this was called, or at ``site``."""
        instruction = (name, pipe, self.index, self.site or site or caller(3))
        self.log.append(instruction)
        if self.trace is not None:
            self.trace.last = instruction
        return instruction

    def touch_global(
        self,
        instruction: Instruction,
        region: GlobalRegion,
        ranges: Sequence[tuple[int, int]],
        kind: int,
        new: Array | None = None,
        old: Array | None = None,
    ) -> None:
        """Check and keep accesses to global memory.

        Args:
            instruction: What makes them, and on which pipe.
            region: The memory.
            ranges: First byte of each, byte behind the last.
            kind: READ, WRITE or ATOMIC.
            new, old: What a copy writes, and what is there already: two writes of the same need no order.

        Raises:
            RaceFault: Nothing orders one behind an earlier one.
        """
        if self.regions is None:  # outside a launch memory comes and goes
            return
        for first, behind in ranges:
            stop = region.start + min(behind, region.data.size)
            conflict = self.order.note(self.clock, region.start + first, stop, instruction, kind)
            if conflict is None:
                continue
            other, writes, nbytes, cached = conflict
            if cached:
                raise RaceFault(
                    f"{instruction[0]} reads {nbytes} bytes of {region.name} that {other[0]} at {site_text(other[3])} wrote, "
                    "and they may still be in the data cache of the scalar unit. Missing between them: "
                    "DataCacheCleanAndInvalid [ErrorSync2]"
                )
            if not (writes and kind != READ and new is not None and bool((new == old).all())):
                raise race(conflict, instruction, kind != READ, region.name, self.log, self.arrows)
            self.remark(
                f"{instruction[0]} and {other[0]} at {site_text(other[3])} write the same values to {region.name}, and "
                "nothing orders the two"
            )

    def reads(self, place: tuple[int, int]) -> None:
        """Note a read of bytes of global memory; behind eight of the same ones, and of no new ones, others have their turn."""
        counts, schedule = self.polled, self.schedule
        if schedule is None:
            return
        if place not in counts:
            if len(counts) == PLACES:
                counts.clear()
            counts[place] = self.fresh = self.fresh + POLLS  # what was read before counts no more
            schedule.still = 0
            return
        counts[place] = reads = max(counts[place], self.fresh) + 1
        if reads == self.fresh + POLLS:
            self.fresh, held, self.held = reads, self.held, int(self.ub.data.view(np.uint64).sum())
            loop = f"a loop that reads global memory at {site_text(self.site or kernel_site())}"
            schedule.give_way(self.index, loop, POLLS * len(counts), held != self.held)

    def writes(self, target: Array, values: Array | float) -> None:
        """Note that bytes of global memory change: blocks that poll memory may go on."""
        if self.schedule is not None and self.schedule.still and bool((target != values).any()):
            self.schedule.still = 0

    def scalar_global(self, api: str, region: GlobalRegion, start: int, stop: int, writing: bool) -> None:
        """Check and keep an access of the scalar unit to global memory."""
        instruction = (api, S, self.index, self.site or kernel_site())
        self.clock.before_scalar_access()
        if not writing:
            self.reads((region.start + start, region.start + stop))
        self.touch_global(instruction, region, ((start, stop),), WRITE if writing else READ)
        if writing and self.rules.ordering and self.regions is not None:
            other = self.order.share(self.clock, instruction, region.start, start, stop)
            if other is not None:
                raise RaceFault(
                    f"blocks {other[2]} and {self.index} write one line of {LINE_BYTES} bytes of {region.name} with "
                    f"SetValue, at {site_text(other[3])} and {site_text(instruction[3])}: the data cache of each core "
                    f"writes back the whole line. Missing between them: {LINE_BYTES} bytes for each block, or SyncAll "
                    "and DataCacheCleanAndInvalid [ErrorSync2]"
                )
        self.clock.after_scalar_access()
        self.log.append(instruction)
        if self.trace is not None:
            self.trace.accessed(instruction, in_memory=True)

    @contextmanager
    def tile_api(self, api: str) -> Iterator[None]:
        """Count one call of a tile API; inside it vector instructions are in order, by its own barriers."""
        before = self.instructions().total()
        known, outer = self.clock.known[V], self.site
        self.site = outer or kernel_site()
        in_order, known[V] = known[V], ALWAYS
        if self.trace is not None:
            self.trace.kind = IN_ORDER
        try:
            yield
        finally:
            self.site = outer
            if self.trace is not None:
                self.trace.kind = VECTOR
            known[V] = max(in_order, self.clock.now[V]) if self.rules.ordering else ALWAYS
            self.clock.now[V] += 1
        self.tally.tile_apis[api] += 1
        self.tally.api_instructions[api] += self.instructions().total() - before

    def looped(self, name: str, calls: int, nbytes: int, chained: bool = False) -> None:
        """Count ``calls`` vector instructions that one NumPy call stands for: see ``cycles.Trace.looped``."""
        self.tally.instructions[name] += calls
        if self.trace is not None:
            self.trace.looped(name, calls, nbytes, chained, (name, V, self.index, self.site or ("", 0)))

    def instructions(self) -> Counter[str]:
        """Return how many instructions of each name the core has executed."""
        counts = self.tally.instructions.copy()
        counts.update({o.name: count for o, count in zip(OPERATIONS, self._counts, strict=True) if count})
        return counts

    def access(
        self, api: str, role: str, place: tuple[int, int, int, int], align: int, pipe: int, writing: bool,
        carries: bool = False,
    ) -> None:  # fmt: skip
        """Check an access of a unit to part of a tensor: (handle, start, stop, end of the tensor)."""
        self.running = None
        handle, start, stop, end = place
        if stop > end or start % align:  # its text takes long
            check_place(api, f"{role} ({self.owner(start)})", start, stop, end, align)
        instruction = (api, pipe, self.index, self.site or kernel_site())
        bit = WRITE_V if writing else READ_V
        self.touch(instruction, role, handle, ((start, stop),) if stop > start else (), bit, carries)
        self.log.append(instruction)
        if self.trace is not None and pipe == S:
            self.trace.accessed(instruction)

    def check_leaks(self, among: Sequence[Allocation] | None = None, when: str = "end of kernel") -> None:
        """Refuse tensors (default: of all) that were not freed, or that still wait; "device" lets them pass.

        Raises:
            LeakFault: Naming every one.
        """
        left = [a for a in (self.ub.allocations if among is None else among) if a.state not in UNUSED]
        if left and self.checked:
            names = ", ".join(f"{a.name} ({a.state.value})" for a in left)
            raise LeakFault(f"{when}: {len(left)} tensors were not freed: {names} [ErrorLeak]")

    def result(self) -> BlockResult:
        """Return what the block did."""
        tally = self.tally
        report = BlockReport(
            self.index,
            self.ub.peak,
            tally.bytes_in,
            tally.bytes_out,
            dict(tally.tile_apis),
            dict(self.instructions().most_common()),
            dict(tally.api_instructions),
            tuple(self.remarks),
            tuple(self.warnings.values()),
        )
        drawn = self.rules.timeline
        return BlockResult(report, self.trace or Trace(), self.log if drawn else (), self.arrows if drawn else ())


current_core: ContextVar[Core | None] = ContextVar("current_core", default=None)


def running(api: str) -> Core:
    """Return the core that runs the calling kernel.

    Raises:
        DeviceFault: No kernel runs.
    """
    core = current_core.get()
    if core is None:
        raise DeviceFault(f"{api}: no kernel is running; launch() runs one")
    return core
