"""Calls of the core with XLA's buffers: from a call frame to a plan and back, looked up by its facts. No jax here.

XLA calls a handler with the address of a call frame, a C struct with the addresses of all buffers. The handler is a Python
function behind ctypes, so it holds the GIL but while a kernel runs. Source: xla/ffi/api/c_api.h, versions 0.1 to 0.3, which
jaxlib ships (jax.ffi.include_dir()); XLA promises to keep the layout, and asks every handler which version it knows.

Every buffer is contiguous, statistics and parameters are in the accumulator's dtype, and results are XLA's own memory: no
array is copied. Under jax.vmap buffers have batch dimensions in front, of size 1 where an argument is the same for all.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from itertools import product
from struct import Struct
from threading import get_ident
from typing import Any

import numpy as np

from lngrad.core.arrays import ArraySpec
from lngrad.core.bounded_cache import BoundedCache
from lngrad.core.dtypes import bytes_of, contiguous_strides
from lngrad.core.huge_pages import HUGE_BYTES, advise_huge
from lngrad.core.plan import make_plan
from lngrad.core.problem import Grads, Problem

# --- Call frames ----------------------------------------------------------------------------------------------------

Buffer = tuple[int, str, tuple[int, ...]]  # address, dtype, shape; contiguous in row-major order

DTYPES = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}  # XLA_FFI_DataType

# Places of fields, in words of 8 bytes.
FRAME_WORDS, BUFFER_WORDS, API_WORDS = 21, 6, 7
EXTENSION, API = 1, 2  # in XLA_FFI_CallFrame
ARGS_SIZE, ARGS, RETS_SIZE, RETS, ATTRS = 7, 9, 12, 14, 20  # in its args, rets and attrs
VERSION, ERROR_CREATE = 4, 6  # in XLA_FFI_Api: major and minor version in one word; a function
MAJOR = 0
METADATA, METADATA_VERSION, METADATA_TRAITS = 3, 3, 4  # in XLA_FFI_Metadata_Extension and XLA_FFI_Metadata
INTERNAL, CANCELLED = 13, 1  # XLA_FFI_Error_Code

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _ErrorArgs(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("errc", ctypes.c_int),
    )


@cache
def _array(words: int) -> Any:
    return ctypes.c_int64 * words


_frame, _buffer = _array(FRAME_WORDS).from_address, _array(BUFFER_WORDS).from_address


def _words(address: int, count: int) -> list[int]:
    return _array(count).from_address(address)[:]  # type: ignore[no-any-return]


def make_handler(run: Callable[[tuple[int, ...], list[Buffer], list[Buffer]], None]) -> Any:
    """A C function that XLA can call.

    Args:
        run: (attribute, arguments, results): computes, from any thread, and writes all results. Of the call's attributes
            there must be one alone, an array of int64. What it raises ends the XLA program with an error.

    Returns:
        The function. It must be kept as long as XLA may call it.
    """

    def handle(address: int) -> int | None:
        frame = _frame(address)[:]
        try:
            if frame[EXTENSION]:
                _introduce(frame[EXTENSION], frame[API])
            else:
                attribute = _words(_words(frame[ATTRS], 1)[0], 3)  # XLA_FFI_Array: dtype, size, data
                run(
                    tuple(_words(attribute[2], attribute[1])),
                    _buffers(frame[ARGS], frame[ARGS_SIZE]),
                    _buffers(frame[RETS], frame[RETS_SIZE]),
                )
        except BaseException as reason:  # Ctrl-C too: C code can't pass it on, and the results are not there
            return _error(frame[API], reason)
        return None

    return _HANDLER(handle)


def _buffers(address: int, count: int) -> list[Buffer]:
    buffers = []
    for pointer in _words(address, count):
        _, _, dtype, data, rank, dims = _buffer(pointer)[:]
        name = DTYPES[dtype & 0xFFFFFFFF]  # an enum of 4 bytes, then padding
        buffers.append((data, name, tuple(_words(dims, rank))))
    return buffers


def _introduce(extension: int, api: int) -> None:
    """Answer XLA's question which version the handler knows: any minor one, which only adds fields, of major version 0."""
    metadata = _words(extension, METADATA + 1)[METADATA]
    minor = _words(api, API_WORDS)[VERSION] >> 32
    ctypes.c_int64.from_address(metadata + 8 * METADATA_VERSION).value = minor << 32 | MAJOR
    ctypes.c_uint32.from_address(metadata + 8 * METADATA_TRAITS).value = 0


def _error(api: int, reason: BaseException) -> int:
    """An XLA_FFI_Error, which XLA will free."""
    text = f"lngrad: {type(reason).__name__}: {reason}"
    code = INTERNAL if isinstance(reason, Exception) else CANCELLED
    arguments = _ErrorArgs(_ErrorArgs.errc.offset + _ErrorArgs.errc.size, None, text.encode(), code)
    create = _HANDLER(_words(api, API_WORDS)[ERROR_CREATE])
    return create(ctypes.addressof(arguments))  # type: ignore[no-any-return]


FORWARD, BACKWARD = 0, 1
_PARAMETERS = ("gamma", "beta", "dgamma", "dbeta")
_MAX_CALLS = 4096  # calls that are remembered
_double, _integer = Struct("d"), Struct("q")


