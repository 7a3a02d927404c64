"""The system's functions for kernels: block numbers, tiling, the workspace, filling global memory, scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from lngrad.errors import DtypeError
from lngrad_ascend.device.copies import Blocks, copy_global
from lngrad_ascend.device.core import running
from lngrad_ascend.device.descriptors import COUNT
from lngrad_ascend.device.global_memory import GlobalAddress
from lngrad_ascend.device.global_tensor import GlobalTensor
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.pipes import MTE3, V
from lngrad_ascend.device.pipes import S as SCALAR
from lngrad_ascend.device.races import ATOMIC
from lngrad_ascend.device.report import caller
from lngrad_ascend.device.unified_buffer import Allocation, State, TPosition
from lngrad_ascend.device.vector import DUPLICATE
from lngrad_ascend.faults import DeviceFault, TilingError
from lngrad_ascend.tiling.structs import TilingStruct

S = TypeVar("S", bound=TilingStruct)
ATOMIC_TYPES = tuple(np.dtype(t) for t in (np.int8, np.int16, np.float16, ml_dtypes.bfloat16, np.int32, np.float32))
BURST_BYTES = 255 * 32


class CacheLine:
    """The part of the data cache that DataCacheCleanAndInvalid takes."""

    SINGLE_CACHE_LINE = 0
    ENTIRE_DATA_CACHE = 1


def GetBlockIdx() -> int:
    """Return the index of the running block. C prototype: ``int64_t GetBlockIdx()``."""
    return running("GetBlockIdx").index


def GetBlockNum() -> int:
    """Return how many blocks were launched. C prototype: ``int64_t GetBlockNum()``."""
    return running("GetBlockNum").count


def GetSubBlockIdx() -> int:
    """Return 0: a launch has vector cores only. C prototype: ``int64_t GetSubBlockIdx()``."""
    running("GetSubBlockIdx")
    return 0


def GetSubBlockNum() -> int:
    """Return 1: a launch has vector cores only. C prototype: ``int64_t GetSubBlockNum()``."""
    running("GetSubBlockNum")
    return 1


def CopyTiling(kind: type[S], tiling: bytes) -> S:
    """Read the tiling of a kernel, as the samples' CopyTiling does word by word.

    CANN: the struct is returned, and a buffer that is too short is refused instead of read past its end.

    Raises:
        TilingError: The buffer is shorter than the struct.
    """
    if not isinstance(tiling, bytes):
        raise TilingError(f"CopyTiling: expected the bytes that the kernel was given, got {type(tiling).__name__}")
    return kind.from_bytes(tiling)


# The macros declare a variable in C++; what they read, and what can go wrong, is the same.
GET_TILING_DATA = CopyTiling
GET_TILING_DATA_WITH_STRUCT = CopyTiling


def GET_TILING_DATA_MEMBER(kind: type[TilingStruct], member: str, tiling: bytes) -> Any:
    """Return one field of the tiling. TilingError if the buffer is too short, or the struct has no such field."""
    struct = CopyTiling(kind, tiling)
    if not hasattr(struct, member):
        raise TilingError(f"GET_TILING_DATA_MEMBER: {kind.__name__} has no field {member!r}")
    return getattr(struct, member)


def TILING_KEY_IS(key: int) -> bool:
    """Return whether the launch's tiling key is ``key``. C macro: ``TILING_KEY_IS(k)``."""
    return running("TILING_KEY_IS").tiling_key == key


def GetUserWorkspace(workspace: GlobalAddress) -> GlobalAddress:
    """Return the workspace behind the system's part, which is empty here.

    C prototype: ``GM_ADDR GetUserWorkspace(GM_ADDR workspace)``
    """
    return workspace


def set_atomic(api: str, T: Any, combine: Callable[..., Any]) -> None:
    """Let later copies to global memory combine what is there with what comes. DtypeError if none does in that type."""
    dtype = np.dtype(np.float32) if T is float else np.dtype(T)
    if dtype not in ATOMIC_TYPES:
        raise DtypeError(f"{api}: T must be one of {', '.join(map(str, ATOMIC_TYPES))}, got {dtype}")
    core = running(api)
    core.atomic, core.combine, core.atomic_site = dtype, combine, core.site or caller(3)


def SetAtomicMax(T: Any) -> None:
    """Let later copies to global memory keep the larger number. C prototype: ``template <typename T> void SetAtomicMax()``."""
    set_atomic("SetAtomicMax", T, np.maximum)


def SetAtomicMin(T: Any) -> None:
    """Let later copies to global memory keep the smaller number. C prototype: ``template <typename T> void SetAtomicMin()``."""
    set_atomic("SetAtomicMin", T, np.minimum)


def AtomicAdd(gm: GlobalTensor, value: float) -> np.generic:
    """Add to the first element, in one step for all blocks. Returns what was there.

    C prototype: ``template <typename T> T AtomicAdd(__gm__ T* address, T value)``
    """
    old, place = _atomic_place("AtomicAdd", gm)
    new = old + place.dtype.type(value)
    running("AtomicAdd").writes(place, new)
    place[0] = new
    return old


def AtomicCas(gm: GlobalTensor, expected: float, value: float) -> np.generic:
    """Store a value in the first element if it is the expected one, in one step for all blocks. Returns what was there.

    C prototype: ``template <typename T> T AtomicCas(__gm__ T* address, T value1, T value2)``
    """
    old, place = _atomic_place("AtomicCas", gm)
    if old == place.dtype.type(expected):
        running("AtomicCas").writes(place, value)
        place[0] = value
    return old


