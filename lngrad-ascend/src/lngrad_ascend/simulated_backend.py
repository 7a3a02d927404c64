"""The backward on a simulated Ascend SoC: the tile kernels of ``lngrad_ascend`` on the SoC that this thread uses.

It computes what the tile APIs compute, which differs from the other backends in two ways: where ``mean`` is not the
row's mean, the tile formula keeps a term that they drop; and with everything in half, so are the statistics, and each
step's sums are rounded to half. The tile APIs take a variance: it is rstd⁻², with epsilon 0.

``plan_backward`` is the host side: how many rows a step takes, with or without isReuseSource, and the tiling structs.
``backward_rows`` and ``combine`` are the two kernels: a launch has no way to wait for other blocks, so that the
second one adds up the partial sums that the first one left, in block order.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lngrad.core.plan import Plan, Serves
from lngrad.core.problem import BACKWARD, Problem
from lngrad.errors import BackendUnavailable
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Dtype
from lngrad_ascend import soc as socs
from lngrad_ascend.device.copies import DataCopy
from lngrad_ascend.device.global_memory import GlobalAddress
from lngrad_ascend.device.global_tensor import GlobalTensor
from lngrad_ascend.device.launch import launch
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.numerics import RoundMode
from lngrad_ascend.device.pipes import HardEvent
from lngrad_ascend.device.queues import TBuf, TPipe, TQue
from lngrad_ascend.device.report import LaunchReport
from lngrad_ascend.device.sync import SetFlag, WaitFlag
from lngrad_ascend.device.system import CopyTiling, GetBlockIdx
from lngrad_ascend.device.unified_buffer import TPosition
from lngrad_ascend.device.vector import Add, Cast, Duplicate
from lngrad_ascend.soc import Soc
from lngrad_ascend.tile.layernormgrad import LayerNormGrad, LayerNormGradBeta
from lngrad_ascend.tiling.host_functions import GetLayerNormGradBetaNDTilingInfo, GetLayerNormGradNDTilingInfo, align_up
from lngrad_ascend.tiling.lint import safe_stack_bytes
from lngrad_ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling, TilingStruct

SERVES = Serves(frozenset((BACKWARD,)))
TILE_DTYPES = ("float16", "float32")
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
    """The tiling that the host hands to the kernels. ``tail`` is a block's last step, ``last_tail`` the last block's: perhaps
    no rows."""

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
    """Return the tiling for M rows of N elements, with isReuseSource where more rows fit then; None where not one row fits."""
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
        GetLayerNormGradNDTilingInfo(shape, grad_bytes, type_size, reuse, soc=soc, quiet=True),
        GetLayerNormGradBetaNDTilingInfo(shape, beta_bytes, type_size, False, soc=soc, quiet=True),
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

    Shapes: dy, x, dx (M, H); variance, mean (M,) and room for one step more; gamma (H,); partials (blocks, 2, H) float.
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
            sharedTmpBuffer=temporary, isReuseSource=reuse, exact_padding=True, quiet=True,
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
    """Add up the partial sums of all blocks, (blocks, 2, H) to (2, H) in float, in the order of the blocks."""
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


@dataclass(frozen=True)
class SimulatedSteps:
    """The SoC, the element type T of the kernels, and their tiling (None where there is nothing to compute)."""

    soc: Soc
    dtype: Dtype
    tiling: BackwardTiling | None


def context() -> Soc:
    """The SoC that this thread uses: plans differ by it."""
    return socs.current().soc


def plan(problem: Problem, threads: int, soc: Soc) -> Plan:
    """Decide how a SoC computes a backward. Blocks run one after the other, whatever `threads` is.

    Raises:
        BackendUnavailable: A dtype but float16 and float32, a SoC without the tile APIs, or rows that do not fit
            its Unified Buffer; the text states the largest that do.
    """
    if problem.dtype not in TILE_DTYPES:
        raise BackendUnavailable(f"backend: ascend_sim takes x in {' or '.join(TILE_DTYPES)}, got {problem.dtype}")
    if problem.accumulator == "float64":
        raise BackendUnavailable(
            "backend: ascend_sim computes in float32 at most, which gamma in float64 is not exact in"
        )
    if not soc.tile_api:
        raise BackendUnavailable(f"backend: ascend_sim: {soc.name} ({soc.product}) has no LayerNormGrad tile API")
    # T is half only if nothing would lose precision by it; else everything is widened, exactly.
    dtypes = [spec.dtype for spec in problem.inputs.values() if spec is not None]
    dtype = numpy_dtype("float16" if all(name == "float16" for name in dtypes) else "float32")
    tiling = None
    if problem.M and problem.N:
        tiling = plan_backward(problem.M, problem.N, dtype.itemsize, soc)
        if tiling is None:
            raise BackendUnavailable(_too_long(problem.N, dtype, soc))
    return Plan(problem, "ascend_sim", 0, SimulatedSteps(soc, dtype, tiling), run)


def _too_long(N: int, dtype: Dtype, soc: Soc) -> str:
    largest = [
        f"{largest_row(size, reuse, soc)} for {name}{' with isReuseSource' if reuse else ''}"
        for size, name, reuse in ((2, "half", False), (4, "float", False), (4, "float", True))
    ]
    return (
        f"backend: ascend_sim: one row of {N} in {dtype} and its temporary buffer do not fit the Unified Buffer of "
        f"{soc.name}, {soc.ub_bytes} bytes; the largest row is {', '.join(largest)}"
    )


def run(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Compute every wanted output on the simulated SoC."""
    simulate(plan, inputs, outputs)


def simulate(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> list[LaunchReport]:
    """Do what ``run`` does and return the reports of the two launches."""
    problem, steps = plan.problem, plan.steps
    M, N, tiling = problem.M, problem.N, steps.tiling
    if tiling is None:
        for output in outputs:
            if output is not None:
                as_numpy(output)[...] = 0
        return []
    dy, x, mean, rstd = (as_numpy(array) for array in inputs[:4])
    H, T = tiling.H, steps.dtype
    gamma = np.ones(N, T) if inputs[4] is None else as_numpy(inputs[4])
    with np.errstate(all="ignore"):  # rstd of 0 is a variance of infinity
        variance = np.power(rstd.reshape(M).astype(np.float64), -2.0)
        # A copy of statistics takes whole blocks: the last one reads a little further than M.
        statistics = [_padded(a.reshape(1, M), M + 32, T)[0] for a in (variance, mean)]
    arrays = [_padded(a.reshape(M, N), H, T) for a in (dy, x)]
    dx, partials, sums = np.empty((M, H), T), np.empty((tiling.blocks, 2, H), np.float32), np.empty((2, H), np.float32)
    gamma_row = _padded(gamma.reshape(1, N), H, T)
    reports = [
        launch(
            backward_rows, tiling.blocks, *arrays, *statistics, gamma_row, dx, partials, tiling=tiling, soc=steps.soc
        ),
        launch(combine, 1, partials, sums, tiling=tiling, soc=steps.soc),
    ]
    for output, result in zip(outputs, (dx[:, :N], sums[0, :N], sums[1, :N]), strict=True):
        if output is not None:
            target = as_numpy(output)
            with np.errstate(over="ignore"):
                target[...] = result.reshape(target.shape)
    return reports


def _padded(matrix: np.ndarray[Any, Any], width: int, dtype: Dtype) -> np.ndarray[Any, Any]:
    """Return a contiguous copy in ``dtype`` with columns of 0 appended: (M, N) to (M, width)."""
    return np.pad(matrix.astype(dtype, order="C"), ((0, 0), (0, width - matrix.shape[1])))