# --- The attribute: what buffers do not tell ------------------------------------------------------------------------


def forward_attribute(lead: int, normalized: int, gamma: bool, beta: bool, eps: float) -> Any:
    """int64 array for a forward with buffers (x, gamma?, beta?) -> (y, mean, rstd).

    Args:
        lead, normalized: Dimensions of the two parts of x's shape.
        gamma, beta: Which are there.
        eps: Added to the variance.
    """
    bits = _integer.unpack(_double.pack(eps))[0]
    return np.array([FORWARD, lead, normalized, bits, gamma, beta, 0], np.int64)


def backward_attribute(lead: int, normalized: int, gamma: bool, wanted: tuple[bool, bool, bool]) -> Any:
    """int64 array for a backward with buffers (dy, x, mean, rstd, gamma?) -> those wanted of (dx, dgamma, dbeta)."""
    return np.array([BACKWARD, lead, normalized, gamma, *wanted], np.int64)


# --- One call -------------------------------------------------------------------------------------------------------


class _Call:
    """What is decided about calls with equal facts: bound at the first, run with addresses at each."""

    def __init__(self, attribute: tuple[int, ...], inputs: list[Buffer], results: list[Buffer]):
        op, lead, normalized, *rest = attribute
        if op == FORWARD:
            self._last: tuple[float, ...] = _double.unpack(_integer.pack(rest[0]))
            present: tuple[str, ...] = ("x", *_chosen(("gamma", "beta"), rest[1:]))
            wanted: tuple[str, ...] = ("y", "mean", "rstd")
        else:
            self._last = ()
            present = ("dy", "x", "mean", "rstd", *_chosen(("gamma",), rest[:1]))
            wanted = _chosen(Grads._fields, rest[1:])
        names = (*present, *wanted)
        buffers = {name: (dtype, shape) for name, (_, dtype, shape) in zip(names, inputs + results, strict=True)}
        self._fresh = [(len(present) + k, _nbytes(buffers[name])) for k, name in enumerate(wanted)]
        self._large = [(at, nbytes) for at, nbytes in self._fresh if nbytes >= HUGE_BYTES]

        dtype, shape = buffers["x"]
        split = len(shape) - normalized
        batch = buffers[wanted[0]][1][: split - lead]
        M, N = math.prod(shape[split - lead : split]), math.prod(shape[split:])
        self._steps = [_steps(buffers[name], len(batch)) for name in names]
        if batch and all(
            math.prod(one[: len(batch)]) == (1 if name in _PARAMETERS else math.prod(batch))
            for name, (_, one) in buffers.items()
        ):
            M, batch = math.prod(batch) * M, ()  # more rows of one call
        self._batch = batch
        self._empty = M * N == 0
        self._problem = problem = _problem(op, M, N, dtype, buffers)
        # The number of each address that a run takes; -1 is the 0 behind the last.
        self._take = [names.index(name) if name in names else -1 for name in (*problem.inputs, *problem.out)]

    def run(self, addresses: list[int]) -> None:
        """Compute, given the addresses of the arguments and results."""
        for at, nbytes in self._large:
            advise_huge(addresses[at], nbytes)
        if self._empty:
            for at, nbytes in self._fresh:
                ctypes.memset(addresses[at], 0, nbytes)  # sums over no rows
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


def _chosen(names: tuple[str, ...], flags: list[int]) -> tuple[str, ...]:
    return tuple(name for name, flag in zip(names, flags, strict=False) if flag)


def _nbytes(buffer: tuple[str, tuple[int, ...]]) -> int:
    dtype, shape = buffer
    return math.prod(shape) * bytes_of(dtype)


def _steps(buffer: tuple[str, tuple[int, ...]], batch: int) -> list[int]:
    """Bytes from example to example along each batch dimension; 0 where there is one for all."""
    dtype, shape = buffer
    inner = math.prod(shape[batch:]) * bytes_of(dtype)
    return [0 if shape[k] == 1 else math.prod(shape[k + 1 : batch]) * inner for k in range(batch)]


def _problem(op: int, M: int, N: int, dtype: str, buffers: dict[str, tuple[str, tuple[int, ...]]]) -> Problem:
    """The problem in two dimensions: equal for all ways to write M rows of N elements."""

    def facts(name: str, *shape: int) -> ArraySpec | None:
        if name not in buffers:
            return None
        dtype, _ = buffers[name]
        return ArraySpec(shape, dtype, contiguous_strides(shape, bytes_of(dtype)), "cpu", "numpy")

    if op == FORWARD:
        return Problem.forward(facts("x", M, N), facts("gamma", N), facts("beta", N), (N,))[0]
    inputs = facts("dy", M, N), facts("x", M, N), facts("mean", M, 1), facts("rstd", M, 1), facts("gamma", N)
    mask = tuple(name in buffers for name in Grads._fields)
    return Problem.backward(*inputs, (N,), mask, Grads(None, facts("dgamma", N), facts("dbeta", N)))[0]


_calls: BoundedCache[Hashable, _Call] = BoundedCache(_MAX_CALLS)
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
