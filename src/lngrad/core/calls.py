"""Calls with NumPy arrays that come again: looked up by the facts of their arrays, with all that follows from these decided.

The first call of its kind is checked, planned and bound; a later one has its addresses looked at, and runs. Addresses are read
here one by one: a loop over the arrays would cost as much again. RMS normalization goes the same way, with nothing in the place
of mean and beta. Calls with a residual are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from numpy import empty, ndarray

from lngrad.core.arrays import DATA_OFFSET, WORDS, maker
from lngrad.core.bounded_cache import BoundedCache
from lngrad.core.plan import Plan, RunOnAddresses
from lngrad.core.problem import RMS_BACKWARD, RMS_FORWARD, Forward, Grads
from lngrad.core.threads import get_num_threads
from lngrad.typing import Array

_MOST = 512  # each keeps a little memory of its own

_Make = Callable[[], Array]


class _Call(NamedTuple):
    """How a call runs, and what makes its results; None for one that is not wanted."""

    run: RunOnAddresses
    makers: tuple[_Make | None, ...]


_calls: BoundedCache[Hashable, _Call] = BoundedCache(_MOST)
_AT = DATA_OFFSET or 0  # where it is not known, no call is kept

_SHAPES = (int, tuple, type(None))  # exactly: True and 64.0 are equal to numbers that they do not stand for


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
    try:
        call = _calls.get(key)
    except TypeError:  # what can't be hashed was given for a shape; the checks say so
        return None
    if call is None:
        return None
    words, at = WORDS, _AT
    of_x = words[id(x) + at >> 3]
    of_gamma = gamma if gamma is None else words[id(gamma) + at >> 3]
    of_beta = beta if beta is None else words[id(beta) + at >> 3]
    if not of_x or of_gamma == 0 or of_beta == 0:
        return None
    eps = float(eps)
    run, (make_y, make_mean, make_rstd) = call
    y, mean, rstd = make_y(), make_mean(), make_rstd()  # type: ignore[misc]  # a forward's are all wanted
    run(
        of_x, of_gamma or 0, of_beta or 0,
        words[id(y) + at >> 3], words[id(mean) + at >> 3], words[id(rstd) + at >> 3], eps,
    )  # fmt: skip
    return Forward(y, mean, rstd)


def backward(key: Hashable | None, dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None) -> Grads | None:
    """The results of a backward that was seen before; None of another one, or one with memory at address 0."""
    try:
        call = _calls.get(key)
    except TypeError:  # as above
        return None
    if call is None:
        return None
    words, at = WORDS, _AT
    of_dy, of_x = words[id(dy) + at >> 3], words[id(x) + at >> 3]
    of_mean, of_rstd = words[id(mean) + at >> 3], words[id(rstd) + at >> 3]
    of_gamma = gamma if gamma is None else words[id(gamma) + at >> 3]
    if not (of_dy and of_x and of_mean and of_rstd) or of_gamma == 0:
        return None
    run, (make_dx, make_dgamma, make_dbeta) = call
    dx, dgamma, dbeta = make_dx and make_dx(), make_dgamma and make_dgamma(), make_dbeta and make_dbeta()
    run(
        of_dy, of_x, of_mean, of_rstd, of_gamma or 0, 0 if dx is None else words[id(dx) + at >> 3],
        0 if dgamma is None else words[id(dgamma) + at >> 3], 0 if dbeta is None else words[id(dbeta) + at >> 3],
    )  # fmt: skip
    return Grads(dx, dgamma, dbeta)


def keep(key: Hashable | None, plan: Plan) -> None:
    """Remember a call of NumPy arrays whose results are the library's to make, if its plan is one for addresses."""
    if key is None or plan.bind is None or plan.on_addresses is None or DATA_OFFSET is None:
        return
    run = plan.on_addresses
    makers = tuple(None if output is None else maker(output) for output in plan.problem.outputs())
    if plan.problem.operator is RMS_FORWARD:
        make_y, make_rstd, _ = makers
        run, makers = _rms_forward(run), (make_y, lambda: _NOTHING, make_rstd)
    elif plan.problem.operator is RMS_BACKWARD:
        run, makers = _rms_backward(run), (*makers, None)
    try:
        _calls.keep(key, _Call(run, makers))
    except TypeError:  # as above
        return


_NOTHING = empty(0)


def _rms_forward(run: RunOnAddresses) -> RunOnAddresses:
    """Its run as layer normalization's is called."""
    return lambda x, gamma, beta, y, mean, rstd, eps: run(x, gamma, y, rstd, 0, eps)


def _rms_backward(run: RunOnAddresses) -> RunOnAddresses:
    return lambda dy, x, mean, rstd, gamma, dx, dgamma, dbeta: run(dy, x, rstd, gamma, dx, dgamma)
