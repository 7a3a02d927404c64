"""Run a kernel on the arrays of a folder: FOLDER SOURCE M N BLOCKS MODULES. Prints which of the modules were imported."""

import struct
import sys
from pathlib import Path

import numpy as np

import lngrad_ascend  # noqa: F401
from lngrad_ascend import acl, aclnn, ascendc, graph, soc, tiling  # noqa: F401

folder, source, M, N, blocks = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
arrays = [np.load(folder / f"{name}.npy") for name in ("dy", "x", "mean", "rstd", "gamma")]
results = {"dx": np.zeros((M, N), np.float32), "dgamma": np.zeros(N, np.float32), "dbeta": np.zeros(N, np.float32)}
kernel = ascendc.compile(source, "rows_backward", define={"COLUMN_SUMS": 1})
tiled = struct.pack("<3I", M, N, -(-M // blocks))
(folder / "tiling.bin").write_bytes(tiled)
ascendc.launch(kernel, blocks, *arrays, *results.values(), workspace=2 * N * 4 * blocks, tiling=tiled)
for name, result in results.items():
    np.save(folder / f"{name}.npy", result)
print(sorted(name for name in sys.argv[6].split(",") if name in sys.modules))
