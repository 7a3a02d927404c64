"""The tiling structs: their fields in CANN's order, and the way to and from the bytes that a kernel is handed.

A tiling struct on the device is a little-endian C struct. The dataclasses here have its fields by name: ``int`` is
a uint32_t, ``float`` a 32-bit float, ``int64``, ``uint64`` and the other names of ``FIELD_TYPES`` what they say, a
nested struct its own fields in place. Every field starts at a multiple of its size, as a C++ compiler places it; a
struct with ``PACKED = True`` has no gaps (``#pragma pack(1)``). A kernel author's own struct inherits from
``TilingStruct`` in the same way as the ones of this file.
"""

from __future__ import annotations

import json
import struct
import typing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from lngrad.errors import FileFormatError
from lngrad_ascend.faults import TilingError

UINT32_MAX = 0xFFFF_FFFF
Struct = TypeVar("Struct", bound="TilingStruct")


def float_bits(value: float) -> int:
    """Return the IEEE-754 single-precision bits of ``value`` as an unsigned word."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def float_from_bits(word: int) -> float:
    """Return the single-precision number whose bits are ``word``."""
    return float(struct.unpack("<f", struct.pack("<I", word))[0])


# Types of fields: how ``struct`` writes them.
int8, uint8 = Annotated[int, "<b"], Annotated[int, "<B"]
int16, uint16 = Annotated[int, "<h"], Annotated[int, "<H"]
int32, uint32 = Annotated[int, "<i"], Annotated[int, "<I"]
int64, uint64 = Annotated[int, "<q"], Annotated[int, "<Q"]
_PLAIN: dict[Any, Any] = {float: Annotated[float, "<f"], int: uint32}
FIELD_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_FORMATS = {"float": "<f", **{name: typing.get_args(globals()[name])[1] for name in FIELD_TYPES}}


class _Field(NamedTuple):
    """A field of a struct: its place, and its format."""

    name: str
    start: int
    code: str  # of ``struct``; "" for a nested struct
    kind: Any


@dataclass
class TilingStruct:
    """Base of all tiling structs; every field has a default.

    Attributes:
        PACKED: Whether fields follow each other without gaps.
    """

    PACKED: ClassVar[bool] = False

    @classmethod
    def size_bytes(cls) -> int:
        """Return the size of the struct in bytes, the gap at its end included."""
        return _layout(cls)[1]

    def to_bytes(self) -> bytes:
        """Return the struct as the device sees it: little-endian, gaps of 0. TilingError if a field does not fit its type."""
        layout, size, _ = _layout(type(self))
        data = bytearray(size)
        for entry in layout:
            value = getattr(self, entry.name)
            packed = value.to_bytes() if not entry.code else _pack(f"{type(self).__name__}.{entry.name}", entry, value)
            data[entry.start : entry.start + len(packed)] = packed
        return bytes(data)

    @classmethod
    def from_bytes(cls: type[Struct], data: bytes) -> Struct:
        """Read the struct from the start of ``data``. TilingError if that is shorter; bytes behind it are left alone."""
        layout, size, _ = _layout(cls)
        if len(data) < size:
            raise TilingError(f"tiling: {cls.__name__} takes {size} bytes, got a buffer of {len(data)} bytes")
        plain = {entry.name: struct.unpack_from(entry.code, data, entry.start)[0] for entry in layout if entry.code}
        nested = {entry.name: entry.kind.from_bytes(data[entry.start :]) for entry in layout if not entry.code}
        return cls(**plain, **nested)


def _layout(cls: Any) -> tuple[tuple[_Field, ...], int, int]:
    """Return the fields, the size and the alignment. Resolving annotations takes longer than reading the struct."""
    if cls in _layouts:
        return _layouts[cls]
    hints = typing.get_type_hints(cls, include_extras=True)
    placed, stop, alignment = [], 0, 1
    for field in fields(cls):
        kind = hints[field.name]
        code, size, align = _type_of(f"{cls.__name__}.{field.name}", kind)
        align = 1 if cls.PACKED else align
        start = -(-stop // align) * align
        placed.append(_Field(field.name, start, code, kind))
        stop, alignment = start + size, max(alignment, align)
    _layouts[cls] = (tuple(placed), -(-stop // alignment) * alignment, alignment)
    return _layouts[cls]


def _type_of(name: str, kind: Any) -> tuple[str, int, int]:
    """Return (code of ``struct``, bytes, alignment) of a field's type; the code of a nested struct is empty."""
    kind = _PLAIN.get(kind, kind)
    if typing.get_origin(kind) is Annotated:
        code = typing.get_args(kind)[1]
        return code, struct.calcsize(code), struct.calcsize(code)
    if isinstance(kind, type) and issubclass(kind, TilingStruct):
        _, size, align = _layout(kind)
        return "", size, align
    raise TilingError(f"{name}: expected int, float, a TilingStruct or one of {', '.join(FIELD_TYPES)}, got {kind!r}")


