"""Copies between global memory and the Unified Buffer: one function for all of their forms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lngrad.ascend.device.core import Core
from lngrad.ascend.device.element_types import DTYPES
from lngrad.ascend.device.pipes import MTE2, MTE3, V
from lngrad.ascend.device.plan import check_place
from lngrad.ascend.device.regions import Region
from lngrad.ascend.device.source import Site
from lngrad.ascend.device.unified_buffer import READ_MTE3, READ_V, WRITE_MTE2, WRITE_V, TPosition
from lngrad.ascend.faults import AlignmentFault, BoundsFault, PositionFault
from lngrad.errors import DtypeError
from lngrad.typing import Array

COPY_IN = (TPosition.VECIN, TPosition.VECCALC)
COPY_OUT = (TPosition.VECOUT, TPosition.VECCALC)
MAX_BLOCKS = 4095


class Local(NamedTuple):
    """A tensor in the Unified Buffer as plain numbers: its handle, first byte, and the byte behind
    it."""

    handle: int
    start: int
    end: int


class Blocks(NamedTuple):
    """What a copy moves: ``blocks`` blocks of ``nbytes``, whose starts lie so many bytes apart on
    each side.

    Attributes:
        left, right: Bytes written before and behind each block on the way in.
        fill: What is written there and up to the next 32 bytes; None: the block's first element.
        undefined: Whether the device leaves arbitrary bytes there instead.
    """

    blocks: int
    nbytes: int
    local_step: int
    global_step: int
    left: int = 0
    right: int = 0
    fill: float | None = None
    undefined: bool = False


def copy_global(
    core: Core, site: Site, api: str, inward: bool, code: int, local: Local, place: tuple[Region, int, int], b: Blocks
) -> None:
    """Check and execute one copy.

    Args:
        core: The core that issues it.
        site: Where.
        api: DataCopy or DataCopyPad.
        inward: From global memory (MTE2) or to it (MTE3).
        code: Of the element type.
        local: The side in the Unified Buffer.
        place: The side in global memory: the region, the first byte in it, and the byte behind the
            tensor.
        b: What is moved.

    Raises:
        DeviceFault: A rule is broken.
    """
    if b.blocks == 0 or b.nbytes == 0:
        return
    pipe, role = (MTE2, "dst") if inward else (MTE3, "src")
    region, first, end = place
    block = core.soc.block_bytes
    filled = b.left + b.nbytes + b.right if inward else b.nbytes
    last_local, last_global = (b.blocks - 1) * b.local_step, (b.blocks - 1) * b.global_step
    _check_position(core, api, role, local, COPY_IN if inward else COPY_OUT)
    name = f"{role} ({core.owner(local.start)})"
    check_place(api, name, local.start, local.start + last_local + filled, local.end, block)
    if first + last_global + b.nbytes > end:
        size = DTYPES[code].itemsize
        raise BoundsFault(
            f"{api}: {region.name} has {(end - first) // size} elements from here on, the access takes "
            f"{-(-(last_global + b.nbytes) // size)} [ErrorRead3, ErrorWrite2]"
        )
    if not inward and not region.data.flags.writeable:
        raise BoundsFault(f"{api}: {region.name} is read-only")
    instruction = (api, pipe, core.index, core.site or site)
    reached = -(-filled // block) * block if inward and b.local_step >= -(-filled // block) * block else filled
    core.touch(
        instruction,
        role,
        local.handle,
        _runs(local.start, b.blocks, reached, b.local_step),
        WRITE_MTE2 if inward else READ_MTE3,
    )
    if core.rules.ordering and core.regions is not None:  # outside a launch memory comes and goes
        atomic = not inward and core.atomic is not None
        for start, stop in _runs(region.start + first, b.blocks, b.nbytes, b.global_step):
            core.order.note(core, (start, stop, region.name), instruction, not inward, atomic)
    here = _rows(core.ub.data, local.start, b.blocks, reached, b.local_step)
    there = _rows(region.data, first, b.blocks, b.nbytes, b.global_step)
    if inward:
        _move_in(code, here, there, b)
        if b.undefined:  # the device leaves arbitrary bytes around each block
            for start in range(local.start, local.start + last_local + 1, b.local_step):
                core.ub.forget(start, start + b.left)
                core.ub.forget(start + b.left + b.nbytes, start + reached)
    elif core.atomic is not None:
        _add(core, code, there, here)
    else:
        there[...] = here
    core.tally.instructions[api] += 1
    if inward:
        core.tally.bytes_in += b.blocks * b.nbytes
    else:
        core.tally.bytes_out += b.blocks * b.nbytes
    core.log.append(instruction)


def _move_in(code: int, here: Array, there: Array, b: Blocks) -> None:
    if here.shape[1] > b.nbytes:
        dtype = DTYPES[code]
        typed = here.view(dtype) if here.shape[1] % dtype.itemsize == 0 else here
        if b.fill is not None:
            typed[...] = b.fill
        elif not b.undefined:
            typed[...] = there[:, : dtype.itemsize].copy().view(dtype)
        else:
            here[...] = 0xFF
    here[:, b.left : b.left + b.nbytes] = there


def _add(core: Core, code: int, there: Array, here: Array) -> None:
    """Add atomically: what SetAtomicAdd turns a copy to global memory into."""
    if code != core.atomic:
        want = DTYPES[core.atomic or 0]
        raise DtypeError(f"SetAtomicAdd: was set for {want}, the copy is of {DTYPES[code]}")
    with np.errstate(all="ignore"):
        total = there.view(DTYPES[code])
        total += here.view(DTYPES[code])


def _rows(memory: Array, start: int, count: int, nbytes: int, step: int) -> Array:
    if count == 1:
        return memory[start : start + nbytes].reshape(1, nbytes)
    return as_strided(memory[start:], (count, nbytes), (step, 1))


def _runs(start: int, count: int, nbytes: int, step: int) -> list[tuple[int, int]]:
    if count == 1 or nbytes == step:
        return [(start, start + count * nbytes)]
    return [(start + index * step, start + index * step + nbytes) for index in range(count)]


def _check_position(core: Core, api: str, role: str, local: Local, allowed: tuple[TPosition, ...]) -> None:
    position = core.ub.handles[local.handle].position
    if core.rules.checked and position not in allowed:
        raise PositionFault(
            f"{api}: {role} ({core.owner(local.start)}) must be at {' or '.join(p.value for p in allowed)}, "
            f"it is at {position.value} [ErrorBuffer1]"
        )


def copy_local(core: Core, site: Site, dst: Local, src: Local, b: Blocks) -> None:
    """Copy blocks inside the Unified Buffer, on the vector unit.

    Args:
        core: The core that issues it.
        site: Where.
        dst: The target; its blocks are ``b.local_step`` bytes apart.
        src: The source; its blocks are ``b.global_step`` bytes apart.
        b: What is moved.

    Raises:
        DeviceFault: A rule is broken.
    """
    if b.blocks == 0 or b.nbytes == 0:
        return
    instruction = ("DataCopy", V, core.index, core.site or site)
    ranges = []
    for role, local, step, bit in (("src", src, b.global_step, READ_V), ("dst", dst, b.local_step, WRITE_V)):
        stop = local.start + (b.blocks - 1) * step + b.nbytes
        name = f"{role} ({core.owner(local.start)})"
        check_place("DataCopy", name, local.start, stop, local.end, core.soc.block_bytes)
        ranges.append(_runs(local.start, b.blocks, b.nbytes, step))
        core.touch(instruction, role, local.handle, ranges[-1], bit)
    if any(a < d and c < b_ for a, b_ in ranges[0] for c, d in ranges[1]) and ranges[0] != ranges[1]:
        raise AlignmentFault("DataCopy: dst and src overlap")
    source = _rows(core.ub.data, src.start, b.blocks, b.nbytes, b.global_step).copy()
    _rows(core.ub.data, dst.start, b.blocks, b.nbytes, b.local_step)[...] = source
    core.tally.instructions["DataCopy"] += 1
    core.log.append(instruction)
