"""What the simulator does for each operation that is not a vector instruction: ``HANDLERS``, one row an operation.

Every row translates numbers into a call of lngrad_ascend.device or lngrad_ascend.tile. No rule and no arithmetic:
those are where the call goes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from lngrad.errors import DtypeError
from lngrad.typing import Dtype
from lngrad_ascend.cpp.protocol import RANGE, Op, file_name, read_local
from lngrad_ascend.cpp.session import Session, position_of
from lngrad_ascend.device import sync, system
from lngrad_ascend.device.copies import (
    DataCopy,
    DataCopyExtParams,
    DataCopyPad,
    DataCopyPadExtParams,
    DataCopyPadParams,
    DataCopyParams,
    TransDataTo5HD,
    TransDataTo5HDParams,
)
from lngrad_ascend.device.core import Core
from lngrad_ascend.device.global_tensor import GlobalTensor
from lngrad_ascend.device.layout import BroadCast, GatherMask, Transpose
from lngrad_ascend.device.library import call_library
from lngrad_ascend.device.local_tensor import LocalTensor, memory_at, rest_of_buffer
from lngrad_ascend.device.loops import Dimension, NdDmaDci, ResetLoopModePara, SetLoopModePara, copy_dimensions
from lngrad_ascend.device.numerics import DTYPES
from lngrad_ascend.device.pipes import HardEvent, pipe_t
from lngrad_ascend.device.queues import TBuf, TBufPool, TPipe, TQue
from lngrad_ascend.device.report import Site, site_text
from lngrad_ascend.device.unified_buffer import TPosition
from lngrad_ascend.device.vector_function import Range, Rule
from lngrad_ascend.faults import BoundsFault, SyncFault
from lngrad_ascend.tile.layernorm import LayerNorm, LayerNormConfig, LayerNormPara
from lngrad_ascend.tile.layernormgrad import DataFormat, LayerNormGrad, LayerNormGradBeta, LayerNormGradShapeInfo
from lngrad_ascend.tiling.structs import (
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormSeparateTiling,
    LayerNormTiling,
    TilingStruct,
)

EVENTS, PIPES = tuple(HardEvent), tuple(pipe_t)  # by number
Reply = Union[int, float, np.generic, LocalTensor, None]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too


@dataclass(slots=True)
class KernelCall:
    """One call of a kernel, as its record holds it. A block reuses one object, since its calls do not nest.

    Attributes:
        session: Of the block.
        core: The core that runs it.
        site: Where the kernel calls.
        tensors: The tensors in the Unified Buffer, as ``read_local`` takes them.
        n: The integers. A queue, a buffer or a pipe is the first of them; a global tensor is the first three.
        real: The scalar.
    """

    session: Session
    core: Core
    site: Site = ("", 0)
    tensors: Sequence[bytes] = ()
    n: tuple[int, ...] = ()
    real: float = 0.0

    def pipe(self, index: int = 0) -> TPipe:
        """Return the TPipe, which is 0, or the TBufPool of a number."""
        return self.session.owner("TBufPool", TBufPool, self.n[index] - 1) if self.n[index] else TPipe(self.core)

    def queue(self, api: str) -> TQue:
        """Return the queue whose number comes first."""
        return self.session.owner(api, TQue, self.n[0])

    def buffer(self, api: str) -> TBuf:
        """Return the TBuf whose number comes first."""
        return self.session.owner(api, TBuf, self.n[0])

    def local(self, api: str, index: int = 0) -> LocalTensor:
        """Return a tensor in the Unified Buffer."""
        return self.session.local(api, read_local(self.tensors[index]))

    def remote(self, api: str) -> GlobalTensor:
        """Return the global tensor whose address, size and type come first."""
        n = self.n
        return self.session.remote(api, n[0], n[1], n[2])

    def dtype(self, index: int) -> Dtype:
        """Return the element type of a code; bits above the eighth are flags of a global tensor."""
        return DTYPES[self.n[index] & 255]

    def value(self, dtype: Dtype, index: int) -> float:
        """Return the value to be stored: an integer of the record, or its scalar."""
        return self.n[index] if dtype.kind in "iu" else self.real


def _init_queue(c: KernelCall) -> int:
    _, source, target, depth, number, length = c.n
    binds = None if target < 0 else (position_of("InitBuffer", source, True), position_of("InitBuffer", target, True))
    if binds is None:
        place = position_of("InitBuffer", source)
    else:  # a queue between two positions of the Unified Buffer has no side of its own
        local = [bind for bind in binds if bind is not TPosition.GM]
        place = local[0] if len(local) == 1 else TPosition.VECCALC
    queue = TQue(place, max(depth, 1), name=f"the {place.value} queue of {site_text(c.site)}", binds=binds)
    c.pipe().InitBuffer(queue, number, length)
    return c.session.new_owner(queue)


def _enque(c: KernelCall) -> None:
    positions = (position_of("EnQue", c.n[1], True), position_of("EnQue", c.n[2], True)) if len(c.n) > 1 else None
    c.queue("EnQue").EnQue(c.local("EnQue"), positions)


def _init_buffer(c: KernelCall) -> int:
    _, position, length = c.n
    place = position_of("InitBuffer", position)
    buffer = TBuf(place, name=f"the {place.value} TBuf of {site_text(c.site)}")
    c.pipe().InitBuffer(buffer, length)
    return c.session.new_owner(buffer)


def _init_pool(c: KernelCall) -> None:
    for number in c.n[4:]:  # programs that were compiled before give none
        position_of("InitBufPool", number)
    c.session.owner("InitBufPool", TBufPool, c.n[0] - 1).take(c.pipe(1), c.n[2], c.pipe(3))


def _local_set(c: KernelCall) -> None:
    tensor = c.local("SetValue")
    tensor.SetValue(c.n[0], c.value(tensor.dtype, 1))


def _fields(c: KernelCall, first: int, older: bool = True) -> list[int]:
    """The fields of a copy's blocks. What does not fit into 16 bits is refused; a device takes the rest."""
    numbers = list(c.n[first : first + 4])
    for index, name in enumerate(("blockCount", "blockLen")[: 1 + older]):
        number, numbers[index] = numbers[index], numbers[index] & 0xFFFF
        if number != numbers[index]:
            rule = f"{name} must be 0 to 65535 (uint16_t), got {number}; a device takes {numbers[index]} [ErrorRead3]"
            c.core.tolerate(BoundsFault(rule))
    return numbers


