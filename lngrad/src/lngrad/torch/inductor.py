"""The normalizations in graphs that Inductor compiles: torch's functions replaced by our operators before they are decomposed.

Below torch.compile no kernel of aten is called: Inductor makes loops of its own from aten's formula. So the graph is changed
where Inductor lets others change it, by a pass over the graph that torch.compile recorded. Where there is native code, what
Inductor writes calls it directly: torch's dispatcher, and checks that the native code makes anyway, are most of a small call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.virtualized import V

try:
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes
except ImportError as reason:  # whose kept graphs do not know which passes they went through
    raise ImportError(f"override(compiled=True): expected torch 2.13 or later, got {torch.__version__}") from reason

from lngrad.torch import native, operators

try:  # what writes the lines of generated code; another torch may not have it
    from torch._inductor.codegen.custom_extern_kernel_codegen import CUSTOM_EXTERN_KERNEL_CODEGEN, CustomCodegen
    from torch._inductor.codegen.wrapper import AssertSizeStrideLine, ExternKernelAllocLine
except ImportError:
    CUSTOM_EXTERN_KERNEL_CODEGEN = None

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
        """What Inductor's caches on disk tell graphs with and without this pass apart by, and with and without direct calls."""
        return sha256(Path(__file__).read_bytes() + bytes([native.module is not None])).hexdigest()


def _replace(graph: Any, node: Any) -> None:
    ours, places, eps = _THEIRS[node.target]
    named = {"weight": None, "bias": None, "eps": eps, **dict(zip(places, node.args, strict=False)), **node.kwargs}
    x = named["input"].meta.get("example_value")
    if (
        not isinstance(x, torch.Tensor)
        or x.device.type != "cpu"
        or not x.is_floating_point()
        or not operators.is_dense(x)
    ):
        return
    if named["eps"] is None:
        named["eps"] = operators.epsilon(x)
    arguments = tuple(named[name] for name in ("input", "normalized_shape", "weight", "bias", "eps"))
    with graph.inserting_before(node):
        call = graph.call_function(ours, arguments if ours is operators.layer_norm else (*arguments, *operators.RMS))
        y = graph.call_function(operator.getitem, (call, 0))
    y.meta = node.meta
    node.replace_all_uses_with(y)
    graph.erase_node(node)


_pass = _ToOperator()


# --- Direct calls ---------------------------------------------------------------------------------------------------


def direct(name: str) -> Any:
    """What generated code calls for an operator: the native code itself, or the operator where there is none."""
    operator = operators.ALL[name]
    return operator if native.module is None else getattr(native.module, f"direct_{name}")


def _write_call(name: str, node: Any, writeline: Callable[[Any], None]) -> None:
    """Write the call of an operator.

    Sizes and strides are asserted of x alone, where a loop of Inductor's depends on them: the native code compares the rest
    with x, and hands what does not fit to the operator, which refuses it. Results are as the operator's fakes foretell, but
    None for one without elements: a graph that uses such a one has the operator.
    """
    wrapper = V.graph.wrapper_code
    in_python = not (V.graph.cpp_wrapper or V.graph.fx_wrapper)
    used = (output for output in node.outputs if output.get_name() not in V.graph.removed_buffers)
    is_whole = not any(list(output.get_size()) == [0] for output in used)
    if in_python and is_whole and native.module is not None and node.get_device().type in ("cpu", "cuda"):
        root = wrapper.get_root_graph() if hasattr(wrapper, "get_root_graph") else wrapper  # a subgraph has no imports
        root.add_import_once("import lngrad.torch.inductor")
        root.add_import_once(f"lngrad_{name} = lngrad.torch.inductor.direct({name!r})")
        node.python_kernel_name = f"lngrad_{name}"
        for result in node.outputs:
            result.skip_size_stride_alignment_checks = True
        checked = _checked_by_us(node, x_at=1 if name.endswith("backward") else 0)
        wrapper.lines[:] = [
            line for line in wrapper.lines if not (isinstance(line, AssertSizeStrideLine) and line.name in checked)
        ]
    writeline(ExternKernelAllocLine(wrapper, node))


def _checked_by_us(node: Any, x_at: int) -> set[str]:
    """The inputs of the graph that nothing but this call computes with; x only if nothing computes with the results either."""
    calls = [origin for origin in node.origins if origin.target is node.op_overload]
    inputs = {source for call in calls for source in call.all_input_nodes if source.op == "placeholder"}
    if any(user.op != "output" for call in calls for result in call.users for user in result.users):
        inputs -= {call.args[x_at] for call in calls}
    return {source.name for source in inputs if all(user in calls or user.op == "output" for user in source.users)}


# Who writes the call of an operator, by the name that Inductor has for it.
for name, overload in operators.ALL.items() if CUSTOM_EXTERN_KERNEL_CODEGEN is not None else ():
    CUSTOM_EXTERN_KERNEL_CODEGEN[f"torch.ops.{overload}"] = CustomCodegen(python=partial(_write_call, name))


# --- On and off -----------------------------------------------------------------------------------------------------


def install() -> None:
    """From now on; graphs compiled before are forgotten, so that they are compiled with it."""
    config.pre_grad_custom_pass = [*get_custom_graph_passes(config.pre_grad_custom_pass), _pass]
    torch.compiler.reset()


def remove() -> None:
    """The reverse; what others have put there in the meantime stays."""
    others = [other for other in get_custom_graph_passes(config.pre_grad_custom_pass) if other is not _pass]
    config.pre_grad_custom_pass = others or None
    torch.compiler.reset()
