"""Calls that come again: looked up by the facts of their arrays, with all that follows from these decided.

The first call of its kind is checked, planned and bound; a later one has its addresses looked at, and runs. Calls with arrays
of NumPy or of torch go this way by `key_of_call` and `run_again`. NumPy arrays without any option have functions
in which nothing is a loop, written by `plain`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from numpy import ndarray

from lngrad.core.arrays import DATA_OFFSET, WORDS, addresses_of, empty, has_memory, key_of_tensor, maker, spanned
from lngrad.core.bounded_cache import BoundedCache
from lngrad.core.dtypes import bytes_of
from lngrad.core.plan import Plan, RunOnAddresses
from lngrad.core.problem import ROLES, Normalization, Operator, Problem, Role, check_elements, check_memory
from lngrad.core.threads import get_num_threads, torch_parallel_for, torch_thread_count, use_parallel_for

_MOST = 512  # each keeps a little memory of its own
_MOST_PLACES = 64

_SHAPES = (int, tuple, type(None))  # exactly: True and 64.0 are equal to numbers that they do not stand for


class _Call(NamedTuple):
    """A call that was checked once.

    Attributes:
        problem: What it was found to be.
        run: The plan's, on addresses.
        makers: What makes each result; None for one that is not wanted.
        absent: How many of the arguments are None.
        places: Addresses of arguments and given results between which nothing is shared.
        spans: Of each argument and given result, bytes from its first element to behind its last; 0 if it is None.
    """

    problem: Problem
    run: RunOnAddresses
    makers: tuple[Callable[[], Any] | None, ...]
    absent: int
    places: set[tuple[int, ...]]
    spans: tuple[int, ...]


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
        if not isinstance(out, tuple):
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
    key: Hashable | None, arrays: tuple[Any, ...], numbers: tuple[Any, ...], out: tuple[Any, ...] | None
) -> list[Any] | None:
    """The results of a call that was seen before; None of another one, or one with memory at address 0.

    Raises:
        ShapeError: A tensor's memory is freed.
        OverlapError: An output shares memory with an input or another output.
    """
    call = _known(key)
    if call is None:
        return None
    problem, run, makers, absent, places, spans = call
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
    if problem.kind == "torch":
        with use_parallel_for(torch_parallel_for()):
            run(*inputs, *addresses_of(results), *numbers)
    else:
        run(*inputs, *addresses_of(results), *numbers)
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
    """Remember a call of arrays, if its plan is one for addresses."""
    if key is None or plan.bind is None or plan.on_addresses is None or DATA_OFFSET is None:
        return
    problem = plan.problem
    makers = tuple(
        None if output is None else maker(output) if problem.kind == "numpy" else partial(empty, "torch", output)
        for output in problem.outputs()
    )
    absent = sum(spec is None for spec in problem.inputs.values())
    specs = (*problem.inputs.values(), *problem.out.values())
    spans = tuple(0 if spec is None else spanned(spec.shape, spec.strides, bytes_of(spec.dtype)) for spec in specs)
    try:
        _calls.keep(key, _Call(problem, plan.on_addresses, makers, absent, set(), spans))
    except TypeError:  # as in _known
        return


# --- NumPy arrays, without numeric options ---------------------------------------------------------------------------


class Plain(NamedTuple):
    """Both functions of an operator's calls with NumPy arrays and no other numbers than eps.

    Attributes:
        key: (arrays, normalized_shape, mask of a backward, axis, backend, out) -> what the call is known by; None if it is not
            one of plain NumPy arrays, or has an axis and an `out`, or one in which something is missing.
        again: (key, arrays, numbers, out) -> the results of a call that was seen before, its axis last; None of another one, or
            one with memory at address 0.

    Raises:
        OverlapError: `again` of an output that shares memory with an input or another output.
    """

    key: Callable[..., Hashable | None]
    again: Callable[..., Any]


def plain(operator: Operator) -> Plain:
    """Written out by the operator's row: a loop over its arrays would cost 2 µs of the 5 to 6 that 64×64 elements take."""
    names, backward = operator.inputs, operator.direction == "backward"
    absent = [name for name in names if ROLES[name] is Role.PARAMETER]
    mask = ["mask"] if backward else []
    kinds = ["type(shape) in _SHAPES", "type(axis) in _SHAPES", *("type(mask) is tuple" for _ in mask)]
    are = [
        f"(type({one}) is ndarray or {one} is None)" if one in absent else f"type({one}) is ndarray" for one in names
    ]
    outs = [f"out_{one}" for one in operator.outputs]
    facts = {one: f"{one}.shape, {one}.strides, {one}.dtype" for one in (*names, *outs)}
    known = [f"{one} is None or ({facts[one]})" if one in absent else facts[one] for one in names]
    wanted = [one for one, it_is in zip(operator.outputs, operator.everything, strict=True) if it_is]
    made = [f"make_{one} and make_{one}()" if backward else f"make_{one}()" if one in wanted else "None"
            for one in operator.outputs]  # fmt: skip
    at = {one: f"words[id({one}) + at >> 3]" for one in (*names, *operator.outputs, *outs)}
    given = [f"of_{one} or 0" if one in absent else f"of_{one}" for one in names]
    found = [
        at[one] if one in wanted and not backward else f"0 if {one} is None else {at[one]}" for one in operator.outputs
    ]
    writable = " and ".join(f"type({one}) is ndarray and {one}.flags.writeable" for one in outs)
    source = f"""
def key({", ".join((*names, "shape", *mask, "axis", "backend", "out"))}, *, operator=operator, results=operator.results):
    if not ({" and ".join((*are, *kinds))}):
        return None
    if out is None:
        return operator, {", ".join((*known, "shape", *mask, "axis", "backend"))}, get_num_threads()
    if type(out) is not results or axis is not None:
        return None
    {", ".join(outs)}, = out
    if not ({writable}):
        return None
    return operator, {", ".join((*known, "shape", *mask, "backend", *(facts[one] for one in outs)))}, get_num_threads()

def again(key, {", ".join((*names, *operator.numbers, "out"))}, *, results=operator.results, words=words, at=at):
    call = _known(key)
    if call is None:
        return None
    {"; ".join(f"of_{one} = {f'{one} if {one} is None else ' if one in absent else ''}{at[one]}" for one in names)}
    if {" or ".join(f"of_{one} == 0" for one in names)}:
        return None
    problem, run, ({", ".join(f"make_{one}" for one in operator.outputs)},), _, places, _ = call
    {"; ".join(f"{one} = problem.numbers((None,))[0] if {one} is None else float({one})" for one in operator.numbers)}
    if out is None:
        {"; ".join(f"{one} = {how}" for one, how in zip(operator.outputs, made, strict=True))}
    else:
        {", ".join(outs)}, = out
        place = {", ".join((*given, *(at[one] for one in outs)))}
        _check_places(problem, places, place, ({", ".join(names)},), out)
        {"; ".join(f"{one} = make_{one} and out_{one}" for one in operator.outputs)}
    run({", ".join((*given, *found, *operator.numbers))})
    return results({", ".join(operator.outputs)})
"""
    written: dict[str, Any] = {
        "operator": operator,
        "words": WORDS,
        "at": DATA_OFFSET or 0,
    }  # no call is kept without it
    exec(source, globals(), written)  # noqa: S102  # names of our own table alone
    return Plain(written["key"], written["again"])