def _pad_in(c: KernelCall) -> None:
    older = bool(c.n[11])
    blocks = (DataCopyParams if older else DataCopyExtParams)(*_fields(c, 3, older))
    pad = (DataCopyPadParams if older else DataCopyPadExtParams)(bool(c.n[7]), c.n[8], c.n[9], c.real)
    DataCopyPad(c.local("DataCopyPad"), c.remote("DataCopyPad"), blocks, pad, mode=c.n[10])


def _pad_out(c: KernelCall) -> None:
    blocks = (DataCopyParams if c.n[8] else DataCopyExtParams)(*_fields(c, 3, bool(c.n[8])))
    DataCopyPad(c.remote("DataCopyPad"), c.local("DataCopyPad"), blocks, mode=c.n[7])


def _loop_mode(c: KernelCall) -> None:
    inward, *numbers = c.n
    if not numbers:
        ResetLoopModePara(bool(inward))
        return
    size1, size2, src1, dst1, src2, dst2 = numbers
    SetLoopModePara((size1, size2), (src1, src2), (dst1, dst2), bool(inward))


def _copy_dimensions(c: KernelCall) -> None:
    nearest, *numbers = c.n[3:]
    dst, dimensions = c.local("DataCopy"), [Dimension(*numbers[i : i + 5]) for i in range(0, len(numbers), 5)]
    copy_dimensions(dst, c.remote("DataCopy"), dimensions, c.real, bool(nearest))


def _transpose(c: KernelCall) -> None:
    code, high_target, high_source, repeats, target_step, source_step = c.n[:6]
    blocks = [c.session.tensor_at(address, DTYPES[code]) for address in c.n[6:38]]
    params = TransDataTo5HDParams(bool(high_target), bool(high_source), repeats, target_step, source_step)
    TransDataTo5HD(blocks[:16], blocks[16:], params)


