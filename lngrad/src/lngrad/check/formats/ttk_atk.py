"""Case files of Ascend's test kits: the CSV of TTK, whose cells are Python literals, and the JSON of ATK."""

from __future__ import annotations

import ast
import csv
import io
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from lngrad.check.case import DEFAULT_RANGE, INPUTS, CheckCase, Source
from lngrad.check.formats import Cell, build, dtype_name, flag, names_unique, numbers, ranges_of, shape_of
from lngrad.core.problem import BACKWARD
from lngrad.errors import FileFormatError
from lngrad.files.boundary import parse_json

KERNEL_INPUTS = ("dy", "x", "statistic", "mean", "gamma")
ACLNN_TENSORS = (*INPUTS, "beta", *BACKWARD.outputs)


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


class LiteralError(ValueError):
    """Not a literal; `column` counts from 1 within the text."""

    def __init__(self, text: str, column: int) -> None:
        super().__init__(text)
        self.column = column


MAX_CHARACTERS = 65536
MAX_DEPTH = 16
_NAMES = {
    "None": None, "null": None, "True": True, "true": True, "TRUE": True, "False": False, "false": False,
    "FALSE": False, "inf": math.inf, "Infinity": math.inf, "nan": math.nan, "NaN": math.nan,
}  # fmt: skip
_TOKEN = re.compile(
    r"(?P<number>[+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,4})?)(?![\w.])|[+-]?(?P<name>[A-Za-z_]\w{0,40})"
    r"|(?P<string>'[^'\\\n]*'|\"[^\"\\\n]*\")|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<mark>[,:])",
    re.ASCII,
)


def parse_literal(text: str) -> Any:
    """The value of a literal: numbers, strings, names of Python and JSON for nothing, true, false, inf and nan, in brackets.

    A cell is data: it is split into these tokens first, and nothing that would call, look up or compute gets to Python's
    parser, nor anything deeper or longer than these limits.

    Raises:
        LiteralError: It is none, is longer than 65536 characters or deeper than 16 brackets.
    """
    if len(text) > MAX_CHARACTERS:
        raise LiteralError(f"expected at most {MAX_CHARACTERS} characters, got {len(text)}", MAX_CHARACTERS)
    stop = len(text.rstrip())
    start = end = _after_space(text, 0)
    depth, after_value = 0, False
    while end < stop:
        at = _after_space(text, end)
        token = _TOKEN.match(text, at)
        if token is None or (token["name"] and token["name"] not in _NAMES):
            got = f"the name {token[0]!r}" if token else repr(text[at : at + 20])
            raise LiteralError(f"expected a literal, got {got}", at + 1)
        if (after_value and not (token["close"] or token["mark"])) or (token["mark"] and not depth):
            raise LiteralError(f"expected nothing more, or ',', got {text[at : at + 20]!r}", at + 1)
        depth += bool(token["open"]) - bool(token["close"])
        if depth > MAX_DEPTH:
            raise LiteralError(f"expected at most {MAX_DEPTH} brackets in each other", at + 1)
        after_value, end = not (token["open"] or token["mark"]), token.end()
    try:
        return _value_of(ast.parse(" ".join(text.split("\n"))[start:], mode="eval").body)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, LiteralError):
            raise LiteralError(str(error), start + error.column) from None
        raise LiteralError("ends too early" if depth else "expected a literal", end + 1) from None


