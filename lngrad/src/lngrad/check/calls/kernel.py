"""What is asked of an implementation, and the answers in the process that it lives in.

Whoever judges writes inputs to a file in memory; the side that calls has a descriptor that can't write it. Results are
copied out as soon as a call returns. Nothing of the truth is on this side.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from lngrad.check.case import PARAMETERS, CheckCase, Results
from lngrad.check.implementations import Fault, Implementation, NotApplicable, Signature, by_name, find
from lngrad.check.implementations.implementation import OVERWRITTEN, first_line
from lngrad.check.implementations.ours import rounding_of_a_gpu
from lngrad.check.inputs import DrawnInputs
from lngrad.check.layouts import laid_out, room
from lngrad.core.threads import get_num_threads
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Inputs
from lngrad.typing import Array, Shape

_LINE = 64  # bytes; every array's room begins on one
_AROUND = 0xFF  # NaN in every dtype: what is read beside an array shows
POISON = 0xFE  # as glibc fills what it allocates: large numbers
OTHER_POISON = 0x40  # 2 to 33 in every dtype: what is added to it is seen
FLUSHED = "computed by XLA, which takes subnormal numbers for 0 on a CPU"
PERTURB, M_PERTURB = "MALLOC_PERTURB_", -6  # glibc's variable, which has the other bits; and what mallopt calls it
_CACHED_BYTES, _CACHED_BLOCKS = 1024, 8  # smaller blocks are kept by NumPy, so many of a size
_OF_CASE = dict.fromkeys(("rstd", "variance"), "statistic")


class KernelError(Exception):
    """An implementation raised, died, did something that it must not do, or took too long; the text says what.

    Attributes:
        died: Whether its process is gone.
        mistake: Its name, where the call showed one.
    """

    died = False

    def __init__(self, text: str, mistake: str | None = None) -> None:
        super().__init__(text)
        self.mistake = mistake


class Place(NamedTuple):
    """An array in the shared memory."""

    start: int
    shape: Shape
    dtype: str
    layout: str


@dataclass(frozen=True)
class Request:
    """One call.

    Attributes:
        case: What is asked.
        drawn: The inputs, with a Place for each array.
        nbytes: Of the memory that they lie in.
        threads: With its own switch set to so many; None leaves it.
        copied: Whether it gets copies that it can write, and is told of if it does.
        allowed: Which of them it may write.
        fill: The byte that allocated memory is full of, where it is filled.
        is_flushed: Whether it is refused if XLA computes it, as subnormal numbers are taken for 0.
    """

    case: CheckCase
    drawn: DrawnInputs
    nbytes: int
    threads: int | None = None
    copied: bool = False
    allowed: tuple[str, ...] = ()
    fill: int = POISON
    is_flushed: bool = False


class Kernel(Protocol):
    """An implementation that can be called, wherever it lives. All methods raise NotApplicable and KernelError.

    Attributes:
        memory: Where its inputs are written.
        has_threads: Whether it has a switch for the number of threads.
        on_device: Whether it computes in other memory than this machine's.
        signature: Of a forward, which is differentiated.
        threads: How many it has where a request does not say.
        seconds: Of the last call.
    """

    memory: Memory
    has_threads: bool
    on_device: bool
    signature: Signature | None
    threads: int
    seconds: float

    def call(self, request: Request) -> Results:
        """Copies of the results, as they were when the call returned."""

    def again(self) -> Any:
        """The same results, read once more."""

    def repeat(self, request: Request, number: int) -> None:
        """So many calls in a row; their results are `again`'s."""

    def restart(self) -> bool:
        """Forget what calls have left; whether that is possible."""


