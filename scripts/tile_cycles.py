"""How many cycles LayerNormGrad and LayerNormGradBeta take with the smallest and with the largest temporary buffer.

    python scripts/tile_cycles.py [SoC]

The manual's tiling pages give the two sizes and leave open what they cost. The cycles are the model's (docs/ascend-cycles.md),
of the call alone: its operands are in the Unified Buffer. The smallest size is that of the manual, or lngrad's safe one where
the kernel would run over that; the largest is that of the manual, or the largest that fits and that the kernel stays in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from lngrad_ascend import soc as socs
from lngrad_ascend import tiling
from lngrad_ascend.ascendc import LayerNormGrad, LayerNormGradBeta, TPosition, launch
from lngrad_ascend.device.core import running
from lngrad_ascend.device.local_tensor import LocalTensor, memory_at
from lngrad_ascend.faults import DeviceFault, TilingError

SHAPES = ((1, 8, 64), (2, 16, 64), (2, 32, 64), (1, 8, 256), (1, 16, 256), (1, 8, 512), (1, 4, 1024), (1, 1, 2048))
DTYPES = (np.dtype(np.float16), np.dtype(np.float32))


def cycles_of(call: Callable[..., None], dtype: Any, sizes: Sequence[int], stack: int, soc: str) -> float:
    """The cycles of a call on tensors of ``sizes`` elements, one behind the other, and a temporary buffer behind them."""

    def kernel(_: object) -> None:
        core, tensors, at = running("tile_cycles"), list[LocalTensor](), 0
        for size in sizes:
            nbytes = -(-size * dtype.itemsize // 32) * 32
            tensors.append(memory_at(core, TPosition.VECCALC, dtype, at, nbytes))
            core.ub.data[at : at + nbytes], core.ub.poison[at : at + nbytes] = 0, 0
            at += nbytes
        call(*tensors, memory_at(core, TPosition.VECCALC, np.dtype(np.uint8), at, stack))

    report = launch(kernel, 1, np.zeros(8, np.float32), soc=soc, cycles=True)
    assert report.cycles is not None
    return report.cycles.cycles


def grad(shape: Sequence[int], dtype: Any, stack: int, soc: str) -> float:
    """The cycles of LayerNormGrad."""
    B, S, H = shape
    info = tiling.GetLayerNormGradNDTilingInfo((*shape, H), stack, dtype.itemsize, False, soc=soc)
    sizes = [B * S * H] * 4 + [B * S] * 2 + [H]
    return cycles_of(
        lambda *tensors: LayerNormGrad(*tensors[:-1], 1e-5, info, sharedTmpBuffer=tensors[-1]), dtype, sizes, stack, soc
    )


def beta(shape: Sequence[int], dtype: Any, stack: int, soc: str) -> float:
    """The cycles of LayerNormGradBeta."""
    B, S, H = shape
    info = tiling.GetLayerNormGradBetaNDTilingInfo((*shape, H), stack, dtype.itemsize, False, soc=soc)
    sizes = [H] * 2 + [B * S * H] * 2
    return cycles_of(
        lambda *tensors: LayerNormGradBeta(*tensors[:-1], info, sharedTmpBuffer=tensors[-1]), dtype, sizes, stack, soc
    )


def found(
    run: Callable[..., float], shape: Sequence[int], dtype: Any, sizes: Iterable[int], soc: str
) -> tuple[int, float] | None:
    """The first of these sizes with which the kernel runs, and its cycles."""
    for stack in sizes:
        try:
            return stack, run(shape, dtype, stack, soc)
        except (DeviceFault, TilingError):
            continue
    return None


def rows(soc: str) -> Iterator[tuple[str, ...]]:
    """The table's rows."""
    yield "API", "[B, S, H]", "dtype", "bytes", "cycles", "bytes", "cycles", "smallest / largest"
    for api, run in (("LayerNormGrad", grad), ("LayerNormGradBeta", beta)):
        for shape in SHAPES:
            for dtype in DTYPES:
                words = (*shape, shape[-1]), dtype.itemsize, False
                largest, smallest = getattr(tiling, f"Get{api}MaxMinTmpSize")(*words, soc=soc)
                safe = tiling.safe_stack_bytes(api, *words, soc)
                few = found(run, shape, dtype, (smallest, safe), soc)
                many = found(run, shape, dtype, (largest, *range(192 << 10, max(safe, 4096), -4096), safe), soc)
                if few and many:
                    figures = (
                        f"{few[0]:,}",
                        f"{few[1]:,.0f}",
                        f"{many[0]:,}",
                        f"{many[1]:,.0f}",
                        f"{few[1] / many[1]:.2f}",
                    )
                    yield api, str(list(shape)), str(dtype), *figures


def main(soc: str = socs.DEFAULT) -> int:
    """Print the table."""
    lines = list(rows(soc))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
