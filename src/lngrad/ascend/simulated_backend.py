"""The backward on a simulated Ascend SoC: the tile kernels of ``lngrad.ascend`` on the SoC that this thread uses.

It computes what the tile APIs compute, which differs from the other backends in two ways: where ``mean`` is not the
row's mean, the tile formula keeps a term that they drop; and with everything in half, so are the statistics, and each
step's sums are rounded to half. The tile APIs take a variance: it is rstd⁻², with epsilon 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lngrad.ascend import soc as socs
from lngrad.ascend.device.launch import launch
from lngrad.ascend.device.report import LaunchReport
from lngrad.ascend.tile.backward_kernel import BackwardTiling, backward_rows, combine, largest_row, plan_backward
from lngrad.core.plan import Plan
from lngrad.core.problem import BACKWARD, LAYER_NORM, Problem
from lngrad.errors import BackendUnavailable
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Dtype

TILE_DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class SimulatedSteps:
    """The SoC, the element type T of the kernels, and their tiling (None where there is nothing to compute)."""

    soc: socs.Soc
    dtype: Dtype
    tiling: BackwardTiling | None


def context() -> socs.Soc:
    """The SoC that this thread uses: plans differ by it."""
    return socs.current().soc


def plan(problem: Problem, threads: int, soc: socs.Soc) -> Plan:
    """Decide how a SoC computes a backward.

    Args:
        problem: A backward in float16 or float32.
        threads: Ignored; blocks run one after the other.
        soc: The SoC.

    Raises:
        BackendUnavailable: A forward, another dtype, a SoC without the tile APIs, or rows that do not fit its Unified
            Buffer; the text states the largest that do.
    """
    if problem.operator is not BACKWARD or problem.normalization != LAYER_NORM:
        raise BackendUnavailable("backend: ascend_sim computes the backward only")
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


def _too_long(N: int, dtype: Dtype, soc: socs.Soc) -> str:
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