_layouts: dict[Any, tuple[tuple[_Field, ...], int, int]] = {}


def _pack(name: str, entry: _Field, value: Any) -> bytes:
    if entry.code == "<f":
        return struct.pack("<f", value)
    bits, signed = 8 * struct.calcsize(entry.code), entry.code[1].islower()
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise TilingError(f"{name}: a {'' if signed else 'u'}int{bits}_t holds {low} to {high}, got {value}")
    return struct.pack(entry.code, value)


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
class _NormTiling(TilingStruct):
    """The 26 words of LayerNorm with mean and variance, and of DeepNorm."""

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
class LayerNormTiling(_NormTiling):
    """Tiling of the LayerNorm that returns mean and variance. Source: the manual's LayerNorm Tiling page."""


@dataclass
class DeepNormTiling(_NormTiling):
    """Tiling of DeepNorm. Source: deepnorm_tilingdata.h."""


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


@dataclass
class SoftMaxTiling(TilingStruct):
    """Tiling of SoftMax and what belongs to it: 16 words. Source: softmax_tilingdata.h."""

    srcM: int = 0
    srcK: int = 0
    srcSize: int = 0
    outMaxM: int = 0
    outMaxK: int = 0
    outMaxSize: int = 0
    splitM: int = 0
    splitK: int = 0
    splitSize: int = 0
    reduceM: int = 0
    reduceK: int = 0
    reduceSize: int = 0
    rangeM: int = 0
    tailM: int = 0
    tailSplitSize: int = 0
    tailReduceSize: int = 0


@dataclass
class RmsNormTiling(TilingStruct):
    """Tiling of RmsNorm: 12 words. Source: rmsnorm_tilingdata.h."""

    bLength: int = 0
    sLength: int = 0
    hLength: int = 0
    originalHLength: int = 0
    reciprocalOfHLength: float = 0.0
    mainBshLength: int = 0
    mainBsLength: int = 0
    mainBsLengthAlign: int = 0
    loopRound: int = 0
    inputTailPos: int = 0
    tailBshLength: int = 0
    tailBsLength: int = 0


def tiling_of(path: Path) -> bytes:
    """Return the bytes of a tiling file.

    A .json file is an object of fields in the struct's order: a whole number is a uint32_t, a number with a
    point a float, ["uint64", 5] names its type, and an object is a struct in place. There is no padding. Raises
    FileFormatError if it has something else.
    """
    if path.suffix != ".json":
        return path.read_bytes()
    try:
        return _packed(json.loads(path.read_text(encoding="utf-8")), path.name)
    except (ValueError, struct.error) as error:
        raise FileFormatError(f"{path}: {error}") from None


def _packed(value: object, where: str) -> bytes:
    if isinstance(value, dict):
        return b"".join(_packed(member, f"{where}: {name}") for name, member in value.items())
    if isinstance(value, list) and len(value) == 2 and value[0] in _FORMATS:
        return struct.pack(_FORMATS[value[0]], value[1])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FileFormatError(f"{where}: expected a number, [type, number] or an object, got {value!r}")
    return struct.pack("<I" if isinstance(value, int) else "<f", value)
