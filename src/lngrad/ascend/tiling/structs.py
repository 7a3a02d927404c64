"""The tiling structs: their fields in CANN's order, and the way to and from the bytes that a kernel is handed.

A tiling struct on the device is a packed little-endian sequence of 32-bit words. The dataclasses here are the same
sequence by name: ``int`` is a uint32_t, ``float`` a 32-bit float, a nested struct its own words in place. A kernel
author's own struct inherits from ``TilingStruct`` in the same way as the ones of this file.
"""

from __future__ import annotations

import struct
import typing
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from lngrad.ascend.faults import TilingError

__all__ = [
    "LayerNormGradBetaTiling",
    "LayerNormGradTiling",
    "LayerNormSeparateTiling",
    "LayerNormTiling",
    "TilingStruct",
    "UINT32_MAX",
    "float_bits",
    "float_from_bits",
]

UINT32_MAX = 0xFFFF_FFFF
S = TypeVar("S", bound="TilingStruct")


def float_bits(value: float) -> int:
    """Return the IEEE-754 single-precision bits of ``value`` as an unsigned word."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def float_from_bits(word: int) -> float:
    """Return the single-precision number whose bits are ``word``."""
    return float(struct.unpack("<f", struct.pack("<I", word))[0])


@dataclass
class TilingStruct:
    """Base of all tiling structs; fields are ``int``, ``float`` or another ``TilingStruct``, each with a default."""

    @classmethod
    def size_bytes(cls) -> int:
        """Return the size of the struct in bytes."""
        return sum(kind.size_bytes() if issubclass(kind, TilingStruct) else 4 for _, kind in _layout(cls))

    def to_bytes(self) -> bytes:
        """Return the struct as the device sees it: packed little-endian 32-bit words.

        Raises:
            TilingError: a field does not fit its word.
        """
        own = type(self)
        return b"".join(_pack(f"{own.__name__}.{name}", kind, getattr(self, name)) for name, kind in _layout(own))

    @classmethod
    def from_bytes(cls: type[S], data: bytes) -> S:
        """Read the struct from the start of ``data``; bytes behind it are left alone.

        Raises:
            TilingError: ``data`` is shorter than the struct.
        """
        if len(data) < cls.size_bytes():
            raise TilingError(
                f"tiling: {cls.__name__} takes {cls.size_bytes()} bytes, got a buffer of {len(data)} bytes"
            )
        values: dict[str, Any] = {}
        start = 0
        for name, kind in _layout(cls):
            if issubclass(kind, TilingStruct):
                values[name] = kind.from_bytes(data[start:])
                start += kind.size_bytes()
            else:
                values[name] = struct.unpack_from("<f" if kind is float else "<I", data, start)[0]
                start += 4
        return cls(**values)


def _layout(cls: Any) -> tuple[tuple[str, type], ...]:
    """Return the (name, type) of every field. Resolving annotations takes longer than reading the struct."""
    if cls not in _layouts:
        hints = typing.get_type_hints(cls)
        _layouts[cls] = tuple((f.name, hints[f.name]) for f in fields(cls))
    return _layouts[cls]


_layouts: dict[Any, tuple[tuple[str, type], ...]] = {}


def _pack(name: str, kind: type, value: Any) -> bytes:
    if issubclass(kind, TilingStruct):
        return bytes(value.to_bytes())
    if kind is float:
        return struct.pack("<f", value)
    if not 0 <= value <= UINT32_MAX:
        raise TilingError(f"{name}: a uint32_t holds 0 to {UINT32_MAX}, got {value}")
    return struct.pack("<I", value)


@dataclass
class LayerNormGradTiling(TilingStruct):
    """Tiling of LayerNormGrad: 30 words. Source: layernorm_grad_tilingdata.h.

    ``stackBufferSize`` is in bytes; ``…Size`` and ``…Pos`` are in float elements of the temporary buffer;
    ``oneCalSize`` counts elements and ``nohCalSize`` rows of a chunk. The last two fields hold the bits of the
    floats 1/H and 2/H.
    """

    stackBufferSize: int = 0
    bLength: int = 0
    sLength: int = 0
    hLength: int = 0
    originalHLength: int = 0
    oneCalSize: int = 0
    nohCalSize: int = 0
    loopNum: int = 0
    tailSize: int = 0
    nohTailSize: int = 0
    tmpTensorBSHPos: int = 0
    tmpTensorBSHSize: int = 0
    pdVarTensorPos: int = 0
    pdVarTensorSize: int = 0
    pdMeanTensorPos: int = 0
    pdMeanTensorSize: int = 0
    x1TensorPos: int = 0
    x1TensorSize: int = 0
    x2TensorPos: int = 0
    x2TensorSize: int = 0
    x3TensorPos: int = 0
    x3TensorSize: int = 0
    tmpTensorPos: int = 0
    tmpTensorSize: int = 0
    tmpTensor1Pos: int = 0
    tmpTensor1Size: int = 0
    tmpTensor2Pos: int = 0
    tmpTensor2Size: int = 0
    lastDimValueBack: int = 0
    lastDimValueBackMulTwo: int = 0


@dataclass
class LayerNormGradBetaTiling(TilingStruct):
    """Tiling of LayerNormGradBeta: 20 words. Source: layernorm_grad_beta_tilingdata.h.

    Unlike the struct above, ``stackBufferSize`` counts float elements here, not bytes.
    """

    stackBufferSize: int = 0
    bLength: int = 0
    sLength: int = 0
    hLength: int = 0
    originalHLength: int = 0
    bshLength: int = 0
    bsLength: int = 0
    oneCalSize: int = 0
    numberOfTmpBuf: int = 0
    loopRound: int = 0
    inputTailSize: int = 0
    inputTailPos: int = 0
    bsTailSize: int = 0
    bshCurLength: int = 0
    bsCurLength: int = 0
    gammaTempTensorPos: int = 0
    betaTempTensorPos: int = 0
    inputDyTmpTensorPos: int = 0
    resForGammaTmpTensorPos: int = 0
    reserved: int = 0


@dataclass
class LayerNormTiling(TilingStruct):
    """Tiling of the LayerNorm that returns mean and variance: 26 words. Source: the manual's LayerNorm Tiling page."""

    bLength: int = 0
    sLength: int = 0
    hLength: int = 0
    originalHLength: int = 0
    inputXSize: int = 0
    meanVarSize: int = 0
    numberOfTmpBuf: int = 0
    meanTmpTensorPos: int = 0
    meanTmpTensorSize: int = 0
    varianceTmpTensorPos: int = 0
    varianceTmpTensorSize: int = 0
    tmpBufSize: int = 0
    oneTmpSize: int = 0
    firstTmpStartPos: int = 0
    secondTmpStartPos: int = 0
    thirdTmpStartPos: int = 0
    loopRound: int = 0
    inputRoundSize: int = 0
    inputTailSize: int = 0
    inputTailPos: int = 0
    meanVarRoundSize: int = 0
    meanVarTailSize: int = 0
    meanVarTailPos: int = 0
    bshCurLength: int = 0
    bsCurLength: int = 0
    lastDimValueBack: float = 0.0


@dataclass
class LayerNormSeparateTiling(TilingStruct):
    """Tiling of the LayerNorm that returns mean and rstd: 26 words. Source: the manual's LayerNorm Tiling page."""

    aLength: int = 0
    rLength: int = 0
    halfAddRepeatTimes: int = 0
    rHeadLength: int = 0
    k2Rec: float = 0.0
    k2RRec: float = 0.0
    inputXSize: int = 0
    meanVarSize: int = 0
    numberOfTmpBuf: int = 0
    varianceTmpTensorPos: int = 0
    varianceTmpTensorSize: int = 0
    tmpBufSize: int = 0
    oneTmpSize: int = 0
    firstTmpStartPos: int = 0
    secondTmpStartPos: int = 0
    thirdTmpStartPos: int = 0
    loopRound: int = 0
    inputRoundSize: int = 0
    inputTailSize: int = 0
    inputTailPos: int = 0
    meanVarRoundSize: int = 0
    meanVarTailSize: int = 0
    meanVarTailPos: int = 0
    arCurLength: int = 0
    aCurLength: int = 0
    rValueBack: float = 0.0
