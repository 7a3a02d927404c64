"""Calls of the core with XLA's buffers: from a call frame to a plan and back, looked up by its facts. No jax here.

Every buffer is contiguous, statistics and parameters are in the accumulator's dtype, and results are XLA's own memory: no
array is copied. Under jax.vmap buffers have batch dimensions in front, of size 1 where an argument is the same for all.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from ctypes import memset
from itertools import product
from struct import Struct
from threading import get_ident
from typing import Any

import numpy as np

from lngrad.core.arrays import ArraySpec
from lngrad.core.bounded_cache import BoundedCache
from lngrad.core.dtypes import bytes_of, contiguous_strides
from lngrad.core.memory import HUGE_BYTES, advise_huge
from lngrad.core.plan import make_plan
from lngrad.core.problem import BACKWARD, FORWARD, ROLES, Operator, Problem, Role, describe
from lngrad.jax.frames import Buffer, make_handler
from lngrad.typing import Mask

_OPERATORS = (FORWARD, BACKWARD)  # by their numbers in an attribute
_MOST = 4096  # calls that are remembered
_double, _integer = Struct("d"), Struct("q")


# --- The attribute: what buffers do not tell ------------------------------------------------------------------------


def attribute(
    operator: Operator,
    lead: int,
    normalized: int,
    present: Sequence[bool],
    wanted: Mask | None = None,
    numbers: tuple[float, ...] = (),
) -> Any:
    """int64 array for a call whose buffers are the operator's inputs that are present and its outputs that are wanted.

    Args:
        operator: What is computed.
        lead, normalized: Dimensions of the two parts of x's shape.
        present: Which parameters are there.
        wanted: Which results; None: all.
        numbers: The operator's.
    """
    bits = [_integer.unpack(_double.pack(number))[0] for number in numbers]
    wanted = operator.everything if wanted is None else wanted
    return np.array([_OPERATORS.index(operator), lead, normalized, *bits, *present, *wanted], np.int64)


# --- One call -------------------------------------------------------------------------------------------------------


class _Call:
    """What is decided about calls with equal facts: bound at the first, run with addresses at each."""

    def __init__(self, attribute: tuple[int, ...], inputs: list[Buffer], results: list[Buffer]):
        number, lead, normalized, *rest = attribute
        operator = _OPERATORS[number]
        count = len(operator.numbers)
        self._last = tuple(_double.unpack(_integer.pack(bits))[0] for bits in rest[:count])
        flags = iter(rest[count:])
        present = tuple(name for name in operator.inputs if ROLES[name] is not Role.PARAMETER or next(flags))
        wanted = tuple(name for name in operator.outputs if next(flags))
        names = (*present, *wanted)
        buffers = {name: (dtype, shape) for name, (_, dtype, shape) in zip(names, inputs + results, strict=True)}
        self._fresh = [(len(present) + k, _nbytes(buffers[name])) for k, name in enumerate(wanted)]
        self._large = [(at, nbytes) for at, nbytes in self._fresh if nbytes >= HUGE_BYTES]

        _, shape = buffers["x"]
        split = len(shape) - normalized
        batch = buffers[wanted[0]][1][: split - lead]
        M, N = math.prod(shape[split - lead : split]), math.prod(shape[split:])
        self._steps = [_steps(buffers[name], len(batch)) for name in names]
        if batch and all(
            math.prod(one[: len(batch)]) == (1 if ROLES[name] is Role.PARAMETER else math.prod(batch))
            for name, (_, one) in buffers.items()
        ):
            M, batch = math.prod(batch) * M, ()  # more rows of one call
        self._batch = batch
        self._empty = M * N == 0
        self._problem = problem = _problem(operator, M, N, buffers)
        # The number of each address that a run takes; -1 is the 0 behind the last.
        self._take = [names.index(name) if name in names else -1 for name in (*problem.inputs, *problem.out)]

    def run(self, addresses: list[int]) -> None:
        """Compute, given the addresses of the arguments and results."""
        for at, nbytes in self._large:
            advise_huge(addresses[at], nbytes)
        if self._empty:
            for at, nbytes in self._fresh:
                memset(addresses[at], 0, nbytes)  # sums over no rows
            return
        run = make_plan(self._problem, "numba_cpu").on_addresses
        for example in self._examples(addresses) if self._batch else (addresses,):
            with_none = [*example, 0]
            run(*[with_none[index] for index in self._take], *self._last)  # type: ignore[misc]  # CPU plans have it

    def _examples(self, addresses: list[int]) -> Iterator[list[int]]:
        """The addresses of one example of a batch after the other: the bits of a call of its own."""
        for index in product(*map(range, self._batch)):
            yield [
                address + sum(i * step for i, step in zip(index, steps, strict=True))
                for address, steps in zip(addresses, self._steps, strict=True)
            ]


def _nbytes(buffer: tuple[str, tuple[int, ...]]) -> int:
    dtype, shape = buffer
    return math.prod(shape) * bytes_of(dtype)


def _steps(buffer: tuple[str, tuple[int, ...]], batch: int) -> list[int]:
    """Bytes from example to example along each batch dimension; 0 where there is one for all."""
    dtype, shape = buffer
    inner = math.prod(shape[batch:]) * bytes_of(dtype)
    return [0 if shape[k] == 1 else math.prod(shape[k + 1 : batch]) * inner for k in range(batch)]


def _problem(operator: Operator, M: int, N: int, buffers: dict[str, tuple[str, tuple[int, ...]]]) -> Problem:
    """The problem in two dimensions: equal for all ways to write M rows of N elements."""
    shapes = {Role.TENSOR: (M, N), Role.STATISTIC: (M, 1), Role.PARAMETER: (N,)}

    def spec(name: str) -> ArraySpec | None:
        if name not in buffers:
            return None
        (dtype, _), shape = buffers[name], shapes[ROLES[name]]
        return ArraySpec(shape, dtype, contiguous_strides(shape, bytes_of(dtype)), "cpu", "numpy")

    wanted = tuple(name in buffers for name in operator.outputs)
    sums = tuple(spec(name) if ROLES[name] is Role.PARAMETER else None for name in operator.outputs)
    return describe(operator, tuple(map(spec, operator.inputs)), (N,), wanted, sums)[0]


_calls: BoundedCache[Hashable, _Call] = BoundedCache(_MOST)
_running: set[int] = set()  # threads in a call
_ended: deque[int] = deque(maxlen=1)  # not empty: a call ended since this was last cleared


def _serve(attribute: tuple[int, ...], inputs: list[Buffer], results: list[Buffer]) -> None:
    buffers = inputs + results
    key = attribute, *[buffer[1:] for buffer in buffers]
    call = _calls.get(key)
    if call is None:
        call = _calls.keep(key, _Call(attribute, inputs, results))
    thread = get_ident()
    _running.add(thread)
    try:
        call.run([buffer[0] for buffer in buffers])
    finally:
        _running.discard(thread)
        _ended.append(thread)


def wait_until_idle() -> None:
    """Return when no call has run for 20 ms. A call that came to a finalizing interpreter would wait for the GIL for ever."""
    quiet = False
    while not quiet:
        _ended.clear()
        time.sleep(0.02)
        quiet = not _running and not _ended


handler = make_handler(_serve)
