"""The parts of every function of the host interfaces: codes for broken rules, and handles.

Functions that C programs call are written as Python: they raise `StatusError`, or return their values. One of the decorators
here turns each into its C form, which never raises. A handle is what C programs have a pointer to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from lngrad.errors import LngradError
from lngrad_ascend.acl.enums import aclError, aclnnStatus

P = ParamSpec("P")
Result = TypeVar("Result")
Other = TypeVar("Other")
Status = TypeVar("Status", aclError, aclnnStatus)


class StatusError(LngradError):
    """A broken rule of the host interfaces: what the C function and aclGetRecentErrMsg return. It never leaves ``ascend``."""

    def __init__(self, code: aclError | aclnnStatus, text: str):
        super().__init__(text)
        self.code, self.text = code, text


def invalid_param(text: str) -> StatusError:
    """An argument of an aclrt function breaks a rule: ACL_ERROR_INVALID_PARAM."""
    return StatusError(aclError.ACL_ERROR_INVALID_PARAM, text)


def invalid_argument(text: str) -> StatusError:
    """An argument of an aclnn function breaks a rule: ACLNN_ERR_PARAM_INVALID."""
    return StatusError(aclnnStatus.ACLNN_ERR_PARAM_INVALID, text)


def null_argument(text: str) -> StatusError:
    """A required argument of an aclnn function is a null pointer: ACLNN_ERR_PARAM_NULLPTR."""
    return StatusError(aclnnStatus.ACLNN_ERR_PARAM_NULLPTR, text)


class _Thread(threading.local):
    text: str | None = None


_thread = _Thread()


def aclGetRecentErrMsg() -> str | None:
    """Return the text of this thread's last error, and forget it; None if there was none since."""
    text, _thread.text = _thread.text, None
    return text


def report(error: StatusError, kind: type[Status]) -> Status:
    """Keep an error's text for this thread, return its code: one of the other kind means a wrong argument."""
    _thread.text = error.text
    if isinstance(error.code, kind):
        return error.code
    return kind["ACL_ERROR_INVALID_PARAM" if kind is aclError else "ACLNN_ERR_PARAM_INVALID"]


def returns_status(kind: type[Status]) -> Callable[[Callable[P, None]], Callable[P, Status]]:
    """Give a function without results its C form: it returns ret."""
    success = kind(0)

    def decorate(function: Callable[P, None]) -> Callable[P, Status]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Status:
            try:
                function(*args, **kwargs)
            except StatusError as error:
                return report(error, kind)
            return success

        return call

    return decorate


returns_aclError = returns_status(aclError)
returns_aclnnStatus = returns_status(aclnnStatus)


def returns_value(
    kind: type[Status], otherwise: Other
) -> Callable[[Callable[P, Result]], Callable[P, tuple[Result | Other, Status]]]:
    """Give a function with one result its C form: (value, ret), with `otherwise` for the value after an error."""
    success = kind(0)

    def decorate(function: Callable[P, Result]) -> Callable[P, tuple[Result | Other, Status]]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> tuple[Result | Other, Status]:
            try:
                return function(*args, **kwargs), success
            except StatusError as error:
                return otherwise, report(error, kind)

        return call

    return decorate


def returns_pointer(function: Callable[P, Result]) -> Callable[P, Result | None]:
    """Give a function that returns a pointer in C that form: None, a null pointer, after an error."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result | None:
        try:
            return function(*args, **kwargs)
        except StatusError as error:
            report(error, aclnnStatus)
            return None

    return call


Function = TypeVar("Function", bound=Callable[..., object])


def named(function: Function, name: str, text: str) -> Function:
    """Give a function that is made like others its name and its documentation."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


Value = TypeVar("Value")


class Handle:
    """Base of everything that is created and destroyed. A destroyed one is no longer `alive`, and refused wherever it comes."""

    __slots__ = ("__weakref__", "alive")

    def __init__(self) -> None:
        self.alive = True


AnyHandle = TypeVar("AnyHandle", bound=Handle)


class ValueArray(Handle, Generic[Value]):
    """A handle of copied values."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[Value, ...]):
        super().__init__()
        self.values = values


def check_handle(handle: object, kind: type[AnyHandle], name: str) -> AnyHandle:
    """Return a handle that may be used, or raise StatusError: null pointers ACLNN_ERR_PARAM_NULLPTR, others …_INVALID."""
    if handle is None:
        raise null_argument(f"{name}: expected an {kind.__name__}, got a null pointer")
    if not isinstance(handle, kind):
        raise invalid_argument(f"{name}: expected an {kind.__name__}, got {type(handle).__name__}")
    if not handle.alive:
        raise invalid_argument(f"{name}: expected a living {kind.__name__}, got a destroyed one")
    return handle


def destroy(handle: object, kind: type[Handle], name: str) -> None:
    """Destroy a handle, and the handles in it; a null pointer is fine, one that is destroyed already is not."""
    if handle is not None:
        check_handle(handle, kind, name).alive = False
        for member in getattr(handle, "values", ()):
            if isinstance(member, Handle):
                member.alive = False


def not_supported(function: str) -> aclError:
    """Return ACL_ERROR_API_NOT_SUPPORT, and leave a text for aclGetRecentErrMsg that names the function."""
    text = f"{function}: expected a device, which this host is not"
    return report(StatusError(aclError.ACL_ERROR_API_NOT_SUPPORT, text), aclError)


def aclDumpOpTensors(
    opType: str, opName: str, tensors: object, inputTensorNum: int, outputTensorNum: int, stream: object
) -> aclError:
    """Not supported: ACL_ERROR_API_NOT_SUPPORT. CANN: writes tensors to a profiler's dump files."""
    return not_supported("aclDumpOpTensors")
