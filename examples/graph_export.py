"""Both graph ops inside a captured graph: export it with dynamic shapes, save it, load it, run it.

python examples/graph_export.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import lngrad_ascend.graph_torch  # noqa: F401 - defines torch.ops.lngrad; a loading program needs it as well
from lngrad.core.problem import Grads
from lngrad.testing import Case, Inputs, check_grads, make_inputs
from lngrad_ascend import soc
from lngrad_ascend.graph_torch import layer_norm_grad, layer_norm_grad_v3

EPSILON = 1e-5


class Backward(torch.nn.Module):
    """The gradients twice: from the variance by LayerNormGrad, from rstd by LayerNormGradV3."""

    def forward(self, dy: Any, x: Any, variance: Any, mean: Any, gamma: Any) -> tuple[Any, ...]:
        rstd = torch.rsqrt(variance + EPSILON)
        from_variance = layer_norm_grad(dy, x, variance, mean, gamma, epsilon=EPSILON)
        from_rstd = layer_norm_grad_v3(dy, x, rstd, mean, gamma)
        return (*from_variance, *from_rstd)


def example(rows: int, columns: int) -> tuple[Inputs, tuple[Any, ...]]:
    """Inputs of a shape, as NumPy arrays and as the module's arguments."""
    inputs = make_inputs(Case((rows, 3), (columns,)), "float32")
    variance = inputs.x.var(axis=-1, keepdims=True)
    arrays = (inputs.dy, inputs.x, variance, inputs.mean, inputs.gamma)
    return inputs, tuple(map(torch.from_numpy, arrays))


def main() -> int:
    soc.use("Ascend950")  # a product of both ops' pages
    rows, columns = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    full, statistics = {0: rows, 2: columns}, {0: rows}
    shapes = {"dy": full, "x": full, "variance": statistics, "mean": statistics, "gamma": {0: columns}}
    _, arguments = example(4, 16)
    program = torch.export.export(Backward(), arguments, dynamic_shapes=shapes)
    ops = [str(node.target) for node in program.graph.nodes if "lngrad" in str(node.target)]
    print(f"captured {', '.join(ops)}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "backward.pt2"
        torch.export.save(program, path)
        print(f"saved {path.stat().st_size} bytes")
        loaded = torch.export.load(path).module()

    for size in ((4, 16), (9, 33), (200, 5)):
        inputs, arguments = example(*size)
        results = loaded(*arguments)
        for op, grads in (("LayerNormGrad", results[:3]), ("LayerNormGradV3", results[3:])):
            share = check_grads(Grads(*grads), inputs)
            print(f"{op} of {tuple(inputs.x.shape)}: {share:.2f} of the tolerance")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
