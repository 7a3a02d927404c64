"""XLA's calls without Python: what the host keeps for kernels/xla.py, and the safe way into Python for all that is not kept.

A signal's handler, such as Ctrl-C's, may raise at any instruction of a function that C code has called, also ahead of its
`try`, and ctypes then leaves what it returns undefined. So the host's function returns nothing: it writes a word, and
compiled code looks whether it did.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lngrad.core import memory
from lngrad.core.plan import Plan
from lngrad.core.threads import chosen
from lngrad.cpu import workers
from lngrad.cpu.entries import entry_address, entry_function
from lngrad.cpu.jobs import Prepared, XlaTable, bits_of
from lngrad.cpu.run import KEPT_BYTES, LINE, jobs_of
from lngrad.support.addresses import address_of
from lngrad.support.locks import fork_safe_lock
from lngrad.typing import Address, Words

_LISTS = 1024
_MOST = 4096  # prepared calls; further ones are answered by the host
_HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

_keeping = fork_safe_lock()
_immortal: list[Any] = []  # threads of XLA may run while the interpreter ends


def _stays(thing: Any) -> Any:
    """The same, never freed."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _immortal.append(thing)
    return thing


def _words(numbers: Sequence[int | tuple[int, int]] | Words) -> Words:
    return _stays(np.array(numbers, np.int64).reshape(-1))  # type: ignore[no-any-return]


def _c_function(name: str) -> Address:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


class Calls:
    """The table of prepared calls, and the function that XLA calls.

    Args:
        answer: Of a frame's address: computes, and returns the address of an XLA_FFI_Error, or 0. It raises nothing.
        interrupted: The address of what such an error is created from where `answer` was interrupted: for XLA_FFI_Error_Create.

    Attributes:
        answer: As given.
        function: The address of the function that XLA calls.
    """

    def __init__(self, answer: Callable[[Address], int], interrupted: Address):
        def host(frame: Address, place: Address) -> None:
            ctypes.c_int64.from_address(place).value = self.answer(frame)

        self.answer = answer
        self._heads = _words([0] * _LISTS)
        self._count = 0
        advise = memory.madvise
        self._table = _words(
            XlaTable(
                host=ctypes.cast(_stays(_HOST(host)), ctypes.c_void_p).value,
                threads=ctypes.addressof(chosen),
                heads=address_of(self._heads),
                size=_LISTS,
                allocate=_c_function("aligned_alloc"),
                free=_c_function("free"),
                advise=0 if advise is None else ctypes.cast(advise, ctypes.c_void_p).value,
                slots=address_of(_stays(workers.compiled_slots())),
                interrupted=interrupted,
            )
        )
        self.function = entry_address("xla_call")
        entry_function("xla_call")(address_of(self._table) | 1)
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Let every call be asked for anew, as in a forked child, where there are no workers."""
        self._heads[:] = 0
        self._count = 0
        self._table[XlaTable._fields.index("slots")] = address_of(_stays(workers.compiled_slots()))

    def progress(self) -> tuple[int, int]:
        """How many calls have begun and how many have ended."""
        begun = XlaTable._fields.index("begun")
        return int(self._table[begun]), int(self._table[begun + 1])

    def keep(
        self, frame: Address, facts: Sequence[int], plan: Plan, buffers: Sequence[int], numbers: Sequence[float],
        huge: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Let calls with the facts of a frame run without Python, if that can be.

        Args:
            frame: Its address.
            facts: As kernels/xla.py compares them.
            plan: How it is computed.
            buffers: For each array of the plan the number of its buffer, arguments first; -1 for one that is absent.
            numbers: Of the operator.
            huge: (number of a result's buffer, bytes) of those that get huge pages.
        """
        jobs, helpers = jobs_of(plan), workers.compiled_helpers(plan.steps.max_threads - 1)
        if jobs is None or helpers is None or self._count == _MOST:
            return
        image, count = np.array(jobs.image), len(buffers)
        for number, place in zip(numbers, jobs.places[count:], strict=True):
            if place >= 0:
                image[place] = bits_of(number)
        places = [pair for pair in zip(buffers, jobs.places[:count], strict=True) if min(pair) >= 0]
        workspace = iter(jobs.regions)
        regions = [(word, 8 * jobs.workspace_word + offset) for word, offset in zip(workspace, workspace, strict=True)]
        large = huge if memory.madvise is not None else ()
        nbytes = -(-8 * jobs.words // LINE) * LINE
        call = _words(
            Prepared(
                facts=address_of(_words(facts)),
                image=address_of(_words(image)),
                image_words=len(image),
                nbytes=nbytes,
                regions=address_of(_words(regions)),
                regions_count=len(regions),
                places=address_of(_words(places)),
                places_count=len(places),
                huge=address_of(_words(large)),
                huge_count=len(large),
                streams=jobs.streaming_word,
                streamed=jobs.places[jobs.streamed],
                helpers=helpers,
                keeps=nbytes <= KEPT_BYTES,
            )
        )
        with _keeping:
            entry_function("xla_keep")(frame, address_of(call), address_of(self._table))
            self._count += 1
