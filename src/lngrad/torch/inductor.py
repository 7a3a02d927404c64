"""The normalizations in graphs that Inductor compiles: torch's functions replaced by our operators before they are decomposed.

Below torch.compile no kernel of aten is called: Inductor makes loops of its own from aten's formula. So the graph is changed
where Inductor lets others change it, by a pass over the graph that torch.compile recorded.
"""

from __future__ import annotations

import operator
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes

from lngrad.torch import operators

_LAYER_NORM = operators.layer_norm, ("input", "normalized_shape", "weight", "bias", "eps"), 1e-5
_RMS_NORM = operators.norm, ("input", "normalized_shape", "weight", "eps"), None
# Of each of torch's functions: our operator, the names of its arguments in order, and its eps by default.
_THEIRS = {
    torch.nn.functional.layer_norm: _LAYER_NORM,
    torch.layer_norm: _LAYER_NORM,
    torch.nn.functional.rms_norm: _RMS_NORM,
    torch.rms_norm: _RMS_NORM,
}


class _ToOperator(CustomGraphPass):  # type: ignore[misc]  # torch is Any to mypy here
    """Every normalization of a CPU tensor becomes a call of lngrad::layer_norm or lngrad::norm."""

    def __call__(self, graph: Any) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and node.target in _THEIRS:
                _replace(graph, node)

    def uuid(self) -> str:
        """What Inductor's caches on disk tell graphs with and without this pass apart by."""
        return sha256(Path(__file__).read_bytes()).hexdigest()


def _replace(graph: Any, node: Any) -> None:
    ours, places, eps = _THEIRS[node.target]
    given = {"weight": None, "bias": None, "eps": eps, **dict(zip(places, node.args, strict=False)), **node.kwargs}
    x = given["input"].meta.get("example_value")
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu" or not x.is_floating_point():
        return
    if given["eps"] is None:
        given["eps"] = operators.epsilon(x)
    arguments = tuple(given[name] for name in ("input", "normalized_shape", "weight", "bias", "eps"))
    with graph.inserting_before(node):
        call = graph.call_function(ours, arguments if ours is operators.layer_norm else (*arguments, None, False, 0.0))
        y = graph.call_function(operator.getitem, (call, 0))
    y.meta = node.meta
    node.replace_all_uses_with(y)
    graph.erase_node(node)


_pass = _ToOperator()


def install() -> None:
    """From now on; graphs compiled before are forgotten, so that they are compiled with it."""
    config.pre_grad_custom_pass = [*get_custom_graph_passes(config.pre_grad_custom_pass), _pass]
    torch.compiler.reset()


def remove() -> None:
    """The reverse; what others have put there in the meantime stays."""
    others = [one for one in get_custom_graph_passes(config.pre_grad_custom_pass) if one is not _pass]
    config.pre_grad_custom_pass = others or None
    torch.compiler.reset()
