"""Everything that the author of a kernel imports: ``from lngrad_ascend.ascendc import *`` reads like AscendC."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# ruff: noqa: F403, F405 - the names are listed once, below, or rows of the table of instructions
from lngrad_ascend.cpp.compiling import CompileError
from lngrad_ascend.cpp.kernel import CompiledKernel
from lngrad_ascend.cpp.kernel import compile as compile  # not in __all__: a star import keeps Python's own
from lngrad_ascend.device.copies import *
from lngrad_ascend.device.descriptors import *
from lngrad_ascend.device.global_memory import *
from lngrad_ascend.device.global_tensor import *
from lngrad_ascend.device.launch import *
from lngrad_ascend.device.layout import *
from lngrad_ascend.device.local_tensor import *
from lngrad_ascend.device.numerics import *
from lngrad_ascend.device.operations import NUMBERS_OF
from lngrad_ascend.device.pipes import HardEvent, pipe_t
from lngrad_ascend.device.queues import *
from lngrad_ascend.device.report import *
from lngrad_ascend.device.sync import *
from lngrad_ascend.device.system import *
from lngrad_ascend.device.unified_buffer import *
from lngrad_ascend.device.vector import *
from lngrad_ascend.faults import *
from lngrad_ascend.tile.layernorm import *
from lngrad_ascend.tile.layernormgrad import *
from lngrad_ascend.tiling.structs import *

half = np.float16  # the C++ names of the element types
float32 = np.float32
bfloat16_t = ml_dtypes.bfloat16
QuePosition = TPosition  # the older name, which sample kernels use
PIPE_S, PIPE_V, PIPE_MTE2, PIPE_MTE3 = pipe_t.PIPE_S, pipe_t.PIPE_V, pipe_t.PIPE_MTE2, pipe_t.PIPE_MTE3
PIPE_ALL = pipe_t.PIPE_ALL
EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 = range(8)

__all__ = [
    # launching
    "launch", "CompiledKernel", "CompileError", "LaunchReport", "BlockReport", "AscendWarning", "DeviceFault", "RaceFault",
    # memory
    "CacheMode", "GlobalAddress", "GlobalTensor", "LocalTensor", "TPipe", "GetTPipePtr", "TQue", "TBuf", "TPosition",
    "QuePosition",
    # copies
    "DataCopyParams", "DataCopyPad", "DataCopyExtParams", "DataCopyPadParams", "DataCopyPadExtParams",
    "PaddingMode", "TransDataTo5HD", "TransDataTo5HDParams", "InitOutput", "SetAtomicAdd", "SetAtomicNone",
    "DisableDmaAtomic", "DataCacheCleanAndInvalid", "CacheLine",
    # beside the vector instructions, which are below
    "CMPMODE", "ReduceOrder", "ReduceRepeat", "ReduceType", "SELMODE", "RoundMode", "BinaryRepeatParams",
    "BrcbRepeatParams", "CopyRepeatParams", "UnaryRepeatParams", "BroadCast", "GatherMask", "Transpose", "SetDeqScale",
    "ToBfloat16", "ToFloat",
    # order
    "HardEvent", "pipe_t", "SetFlag", "WaitFlag", "PipeBarrier", "SyncAll", "CrossCoreSetFlag", "CrossCoreWaitFlag",
    "PIPE_S", "PIPE_V", "PIPE_MTE2", "PIPE_MTE3", "PIPE_ALL", "EVENT_ID0", "EVENT_ID1", "EVENT_ID2", "EVENT_ID3",
    "EVENT_ID4", "EVENT_ID5", "EVENT_ID6", "EVENT_ID7",
    # the launch: blocks, tiling, workspace
    "GetBlockIdx", "GetBlockNum", "GetSubBlockIdx", "GetSubBlockNum", "GetUserWorkspace", "CopyTiling",
    "GET_TILING_DATA", "GET_TILING_DATA_MEMBER", "GET_TILING_DATA_WITH_STRUCT", "TILING_KEY_IS", "TilingStruct",
    "LayerNormGradBetaTiling", "LayerNormGradTiling", "LayerNormSeparateTiling", "LayerNormTiling",
    # tile APIs
    "LayerNorm", "LayerNormConfig", "LayerNormPara", "LayerNormGrad", "LayerNormGradBeta", "LayerNormGradShapeInfo",
    "DataFormat",
    # types
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "half", "float32", "bfloat16_t",
]  # fmt: skip
__all__ += [name for name in NUMBERS_OF if name in globals()]
