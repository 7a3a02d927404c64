"""Moves of elements inside the Unified Buffer: BroadCast, Transpose, GatherMask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lngrad.errors import DtypeError
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.pipes import V
from lngrad_ascend.device.unified_buffer import MAX_ORIGINS
from lngrad_ascend.faults import BoundsFault, DeviceFault

SIDE = 16  # Transpose's rows and columns
FIXED_PATTERNS = {1: "10", 2: "01", 3: "1000", 4: "0100", 5: "0010", 6: "0001", 7: "1"}


def BroadCast(
    dst: LocalTensor, src: LocalTensor, dstShape: Sequence[int], srcShape: Sequence[int], axis: int | None = None
) -> None:
    """Repeat src along the axes in which it has one element.

    C prototype::

        template <typename T, int32_t dim, int32_t axis, bool isReuseSource = false>
        void BroadCast(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t dstShape[dim],
            const uint32_t srcShape[dim][, LocalTensor<uint8_t>& sharedTmpBuffer])

    Raises:
        DeviceFault, DtypeError: A rule is broken; a shape does not go into the other one.
    """
    if dst.dtype != src.dtype:
        raise DtypeError(f"BroadCast: dst and src must be of one type, got {dst.dtype} and {src.dtype}")
    if len(dstShape) != len(srcShape) or any(s not in (1, d) for d, s in zip(dstShape, srcShape, strict=True)):
        raise BoundsFault(f"BroadCast: srcShape must be 1 or dstShape in every axis, got {srcShape} and {dstShape}")
    with dst.core.tile_api("BroadCast"):
        values, origins = src.take("BroadCast", "src", int(np.prod(srcShape)))
        wide = np.broadcast_to(values.reshape(srcShape), dstShape).reshape(-1)
        origins = np.broadcast_to(origins.reshape(*srcShape, values.itemsize), (*dstShape, values.itemsize))
        dst.put("BroadCast", "dst", wide, origins)


def Transpose(dst: LocalTensor, src: LocalTensor) -> None:
    """Transpose 16 x 16 elements of 16 bits. C prototype: ``void Transpose(const LocalTensor<T>& dst, …& src)``.

    Raises:
        DeviceFault, DtypeError: A rule is broken, or T has not 16 bits.
    """
    if dst.dtype != src.dtype or dst.dtype.itemsize != 2:
        raise DtypeError(f"Transpose: T must be one type of 16 bits, got {dst.dtype} and {src.dtype}")
    with dst.core.tile_api("Transpose"):
        order = np.arange(SIDE * SIDE).reshape(SIDE, SIDE).T.reshape(-1)
        values, origins = src.take("Transpose", "src", SIDE * SIDE)
        dst.put("Transpose", "dst", values[order], origins[order])


def GatherMask(
    dst: LocalTensor,
    src0: LocalTensor,
    src1Pattern: LocalTensor | int,
    reduceMode: bool,
    mask: int,
    params: tuple[int, int, int, int],
) -> int:
    """Pack the elements of src0 whose bits in the pattern are set, and return how many they are.

    C prototype::

        void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
            const LocalTensor<U>& | const uint8_t src1Pattern, const bool reduceMode, const uint32_t mask,
            const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt)

    Args:
        dst, src0: The target and the source, of 16- or 32-bit types.
        src1Pattern: A tensor of bits, lowest first, or the number of a fixed pattern: 1 to 7.
        reduceMode: Whether ``mask`` elements of each repeat take part; else whole repeats do.
        mask: See there.
        params: src0BlockStride, repeatTimes, src0RepeatStride, src1RepeatStride, in blocks of 32 bytes.

    Raises:
        DeviceFault: A rule is broken.
    """
    block, repeats, step, pattern_step = params
    size = src0.dtype.itemsize
    per_block, width = 32 // size, 256 // size
    count = mask if reduceMode else width
    lanes = np.arange(count)
    places = np.arange(repeats)[:, None] * step * per_block + lanes // per_block * block * per_block + lanes % per_block
    core = dst.core
    with core.tile_api("GatherMask"):
        values, origins = src0.take("GatherMask", "src0", int(places.max(initial=-1)) + 1)
        if isinstance(src1Pattern, int):
            if src1Pattern not in FIXED_PATTERNS:
                raise DeviceFault(f"GatherMask: a fixed pattern is 1 to 7, got {src1Pattern}")
            word = np.array([bit == "1" for bit in FIXED_PATTERNS[src1Pattern]])
            chosen = np.broadcast_to(np.resize(word, count), places.shape)
        else:
            nbytes, span = -(-count // 8), pattern_step * 32
            role, words = "src1Pattern", -(-((repeats - 1) * span + nbytes) // src1Pattern.dtype.itemsize)
            every, unknown = src1Pattern.take("GatherMask", role, words)
            at = np.arange(repeats)[:, None] * span + np.arange(nbytes)
            chosen = np.unpackbits(every.view(np.uint8)[at], axis=1, bitorder="little")[:, :count].astype(bool)
            if unknown.any():  # of a byte that Compare has written in part, the bits that have a value may be used
                unknown = unknown.reshape(-1)[at]
                known_bits = np.where(unknown % MAX_ORIGINS, unknown // MAX_ORIGINS, 255).astype(np.uint8)
                if not np.unpackbits(known_bits, axis=1, bitorder="little")[:, :count].all():
                    src1Pattern.read("GatherMask", role, words)
        packed = places[chosen]
        if packed.size:
            dst.put("GatherMask", "dst", values[packed], origins[packed])
    core.looped("GatherMask", 1, values.nbytes)
    core.record("GatherMask", V, core.site or ("", 0))
    return int(packed.size)
