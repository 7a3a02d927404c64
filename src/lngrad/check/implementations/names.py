"""Which implementations there are, by name. Each is looked up at first use, so that only what is wanted must be installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from lngrad.check.implementations import onednn, others, ours
from lngrad.check.implementations.ascendc import ascendc_kernel
from lngrad.check.implementations.command import command
from lngrad.check.implementations.interface import Implementation
from lngrad.check.implementations.tensors import require_triton
from lngrad.check.implementations.users import mutant, triton_function, users_function
from lngrad.core.plan import BACKENDS, backends
from lngrad.errors import BackendUnavailable


@dataclass(frozen=True)
class _Door:
    """A row of the table: which module must be there, and the function that calls it."""

    module: str
    call: Implementation


_DOORS = {
    "ascend_sim": _Door("lngrad.ascend.simulated_backend", ours.backend("ascend_sim")),
    "torch": _Door("torch", others.torch_backward),
    "torch_compile": _Door("torch", others.compiled_backward),
    "jax": _Door("jax", others.jax_backward),
    "onednn": _Door("lngrad.check.implementations.onednn", others.onednn_backward),
    "mindspore": _Door("mindspore", others.mindspore_backward),
    "graph": _Door("lngrad.ascend.graph", ours.graph_op),
    "graph_v3": _Door("lngrad.ascend.graph", ours.graph_v3_op),
    "aclnn": _Door("lngrad.ascend.aclnn", ours.aclnn_op),
}
_PREFIXES = {"ascendc": ascendc_kernel, "mutant": mutant, "cmd": command, "triton": triton_function}
_FORMS = (
    "module:function",
    "triton:module:function",
    "ascendc:FILE.cpp:KERNEL",
    "cmd:./program {in} {out}",
    "mutant:NAME",
)


def names() -> list[str]:
    """All names, and the forms of users' own."""
    return [*BACKENDS, *(name for name in _DOORS if name not in BACKENDS), *_FORMS]


def find(name: str) -> Implementation:
    """The implementation of a name.

    Raises:
        BackendUnavailable: There is none, or it is not installed; one line that says which.
    """
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _PREFIXES:
        return _PREFIXES[prefix](rest)
    if name == "triton_gpu":
        require_triton()
        return ours.triton_gpu
    if name in BACKENDS:
        state = backends()[name]
        if state != "available":
            raise BackendUnavailable(f"--impl: {name} is not available: {state}")
        return ours.backend(name)
    if name in _DOORS:
        door = _DOORS[name]
        try:
            import_module(door.module)
        except ModuleNotFoundError as error:
            raise BackendUnavailable(f"--impl: {name} needs {door.module}, which is not installed ({error})") from None
        if name == "onednn" and (reason := onednn.why_not()):
            raise BackendUnavailable(f"--impl: onednn: {reason}")
        return door.call
    if not colon:
        raise BackendUnavailable(f"--impl: expected one of {', '.join(names())}, got {name!r}")
    return users_function(name)
