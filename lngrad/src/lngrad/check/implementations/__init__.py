"""What is checked, certified and timed, by name: backends of lngrad, other libraries, CANN's interfaces, users' functions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from lngrad.check.implementations.forwards import forward, implementation_of
from lngrad.check.implementations.implementation import (
    Arguments,
    Fault,
    Implementation,
    NotApplicable,
    PreparedCall,
    Signature,
)
from lngrad.check.implementations.libraries import LIBRARIES
from lngrad.check.implementations.ours import ASCEND_SIM, CANN, backend, triton_gpu
from lngrad.check.implementations.users import ascendc_kernel, mutant, program, triton_function
from lngrad.core.plan import BACKENDS, availability
from lngrad.errors import BackendUnavailable

__all__ = [
    "IMPLEMENTATIONS", "Arguments", "Fault", "Implementation", "NotApplicable", "PreparedCall", "Signature", "find",
    "has_signature", "implementation_of", "names",
]  # fmt: skip

IMPLEMENTATIONS = {row.name: row for row in (ASCEND_SIM, *LIBRARIES, *CANN)}

# What users have, by what stands before the colon.
_PREFIXES: dict[str, Callable[[str], Implementation]] = {
    "ascendc": ascendc_kernel, "mutant": mutant, "cmd": program, "triton": triton_function
}  # fmt: skip
_FORMS = (
    "module:NAME",
    "FILE.py:NAME",
    "hub:FOLDER",
    "triton:module:function",
    "ascendc:FILE.cpp:KERNEL",
    "cmd:./program {in} {out}",
    "mutant:NAME",
)


def names() -> list[str]:
    """All names, and the forms of users' own."""
    return [*BACKENDS, *(name for name in IMPLEMENTATIONS if name not in BACKENDS), *_FORMS]


def has_signature(name: str) -> bool:
    """Whether it may be a forward, whose signature a trial finds."""
    return ":" in name and name.partition(":")[0] not in _PREFIXES


def find(name: str) -> Implementation:
    """The implementation of a name. Only what it needs must be installed.

    Raises:
        BackendUnavailable: There is none, or it is not installed; one line that says which.
    """
    prefix, colon, rest = name.partition(":")
    if colon:
        return _PREFIXES[prefix](rest) if prefix in _PREFIXES else forward(name)
    if name == "triton_gpu":
        return triton_gpu()
    row = IMPLEMENTATIONS.get(name)
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
