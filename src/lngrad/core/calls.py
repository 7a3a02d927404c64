"""Calls that come again: looked up by the facts of their arrays, with all that follows from these decided.

The first call of its kind, with arrays of NumPy or of torch, is checked, planned and bound; the second is looked up by
`key_of_call`, has its addresses looked at, and runs. From the third on, calls with NumPy arrays are their backend's, if that
knows calls: `Repeats`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from numpy import ndarray

from lngrad.core.arrays import empty, has_memory, key_of_tensor, maker, scratch, spanned
from lngrad.core.plan import KnownCalls, Makers, Plan, RunOnAddresses
from lngrad.core.problem import WITH_RESIDUAL, Normalization, Operator, Problem, check_elements, check_memory
from lngrad.core.threads import get_num_threads, torch_parallel_for, torch_thread_count, use_parallel_for
from lngrad.errors import BackendUnavailable
from lngrad.support.addresses import DATA_OFFSET, addresses_of
from lngrad.support.bounded_cache import BoundedCache
from lngrad.support.dtypes import bytes_of

_MOST = 512  # each keeps a little memory of its own
_MOST_PLACES = 64
_MOST_TIMES = (
    4  # that a backend is asked to know a call; with options that are new objects each time it would be for ever
)
_SHAPES = (int, tuple, type(None))  # exactly: True and 64.0 are equal to numbers that they do not stand for


class Repeats:
    """The calls of a public function that a backend knows."""

    def __init__(self, operator: Operator):
        self._results = operator.results, WITH_RESIDUAL[operator].results
        _functions.append(self)
        self.forget()

    def forget(self) -> None:
        """Let no call be known."""
        self._known: KnownCalls | None = None
        self.again: Callable[[tuple[Any, ...]], Any] = _no_call  # the results of a call that is known, else None

    def keep(
        self, plan: Plan, arguments: tuple[Any, ...], numbers: tuple[float, ...], makers: Makers,
        finish: Callable[[Any], Any] | None,
    ) -> None:  # fmt: skip
        """As a backend's KnownCalls, if it has them. The call is done: what fails here costs speed alone."""
        if plan.known is None:
            return
        with suppress(MemoryError, BackendUnavailable):
            if self._known is None:
                self._known = plan.known(self._results)
                if self._known is None:
                    return
                self.again = self._known.again
            self._known.keep(plan, arguments, numbers, makers, finish)


_functions: list[Repeats] = []


def _no_call(arguments: tuple[Any, ...]) -> None:
    return None


def forget() -> None:
    """Let every call be a first one."""
    _calls.clear()
    _forget_known()


def _forget_known() -> None:
    for function in _functions:
        function.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_known)  # some may be run by threads that a child does not have


class Asked(NamedTuple):
    """A call as its backend may know it: the public function, its arguments, and what results are to the caller."""

    function: Repeats
    arguments: tuple[Any, ...]
    finish: Callable[[Any], Any] | None


class _Call(NamedTuple):
    """A call that was checked once.

    Attributes:
        plan: How it is computed.
        run: The plan's, on addresses; None where it takes the arrays themselves, as on a GPU.
        makers: What makes each result; None for one that is not wanted.
        absent: How many of the arguments are None.
        places: Addresses of arguments and given results between which nothing is shared.
        spans: Of each argument and given result, bytes from its first element to behind its last; 0 if it is None.
        asked: How often its backend was asked to know it, a list of so many.
    """

    plan: Plan
    run: RunOnAddresses | None
    makers: Makers
    absent: int
    places: set[tuple[int, ...]]
    spans: tuple[int, ...]
    asked: list[None]


_calls: BoundedCache[Hashable, _Call] = BoundedCache(_MOST)


