"""How a broken rule becomes what C returns: a code, and a text for aclGetRecentErrMsg.

Inside ``ascend`` a rule that is broken raises `Refused`. The functions that C programs call are
written as Python: they raise, or return their values. One of the decorators here turns each into
its C form, which never raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from lngrad.ascend.acl.status import aclError, aclnnStatus
from lngrad.errors import LngradError

P = ParamSpec("P")
Result = TypeVar("Result")
Other = TypeVar("Other")
Status = TypeVar("Status", aclError, aclnnStatus)


class Refused(LngradError):
    """A rule of the host interfaces is broken. It never leaves ``ascend``.

    Attributes:
        code: What the C function returns.
        text: What aclGetRecentErrMsg returns: the argument, the rule, and what came.
    """

    def __init__(self, code: aclError | aclnnStatus, text: str):
        super().__init__(text)
        self.code, self.text = code, text


def invalid_param(text: str) -> Refused:
    """An argument of an aclrt function breaks a rule: ACL_ERROR_INVALID_PARAM."""
    return Refused(aclError.ACL_ERROR_INVALID_PARAM, text)


def invalid_argument(text: str) -> Refused:
    """An argument of an aclnn function breaks a rule: ACLNN_ERR_PARAM_INVALID."""
    return Refused(aclnnStatus.ACLNN_ERR_PARAM_INVALID, text)


def null_argument(text: str) -> Refused:
    """A required argument of an aclnn function is a null pointer: ACLNN_ERR_PARAM_NULLPTR."""
    return Refused(aclnnStatus.ACLNN_ERR_PARAM_NULLPTR, text)


class _Thread(threading.local):
    text: str | None = None


_thread = _Thread()


def aclGetRecentErrMsg() -> str | None:
    """Return the text of this thread's last error, and forget it. None: there was none since the
    last call.

    C: ``const char *aclGetRecentErrMsg()``
    """
    text, _thread.text = _thread.text, None
    return text


def report(refusal: Refused, kind: type[Status]) -> Status:
    """Keep the text of an error for this thread.

    Args:
        refusal: What was raised.
        kind: What the function returns: aclError or aclnnStatus. A code of the other kind means a
            wrong argument.

    Returns:
        The code.
    """
    _thread.text = refusal.text
    if isinstance(refusal.code, kind):
        return refusal.code
    return kind(aclError.ACL_ERROR_INVALID_PARAM if kind is aclError else aclnnStatus.ACLNN_ERR_PARAM_INVALID)


def returns_status(kind: type[Status]) -> Callable[[Callable[P, None]], Callable[P, Status]]:
    """Give a function without results its C form: it returns ret."""
    success = kind(0)

    def decorate(function: Callable[P, None]) -> Callable[P, Status]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Status:
            try:
                function(*args, **kwargs)
            except Refused as refusal:
                return report(refusal, kind)
            return success

        return call

    return decorate


def returns_value(
    kind: type[Status], otherwise: Other
) -> Callable[[Callable[P, Result]], Callable[P, tuple[Result | Other, Status]]]:
    """Give a function with one result its C form: it returns (value, ret).

    Args:
        kind: aclError or aclnnStatus.
        otherwise: The value in the place of a result after an error.
    """
    success = kind(0)

    def decorate(function: Callable[P, Result]) -> Callable[P, tuple[Result | Other, Status]]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> tuple[Result | Other, Status]:
            try:
                return function(*args, **kwargs), success
            except Refused as refusal:
                return otherwise, report(refusal, kind)

        return call

    return decorate


def returns_pointer(function: Callable[P, Result]) -> Callable[P, Result | None]:
    """Give a function that returns a pointer in C that form: None, a null pointer, after an
    error.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result | None:
        try:
            return function(*args, **kwargs)
        except Refused as refusal:
            report(refusal, aclnnStatus)
            return None

    return call
