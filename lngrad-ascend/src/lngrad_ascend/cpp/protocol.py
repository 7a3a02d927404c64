"""What C++ and Python call the same thing: the numbers of operations, types, pipes and events.

They are written once, in Python; ``numbers.h`` is made from here, so that a header and the bridge can't disagree.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import cache

from lngrad_ascend.device.descriptors import PACKED
from lngrad_ascend.device.numerics import CPP_NAMES
from lngrad_ascend.device.operations import OPERATIONS, Operands
from lngrad_ascend.device.pipes import HardEvent, pipe_t
from lngrad_ascend.device.vector_function import Rule

# What a header can ask for, apart from vector instructions; a vector instruction has its place in OPERATIONS.
# Numbers stay, for programs that were compiled before: nothing sends REDUCE_SUM_REPEAT any more.
Op = IntEnum(
    "Op",
    "BLOCK_IDX BLOCK_NUM TILING_KEY PIPE_NEW PIPE_RESET PIPE_INIT_QUEUE PIPE_INIT_BUFFER EVENT_ALLOC "
    "EVENT_RELEASE EVENT_FETCH QUEUE_ALLOC QUEUE_ENQUE QUEUE_DEQUE QUEUE_FREE QUEUE_VACANT QUEUE_COUNT QUEUE_IDLE "
    "QUEUE_FREE_EVENTS BUFFER_GET BUFFER_GET_OFFSET LOCAL_GET LOCAL_SET LOCAL_ADDRESS LOCAL_SET_SIZE GLOBAL_GET "
    "GLOBAL_SET COPY_IN COPY_OUT COPY_LOCAL COPY_IN_BLOCKS COPY_OUT_BLOCKS COPY_LOCAL_BLOCKS PAD_IN PAD_OUT "
    "REDUCE_SUM_REPEAT TRANS_DATA_TO_5HD SET_FLAG WAIT_FLAG PIPE_BARRIER SYNC_ALL CROSS_SET_FLAG CROSS_WAIT_FLAG "
    "ATOMIC_ADD ATOMIC_NONE INIT_OUTPUT USER_WORKSPACE LAYER_NORM LAYER_NORM_RSTD LAYER_NORM_GRAD "
    "LAYER_NORM_GRAD_BETA SET_TILING_KEY GM_ALLOC GM_FREE RUN_KERNEL GLOBAL_READ ACCUMULATED DEQ_SCALE "
    "BROADCAST TRANSPOSE GATHER_MASK LOCAL_AT LOCAL_OF ASK_HOST LIBRARY IB_SET IB_WAIT ATOMIC_MAX ATOMIC_MIN "
    "PAD_VALUE UB_BYTES SCALAR_ATOMIC MUTEX_LOCK MUTEX_UNLOCK POP_STACK CACHE_CLEAN POOL_NEW POOL_INIT LOOP_MODE "
    "COPY_DIMENSIONS CACHE_REFRESH VECTOR_BEGIN VECTOR_FUNCTION VECTOR_RULE",
    start=1000,
)


# Of kernel_type.h, in its order; there is no 5. An unknown name is 0 in `#if`, and so would be FLOAT.
_DATA_TYPES = (
    "FLOAT FLOAT16 INT8 INT32 UINT8 _ INT16 UINT16 UINT32 INT64 UINT64 DOUBLE BOOL STRING DUAL_SUB_INT8 DUAL_SUB_UINT8 "
    "COMPLEX64 COMPLEX128 QINT8 QINT16 QINT32 QUINT8 QUINT16 RESOURCE STRING_REF DUAL VARIANT BF16 UNDEFINED INT4 UINT1 "
    "INT2 UINT2 COMPLEX32 HIFLOAT8 FLOAT8_E5M2 FLOAT8_E4M3FN FLOAT8_E8M0 FLOAT6_E3M2 FLOAT6_E2M3 FLOAT4_E2M1 FLOAT4_E1M2 MAX"
)
DATA_TYPES = {name: number for number, name in enumerate(_DATA_TYPES.split()) if name != "_"}


def numbers_header() -> str:
    """The text of ``lngrad/numbers.h``."""
    operations = [(operation.name, code) for code, operation in enumerate(OPERATIONS)]
    operations += [(op.name, op.value) for op in Op]
    types = [(name.removesuffix("_t").upper(), code) for code, name in enumerate(CPP_NAMES)]
    lists: dict[str, list[str]] = {}
    for operation in OPERATIONS:
        form = operation.operands.name
        mixed = "MIXED_" if operation.mixed and operation.operands in (Operands.BINARY, Operands.SCALAR) else ""
        if operation.groups != 1:  # their mask comes behind repeatTime
            form = "GROUP_REDUCE"
        lists.setdefault(mixed + form, []).append(f"X({operation.name})")
    forms = "\n".join(f"#define LNGRAD_{form}_INSTRUCTIONS(X) {' '.join(names)}" for form, names in lists.items())
    own = "".join(f"#undef DT_{name}\n" for name in DATA_TYPES)
    members = "".join(f"#ifndef DT_{name}\n    DT_{name} = {number},\n#endif\n" for name, number in DATA_TYPES.items())
    refused = "".join(f"template <class T> int operator{sign}(T, DataType) = delete;\n" for sign in "-*/%")
    refused += "".join(f"int operator{sign}(DataType) = delete;\n" for sign in "-~!")
    names = "".join(
        f"#ifdef LNGRAD_TYPE_MACROS\n#define DT_{name} LNGRAD_DT + {number}\n#elif !defined(DT_{name})\nusing ge::DT_{name};\n"
        "#endif\n"
        for name, number in DATA_TYPES.items()
    )
    return f"""// The numbers that the simulator gives to operations, types, pipes and events.
