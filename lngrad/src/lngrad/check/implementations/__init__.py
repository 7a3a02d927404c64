"""What is checked and certified, by name: backends of lngrad, other libraries, what packages add, users' functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from lngrad.check.implementations.forwards import forward, implementation_of, triton_function
from lngrad.check.implementations.implementation import (
    Added,
    Arguments,
    Fault,
    Implementation,
    NotApplicable,
    PreparedCall,
    Signature,
    by_name,
)
from lngrad.check.implementations.libraries import LIBRARIES
from lngrad.check.implementations.ours import backend, triton_gpu
from lngrad.check.implementations.users import mutant, program
from lngrad.core.plan import BACKENDS, availability
from lngrad.errors import BackendUnavailable

__all__ = [
    "IMPLEMENTATIONS", "Added", "Arguments", "Fault", "Implementation", "NotApplicable", "PreparedCall", "Signature", "by_name",
    "find",
    "has_signature", "implementation_of", "names",
]  # fmt: skip

IMPLEMENTATIONS = {row.name: row for row in LIBRARIES}

# What users have, by what stands before the colon: its function, and how the rest looks.
_PREFIXES: dict[str, tuple[Callable[[str], Implementation], str]] = {
    "triton": (triton_function, "module:function"),
    "cmd": (program, "./program {in} {out}"),
    "mutant": (mutant, "NAME"),
}
_FORMS = "module:NAME", "FILE.py:NAME", "hub:FOLDER"
# Names and prefixes that another package adds.
ELSEWHERE = dict.fromkeys(("ascend_sim", "graph", "graph_v3", "aclnn", "ascendc"), "lngrad-ascend")


@cache
def added() -> Added:
    """What other packages add; without them there is nothing."""
    packages = [point.load() for point in entry_points(group="lngrad.implementations")]
    rows = {name: row for package in packages for name, row in package.rows.items()}
    return Added(rows, {word: prefix for package in packages for word, prefix in package.prefixes.items()})


def names() -> list[str]:
    """All names, and the forms of users' own."""
    rows = IMPLEMENTATIONS | dict(added().rows)
    forms = (f"{word}:{form}" for word, (_, form) in (_PREFIXES | dict(added().prefixes)).items())
    return [*BACKENDS, *(name for name in rows if name not in BACKENDS), *_FORMS, *forms]


def has_signature(name: str) -> bool:
    """Whether it may be a forward, whose signature a trial or its parameters tell."""
    return ":" in name and not name.startswith("mutant:")


def find(name: str) -> Implementation:
    """The implementation of a name. Only what it needs must be installed.

    Raises:
        BackendUnavailable: There is none, or it is not installed; one line that says which.
    """
    prefix, colon, rest = name.partition(":")
    if prefix in ELSEWHERE and not {*added().rows, *added().prefixes} & {prefix}:
        raise BackendUnavailable(f"--impl: {prefix} needs {ELSEWHERE[prefix]}: pip install {ELSEWHERE[prefix]}")
    if colon:
        known = added().prefixes if prefix in ELSEWHERE else _PREFIXES
        return known[prefix][0](rest) if prefix in known else forward(name)
    if name == "triton_gpu":
        return triton_gpu()
    row = IMPLEMENTATIONS.get(name) or (None if name in BACKENDS and name not in ELSEWHERE else added().rows.get(name))
    if row is None and name in BACKENDS:
        state = availability(name)
        if state != "available":
            raise BackendUnavailable(f"--impl: {name} is not available: {state}")
        return backend(name)
    if row is None:
        raise BackendUnavailable(f"--impl: expected one of {', '.join(names())}, got {name!r}")
    try:
        if row.needs:
            import_module(row.needs)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"--impl: {name} needs {row.needs}, which is not installed ({error})") from None
    if reason := row.missing():
        raise BackendUnavailable(f"--impl: {name}: {reason}")
    return row
