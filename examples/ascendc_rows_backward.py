"""A multi-block kernel in C++, run from Python: rows over blocks, dgamma and dbeta by atomics or in order.

Run it anywhere with a C++ compiler: ``python examples/ascendc_rows_backward.py``. It compiles
examples/cpp/rows_backward.cpp, launches it on four blocks, compares with float64, then removes one
flag from the kernel and shows the race that the simulator finds.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

from lngrad.core import reference
from lngrad_ascend import ascendc

SOURCE = Path(__file__).parent / "cpp" / "rows_backward.cpp"
M, N, BLOCKS = 50, 64, 4
TOLERANCE = 1e-5  # absolute; the worst seen is 2e-6


def run(kernel: ascendc.CompiledKernel, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], ascendc.LaunchReport]:
    """Launch the kernel; return dx, dgamma, dbeta and the report."""
    outputs = [np.empty((M, N), np.float32), np.empty(N, np.float32), np.empty(N, np.float32)]
    report = ascendc.launch(
        kernel, BLOCKS, *inputs, *outputs, workspace=2 * N * 4 * BLOCKS,
        tiling=struct.pack("<3I", M, N, -(-M // BLOCKS)), auto_sync=False,
    )  # fmt: skip
    return outputs, report


def main() -> int:
    """Run both forms of the kernel, then one with a mistake. Return the exit code."""
    rng = np.random.default_rng(0)
    dy, x = (rng.standard_normal((M, N)).astype(np.float32) for _ in range(2))
    gamma = rng.standard_normal(N).astype(np.float32)
    mean, rstd = x.mean(1), (1 / np.sqrt(x.var(1) + 1e-5)).astype(np.float32)
    expected = reference.layer_norm_backward(dy, x, mean, rstd, gamma)
    wrong = 0
    for sums, how in ((0, "atomics"), (1, "in order")):
        kernel = ascendc.compile(SOURCE, "rows_backward", define={"COLUMN_SUMS": sums})
        outputs, report = run(kernel, [dy, x, mean, rstd, gamma])
        error = max(float(np.max(np.abs(got - want))) for got, want in zip(outputs, expected, strict=True))
        wrong += not error < TOLERANCE
        print(f"{report}\ncolumn sums by {how}: largest error {error:.1e}\n")
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / SOURCE.name
        changed.write_text(SOURCE.read_text().replace("            Wait<HardEvent::V_MTE3>();\n", "", 1))
        try:
            run(ascendc.compile(changed, "rows_backward"), [dy, x, mean, rstd, gamma])
            wrong += 1
        except ascendc.DeviceFault as fault:
            print(f"without one flag: {fault}")
    print("wrong" if wrong else "ok")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
