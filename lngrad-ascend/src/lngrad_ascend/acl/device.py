"""Whether the host interfaces are initialised; the device; contexts, and the switches of a context or the process.

There is one device, number 0, made of host memory. CANN: streams and memory belong to contexts. Here all contexts
share the one device, so that a context is a handle that is current in some thread, and the owner of its switches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakSet

from lngrad.support.locks import fork_safe_lock
from lngrad_ascend import soc
from lngrad_ascend.acl.enums import aclError, aclrtRunMode, aclSysParamOpt
from lngrad_ascend.acl.interface import (
    Handle,
    StatusError,
    check_handle,
    invalid_param,
    returns_aclError,
    returns_value,
)

DEVICES = 1
VERSION = (1, 17, 0)  # of acl.h whose declarations these are


class _State:
    """The state of the process: initialisations and users of the device."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self.initialised = 0  # how many aclInit are not yet matched by aclFinalizeReference
        self.finalised = False
        self.device_users = 0  # how many aclrtSetDevice are not yet matched by aclrtResetDevice
        self.release: dict[str, Callable[[], None]] = {}  # what gives "streams" and "memory" back

    def release_device(self) -> None:
        self.release["streams"]()  # first, as their tasks use the memory
        for context in list(_contexts):
            context.alive = False
        _default.clear()
        _process_switches.clear()
        self.release["memory"]()
        self.device_users = 0


_state = _State()


def on_release(resource: str, release: Callable[[], None]) -> None:
    """Have what belongs to the device, "streams" or "memory", released with it."""
    _state.release[resource] = release


def require_device(function: str, code: aclError = aclError.ACL_ERROR_UNINITIALIZE) -> None:
    """Refuse a call before aclrtSetDevice: raise StatusError with the code."""
    if not _state.device_users:
        raise StatusError(code, f"{function}: expected aclrtSetDevice to be called before")


@returns_aclError
def aclInit(configPath: str | None = None) -> None:
    """Initialise the host interfaces.

    Args:
        configPath: Ignored, as there is nothing to configure. CANN: a JSON file, read once.

    Returns:
        ACL_ERROR_REPEAT_INITIALIZE from the second call on. It is harmless: each call counts, and
        aclFinalizeReference counts them down. As in CANN's runtime.
    """
    with _state.lock:
        _state.initialised += 1
        if _state.initialised > 1:
            raise StatusError(
                aclError.ACL_ERROR_REPEAT_INITIALIZE, "aclInit: expected one call, but it was called before"
            )
        _state.finalised = False


@returns_aclError
def aclFinalize() -> None:
    """Wait for all streams, then release them, all device memory and the device, however often aclInit was called."""
    with _state.lock:
        if not _state.finalised and not _state.initialised:
            raise StatusError(aclError.ACL_ERROR_UNINITIALIZE, "aclFinalize: expected aclInit to be called before")
        _finalize("aclFinalize")


@returns_value(aclError, 0)
def aclFinalizeReference() -> int:
    """Undo one aclInit; the last one releases everything, as aclFinalize. Returns (calls left, ret)."""
    with _state.lock:
        if _state.initialised > 1:
            _state.initialised -= 1
        else:
            _finalize("aclFinalizeReference")
        return _state.initialised


def _finalize(function: str) -> None:
    if not _state.initialised:
        raise StatusError(aclError.ACL_ERROR_REPEAT_FINALIZE, f"{function}: expected one call after aclInit")
    _state.release_device()
    _state.initialised, _state.finalised = 0, True


@returns_aclError
def aclrtSetDevice(deviceId: int) -> None:
    """Use a device. CANN: for this thread; here for the process, as there is one device.

    aclInit may be left out, as samples of the Ascend C kit do.
    """
    set_device("aclrtSetDevice", deviceId)


def set_device(function: str, deviceId: int) -> None:
    """Count one more user of the device. Raises StatusError where there is none."""
    with _state.lock:
        _check_device(deviceId)
        _state.device_users += 1


@returns_aclError
def aclrtResetDevice(deviceId: int) -> None:
    """Undo one aclrtSetDevice; the last one waits for all streams, and releases them and all device memory."""
    _reset("aclrtResetDevice", deviceId, force=False)


@returns_aclError
def aclrtResetDeviceForce(deviceId: int) -> None:
    """Wait for all streams, then release them and all device memory, however often the device was set."""
    _reset("aclrtResetDeviceForce", deviceId, force=True)


