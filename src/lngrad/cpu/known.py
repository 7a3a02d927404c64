"""Calls with NumPy arrays that came before: found by compiled code, and run by it, with two short calls in between.

What a call is known by, and how it is found, is said in kernels/known.py. Here calls are added and results are made; and what
compiled code can't do is done: a job whose workers are late is finished, Ctrl-C is passed on.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lngrad.core.arrays import spanned
from lngrad.core.memory import allocated
from lngrad.core.plan import Makers, Plan
from lngrad.core.threads import granted_threads, setting_address
from lngrad.cpu import workers
from lngrad.cpu.entries import entry_address, entry_function
from lngrad.cpu.jobs import MOST_DIMENSIONS, MOST_FACTS, SLOT_WORDS, TABLE_SLOTS, KnownCall, Objects, Place
from lngrad.cpu.run import CpuSteps, Memory
from lngrad.support.addresses import DATA_OFFSET, WORDS, address_of
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Address, Words

MOST, MOST_BYTES = (
    TABLE_SLOTS // 2,
    1 << 25,
)  # calls that a table holds, and their memory; none has more than a quarter of it
_OBJECT, _I64 = ctypes.py_object, ctypes.c_int64
_CONSTANTS = (type(None), bool, float, str)  # what a kept call may have beside arrays: what nobody can change
_ONE_DIGIT = 1 << 30  # below, an int has one digit or none


class _Known(NamedTuple):
    """A call in a table.

    Attributes:
        address: Of its KnownCall and Places.
        words: These.
        memory: Its chain and workspace.
        helpers: How many workers it wants.
        results: The type of its results.
        makers: What makes each result; None for one that is not wanted.
        is_whole: Whether the `out` that it is given is its result, with nothing to be made or left out.
        finish: What its results are to the caller, if they are not that themselves.
        kept: Its facts, and all whose identity is one of them.
    """

    address: Address
    words: Words
    memory: Memory
    helpers: int
    results: Callable[..., Any]
    makers: Makers
    is_whole: bool
    finish: Callable[[Any], Any] | None
    kept: tuple[Any, ...]


class KnownCalls:
    """The known calls of a public function, whose arguments come in one order, arrays first and `out` last.

    Args:
        objects: Where things lie in Python's objects, from `objects_of`.
        results: The types that its results may have.
    """

    def __init__(self, objects: Objects, results: tuple[type, ...]):
        self._results = results
        self._words = np.zeros(len(objects) + TABLE_SLOTS * SLOT_WORDS + MOST_FACTS, np.int64)
        self._words[: len(objects)] = objects
        self._slots = self._words[len(objects) : -MOST_FACTS].reshape(TABLE_SLOTS, SLOT_WORDS)
        self._table = address_of(self._words)
        self._calls: dict[int, _Known] = {}
        self._nbytes = 0  # of their workspaces
        self._last = 0  # numbers are not used again: a call that is no longer here is not taken for another
        self._adding = threading.Lock()  # nobody waits for it: a signal handler in its midst would for ever
        self._find = _with_gil("find_call", _OBJECT, _I64)
        self._write_facts = _with_gil("write_facts", _OBJECT, _I64, _I64)
        self._run = ctypes.CFUNCTYPE(_I64, _I64, _OBJECT, _OBJECT, _I64, _I64)(entry_address("run_call"))
        for name in ("run_chain", "work", "join", "cancel"):
            entry_function(name)  # compiled before anybody else knows of a job

    def again(self, arguments: tuple[Any, ...]) -> Any:
        """The results of a call that is known; None of another one, or if another thread runs it or arrays share memory."""
        call = self._calls.get(self._find(arguments, self._table))
        if call is None:
            return None
        address, words, memory, wanted, make_results, makers, is_whole, finish, _ = call
        out = arguments[-1]
        if out is None:
            results = make_results(*[make and make() for make in makers])
        elif is_whole:
            results = out
        else:
            results = make_results(
                *[make and (make() if one is None else one) for make, one in zip(makers, out, strict=True)]
            )
        slots, helpers = workers.helpers_of(wanted) if wanted else (0, 0)
        try:
            job = self._run(address, arguments, results, slots, helpers)
            if job > 0:
                workers.finish(job, helpers)
                words[0] = 0
        except BaseException:
            if words[0] == id(arguments):
                try:
                    workers.abandon(memory.address, helpers)
                finally:
                    words[0] = 0
            raise
        if job < 0:
            return None
        return results if finish is None or results is out else finish(results)

    def keep(
        self, plan: Plan, arguments: tuple[Any, ...], numbers: tuple[float, ...],
        makers: Makers, finish: Callable[[Any], Any] | None,
    ) -> None:  # fmt: skip
        """Let a call be known, if compiled code alone can run it and nobody else adds one.

        One with some of its results given is not, if those that are made must become something else.
        """
        if _runs_alone(plan) and self._says_all(arguments) and self._adding.acquire(blocking=False):
            try:
                self._add(plan, arguments, numbers, makers, finish)
            finally:
                self._adding.release()

    def _says_all(self, arguments: tuple[Any, ...]) -> bool:
        """Whether the facts of a call's arguments say all about them."""
        *others, out = arguments
        return all(map(_stays, others)) and (out is None or (type(out) in self._results and all(map(_stays, out))))

    def _add(
        self, plan: Plan, arguments: tuple[Any, ...], numbers: tuple[float, ...], makers: Makers,
        finish: Callable[[Any], Any] | None,
    ) -> None:  # fmt: skip
        out = arguments[-1] or (None,) * len(makers)
        is_whole = all((make is None) == (given is None) for make, given in zip(makers, out, strict=True))
        if finish is not None and arguments[-1] is not None and not is_whole:
            return
        facts, later = np.zeros((2, MOST_FACTS), np.int64)
        count = self._write_facts(arguments, self._table, address_of(facts))
        if count == 0 or self._find(arguments, self._table):
            return
        steps: CpuSteps = plan.steps
        memory = Memory(plan, allocated(plan.workspace_bytes))
        places = _places(plan, arguments, out)
        # Since the plan was found other threads may have changed an array's shape, or how many threads there are.
        is_plans = facts[0] == steps.threads and _are_of(plan, (*arguments[: len(plan.problem.inputs)], *out))
        self._write_facts(arguments, self._table, address_of(later))
        if not is_plans or (facts != later).any():
            return
        self._nbytes += plan.workspace_bytes
        if len(self._calls) == MOST or self._nbytes > MOST_BYTES:
            self._slots[...] = 0
            self._calls, self._nbytes = {}, plan.workspace_bytes  # who runs a call keeps it
        steps.write(memory.bytes, (*(0 for _ in steps.argument), *numbers))
        record = KnownCall(
            chain=memory.address, objects=self._table, inputs=len(plan.problem.inputs), outputs=len(makers)
        )
        words = np.array([*record, *places], np.int64)
        dtypes = [one.dtype for one in (*arguments[:-1], *out) if type(one) is np.ndarray]
        options = [one for one in arguments[:-1] if type(one) is not np.ndarray]
        self._last += 1
        self._calls[self._last] = _Known(
            address_of(words), words, memory, steps.max_threads - 1, plan.problem.operator.results, makers, is_whole, finish,
            (facts, *dtypes, *options),
        )  # fmt: skip
        mixed = entry_function("hash_of")(address_of(facts), count)
        k = mixed % TABLE_SLOTS
        while self._slots[k, 1]:
            k = (k + 1) % TABLE_SLOTS
        self._slots[k, [0, 2, 3]] = mixed, address_of(facts), count
        self._slots[k, 1] = self._last  # last: without it the slot is empty


