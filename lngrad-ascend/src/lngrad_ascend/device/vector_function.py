"""A vector function of Ascend 950, as the simulator sees it: one instruction of the vector unit.

Its lanes are computed by the kernel's own code, compiled with ``registers.h``. What it has read and written comes here when it
ends, and what it broke as soon as it does; the rules of memory are those of any other instruction.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import numpy as np

from lngrad.support.addresses import address_of
from lngrad.typing import Address
from lngrad_ascend.device.core import Core
from lngrad_ascend.device.pipes import READ_V, WRITE_V, V
from lngrad_ascend.device.races import Span
from lngrad_ascend.device.report import Instruction, Site, site_text
from lngrad_ascend.device.unified_buffer import Allocation
from lngrad_ascend.faults import AlignmentFault, BoundsFault, DeviceFault, OverlapFault, PoisonFault, RaceFault

Range = tuple[int, int, Site]  # first byte, byte behind the last, the first access to them
MAX_PLANS = 4096
_VIEW = struct.Struct("<qqqq")  # of VectorFunction::Buffer


class Rule(enum.IntEnum):
    """What code with registers breaks, by the numbers of the headers."""

    OUTSIDE = 0
    ALIGNMENT = 1
    NO_FUNCTION = 2
    UNORDERED = 3
    BLANK_REGISTER = 4
    BLANK_MASK = 5
    LOAD_PRE = 6
    STORE_POST = 7
    NARROW_MASK = 8
    PACKED_WIDTH = 9
    INDEX = 10
    SAME_INDEX = 11


class Use(NamedTuple):
    """A range of bytes that a function uses: whose they are, in which life, and their spans."""

    allocation: Allocation
    handle: int
    instruction: Instruction
    bit: int
    spans: tuple[Span, ...]


class VectorFunctions:
    """The vector functions of one block.

    Args:
        core: The core that runs the block.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self._starts: tuple[int, ...] = ()
        self._edges = np.zeros(core.ub.data.size // core.soc.block_bytes + 1, np.uint8)
        self._plans: dict[tuple[tuple[Range, ...], ...] | tuple[bytes, bytes], list[Use]] = {}

    def view(self) -> bytes:
        """Return where the code finds the Unified Buffer: its bytes, their poison, the blocks where allocations begin, its size."""
        core, ub = self.core, self.core.ub
        starts = tuple(allocation.start for allocation in ub.allocations)
        if starts != self._starts:
            self._starts = starts
            self._edges[:] = 0
            self._edges[[start // core.soc.block_bytes for start in starts]] = 1
        return _VIEW.pack(*map(address_of, (ub.data, ub.poison, self._edges)), ub.size)

    def ended(self, name: str, key: tuple[bytes, bytes], reads: list[Range], writes: list[Range]) -> None:
        """Check what a function has read and written.

        Args:
            name: How it was called.
            key: The same for functions with the same ranges.
            reads: What lanes that masks let through were loaded from.
            writes: What was stored; bytes without a value have their poison already.

        Raises:
            DeviceFault: As of any other instruction.
        """
        core = self.core
        plan = self._plans.get(key)
        if plan is None or core.ub.stale or not self._repeats(plan):
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = [use for run in reads for use in self._use(name, run, READ_V)]
            self._plans[key] = plan + [use for run in writes for use in self._use(name, run, WRITE_V)]
        core.tally.instructions[name] += 1
        first = (reads or writes)[0]
        core.log.append((name, V, core.index, core.site or first[2]))

    def _repeats(self, plan: list[Use]) -> bool:
        """Note a function that does what an earlier one did, if everything it uses is in order."""
        core = self.core
        known, epoch, poison = core.clock.known[V], core.clock.now[V], core.ub.poison
        for allocation, handle, _, bit, spans in plan:
            if allocation.handle != handle or allocation.forbidden & bit:
                return False
            for span in spans:
                if not span.live or not span.valid or span.write_epoch > known[span.writer_pipe]:
                    return False
                if bit == WRITE_V and any(read > known[pipe] for pipe, read in enumerate(span.read_epochs)):
                    return False
        for _, _, instruction, bit, spans in plan:
            for span in spans:
                if bit == READ_V:
                    span.read_epochs[V], span.readers[V] = epoch, instruction
                else:
                    span.valid = not poison[span.start : span.stop].any()
                    span.writer, span.write_epoch, span.writer_pipe = instruction, epoch, V
                    if core.ub.padded:
                        core.ub.padding[span.start : span.stop] = 0
        return True

    def _use(self, name: str, run: Range, bit: int) -> list[Use]:
        """Check one range, and return what is worth keeping of it."""
        core, ub = self.core, self.core.ub
        start, stop, site = run
        verb, code = ("writes", "ErrorWrite1") if bit == WRITE_V else ("reads", "ErrorRead1")
        outer, core.site = core.site, core.site or site
        try:
            piece = self._piece(start, stop)
            if piece is None:
                core.tolerate(
                    BoundsFault(f"{name}: {verb} {stop - start} bytes at byte {start} that no tensor has [{code}]")
                )
                return []
            end = piece.start + piece.size
            if stop > end:
                text = f"{name}: {verb} {stop - end} bytes behind the end of {piece.name} at byte {end}"
                if bit == WRITE_V:
                    core.tolerate(BoundsFault(f"{text} [{code}]"))
                else:
                    core.remark(text)
                stop = end
            role = "dst" if bit == WRITE_V else "src"
            if piece.handle < 0:
                core.refuse(name, role, piece, -2, start, V, bit == WRITE_V)
                return []
            instruction = (name, V, core.index, core.site or site)
            poison = ub.poison[start:stop].copy()
            if bit == READ_V:
                for number in np.unique(poison).tolist():
                    origin = ub.origin(number)
                    origin.first = origin.first or instruction
            core.touch(instruction, role, piece.handle, ((start, stop),), bit, carries=True)
            if bit == WRITE_V and poison.any():  # the code has it as it is now
                ub.poison[start:stop] = poison
                ub.doubt(((start, stop),))
            return [Use(piece, piece.handle, instruction, bit, tuple(ub.spans.cover(start, stop)))]
        finally:
            core.site = outer

    def _piece(self, start: int, stop: int) -> Allocation | None:
        """Return the allocation that a range begins in: a whole one, a live one, the smallest."""
        found = [a for a in self.core.ub.allocations if a.start <= start < a.start + a.size]
        return max(found, key=lambda a: (stop <= a.start + a.size, a.handle >= 0, -a.size), default=None)

    def broken(self, rule: int, api: str, site: Site, numbers: tuple[int, ...], other: tuple[Site, Site] | None) -> int:
        """Refuse what the code has found, or return the poison of bytes that depend on it.

        Args:
            rule: Of ``Rule``.
            api: The instruction.
            site: Where it stands; of a register or a mask, where it is declared.
            numbers: What the rule's text says.
            other: Of UNORDERED, the store and the load.

        Raises:
            DeviceFault: The rule's.
        """
        core = self.core
        first, second, third = (*numbers, 0, 0, 0)[:3]
        if rule in (Rule.BLANK_REGISTER, Rule.BLANK_MASK):
            kind = "register" if rule == Rule.BLANK_REGISTER else "mask"
            return core.ub.origin_number(f"was computed with a {kind} that nothing had written, declared", site)
        if rule == Rule.UNORDERED and other is not None:
            if core.rules.ordering:
                raise RaceFault(
                    f"{api} uses bytes that a load at {site_text(other[1])} read and a store at {site_text(other[0])} wrote in "
                    "the same vector function, and nothing orders the two. Missing between them: "
                    "LocalMemBar<MemType::VEC_STORE, MemType::VEC_LOAD>()"
                )
            return 0
        unit = core.soc.block_bytes
        if rule == Rule.OUTSIDE:
            raise BoundsFault(
                f"{api}: the address must lie in the Unified Buffer of {core.ub.size} bytes, got {second} bytes at byte {first}; "
                "GetPhyAddr gives it"
            )
        if rule == Rule.NO_FUNCTION:
            raise DeviceFault(
                f"{api}: registers live in a vector function: __VEC_SCOPE__ {{ … }}, or a __simd_vf__ function that asc_vf_call "
                "starts"
            )
        if rule == Rule.NARROW_MASK:
            core.warn(
                f"{api}: the mask was made for elements of {first} bytes and is used on elements of {second}: {third} of them "
                "that hold something are left out"
            )
        elif rule == Rule.PACKED_WIDTH:
            core.warn(f"{api}: dst has elements of {second} bytes, and this StoreDist packs {first}: PACK_B32 stores 2 of 4 bytes")
        elif rule == Rule.ALIGNMENT:
            raise AlignmentFault(f"{api}: the address must be a multiple of {second} bytes here, got byte {first}")
        elif rule == Rule.LOAD_PRE:
            raise PoisonFault(f"{api}: the unaligned register holds nothing: LoadUnAlignPre comes first")
        elif rule == Rule.STORE_POST:
            raise PoisonFault(
                f"{api}: the last {first} bytes, less than a block of {unit}, stay in the unaligned register: StoreUnAlignPost is missing"
            )
        elif rule == Rule.INDEX:
            raise PoisonFault(f"{api}: the index of lane {first} has no value")
        elif rule == Rule.SAME_INDEX:
            core.tolerate(OverlapFault(f"{api}: index {first} comes twice; which lane is stored there is open"))
        return 0
