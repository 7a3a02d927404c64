"""TransDataTo5HD: sixteen blocks of 32 bytes, transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lngrad.ascend.device.copies import Local
from lngrad.ascend.device.core import Core
from lngrad.ascend.device.element_types import DTYPES
from lngrad.ascend.device.local_tensor import LocalTensor, caller
from lngrad.ascend.device.pipes import V
from lngrad.ascend.device.plan import check_place
from lngrad.ascend.device.source import Site
from lngrad.ascend.device.unified_buffer import READ_V, WRITE_V
from lngrad.ascend.faults import BoundsFault, DeviceFault
from lngrad.errors import DtypeError

BLOCKS = 16
BLOCK_BYTES = 32
MAX_REPEATS = 255


@dataclass(frozen=True)
class TransDataTo5HDParams:
    """How TransDataTo5HD repeats: each repeat moves every address on by the strides, in blocks.

    The two halves concern 8-bit types only, which are not simulated.
    """

    dstHighHalf: bool = False
    srcHighHalf: bool = False
    repeatTimes: int = 1
    dstRepStride: int = 0
    srcRepStride: int = 0


def TransDataTo5HD(
    dstList: Sequence[LocalTensor], srcList: Sequence[LocalTensor], nchwconvParams: TransDataTo5HDParams
) -> None:
    """Transpose 16 blocks of 32 bytes into 16 blocks.

    C prototype::

        template <typename T> void TransDataTo5HD(const LocalTensor<T> (&dstList)[16],
            const LocalTensor<T> (&srcList)[16], const TransDataTo5HDParams& nchwconvParams)

    16-bit types: dst[j][i] = src[i][j]. 32-bit types: dst[2j + k][i] = src[8k + i][j], so that two
    consecutive entries of dst have the 16 rows of one column.

    Raises:
        DeviceFault, DtypeError: A rule is broken.
    """
    if len(dstList) != BLOCKS or len(srcList) != BLOCKS:
        raise BoundsFault(f"TransDataTo5HD: dstList and srcList have 16 tensors, got {len(dstList)} and {len(srcList)}")
    codes = {tensor.code for tensor in (*dstList, *srcList)}
    if len(codes) != 1:
        raise DtypeError(f"TransDataTo5HD: all tensors must be of one type, got {sorted(codes)}")
    targets, sources = ([Local(t.handle, t.start, t.end) for t in tensors] for tensors in (dstList, srcList))
    transpose(dstList[0].core, caller(), codes.pop(), targets, sources, nchwconvParams)


def transpose(
    core: Core, site: Site, code: int, dst: Sequence[Local], src: Sequence[Local], params: TransDataTo5HDParams
) -> None:
    """Check and execute one TransDataTo5HD; the operands as plain numbers.

    Raises:
        DeviceFault, DtypeError: A rule is broken.
    """
    api, dtype = "TransDataTo5HD", DTYPES[code]
    if dtype.itemsize not in (2, 4):
        raise DtypeError(f"{api}: 16- and 32-bit types are simulated, got {dtype}")
    if not 0 <= params.repeatTimes <= MAX_REPEATS:
        raise BoundsFault(f"{api}: repeatTimes must be 0 to {MAX_REPEATS}, got {params.repeatTimes}")
    instruction = (api, V, core.index, core.site or site)
    for repeat in range(params.repeatTimes):
        reads = [local.start + repeat * params.srcRepStride * BLOCK_BYTES for local in src]
        writes = [local.start + repeat * params.dstRepStride * BLOCK_BYTES for local in dst]
        for role, starts, locals_, bit in (("srcList", reads, src, READ_V), ("dstList", writes, dst, WRITE_V)):
            for index, (start, local) in enumerate(zip(starts, locals_, strict=True)):
                name = f"{role}[{index}] ({core.owner(start)})"
                check_place(api, name, start, start + BLOCK_BYTES, local.end, core.soc.block_bytes)
                core.touch(instruction, f"{role}[{index}]", local.handle, ((start, start + BLOCK_BYTES),), bit)
        if len(set(writes)) != BLOCKS:
            raise DeviceFault(f"{api}: the tensors of dstList must be different blocks")
        rows = np.stack([core.ub.data[start : start + BLOCK_BYTES].view(dtype) for start in reads])
        if dtype.itemsize == 2:
            columns = rows.T
        else:
            columns = rows.reshape(2, 8, 8).transpose(2, 0, 1).reshape(BLOCKS, 8)
        for start, column in zip(writes, columns, strict=True):
            core.ub.data[start : start + BLOCK_BYTES].view(dtype)[...] = column
    core.tally.instructions[api] += 1
    core.log.append(instruction)
