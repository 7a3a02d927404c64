"""Values written in a cell of a case file: numbers, strings, names of nothing else, and brackets around them.

A cell is data. It is read by this small parser, which knows tuples, lists, dictionaries, numbers, strings, None, True,
False, null, true, false, inf and nan, and cannot call or look up anything.
"""

from __future__ import annotations

import re
from typing import Any

MOST_CHARACTERS = 65536
MOST_DEPTH = 16
_NAMES = {
    "None": None, "null": None, "True": True, "true": True, "TRUE": True, "False": False, "false": False,
    "FALSE": False, "inf": float("inf"), "Infinity": float("inf"), "nan": float("nan"), "NaN": float("nan"),
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,4})?)(?![\w.])"
    r"|(?P<name>[+-]?[A-Za-z_]\w{0,40})|(?P<string>'[^'\\\n]*'|\"[^\"\\\n]*\")|(?P<mark>[][(){},:]))"
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class LiteralError(ValueError):
    """Not a literal; `column` counts from 1 within the text."""

    def __init__(self, text: str, column: int) -> None:
        super().__init__(text)
        self.column = column


def parse_literal(text: str) -> Any:
    """The value of a literal.

    Raises:
        LiteralError: It is none, is longer than 65536 characters or deeper than 16 brackets.
    """
    if len(text) > MOST_CHARACTERS:
        raise LiteralError(f"expected at most {MOST_CHARACTERS} characters, got {len(text)}", MOST_CHARACTERS)
    reader = _Reader(text)
    value = reader.value(0)
    if text[reader.at :].strip():
        raise LiteralError(f"expected nothing more, got {text[reader.at :].strip()[:20]!r}", reader.at + 1)
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            rest = self.text[self.at :].strip()
            raise LiteralError(f"expected a literal, got {rest[:20]!r}" if rest else "ends too early", self.at + 1)
        self.at = match.end()
        return match.lastgroup or "", match.group().strip()

    def _peek(self) -> str:
        before = self.at
        _, token = self._next()
        self.at = before
        return token

    def value(self, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise LiteralError(f"expected at most {MOST_DEPTH} brackets in each other", self.at + 1)
        before = self.at
        kind, token = self._next()
        if kind == "number":
            return float(token) if set(token) & set(".eE") else int(token)
        if kind == "string":
            return token[1:-1]
        if kind == "name":
            return self._name(token, before)
        if token in _CLOSING:
            return self._bracket(token, depth)
        raise LiteralError(f"expected a value, got {token!r}", before + 1)

    def _name(self, token: str, before: int) -> Any:
        sign, name = (token[0], token[1:]) if token[0] in "+-" else ("", token)
        if name not in _NAMES or (sign and not isinstance(_NAMES[name], float)):
            raise LiteralError(f"expected a literal, got the name {token!r}", before + 1)
        value = _NAMES[name]
        return -value if sign == "-" and isinstance(value, float) else value

    def _bracket(self, opening: str, depth: int) -> Any:
        items: list[Any] = []
        keys: list[Any] = []
        comma = False
        while self._peek() != _CLOSING[opening]:
            item = self.value(depth + 1)
            if opening == "{":
                self._expect(":")
                if not isinstance(item, str):
                    raise LiteralError(f"expected a string as key, got {item!r}", self.at)
                keys.append(item)
                item = self.value(depth + 1)
            items.append(item)
            comma = self._peek() == ","
            if comma:
                self._next()
            elif self._peek() != _CLOSING[opening]:
                raise LiteralError(f"expected ',' or {_CLOSING[opening]!r}, got {self._peek()!r}", self.at + 1)
        self._next()
        if opening == "{":
            return dict(zip(keys, items, strict=True))
        if opening == "(" and len(items) == 1 and not comma:
            return items[0]  # brackets around one value make no tuple, as in Python
        return tuple(items)

    def _expect(self, mark: str) -> None:
        before = self.at
        _, token = self._next()
        if token != mark:
            raise LiteralError(f"expected {mark!r}, got {token!r}", before + 1)
