"""Case files of TTK: CSV whose cells are Python literals, in the columns of its kernel mode and of its aclnn mode."""

from __future__ import annotations

import csv
import io
from typing import Any

from lngrad.check.case import CheckCase, Source
from lngrad.check.formats.cells import Cell, build, dtype_name, flag, names_unique, numbers, shape_of
from lngrad.check.formats.literals import LiteralError, parse_literal
from lngrad.errors import FileFormatError

KERNEL_INPUTS = ("dy", "x", "statistic", "mean", "gamma")
ACLNN_TENSORS = ("dy", "x", "mean", "statistic", "gamma", "beta", "dx", "dgamma", "dbeta")


def read_ttk(text: str, file: str) -> list[CheckCase]:
    """All cases of a CSV file; rows of other ops are an error that names them.

    Raises:
        FileFormatError: Naming file, line and column.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip().lstrip("\ufeff") for name in next(rows, [])]
        if len(set(header)) != len(header):
            raise FileFormatError(f"{file}:1: expected every column once, got {header}")
        aclnn = "api_name" in header or "tensor_view_shapes" in header
        needed = ("tensor_view_shapes", "tensor_dtypes") if aclnn else ("input_shapes", "input_dtypes")
        missing = [name for name in ("testcase_name", *needed) if name not in header]
        if missing:
            raise FileFormatError(f"{file}:1: expected a TTK header with {', '.join(missing)}, got {header[:6]}")
        cases = []
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            line = rows.line_num
            if len(row) > len(header):
                raise FileFormatError(f"{file}:{line}: expected {len(header)} cells, as in the header, got {len(row)}")
            cells = dict(zip(header, [*row, *[""] * (len(header) - len(row))], strict=True))
            cases.append((_aclnn if aclnn else _kernel)(_Row(cells, header, Source(file, line))))
    except csv.Error as error:
        raise FileFormatError(f"{file}:{rows.line_num}: {error}") from None
    return names_unique(cases)


class _Row:
    """A row's cells as values, with errors that name line and column."""

    def __init__(self, cells: dict[str, str], header: list[str], source: Source) -> None:
        self.cells, self.header, self.source = cells, header, source

    def text(self, name: str) -> str:
        return self.cells.get(name, "").strip()

    def cell(self, name: str, default: Any = None) -> Cell:
        where = (
            f"{self.source}: column {self.header.index(name) + 1} ({name})" if name in self.header else str(self.source)
        )
        text = self.text(name)
        if not text:
            return Cell(default, where)
        try:
            return Cell(parse_literal(text), where)
        except LiteralError as error:
            raise FileFormatError(f"{where}, character {error.column}: {error}") from None

    def kept(self) -> dict[str, str]:
        known = set(self.header) & _USED
        return {name: text for name, text in self.cells.items() if name not in known and text.strip()}


_USED = {
    "testcase_name",
    "op_name",
    "api_name",
    "input_shapes",
    "input_dtypes",
    "output_shapes",
    "output_dtypes",
    "attributes",
    "input_data_ranges",
    "precision_tolerances",
    "absolute_precision",
    "is_enabled",
    "manual_input_binaries",
    "manual_golden_binaries",
    "tensor_view_shapes",
    "tensor_dtypes",
    "output_tensor_indexes",
    "tensor_data_ranges",
    "manual_tensor_binaries",
}


def _kernel(row: _Row) -> CheckCase:
    op = row.text("op_name").replace("_", "").lower()
    if op not in ("", "layernormgrad", "layernormgradv3"):
        raise FileFormatError(
            f"{row.source}: op_name: expected LayerNormGrad or LayerNormGradV3, got {row.text('op_name')!r}"
        )
    v3 = op == "layernormgradv3"
    shapes = row.cell("input_shapes").sequence(len(KERNEL_INPUTS))
    dtypes = row.cell("input_dtypes").sequence(len(KERNEL_INPUTS))
    outputs = row.cell("output_dtypes", (None,) * 3).sequence(3)
    third = "rstd" if v3 else "variance"
    inputs = {
        name: (shape_of(shape), dtype_name(dtype))
        for name, shape, dtype in zip(KERNEL_INPUTS, shapes, dtypes, strict=True)
    }
    ranges = row.cell("input_data_ranges", (None,) * 5).sequence(len(KERNEL_INPUTS))
    files = _files(row, "manual_input_binaries", KERNEL_INPUTS) | _files(row, "manual_golden_binaries", _GOLDENS)
    attributes = row.cell("attributes", {}).mapping()
    epsilon = attributes.get("epsilon")
    eps = epsilon.number() if epsilon else 1e-12 if inputs["x"][1] == "float32" else 1e-5
    return _finish(row, inputs, outputs, ranges, attributes, files, third, eps, "graph_v3" if v3 else "graph", None)


