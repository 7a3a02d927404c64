"""Whether the host interfaces are initialised, and the device. There is one, number 0, made of host
memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from lngrad.ascend import soc
from lngrad.ascend.acl.enums import aclrtRunMode
from lngrad.ascend.acl.refusals import Refused, returns_status, returns_value
from lngrad.ascend.acl.status import aclError

DEVICES = 1
VERSION = (1, 17, 0)  # of acl.h whose declarations these are

Resource = Literal["streams", "contexts", "memory"]


class _State:
    """What the process has initialised."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.initialised = 0  # how many aclInit are not yet matched by aclFinalizeReference
        self.finalised = False
        self.device_users = 0  # how many aclrtSetDevice are not yet matched by aclrtResetDevice
        self.release: dict[Resource, Callable[[], None]] = {}

    def release_device(self) -> None:
        for resource in ("streams", "contexts", "memory"):
            if resource in self.release:
                self.release[resource]()
        self.device_users = 0


_state = _State()


def on_release(resource: Resource, release: Callable[[], None]) -> None:
    """Have what belongs to the device released with it: streams first, as their tasks use the
    memory.
    """
    _state.release[resource] = release


def require_device(function: str) -> None:
    """Refuse a call before aclInit and aclrtSetDevice.

    Raises:
        Refused: With ACL_ERROR_UNINITIALIZE.
    """
    if not _state.device_users:
        missing = "aclrtSetDevice" if _state.initialised else "aclInit and aclrtSetDevice"
        raise Refused(aclError.ACL_ERROR_UNINITIALIZE, f"{function}: expected {missing} to be called before")


@returns_status(aclError)
def aclInit(configPath: str | None = None) -> None:
    """Initialise the host interfaces.

    Args:
        configPath: Ignored, as there is nothing to configure. CANN: a JSON file, read once.

    Returns:
        ACL_ERROR_REPEAT_INITIALIZE from the second call on. It is harmless: each call counts, and
        aclFinalizeReference counts them down. As in CANN's runtime.

    C: ``aclError aclInit(const char *configPath)``
    """
    with _state.lock:
        _state.initialised += 1
        if _state.initialised > 1:
            raise Refused(aclError.ACL_ERROR_REPEAT_INITIALIZE, "aclInit: expected one call, but it was called before")
        _state.finalised = False


@returns_status(aclError)
def aclFinalize() -> None:
    """Wait for all streams, then release them, all device memory and the device, however often
    aclInit was called.

    C: ``aclError aclFinalize()``
    """
    with _state.lock:
        if not _state.initialised and not _state.finalised:
            raise Refused(aclError.ACL_ERROR_UNINITIALIZE, "aclFinalize: expected aclInit to be called before")
        _finalize("aclFinalize")


@returns_value(aclError, otherwise=0)
def aclFinalizeReference() -> int:
    """Undo one aclInit; the last one releases everything, as aclFinalize does. Returns (calls left,
    ret).

    C: ``aclError aclFinalizeReference(uint64_t *refCount)``
    """
    with _state.lock:
        if _state.initialised > 1:
            _state.initialised -= 1
        else:
            _finalize("aclFinalizeReference")
        return _state.initialised


def _finalize(function: str) -> None:
    if not _state.initialised:
        raise Refused(aclError.ACL_ERROR_REPEAT_FINALIZE, f"{function}: expected one call after aclInit")
    _state.release_device()
    _state.initialised, _state.finalised = 0, True


@returns_status(aclError)
def aclrtSetDevice(deviceId: int) -> None:
    """Use a device. CANN: for this thread; here for the process, as there is one device.

    C: ``aclError aclrtSetDevice(int32_t deviceId)``
    """
    set_device("aclrtSetDevice", deviceId)


def set_device(function: str, deviceId: int) -> None:
    """Count one more user of the device.

    Raises:
        Refused: There is no such device, or aclInit was not called.
    """
    with _state.lock:
        if not _state.initialised:
            raise Refused(aclError.ACL_ERROR_UNINITIALIZE, f"{function}: expected aclInit to be called before")
        _check_device(deviceId)
        _state.device_users += 1


@returns_status(aclError)
def aclrtResetDevice(deviceId: int) -> None:
    """Undo one aclrtSetDevice; the last one waits for all streams, then releases them and all
    device memory.

    C: ``aclError aclrtResetDevice(int32_t deviceId)``
    """
    with _state.lock:
        _check_device(deviceId)
        require_device("aclrtResetDevice")
        if _state.device_users > 1:
            _state.device_users -= 1
        else:
            _state.release_device()


@returns_status(aclError)
def aclrtResetDeviceForce(deviceId: int) -> None:
    """Wait for all streams, then release them and all device memory, however often aclrtSetDevice
    was called.

    C: ``aclError aclrtResetDeviceForce(int32_t deviceId)``
    """
    with _state.lock:
        _check_device(deviceId)
        require_device("aclrtResetDeviceForce")
        _state.release_device()


@returns_value(aclError, otherwise=0)
def aclrtGetDevice() -> int:
    """Return (the device that is set, ret).

    C: ``aclError aclrtGetDevice(int32_t *deviceId)``
    """
    require_device("aclrtGetDevice")
    return 0


@returns_value(aclError, otherwise=0)
def aclrtGetDeviceCount() -> int:
    """Return (how many devices there are, ret).

    C: ``aclError aclrtGetDeviceCount(uint32_t *count)``
    """
    return DEVICES


@returns_value(aclError, otherwise=aclrtRunMode.ACL_HOST)
def aclrtGetRunMode() -> aclrtRunMode:
    """Return (ACL_HOST, ret): programs run on the host, and copy to the device.

    C: ``aclError aclrtGetRunMode(aclrtRunMode *runMode)``
    """
    return aclrtRunMode.ACL_HOST


def aclrtGetVersion() -> tuple[int, int, int, aclError]:
    """Return (major, minor, patch, ret): the version of acl.h whose declarations are followed.

    C: ``aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t
    *patchVersion)``
    """
    return *VERSION, aclError.ACL_SUCCESS


def aclrtGetSocName() -> str:
    """Return the name of the SoC that this thread simulates.

    C: ``const char *aclrtGetSocName()``
    """
    return soc.current().soc.name


def _check_device(number: object) -> None:
    if type(number) is not int or not 0 <= number < DEVICES:
        raise Refused(aclError.ACL_ERROR_INVALID_DEVICE, f"deviceId: expected 0 to {DEVICES - 1}, got {number!r}")
