"""A table of bounded size: what was decided once about equal facts, and can be decided again."""

from __future__ import annotations

from typing import Generic, TypeVar

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