def _runs_alone(plan: Plan) -> bool:
    """Whether a plan needs nobody but compiled code, and its memory may be kept."""
    steps: CpuSteps = plan.steps
    by_numpy = steps.copies_in or steps.copies_out or steps.streamed or steps.group_rows
    return not by_numpy and plan.workspace_bytes <= MOST_BYTES // 4


def _places(plan: Plan, arguments: tuple[Any, ...], out: tuple[Any, ...]) -> list[int]:
    """The Places of a call, one behind the other."""
    inputs = arguments[: len(plan.problem.inputs)]
    spans = [*map(_span, inputs)]
    for wanted, given in zip(plan.problem.outputs(), out, strict=True):
        spans.append(0 if wanted is None else wanted.nbytes if given is None else _span(given))
    positions = (*range(len(inputs)), *range(len(out)))
    words = plan.steps.places[: len(spans)]
    return [field for place in map(Place, positions, words, spans) for field in place]


def _are_of(plan: Plan, arrays: tuple[Any, ...]) -> bool:
    """Whether a plan is one for arrays of these dtypes, sizes and strides, in any order of their axes."""
    specs = (*plan.problem.inputs.values(), *plan.problem.out.values())
    return all(
        array is None
        if spec is None
        else array is not None
        and array.dtype == numpy_dtype(spec.dtype)
        and sorted(zip(array.shape, array.strides, strict=True)) == sorted(zip(spec.shape, spec.strides, strict=True))
        for array, spec in zip(arrays, specs, strict=True)
    )


