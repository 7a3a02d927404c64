"""From the words of a C call to a call of ``lngrad_ascend.acl`` or ``aclnn``, and from its results to words.

Nothing here knows a rule of an interface but those that exist in C alone: a result needs a place to go, and a pointer
must lead to memory. One `_Entry` is made for each function of the table.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lngrad_ascend import acl, aclnn
from lngrad_ascend.acl.interface import StatusError, invalid_param, null_argument, report
from lngrad_ascend.acl.memory import FIRST_ADDRESS
from lngrad_ascend.acl.tensor import NUMPY_DTYPES
from lngrad_ascend.prototypes import DEVICE_SIZES, FUNCTIONS, HANDLES, HOST_SIZES, REALS, Function, Kind, Parameter
from lngrad_ascend.sdk import graph_engine, pointers
from lngrad_ascend.sdk.pointers import Handles, NoSuchMemory

# The frame of a call: words that come, words that go back, numbers of an array, bytes of a text.
CALL_WORDS, RESULT_WORDS, LIST_WORDS, TEXT_BYTES = 16, 8, 32, 4096

DEVICE_SPAN = 1 << 42  # bytes of addresses that are taken for the device's
MAX_ELEMENTS = 1 << 20  # of a list; an array of dimensions, a mask, a list of tensors has a few

# How an element of a list lies in memory: the format of struct.
FORMATS = {"int64_t": "q", "float": "f", "bool": "?"} | dict.fromkeys(HANDLES, "q")

Words = list[int]
Reader = Callable[["_Call", int], Any]
Size = Callable[["_Call"], int]


class Reply(NamedTuple):
    """What goes back to C: the function's own result and what it writes through pointers, as words; a list; a text."""

    results: Words
    values: tuple[int, ...] = ()
    text: str | None = None


class _Call(NamedTuple):
    """One call under way."""

    words: Words
    handles: Handles
    used: list[tuple[int, Any]]  # handles that came with it


def entry_points(unified: bool) -> list[Callable[[Words], Reply]]:
    """Return all functions of the table over one set of handles; none raises. `unified`: host memory may be the device's."""
    handles = Handles()
    return [_Entry(function, handles, unified).call for function in FUNCTIONS.values()]


def implementation(function: Function) -> Callable[..., Any] | None:
    """The Python function behind a C function; None for one that is not supported."""
    name = function.name[0].lower() + function.name[1:]  # AclSet… is the older spelling
    found = next((found for module in (acl, aclnn, graph_engine) if (found := getattr(module, name, None))), None)
    return found if callable(found) else None


class _Entry:
    """One function."""

    def __init__(self, function: Function, handles: Handles, unified: bool):
        self._function, self._handles = function, handles
        self._implementation = implementation(function)
        self._outs = [(at, parameter) for at, parameter in enumerate(function.parameters) if parameter.is_result]
        self._readers = [
            (at, _reader(function, parameter, at, unified))
            for at, parameter in enumerate(function.parameters)
            if parameter.kind is not Kind.LENGTH and not parameter.is_result
        ]

    def call(self, words: Words) -> Reply:
        try:
            return self._reply(_Call(words, self._handles, []))
        except Exception as reason:
            error = reason
            if not isinstance(error, StatusError):
                text = f"{self._function.name}: {type(reason).__name__}: {reason}"
                error = StatusError(acl.aclError.ACL_ERROR_INTERNAL_ERROR, text)
            report(error, acl.aclError)
            return Reply([int(error.code) if self._function.has_status else 0])

    def _reply(self, call: _Call) -> Reply:
        if self._implementation is None:
            ret = acl.not_supported(self._function.name)
            return Reply([int(ret) if self._function.has_status else 0])
        for at, parameter in self._outs:
            if call.words[at] == 0:
                refused = null_argument if self._function.result == "aclnnStatus" else invalid_param
                raise refused(f"{parameter.name}: expected where to write to, got a null pointer")
        result = self._implementation(*[read(call, call.words[at]) for at, read in self._readers])
        for number, thing in call.used:
            self._handles.forget_destroyed(number, thing)
        return self._results(result)

    def _results(self, result: Any) -> Reply:
        """Values first, ret last, as the Python functions return them; in C ret comes first."""
        function = self._function
        if function.result == "const char *":
            return Reply([int(result is not None)], text=result)
        if not function.has_status:
            return Reply([self._word(function.result.rstrip(" *"), result)])
        if not self._outs:
            return Reply([int(result)])
        *values, ret = result
        if ret != 0:
            return Reply([int(ret)])
        words, listed = [0], ()
        with_values = [parameter for _, parameter in self._outs if parameter.kind is not Kind.OUT_LENGTH]
        for parameter, value in zip(with_values, values, strict=True):
            if parameter.kind is Kind.OUT_LIST:
                listed = tuple(value)
                words += [0, len(listed)]
            else:
                words.append(self._word(parameter.base, value))
        return Reply(words, listed)

    def _word(self, base: str, value: Any) -> int:
        """A handle, a floating-point number, memory, or a number as a word."""
        if base in HANDLES:
            return self._handles.number_of(base, value)
        if base in REALS:
            return int(struct.unpack("=q", struct.pack("=d", value))[0])
        return int(value or 0) if value is None or isinstance(value, int) else int(value.ctypes.data)


