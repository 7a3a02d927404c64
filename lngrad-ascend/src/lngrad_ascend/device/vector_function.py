"""A vector function of Ascend 950, as the simulator sees it: one instruction of the vector unit.

Its lanes are computed by the kernel's own code, compiled with ``registers.h``. What it has read and written comes here when it
ends, and what it broke as soon as it does; the rules of memory are those of any other instruction.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lngrad.support.addresses import address_of
from lngrad_ascend.device.core import Core
from lngrad_ascend.device.pipes import READ_V, WRITE_V, V
from lngrad_ascend.device.races import Span
from lngrad_ascend.device.report import Instruction, Site, site_text
from lngrad_ascend.device.unified_buffer import Allocation
from lngrad_ascend.faults import AlignmentFault, BoundsFault, DeviceFault, OverlapFault, PoisonFault, RaceFault

Range = tuple[int, int, Site]  # first byte, byte behind the last, the first access to them
MAX_PLANS = 4096
DEAD = -2  # no tensor's handle: a pointer does not know in which life it was taken
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
    ENDLESS = 12
    CONTROL = 13


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
        """Return where the code finds the Unified Buffer: its bytes, their poison, where allocations begin, its size."""
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
            self._plans[key] = [*self._uses(name, reads, READ_V), *self._uses(name, writes, WRITE_V)]
        core.tally.instructions[name] += 1
        core.log.append((name, V, core.index, core.site or (reads or writes)[0][2]))

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

    def _uses(self, name: str, ranges: list[Range], bit: int) -> Iterator[Use]:
        """Check ranges, those of one place and one allocation at a time, and give what is worth keeping of them."""
        core = self.core
        groups: dict[tuple[int, Site], tuple[Allocation, list[tuple[int, int]]]] = {}
        piece: Allocation | None = None
        for start, stop, site in ranges:
            if piece is None or not (piece.start <= start and stop <= piece.start + piece.size and piece.handle >= 0):
                piece = self._piece(name, start, stop, site, bit)
            if piece is not None:
                end = min(stop, piece.start + piece.size)
                groups.setdefault((id(piece), site), (piece, []))[1].append((start, end))
        for (_, site), (piece, runs) in groups.items():
            instruction = (name, V, core.index, core.site or site)
            if piece.handle < 0:
                core.refuse(name, "dst" if bit == WRITE_V else "src", piece, DEAD, runs[0][0], V, bit == WRITE_V)
                continue
            core.touch(
                instruction, "dst" if bit == WRITE_V else "src", piece.handle, runs, bit, carries=True, poisoned=True
            )
            spans = tuple(span for run in runs for span in core.ub.spans.cover(*run))
            if bit == READ_V and not all(span.valid for span in spans):
                core.trace_poison(runs, instruction)
            yield Use(piece, piece.handle, instruction, bit, spans)

    def _piece(self, name: str, start: int, stop: int, site: Site, bit: int) -> Allocation | None:
        """Return the allocation that a range begins in: one that holds all of it, a live one, the smallest.

        Raises:
            BoundsFault: There is none, or a store passes its end.
        """
        core = self.core
        found = [a for a in core.ub.allocations if a.start <= start < a.start + a.size]
        piece = max(found, key=lambda a: (stop <= a.start + a.size, a.handle >= 0, -a.size), default=None)
        end = start if piece is None else piece.start + piece.size
        if stop <= end:
            return piece
        verb, code = ("writes", "ErrorWrite1") if bit == WRITE_V else ("reads", "ErrorRead1")
        whose = "that no tensor has" if piece is None else f"behind the end of {piece.name}"
        text = f"{name}: {site_text(site)} {verb} {stop - end} bytes at byte {end}, {whose}"
        if piece is None or bit == WRITE_V:
            core.tolerate(BoundsFault(f"{text} [{code}]"))
        else:
            core.remark(text)
        return piece

    def broken(self, rule: int, api: str, site: Site, numbers: tuple[int, ...], others: tuple[Site, ...]) -> int:
        """Refuse what the code has found, or return the poison of bytes that depend on it.

        Args:
            rule: Of ``Rule``.
            api: The instruction.
            site: Where it stands; of a register or a mask, where it is declared.
            numbers: What the rule's text says.
            others: Of UNORDERED, the store and the load.

        Raises:
            DeviceFault: The rule's.
        """
        core = self.core
        if rule in _BLANK:
            return core.ub.origin_number(f"was computed with a {_BLANK[rule]} that nothing had written, declared", site)
        if rule == Rule.CONTROL:
            core.control = site if numbers[0] else None
            return 0
        how, text = _TEXTS[rule]
        text = text.format(*numbers, api=api, others=[site_text(other) for other in others], size=core.ub.size)
        if how is None:
            core.warn(text)
        elif how is OverlapFault:
            core.tolerate(how(text))
        elif how is not RaceFault or core.rules.ordering:
            raise how(text)
        return 0


_BLANK: dict[int, str] = {Rule.BLANK_REGISTER: "register", Rule.BLANK_MASK: "mask"}
# By rule: the fault (None: a warning; a device runs on where two lanes have one index), and its text.
_TEXTS: dict[int, tuple[type[DeviceFault] | None, str]] = {
    Rule.OUTSIDE: (
        BoundsFault,
        "{api}: the address must lie in the Unified Buffer of {size} bytes, got {1} bytes at byte {0}; GetPhyAddr gives it",
    ),
    Rule.ALIGNMENT: (AlignmentFault, "{api}: the address must be a multiple of {1} bytes here, got byte {0}"),
    Rule.NO_FUNCTION: (
        DeviceFault,
        "{api}: registers live in a vector function: __VEC_SCOPE__ {{ … }}, or a __simd_vf__ function that asc_vf_call starts",
    ),
    Rule.UNORDERED: (
        RaceFault,
        "{api} stores what was loaded at {others[1]}, and the store of these bytes at {others[0]} in the same vector function "
        "may not have finished then. Missing between them: LocalMemBar<MemType::VEC_STORE, MemType::VEC_LOAD>()",
    ),
    Rule.LOAD_PRE: (PoisonFault, "{api}: the unaligned register holds nothing: LoadUnAlignPre comes first"),
    Rule.STORE_POST: (
        PoisonFault,
        "{api}: the last {0} bytes stay in the unaligned register: StoreUnAlignPost is missing, with which they get to memory",
    ),
    Rule.NARROW_MASK: (
        None,
        "{api}: the mask was made for elements of {0} bytes and is used on elements of {1}: {2} of these that hold something "
        "are left out",
    ),
    Rule.PACKED_WIDTH: (
        None,
        "{api}: dst has elements of {1} bytes; this StoreDist stores {0} of each: expected DIST_PACK_B + twice their bits",
    ),
    Rule.INDEX: (PoisonFault, "{api}: the index of lane {0} has no value"),
    Rule.ENDLESS: (
        DeviceFault,
        "{api}: the vector function has accessed memory {0} times and goes on; a loop counter of uint16_t begins again at "
        "65536",
    ),
    Rule.SAME_INDEX: (OverlapFault, "{api}: index {0} comes twice, and which lane is stored there is open"),
}  # fmt: skip
