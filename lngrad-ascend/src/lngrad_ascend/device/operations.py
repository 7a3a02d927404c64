"""The table of the vector instructions: one row an instruction.

The number of an instruction is its place in ``OPERATIONS``: descriptors and the records of compiled kernels carry it,
and the C++ headers, the table of docs/ascend-c.md and a test against NumPy are made from the table.

Arithmetic is IEEE in the type of the result, rounded to nearest even after every instruction; subnormals are kept.
Instructions that multiply and add round once. CANN: Rsqrt, Reciprocal, Exp and Ln are the correctly rounded steps of
NumPy; a device approximates some of them. Types are those of the API's pages in the Ascend C manual.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lngrad.typing import Array
from lngrad_ascend.device.numerics import CPP_NAMES, digamma, each, exactly, faster_gelu, gelu, power, sigmoid
from lngrad_ascend.device.pipes import READ_V, WRITE_V

_SOURCES = {
    "BINARY": ("src0", "src1"), "MATH_BINARY": ("src0", "src1"), "MATH_BINARY_SCALAR": ("src0", "src1"),
    "COMPARE": ("src0", "src1"), "DUPLICATE": (), "INDEX": (),
    "SELECT": ("selMask", "src0", "src1"), "SELECT_SCALAR": ("selMask", "src0"), "GATHER": ("src", "srcOffset"),
}  # fmt: skip
_ELEMENTWISE = ("BINARY", "SCALAR", "UNARY", "COPY", "DUPLICATE", "INDEX", "CAST")


class Operands(enum.Enum):
    """The operands that an instruction takes."""

    BINARY = "dst, src0, src1"
    SCALAR = "dst, src, scalar"
    UNARY = "dst, src"
    COPY = "dst, src, of any type"
    DUPLICATE = "dst, scalar"
    INDEX = "dst, first value"
    CAST = "dst, src, round mode"
    BRCB = "dst, eight elements of src a repeat"
    COMPARE = "bits of dst, src0, src1, comparison"
    COMPARE_SCALAR = "bits of dst, src, scalar, comparison"
    SELECT = "dst, bits that choose, src0, src1"
    SELECT_SCALAR = "dst, bits that choose, src, scalar"
    GATHER = "dst, src, offsets in bytes"
    REPEAT_REDUCE = "the results of a repeat of src"
    REDUCE = "dst[0], src, temporary buffer"
    MATH = "dst, src, temporary buffer"
    MATH_BINARY = "dst, src0, src1, temporary buffer"
    MATH_SCALAR = "dst, src, scalar, temporary buffer"
    MATH_BINARY_SCALAR = "dst, src0, src1, scalar, temporary buffer"

    def __init__(self, text: str) -> None:
        self.sources = _SOURCES.get(self.name, ("src",))  # the parameters that are read
        self.uses = (("dst", WRITE_V), *((role, READ_V) for role in self.sources))
        # A library function: by count, with a temporary buffer, never in place.
        self.mathematical = self.name.startswith("MATH")
        # Element i of dst comes from elements i of the sources, by the row's arithmetic.
        self.elementwise = self.mathematical or self.name in _ELEMENTWISE
        self.with_scalar = self.name in ("SCALAR", "MATH_SCALAR", "MATH_BINARY_SCALAR")  # behind the sources


@dataclass(frozen=True)
class Operation:
    """A vector instruction.

    Attributes:
        name: As kernels call it.
        operands: What it takes.
        types: The element types that it takes, all operands of one type, as C++ names them.
        formula: What it computes, for its documentation.
        arithmetic: Writes the result, called as ``arithmetic(…, out)`` on arrays of one shape; None for what is not
            elementwise. A reduction: the ufunc that makes one of two.
        accumulates: Whether dst may be src1 of every repeat (Add over rows).
        reads_dst: Whether it reads dst before it writes it.
        mixed: Types that differ, as "dst src0 src1; …".
        more: What 3510 (950) takes in addition, as ``types``.
        groups: How many results a reduction has of each repeat; 0: one of each two neighbours.
        temporary: The smallest temporary buffer of a library function for half and for float, in 256 bytes.
    """

    name: str
    operands: Operands
    types: str = ""
    formula: str = ""
    arithmetic: Callable[..., Any] | None = None
    accumulates: bool = False
    reads_dst: bool = False
    mixed: str = ""
    more: str = ""
    groups: int = 1
    temporary: tuple[int, int] = (0, 0)

    def takes(self, codes: tuple[int, ...], arch: int) -> bool:
        """Return whether operands may have these types: dst and every source."""
        return codes in _signatures(self, arch)

    def takes_text(self, arch: int) -> str:
        """Return the rule of the types, for a fault."""
        types = f"{self.types} {self.more}" if arch == 3510 else self.types
        if not self.mixed:
            return f"T must be one of {', '.join(sorted(set(types.split()), key=CPP_NAMES.index))}"
        pairs = "; ".join(" from ".join(signature.split(maxsplit=1)) for signature in self.mixed.split("; "))
        alone = f"one type of {', '.join(types.split())}, or " if types.strip() else ""
        return f"expected {alone}{pairs}"


@cache
def _signatures(operation: Operation, arch: int) -> frozenset[tuple[int, ...]]:
    sources = len(operation.operands.sources)
    types = (operation.types + (f" {operation.more}" if arch == 3510 else "")).split()
    same = {(CPP_NAMES.index(name),) * (1 + sources) for name in types}
    mixed = {tuple(map(CPP_NAMES.index, signature.split())) for signature in operation.mixed.split("; ") if signature}
    return frozenset(same | mixed)


def _max(src0: Array, src1: Array, out: Array) -> None:
    np.maximum(src0, src1, out=out)  # by position NumPy calls it deprecated


def _min(src0: Array, src1: Array, out: Array) -> None:
    np.minimum(src0, src1, out=out)


def _copy(src: Array, out: Array) -> None:
    out[...] = src


def _wide(values: Array, out: Array) -> Array:
    """``values`` in a type in which a product of ``out``'s type is exact."""
    return values.astype(np.float64 if out.dtype.itemsize > 2 else np.float32)


