"""Calls that come again: looked up by the facts of their arrays, with all that follows from these decided.

The first call of its kind is checked, planned and bound; a later one has its addresses looked at, and runs. Calls with arrays
of NumPy or of torch go this way by `key_of_call` and `run_again`. A layer normalization of NumPy arrays without any option has
functions of its own, in which nothing is a loop: loops over the arrays cost 2 µs, and 64×64 elements take 5 to 6 in all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from numpy import ndarray

from lngrad.core.arrays import DATA_OFFSET, WORDS, addresses_of, empty, key_of, maker
from lngrad.core.bounded_cache import BoundedCache
from lngrad.core.plan import Plan, RunOnAddresses
from lngrad.core.problem import Forward, Grads, Normalization, Operator, Problem, check_elements, check_memory
from lngrad.core.threads import get_num_threads, torch_parallel_for, torch_thread_count, use_parallel_for
from lngrad.typing import Array

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
    """

    problem: Problem
    run: RunOnAddresses
    makers: tuple[Callable[[], Any] | None, ...]
    absent: int
    places: set[tuple[int, ...]]


_calls: BoundedCache[Hashable, _Call] = BoundedCache(_MOST)
_AT = DATA_OFFSET or 0  # where it is not known, no call is kept


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
        elif all(array is None or _is_plain_tensor(array) for array in arrays):
            return call, torch_thread_count(), *map(key_of, arrays)
        else:
            return None
    return call, *facts


def _is_plain_tensor(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(array) is torch.Tensor


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
    problem, run, makers, absent, places = call
    if problem.kind == "torch":
        check_elements(problem, arrays, out)
    inputs = addresses_of(arrays)
    if inputs.count(0) != absent:
        return None
    if out is None:
        results = [make and make() for make in makers]
    else:
        place = *inputs, *addresses_of(out)
        if place not in places:
            check_memory(problem, arrays, out)
            if len(places) == _MOST_PLACES:
                places.clear()
            places.add(place)
        results = [make and (make() if given is None else given) for make, given in zip(makers, out)]  # noqa: B905
    if None in numbers:
        numbers = problem.numbers(numbers)
    if problem.kind == "torch":
        with use_parallel_for(torch_parallel_for()):
            run(*inputs, *addresses_of(results), *numbers)
    else:
        run(*inputs, *addresses_of(results), *numbers)
    return results


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
    try:
        _calls.keep(key, _Call(problem, plan.on_addresses, makers, absent, set()))
    except TypeError:  # as in _known
        return


# --- Layer normalization of NumPy arrays, without options ------------------------------------------------------------


def forward_key(
    x: Any, normalized_shape: int | Sequence[int] | None, gamma: Any, beta: Any, backend: str | None
) -> Hashable | None:
    """What a forward is known by; None if it is not one of plain NumPy arrays."""
    if not (
        type(x) is ndarray
        and (gamma is None or type(gamma) is ndarray)
        and (beta is None or type(beta) is ndarray)
        and type(normalized_shape) in _SHAPES
    ):
        return None
    return (
        x.shape, x.strides, x.dtype, gamma is None or (gamma.shape, gamma.strides, gamma.dtype),
        beta is None or (beta.shape, beta.strides, beta.dtype), normalized_shape, backend, get_num_threads(),
    )  # fmt: skip


def backward_key(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized_shape: int | Sequence[int] | None, mask: Sequence[bool],
    backend: str | None,
) -> Hashable | None:  # fmt: skip
    """What a backward is known by; None if it is not one of plain NumPy arrays."""
    if not (
        type(x) is ndarray
        and type(dy) is ndarray
        and type(mean) is ndarray
        and type(rstd) is ndarray
        and (gamma is None or type(gamma) is ndarray)
        and type(normalized_shape) in _SHAPES
        and type(mask) is tuple
    ):
        return None
    return (
        x.shape, x.strides, x.dtype, dy.shape, dy.strides, dy.dtype, mean.shape, mean.strides, mean.dtype,
        rstd.shape, rstd.strides, rstd.dtype, gamma is None or (gamma.shape, gamma.strides, gamma.dtype),
        normalized_shape, mask, backend, get_num_threads(),
    )  # fmt: skip


def forward(key: Hashable | None, x: Array, gamma: Array | None, beta: Array | None, eps: float) -> Forward | None:
    """The results of a forward that was seen before; None of another one, or one with memory at address 0."""
    call = _known(key)
    if call is None:
        return None
    words, at = WORDS, _AT
    of_x = words[id(x) + at >> 3]
    of_gamma = gamma if gamma is None else words[id(gamma) + at >> 3]
    of_beta = beta if beta is None else words[id(beta) + at >> 3]
    if not of_x or of_gamma == 0 or of_beta == 0:
        return None
    eps = float(eps)
    _, run, (make_y, make_mean, make_rstd), *_ = call
    y, mean, rstd = make_y(), make_mean(), make_rstd()  # type: ignore[misc]  # a forward's are all wanted
    run(
        of_x, of_gamma or 0, of_beta or 0,
        words[id(y) + at >> 3], words[id(mean) + at >> 3], words[id(rstd) + at >> 3], eps,
    )  # fmt: skip
    return Forward(y, mean, rstd)


def backward(key: Hashable | None, dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None) -> Grads | None:
    """The results of a backward that was seen before; None of another one, or one with memory at address 0."""
    call = _known(key)
    if call is None:
        return None
    words, at = WORDS, _AT
    of_dy, of_x = words[id(dy) + at >> 3], words[id(x) + at >> 3]
    of_mean, of_rstd = words[id(mean) + at >> 3], words[id(rstd) + at >> 3]
    of_gamma = gamma if gamma is None else words[id(gamma) + at >> 3]
    if not (of_dy and of_x and of_mean and of_rstd) or of_gamma == 0:
        return None
    _, run, (make_dx, make_dgamma, make_dbeta), *_ = call
    dx, dgamma, dbeta = make_dx and make_dx(), make_dgamma and make_dgamma(), make_dbeta and make_dbeta()
    run(
        of_dy, of_x, of_mean, of_rstd, of_gamma or 0, 0 if dx is None else words[id(dx) + at >> 3],
        0 if dgamma is None else words[id(dgamma) + at >> 3], 0 if dbeta is None else words[id(dbeta) + at >> 3],
    )  # fmt: skip
    return Grads(dx, dgamma, dbeta)
