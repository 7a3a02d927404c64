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
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from threading import get_ident
from typing import Any

import numpy as np

from lngrad.core.arrays import ArraySpec
from lngrad.core.calls import BoundCall, kept
from lngrad.core.memory import HUGE_BYTES, advise_huge
from lngrad.core.plan import make_plan
from lngrad.core.problem import (
    LAYER_NORM,
    ROLES,
    SLICE_BACKWARD,
    WITH_GATE,
    WITH_RESIDUAL,
    Normalization,
    Operator,
    Problem,
    Role,
    describe,
)
from lngrad.core.threads import chosen
from lngrad.support.dtypes import bytes_of, contiguous_strides
from lngrad.typing import Mask, Shape

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


# By their numbers in an attribute, which exported programs have too: layer norm's, RMS norm's, both with a residual, a slice's,
# RMS norm's with a gate.
_OPERATORS = (*WITH_RESIDUAL, *WITH_RESIDUAL.values(), SLICE_BACKWARD, *WITH_GATE.values())


# --- The attribute: what buffers do not tell ------------------------------------------------------------------------


def attribute(
    operator: Operator,
    lead: int,
    normalized: int,
    present: Sequence[bool],
    wanted: Mask = (),
    numbers: tuple[float, ...] = (),
    normalization: Normalization = LAYER_NORM,
) -> Any:
    """int64 array for a call whose buffers are the operator's inputs that are present and its outputs that are wanted.

    Args:
        operator: What is computed.
        lead, normalized: Dimensions of the two parts of x's shape.
        present: Which parameters are there.
        wanted: Which results of a backward; a forward's all are.
        numbers: The operator's.
        normalization: Its offset and alpha come last, where they are not 0 and 1, or all switches where a gate is x's factor;
            whether it is centred the operator says.
    """
    switches = normalization[1 : 3 if normalization.norm_before_gate else 5]
    switches = switches if switches != LAYER_NORM[1:3] else ()
    bits, last = bits_of(numbers), bits_of(switches)
    return np.array([_OPERATORS.index(operator), lead, normalized, *bits, *present, *wanted, *last], np.int64)


def bits_of(numbers: Sequence[float]) -> list[int]:
    """float64 as int64, for an attribute."""
    return np.array(numbers, np.float64).view(np.int64).tolist()  # type: ignore[no-any-return]


def numbers_of(bits: Sequence[int]) -> tuple[float, ...]:
    """The reverse of bits_of."""
    return tuple(np.array(bits, np.int64).view(np.float64).tolist())


# --- One call -------------------------------------------------------------------------------------------------------