def _data_format(number: int) -> DataFormat:
    if number not in {layout.value for layout in DataFormat}:
        raise DtypeError(f"LayerNormGrad: dataFormat must be ND, got {number}, which is no DataFormat")
    return DataFormat(number)


def _tile_api(
    function: Callable[..., None],
    kind: type[TilingStruct],
    count: int,
    epsilon: bool = True,
    more: Callable[[KernelCall], dict[str, object]] = lambda c: {},
) -> Callable[[KernelCall], None]:
    """Return the handler of a tile API that takes ``count`` tensors, epsilon, a tiling struct, and ``more``."""
    api = function.__name__

    def handle(c: KernelCall) -> None:
        address, size, reuse, shared = c.n[:4]
        tensors = [c.local(api, index) for index in range(len(c.tensors))]
        if size != kind.size_bytes():
            raise DtypeError(f"{api}: tiling has {kind.size_bytes()} bytes, the kernel's struct has {size}")
        tiling = kind.from_bytes(ctypes.string_at(address, size))
        function(
            *tensors[:count], *([c.real] if epsilon else []), tiling, **more(c),
            sharedTmpBuffer=tensors[count] if shared else None, isReuseSource=bool(reuse),
        )  # fmt: skip

    return handle


def _event(event: int, _: int, target: int | None = None) -> HardEvent:
    if target is None:
        return EVENTS[event]
    name = "_".join(PIPES[pipe].name[5:] for pipe in (event, target))
    if name not in HardEvent.__members__:
        raise SyncFault(f"set_flag and wait_flag: expected two pipes with a HardEvent, got {name}")
    return HardEvent[name]


def _broadcast(c: KernelCall) -> None:
    axes = c.n[0]
    dst, src = c.local("BroadCast"), c.local("BroadCast", 1)
    BroadCast(dst, src, c.n[1 : 1 + axes], c.n[1 + axes : 1 + 2 * axes])


def _gather_mask(c: KernelCall) -> int:
    pattern, reduces, mask, *params = c.n
    dst, src = c.local("GatherMask"), c.local("GatherMask", 1)
    chosen = pattern if len(c.tensors) == 2 else c.local("GatherMask", 2)
    return GatherMask(dst, src, chosen, bool(reduces), mask, (params[0], params[1], params[2], params[3]))


def _scalar_atomic(c: KernelCall) -> np.generic:
    if c.n[3]:  # the value that is expected, and the new one
        return system.AtomicCas(c.remote("AtomicCas"), c.n[4], c.n[5])
    return system.AtomicAdd(c.remote("AtomicAdd"), c.value(c.dtype(2), 4))


def _library(c: KernelCall) -> int:
    name = ctypes.string_at(c.n[0]).decode()
    return call_library(name, [c.local(name, index) for index in range(len(c.tensors))], c.n[1:], c.real)


def _ranges(address: int, count: int) -> tuple[bytes, list[Range]]:
    """Ranges of a vector function: as bytes, and read."""
    text = ctypes.string_at(address, count * RANGE.size) if count else b""
    return text, [(start, stop, (file_name(file), line)) for start, stop, file, line in RANGE.iter_unpack(text)]


def _vector_function(c: KernelCall) -> None:
    name, reads, read_count, writes, write_count = c.n
    read, written = _ranges(reads, read_count), _ranges(writes, write_count)
    c.session.vectors.ended(ctypes.string_at(name).decode(), (read[0], written[0]), read[1], written[1])


def _vector_rule(c: KernelCall) -> int:
    rule, api, *numbers = c.n
    others: tuple[Site, ...] = ()
    if rule == Rule.UNORDERED:
        others = (file_name(numbers[0]), numbers[1]), (file_name(numbers[2]), numbers[3])
    return c.session.vectors.broken(rule, ctypes.string_at(api).decode(), c.site, tuple(numbers), others)


