"""Calls of the core with XLA's buffers: from a call frame to a plan and back, looked up by its facts. No jax here.

XLA calls a handler with the address of a call frame, a C struct with the addresses of all buffers. The handler is compiled
(cpu/kernels/xla.py) and asks Python about a call that it does not know. Source: xla/ffi/api/c_api.h, versions 0.1 to 0.3, which
jaxlib ships (jax.ffi.include_dir()); XLA promises to keep the layout, and asks every handler which version it knows.

Every buffer is contiguous, statistics and parameters are in the accumulator's dtype, and results are XLA's own memory: no
array is copied. Under jax.vmap buffers have batch dimensions in front, of size 1 where an argument is the same for all.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
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
from lngrad.cpu.xla import Calls
from lngrad.errors import BackendUnavailable
from lngrad.support.dtypes import bytes_of, contiguous_strides
from lngrad.typing import Address, Mask, Shape

# --- Call frames ----------------------------------------------------------------------------------------------------

Buffer = tuple[int, str, tuple[int, ...]]  # address, dtype, shape; contiguous in row-major order

DTYPES = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}  # XLA_FFI_DataType
_NUMBERS = {name: number for number, name in DTYPES.items()}

# Places of fields, in words of 8 bytes; kernels/xla.py has those that compiled code reads.
FRAME_WORDS, BUFFER_WORDS, API_WORDS = 21, 6, 7
API = 2  # in XLA_FFI_CallFrame
ARGS_SIZE, ARGS, RETS_SIZE, RETS, ATTRIBUTES = 7, 9, 12, 14, 20  # in its args, rets and attrs
ERROR_CREATE = 6  # in XLA_FFI_Api
MAJOR = 0
INTERNAL, CANCELLED = 13, 1  # XLA_FFI_Error_Code

_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _ErrorArgs(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("errc", ctypes.c_int),
    )


@cache
def _array(words: int) -> Any:
    return ctypes.c_int64 * words


_frame, _buffer = _array(FRAME_WORDS).from_address, _array(BUFFER_WORDS).from_address


def _words(address: int, count: int) -> list[int]:
    return _array(count).from_address(address)[:]  # type: ignore[no-any-return]


def _answer(frame_address: Address) -> int:
    """What compiled code leaves to Python: a call's first time, and all that no chain of jobs computes.

    Returns:
        The address of an XLA_FFI_Error, or 0. An exception on the way out, as a signal's handler raises, is one too.
    """
    try:
        frame = _frame(frame_address)[:]
        attribute = _words(_words(frame[ATTRIBUTES], 1)[0], 3)  # XLA_FFI_Array: dtype, size, data
        words = tuple(_words(attribute[2], attribute[1]))
        inputs, results = _buffers(frame[ARGS], frame[ARGS_SIZE]), _buffers(frame[RETS], frame[RETS_SIZE])
        if words[0] < 0:
            of_slices[0](words, inputs, results)
            return 0
        call = serve(words, inputs, results)
        if call.is_plain:
            call.is_plain = False  # once is enough, also where it can't be kept
            handler.keep(frame_address, _facts(words, inputs, results), call.plan, call.take, call.numbers, call.large)
    except BaseException as reason:  # Ctrl-C too: C code can't pass it on, and the results are not there
        return _error(_frame(frame_address)[API], reason)
    return 0


def _facts(attribute: tuple[int, ...], inputs: list[Buffer], results: list[Buffer]) -> list[int]:
    """All that decides a call, as kernels/xla.py compares it."""
    facts = [chosen.value, len(attribute), *attribute]
    for buffers in (inputs, results):
        facts.append(len(buffers))
        for _, dtype, shape in buffers:
            facts += [_NUMBERS[dtype], len(shape), *shape]
    return facts


def _buffers(address: int, count: int) -> list[Buffer]:
    buffers = []
    for pointer in _words(address, count):
        _, _, dtype, data, rank, dims = _buffer(pointer)[:]
        name = DTYPES[dtype & 0xFFFFFFFF]  # an enum of 4 bytes, then padding
        buffers.append((data, name, tuple(_words(dims, rank))))
    return buffers


def _error(api: int, reason: BaseException) -> int:
    """An XLA_FFI_Error, which XLA will free."""
    text = f"lngrad: {type(reason).__name__}: {reason}"
    code = INTERNAL if isinstance(reason, Exception) else CANCELLED
    message = ctypes.create_string_buffer(text.encode())
    arguments = _ErrorArgs(_ErrorArgs.errc.offset + _ErrorArgs.errc.size, None, ctypes.addressof(message), code)
    create = _CREATE(_words(api, API_WORDS)[ERROR_CREATE])
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
    """A call of which XLA has all buffers, results too; example after example where there is a batch.

    Attributes:
        numbers: The operator's.
        take: For each array of the plan the number of its buffer; -1 for one that is absent.
        large: (number of a buffer, bytes) of results that get huge pages.
        is_plain: Whether compiled code may be shown it.
    """

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
        self.large = [(at, nbytes) for at, nbytes in self._fresh if nbytes >= HUGE_BYTES]

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
        self.is_plain = not batch and self.on_addresses is not None  # and so may be a chain of jobs
        self.take = [names.index(name) if name in names else -1 for name in (*problem.inputs, *problem.out)]

    def run_buffers(self, addresses: list[int]) -> None:
        """Compute, given the addresses of the arguments and results."""
        for at, nbytes in self.large:
            advise_huge(addresses[at], nbytes)
        if self.on_addresses is None:
            for at, nbytes in self._fresh:
                ctypes.memset(addresses[at], 0, nbytes)  # sums over no rows
            return
        for example in self._examples(addresses) if self._batch else (addresses,):
            with_none = [*example, 0]
            self.on_addresses(*[with_none[index] for index in self.take], *self.numbers)

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


of_slices: list[
    Callable[[tuple[int, ...], list[Buffer], list[Buffer]], None]
] = []  # what computes steps of a slice: meshes.py's


def serve(attribute: tuple[int, ...], inputs: list[Buffer], results: list[Buffer]) -> XlaCall:
    """Compute what the attribute says."""
    buffers = inputs + results
    key = attribute, chosen.value, *[buffer[1:] for buffer in buffers]
    call: Any = kept.get(key)
    if call is None:
        call = kept.keep(key, XlaCall(attribute, inputs, results))
    call.run_buffers([buffer[0] for buffer in buffers])
    return call  # type: ignore[no-any-return]


def wait_until_idle() -> None:
    """Return when no call has run for 20 ms. A call that came to a finalizing interpreter would wait for the GIL for ever."""
    before = (-1, -1)
    while before[0] != before[1] or before != handler.progress():
        before = handler.progress()
        time.sleep(0.02)


_TEXT = ctypes.create_string_buffer(b"lngrad: interrupted")
_INTERRUPTED = _ErrorArgs(_ErrorArgs.errc.offset + _ErrorArgs.errc.size, None, ctypes.addressof(_TEXT), CANCELLED)

handler: Calls
why_not: BackendUnavailable | None = None  # there is no handler
try:
    handler = Calls(_answer, ctypes.addressof(_INTERRUPTED))
except BackendUnavailable as reason:
    why_not = reason
