"""What a row of the table of known mistakes is, and the mistakes that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from lngrad.check.inputs import true_grads
from lngrad.check.mistakes.changes import Change, Changes, ExactCase
from lngrad.check.mistakes.fit import without_nan
from lngrad.core.problem import Grads
from lngrad.testing import Inputs


@dataclass(frozen=True)
class Mistake:
    """One mistake: its family with numbers in the fields.

    Attributes:
        sentence: What the person did, and where to look.
        inputs: The change of the inputs, or None.
        results: The change of the gradients, or None.
    """

    family: Family
    sentence: str
    inputs: Change | None
    results: Change | None

    def changed(self, call: ExactCase) -> Inputs | None:
        """The inputs with the mistake; None where it makes no difference or is none of the inputs."""
        if self.inputs is None or not call.inputs.x.size:
            return None
        with np.errstate(all="ignore"):
            changed = self.inputs(call)
        return None if changed is None else replace(call.inputs, **changed)

    def made(self, call: ExactCase) -> Grads | None:
        """The gradients with the mistake, in float64; None where it makes no difference."""
        if self.results is None:
            inputs = self.changed(call)
            return None if inputs is None else self._compared(true_grads(inputs), call.true)
        if not call.inputs.x.size:
            return None
        with np.errstate(all="ignore"):
            made = self.results(call)
        if made is None:
            return None
        pairs = zip(Grads._fields, call.true, strict=True)
        return self._compared(Grads(*(made.get(name, old).reshape(old.shape) for name, old in pairs)), call.true)

    def _compared(self, made: Grads, true: Grads) -> Grads:
        return made if self.family.unwritten else Grads(*map(without_nan, made, true))


Changing: TypeAlias = Callable[..., Changes] | tuple[Any, ...]


@dataclass(frozen=True)
class Family:
    """A row of the table: a kind of mistake, what to say about it, and how to make it.

    Attributes:
        code: To cite it. A code is never given to another family.
        name, sentence: With the fields of `values` in braces.
        inputs, results: A change of the inputs, or of the gradients, with what it takes besides the call and the values.
        values: What the fields are, one mapping a mistake.
        example: Lines of a kernel that has it, in place of the right ones.
        norm: Of the example.
        by_size: Its result depends on an order of sums that only the author knows: alike, not equal.
        rounding: It changes roundings only, so only bits show it.
        unwritten: NaN in its results stands for what memory held.
        sums_only: It leaves dx alone, and takes long to make: not looked at where dgamma and dbeta are right.
        dx_only: The same of dgamma and dbeta.
    """

    code: str
    name: str
    sentence: str
    inputs: Changing | None = None
    results: Changing | None = None
    values: Iterable[Mapping[str, Any]] = ()
    example: str = ""
    norm: str = "layer_norm"
    by_size: bool = False
    rounding: bool = False
    sums_only: bool = False
    dx_only: bool = False
    unwritten: bool = False

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        """Every mistake of the family, by its name."""
        for values in self.values or ({},):
            inputs, results = (None if one is None else _with(one, values) for one in (self.inputs, self.results))
            yield self.name.format(**values), Mistake(self, self.sentence.format(**values), inputs, results)


def _with(change: Changing, values: Mapping[str, Any]) -> Change:
    function, *more = change if isinstance(change, tuple) else (change,)
    return lambda call: function(call, *more, **values)


def each(**fields: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    """Every combination of the fields' values, the first field slowest."""
    return tuple(dict(zip(fields, one, strict=True)) for one in product(*fields.values()))
