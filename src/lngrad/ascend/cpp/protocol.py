"""What C++ and Python call the same thing: the numbers of operations, types, pipes and events.

They are written once, in Python; ``numbers.h`` is made from here, so that a header and the bridge
can't disagree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from lngrad.ascend.device.element_types import CPP_NAMES
from lngrad.ascend.device.operations import OPERATIONS
from lngrad.ascend.device.pipes import HardEvent, pipe_t
from lngrad.ascend.device.plan import PACKED

# A vector instruction has the number that the device gives it; everything else comes behind.
_OTHERS = 1000


class Op(IntEnum):
    """What a header can ask for, apart from vector instructions."""

    BLOCK_IDX = _OTHERS
    BLOCK_NUM = _OTHERS + 1
    TILING_KEY = _OTHERS + 2
    PIPE_NEW = _OTHERS + 3
    PIPE_RESET = _OTHERS + 4
    PIPE_INIT_QUEUE = _OTHERS + 5
    PIPE_INIT_BUFFER = _OTHERS + 6
    EVENT_ALLOC = _OTHERS + 7
    EVENT_RELEASE = _OTHERS + 8
    EVENT_FETCH = _OTHERS + 9
    QUEUE_ALLOC = _OTHERS + 10
    QUEUE_ENQUE = _OTHERS + 11
    QUEUE_DEQUE = _OTHERS + 12
    QUEUE_FREE = _OTHERS + 13
    QUEUE_VACANT = _OTHERS + 14
    QUEUE_COUNT = _OTHERS + 15
    QUEUE_IDLE = _OTHERS + 16
    QUEUE_FREE_EVENTS = _OTHERS + 17
    BUFFER_GET = _OTHERS + 18
    BUFFER_GET_OFFSET = _OTHERS + 19
    LOCAL_GET = _OTHERS + 20
    LOCAL_SET = _OTHERS + 21
    LOCAL_ADDRESS = _OTHERS + 22
    LOCAL_SET_SIZE = _OTHERS + 23
    GLOBAL_GET = _OTHERS + 24
    GLOBAL_SET = _OTHERS + 25
    COPY_IN = _OTHERS + 26
    COPY_OUT = _OTHERS + 27
    COPY_LOCAL = _OTHERS + 28
    COPY_IN_BLOCKS = _OTHERS + 29
    COPY_OUT_BLOCKS = _OTHERS + 30
    COPY_LOCAL_BLOCKS = _OTHERS + 31
    PAD_IN = _OTHERS + 32
    PAD_OUT = _OTHERS + 33
    REDUCE_SUM_REPEAT = _OTHERS + 34
    TRANS_DATA_TO_5HD = _OTHERS + 35
    SET_FLAG = _OTHERS + 36
    WAIT_FLAG = _OTHERS + 37
    PIPE_BARRIER = _OTHERS + 38
    SYNC_ALL = _OTHERS + 39
    CROSS_SET_FLAG = _OTHERS + 40
    CROSS_WAIT_FLAG = _OTHERS + 41
    ATOMIC_ADD = _OTHERS + 42
    ATOMIC_NONE = _OTHERS + 43
    INIT_OUTPUT = _OTHERS + 44
    USER_WORKSPACE = _OTHERS + 45
    LAYER_NORM = _OTHERS + 46
    LAYER_NORM_RSTD = _OTHERS + 47
    LAYER_NORM_GRAD = _OTHERS + 48
    LAYER_NORM_GRAD_BETA = _OTHERS + 49
    SET_TILING_KEY = _OTHERS + 50
    GM_ALLOC = _OTHERS + 51
    GM_FREE = _OTHERS + 52
    RUN_KERNEL = _OTHERS + 53
    GLOBAL_READ = _OTHERS + 54


def numbers_header() -> str:
    """The text of ``lngrad/numbers.h``."""
    operations = [(operation.name, code) for code, operation in enumerate(OPERATIONS)]
    operations += [(op.name, op.value) for op in Op]
    types = [(name.removesuffix("_t").upper(), code) for code, name in enumerate(CPP_NAMES)]
    return f"""// The numbers that the simulator gives to operations, types, pipes and events.
// Written from lngrad.ascend.cpp.protocol; change them there.
#ifndef LNGRAD_NUMBERS_H
#define LNGRAD_NUMBERS_H

#include <cstdint>

namespace lngrad {{

{_enum("enum class Op : int32_t", operations)}

{_enum("enum class Type : int32_t", types)}

}} // namespace lngrad

{_enum("enum pipe_t", ((pipe.name, pipe.value) for pipe in pipe_t))}

namespace AscendC {{

{_enum("enum class HardEvent : uint8_t", ((event.name, event.value) for event in HardEvent))}

}} // namespace AscendC

#endif
"""


def _enum(head: str, members: Iterable[tuple[str, int]]) -> str:
    return "\n".join([f"{head} {{", *(f"    {name} = {value}," for name, value in members), "};"])


# The layout of lngrad::Call in call.h: op, line, file, three handles, how many locals are used, the
# scalar, the result; the integers; how many of them are used; the locals, (handle, type, start, bytes).
_HEAD = struct.Struct("<iiQiiiidq")
_LOCAL = struct.Struct("<iiqq")
_INTEGERS, _LOCALS = 40, 8
_DESCRIPTOR = slice(_HEAD.size, _HEAD.size + PACKED.size)
_USED_AT = _HEAD.size + 8 * _INTEGERS
_LOCALS_AT = _USED_AT + 8
_REAL_AT = _HEAD.size - 16
CALL_BYTES = _LOCALS_AT + _LOCALS * _LOCAL.size

_used = struct.Struct("<q")
_answer = struct.Struct("<dq")
_locals = [struct.Struct("<" + "iiqq" * count) for count in range(_LOCALS + 1)]
_integers = [struct.Struct(f"<{count}q") for count in range(_INTEGERS + 1)]


class Request(NamedTuple):
    """What C++ asks for.

    Attributes:
        op: An Op or the number of a vector instruction.
        line, file: Where the kernel asks; ``file`` is the address of the file's name.
        dst, src0, src1: Handles of a vector instruction's tensors.
        locals_used: How many tensors follow, for the others.
        real: The scalar.
        result: What the last answer was.
    """

    op: int
    line: int
    file: int
    dst: int
    src0: int
    src1: int
    locals_used: int
    real: float
    result: int


def read_request(record: memoryview) -> Request:
    """Read the head of a call."""
    return Request._make(_HEAD.unpack_from(record))


def read_descriptor(record: memoryview) -> bytes:
    """Read a vector instruction's descriptor, as ``Core.issue`` takes it."""
    return bytes(record[_DESCRIPTOR])


def read_arguments(record: memoryview, locals_used: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read the tensors, four numbers each, and the integers."""
    (integers_used,) = _used.unpack_from(record, _USED_AT)
    return _locals[locals_used].unpack_from(record, _LOCALS_AT), _integers[integers_used].unpack_from(
        record, _HEAD.size
    )


def write_result(record: memoryview, integer: int, real: float = 0.0) -> None:
    """Answer with a number."""
    _answer.pack_into(record, _REAL_AT, real, integer)


def write_tensor(record: memoryview, handle: int, code: int, start: int, nbytes: int) -> None:
    """Answer with a tensor: its handle, the code of its type, its first byte and its bytes."""
    _LOCAL.pack_into(record, _LOCALS_AT, handle, code, start, nbytes)
