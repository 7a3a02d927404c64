"""Whether the host interfaces are initialised, and which device is set. One device, number 0, made of host memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from lngrad.ascend import soc
from lngrad.ascend.acl.codes import aclError
from lngrad.ascend.acl.errors import Refused, report

__all__ = [
    "aclFinalize",
    "aclInit",
    "aclrtGetDevice",
    "aclrtGetDeviceCount",
    "aclrtGetSocName",
    "aclrtResetDevice",
    "aclrtSetDevice",
    "on_release",
    "require_device",
]

DEVICES = 1

_lock = threading.RLock()
_initialised = False
_finalised = False
_device: int | None = None
_release: dict[str, Callable[[], None]] = {}


def on_release(what: Literal["streams", "memory"], release: Callable[[], None]) -> None:
    """Have what belongs to the device released with it: streams first, as their tasks use the memory."""
    _release[what] = release


def require_device(function: str) -> None:
    """Refuse a call before aclInit and aclrtSetDevice.

    Raises:
        Refused: with ACL_ERROR_UNINITIALIZE.
    """
    if _device is None:
        missing = "aclrtSetDevice" if _initialised else "aclInit and aclrtSetDevice"
        raise Refused(aclError.ACL_ERROR_UNINITIALIZE, f"{function}: expected {missing} to be called before")


def aclInit(configPath: str | None = None) -> aclError:
    """Initialise the host interfaces; once, until aclFinalize.

    C: ``aclError aclInit(const char *configPath)``. CANN: the configuration is read; here it is ignored, as there is
    nothing to configure.
    """
    global _initialised, _finalised
    with _lock:
        if _initialised:
            return report(aclError.ACL_ERROR_REPEAT_INITIALIZE, "aclInit: expected one call, but it was called before")
        _initialised, _finalised = True, False
    return aclError.ACL_SUCCESS


def aclFinalize() -> aclError:
    """Wait for all streams, then release them, all device memory and the device.

    C: ``aclError aclFinalize()``
    """
    global _initialised, _finalised
    with _lock:
        if not _initialised:
            if _finalised:
                return report(aclError.ACL_ERROR_REPEAT_FINALIZE, "aclFinalize: expected one call after aclInit")
            return report(aclError.ACL_ERROR_UNINITIALIZE, "aclFinalize: expected aclInit to be called before")
        _leave()
        _initialised, _finalised = False, True
    return aclError.ACL_SUCCESS


def aclrtSetDevice(deviceId: int) -> aclError:
    """Use a device. CANN: for this thread; here for the process, as there is one device.

    C: ``aclError aclrtSetDevice(int32_t deviceId)``
    """
    global _device
    with _lock:
        if not _initialised:
            return report(aclError.ACL_ERROR_UNINITIALIZE, "aclrtSetDevice: expected aclInit to be called before")
        if not _is_device(deviceId):
            return report(aclError.ACL_ERROR_INVALID_DEVICE, _device_text(deviceId))
        _device = deviceId
    return aclError.ACL_SUCCESS


def aclrtResetDevice(deviceId: int) -> aclError:
    """Wait for all streams, then release them and all device memory.

    C: ``aclError aclrtResetDevice(int32_t deviceId)``
    """
    with _lock:
        if not _is_device(deviceId):
            return report(aclError.ACL_ERROR_INVALID_DEVICE, _device_text(deviceId))
        if _device is None:
            return report(aclError.ACL_ERROR_UNINITIALIZE, "aclrtResetDevice: expected aclrtSetDevice before")
        _leave()
    return aclError.ACL_SUCCESS


def aclrtGetDevice() -> tuple[int, aclError]:
    """Return the device that is set.

    C: ``aclError aclrtGetDevice(int32_t *deviceId)``
    """
    if _device is None:
        return 0, report(aclError.ACL_ERROR_UNINITIALIZE, "aclrtGetDevice: expected aclrtSetDevice to be called before")
    return _device, aclError.ACL_SUCCESS


def aclrtGetDeviceCount() -> tuple[int, aclError]:
    """Return how many devices there are.

    C: ``aclError aclrtGetDeviceCount(uint32_t *count)``
    """
    return DEVICES, aclError.ACL_SUCCESS


def aclrtGetSocName() -> str:
    """Return the name of the SoC that this thread simulates.

    C: ``const char *aclrtGetSocName()``
    """
    return soc.current().soc.name


def _is_device(number: object) -> bool:
    return type(number) is int and 0 <= number < DEVICES


def _device_text(number: object) -> str:
    return f"deviceId: expected 0 to {DEVICES - 1}, got {number!r}"


def _leave() -> None:
    global _device
    for what in ("streams", "memory"):
        if what in _release:
            _release[what]()
    _device = None
