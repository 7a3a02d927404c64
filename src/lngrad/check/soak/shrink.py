"""Make a failing call small: every field that can be plain is, as long as the call still fails."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from lngrad.check.soak.call import Call
from lngrad.check.soak.run import Violation, run
from lngrad.typing import Shape


def _fails(call: Call) -> bool:
    try:
        run(call)
    except Violation:
        return True
    return False


def shrink(call: Call, fails: Callable[[Call], bool] = _fails) -> Call:
    """The simplest call found that still fails: plain fields, fewer dimensions, smaller sizes."""
    improved = True
    while improved:
        improved = False
        for simpler in _simpler(call):
            if fails(simpler):
                call, improved = simpler, True
                break
    return call


def _simpler(call: Call) -> Iterator[Call]:
    for field in fields(Call):
        if field.name not in ("lead", "normalized", "door") and getattr(call, field.name) != field.default:
            plain: dict[str, Any] = {field.name: field.default}
            yield replace(call, **plain)
    for name in ("lead", "normalized"):
        for shape in _smaller(getattr(call, name), least=name == "normalized"):
            changed: dict[str, Any] = {name: shape}
            yield replace(call, **changed)


def _smaller(shape: Shape, least: int) -> Iterator[Shape]:
    for axis, size in enumerate(shape):
        if len(shape) > least:
            yield (*shape[:axis], *shape[axis + 1 :])
        for less in dict.fromkeys((1, size // 2, size - 1)):
            if 0 < less < size:
                yield (*shape[:axis], less, *shape[axis + 1 :])


def program(call: Call) -> str:
    """One line for the shell that runs a call again."""
    plain = Call()
    changed = ", ".join(
        f"{field.name}={getattr(call, field.name)!r}"
        for field in fields(Call)
        if getattr(call, field.name) != getattr(plain, field.name)
    )
    return f'{shlex.quote(sys.executable)} -c "from lngrad.check.soak import Call, run; run(Call({changed}))"'