def _atomic_place(api: str, gm: GlobalTensor) -> tuple[np.generic, Any]:
    region, start, stop = gm.window(api, 0, 1)
    region.check_writable(api)
    core = running(api)
    core.reads((region.start + start, region.start + stop))
    instruction = core.record(api, SCALAR)
    core.touch_global(instruction, region, ((start, stop),), ATOMIC)
    place = region.data[start:stop].view(gm.bound(api)[1])
    return place[0].copy(), place


def SetPadValue(value: float) -> None:
    """Set what DataCopyPad pads with where isPad is false. C prototype: ``void SetPadValue(T paddingValue)``."""
    running("SetPadValue").ub.registers.pad_value = value


def SetAtomicAdd(T: Any) -> None:
    """Let later copies to global memory add instead of store.

    C prototype: ``template <typename T> void SetAtomicAdd()``

    Adds of several blocks need no order among each other. The simulator adds in the order in which blocks run, which
    is the same every time, and so are the bits; a device does not promise any.

    Raises:
        DtypeError: No copy adds in that type.
    """
    set_atomic("SetAtomicAdd", T, np.add)


def SetAtomicNone() -> None:
    """Let later copies to global memory store again. C prototype: ``void SetAtomicNone()``."""
    running("SetAtomicNone").atomic = None


def DataCacheCleanAndInvalid(dst: GlobalTensor, entireType: int = CacheLine.SINGLE_CACHE_LINE) -> None:
    """Write back what SetValue has left in the scalar unit's data cache: the line where a tensor begins, or all of it.

    C prototype: ``template <typename T, CacheLine entireType, DcciDst dcciDst> void DataCacheCleanAndInvalid(const
    GlobalTensor<T>& dst)``
    """
    core = running("DataCacheCleanAndInvalid")
    region, start, _ = dst.window("DataCacheCleanAndInvalid", 0, 0)
    core.order.clean(core.index, region.start, start, entireType)


DisableDmaAtomic = SetAtomicNone  # its newer name


def InitOutput(gm: GlobalTensor, size: int, value: float = 0) -> None:
    """Fill ``size`` elements of global memory from the Unified Buffer.

    C prototype: ``template <typename T> void InitOutput(GlobalTensor<T> gm, uint32_t size, T value = 0)``

    Nothing waits for the copies at the end, as upstream.

    Raises:
        DeviceFault: No room is left in the Unified Buffer, or past the end of the tensor.
    """
    core, site = running("InitOutput"), caller()
    dtype = gm.bound("InitOutput")[1]
    target = GlobalTensor.at(*gm.window("InitOutput", 0, size), dtype, gm.bypass)
    if size == 0:
        return
    ub, start = core.ub, core.ub.next_free
    nbytes = min(BURST_BYTES, -(-size * dtype.itemsize // 32) * 32, (ub.size - start) // 32 * 32)
    if not nbytes:
        raise DeviceFault("InitOutput: needs 32 bytes of Unified Buffer, none are left")
    held = (
        (ub.data[start : start + nbytes].view(dtype) == dtype.type(value)).reshape(-1, 32 // dtype.itemsize).all(axis=1)
    )
    held &= ~ub.poison[start : start + nbytes].reshape(-1, 32).any(axis=1)
    filled = int(np.argmin(np.append(held, False))) * (32 // dtype.itemsize)
    place = Allocation("InitOutput's buffer", TPosition.VECOUT, start, nbytes, State.BUFFER)
    ub.new_handle(place)
    source = LocalTensor(core, place, dtype, start, nbytes)
    count = source.GetSize()
    if filled:  # a device fills it again with the same value, while copies from it may still run
        core.remark("InitOutput behind InitOutput: nothing waits for the copies of the first one")
    if filled < count:
        rest = source[filled:]
        form = (COUNT, count - filled, 0, 0, 1, 1, 1, 8, 8, 8)
        descriptor = (DUPLICATE, rest.code, *form, rest.start, rest.end, *(0,) * 7)
        core.issue(site, value, rest.handle, 0, 0, descriptor)
    core.clock.acquire(MTE3, core.clock.release(V))
    for first in range(0, size, count):
        part = min(count, size - first) * dtype.itemsize
        copy_global(site, "DataCopyPad", source, target[first], Blocks(1, part, part, part), inward=False)


def SetDeqScale(scale: float) -> None:
    """Set what Cast from int32 to half multiplies with. C prototype: ``void SetDeqScale(half scale)``."""
    running("SetDeqScale").ub.registers.deq_scale = scale


def accumulated(which: int) -> float:
    """Return what the last reduction by count has left: 0 the sum (GetAccVal), 1 the extreme, 2 its place."""
    core = running("GetAccVal")
    core.clock.before_scalar_access()
    core.clock.after_scalar_access()
    registers = core.ub.registers
    return registers.sum if which == 0 else registers.extreme[which - 1]


def ToFloat(value: Any) -> np.float32:
    """Return a bfloat16 scalar as float. C prototype: ``float ToFloat(const bfloat16_t& bVal)``."""
    return np.float32(value)


def ToBfloat16(value: Any) -> Any:
    """Return a float scalar as bfloat16, to nearest even. C prototype: ``bfloat16_t ToBfloat16(const float& fVal)``."""
    return ml_dtypes.bfloat16(value)
