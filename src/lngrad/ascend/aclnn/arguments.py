"""What the first phase sees of its arguments: facts of tensors, values of arrays, numbers."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from lngrad.ascend.acl.handles import Array
from lngrad.ascend.acl.tensor import TensorFacts, aclTensor

Value = TypeVar("Value")


class Prototype(NamedTuple):
    """A pair of functions, and its tensors in the order of the C prototype."""

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Unusable(NamedTuple):
    """In the place of facts: an argument of another type, or a destroyed one."""

    text: str


def tensor_facts(name: str, tensor: object) -> TensorFacts | Unusable | None:
    """A tensor's facts; None for a null pointer."""
    if type(tensor) is aclTensor and tensor.alive:
        return tensor.facts
    return None if tensor is None else _unusable(name, tensor, aclTensor)


def array_values(name: str, array: object, kind: type[Array[Value]]) -> tuple[Value, ...] | Unusable | None:
    """An array's values; None for a null pointer."""
    if isinstance(array, kind) and array.alive:
        return array.values
    return None if array is None else _unusable(name, array, kind)


def number(name: str, value: object) -> float | Unusable:
    """A number, as C passes it by value."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return Unusable(f"{name}: expected a number, got {type(value).__name__}")


def _unusable(name: str, argument: object, kind: type[aclTensor] | type[Array[Value]]) -> Unusable:
    got = "a destroyed one" if isinstance(argument, kind) else type(argument).__name__
    return Unusable(f"{name}: expected a living {kind.__name__}, got {got}")
