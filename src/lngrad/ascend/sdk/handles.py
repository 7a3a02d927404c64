"""Handles: the numbers that C programs have in the place of pointers to objects, and the objects behind them.

A number is never handed out twice, and lies where no program can have memory (see ``host_memory``), so that an old or a
foreign pointer is recognised and never followed. It says of which kind it is: one that was destroyed is still told from
one that never was.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from lngrad.ascend import acl, aclnn
from lngrad.ascend.sdk.prototypes import HANDLES

FIRST_HANDLE = 0x1100_0000_0000
STEP = 16  # aligned, as pointers to objects are
KIND_SPAN = 1 << 36  # numbers of one kind
HANDLE_SPAN = KIND_SPAN * len(HANDLES)


class foreign_pointer:
    """In the place of an object: what a pointer that is no handle leads to. No interface takes it."""


_FOREIGN = foreign_pointer()


class Handles:
    """All objects that C programs have handles of, by number."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}  # by the object's id; it lives while it is in _objects
        self._next = {
            kind: count(FIRST_HANDLE + position * KIND_SPAN + STEP, STEP) for position, kind in enumerate(HANDLES)
        }

    def number_of(self, kind: str, thing: Any) -> int:
        """Return the number of an object, the same one every time; 0 for None."""
        if thing is None:
            return 0
        number = self._numbers.get(id(thing))
        if number is None:
            number = next(self._next[kind])
            self._objects[number] = thing
            self._numbers[id(thing)] = number
        return number

    def object_of(self, number: int) -> Any:
        """Return the object behind a number: None for 0, else what every interface refuses with the right text."""
        if number == 0:
            return None
        found = self._objects.get(number)
        return self._absent(number) if found is None else found

    def forget_destroyed(self, number: int, thing: Any) -> None:
        """Forget an object that a call has ended."""
        if number and not getattr(thing, "alive", True) and self._objects.pop(number, None) is not None:
            self._numbers.pop(id(thing), None)

    def _absent(self, number: int) -> Any:
        """A destroyed object of the number's kind, or a foreign one."""
        position, place = divmod(number - FIRST_HANDLE, KIND_SPAN)
        if not 0 <= position < len(HANDLES) or place % STEP:
            return _FOREIGN
        kind = getattr(acl, HANDLES[position], None) or getattr(aclnn, HANDLES[position], None)
        if kind is None:
            return _FOREIGN
        destroyed = kind.__new__(kind)
        destroyed.alive = False
        return destroyed