def _reader(function: Function, parameter: Parameter, at: int, unified: bool) -> Reader:
    """Return the function that makes an argument of its word and the call's other words."""
    if parameter.kind is Kind.HANDLE:
        return _handle
    if unified and parameter.base == "aclrtMemcpyKind":
        # Where both memories are one, an address alone says which side of a copy it is.
        known = {int(kind): acl.aclrtMemcpyKind.ACL_MEMCPY_DEFAULT for kind in acl.aclrtMemcpyKind}
        return lambda call, word: known.get(word, _signed(word))
    if parameter.kind is Kind.NUMBER:
        return lambda call, word: word if parameter.base in ("size_t", "uint64_t") else _signed(word)
    if parameter.kind is Kind.REAL:
        return lambda call, word: struct.unpack("=d", struct.pack("=Q", word))[0]
    if parameter.kind is Kind.TEXT:
        return lambda call, word: None  # paths of configurations that change nothing, names of dumps
    if parameter.kind is Kind.LIST:
        return lambda call, word: _list(call, parameter, word, call.words[parameter.length])
    if function.name == "aclCreateScalar":
        return lambda call, word: _scalar(call, parameter.name, word, call.words[at + 1])
    host_size, device_size = (
        function.size_of(HOST_SIZES, parameter.name),
        function.size_of(DEVICE_SIZES, parameter.name),
    )
    if host_size is not None or (unified and device_size is not None):
        names = [parameter.name for parameter in function.parameters]
        size = _size_reader(names, host_size or device_size or "")
        used = _size_reader(names, "count") if host_size == "destMax" else size
        return lambda call, word: _memory(call, parameter, word, size, used)
    return lambda call, word: word or None


def _handle(call: _Call, number: int) -> Any:
    thing = call.handles.object_of(number)
    call.used.append((number, thing))
    return thing


def _list(call: _Call, parameter: Parameter, address: int, count: int) -> Any:
    """The values of an array; None for a null pointer with elements to it."""
    if address == 0:
        return None if count or parameter.name == "stride" else ()
    if count > MAX_ELEMENTS:
        raise invalid_param(f"{parameter.name}: expected at most {MAX_ELEMENTS} elements, got {count}")
    whole = f"={count}{FORMATS[parameter.base]}"
    values = struct.unpack(whole, _read(call, parameter.name, address, struct.calcsize(whole)))
    return [call.handles.object_of(value) for value in values] if parameter.base in HANDLES else values


def _read(call: _Call, name: str, address: int, nbytes: int) -> bytes:
    try:
        return pointers.read(address, nbytes)
    except NoSuchMemory:
        raise _no_memory(name, address, nbytes, "readable") from None


def _no_memory(name: str, address: int, nbytes: int, what: str) -> StatusError:
    return invalid_param(f"{name}: expected {nbytes} {what} bytes of host memory, got the pointer {address:#x}")


def _scalar(call: _Call, name: str, address: int, kind: int) -> Any:
    """The number that a pointer leads to; 0 for a type that acl refuses anyway."""
    if address == 0:
        return None
    dtype = NUMPY_DTYPES.get(kind)  # type: ignore[call-overload]  # any integer may come
    if dtype is None:
        return 0
    value = np.frombuffer(_read(call, name, address, dtype.itemsize), dtype)[0]
    return float(value) if dtype.kind == "V" else value.item()


def _memory(call: _Call, parameter: Parameter, address: int, size: Size, used: Size) -> Any:
    """A device address as it is; host memory as a buffer.

    Args:
        size, used: The bytes of the buffer, and how many of them the call reads or fills.
    """
    if address == 0 or FIRST_ADDRESS <= address < FIRST_ADDRESS + DEVICE_SPAN:
        return address or None
    nbytes, touched = size(call), used(call)
    writable = not parameter.type.startswith("const")
    try:
        return pointers.view(address, nbytes, touched, writable)
    except NoSuchMemory:
        raise _no_memory(parameter.name, address, nbytes, "writable" if writable else "readable") from None


def _size_reader(names: list[str], what: str) -> Size:
    """How many bytes a pointer to memory leads to."""
    at = names.index(what)
    if what == "storageDims":
        kind = names.index("dataType")

        def of_dims(call: _Call) -> int:
            count = min(call.words[at + 1], MAX_ELEMENTS)
            sizes = struct.unpack(f"={count}q", _read(call, what, call.words[at], 8 * count))
            return int(math.prod(sizes)) * acl.aclDataTypeSize(call.words[kind])

        return of_dims
    if what == "tensor":

        def of_tensor(call: _Call) -> int:
            tensor = call.handles.object_of(call.words[at])
            (sizes, ret), (kind, _) = acl.aclGetStorageShape(tensor), acl.aclGetDataType(tensor)
            return math.prod(sizes) * acl.aclDataTypeSize(kind) if ret == 0 else 0

        return of_tensor
    return lambda call: call.words[at]


def _signed(word: int) -> int:
    return word - (word >> 63 << 64)