// Written from lngrad_ascend.cpp.protocol; change them there.
#ifndef LNGRAD_NUMBERS_H
#define LNGRAD_NUMBERS_H

#include <cstdint>

namespace lngrad {{

{_enum("enum class Op : int32_t", operations)}

{_enum("enum class Type : int32_t", types)}

// What code with registers breaks.
{_enum("enum class Rule : int32_t", ((rule.name, rule.value) for rule in Rule))}

// The instructions of each form, for vector.h.
{forms}

}} // namespace lngrad

// The numbers of types, which the operator build gives kernels as ORIG_DTYPE_X. There they are macros, whatever macros of
// its own a test has: in #if an unknown LNGRAD_DT is 0, and ge::DT_FLOAT16 is ge::LNGRAD_DT + 1, a DataType.
#ifdef LNGRAD_TYPE_MACROS
{own}#endif
namespace ge {{
enum DataType : int {{
    LNGRAD_DT,
{members}}};
constexpr DataType operator+(DataType type, int number) {{ return DataType(int(type) + number); }}
#ifdef LNGRAD_TYPE_MACROS
{refused}#endif
}} // namespace ge
using ge::LNGRAD_DT;
{names}
{_enum("enum pipe_t", ((pipe.name, pipe.value) for pipe in pipe_t))}

namespace AscendC {{

{_enum("enum class HardEvent : uint8_t", ((event.name, event.value) for event in HardEvent))}

}} // namespace AscendC

#endif
"""


def _enum(head: str, members: Iterable[tuple[str, int]]) -> str:
    return "\n".join([f"{head} {{", *(f"    {name} = {value}," for name, value in members), "};"])


# The layout of lngrad::Call in call.h: op, line, file, four handles, how many locals and integers are used (a byte
# each), the scalar, the result; the integers; the locals, (handle, type, start, bytes).
_HEAD = struct.Struct("<iiQiiiiqdq")
_START = struct.Struct(f"{_HEAD.format}{PACKED.size}s")
_LOCAL = struct.Struct("<iiqq")
_INTEGERS, _LOCALS = 40, 8
_LOCALS_AT = _HEAD.size + 8 * _INTEGERS
CALL_BYTES = _LOCALS_AT + _LOCALS * _LOCAL.size

RANGE = struct.Struct("<qqQq")  # lngrad::Range: first byte, byte behind the last, the address of the file's name, line

_result = struct.Struct("<dq")
_integers = [struct.Struct(f"<{count}q") for count in range(_INTEGERS + 1)]
_locals = [struct.Struct(f"<{'24s' * count}") for count in range(_LOCALS + 1)]

# op, line, the address of the file's name, dst, src0, src1, src2, what is used, the scalar, the last result, a descriptor
read_head = _START.unpack_from
read_local = _LOCAL.unpack  # handle, code of the type, first byte, bytes


@cache
def file_name(address: int) -> str:
    """Return the name of a file, a constant of the library."""
    return ctypes.string_at(address).decode(errors="replace")


def read_arguments(record: memoryview, used: int) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Read the tensors, each as ``read_local`` takes it, and the integers."""
    tensors = _locals[used & 255].unpack_from(record, _LOCALS_AT) if used & 255 else ()
    return tensors, _integers[used >> 8].unpack_from(record, _HEAD.size)


def write_result(record: memoryview, integer: int, real: float = 0.0) -> None:
    """Reply with a number."""
    _result.pack_into(record, _HEAD.size - _result.size, real, integer)


def write_tensor(record: memoryview, handle: int, code: int, start: int, nbytes: int) -> None:
    """Reply with a tensor: its handle, the code of its type, its first byte and its bytes."""
    _LOCAL.pack_into(record, _LOCALS_AT, handle, code, start, nbytes)
