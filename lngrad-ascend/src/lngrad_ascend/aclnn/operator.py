"""An aclnn operator as a row: what it reads and writes, its checks in CANN's order, and what the core computes.

The parameters come from the C prototype; docs/architecture.md says how to add a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from lngrad.core.problem import LAYER_NORM, ROLES, Normalization, Operator, Role
from lngrad.support.bounded_cache import cached_property
from lngrad.typing import Array, Shape
from lngrad_ascend.acl.enums import aclDataType, aclFormat
from lngrad_ascend.acl.interface import Handle
from lngrad_ascend.acl.tensor import TensorFacts, aclTensor
from lngrad_ascend.acl.values import aclBoolArray, aclIntArray
from lngrad_ascend.faults import AscendWarning
from lngrad_ascend.prototypes import FUNCTIONS, Kind, Parameter
from lngrad_ascend.soc import Target

FLOAT, ND = aclDataType.ACL_FLOAT, aclFormat.ACL_FORMAT_ND
FLOATS = (aclDataType.ACL_FLOAT, aclDataType.ACL_FLOAT16, aclDataType.ACL_BF16)


class Unusable(NamedTuple):
    """An argument of another type, or a destroyed one, in the place of facts."""

    text: str


class Copy(NamedTuple):
    """An output that is not the core's own.

    Attributes:
        source: What it is copied from: "x", the core's sum of several tensors, or its result "dx" or "y". In float32.
        factor: The number that it is multiplied with on the way; "" for 1.
        when: The number without which it is not written; "" for always.
        by: What is done with it on the way, in float64 and element by element, in the place of the product.
        of: The tensors that `by` takes behind it, which are broadcast to it; a null pointer is 0.
    """

    source: Literal["x", "dx", "y"]
    factor: str = ""
    when: str = ""
    by: Callable[..., Array] | None = None
    of: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AclnnOperator:
    """A pair of functions: NAMEGetWorkspaceSize and NAME.

    Attributes:
        name: Of the second phase.
        reads: The input tensors that are read, in the core's order, each with the core's name for it.
        writes: The outputs, as `reads`; one that the prototype lacks has another name, such as "(rstd)".
        core: What the core computes: the first of these operators that reads so many arrays.
        terms: Inputs that are added to the core's x, in float32. The core computes in float32 then.
        alpha: The number that x is multiplied with before; "" for 1.
        copies: The outputs that are not the core's own; one of "y" has the core compute in float32.
        checks: The rules of the first phase, in CANN's order; the first broken one decides.
        dtypes: Those that the function knows on a target.
        x: The input whose shape and dtype decide.
        normalized: The normalized shape, or the tensor that has it.
        last: Whether that is x's last dimension alone, and the tensor may have ones before it.
        mask: The booleans that say which outputs are wanted; None: those that are given.
        numbers: Parameters that go to the core after its arrays.
        normalization: Which one the core computes.
        half_away: Whether CANN's kernels on Atlas A2 and A3 round its bfloat16 results with ties away from zero.
    """

    name: str
    reads: dict[str, str]
    writes: dict[str, str]
    core: tuple[Operator, ...]
    checks: tuple[Callable[[AclnnCall], None], ...]
    dtypes: Callable[[Target], tuple[aclDataType, ...]]
    x: str = "input"
    normalized: str = "normalizedShape"
    last: bool = False
    mask: str | None = None
    numbers: tuple[str, ...] = ()
    normalization: Normalization = LAYER_NORM
    half_away: bool = False
    terms: tuple[str, ...] = ()
    alpha: str = ""
    copies: dict[str, Copy] = field(default_factory=dict)

    @cached_property
    def _parameters(self) -> list[Parameter]:
        return [
            parameter for parameter in FUNCTIONS[f"{self.name}GetWorkspaceSize"].parameters if not parameter.is_result
        ]

    @cached_property
    def _tensors(self) -> list[str]:
        # const says nothing: some outputs are
        return [parameter.name for parameter in self._parameters if parameter.base == "aclTensor"]

    @cached_property
    def readers(self) -> list[tuple[str, Callable[[str, object], object]]]:
        """The reader of each argument, by its name in the prototype."""
        bases = {row.name: row.base if row.kind is Kind.HANDLE else "" for row in self._parameters}
        return [(name, _READERS[base]) for name, base in bases.items()]

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each argument."""
        return {parameter.name: place for place, parameter in enumerate(self._parameters)}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that go in, those that are replaced among them."""
        return tuple(name for name in self._tensors if name in self.reads or name not in self.outputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of the tensors that are written."""
        return tuple(name for name in self._tensors if name in self.writes or name in self.copies)

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The names of the tensors that only copies read."""
        return tuple(dict.fromkeys(name for copy in self.copies.values() for name in copy.of))

    @cached_property
    def roles(self) -> dict[str, Role]:
        """The core's role of each tensor."""
        core = self.reads | self.writes
        return {name: ROLES[core.get(name, "x")] for name in self._tensors}

    def facts_of(self, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """Return the facts of the first phase's arguments: of tensors, values of arrays, numbers."""
        return tuple([read(name, argument) for (name, read), argument in zip(self.readers, arguments, strict=True)])


class AclnnCall:
    """A first phase's arguments by name, and the target: what checks read.

    Attributes:
        values: Facts of a tensor, values of an array, a number; None for a null pointer.
    """

    def __init__(self, operator: AclnnOperator, values: tuple[object, ...], target: Target):
        self.operator, self.target = operator, target
        self.values: dict[str, Any] = dict(zip(operator.places, values, strict=True))

    @property
    def strict(self) -> bool:
        """Whether the documents' rules hold; else the published code's."""
        return self.target.mode == "strict"

    @property
    def x(self) -> TensorFacts:
        """The input whose shape and dtype decide."""
        facts: TensorFacts = self.values[self.operator.x]
        return facts

    @property
    def norm(self) -> Shape:
        """The normalized shape, as it was given."""
        shape = self.shape(self.operator.normalized)
        return shape[-1:] if self.operator.last else shape

    @property
    def lead(self) -> Shape:
        """The dimensions of x that are not normalized."""
        return self.x.shape[: len(self.x.shape) - len(self.norm)]

    @property
    def trailing(self) -> Shape:
        """The dimensions of x that are normalized; in compat they may differ from `norm`."""
        return self.x.shape[len(self.lead) :]

    @property
    def rows(self) -> Shape:
        """The documented shape of statistics: [A1, …, Ai, 1, …, 1]."""
        return (*self.lead, *(1,) * len(self.norm))

    @property
    def mask(self) -> tuple[bool, ...]:
        """The outputs that are wanted: a boolean each."""
        if self.operator.mask is not None:
            return tuple(self.values[self.operator.mask])
        return tuple(self.values[name] is not None for name in self.operator.outputs)

    def shape(self, name: str) -> Shape:
        """The shape of a tensor, or the values of an array that is a shape."""
        value: TensorFacts | Shape = self.values[name]
        return value.shape if isinstance(value, TensorFacts) else value

    def present(self, *names: str) -> list[tuple[str, TensorFacts]]:
        """Name and facts of those tensors that are not null."""
        return [(name, self.values[name]) for name in names if self.values[name] is not None]

    def wanted(self, *names: str) -> list[tuple[str, TensorFacts]]:
        """Name and facts of those tensors that are not null; of outputs, those that the mask asks for."""
        masked = dict(zip(self.operator.outputs, self.mask, strict=True))
        return [(name, facts) for name, facts in self.present(*names) if masked.get(name, True)]


def _reader(kind: type[Handle], attribute: str) -> Callable[[str, object], object]:
    facts_of = attrgetter(attribute)

    def read(name: str, handle: object) -> object:
        if isinstance(handle, kind) and handle.alive:
            if isinstance(handle, aclTensor) and handle.format is not ND:
                text = f"{name}: expected ACL_FORMAT_ND, got {handle.format.name}, which is read as ND"
                warnings.warn(text, AscendWarning, stacklevel=1)  # Python gives it once
            return facts_of(handle)
        if handle is None:
            return None
        got = "a destroyed one" if isinstance(handle, kind) else type(handle).__name__
        return Unusable(f"{name}: expected a living {kind.__name__}, got {got}")

    return read


def _number(name: str, value: object) -> float | Unusable:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return Unusable(f"{name}: expected a number, got {type(value).__name__}")


# How an argument is read, by the C type behind its pointer; "": a number, which C passes by value.
_READERS: dict[str, Callable[[str, object], object]] = {
    "aclTensor": _reader(aclTensor, "facts"),
    "aclIntArray": _reader(aclIntArray, "values"),
    "aclBoolArray": _reader(aclBoolArray, "values"),
    "": _number,
}