_GOLDENS = ("golden_0", "golden_1", "golden_2")


def _aclnn(row: _Row) -> CheckCase:
    api = row.text("api_name").replace("_", "").lower()
    if api not in ("", "aclnnlayernormbackward", "layernormbackward"):
        raise FileFormatError(f"{row.source}: api_name: expected aclnnLayerNormBackward, got {row.text('api_name')!r}")
    shapes = row.cell("tensor_view_shapes").sequence()
    dtypes = row.cell("tensor_dtypes").sequence(len(shapes))
    if not 4 <= len(shapes) <= len(ACLNN_TENSORS):
        raise FileFormatError(
            f"{shapes[0].where if shapes else row.source}: expected 4 to 9 tensors, got {len(shapes)}"
        )
    inputs = {
        name: (shape_of(shape), dtype_name(dtype))
        for name, shape, dtype in zip(ACLNN_TENSORS, shapes, dtypes, strict=False)
        if shape.value is not None
    }
    outputs = [Cell(inputs[name][1] if name in inputs else None, str(row.source)) for name in ("dx", "dgamma", "dbeta")]
    name = "tensor_data_ranges" if "tensor_data_ranges" in row.header else "input_data_ranges"
    ranges = row.cell(name, ()).sequence()
    ranges = [*ranges, *[Cell(None, str(row.source))] * (len(ACLNN_TENSORS) - len(ranges))]
    files = _files(row, "manual_tensor_binaries", (*ACLNN_TENSORS[:6], *_GOLDENS))
    attributes = row.cell("attributes", {}).mapping()
    normalized = next((attributes[key] for key in ("normalizedShape", "normalized_shape") if key in attributes), None)
    return _finish(row, inputs, outputs, ranges, attributes, files, "rstd", 1e-5, "aclnn", normalized)


def _files(row: _Row, column: str, names: tuple[str, ...]) -> dict[str, str]:
    cell = row.cell(column, ())
    paths = (cell,) if isinstance(cell.value, str) else cell.sequence()
    if len(paths) > len(names):
        raise FileFormatError(f"{cell.where}: expected at most {len(names)} paths, got {len(paths)}")
    return {name: path.string() for name, path in zip(names, paths, strict=False) if path.value is not None}


def _finish(
    row: _Row,
    inputs: dict[str, Any],
    outputs: Any,
    ranges: Any,
    attributes: dict[str, Cell],
    files: dict[str, str],
    third: str,
    eps: float,
    surface: str,
    normalized: Cell | None,
) -> CheckCase:
    order = KERNEL_INPUTS if surface != "aclnn" else ACLNN_TENSORS
    mask = next((attributes[key] for key in ("output_mask", "outputMask") if key in attributes), None)
    tolerances = row.cell("precision_tolerances").value
    pair = None
    if tolerances is not None:
        first = row.cell("precision_tolerances").sequence()[0]
        pair = numbers(first if isinstance(first.value, tuple) else row.cell("precision_tolerances"), 2)
    atol = row.cell("absolute_precision")
    return build(
        name=row.text("testcase_name") or f"line {row.source.line}",
        source=row.source,
        inputs=inputs,
        normalized=shape_of(normalized) if normalized else None,
        output_dtypes=outputs,
        mask=mask,
        third=third,
        eps=eps,
        ranges=dict(zip(order, ranges, strict=False)),
        files=files,
        surface=surface,
        tolerances=(pair[0], pair[1]) if pair else None,
        atol=None if atol.value is None else atol.number(),
        enabled=flag(row.cell("is_enabled", True)),
        others=row.kept(),
    )
