"""Layer normalization in graphs that Inductor compiles: torch's function replaced by our operator before it is decomposed.

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

_PLACES = ("input", "normalized_shape", "weight", "bias", "eps")
_DEFAULTS = {"weight": None, "bias": None, "eps": 1e-5}
_THEIRS = (torch.nn.functional.layer_norm, torch.layer_norm)


class _ToOperator(CustomGraphPass):  # type: ignore[misc]  # torch is Any to mypy here
    """Every layer normalization of a CPU tensor becomes a call of lngrad::layer_norm."""

    def __call__(self, graph: Any) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and node.target in _THEIRS:
                _replace(graph, node)

    def uuid(self) -> str:
        """What Inductor's caches on disk tell graphs with and without this pass apart by."""
        return sha256(Path(__file__).read_bytes()).hexdigest()


def _replace(graph: Any, node: Any) -> None:
    given = _DEFAULTS | dict(zip(_PLACES, node.args, strict=False)) | node.kwargs
    x = given["input"].meta.get("example_value")
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu" or not x.is_floating_point():
        return
    with graph.inserting_before(node):
        call = graph.call_function(operators.layer_norm, tuple(given[name] for name in _PLACES))
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
