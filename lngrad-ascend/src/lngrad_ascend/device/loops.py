"""Copies of Ascend 950 that loop: the loop mode of DataCopy and DataCopyPad, and NDDMA, which moves elements in dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lngrad.errors import DtypeError
from lngrad.typing import Array
from lngrad_ascend.device.core import running
from lngrad_ascend.device.descriptors import BLOCK_BYTES, check_place
from lngrad_ascend.device.global_tensor import GlobalTensor, too_far
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.pipes import MTE2, WRITE_MTE2
from lngrad_ascend.device.races import READ
from lngrad_ascend.device.report import Site, kernel_site, site_text
from lngrad_ascend.faults import AlignmentFault, BoundsFault, DeviceFault, OverlapFault, RaceFault

MAX_LOOPS = NEAR = 1 << 21
FAR = 1 << 40
MAX_DIMENSIONS = 5
MAX_SIZE = 1 << 20
MAX_SIDE = 255  # elements of padding


class LoopMode(NamedTuple):
    """Two loops around copies: how often, and how many bytes further src and dst are, in the inner and in the outer one."""

    sizes: tuple[int, int]
    src: tuple[int, int]
    dst: tuple[int, int]
    site: Site

    def places(self, inward: bool) -> Iterator[tuple[int, int]]:
        """Return the bytes that each copy is further in the Unified Buffer and in global memory."""
        near, far = (self.dst, self.src) if inward else (self.src, self.dst)
        for outer in range(self.sizes[1]):
            for inner in range(self.sizes[0]):
                yield inner * near[0] + outer * near[1], inner * far[0] + outer * far[1]

    def describe(self) -> str:
        """Return what was set where, for texts."""
        return f"SetLoopModePara ({self.sizes[0]} times {self.sizes[1]}) of {site_text(self.site)} is in force"


class Dimension(NamedTuple):
    """One loop of NDDMA: elements from one to the next in src and in dst, how many, and how many of padding around them."""

    src: int
    dst: int
    size: int
    left: int
    right: int


def _needs_950(api: str) -> None:
    soc = running(api).soc
    if not soc.regbase:
        raise DeviceFault(f"{api}: needs architecture 3510, not {soc.name}")


def SetLoopModePara(sizes: tuple[int, int], src: tuple[int, int], dst: tuple[int, int], inward: bool) -> None:
    """Let copies on a path run in two loops, until ResetLoopModePara.

    C prototype: ``void SetLoopModePara(const LoopModeParams& loopParams, DataCopyMVType type)``

    Raises:
        DeviceFault: The SoC has no loop mode, or a number is out of its range.
    """
    api = "SetLoopModePara"
    _needs_950(api)
    near, far = (dst, src) if inward else (src, dst)
    if max(sizes) >= MAX_LOOPS or max(near) >= NEAR or max(far) >= FAR:
        raise BoundsFault(
            f"{api}: loops and strides in the Unified Buffer are below 2^21, in global memory below 2^40 bytes, got loops "
            f"{sizes}, strides {near} and {far}"
        )
    if any(stride % BLOCK_BYTES for stride in near):
        raise AlignmentFault(f"{api}: strides in the Unified Buffer are multiples of {BLOCK_BYTES} bytes, got {near}")
    core = running(api)
    core.loops[inward] = LoopMode(sizes, src, dst, core.site or kernel_site())


def ResetLoopModePara(inward: bool) -> None:
    """End the loop mode of a path. C prototype: ``void ResetLoopModePara(DataCopyMVType type)``."""
    running("ResetLoopModePara").loops.pop(inward, None)


def NdDmaDci() -> None:
    """Let NDDMA see what other cores have written until now. C prototype: ``void NdDmaDci()``."""
    _needs_950("NdDmaDci")
    core = running("NdDmaDci")
    core.refreshed = [snapshot.copy() for snapshot in core.clock.others or ()]


class _Elements(NamedTuple):
    """The elements of a copy: where they go and come from, which are no padding, and runs of both sides in elements."""

    target: Array
    source: Array
    inside: Array
    written: list[tuple[int, int]]
    read: list[tuple[int, int]]


def _runs(elements: Any) -> list[tuple[int, int]]:
    """The ranges that sorted whole numbers make up."""
    cuts = np.flatnonzero(np.diff(elements) > 1)
    starts, stops = elements[np.r_[0, cuts + 1]], elements[np.r_[cuts, -1]] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


@lru_cache(maxsize=16)
def _elements(dimensions: tuple[Dimension, ...]) -> _Elements:
    """Work out the elements of a copy, of which kernels make the same one again and again."""
    target, source, inside = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, bool)
    for d in dimensions:
        place = np.arange(d.left + d.size + d.right)
        behind = place - d.left
        target = np.add.outer(place * d.dst, target).ravel()
        source = np.add.outer(np.clip(behind, 0, d.size - 1) * d.src, source).ravel()
        inside = np.logical_and.outer((behind >= 0) & (behind < d.size), inside).ravel()
    targets = np.unique(target)
    if targets.size != target.size:
        raise OverlapFault(
            f"DataCopy: {target.size} elements of NDDMA go to {targets.size} places: dst strides overlap"
        )
    return _Elements(target, source, inside, _runs(targets), _runs(np.unique(source[inside])))


def copy_dimensions(
    dst: LocalTensor, src: GlobalTensor, dimensions: Sequence[Dimension], value: float, nearest: bool
) -> None:
    """Copy elements from global memory in up to five loops, with padding around each (NDDMA).

    C prototype::

        template <typename T, uint8_t dim, const NdDmaConfig& config = kDefaultNdDmaConfig>
        void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const NdDmaParams<T, dim>& params)

    Args:
        dst, src: The two sides; dst's first element is the first of the padding.
        dimensions: The innermost first.
        value: Of the padding, where it is not ``nearest``: the next element's.

    Raises:
        DeviceFault: A number is out of its range, a side is too short, or a rule of ``DataCopy``.
        DtypeError: The two tensors are of different types.
    """
    api, core = "DataCopy", dst.core
    _needs_950(f"{api} with NdDmaParams")
    if dst.dtype != src.dtype:
        raise DtypeError(f"{api}: dst and src must have one type, got {dst.dtype} and {src.dtype}")
    for number, d in enumerate(dimensions):
        if not (0 < d.size < MAX_SIZE and d.dst < MAX_SIZE and 0 <= d.src < FAR and max(d.left, d.right) <= MAX_SIDE):
            raise BoundsFault(
                f"{api}: a loop of NDDMA has 1 to 2^20 - 1 elements, a dst stride below 2^20, a src stride below 2^40 and a "
                f"padding up to {MAX_SIDE}, got {d} for loop {number}"
            )
    e, size = _elements(tuple(dimensions)), dst.dtype.itemsize
    region, first, end = src.extent(api)
    stop = dst.start + e.written[-1][1] * size
    if stop > dst.end:
        check_place(api, f"dst ({dst.describe()})", dst.start, stop, dst.end, size)
    needed = e.read[-1][1]
    if first + needed * size > end:
        fault = too_far(core, api, region, (end - first) // size, needed, first + needed * size)
        if fault is not None:
            raise fault
    instruction = (api, MTE2, core.index, core.site or kernel_site())
    core.touch(
        instruction, "dst", dst.handle, [(dst.start + a * size, dst.start + b * size) for a, b in e.written], WRITE_MTE2
    )
    core.reads((region.start + first, needed * size))
    if core.rules.ordering:
        core.touch_global(instruction, region, [(first + a * size, first + b * size) for a, b in e.read], READ)
        _refuse_stale(dst, region.start + first, needed * size, region.name)
    values = region.data[first : first + needed * size].view(dst.dtype)[e.source]
    if not nearest:
        values[~e.inside] = value
    core.ub.data[dst.start : stop].view(dst.dtype)[e.target] = values
    core.tally.bytes_in += int(e.inside.sum()) * size
    core.tally.instructions[api] += 1
    core.log.append(instruction)
    if core.trace is not None:
        core.trace.copied(instruction, dst.start, 1, int(e.inside.sum()) * size, src.bypass)


def _refuse_stale(dst: LocalTensor, start: int, nbytes: int, name: str) -> None:
    """Refuse bytes that another core has written since NdDmaDci; "device" remarks it."""
    core = dst.core
    other = core.order.written_since(start, start + nbytes, core.index, core.refreshed)
    if other is not None:
        core.tolerate(
            RaceFault(
                f"DataCopy with NdDmaParams reads {name} through a cache, and {other[0]} at {site_text(other[3])} of block "
                f"{other[2]} has written there. Missing between them: NdDmaDci"
            )
        )
