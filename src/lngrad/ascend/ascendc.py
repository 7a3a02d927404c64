"""Everything that the author of a kernel imports: ``from lngrad.ascend.ascendc import *`` reads like AscendC."""

from __future__ import annotations

import numpy as np

from lngrad.ascend.device.datacopy import DataCopy, DataCopyExtParams, DataCopyPad, DataCopyPadExtParams
from lngrad.ascend.device.global_memory import GlobalAddress, GlobalTensor
from lngrad.ascend.device.launch import (
    GET_TILING_DATA,
    BlockReport,
    CopyTiling,
    GetBlockIdx,
    GetBlockNum,
    LaunchReport,
    launch,
)
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.pipe import TBuf, TPipe, TQue
from lngrad.ascend.device.unified_buffer import TPosition
from lngrad.ascend.device.vector import (
    Add,
    Adds,
    Brcb,
    Cast,
    Div,
    Duplicate,
    Mul,
    Muls,
    ReduceSum,
    RoundMode,
    Sqrt,
    Sub,
    WholeReduceSum,
)
from lngrad.ascend.faults import AscendWarning, DeviceFault
from lngrad.ascend.tile.layernorm import LayerNorm, LayerNormConfig, LayerNormPara
from lngrad.ascend.tile.layernormgrad import DataFormat, LayerNormGrad, LayerNormGradBeta, LayerNormGradShapeInfo
from lngrad.ascend.tiling.structs import (
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormSeparateTiling,
    LayerNormTiling,
    TilingStruct,
)

half = np.float16  # the C++ names of the element types; ``float`` is Python's own, which NumPy reads as double
float32 = np.float32
QuePosition = TPosition  # the older name, which sample kernels use

__all__ = [
    "launch",
    "LaunchReport",
    "BlockReport",
    "GetBlockIdx",
    "GetBlockNum",
    "CopyTiling",
    "GET_TILING_DATA",
    "GlobalAddress",
    "GlobalTensor",
    "LocalTensor",
    "TPosition",
    "QuePosition",
    "TPipe",
    "TQue",
    "TBuf",
    "DataCopy",
    "DataCopyPad",
    "DataCopyExtParams",
    "DataCopyPadExtParams",
    "LayerNorm",
    "LayerNormConfig",
    "LayerNormPara",
    "LayerNormGrad",
    "LayerNormGradShapeInfo",
    "DataFormat",
    "LayerNormGradBeta",
    "TilingStruct",
    "LayerNormTiling",
    "LayerNormSeparateTiling",
    "LayerNormGradTiling",
    "LayerNormGradBetaTiling",
    "Add",
    "Adds",
    "Brcb",
    "Cast",
    "Div",
    "Duplicate",
    "Mul",
    "Muls",
    "ReduceSum",
    "RoundMode",
    "Sqrt",
    "Sub",
    "WholeReduceSum",
    "half",
    "float32",
    "DeviceFault",
    "AscendWarning",
]