class Memory:
    """A file in memory: this side writes it."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("lngrad-check")
            self.read_only = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY)
        else:
            self._file, path = tempfile.mkstemp(prefix="lngrad-check-")
            self.read_only = os.open(path, os.O_RDONLY)
            os.unlink(path)
        self._bytes = np.empty(0, np.uint8)

    def place(self, case: CheckCase, rows: int, blocks: Iterable[DrawnInputs]) -> Request:
        """Write the inputs of so many rows, which come in blocks; all at once where the case has a layout."""
        cursor, places = 0, dict[str, Place]()
        for number, block in enumerate(blocks):
            arrays = arrays_of(block)
            if not number:
                first = block
                for name, array in arrays.items():
                    shape = array.shape
                    if name not in PARAMETERS and block.stop - block.start < rows:
                        shape = (*(case.lead if rows == case.M else (rows,)), *array.shape[1:])
                    places[name] = Place(
                        cursor, shape, array.dtype.name, case.layouts.get(_OF_CASE.get(name, name), "plain")
                    )
                    cursor += -(-room(shape, array.itemsize, places[name].layout) // _LINE) * _LINE
                if cursor > self._bytes.size:
                    os.ftruncate(self._file, cursor)
                    self._bytes = np.frombuffer(mmap.mmap(self._file, cursor), np.uint8)
                self._bytes[:cursor] = _AROUND
            for name, array in arrays.items():
                target = self._view(places[name])
                if target.size == array.size:
                    target[...] = array
                elif name not in PARAMETERS:
                    begin = block.start - first.start
                    target.reshape(rows, -1)[begin : begin + len(array)] = array.reshape(len(array), -1)
        drawn = with_arrays(replace(first, stop=first.start + rows), places)
        return Request(case, drawn, cursor)

    def _view(self, place: Place) -> Array:
        return laid_out(self._bytes, place.start, place.shape, numpy_dtype(place.dtype), place.layout)

    def close(self) -> None:
        """Give the memory back once nobody has it mapped."""
        os.close(self._file)
        os.close(self.read_only)


def arrays_of(drawn: DrawnInputs) -> dict[str, Array]:
    """All arrays of a call by name; "exact" is the rstd that the truth is computed from, where it is another."""
    found = {field.name: getattr(drawn.inputs, field.name) for field in fields(Inputs)}
    arrays = {name: array for name, array in found.items() if isinstance(array, np.ndarray)}
    arrays["variance"] = drawn.variance
    return arrays if drawn.exact.rstd is drawn.inputs.rstd else arrays | {"exact": drawn.exact.rstd}


def with_arrays(drawn: DrawnInputs, arrays: dict[str, Any]) -> DrawnInputs:
    """The same with other arrays."""
    inputs = replace(
        drawn.inputs, **{name: array for name, array in arrays.items() if name not in ("variance", "exact")}
    )
    exact = replace(inputs, rstd=arrays.get("exact", inputs.rstd))
    return replace(drawn, inputs=inputs, exact=exact, variance=arrays["variance"])


class _Writable:
    """Memory that says it can be written, which some libraries insist on; the pages say no."""

    def __init__(self, array: Array):
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": array.shape, "typestr": "|u1", "data": (address, False)}


class Caller:
    """Makes calls of an implementation in this process, on memory of which it has a descriptor."""

    def __init__(self, subject: Implementation, descriptor: int):
        self.subject, self._descriptor = subject, descriptor
        rounding_of_a_gpu()
        self._bytes = np.empty(0, np.uint8)
        self._results: Any = ()

    def call(self, request: Request) -> Results:
        """Copies of the results.

        Raises:
            NotApplicable, Exception: Whatever the implementation raises.
            Fault: It changed an input that it could write.
        """
        drawn = self._given(request)
        if request.threads is not None and self.subject.set_threads is not None:
            self.subject.set_threads(request.threads)
        self._results = ()  # large ones are not there twice
        _poison(request.case, request.fill)
        compiled: deque[str] = deque()
        if request.is_flushed and (jax := sys.modules.get("jax")):
            compiled = _compilations(jax)
            compiled.clear()
            jax.clear_caches()
        results = self.subject(request.case, drawn)
        if compiled:
            raise NotApplicable(FLUSHED)
        self._results = results
        copies: Results = self.again()
        if request.copied:
            self._unchanged(request, drawn)
        return copies

    def again(self) -> Any:
        """The results of the last call, as they are now."""
        arrays = self._results._asdict().items()
        return self._results._replace(
            **{name: None if array is None else np.array(as_numpy(array)) for name, array in arrays}
        )

    def repeat(self, request: Request, number: int) -> None:
        """So many calls, of what can't be prepared."""
        call = self.subject.prepared(request.case, self._given(request))
        for _ in range(number):
            results = call()
        self._results = request.case.results(by_name(request.case, results))

    def _given(self, request: Request) -> DrawnInputs:
        if self._bytes.size < request.nbytes:
            mapped = mmap.mmap(self._descriptor, request.nbytes, access=mmap.ACCESS_READ)
            self._bytes = np.asarray(_Writable(np.frombuffer(mapped, np.uint8)))
        memory = self._bytes[: request.nbytes].copy() if request.copied else self._bytes
        return with_arrays(request.drawn, {name: self._view(place, memory) for name, place in _places(request)})

    def _view(self, place: Place, memory: Array) -> Array:
        return laid_out(memory, place.start, place.shape, numpy_dtype(place.dtype), place.layout)

    def _unchanged(self, request: Request, drawn: DrawnInputs) -> None:
        after = arrays_of(drawn)
        for name, place in _places(request):
            if name in request.allowed or name not in after:
                continue
            if after[name].tobytes() != self._view(place, self._bytes).tobytes():
                also = "; --allow inplace-dy judges what else it does" if name == "dy" else ""
                raise Fault(OVERWRITTEN, f"it changed its input {name}{also}")


