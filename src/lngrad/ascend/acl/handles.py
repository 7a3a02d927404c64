"""Handles: what C programs have a pointer to, and here knows when it has been destroyed."""

from __future__ import annotations

from typing import Generic, TypeVar

from lngrad.ascend.acl.refusals import invalid_argument, null_argument

Value = TypeVar("Value")


class Handle:
    """Base of everything that is created and destroyed.

    Attributes:
        alive: False once it is destroyed. A destroyed handle is refused wherever it comes.
    """

    __slots__ = ("__weakref__", "alive")

    def __init__(self) -> None:
        self.alive = True


AnyHandle = TypeVar("AnyHandle", bound=Handle)


class Array(Handle, Generic[Value]):
    """A handle of copied values."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[Value, ...]):
        super().__init__()
        self.values = values


def check_handle(handle: object, kind: type[AnyHandle], name: str) -> AnyHandle:
    """Return a handle that may be used.

    Args:
        handle: What a caller passed.
        kind: The class it must be of.
        name: The argument's name, for the text.

    Raises:
        Refused: A null pointer (ACLNN_ERR_PARAM_NULLPTR), another object or a destroyed handle
            (…_INVALID).
    """
    if handle is None:
        raise null_argument(f"{name}: expected an {kind.__name__}, got a null pointer")
    if not isinstance(handle, kind):
        raise invalid_argument(f"{name}: expected an {kind.__name__}, got {type(handle).__name__}")
    if not handle.alive:
        raise invalid_argument(f"{name}: expected a living {kind.__name__}, got a destroyed one")
    return handle


def destroy(handle: object, kind: type[AnyHandle], name: str) -> None:
    """Destroy a handle; a null pointer is fine.

    Raises:
        Refused: Another object, or a handle that is destroyed already.
    """
    if handle is not None:
        check_handle(handle, kind, name).alive = False
