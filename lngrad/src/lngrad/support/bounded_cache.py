"""What was decided once and can be decided again, without a lock: a table of bounded size, and a property."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that is emptied before it grows beyond `most` entries.

    Programs use few shapes, so a full table means keys that never come back; keeping the recent ones would cost every
    look-up. Look-ups are a dictionary's own. Threads may share a table: two that miss at once both decide, and one entry stays.
    """

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def keep(self, key: Key, value: Value) -> Value:
        """Add an entry; returns its value."""
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value


class cached_property(Generic[Value]):  # as functools has it
    """functools.cached_property without the lock that it has before Python 3.12.

    That lock is held while a value is made, which may take a kernel's compilation: a child that is forked meanwhile would wait
    for it for ever. Threads that come at once all make a value, and one stays.
    """

    def __init__(self, function: Callable[[Any], Value]):
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]  # the class has the property itself
        value = instance.__dict__[self._function.__name__] = self._function(instance)
        return value