def _after_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def _value_of(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _NAMES[node.id]
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(map(_value_of, node.elts))
    if isinstance(node, ast.UnaryOp) and type(value := _value_of(node.operand)) in (int, float):
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        if all(isinstance(key, str) for key in keys):
            return dict(zip(keys, map(_value_of, node.values), strict=True))
        raise LiteralError("expected strings as keys", node.col_offset + 1)
    raise LiteralError("expected a value", node.col_offset + 1)


class _Row:
    """A row's cells as values, with errors that name line and column."""

    def __init__(self, cells: dict[str, str], header: list[str], source: Source) -> None:
        self.cells, self.header, self.source = cells, header, source

    def text(self, name: str) -> str:
        return self.cells.get(name, "").strip()

    def cell(self, name: str, default: Any = None) -> Cell:
        column = f": column {self.header.index(name) + 1} ({name})" if name in self.header else ""
        where, text = f"{self.source}{column}", self.text(name)
        if not text:
            return Cell(default, where)
        try:
            return Cell(parse_literal(text), where)
        except LiteralError as error:
            raise FileFormatError(f"{where}, character {error.column}: {error}") from None

    def attribute(self, *names: str) -> Cell | None:
        attributes = self.cell("attributes", {}).mapping()
        return next((attributes[name] for name in names if name in attributes), None)

    def kept(self) -> dict[str, str]:
        known = set(self.header) & _USED
        return {name: text for name, text in self.cells.items() if name not in known and text.strip()}


_USED = {
    "testcase_name", "op_name", "api_name", "input_shapes", "input_dtypes", "output_shapes", "output_dtypes",
    "attributes", "input_data_ranges", "precision_tolerances", "absolute_precision", "is_enabled",
    "manual_input_binaries", "manual_golden_binaries", "tensor_view_shapes", "tensor_dtypes",
    "output_tensor_indexes", "tensor_data_ranges", "manual_tensor_binaries",
}  # fmt: skip


def _kernel(row: _Row) -> CheckCase:
    op, number = row.text("op_name").replace("_", "").lower(), len(KERNEL_INPUTS)
    if op not in ("", "layernormgrad", "layernormgradv3"):
        got = repr(row.text("op_name"))
        raise FileFormatError(f"{row.source}: op_name: expected LayerNormGrad or LayerNormGradV3, got {got}")
    shapes, dtypes = (row.cell(column).sequence(number) for column in ("input_shapes", "input_dtypes"))
    inputs = _tensors(zip(KERNEL_INPUTS, shapes, dtypes, strict=True))
    v3, epsilon = op == "layernormgradv3", row.cell("attributes", {}).mapping().get("epsilon")
    return _built(
        row, KERNEL_INPUTS, inputs, row.cell("input_data_ranges", (None,) * number).sequence(number),
        output_dtypes=row.cell("output_dtypes"),
        third="rstd" if v3 else "variance",
        eps=epsilon.number() if epsilon else 1e-12 if inputs["x"][1] == "float32" else 1e-5,
        files=_files(row, "manual_input_binaries", KERNEL_INPUTS) | _files(row, "manual_golden_binaries", _GOLDENS),
        surface="graph_v3" if v3 else "graph",
    )  # fmt: skip


_GOLDENS = ("golden_0", "golden_1", "golden_2")


def _aclnn(row: _Row) -> CheckCase:
    api = row.text("api_name").replace("_", "").lower()
    if api not in ("", "aclnnlayernormbackward", "layernormbackward"):
        raise FileFormatError(f"{row.source}: api_name: expected aclnnLayerNormBackward, got {row.text('api_name')!r}")
    shapes = row.cell("tensor_view_shapes").sequence()
    dtypes = row.cell("tensor_dtypes").sequence(len(shapes))
    if not 4 <= len(shapes) <= len(ACLNN_TENSORS):
        where = shapes[0].where if shapes else row.source
        raise FileFormatError(f"{where}: expected 4 to 9 tensors, got {len(shapes)}")
    tensors = _tensors(
        cells for cells in zip(ACLNN_TENSORS, shapes, dtypes, strict=False) if cells[1].value is not None
    )
    ranges = row.cell("tensor_data_ranges" if "tensor_data_ranges" in row.header else "input_data_ranges", ())
    normalized = row.attribute("normalizedShape", "normalized_shape")
    return _built(
        row, ACLNN_TENSORS, tensors, ranges.sequence(),
        output_dtypes={name: Cell(tensors[name][1], str(row.source)) for name in BACKWARD.outputs if name in tensors},
        normalized=shape_of(normalized) if normalized else None,
        files=_files(row, "manual_tensor_binaries", (*ACLNN_TENSORS[:6], *_GOLDENS)),
        surface="aclnn",
    )  # fmt: skip


def _tensors(cells: Iterable[tuple[str, Cell, Cell]]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (shape_of(shape), dtype_name(dtype)) for name, shape, dtype in cells}


def _files(row: _Row, column: str, names: tuple[str, ...]) -> dict[str, str]:
    cell = row.cell(column, ())
    paths = (cell,) if isinstance(cell.value, str) else cell.sequence()
    if len(paths) > len(names):
        raise FileFormatError(f"{cell.where}: expected at most {len(names)} paths, got {len(paths)}")
    return {name: path.string() for name, path in zip(names, paths, strict=False) if path.value is not None}


def _built(row: _Row, order: tuple[str, ...], inputs: dict[str, Any], ranges: list[Cell], **others: Any) -> CheckCase:
    tolerances, atol = row.cell("precision_tolerances"), row.cell("absolute_precision")
    if tolerances.value is not None and isinstance(tolerances.sequence()[0].value, tuple):
        tolerances = tolerances.sequence()[0]
    empty = [Cell(None, str(row.source))] * len(order)
    return build(
        name=row.text("testcase_name") or f"line {row.source.line}", source=row.source, inputs=inputs,
        mask=row.attribute("output_mask", "outputMask"), ranges=ranges_of(dict(zip(order, [*ranges, *empty], strict=False))),
        tolerances=None if tolerances.value is None else numbers(tolerances, 2),
        atol=None if atol.value is None else atol.number(), enabled=flag(row.cell("is_enabled", True)),
        others=row.kept(), **others,
    )  # fmt: skip


_ATK_TENSORS = {
    "gradout": "dy", "input": "x", "mean": "mean", "rstd": "statistic", "weight": "gamma", "weightoptional": "gamma",
    "bias": "beta", "biasoptional": "beta",
}  # fmt: skip
_ATK_ATTRIBUTES = ("normalizedshape", "outputmask")


def read_atk(text: str, file: str) -> list[CheckCase]:
    """All cases of a JSON file.

    Raises:
        FileFormatError: Naming the file, the case, the input, and line and column where the JSON itself is broken.
    """
    cases = []
    for number, item in enumerate(Cell(parse_json(text, file), file).sequence()):
        cases.append(_atk_case(Cell(item.value, f"{file}: case {number + 1}"), file, number))
    return names_unique(cases)


def _atk_case(cell: Cell, file: str, number: int) -> CheckCase:
    keys = cell.mapping()
    name = str(keys["name"].value if "name" in keys else keys["id"].value if "id" in keys else f"case {number + 1}")
    api = str(keys["aclnn_name"].value if "aclnn_name" in keys else "LayerNormBackward")
    if api.replace("_", "").lower().removeprefix("aclnn") != "layernormbackward":
        raise keys["aclnn_name"].wrong("LayerNormBackward")
    if "inputs" not in keys:
        raise FileFormatError(f"{cell.where}: expected the key 'inputs', got {', '.join(list(keys)[:8])}")
    tensors: dict[str, dict[str, Cell]] = {}
    attributes: dict[str, list[dict[str, Cell]]] = {key: [] for key in _ATK_ATTRIBUTES}
    for item in keys["inputs"].sequence():
        for key, part in _atk_entries(item):
            if key in attributes:
                attributes[key].append(part)
            elif key in _ATK_TENSORS:
                tensors[_ATK_TENSORS[key]] = part
            else:
                known = "gradOut, input, mean, rstd, weight, bias, normalizedShape or outputMask"
                raise FileFormatError(f"{item.where}: name: expected {known}, got {key!r}")
    inputs = {}
    for label, tensor in tensors.items():
        if "shape" in tensor and tensor["shape"].value is not None:
            if "dtype" not in tensor:
                raise FileFormatError(f"{tensor['shape'].where}: expected a dtype beside the shape")
            inputs[label] = (shape_of(tensor["shape"]), dtype_name(tensor["dtype"]))
    normalized, mask = (_atk_values(attributes[key], cell.where) for key in _ATK_ATTRIBUTES)
    rest = {key: str(part.value)[:200] for key, part in keys.items() if key not in ("name", "inputs", "aclnn_name")}
    return build(
        name=name, source=Source(file), inputs=inputs, normalized=shape_of(normalized) if normalized else None, mask=mask,
        ranges=ranges_of({label: _atk_range(tensor, cell.where) for label, tensor in tensors.items()}),
        surface="aclnn", others=rest,
    )  # fmt: skip


def _atk_entries(item: Cell) -> Iterator[tuple[str, dict[str, Cell]]]:
    """(lower-case name, keys) of an input: one for a tensor, one for each value of an attribute array, however nested."""
    if isinstance(item.value, list):
        for part in item.sequence():
            yield from _atk_entries(part)
        return
    keys = item.mapping()
    if "name" not in keys:
        raise FileFormatError(f"{item.where}: expected an input with a name, got {list(keys)[:8]}")
    yield keys["name"].string().replace("_", "").lower(), keys


def _atk_values(parts: list[dict[str, Cell]], where: str) -> Cell | None:
    """The values of an attribute array as one sequence."""
    if not parts:
        return None
    values: list[Any] = []
    for part in parts:
        value = part["range_values"].value if "range_values" in part else None
        values.extend(value) if isinstance(value, list) else values.append(value)
    return Cell(tuple(values), where)


def _atk_range(tensor: dict[str, Cell], where: str) -> Cell:
    """range_values, with the outlier values behind it."""
    cell = tensor.get("range_values", Cell(None, where))
    special = tensor.get("outlier_values", Cell(None, where)).value
    if not special:
        return cell
    base = DEFAULT_RANGE if cell.value is None else cell.value if isinstance(cell.value, list) else [cell.value] * 2
    extra = [part.value for part in Cell(special, cell.where).sequence()]
    words = ("inf", "-inf", "nan")
    values = (float(value) if str(value).lower() in words else value for value in extra)
    return Cell((*(base or ()), *values), cell.where)
