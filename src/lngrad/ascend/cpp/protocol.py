"""What C++ and Python call the same thing: the numbers of operations, types, pipes and events.

They are written once, in Python; ``numbers.h`` is made from here, so that a header and the bridge
can't disagree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

from lngrad.ascend.device.element_types import CPP_NAMES
from lngrad.ascend.device.operations import OPERATIONS
from lngrad.ascend.device.pipes import HardEvent, pipe_t

__all__ = ["CALL_BYTES", "Op", "numbers_header", "read_call", "write_result", "write_tensor"]

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


# The layout of lngrad::Call in call.h: op, line, file, how many locals and integers are used; the
# locals; the integers; the scalar; the result. A local is (handle, type, start, bytes).
_HEAD = struct.Struct("<iiQii")
_LOCAL = struct.Struct("<iiqq")
_LOCALS, _INTEGERS = 8, 40
_INTEGERS_AT = _HEAD.size + _LOCALS * _LOCAL.size
_REAL_AT = _INTEGERS_AT + 8 * _INTEGERS
_TAIL = struct.Struct("<dq")
_REAL = struct.Struct("<d")
_RESULT = struct.Struct("<q")
CALL_BYTES = _REAL_AT + _TAIL.size

_locals_of = [struct.Struct("<" + "iiqq" * count) for count in range(_LOCALS + 1)]
_integers_of = [struct.Struct(f"<{count}q") for count in range(_INTEGERS + 1)]

Local = tuple[int, int, int, int]


def read_call(memory: memoryview) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], float]:
    """Read what C++ asks for.

    Returns:
        op; line; address of the file's name; the locals, four numbers each; the integers; the scalar.
    """
    op, line, file, locals_used, integers_used = _HEAD.unpack_from(memory)
    operands = _locals_of[locals_used].unpack_from(memory, _HEAD.size)
    integers = _integers_of[integers_used].unpack_from(memory, _INTEGERS_AT)
    return op, line, file, operands, integers, _REAL.unpack_from(memory, _REAL_AT)[0]


def write_result(memory: memoryview, integer: int, real: float = 0.0) -> None:
    """Answer with a number."""
    _TAIL.pack_into(memory, _REAL_AT, real, integer)


def write_tensor(memory: memoryview, tensor: Local) -> None:
    """Answer with a tensor: (handle, type, start, bytes)."""
    _LOCAL.pack_into(memory, _HEAD.size, *tensor)
