"""Case files: TTK, ATK, folders of dumps and our own YAML, each read into the same cases.

What they share: a value that knows where it was written, so that every error can say so, and a case made of such values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lngrad.check.case import ADDED, DEFAULT_RANGE, INPUTS, CheckCase, Range, Source
from lngrad.core.norms import NORMS
from lngrad.errors import FileFormatError
from lngrad.files.boundary import one_line

_DTYPES = {
    "fp16": "float16", "half": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
    "fp32": "float32", "float": "float32", "float32": "float32", "fp64": "float64", "double": "float64",
    "float64": "float64",
}  # fmt: skip
MAX_SPECIAL = 64


@dataclass(frozen=True)
class Cell:
    """A value and the place where it was written."""

    value: Any
    where: str

    def wrong(self, expected: str) -> FileFormatError:
        return FileFormatError(f"{self.where}: expected {expected}, got {str(self.value)[:80]!r}")

    def sequence(self, length: int | None = None) -> list[Cell]:
        if not isinstance(self.value, list | tuple) or (length is not None and len(self.value) != length):
            raise self.wrong(f"a sequence of {length} values" if length is not None else "a sequence")
        return [Cell(value, self.where) for value in self.value]

    def mapping(self) -> dict[str, Cell]:
        if not isinstance(self.value, Mapping):
            raise self.wrong("a mapping")
        return {str(key): Cell(value, f"{self.where}, {str(key)[:40]}") for key, value in self.value.items()}

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return self.value

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong("a number")
        try:
            return float(self.value)
        except OverflowError:
            raise self.wrong("a number that float64 holds") from None


def shape_of(cell: Cell) -> tuple[int, ...]:
    """Sizes from 0; rules on their number are the case's."""
    if isinstance(cell.value, int) and not isinstance(cell.value, bool):
        cell = Cell((cell.value,), cell.where)
    sizes = [part.value for part in cell.sequence()]
    if len(sizes) > 16 or any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes):
        raise cell.wrong("a shape of integers from 0")
    return tuple(sizes)


def dtype_name(cell: Cell) -> str:
    name = _DTYPES.get(cell.string().strip().lower())
    if name is None:
        raise cell.wrong("float16, bfloat16, float32 or float64")
    return name


def flag(cell: Cell) -> bool:
    if cell.value in (0, 1):
        return bool(cell.value)
    raise cell.wrong("true or false")


def numbers(cell: Cell, length: int | None = None) -> tuple[float, ...]:
    return tuple(part.number() for part in cell.sequence(length))


def range_of(cell: Cell) -> Range:
    """(low, high, special…) of a pair, a longer sequence or one number; None for the format's default."""
    if isinstance(cell.value, int | float) and not isinstance(cell.value, bool):
        return (cell.number(), cell.number())
    values = numbers(cell)
    if len(values) < 2 or len(values) > 2 + MAX_SPECIAL:
        raise cell.wrong(f"(low, high) and at most {MAX_SPECIAL} special values")
    return values


def ranges_of(cells: Mapping[str, Cell]) -> dict[str, Range]:
    known = {name: cell for name, cell in cells.items() if name in (*INPUTS, *ADDED)}
    return {name: DEFAULT_RANGE if cell.value is None else range_of(cell) for name, cell in known.items()}


def build(
    *, name: str, source: Source, inputs: Mapping[str, tuple[tuple[int, ...], str]], normalized: tuple[int, ...] | None = None,
    output_dtypes: Mapping[str, Cell] | Cell | None = None, mask: Cell | None = None, norm: str = "layer_norm",
    third: Any = "rstd", **others: Any,
) -> CheckCase:  # fmt: skip
    """A case from shapes and dtypes of its tensors by house name.

    Args:
        name, source, third, others: As of CheckCase.
        inputs: (shape, dtype) of each.
        normalized: None: gamma's shape, else the last dimension.
        output_dtypes, mask: Of the norm's results in their order, or dtypes by name; None or an empty cell for the default.
            A last one of a norm without beta is not read.
    """

    def need(holds: bool, text: str) -> None:
        if not holds:
            raise FileFormatError(f"{source}: case {name!r}: {text}")

    missing = [label for label in ("dy", "x", "mean", "statistic") if label not in inputs]
    need(not missing, f"expected tensors for dy, x, mean and {third}, got none for {', '.join(missing[:1])}")
    (shape, dtype), gamma = inputs["x"], inputs.get("gamma")
    need(inputs["dy"] == (shape, dtype), f"dy: expected shape and dtype of x, {shape} {dtype}, got {inputs['dy']}")
    R = normalized if normalized is not None else gamma[0] if gamma else shape[-1:]
    lead = shape[: len(shape) - len(R)]
    fits = len(R) <= len(shape) and shape[len(lead) :] == R
    need(fits, f"normalized shape: expected the last dimensions of x {shape}, got {R}")
    rows = f"{math.prod(lead)} elements, one per row of x {shape}"
    (mean, its_dtype), (statistic, other) = inputs["mean"], inputs["statistic"]
    for label, sizes in (("mean", mean), (third, statistic)):
        need(math.prod(sizes) == math.prod(lead), f"{label}: expected {rows}, got shape {sizes}")
    need(its_dtype == other, f"{third}: expected the dtype of mean, {its_dtype}, got {other}")
    if not isinstance(output_dtypes, Mapping):
        output_dtypes = _by_result(output_dtypes, norm)
    declared = {label: dtype_name(cell) for label, cell in output_dtypes.items() if cell.value is not None}
    flags = {label: flag(cell) for label, cell in _by_result(mask, norm).items()}
    wanted = tuple(label for label, is_wanted in flags.items() if is_wanted) if flags else None
    case = CheckCase(
        one_line(name)[:200], source, lead, R, dtype, gamma[1] if gamma else None, its_dtype, declared, wanted, third,
        norm=norm, **others,
    )  # fmt: skip
    fits = not gamma or gamma[0] in (R, case.parameters)
    need(fits, f"gamma: expected the normalized shape {case.parameters}, got {gamma and gamma[0]}")
    return case


def _by_result(cell: Cell | None, norm: str) -> dict[str, Cell]:
    """The parts of a cell, one for each result of a norm; as many as layer normalization has are taken too."""
    if cell is None or cell.value is None:
        return {}
    outputs = NORMS[norm].backward.outputs
    is_short = isinstance(cell.value, list | tuple) and len(cell.value) == len(outputs)
    return dict(zip(outputs, cell.sequence(len(outputs) if is_short else 3), strict=False))


def names_unique(cases: Sequence[CheckCase]) -> list[CheckCase]:
    """Cases whose name came before get its number behind it."""
    seen: dict[str, int] = {}
    unique = []
    for case in cases:
        seen[case.name] = count = seen.get(case.name, 0) + 1
        unique.append(case if count == 1 else replace(case, name=f"{case.name}#{count}"))
    return unique
