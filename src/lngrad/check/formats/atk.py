"""Case files of ATK: a JSON list of cases, whose inputs come in the order of aclnnLayerNormBackward's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lngrad.check.case import CheckCase, Source
from lngrad.check.formats.cells import Cell, build, dtype_name, names_unique, shape_of
from lngrad.errors import FileFormatError
from lngrad.files.boundary import parse_json

_TENSORS = {
    "gradout": "dy", "input": "x", "mean": "mean", "rstd": "statistic", "weight": "gamma", "weightoptional": "gamma",
    "bias": "beta", "biasoptional": "beta",
}  # fmt: skip
_ATTRIBUTES = ("normalizedshape", "outputmask")


def read_atk(text: str, file: str) -> list[CheckCase]:
    """All cases of a JSON file.

    Raises:
        FileFormatError: Naming the file, the case, the input, and line and column where the JSON itself is broken.
    """
    cases = []
    for number, item in enumerate(Cell(parse_json(text, file), file).sequence()):
        cases.append(_case(Cell(item.value, f"{file}: case {number + 1}"), file, number))
    return names_unique(cases)


def _case(cell: Cell, file: str, number: int) -> CheckCase:
    keys = cell.mapping()
    name = str(keys["name"].value if "name" in keys else keys["id"].value if "id" in keys else f"case {number + 1}")
    api = str(keys["aclnn_name"].value if "aclnn_name" in keys else "LayerNormBackward")
    if api.replace("_", "").lower().removeprefix("aclnn") != "layernormbackward":
        raise keys["aclnn_name"].wrong("LayerNormBackward")
    if "inputs" not in keys:
        raise FileFormatError(f"{cell.where}: expected the key 'inputs', got {', '.join(list(keys)[:8])}")
    tensors: dict[str, dict[str, Cell]] = {}
    attributes: dict[str, Any] = {}
    for item in keys["inputs"].sequence():
        for key, part in _entries(item):
            if key in _ATTRIBUTES:
                attributes.setdefault(key, []).append(part)
            elif key in _TENSORS:
                tensors[_TENSORS[key]] = part
            else:
                known = "gradOut, input, mean, rstd, weight, bias, normalizedShape or outputMask"
                raise FileFormatError(f"{item.where}: name: expected {known}, got {key!r}")
    inputs = {}
    for label, tensor in tensors.items():
        if "shape" in tensor and tensor["shape"].value is not None:
            if "dtype" not in tensor:
                raise FileFormatError(f"{tensor['shape'].where}: expected a dtype beside the shape")
            inputs[label] = (shape_of(tensor["shape"]), dtype_name(tensor["dtype"]))
    normalized = _values(attributes.get("normalizedshape"), cell.where)
    return build(
        name=name,
        source=Source(file),
        inputs=inputs,
        normalized=shape_of(normalized) if normalized else None,
        output_dtypes=[Cell(None, cell.where)] * 3,
        mask=_values(attributes.get("outputmask"), cell.where),
        third="rstd",
        eps=1e-5,
        ranges={label: _range(tensor, cell.where) for label, tensor in tensors.items()},
        files={},
        surface="aclnn",
        tolerances=None,
        atol=None,
        enabled=True,
        others={
            key: str(part.value)[:200] for key, part in keys.items() if key not in ("name", "inputs", "aclnn_name")
        },
    )


def _entries(item: Cell) -> Iterator[tuple[str, dict[str, Cell]]]:
    """(lower-case name, keys) of an input: one for a tensor, one for each value of an attribute array, however nested."""
    if isinstance(item.value, list):
        for part in item.sequence():
            yield from _entries(part)
        return
    keys = item.mapping()
    if "name" not in keys:
        raise FileFormatError(f"{item.where}: expected an input with a name, got {list(keys)[:8]}")
    yield keys["name"].string().replace("_", "").lower(), keys


def _values(parts: Any, where: str) -> Cell | None:
    """The values of an attribute array as one sequence."""
    if not parts:
        return None
    values: list[Any] = []
    for part in parts:
        value = part["range_values"].value if "range_values" in part else None
        values.extend(value) if isinstance(value, list) else values.append(value)
    return Cell(tuple(values), where)


def _range(tensor: dict[str, Cell], where: str) -> Cell:
    """range_values, with the outlier values behind it."""
    cell = tensor.get("range_values", Cell(None, where))
    special = tensor.get("outlier_values", Cell(None, where)).value
    if not special:
        return cell
    base = (
        cell.value if isinstance(cell.value, list) else [cell.value, cell.value] if cell.value is not None else [-2, 2]
    )
    extra = [part.value for part in Cell(special, cell.where).sequence()]
    return Cell(tuple(base) + tuple(_NUMBERS.get(str(value).lower(), value) for value in extra), cell.where)


_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