def key_of_call(
    operator: Operator, normalization: Normalization, arrays: tuple[Any, ...], out: Any,
    normalized_shape: int | Sequence[int] | None, mask: Sequence[bool], backend: str | None,
) -> Hashable | None:  # fmt: skip
    """What a call is known by; None if its arrays are not all plain ones of NumPy, or all of torch."""
    if type(normalized_shape) not in _SHAPES or type(mask) is not tuple:
        return None
    call = operator, normalization, normalized_shape, mask, backend, get_num_threads()
    if out is not None:
        if not isinstance(out, tuple) or len(out) != len(operator.outputs):
            return None
        for array in out:
            if type(array) is ndarray and not array.flags.writeable:
                return None
        arrays = (*arrays, *out)
    facts: list[Hashable] = []
    for array in arrays:
        if type(array) is ndarray:
            facts += array.shape, array.strides, array.dtype
        elif array is None:
            facts.append(None)
        else:
            return _key_of_tensors(call, arrays)
    return call, *facts


def _key_of_tensors(call: Hashable, arrays: tuple[Any, ...]) -> Hashable | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    facts: list[Hashable] = [call, torch_thread_count()]
    for array in arrays:
        if array is not None and type(array) is not torch.Tensor:
            return None
        facts.append(None if array is None else key_of_tensor(array))
    return tuple(facts)


def run_again(
    key: Hashable | None,
    arrays: tuple[Any, ...],
    numbers: tuple[Any, ...],
    out: tuple[Any, ...] | None,
    asked: Asked,
) -> list[Any] | None:
    """The results of a call that was seen before; None of another one, or one with memory at address 0.

    Its backend may run it by itself from now on.

    Raises:
        ShapeError: A tensor's memory is freed.
        OverlapError: An output shares memory with an input or another output.
    """
    call = _known(key)
    if call is None:
        return None
    plan, run, makers, absent, places, spans, times = call
    problem = plan.problem
    if problem.kind == "torch" and not all(map(has_memory, (*arrays, *(out or ())), spans)):
        check_elements(problem, arrays, out)
    inputs = addresses_of(arrays)
    if inputs.count(0) != absent:
        return None
    if out is None:
        results = [make and make() for make in makers]
    else:
        _check_places(problem, places, (*inputs, *addresses_of(out)), arrays, out)
        results = [make and (make() if given is None else given) for make, given in zip(makers, out)]  # noqa: B905
    if None in numbers:
        numbers = problem.numbers(numbers)
    if run is None:
        plan.run(plan, (*arrays, *numbers), tuple(results), scratch(plan.workspace_bytes, problem.device))
    elif problem.kind == "torch":
        with use_parallel_for(torch_parallel_for()):
            run(*inputs, *addresses_of(results), *numbers)
    else:
        run(*inputs, *addresses_of(results), *numbers)
        if len(times) < _MOST_TIMES:
            times.append(None)
            asked.function.keep(plan, asked.arguments, numbers, makers, asked.finish)
    return results


def _check_places(
    problem: Problem,
    places: set[tuple[int, ...]],
    place: tuple[int, ...],
    arrays: tuple[Any, ...],
    out: tuple[Any, ...],
) -> None:
    """check_memory, unless arrays with these addresses have passed it."""
    if place not in places:
        check_memory(problem, arrays, out)
        if len(places) == _MOST_PLACES:
            places.clear()
        places.add(place)


def _known(key: Hashable | None) -> _Call | None:
    try:
        return _calls.get(key)
    except TypeError:  # what can't be hashed was given for a shape; the checks say so
        return None


def keep(key: Hashable | None, plan: Plan) -> None:
    """Remember a call of arrays, if its plan is one for addresses, or for a GPU."""
    problem = plan.problem
    run = None if plan.bind is None else plan.on_addresses
    if key is None or DATA_OFFSET is None or (run is None and problem.device == "cpu"):
        return
    makers = tuple(
        None
        if output is None
        else maker(output)
        if problem.kind == "numpy"
        else partial(empty, "torch", output, problem.device)
        for output in problem.outputs()
    )
    absent = sum(spec is None for spec in problem.inputs.values())
    specs = (*problem.inputs.values(), *problem.out.values())
    spans = tuple(0 if spec is None else spanned(spec.shape, spec.strides, bytes_of(spec.dtype)) for spec in specs)
    try:
        _calls.keep(key, _Call(plan, run, makers, absent, set(), spans, []))
    except TypeError:  # as in _known
        return
