"""The table of the vector instructions: one row an instruction.

The number of an instruction is its place in ``OPERATIONS``: descriptors and the records of compiled kernels carry it,
and the C++ headers are made from the table.

Arithmetic is IEEE in the type of the operands, rounded to nearest even after every instruction; subnormals are kept.
CANN: Rsqrt, Reciprocal, Exp and Ln are the correctly rounded steps of NumPy; a device approximates some of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lngrad.ascend.device.numerics import BFLOAT16, CPP_NAMES, FLOAT, HALF, INT16, INT32
from lngrad.typing import Array


class Operands(enum.Enum):
    """What operands an instruction takes."""

    BINARY = "dst, src0, src1"
    SCALAR = "dst, src, scalar"
    UNARY = "dst, src"
    COPY = "dst, src, of any type"
    DUPLICATE = "dst, scalar"
    CAST = "dst, src, round mode"
    BRCB = "dst, eight elements of src a repeat"
    WHOLE_REDUCE = "one element of dst, a repeat of src"
    REDUCE = "dst[0], src, temporary buffer"

    @property
    def sources(self) -> tuple[str, ...]:
        """The parameters that are read."""
        return {"BINARY": ("src0", "src1"), "DUPLICATE": ()}.get(self.name, ("src",))


@dataclass(frozen=True)
class Operation:
    """One vector instruction.

    Attributes:
        name: As kernels call it.
        operands: What it takes.
        types: Codes of the element types it takes.
        formula: What it computes, for its documentation.
        arithmetic: Writes the result, called as ``arithmetic(…, out)`` on arrays of one shape; None for what is not
            elementwise.
        accumulates: Whether dst may be src1 of every repeat (Add over rows).
    """

    name: str
    operands: Operands
    types: frozenset[int]
    formula: str = ""
    arithmetic: Callable[..., object] | None = None
    accumulates: bool = False


def _max(one: Array, other: Array, out: Array) -> None:
    np.maximum(one, other, out=out)  # by position NumPy calls it deprecated


def _min(one: Array, other: Array, out: Array) -> None:
    np.minimum(one, other, out=out)


def _copy(src: Array, out: Array) -> None:
    out[...] = src


REAL = frozenset((HALF, FLOAT))
NUMBERS = REAL | {INT16, INT32}
ANY_16_32 = frozenset(
    CPP_NAMES.index(n) for n in ("half", "float", "bfloat16_t", "int16_t", "uint16_t", "int32_t", "uint32_t")
)

OPERATIONS = (
    Operation("Add", Operands.BINARY, NUMBERS, "src0 + src1", np.add, accumulates=True),
    Operation("Sub", Operands.BINARY, NUMBERS, "src0 - src1", np.subtract, accumulates=True),
    Operation("Mul", Operands.BINARY, NUMBERS, "src0 * src1", np.multiply, accumulates=True),
    Operation("Div", Operands.BINARY, REAL, "src0 / src1", np.divide),
    Operation("Max", Operands.BINARY, NUMBERS, "max(src0, src1)", _max, accumulates=True),
    Operation("Min", Operands.BINARY, NUMBERS, "min(src0, src1)", _min, accumulates=True),
    Operation("Adds", Operands.SCALAR, NUMBERS, "src + scalarValue", np.add),
    Operation("Muls", Operands.SCALAR, NUMBERS, "src * scalarValue", np.multiply),
    Operation("Maxs", Operands.SCALAR, NUMBERS, "max(src, scalarValue)", _max),
    Operation("Mins", Operands.SCALAR, NUMBERS, "min(src, scalarValue)", _min),
    Operation("Sqrt", Operands.UNARY, REAL, "sqrt(src)", np.sqrt),
    Operation(
        "Rsqrt",
        Operands.UNARY,
        REAL,
        "1 / sqrt(src)",
        lambda src, out: np.divide(src.dtype.type(1), np.sqrt(src), out=out),
    ),
    Operation("Exp", Operands.UNARY, REAL, "e ** src", np.exp),
    Operation("Abs", Operands.UNARY, REAL, "|src|", np.absolute),
    Operation(
        "Reciprocal", Operands.UNARY, REAL, "1 / src", lambda src, out: np.divide(src.dtype.type(1), src, out=out)
    ),
    Operation("Ln", Operands.UNARY, REAL, "ln(src)", np.log),
    Operation(
        "Relu",
        Operands.UNARY,
        REAL | {INT32},
        "max(src, 0)",
        lambda src, out: np.maximum(src, src.dtype.type(0), out=out),
    ),
    Operation("Copy", Operands.COPY, ANY_16_32, arithmetic=_copy),
    Operation("Duplicate", Operands.DUPLICATE, ANY_16_32),
    Operation("Cast", Operands.CAST, REAL | {BFLOAT16, INT32}),
    Operation("Brcb", Operands.BRCB, ANY_16_32),
    Operation("WholeReduceSum", Operands.WHOLE_REDUCE, REAL),
    Operation("ReduceSum", Operands.REDUCE, REAL),
    Operation("DataCopy", Operands.COPY, frozenset(range(len(CPP_NAMES))), arithmetic=_copy),
)
NUMBERS_OF = {operation.name: number for number, operation in enumerate(OPERATIONS)}
