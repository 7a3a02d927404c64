"""Contexts, and the switches that are kept per context or for the process.

CANN: streams and memory belong to contexts. Here all contexts share the one device, so that a
context is a handle that is current in some thread, and the owner of its switches.
"""

from __future__ import annotations

import threading
from weakref import WeakSet

from lngrad.ascend.acl.device import on_release, require_device, set_device
from lngrad.ascend.acl.enums import aclSysParamOpt
from lngrad.ascend.acl.handles import Handle, check_handle
from lngrad.ascend.acl.refusals import Refused, invalid_param, returns_status, returns_value
from lngrad.ascend.acl.status import aclError

HIGHEST = {aclSysParamOpt.ACL_OPT_DETERMINISTIC: 3}  # off, deterministic, strongly consistent, consistent in batches


class aclrtContext(Handle):
    """A context of the device.

    Attributes:
        switches: What aclrtCtxSetSysParamOpt set.
    """

    __slots__ = ("switches",)

    def __init__(self) -> None:
        super().__init__()
        self.switches: dict[aclSysParamOpt, int] = {}
        _contexts.add(self)


class _Thread(threading.local):
    context: aclrtContext | None = None


_contexts: WeakSet[aclrtContext] = WeakSet()
_thread = _Thread()
_default: list[aclrtContext] = []  # of the device, in threads that have set none: empty, or that one
_process_switches: dict[aclSysParamOpt, int] = {}


def _release_contexts() -> None:
    for context in list(_contexts):
        context.alive = False
    _default.clear()
    _process_switches.clear()


on_release("contexts", _release_contexts)


def _current(function: str) -> aclrtContext:
    require_device(function)
    if _thread.context is not None and _thread.context.alive:
        return _thread.context
    if not _default:
        _default.append(aclrtContext())
    return _default[0]


@returns_value(aclError, otherwise=None)
def aclrtCreateContext(deviceId: int) -> aclrtContext:
    """Create a context and make it this thread's. Returns (context, ret).

    C: ``aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)``
    """
    set_device("aclrtCreateContext", deviceId)
    context = _thread.context = aclrtContext()
    return context


@returns_status(aclError)
def aclrtDestroyContext(context: aclrtContext) -> None:
    """Destroy a context. A thread whose context it was gets the default one.

    C: ``aclError aclrtDestroyContext(aclrtContext context)``
    """
    check_handle(context, aclrtContext, "context").alive = False


@returns_status(aclError)
def aclrtSetCurrentContext(context: aclrtContext) -> None:
    """Make a context this thread's.

    C: ``aclError aclrtSetCurrentContext(aclrtContext context)``
    """
    _thread.context = check_handle(context, aclrtContext, "context")


@returns_value(aclError, otherwise=None)
def aclrtGetCurrentContext() -> aclrtContext:
    """Return (this thread's context, ret). It is the device's default one where none was set.

    Returns:
        ACL_ERROR_RT_CONTEXT_NULL before aclrtSetDevice.

    C: ``aclError aclrtGetCurrentContext(aclrtContext *context)``
    """
    try:
        return _current("aclrtGetCurrentContext")
    except Refused as refusal:
        raise Refused(aclError.ACL_ERROR_RT_CONTEXT_NULL, refusal.text) from None


@returns_status(aclError)
def aclrtSetSysParamOpt(opt: int, value: int) -> None:
    """Set a switch for the process. It changes nothing here: results are the same in every run
    anyway.

    Args:
        opt: Of aclSysParamOpt.
        value: 0 or 1; for ACL_OPT_DETERMINISTIC up to 3.

    C: ``aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value)``
    """
    switch, number = _switch(opt, value)
    _process_switches[switch] = number


@returns_value(aclError, otherwise=0)
def aclrtGetSysParamOpt(opt: int) -> int:
    """Return (what aclrtSetSysParamOpt set, ret); ACL_ERROR_RT_SYSPARAMOPT_NOT_SET if it did not.

    C: ``aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t *value)``
    """
    return _setting(_process_switches, opt)


@returns_status(aclError)
def aclrtCtxSetSysParamOpt(opt: int, value: int) -> None:
    """Set a switch for this thread's context; see aclrtSetSysParamOpt.

    C: ``aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)``
    """
    switch, number = _switch(opt, value)
    _current("aclrtCtxSetSysParamOpt").switches[switch] = number


@returns_value(aclError, otherwise=0)
def aclrtCtxGetSysParamOpt(opt: int) -> int:
    """Return (what aclrtCtxSetSysParamOpt set, ret); ACL_ERROR_RT_SYSPARAMOPT_NOT_SET if it did
    not.

    C: ``aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t *value)``
    """
    return _setting(_current("aclrtCtxGetSysParamOpt").switches, opt)


def _switch(opt: object, value: object) -> tuple[aclSysParamOpt, int]:
    if not isinstance(opt, int) or opt not in list(aclSysParamOpt):
        raise invalid_param(f"opt: expected one of aclSysParamOpt, got {opt!r}")
    switch = aclSysParamOpt(opt)
    highest = HIGHEST.get(switch, 1)
    if type(value) is not int or not 0 <= value <= highest:
        raise invalid_param(f"value: expected 0 to {highest} for {switch.name}, got {value!r}")
    return switch, value


def _setting(switches: dict[aclSysParamOpt, int], opt: object) -> int:
    switch, _ = _switch(opt, 0)
    if switch not in switches:
        raise Refused(aclError.ACL_ERROR_RT_SYSPARAMOPT_NOT_SET, f"opt: expected {switch.name} to be set before")
    return switches[switch]