HANDLERS: dict[int, Callable[[KernelCall], Reply]] = {
    Op.BLOCK_IDX: lambda c: c.core.index,
    Op.BLOCK_NUM: lambda c: c.core.count,
    Op.TILING_KEY: lambda c: c.core.tiling_key,
    Op.USER_WORKSPACE: lambda c: c.n[0],
    Op.PIPE_NEW: lambda c: 0 if TPipe(c.core) else 1,  # the kernel's copies of it are the same one
    Op.PIPE_RESET: lambda c: c.pipe().Reset() if len(c.n) == 1 else c.pipe().Destroy(),
    Op.PIPE_INIT_QUEUE: _init_queue,
    Op.PIPE_INIT_BUFFER: _init_buffer,
    Op.POOL_NEW: lambda c: c.session.new_owner(TBufPool(c.core, c.n[0])) + 1,
    Op.POOL_INIT: _init_pool,
    Op.EVENT_ALLOC: lambda c: c.pipe().AllocEventID(EVENTS[c.n[1]]),
    Op.EVENT_RELEASE: lambda c: c.pipe().ReleaseEventID(EVENTS[c.n[1]], c.n[2]),
    Op.EVENT_FETCH: lambda c: c.pipe().FetchEventID(EVENTS[c.n[1]]),
    Op.QUEUE_ALLOC: lambda c: c.queue("AllocTensor").AllocTensor(c.dtype(1)),
    Op.QUEUE_ENQUE: _enque,
    Op.QUEUE_DEQUE: lambda c: c.queue("DeQue").DeQue(c.dtype(1)),
    Op.QUEUE_FREE: lambda c: c.queue("FreeTensor").FreeTensor(c.local("FreeTensor")),
    Op.QUEUE_VACANT: lambda c: c.queue("VacantInQue").VacantInQue(),
    Op.QUEUE_COUNT: lambda c: c.queue("GetTensorCountInQue").GetTensorCountInQue(),
    Op.QUEUE_IDLE: lambda c: c.queue("HasIdleBuffer").HasIdleBuffer(),
    Op.QUEUE_FREE_EVENTS: lambda c: c.queue("FreeAllEvent").FreeAllEvent(),
    Op.BUFFER_GET: lambda c: c.buffer("Get").Get(c.dtype(1), None if c.n[2] < 0 else c.n[2]),
    Op.BUFFER_GET_OFFSET: lambda c: c.buffer("GetWithOffset").GetWithOffset(c.dtype(1), c.n[2], c.n[3]),
    Op.LOCAL_GET: lambda c: c.local("GetValue").GetValue(c.n[0]),
    Op.LOCAL_SET: _local_set,
    Op.LOCAL_ADDRESS: lambda c: c.session.ub_address + c.local("GetPhyAddr").start,
    Op.LOCAL_SET_SIZE: lambda c: c.local("SetSize").SetSize(c.n[0]),
    Op.GLOBAL_GET: lambda c: c.remote("GetValue").GetValue(c.n[3]),
    Op.GLOBAL_SET: lambda c: c.remote("SetValue").SetValue(c.n[3], c.value(c.dtype(2), 4)),
    Op.GLOBAL_READ: lambda c: c.session.read_global(*c.n),
    Op.COPY_IN: lambda c: DataCopy(c.local("DataCopy"), c.remote("DataCopy"), c.n[3]),
    Op.COPY_OUT: lambda c: DataCopy(c.remote("DataCopy"), c.local("DataCopy"), c.n[3]),
    Op.COPY_LOCAL: lambda c: DataCopy(c.local("DataCopy"), c.local("DataCopy", 1), c.n[0]),
    Op.COPY_IN_BLOCKS: lambda c: DataCopy(c.local("DataCopy"), c.remote("DataCopy"), DataCopyParams(*_fields(c, 3))),
    Op.COPY_OUT_BLOCKS: lambda c: DataCopy(c.remote("DataCopy"), c.local("DataCopy"), DataCopyParams(*_fields(c, 3))),
    Op.COPY_LOCAL_BLOCKS: lambda c: DataCopy(c.local("DataCopy"), c.local("DataCopy", 1), DataCopyParams(*_fields(c, 0))),
    Op.PAD_IN: _pad_in,
    Op.PAD_OUT: _pad_out,
    Op.LOOP_MODE: _loop_mode,
    Op.COPY_DIMENSIONS: _copy_dimensions,
    Op.CACHE_REFRESH: lambda c: NdDmaDci(),
    Op.TRANS_DATA_TO_5HD: _transpose,
    Op.SET_FLAG: lambda c: sync.SetFlag(_event(*c.n), c.n[1]),
    Op.WAIT_FLAG: lambda c: sync.WaitFlag(_event(*c.n), c.n[1]),
    Op.PIPE_BARRIER: lambda c: sync.PipeBarrier(PIPES[c.n[0]]),
    Op.SYNC_ALL: lambda c: sync.SyncAll(),
    Op.CROSS_SET_FLAG: lambda c: sync.CrossCoreSetFlag(c.n[2], modeId=c.n[0], pipe=PIPES[c.n[1]]),
    Op.CROSS_WAIT_FLAG: lambda c: sync.CrossCoreWaitFlag(c.n[2]),
    Op.ATOMIC_ADD: lambda c: system.SetAtomicAdd(c.dtype(0)),
    Op.ATOMIC_MAX: lambda c: system.SetAtomicMax(c.dtype(0)),
    Op.ATOMIC_MIN: lambda c: system.SetAtomicMin(c.dtype(0)),
    Op.PAD_VALUE: lambda c: system.SetPadValue(c.real),
    Op.IB_SET: lambda c: sync.IBSet(c.n[0], c.n[1]),
    Op.IB_WAIT: lambda c: sync.IBWait(c.n[0], c.n[1]),
    Op.POP_STACK: lambda c: rest_of_buffer(c.core, position_of("PopStackBuffer", c.n[0]), c.dtype(1)),
    Op.UB_BYTES: lambda c: c.core.soc.ub_bytes,
    Op.SCALAR_ATOMIC: _scalar_atomic,
    Op.MUTEX_LOCK: lambda c: sync.MutexLock(PIPES[c.n[0]], c.n[1]),
    Op.MUTEX_UNLOCK: lambda c: sync.MutexUnlock(PIPES[c.n[0]], c.n[1]),
    Op.CACHE_CLEAN: lambda c: system.DataCacheCleanAndInvalid(c.remote("DataCacheCleanAndInvalid"), c.n[3]),
    Op.ATOMIC_NONE: lambda c: system.SetAtomicNone(),
    Op.INIT_OUTPUT: lambda c: system.InitOutput(c.remote("InitOutput"), c.n[3], c.value(c.dtype(2), 4)),
    Op.ACCUMULATED: lambda c: system.accumulated(c.n[0]),
    Op.DEQ_SCALE: lambda c: system.SetDeqScale(c.real),
    Op.LOCAL_AT: lambda c: memory_at(c.core, position_of("LocalTensor", c.n[0]), c.dtype(1), c.n[2], c.n[3]),
    Op.LOCAL_OF: lambda c: c.session.tensor_at(c.n[1], c.dtype(0)),
    Op.BROADCAST: _broadcast,
    Op.TRANSPOSE: lambda c: Transpose(c.local("Transpose"), c.local("Transpose", 1)),
    Op.GATHER_MASK: _gather_mask,
    Op.LIBRARY: _library,
    Op.VECTOR_BEGIN: lambda c: ctypes.memmove(c.n[0], view := c.session.vectors.view(), len(view)) and None,
    Op.VECTOR_FUNCTION: _vector_function,
    Op.VECTOR_RULE: _vector_rule,
    Op.LAYER_NORM: _tile_api(LayerNorm, LayerNormTiling, 6),
    Op.LAYER_NORM_RSTD: _tile_api(
        LayerNorm, LayerNormSeparateTiling, 6,
        more=lambda c: {"para": LayerNormPara(*c.n[4:7]), "config": LayerNormConfig(*map(bool, c.n[7:11]))},
    ),
    Op.LAYER_NORM_GRAD: _tile_api(
        LayerNormGrad, LayerNormGradTiling, 7,
        more=lambda c: {"shapeInfo": LayerNormGradShapeInfo(_data_format(c.n[4]))},
    ),
    Op.LAYER_NORM_GRAD_BETA: _tile_api(LayerNormGradBeta, LayerNormGradBetaTiling, 4, epsilon=False),
}  # fmt: skip