def _with_gil(name: str, *parameters: Any) -> Callable[..., int]:
    """One of jobs.ENTRIES that looks at objects: a call keeps the GIL."""
    return ctypes.PYFUNCTYPE(_I64, *parameters)(entry_address(name))


def _stays(argument: Any) -> bool:
    """Whether an argument's facts say all about it, and its memory begins with its first element."""
    if type(argument) is np.ndarray:
        return all(step >= 0 for step in argument.strides)
    if type(argument) is tuple:
        return len(argument) <= MOST_DIMENSIONS and all(type(one) in (bool, int) and _stays(one) for one in argument)
    if type(argument) is int:
        return abs(argument) < _ONE_DIGIT
    return type(argument) in _CONSTANTS


def _span(array: Any) -> int:
    return 0 if array is None else spanned(array.shape, array.strides, array.itemsize)


def known_calls(results: tuple[type, ...]) -> KnownCalls | None:
    """A table for the calls of a function with results of these types. None where Python's objects are not as expected."""
    objects = objects_of()
    if objects is None:
        return None
    return KnownCalls(objects._replace(results=id(results[0]), results_too=id(results[-1])), results)


@cache
def objects_of() -> Objects | None:
    """Where things lie in the objects of this Python and this NumPy, found by looking at some; None if they lie otherwise.

    Nor without the GIL, under which arrays are looked at.
    """
    if DATA_OFFSET is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    pair, number, array = (object(), object()), 0.7182818284590452, np.zeros((5, 3), np.float16)[::2, 1:]
    digit = _ONE_DIGIT - 12345
    type_at = _find_words(pair, id(tuple))
    size_at, items_at = _find_words(pair, 2), _find_words(pair, *map(id, pair))
    float_at = _find_words(number, int(np.float64(number).view(np.int64)))
    digit_at = _find_words(digit, digit, mask=(1 << 32) - 1)
    if None in (type_at, size_at, items_at, float_at, digit_at):
        return None
    found = Objects(
        type_at=type_at, size_at=size_at, items_at=items_at, float_at=float_at, digit_at=digit_at,
        data_at=DATA_OFFSET, ndarray=id(np.ndarray), tuple=id(tuple), float=id(float), int=id(int),
        chosen=setting_address(), granted=granted_threads(),
    )  # fmt: skip
    return found if _lies_as_expected(array, found) else None


def _find_words(thing: object, *wanted: int, mask: int = -1) -> int | None:
    """How many bytes on from an object's address these words lie, as far as the bits of a mask say."""
    first = id(thing) >> 3
    last = -(-sys.getsizeof(thing) // 8)
    places = (k for k in range(1, last) if all(WORDS[first + k + n] & mask == word for n, word in enumerate(wanted)))
    place = next(places, None)
    return None if place is None else 8 * place


def _lies_as_expected(array: np.ndarray[Any, Any], objects: Objects) -> bool:
    """Whether what kernels/known.py reads of objects is where it looks."""
    write, head, facts = (
        _with_gil("write_facts", _OBJECT, _I64, _I64),
        np.array(objects, np.int64),
        np.zeros(MOST_FACTS, np.int64),
    )

    def facts_of(*arguments: Any) -> list[int]:
        count = write(arguments, address_of(head), address_of(facts))
        return [int(fact) for fact in facts[1:count]]

    sizes_and_strides = [word for pair in zip(array.shape, array.strides, strict=True) for word in pair]
    array.flags.writeable = False
    of_array, no_sign, sign, pair = facts_of(array, None), facts_of(12345), facts_of(-12345), facts_of((True, 0.5))
    array.flags.writeable = True
    writable = facts_of(array)
    return (
        of_array == [id(np.ndarray), id(array.dtype), array.ndim, *sizes_and_strides, id(None)]
        and writable == [*of_array[:2], array.ndim | 0x400 << 32, *sizes_and_strides]
        and no_sign[::2] == sign[::2] == [id(int), 12345]
        and no_sign[1] != sign[1]
        and pair == [id(tuple), 2, id(True), id(float), int(np.float64(0.5).view(np.int64))]
    )
