"""The whole backward as Ascend C kernels: rows over blocks, the tile APIs, partial sums, and their sum in block
order.

``plan_backward`` is the host side: how many rows a step takes, with or without isReuseSource, and the tiling structs.
``backward_rows`` and ``combine`` are the two kernels; a launch has no way to wait for other blocks, so that the
second one adds up what the first one left.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from lngrad.ascend.device.copies import DataCopy
from lngrad.ascend.device.global_memory import GlobalAddress
from lngrad.ascend.device.global_tensor import GlobalTensor
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.numerics import RoundMode
from lngrad.ascend.device.pipes import HardEvent
from lngrad.ascend.device.queues import TBuf, TPipe, TQue
from lngrad.ascend.device.sync import SetFlag, WaitFlag
from lngrad.ascend.device.system import CopyTiling, GetBlockIdx
from lngrad.ascend.device.unified_buffer import TPosition
from lngrad.ascend.device.vector import Add, Cast, Duplicate
from lngrad.ascend.soc import Soc
from lngrad.ascend.tile.layernormgrad import LayerNormGrad, LayerNormGradBeta
from lngrad.ascend.tiling.host_functions import GetLayerNormGradBetaNDTilingInfo, GetLayerNormGradNDTilingInfo, align_up
from lngrad.ascend.tiling.lint import safe_stack_bytes
from lngrad.ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling, TilingStruct

FLOAT_BYTES = 4
FLOAT = np.dtype(np.float32)


@dataclass
class StepTiling(TilingStruct):
    """The tilings of a step of so many rows."""

    rows: int = 0
    grad: LayerNormGradTiling = field(default_factory=LayerNormGradTiling)
    beta: LayerNormGradBetaTiling = field(default_factory=LayerNormGradBetaTiling)


@dataclass
class BackwardTiling(TilingStruct):
    """What the host hands to the two kernels.

    ``tail`` is the last step of a block, ``last_tail`` that of the last block; either may have no rows.
    """

    M: int = 0
    H: int = 0
    blocks: int = 0
    rows_per_block: int = 0
    rows_per_step: int = 0
    reuse_source: int = 0
    temporary_bytes: int = 0
    step: StepTiling = field(default_factory=StepTiling)
    tail: StepTiling = field(default_factory=StepTiling)
    last_tail: StepTiling = field(default_factory=StepTiling)


def _safe_bytes(rows: int, H: int, originH: int, type_size: int, reuse: bool, soc: Soc) -> tuple[int, int]:
    """Return the temporary bytes of LayerNormGrad and of LayerNormGradBeta."""
    shape = (1, rows, H, originH)
    return (
        safe_stack_bytes("LayerNormGrad", shape, type_size, reuse, soc),
        safe_stack_bytes("LayerNormGradBeta", shape, type_size, False, soc),
    )


def _buffers(rows: int, H: int, type_size: int, temporary_bytes: int) -> dict[str, int]:
    """Return the bytes of every buffer of ``backward_rows`` by name: the kernel and the plan read the same list."""
    matrix, statistics, row = (n * type_size for n in (rows * H, rows, H))
    names = {"dy": matrix, "x": matrix, "dx": matrix, "xhat": matrix}
    names |= {"variance": statistics, "mean": statistics, "gamma": row, "dgamma": row, "dbeta": row}
    names |= {"sums": 2 * H * FLOAT_BYTES, "temporary": temporary_bytes}
    if type_size != FLOAT_BYTES:
        names["widened"] = H * FLOAT_BYTES
    return {name: align_up(nbytes, 32) for name, nbytes in names.items() if nbytes}


def _fits(rows: int, H: int, type_size: int, reuse: bool, soc: Soc) -> bool:
    temporary = max(_safe_bytes(rows, H, H, type_size, reuse, soc))
    return sum(_buffers(rows, H, type_size, temporary).values()) <= soc.ub_bytes


def largest_row(type_size: int, reuse: bool, soc: Soc) -> int:
    """Return the largest H of which one row and its temporary buffer fit the Unified Buffer."""
    lanes = soc.block_bytes // type_size
    sizes = range(1, soc.ub_bytes // soc.block_bytes)  # in blocks
    return lanes * bisect_left(sizes, True, key=lambda blocks: not _fits(1, blocks * lanes, type_size, reuse, soc))


def plan_backward(M: int, N: int, type_size: int, soc: Soc) -> BackwardTiling | None:
    """Return the tiling for M rows of N elements, or None where not one row fits.

    isReuseSource is used where it lets more rows into a step.
    """
    H = align_up(N, soc.block_bytes // type_size)
    rows_per_block = -(-M // min(M, soc.vector_cores))
    choices = []
    for reuse in (False, True) if type_size == FLOAT_BYTES else (False,):
        rows = rows_per_block
        while rows and not _fits(rows, H, type_size, reuse, soc):
            rows = rows // 2 if rows > 16 else rows - 1
        choices.append((rows, not reuse))  # with equal rows the inputs are left alone
    rows, keep = max(choices)
    if rows == 0:
        return None
    blocks = -(-M // rows_per_block)
    last = M - (blocks - 1) * rows_per_block
    steps = [_step(count, H, N, type_size, not keep, soc) for count in (rows, rows_per_block % rows, last % rows)]
    temporary_bytes = max(_safe_bytes(rows, H, N, type_size, not keep, soc))
    return BackwardTiling(M, H, blocks, rows_per_block, rows, int(not keep), temporary_bytes, *steps)


def _step(rows: int, H: int, originH: int, type_size: int, reuse: bool, soc: Soc) -> StepTiling:
    if rows == 0:
        return StepTiling()
    shape = (1, rows, H, originH)
    grad_bytes, beta_bytes = _safe_bytes(rows, H, originH, type_size, reuse, soc)
    return StepTiling(
        rows,
        GetLayerNormGradNDTilingInfo(shape, grad_bytes, type_size, reuse, soc=soc),
        GetLayerNormGradBetaNDTilingInfo(shape, beta_bytes, type_size, False, soc=soc),
    )


def backward_rows(
    dy: GlobalAddress,
    x: GlobalAddress,
    variance: GlobalAddress,
    mean: GlobalAddress,
    gamma: GlobalAddress,
    dx: GlobalAddress,
    partials: GlobalAddress,
    tiling: bytes,
) -> None:
    """Compute dx of the block's rows, and its share of dgamma and dbeta.

    Shapes: dy, x, dx (M, H); variance, mean (M,) and room for one step more; gamma (H,); partials (blocks, 2, H)
    float.
    """
    info: BackwardTiling = CopyTiling(BackwardTiling, tiling)
    T, H, reuse = dy.array.dtype, info.H, bool(info.reuse_source)
    addresses = {"dy": dy, "x": x, "variance": variance, "mean": mean, "gamma": gamma, "dx": dx}
    memory = {name: _bind(address) for name, address in addresses.items()}
    pipe, queues, buffers = TPipe(), dict[str, TQue](), dict[str, TBuf]()
    for name, nbytes in _buffers(info.rows_per_step, H, T.itemsize, info.temporary_bytes).items():
        if name in memory:
            queues[name] = TQue(TPosition.VECOUT if name == "dx" else TPosition.VECIN, 1, name=name)
            pipe.InitBuffer(queues[name], 1, nbytes)
        else:
            buffers[name] = TBuf(name=name)
            pipe.InitBuffer(buffers[name], nbytes)

    def copy_in(name: str, first: int, count: int) -> LocalTensor:
        local = queues[name].AllocTensor(T)
        DataCopy(local, memory[name][first], align_up(count, 32 // T.itemsize))
        queues[name].EnQue(local)
        return queues[name].DeQue()

    sums = buffers["sums"].Get(FLOAT)
    Duplicate(sums, 0.0, 2 * H)
    scale = copy_in("gamma", 0, H)
    first = GetBlockIdx() * info.rows_per_block
    stop = min(first + info.rows_per_block, info.M)
    tail = info.tail if stop - first == info.rows_per_block else info.last_tail
    while first < stop:
        step = info.step if stop - first >= info.rows_per_step else tail
        at, count = first * H, step.rows * H
        local = {name: copy_in(name, at, count) for name in ("dy", "x")}
        local |= {name: copy_in(name, first, step.rows) for name in ("variance", "mean")}
        local["dx"] = queues["dx"].AllocTensor(T)
        xhat, temporary = buffers["xhat"].Get(T), buffers["temporary"].Get(np.uint8)
        LayerNormGrad(
            local["dx"], xhat, local["dy"], local["x"], local["variance"], local["mean"], scale, 0.0, step.grad,
            sharedTmpBuffer=temporary, isReuseSource=reuse, exact_padding=True,
        )  # fmt: skip
        queues["dx"].EnQue(local["dx"])
        for name in ("x", "variance", "mean"):
            queues[name].FreeTensor(local[name])
        if reuse:  # LayerNormGrad has used it as scratch
            queues["dy"].FreeTensor(local["dy"])
            local["dy"] = copy_in("dy", at, count)
        dgamma, dbeta = (buffers[name].Get(T) for name in ("dgamma", "dbeta"))
        LayerNormGradBeta(dgamma, dbeta, xhat, local["dy"], step.beta, sharedTmpBuffer=temporary, exact_padding=True)
        for total, part in ((sums, dgamma), (sums[H:], dbeta)):
            if T != FLOAT:
                widened = buffers["widened"].Get(FLOAT)
                Cast(widened, part, RoundMode.CAST_NONE, H)
                part = widened
            Add(total, total, part, H)
        queues["dy"].FreeTensor(local["dy"])
        done = queues["dx"].DeQue()
        DataCopy(memory["dx"][at], done, count)
        queues["dx"].FreeTensor(done)
        first += step.rows
    queues["gamma"].FreeTensor(scale)
    # The sums lie in a TBuf: no queue makes the copy wait for the last Add.
    finished = pipe.FetchEventID(HardEvent.V_MTE3)
    SetFlag(HardEvent.V_MTE3, finished)
    WaitFlag(HardEvent.V_MTE3, finished)
    DataCopy(_bind(partials)[GetBlockIdx() * 2 * H], sums, 2 * H)


def _bind(address: GlobalAddress) -> GlobalTensor:
    tensor = GlobalTensor()
    tensor.SetGlobalBuffer(address)
    return tensor


def combine(partials: GlobalAddress, sums: GlobalAddress, tiling: bytes) -> None:
    """Add up the partial sums of all blocks, in the order of the blocks.

    Shapes: partials (blocks, 2, H), sums (2, H); both float.
    """
    info = CopyTiling(BackwardTiling, tiling)
    count = 2 * info.H
    pipe = TPipe()
    inward, total = TQue(TPosition.VECIN, 1, name="partials"), TQue(TPosition.VECOUT, 1, name="sums")
    for queue in (inward, total):
        pipe.InitBuffer(queue, 1, count * FLOAT_BYTES)
    result = total.AllocTensor(FLOAT)
    Duplicate(result, 0.0, count)
    for block in range(info.blocks):
        local = inward.AllocTensor(FLOAT)
        DataCopy(local, _bind(partials)[block * count], count)
        inward.EnQue(local)
        local = inward.DeQue()
        Add(result, result, local, count)
        inward.FreeTensor(local)
    total.EnQue(result)
    result = total.DeQue()
    DataCopy(_bind(sums), result, count)
    total.FreeTensor(result)
