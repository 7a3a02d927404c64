"""The graphs of C++ programs: the classes of the operators that are here, shapes and dtypes before a run, and the run.

The headers under include/graph write a graph as a list of nodes in JSON, each after those that it reads.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from lngrad.errors import LngradError
from lngrad.typing import Array, Shape
from lngrad_ascend import acl, graph
from lngrad_ascend.acl.interface import StatusError, invalid_param, returns_aclError
from lngrad_ascend.acl.tensor import NUMPY_DTYPES
from lngrad_ascend.sdk import pointers

Node: TypeAlias = dict[str, Any]
Facts: TypeAlias = "tuple[Shape, str] | None"  # of an output: its shape and dtype; None: not wanted

OPS: dict[str, Any] = {name: op for name in graph.__all__ if hasattr(op := getattr(graph, name), "name")}
_NUMBERS = {dtype.name: int(kind) for kind, dtype in NUMPY_DTYPES.items()}
_MAX_DIMS = 8
_SOURCES = ("Data", "Const")  # which have a tensor and compute nothing
_IR_TYPES = {bool: "Bool", int: "Int", float: "Float", tuple: "ListBool"}


def operator_headers() -> dict[str, str]:
    """Return the headers with the operators' prototypes, and those that include them all, by path."""
    texts = {}
    for name, op in OPS.items():
        inputs = "".join(f"    .{_input_kind(op, field)}({field}, TensorType::ALL())\n" for field in op.inputs)
        outputs = "".join(f"    .OUTPUT({field}, TensorType::ALL())\n" for field in _results_of(op))
        attributes = "".join(f"    .ATTR({field}, {_attribute(value)})\n" for field, value in _attributes(op).items())
        path = "op_graph/" + re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower() + "_proto.h"
        guard = f"LNGRAD_{name.upper()}_PROTO_H"
        texts[path] = (
            f'#ifndef {guard}\n#define {guard}\n\n#include "graph/operator_reg.h"\n\nnamespace ge {{\n\n'
            f"REG_OP({name})\n{inputs}{outputs}{attributes}    .OP_END_FACTORY_REG({name})\n\n}} // namespace ge\n\n#endif\n"
        )
    norms = "".join(f'#include "{path}"\n' for path in texts)
    return texts | {"nn_norm_ops.h": norms, "all_ops.h": f'#include "array_ops.h"\n{norms}'}


def _input_kind(op: Any, name: str) -> str:
    return "OPTIONAL_INPUT" if name in getattr(op, "optional", ()) else "INPUT"


def _results_of(op: Any) -> tuple[str, ...]:
    """Return the names of an operator's outputs."""
    results = getattr(op, "results", None) or inspect.get_annotations(type(op).__call__, eval_str=True)["return"]
    return tuple(results._fields)


def _attributes(op: Any) -> dict[str, Any]:
    """Return the attributes of an operator's prototype and their defaults; those of Python alone have None."""
    if isinstance(op.attributes, dict):
        return dict(op.attributes)
    parameters = {**inspect.signature(op.infer_shape).parameters, **inspect.signature(op).parameters}
    defaults = {name: parameters[name].default for name in op.attributes}
    return {name: default for name, default in defaults.items() if default is not None}


def _attribute(default: Any) -> str:
    text = json.dumps(default)
    return f"{_IR_TYPES[type(default)]}, {'{' + text[1:-1] + '}' if isinstance(default, tuple) else text}"


@returns_aclError
def lngradGraphInfer(graph: Any, graphSize: int, facts: Any, factsSize: int) -> None:
    """Write type, rank and dimensions of every node's outputs, 10 words each; type -1: not wanted."""
    words = [word for node in _infer(_nodes(graph)) for output in node for word in _words(output)]
    if facts is None or isinstance(facts, int) or factsSize != 8 * len(words):
        raise invalid_param(f"facts: expected {8 * len(words)} bytes of host memory, got {factsSize}")
    np.frombuffer(facts, np.int64)[:] = words


@returns_aclError
def lngradGraphRun(graph: Any, graphSize: int) -> None:
    """Compute a graph's nodes, and write the results that have an address."""
    nodes = _nodes(graph)
    values: list[dict[str, Array | None]] = []
    for node, outputs in zip(nodes, _infer(nodes), strict=True):
        if node["op"] in _SOURCES:
            ((shape, dtype),) = (output for output in outputs if output)
            results: list[Any] = [_memory(node["name"], node["address"], shape, dtype, writable=False)]
        else:
            op = OPS[node["op"]]
            sources = [node["inputs"].get(name) for name in op.inputs]
            results = list(_answered(node, op, *(source and values[source[0]][source[1]] for source in sources)))
        values.append(dict(zip(node["outputs"], results, strict=True)))
        for address, result, output in zip(node.get("results", ()), results, outputs, strict=False):
            if address and output and result is not None:
                _memory(node["name"], address, *output, writable=True)[...] = result


