"""What the simulator answers to each operation that is not a vector instruction.

Every function here translates numbers into a call of lngrad.ascend.device or lngrad.ascend.tile.
No rule and no arithmetic: those are where the call goes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeVar, Union

import numpy as np

from lngrad.ascend.cpp.protocol import Op
from lngrad.ascend.cpp.session import Session, position_of
from lngrad.ascend.device import sync
from lngrad.ascend.device.copies import Local
from lngrad.ascend.device.datacopy import (
    DataCopy,
    DataCopyExtParams,
    DataCopyPad,
    DataCopyPadExtParams,
    DataCopyPadParams,
    DataCopyParams,
)
from lngrad.ascend.device.element_types import DTYPES
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.pipe import TBuf, TQue
from lngrad.ascend.device.pipes import HardEvent
from lngrad.ascend.device.source import Site, site_text
from lngrad.ascend.device.system import InitOutput, SetAtomicAdd, SetAtomicNone
from lngrad.ascend.device.transpose import TransDataTo5HDParams, transpose
from lngrad.ascend.tile.checks import DataFormat
from lngrad.ascend.tile.layernorm import LayerNorm
from lngrad.ascend.tile.layernorm_forward import LayerNormConfig, LayerNormPara
from lngrad.ascend.tile.layernormgrad import LayerNormGrad, LayerNormGradBeta, LayerNormGradShapeInfo
from lngrad.ascend.tiling.structs import (
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormSeparateTiling,
    LayerNormTiling,
    TilingStruct,
)
from lngrad.errors import DtypeError

Result = Union[int, float, np.generic, LocalTensor, None]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too
Locals = list[tuple[int, ...]]
Integers = tuple[int, ...]
# (session, where, locals, integers, scalar)
Answer = Callable[[Session, Site, Locals, Integers, float], Result]
S = TypeVar("S", bound=TilingStruct)

ANSWERS: dict[int, Answer] = {}


def answers(op: Op) -> Callable[[Answer], Answer]:
    """Register a function as the answer to an operation."""

    def register(function: Answer) -> Answer:
        ANSWERS[op] = function
        return function

    return register


@answers(Op.BLOCK_IDX)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.core.index


@answers(Op.BLOCK_NUM)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.core.count


@answers(Op.TILING_KEY)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.core.tiling_key


@answers(Op.USER_WORKSPACE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return n[0]


@answers(Op.PIPE_NEW)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.new_pipe()


@answers(Op.PIPE_RESET)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    session.pipe(n[0]).Reset()
    return None


@answers(Op.PIPE_INIT_QUEUE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    pipe, position, depth, number, length = n
    place = position_of("InitBuffer", position)
    queue = TQue(place, max(depth, 1), name=f"the {place.value} queue of {site_text(site)}")
    session.pipe(pipe).InitBuffer(queue, number, length)
    return session.new_owner(queue)


@answers(Op.PIPE_INIT_BUFFER)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    pipe, position, length = n
    place = position_of("InitBuffer", position)
    buffer = TBuf(place, name=f"the {place.value} TBuf of {site_text(site)}")
    session.pipe(pipe).InitBuffer(buffer, length)
    return session.new_owner(buffer)


@answers(Op.EVENT_ALLOC)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.pipe(n[0]).AllocEventID(HardEvent(n[1]))


@answers(Op.EVENT_RELEASE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    session.pipe(n[0]).ReleaseEventID(HardEvent(n[1]), n[2])
    return None


@answers(Op.EVENT_FETCH)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.pipe(n[0]).FetchEventID(HardEvent(n[1]))


@answers(Op.QUEUE_ALLOC)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.queue("AllocTensor", n[0]).AllocTensor(DTYPES[n[1]])


@answers(Op.QUEUE_ENQUE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return int(session.queue("EnQue", n[0]).EnQue(session.local("EnQue", tensors[0])))


@answers(Op.QUEUE_DEQUE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.queue("DeQue", n[0]).DeQue(DTYPES[n[1]])


@answers(Op.QUEUE_FREE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    session.queue("FreeTensor", n[0]).FreeTensor(session.local("FreeTensor", tensors[0]))
    return None


@answers(Op.QUEUE_VACANT)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return int(session.queue("VacantInQue", n[0]).VacantInQue())


@answers(Op.QUEUE_COUNT)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.queue("GetTensorCountInQue", n[0]).GetTensorCountInQue()


@answers(Op.QUEUE_IDLE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return int(session.queue("HasIdleBuffer", n[0]).HasIdleBuffer())


@answers(Op.QUEUE_FREE_EVENTS)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    session.queue("FreeAllEvent", n[0]).FreeAllEvent()
    return None


@answers(Op.BUFFER_GET)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.buffer("Get", n[0]).Get(DTYPES[n[1]], None if n[2] < 0 else n[2])


@answers(Op.BUFFER_GET_OFFSET)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.buffer("GetWithOffset", n[0]).GetWithOffset(DTYPES[n[1]], n[2], n[3])


@answers(Op.LOCAL_GET)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.local("GetValue", tensors[0]).GetValue(n[0])


@answers(Op.LOCAL_SET)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    tensor = session.local("SetValue", tensors[0])
    tensor.SetValue(n[0], n[1] if tensor.dtype.kind in "iu" else real)
    return None


@answers(Op.LOCAL_ADDRESS)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.ub_address(session.local("GetPhyAddr", tensors[0]).start)


@answers(Op.LOCAL_SET_SIZE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    session.local("SetSize", tensors[0]).SetSize(n[0])
    return None


@answers(Op.GLOBAL_GET)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    return session.remote("GetValue", *n[:3]).GetValue(n[3])


@answers(Op.GLOBAL_SET)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    tensor = session.remote("SetValue", *n[:3])
    tensor.SetValue(n[3], n[4] if DTYPES[n[2]].kind in "iu" else real)
    return None


@answers(Op.GLOBAL_READ)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    target, address, size = n
    session.read_global(target, address, size)
    return None


@answers(Op.COPY_IN)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    DataCopy(session.local("DataCopy", tensors[0]), session.remote("DataCopy", *n[:3]), n[3])
    return None


@answers(Op.COPY_OUT)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    DataCopy(session.remote("DataCopy", *n[:3]), session.local("DataCopy", tensors[0]), n[3])
    return None


@answers(Op.COPY_LOCAL)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    DataCopy(session.local("DataCopy", tensors[0]), session.local("DataCopy", tensors[1]), n[0])
    return None


@answers(Op.COPY_IN_BLOCKS)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    blocks = DataCopyParams(*n[3:7])
    DataCopy(session.local("DataCopy", tensors[0]), session.remote("DataCopy", *n[:3]), blocks)
    return None


@answers(Op.COPY_OUT_BLOCKS)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    blocks = DataCopyParams(*n[3:7])
    DataCopy(session.remote("DataCopy", *n[:3]), session.local("DataCopy", tensors[0]), blocks)
    return None


@answers(Op.COPY_LOCAL_BLOCKS)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    DataCopy(session.local("DataCopy", tensors[0]), session.local("DataCopy", tensors[1]), DataCopyParams(*n))
    return None


@answers(Op.PAD_IN)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    older = bool(n[11])
    blocks = (DataCopyParams if older else DataCopyExtParams)(*n[3:7])
    pad = (DataCopyPadParams if older else DataCopyPadExtParams)(bool(n[7]), n[8], n[9], real)
    local, remote = session.local("DataCopyPad", tensors[0]), session.remote("DataCopyPad", *n[:3])
    DataCopyPad(local, remote, blocks, pad, mode=n[10])
    return None


@answers(Op.PAD_OUT)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    blocks = (DataCopyParams if n[8] else DataCopyExtParams)(*n[3:7])
    local, remote = session.local("DataCopyPad", tensors[0]), session.remote("DataCopyPad", *n[:3])
    DataCopyPad(remote, local, blocks, mode=n[7])
    return None


@answers(Op.TRANS_DATA_TO_5HD)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    code, high_target, high_source, repeats, target_step, source_step = n[:6]
    places = [_block_at(session, session.ub_start(address)) for address in n[6:38]]
    params = TransDataTo5HDParams(bool(high_target), bool(high_source), repeats, target_step, source_step)
    transpose(session.core, site, code, places[:16], places[16:], params)
    return None


def _block_at(session: Session, start: int) -> Local:
    """The rest of the piece of the Unified Buffer that a byte lies in."""
    for allocation in session.core.ub.allocations:
        if allocation.start <= start < allocation.start + allocation.size:
            return Local(allocation.handle, start, allocation.start + allocation.size)
    return Local(-1, start, start)


@answers(Op.SET_FLAG)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    sync.set_flag(session.core, site, n[0], n[1])
    return None


@answers(Op.WAIT_FLAG)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    sync.wait_flag(session.core, site, n[0], n[1])
    return None


@answers(Op.PIPE_BARRIER)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    sync.pipe_barrier(session.core, site, n[0])
    return None


@answers(Op.SYNC_ALL)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    sync.sync_all(session.core, site)
    return None


@answers(Op.CROSS_SET_FLAG)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    mode, pipe, flag = n
    sync.cross_core_set(session.core, site, flag, mode, pipe)
    return None


@answers(Op.CROSS_WAIT_FLAG)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    sync.cross_core_wait(session.core, site, n[2])
    return None


@answers(Op.ATOMIC_ADD)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    SetAtomicAdd(DTYPES[n[0]])
    return None


@answers(Op.ATOMIC_NONE)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    SetAtomicNone()
    return None


@answers(Op.INIT_OUTPUT)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    tensor = session.remote("InitOutput", *n[:3])
    InitOutput(tensor, n[3], n[4] if DTYPES[n[2]].kind in "iu" else real)
    return None


def _tiling(api: str, kind: type[S], n: Integers) -> S:
    """The tiling struct of a tile API, from its address and size."""
    if n[1] != kind.size_bytes():
        raise DtypeError(f"{api}: tiling has {kind.size_bytes()} bytes, the kernel's struct has {n[1]}")
    return kind.from_bytes(ctypes.string_at(n[0], n[1]))


def _tensors(
    api: str, session: Session, tensors: Locals, count: int, shared: int
) -> tuple[list[LocalTensor], LocalTensor | None]:
    """The first ``count`` tensors of a tile API, and its temporary buffer if it has one."""
    known = [session.local(api, tensor) for tensor in tensors]
    return known[:count], known[count] if shared else None


@answers(Op.LAYER_NORM_GRAD)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    api = "LayerNormGrad"
    (dx, xhat, dy, x, variance, mean, gamma), temporary = _tensors(api, session, tensors, 7, n[3])
    LayerNormGrad(
        dx, xhat, dy, x, variance, mean, gamma, real, _tiling(api, LayerNormGradTiling, n),
        LayerNormGradShapeInfo(DataFormat(n[4])), sharedTmpBuffer=temporary, isReuseSource=bool(n[2]),
    )  # fmt: skip
    return None


@answers(Op.LAYER_NORM_GRAD_BETA)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    api = "LayerNormGradBeta"
    (dgamma, dbeta, xhat, dy), temporary = _tensors(api, session, tensors, 4, n[3])
    tiling = _tiling(api, LayerNormGradBetaTiling, n)
    LayerNormGradBeta(dgamma, dbeta, xhat, dy, tiling, sharedTmpBuffer=temporary, isReuseSource=bool(n[2]))
    return None


@answers(Op.LAYER_NORM)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    api = "LayerNorm"
    (y, mean, variance, x, gamma, beta), temporary = _tensors(api, session, tensors, 6, n[3])
    tiling = _tiling(api, LayerNormTiling, n)
    LayerNorm(y, mean, variance, x, gamma, beta, real, tiling, sharedTmpBuffer=temporary, isReuseSource=bool(n[2]))
    return None


@answers(Op.LAYER_NORM_RSTD)
def _(session: Session, site: Site, tensors: Locals, n: Integers, real: float) -> Result:
    api = "LayerNorm"
    (y, mean, rstd, x, gamma, beta), temporary = _tensors(api, session, tensors, 6, n[3])
    no_beta, no_gamma, only_output, output_rstd = map(bool, n[7:11])
    LayerNorm(
        y, mean, rstd, x, gamma, beta, real, _tiling(api, LayerNormSeparateTiling, n), LayerNormPara(*n[4:7]),
        sharedTmpBuffer=temporary, isReuseSource=bool(n[2]),
        config=LayerNormConfig(
            isNoBeta=no_beta, isNoGamma=no_gamma, isOnlyOutput=only_output, isOutputRstd=output_rstd
        ),
    )  # fmt: skip
    return None