def _relu(function: Callable[..., Any]) -> Callable[..., object]:
    """``function``, and what is negative is 0; narrowed to int8 it saturates."""

    def compute(src0: Array, src1: Array, out: Array) -> None:
        result = np.maximum(function(src0, src1), src0.dtype.type(0))
        out[...] = np.clip(np.rint(result), 0, 127) if out.dtype.kind == "i" and src0.dtype.kind != "i" else result

    return compute


def _to_bytes(src0: Array, src1: Array, out: Array) -> None:
    limits = np.iinfo(out.dtype)
    out[...] = np.clip(np.rint(_wide(src0, src0) * src1), limits.min, limits.max)


def _shift_right(src: Array, by: Array, out: Array) -> None:
    np.right_shift(src, by, out=out)


FLOATS = "half float"
NUMBERS = "half float int16_t int32_t"
WORDS = "int16_t uint16_t"
ANY_16_32 = "half float bfloat16_t int16_t uint16_t int32_t uint32_t"
ANY = " ".join(CPP_NAMES)
BF16, BYTES, LONGS = "bfloat16_t", "int8_t uint8_t", "int64_t uint64_t"
ALL_INTEGERS = "int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t"
MORE_OF_950 = f"{BF16} {BYTES} uint16_t uint32_t {LONGS}"
M = Operands.MATH
B, S, U = Operands.BINARY, Operands.SCALAR, Operands.UNARY

_CASTS = (
    "half int8_t; half uint8_t; half int16_t; float int16_t; int8_t half; uint8_t half; int16_t half; int32_t half; "
    "float half; int32_t bfloat16_t; float bfloat16_t; int16_t int32_t; half int32_t; float int32_t; int64_t int32_t; "
    "int16_t float; half float; bfloat16_t float; int32_t float; int64_t float; int32_t int64_t; float int64_t; "
    # Only 950's page has the first two; the others are there too.
    "bfloat16_t half; half bfloat16_t; half int4b_t; int4b_t half"
)