class XlaCall(BoundCall):
    """A call of which XLA has all buffers, results too; example after example where there is a batch."""

    def __init__(self, attribute: tuple[int, ...], inputs: list[Buffer], results: list[Buffer]):
        number, lead, normalized, *rest = attribute
        operator = _OPERATORS[number]
        count = len(operator.numbers)
        self.numbers = numbers_of(rest[:count])
        flags = iter(rest[count:])
        present = tuple(name for name in operator.inputs if ROLES[name] is not Role.PARAMETER or next(flags))
        masked = operator.direction == "backward"
        mask = [bool(next(flags)) for _ in operator.outputs] if masked else operator.everything
        wanted = tuple(name for name, want in zip(operator.outputs, mask, strict=True) if want)
        normalization = Normalization("mean" in operator.inputs + operator.outputs, *numbers_of(tuple(flags)))  # type: ignore[arg-type]  # the other switches, or nothing
        names = (*present, *wanted)
        buffers = {name: (dtype, shape) for name, (_, dtype, shape) in zip(names, inputs + results, strict=True)}
        self._fresh = [(len(present) + k, _nbytes(buffers[name])) for k, name in enumerate(wanted)]
        self._large = [(at, nbytes) for at, nbytes in self._fresh if nbytes >= HUGE_BYTES]

        _, shape = buffers["x"]
        split = len(shape) - normalized
        batch = buffers[wanted[0]][1][: split - lead]
        M, N = math.prod(shape[split - lead : split]), math.prod(shape[split:])
        self._steps = [_steps(buffers[name], len(batch)) for name in names]
        examples, samples = math.prod(batch), batch[:0]
        counts = {
            (ROLES[name] is Role.PARAMETER, math.prod(shape[: len(batch)])) for name, (_, shape) in buffers.items()
        }
        if batch and counts <= {(False, examples), (True, 1)}:
            M, batch = examples * M, ()  # more rows of one call
        elif batch and counts == {(False, examples), (True, examples)} and "gamma" in buffers:
            samples, batch = (examples,), ()  # one call, of samples with a gamma each
            normalization = normalization._replace(modulated=True)
        self._batch = batch
        problem = _problem(operator, normalization, (*samples, M), N, buffers)
        super().__init__(make_plan(problem, "numba_cpu"), maker_of=lambda output: None)  # XLA has made the results
        # The number of each address that a run takes; -1 is the 0 behind the last.
        self._take = [names.index(name) if name in names else -1 for name in (*problem.inputs, *problem.out)]

    def run_buffers(self, addresses: list[int]) -> None:
        """Compute, given the addresses of the arguments and results."""
        for at, nbytes in self._large:
            advise_huge(addresses[at], nbytes)
        if self.on_addresses is None:
            for at, nbytes in self._fresh:
                ctypes.memset(addresses[at], 0, nbytes)  # sums over no rows
            return
        for example in self._examples(addresses) if self._batch else (addresses,):
            with_none = [*example, 0]
            self.on_addresses(*[with_none[index] for index in self._take], *self.numbers)

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


def _problem(
    operator: Operator, normalization: Normalization, lead: Shape, N: int, buffers: dict[str, tuple[str, Shape]]
) -> Problem:
    """The problem of M rows, or of samples of M rows: equal for all ways to write these of N elements."""
    own = (lead[0], 1) if normalization.modulated else ()
    shapes = {Role.TENSOR: (*lead, N), Role.STATISTIC: (*lead, 1), Role.PARAMETER: (*own, N)}

    def spec(name: str) -> ArraySpec | None:
        if name not in buffers:
            return None
        (dtype, _), shape = buffers[name], shapes[ROLES[name]]
        return ArraySpec(shape, dtype, contiguous_strides(shape, bytes_of(dtype)), "cpu", "numpy")

    wanted = tuple(name in buffers for name in operator.outputs)
    sums = tuple(spec(name) if ROLES[name] is Role.PARAMETER else None for name in operator.outputs)
    arrays = tuple(map(spec, operator.inputs))
    return describe(operator, arrays, (N,), wanted, sums, normalization, completes_mean=True)[0]


_running: set[int] = set()  # threads in a call
_ended: deque[int] = deque(maxlen=1)  # not empty: a call ended since this was last cleared


def serve(attribute: tuple[int, ...], inputs: list[Buffer], results: list[Buffer]) -> None:
    """Compute what the attribute says."""
    buffers = inputs + results
    key = attribute, chosen.value, *[buffer[1:] for buffer in buffers]
    call: Any = kept.get(key)
    if call is None:
        call = kept.keep(key, XlaCall(attribute, inputs, results))
    call.run_buffers([buffer[0] for buffer in buffers])


def counted(run: Callable[..., None]) -> Callable[..., None]:
    """The same function, waited for by wait_until_idle."""

    def counting(*arguments: Any) -> None:
        thread = get_ident()
        _running.add(thread)
        try:
            run(*arguments)
        finally:
            _running.discard(thread)
            _ended.append(thread)

    return counting


def wait_until_idle() -> None:
    """Return when no call has run for 20 ms. A call that came to a finalizing interpreter would wait for the GIL for ever."""
    quiet = False
    while not quiet:
        _ended.clear()
        time.sleep(0.02)
        quiet = not _running and not _ended


handler = make_handler(counted(serve))