def _nodes(text: Any) -> list[Node]:
    try:
        nodes: list[Node] = json.loads(b"" if text is None or isinstance(text, int) else bytes(text))
    except ValueError:
        raise invalid_param("graph: expected a graph of the toolkit's own headers, got other bytes") from None
    return nodes


def _words(output: Facts) -> list[int]:
    if output is None:
        return [-1] + [0] * (_MAX_DIMS + 1)
    shape, dtype = output
    return [_NUMBERS[dtype], len(shape), *shape, *[0] * (_MAX_DIMS - len(shape))]


def _infer(nodes: list[Node]) -> list[list[Facts]]:
    """Return the facts of every node's outputs. A dimension of -1 is unknown."""
    known: list[dict[str, Facts]] = []
    for node in nodes:
        if node["op"] in _SOURCES:
            results = [_data(node)]
        else:
            op = _operator(node)
            sources = [_source(node, op, name, known) for name in op.inputs]
            shapes, dtypes = ([source and source[part] for source in sources] for part in (0, 1))
            inferred = zip(
                _answered(node, op.infer_shape, *shapes), _answered(node, op.infer_dtype, *dtypes), strict=True
            )
            absent = _answered(node, op.unwritten) if hasattr(op, "unwritten") else ()
            facts = zip(node["outputs"], inferred, strict=True)
            results = [
                None if shape is None or name in absent else (tuple(shape), dtype) for name, (shape, dtype) in facts
            ]
        known.append(dict(zip(node["outputs"], results, strict=True)))
    return [list(outputs.values()) for outputs in known]


def _operator(node: Node) -> Any:
    op = OPS.get(node["op"])
    if op is None:
        raise invalid_param(f"{node['name']}: expected an operator that is here ({', '.join(OPS)}), got {node['op']}")
    if tuple(node["outputs"]) != _results_of(op):
        raise invalid_param(
            f"{node['name']}: expected outputs {', '.join(_results_of(op))}, got {', '.join(node['outputs'])}"
        )
    for name in node["attributes"]:
        if name not in _attributes(op):
            raise invalid_param(
                f"{node['name']}: expected attributes {', '.join(_attributes(op)) or 'none'}, got {name}"
            )
    return op


def _source(node: Node, op: Any, name: str, known: list[dict[str, Facts]]) -> Facts:
    """Return the facts of what an input reads; None for an optional one that reads nothing."""
    at, output = node["inputs"].get(name, (None, ""))
    if at is None:
        if _input_kind(op, name) == "INPUT":
            raise invalid_param(f"{node['name']}: expected the input {name} (set_input_{name}), got none")
        return None
    facts: Facts = known[at].get(output)
    if facts is None:
        raise invalid_param(
            f"{node['name']}: {name}: expected one of {', '.join(known[at])} that is wanted, got {output}"
        )
    return facts


def _data(node: Node) -> Facts:
    """The facts of a graph's input: those of its tensor, which fit what the program has declared."""
    kind, shape = node.get("tensor") or node.get("declared") or (None, ())
    if kind is None:
        raise invalid_param(f"{node['name']}: expected an input of the graph (SetInputs), or a description, got none")
    dtype = NUMPY_DTYPES.get(kind)
    if dtype is None:
        raise invalid_param(f"{node['name']}: expected a type that is here, got {kind}")
    declared_kind, declared = node.get("declared", (kind, shape))
    sizes = zip(declared, shape, strict=False)
    fits = declared == [-2] or (len(declared) == len(shape) and all(size in (-1, actual) for size, actual in sizes))
    if declared_kind != kind or not fits:
        raise invalid_param(
            f"{node['name']}: expected the tensor as declared, {declared_kind} {declared}, got {kind} {shape}"
        )
    if "tensor" in node and node["size"] != math.prod(shape) * dtype.itemsize:
        raise invalid_param(f"{node['name']}: expected {math.prod(shape) * dtype.itemsize} bytes, got {node['size']}")
    return tuple(shape), dtype.name


def _memory(name: str, address: int, shape: Shape, dtype: str, *, writable: bool) -> Array:
    found = NUMPY_DTYPES[acl.aclDataType(_NUMBERS[dtype])]
    nbytes = math.prod(shape) * found.itemsize
    if nbytes == 0:
        return np.empty(shape, found)
    try:
        return np.frombuffer(pointers.view(address, nbytes, nbytes, writable), found).reshape(shape)
    except pointers.NoSuchMemory:
        raise invalid_param(f"{name}: expected {nbytes} bytes of host memory, got the pointer {address:#x}") from None


def _answered(node: Node, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call with those of a node's attributes that the function takes. What it refuses is refused under the node's name."""
    taken = inspect.signature(function).parameters
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    attributes = {name: value for name, value in node["attributes"].items() if every or name in taken}
    try:
        return function(*arguments, **attributes)
    except StatusError:
        raise
    except LngradError as error:
        raise invalid_param(f"{node['name']}: {error}") from None