def _reset(function: str, deviceId: int, force: bool) -> None:
    with _state.lock:
        _check_device(deviceId)
        require_device(function)
        if force or _state.device_users == 1:
            _state.release_device()
        else:
            _state.device_users -= 1


@returns_value(aclError, 0)
def aclrtGetDevice() -> int:
    """Return (the device that is set, ret)."""
    require_device("aclrtGetDevice")
    return 0


@returns_value(aclError, 0)
def aclrtGetDeviceCount() -> int:
    """Return (how many devices there are, ret)."""
    return DEVICES


@returns_value(aclError, aclrtRunMode.ACL_HOST)
def aclrtGetRunMode() -> aclrtRunMode:
    """Return (ACL_HOST, ret): programs run on the host, and copy to the device."""
    return aclrtRunMode.ACL_HOST


def aclrtGetVersion() -> tuple[int, int, int, aclError]:
    """Return (major, minor, patch, ret): the version of acl.h whose declarations are followed."""
    return *VERSION, aclError.ACL_SUCCESS


def aclrtGetSocName() -> str:
    """Return the name of the SoC that this thread simulates."""
    return soc.current().soc.name


def _check_device(number: object) -> None:
    if type(number) is not int or not 0 <= number < DEVICES:
        raise StatusError(aclError.ACL_ERROR_INVALID_DEVICE, f"deviceId: expected 0 to {DEVICES - 1}, got {number!r}")


HIGHEST = {aclSysParamOpt.ACL_OPT_DETERMINISTIC: 3}  # off, deterministic, strongly consistent, consistent in batches


class aclrtContext(Handle):
    """A context of the device, with the switches that aclrtCtxSetSysParamOpt set."""

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


def _current() -> aclrtContext:
    if _thread.context is not None and _thread.context.alive:
        return _thread.context
    if not _default:
        _default.append(aclrtContext())
    return _default[0]


@returns_value(aclError, None)
def aclrtCreateContext(deviceId: int) -> aclrtContext:
    """Create a context and make it this thread's. Returns (context, ret)."""
    set_device("aclrtCreateContext", deviceId)
    context = _thread.context = aclrtContext()
    return context


@returns_aclError
def aclrtDestroyContext(context: aclrtContext) -> None:
    """Destroy a context. A thread whose context it was gets the default one."""
    check_handle(context, aclrtContext, "context").alive = False


@returns_aclError
def aclrtSetCurrentContext(context: aclrtContext) -> None:
    """Make a context this thread's."""
    _thread.context = check_handle(context, aclrtContext, "context")


@returns_value(aclError, None)
def aclrtGetCurrentContext() -> aclrtContext:
    """Return (this thread's context, ret). It is the device's default one where none was set.

    Returns:
        ACL_ERROR_RT_CONTEXT_NULL before aclrtSetDevice.
    """
    require_device("aclrtGetCurrentContext", aclError.ACL_ERROR_RT_CONTEXT_NULL)
    return _current()


@returns_aclError
def aclrtSetSysParamOpt(opt: int, value: int) -> None:
    """Set a switch for the process. It changes nothing here: results are the same in every run.

    Args:
        opt: Of aclSysParamOpt.
        value: 0 or 1; for ACL_OPT_DETERMINISTIC up to 3.
    """
    switch, number = _switch(opt, value)
    _process_switches[switch] = number


@returns_value(aclError, 0)
def aclrtGetSysParamOpt(opt: int) -> int:
    """Return (what aclrtSetSysParamOpt set, ret); ACL_ERROR_RT_SYSPARAMOPT_NOT_SET if it did not."""
    return _setting(_process_switches, opt)


@returns_aclError
def aclrtCtxSetSysParamOpt(opt: int, value: int) -> None:
    """Set a switch for this thread's context; see aclrtSetSysParamOpt."""
    switch, number = _switch(opt, value)
    require_device("aclrtCtxSetSysParamOpt")
    _current().switches[switch] = number


@returns_value(aclError, 0)
def aclrtCtxGetSysParamOpt(opt: int) -> int:
    """Return (what aclrtCtxSetSysParamOpt set, ret); ACL_ERROR_RT_SYSPARAMOPT_NOT_SET if it did not."""
    require_device("aclrtCtxGetSysParamOpt")
    return _setting(_current().switches, opt)


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
        raise StatusError(aclError.ACL_ERROR_RT_SYSPARAMOPT_NOT_SET, f"opt: expected {switch.name} to be set before")
    return switches[switch]
