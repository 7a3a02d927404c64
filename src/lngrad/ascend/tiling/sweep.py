"""The tiling lint over many shapes: how often LayerNormGrad's own temporary-buffer sizes are too
small."""

from __future__ import annotations

from dataclasses import dataclass

from lngrad.ascend import soc as socs
from lngrad.ascend.tiling.lint import TYPE_SIZES, lint


@dataclass(frozen=True)
class SweepRow:
    """How many shapes of the sweep end in each verdict, for one dtype, reuse and stack."""

    dtype: str
    reuse_source: bool
    stack: str
    ok: int
    reserve: int
    overrun: int
    refused: int


def sweep(soc: str | socs.Soc | None = "Ascend910B1") -> tuple[SweepRow, ...]:
    """Lint LayerNormGrad with its own minimum and maximum over many shapes.

    The shapes: H every multiple of 32 bytes up to 1024 elements, B·S one of 1, 2, 4, 7, 8, 16, 32,
    64, 100, 128, 256.
    """
    rows = []
    for dtype, reuse in (("half", False), ("float", False), ("float", True)):
        step = 32 // TYPE_SIZES[dtype]
        shapes = [(1, S, H) for H in range(step, 1024 + 1, step) for S in (1, 2, 4, 7, 8, 16, 32, 64, 100, 128, 256)]
        for stack in ("min", "max"):
            verdicts = [lint("LayerNormGrad", shape, dtype, soc, stack, reuse).verdict for shape in shapes]
            rows.append(
                SweepRow(
                    dtype,
                    reuse,
                    stack,
                    ok=verdicts.count("ok"),
                    reserve=verdicts.count("reserve"),
                    overrun=verdicts.count("overrun"),
                    refused=verdicts.count("assert"),
                )
            )
    return tuple(rows)