OPERATIONS = (
    Operation("Add", B, NUMBERS, "src0 + src1", np.add, True, more=MORE_OF_950),
    Operation("Sub", B, NUMBERS, "src0 - src1", np.subtract, True, more=MORE_OF_950),
    Operation("Mul", B, NUMBERS, "src0 * src1", np.multiply, True, more=f"{BF16} uint16_t uint32_t {LONGS}"),
    Operation("Div", B, FLOATS, "src0 / src1", np.divide),
    Operation("Max", B, NUMBERS, "max(src0, src1)", _max, True, more=MORE_OF_950),
    Operation("Min", B, NUMBERS, "min(src0, src1)", _min, True, more=MORE_OF_950),
    Operation("Adds", S, NUMBERS, "src + scalarValue", np.add, more=f"{BF16} {BYTES} {LONGS}"),
    Operation("Muls", S, NUMBERS, "src * scalarValue", np.multiply, more=f"{BF16} {LONGS}"),
    Operation("Maxs", S, NUMBERS, "max(src, scalarValue)", _max, more=f"{BF16} {BYTES} {LONGS}"),
    Operation("Mins", S, NUMBERS, "min(src, scalarValue)", _min, more=f"{BF16} {BYTES} {LONGS}"),
    Operation("Sqrt", U, FLOATS, "sqrt(src)", np.sqrt),
    Operation("Rsqrt", U, FLOATS, "1 / sqrt(src)", lambda src, out: np.divide(src.dtype.type(1), np.sqrt(src), out=out)),
    Operation("Exp", U, FLOATS, "e ** src", np.exp),
    Operation("Abs", U, FLOATS, "|src|", np.absolute, more="int8_t int16_t int32_t int64_t"),
    Operation("Reciprocal", U, FLOATS, "1 / src", lambda src, out: np.divide(src.dtype.type(1), src, out=out)),
    Operation("Ln", U, FLOATS, "ln(src)", np.log),
    Operation("Relu", U, "half float int32_t", "max(src, 0)", lambda src, out: _max(src, src.dtype.type(0), out)),
    Operation("Copy", Operands.COPY, ANY_16_32, "src", _copy),
    Operation("Duplicate", Operands.DUPLICATE, ANY_16_32, "scalarValue", more=f"{BYTES} {LONGS}"),
    Operation("Cast", Operands.CAST, "float", "src in another type", mixed=_CASTS),
    Operation("Brcb", Operands.BRCB, ANY_16_32, "each element of src in a block"),
    Operation("WholeReduceSum", Operands.REPEAT_REDUCE, FLOATS, "the sum of each repeat", np.add),
    Operation("ReduceSum", Operands.REDUCE, FLOATS, "the sum of src", np.add),
    Operation("DataCopy", Operands.COPY, ANY, "src", _copy),
    Operation("And", B, WORDS, "src0 & src1", np.bitwise_and, more=ALL_INTEGERS),
    Operation("Or", B, WORDS, "src0 | src1", np.bitwise_or, more=ALL_INTEGERS),
    Operation("Not", U, WORDS, "~src", np.bitwise_not, more=ALL_INTEGERS),
    Operation("Neg", U, "", "-src", np.negative, more="int8_t int16_t half int32_t float int64_t"),
    Operation("AddRelu", B, "half float int16_t", "max(src0 + src1, 0)", _relu(np.add), True),
    Operation("SubRelu", B, "half float int16_t", "max(src0 - src1, 0)", _relu(np.subtract), True),
    Operation("AddReluCast", B, formula="max(src0 + src1, 0) in another type", arithmetic=_relu(np.add),
              mixed="int8_t half half; half float float"),
    Operation("SubReluCast", B, formula="max(src0 - src1, 0) in another type", arithmetic=_relu(np.subtract),
              mixed="int8_t half half; half float float"),
    Operation("MulCast", B, formula="src0 * src1 in another type", arithmetic=_to_bytes,
              mixed="int8_t half half; uint8_t half half"),
    Operation("MulAddDst", B, FLOATS, "src0 * src1 + dst", reads_dst=True, mixed="float half half",
              arithmetic=lambda src0, src1, out: _copy(_wide(src0, out) * _wide(src1, out) + out, out)),
    Operation("FusedMulAdd", B, FLOATS, "src0 * dst + src1", reads_dst=True, more=BF16,
              arithmetic=lambda src0, src1, out: _copy(_wide(src0, out) * _wide(out, out) + src1, out)),
    Operation("MulAddRelu", B, FLOATS, "max(src0 * dst + src1, 0)", reads_dst=True,
              arithmetic=lambda src0, src1, out: _copy(np.maximum(_wide(src0, out) * _wide(out, out) + src1, 0), out)),
    Operation("AbsSub", B, "", "|src0 - src1|", more=FLOATS,
              arithmetic=lambda src0, src1, out: np.absolute(src0 - src1, out=out)),
    Operation("Axpy", S, FLOATS, "src * scalarValue + dst", reads_dst=True, mixed="float half", more=BF16,
              arithmetic=lambda src, scalar, out: _copy(_wide(src, out) * _wide(scalar, out) + out, out)),
    Operation("LeakyRelu", S, FLOATS, "src where it is not negative, else src * scalarValue",
              lambda src, scalar, out: np.copyto(out, np.where(src >= 0, src, src * scalar))),
    Operation("ShiftLeft", S, "int16_t uint16_t int32_t uint32_t", "src << scalarValue", np.left_shift,
              more=f"{BYTES} {LONGS}"),
    Operation("ShiftRight", S, "int16_t uint16_t int32_t uint32_t", "src >> scalarValue", _shift_right,
              more=f"{BYTES} {LONGS}"),
    Operation("CreateVecIndex", Operands.INDEX, NUMBERS, "firstValue + 0, 1, 2, …", more="int8_t int64_t"),
    Operation("Compare", Operands.COMPARE, formula="a bit for each src0 cmpMode src1",
              mixed="uint8_t half half; uint8_t float float; uint8_t int32_t int32_t; int8_t half half; "
                    "int8_t float float; int8_t int32_t int32_t"),
    Operation("CompareScalar", Operands.COMPARE_SCALAR, formula="a bit for each src0 cmpMode src1Scalar",
              mixed="uint8_t half; uint8_t float; uint8_t int32_t; uint8_t int16_t; uint8_t uint16_t; uint8_t uint32_t; "
                    "int8_t half; int8_t float; int8_t int32_t"),
    Operation("Select", Operands.SELECT, formula="src0 where selMask has a bit, else src1",
              mixed="; ".join(f"{T} {u} {T} {T}" for T in ("half", "float")
                              for u in ("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int8_t"))),
    Operation("SelectScalar", Operands.SELECT_SCALAR, formula="src0 where selMask has a bit, else the scalar src1",
              mixed="; ".join(f"{T} {u} {T}" for T in ("half", "float")
                              for u in ("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int8_t"))),
    Operation("Gather", Operands.GATHER, formula="the elements of src at srcBaseOffset + srcOffset",
              mixed="; ".join(f"{T} {T} uint32_t" for T in ANY_16_32.split())),
    Operation("WholeReduceMax", Operands.REPEAT_REDUCE, FLOATS, "the largest of each repeat", np.maximum,
              more="int16_t uint16_t int32_t uint32_t"),
    Operation("WholeReduceMin", Operands.REPEAT_REDUCE, FLOATS, "the smallest of each repeat", np.minimum,
              more="int16_t uint16_t int32_t uint32_t"),
    Operation("BlockReduceSum", Operands.REPEAT_REDUCE, FLOATS, "the sum of each block", np.add, groups=8),
    Operation("BlockReduceMax", Operands.REPEAT_REDUCE, FLOATS, "the largest of each block", np.maximum, groups=8),
    Operation("BlockReduceMin", Operands.REPEAT_REDUCE, FLOATS, "the smallest of each block", np.minimum, groups=8),
    Operation("PairReduceSum", Operands.REPEAT_REDUCE, FLOATS, "the sum of each two neighbours", np.add, groups=0),
    Operation("ReduceMax", Operands.REDUCE, FLOATS, "the largest of src; with calIndex, where it is first",
              np.maximum, more="int16_t uint16_t int32_t uint32_t"),
    Operation("ReduceMin", Operands.REDUCE, FLOATS, "the smallest of src; with calIndex, where it is first",
              np.minimum, more="int16_t uint16_t int32_t uint32_t"),
    *(Operation(name, M, FLOATS, formula, exactly(function), temporary=temporary) for name, formula, function, temporary in (
        ("Acos", "arccos(src)", np.arccos, (6, 2)), ("Acosh", "arcosh(src)", np.arccosh, (2, 1)),
        ("Asin", "arcsin(src)", np.arcsin, (6, 2)), ("Asinh", "arsinh(src)", np.arcsinh, (3, 3)),
        ("Atan", "arctan(src)", np.arctan, (12, 5)), ("Atanh", "artanh(src)", np.arctanh, (4, 1)),
        ("Ceil", "the smallest whole number not below src", np.ceil, (2, 1)), ("Cos", "cos(src)", np.cos, (8, 3)),
        ("Cosh", "cosh(src)", np.cosh, (6, 2)), ("Digamma", "the derivative of ln Γ(src)", each(digamma), (16, 7)),
        ("Erf", "erf(src)", each(math.erf), (8, 3)), ("Erfc", "1 - erf(src)", each(math.erfc), (16, 7)),
        ("Floor", "the largest whole number not above src", np.floor, (2, 0)),
        ("Frac", "src without its whole part", lambda src: src - np.trunc(src), (4, 0)),
        ("Lgamma", "ln |Γ(src)|", each(math.lgamma), (26, 8)), ("Log", "ln(src)", np.log, (0, 0)),
        ("Log2", "log2(src)", np.log2, (2, 0)), ("Log10", "log10(src)", np.log10, (0, 0)),
        ("Round", "the nearest whole number, of two the even one", np.rint, (1, 1)),
        ("Sign", "-1, 0 or 1", np.sign, (3, 3)), ("Sin", "sin(src)", np.sin, (8, 3)),
        ("Sinh", "sinh(src)", np.sinh, (4, 1)), ("Tan", "tan(src)", np.tan, (10, 4)),
        ("Tanh", "tanh(src)", np.tanh, (4, 1)), ("Trunc", "src without its fraction", np.trunc, (2, 1)),
        ("Sigmoid", "1 / (1 + e ** -src)", sigmoid, (1, 1)),
        ("Silu", "src / (1 + e ** -src)", lambda src: src * sigmoid(src), (0, 0)),
        ("Gelu", "src / (1 + e ** (-1.595769 (src + 0.044715 src³)))", gelu, (3, 3)),
        ("FasterGelu", "src / (1 + e ** (-1.702 src))", faster_gelu, (3, 3)),
        ("FasterGeluV2", "as FasterGelu", faster_gelu, (3, 3)),
    )),
    Operation("Rint", M, "", "the nearest whole number, of two the even one", exactly(np.rint), more=FLOATS),
    Operation("Swish", Operands.MATH_SCALAR, FLOATS, "src / (1 + e ** (-scalarValue src))",
              exactly(lambda src, scalar: src * sigmoid(scalar * src))),
    Operation("ClampMax", Operands.MATH_SCALAR, FLOATS, "src where it is below scalar, else scalar", exactly(np.minimum)),
    Operation("ClampMin", Operands.MATH_SCALAR, FLOATS, "src where it is above scalar, else scalar", exactly(np.maximum)),
    Operation("Power", Operands.MATH_BINARY, "half float int32_t", "src0 ** src1", power, temporary=(7, 4)),
    Operation("PowerOfTensor", Operands.MATH_SCALAR, "half float int32_t", "Power with a scalar as src1", power,
              temporary=(7, 5)),
    Operation("PowerOfScalar", Operands.MATH_SCALAR, "half float int32_t", "Power with a scalar as src0",
              lambda src, scalar, out: power(scalar, src, out), temporary=(7, 5)),
    Operation("Fmod", Operands.MATH_BINARY, FLOATS, "src0 - src1 trunc(src0 / src1)", exactly(np.fmod), temporary=(8, 1)),
    Operation("Xor", Operands.MATH_BINARY, WORDS, "src0 ^ src1", np.bitwise_xor, temporary=(1, 1)),
    Operation("GeGLU", Operands.MATH_BINARY, FLOATS, "src0 times Gelu of src1",
              exactly(lambda src0, src1: src0 * gelu(src1)), temporary=(4, 0)),
    Operation("ReGlu", Operands.MATH_BINARY, f"{FLOATS} {BF16}", "src0 max(src1, 0)",
              exactly(lambda src0, src1: src0 * np.maximum(src1, 0)), temporary=(6, 1)),
    Operation("SwiGLU", Operands.MATH_BINARY_SCALAR, FLOATS, "src0 times Swish of src1",
              exactly(lambda src0, src1, beta: src0 * src1 * sigmoid(beta * src1)), temporary=(6, 0)),
    Operation("Hypot", Operands.MATH_BINARY, "", "sqrt(src0² + src1²)", exactly(np.hypot), more=f"{FLOATS} {BF16}"),
    Operation("BitwiseAnd", Operands.MATH_BINARY, "", "src0 & src1", np.bitwise_and, more=ALL_INTEGERS),
    Operation("BitwiseOr", Operands.MATH_BINARY, "", "src0 | src1", np.bitwise_or, more=ALL_INTEGERS),
    Operation("BitwiseXor", Operands.MATH_BINARY, "", "src0 ^ src1", np.bitwise_xor, more=ALL_INTEGERS),
    Operation("BitwiseNot", M, "", "~src", np.bitwise_not, more=ALL_INTEGERS),
)  # fmt: skip
NUMBERS_OF = {operation.name: number for number, operation in enumerate(OPERATIONS)}