def _places(request: Request) -> Iterator[tuple[str, Place]]:
    drawn = request.drawn
    found = {field.name: getattr(drawn.inputs, field.name) for field in fields(Inputs)}
    found |= {"variance": drawn.variance, "exact": drawn.exact.rstd}
    return ((name, place) for name, place in found.items() if isinstance(place, Place))


@cache
def _compilations(jax: Any) -> deque[str]:
    """The last compilation of JAX's in this process, from now on."""
    heard: deque[str] = deque(maxlen=1)

    def hear(event: str, *_: Any, **__: Any) -> None:
        if "compile" in event:
            heard.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    return heard


def _poison(case: CheckCase, fill: int) -> None:
    """Fill what NumPy keeps of freed results; larger blocks are filled by the C library, see `process`."""
    if PERTURB in os.environ and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_PERTURB, 0xFF ^ fill)
    for nbytes in {case.N * 4, case.N * 2, case.N * 8, case.M * case.N * 4, case.M * case.N * 2}:
        if 0 < nbytes < _CACHED_BYTES:
            blocks = [np.full(nbytes, fill, np.uint8) for _ in range(_CACHED_BLOCKS)]
            del blocks


class Here:
    """An implementation in this process. It gets copies: a write to read-only memory would end the process.

    Its number of threads is this process's, and left as it is.
    """

    on_device = has_threads = False

    def __init__(self, subject: Implementation):
        self.memory = Memory()
        self._caller = Caller(subject, self.memory.read_only)
        self.seconds, self.threads = 0.0, get_num_threads()
        self.signature = subject.signature

    def call(self, request: Request) -> Results:
        start = perf_counter()
        results: Results = self._told(lambda: self._caller.call(replace(request, copied=True)))
        self.seconds = perf_counter() - start
        return results

    def again(self) -> Any:
        results: Results = self._told(self._caller.again)
        return results

    def repeat(self, request: Request, number: int) -> None:
        self._told(lambda: self._caller.repeat(request, number))

    def restart(self) -> bool:
        return False

    def _told(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except NotApplicable:
            raise
        except Fault as fault:
            raise KernelError(str(fault), fault.mistake) from None
        except Exception as error:
            raise KernelError(first_line(error)) from None


@cache
def here(name: str, filled: bool = False) -> Kernel:
    """An implementation in this process, for those that are trusted. Memory is as it is.

    Raises:
        BackendUnavailable: There is none of this name.
    """
    return Here(find(name))
