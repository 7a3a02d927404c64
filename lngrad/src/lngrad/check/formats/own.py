"""Our own case files: YAML, one mapping a case, with defaults on top. See docs/check.md for every key."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lngrad.check.case import ADDED, INPUTS, CheckCase, Range, Source
from lngrad.check.formats import Cell, build, dtype_name, flag, names_unique, ranges_of, shape_of
from lngrad.core.norms import NORMS
from lngrad.errors import FileFormatError, install_command
from lngrad.files.boundary import as_format_error
from lngrad.support.dtypes import accumulator_for

KEYS = (
    "name", "shape", "normalized", "dtype", "gamma", "statistics", "outputs", "output_mask", "given", "eps", "ranges",
    "norm", "surface", "standard", "zeros", "layouts", "recomputed", "calls", "enabled",
)  # fmt: skip
MAX_DEPTH = 8
SURFACES = ("graph", "graph_v3", "aclnn")


def read_own(text: str, file: str) -> list[CheckCase]:
    """All cases of a YAML file.

    Raises:
        FileFormatError: Naming file, line and column.
    """
    if find_spec("yaml") is None:
        raise FileFormatError(f"{file}: needs pyyaml to be read: {install_command('check')}")
    with as_format_error(file, "is no YAML that can be read"):
        document = _Document(text, file)
        top, nodes = document.mapping(document.root)
    version = top.get("lngrad")
    if version is None or version.value != 1:
        got = version and version.value
        raise FileFormatError(f"{file}:1: expected 'lngrad: 1', the version of this format, got {got}")
    defaults = document.mapping(nodes["defaults"])[0] if "defaults" in nodes else {}
    if "cases" not in top:
        raise FileFormatError(f"{file}:1: expected the key 'cases'")
    for key in top:
        if key not in ("lngrad", "defaults", "cases"):
            raise FileFormatError(f"{top[key].where}: expected lngrad, defaults or cases, got {key!r}")
    if not isinstance(top["cases"].value, list):
        raise top["cases"].wrong("a list of cases")
    places = [(node, document.where(node), Source(file, node.start_mark.line + 1)) for node in nodes["cases"].value]
    return names_unique([_case(defaults | document.mapping(node)[0], where, source) for node, where, source in places])


_WORD = re.compile(r'("[^"]*"|true|false|-?\d[\d.e+-]*)(?=[,}\]])|[^\s{}\[\],:"][^{}\[\],:"]*')
_NUMBERS = {".nan": "NaN", ".inf": "Infinity", "-.inf": "-Infinity"}


def read_shipped(path: Path) -> list[CheckCase]:
    """All cases of a file of ours that has each on a line of its own, `  - {…}`; it needs no YAML parser."""
    cases = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("  - {"):
            text = _WORD.sub(
                lambda word: word[1] or _NUMBERS.get(word[0], f'"{word[0]}"'), line[4 : line.rindex("}") + 1]
            )
            cells = {key: Cell(value, f"{path}:{number}: {key}") for key, value in json.loads(text).items()}
            cases.append(_case(cells, f"{path}:{number}", Source(f"{path.stem} cases")))
    return cases


class _Document:
    """A YAML document's nodes, and where they are. Aliases are refused, since ten lines of them stand for gigabytes."""

    def __init__(self, text: str, file: str) -> None:
        import yaml

        self.file = file
        try:
            self.loader = yaml.SafeLoader(text)
            try:
                depth = 0  # the parser's time is its square
                for token in yaml.scan(text):
                    kind = type(token).__name__
                    depth += kind.endswith("StartToken") - kind.endswith("EndToken")
                    if (
                        depth > MAX_DEPTH + 4
                    ):  # beside the stream, the document, and the two levels above a case's values
                        raise FileFormatError(f"{self.where(token)}: expected at most {MAX_DEPTH} levels")
                    if isinstance(token, yaml.AliasToken | yaml.AnchorToken | yaml.TagToken):
                        where = self.where(token)
                        raise FileFormatError(f"{where}: expected plain values: no anchors, aliases or tags")
                self.root: Any = self.loader.get_single_node()
            finally:
                self.loader.dispose()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
            raise FileFormatError(f"{where}: {getattr(error, 'problem', None) or 'not YAML'}") from None
        if self.root is None:
            raise FileFormatError(f"{file}:1: expected cases, got an empty file")

    def where(self, node: Any) -> str:
        return f"{self.file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def plain(self, node: Any, depth: int = 0) -> Any:
        """Scalars, lists and dictionaries."""
        if depth > MAX_DEPTH:
            raise FileFormatError(f"{self.where(node)}: expected at most {MAX_DEPTH} levels")
        if node.id == "sequence":
            return [self.plain(item, depth + 1) for item in node.value]
        if node.id == "mapping":
            return {str(self.plain(key, depth + 1)): self.plain(item, depth + 1) for key, item in node.value}
        with as_format_error(self.where(node), f"{node.value[:40]!r} can't be read"):
            value = self.loader.construct_object(node)
        if value is not None and not isinstance(value, bool | int | float | str):
            raise FileFormatError(f"{self.where(node)}: expected a number, a word or a list, got {node.value[:40]!r}")
        return value

    def mapping(self, node: Any) -> tuple[dict[str, Cell], dict[str, Any]]:
        """Values with their places by key, and their nodes, for places further in."""
        if node.id != "mapping":
            raise FileFormatError(f"{self.where(node)}: expected a mapping of keys to values")
        cells: dict[str, Cell] = {}
        nodes: dict[str, Any] = {}
        for key, item in node.value:
            name = str(self.plain(key))
            if name in cells:
                raise FileFormatError(f"{self.where(key)}: expected every key once, got {name!r} again")
            cells[name], nodes[name] = Cell(self.plain(item), f"{self.where(item)}: {name}"), item
        return cells, nodes


def _case(cells: dict[str, Cell], where: str, source: Source) -> CheckCase:
    for key in cells:
        if key not in KEYS:
            raise FileFormatError(f"{cells[key].where}: expected one of {', '.join(KEYS)}, got {key!r}")
    if "shape" not in cells:
        raise FileFormatError(f"{where}: expected a shape")

    def value(key: str, default: Any, allowed: tuple[Any, ...] | None = None, expected: str = "") -> Any:
        cell = cells.get(key, Cell(default, where))
        if allowed is not None and cell.value not in allowed:
            raise cell.wrong(expected)
        return cell.value

    shape, count = shape_of(cells["shape"]), value("normalized", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= max(len(shape), 1):
        raise cells["normalized"].wrong(f"how many of x's last dimensions are normalized, 1 to {len(shape)}")
    lead, normalized = shape[: len(shape) - count], shape[len(shape) - count :]
    dtype = dtype_name(cells["dtype"]) if "dtype" in cells else "float32"
    gamma = value("gamma", "same")
    gamma_dtype = None if gamma in (None, "none") else dtype if gamma == "same" else dtype_name(cells["gamma"])
    statistics = dtype_name(cells["statistics"]) if "statistics" in cells else accumulator_for(dtype)
    third = value("given", "rstd", ("rstd", "variance"), "rstd or variance")
    norm = value("norm", "layer_norm", tuple(NORMS), f"one of {', '.join(NORMS)}")
    outputs = _only(cells.get("outputs"), NORMS[norm].backward.outputs)
    for cell in outputs.values():  # null is no dtype here: what is left out has the default
        dtype_name(cell)
    inputs = {"dy": (shape, dtype), "x": (shape, dtype), "mean": (lead, statistics), "statistic": (lead, statistics)}
    return build(
        name=str(cells["name"].value) if "name" in cells else f"line {source.line}",
        source=source, normalized=normalized, third=third, mask=cells.get("output_mask"),
        inputs=inputs if gamma_dtype is None else inputs | {"gamma": (normalized, gamma_dtype)},
        output_dtypes=outputs,
        eps=cells["eps"].number() if "eps" in cells else 1e-5,
        ranges=_ranges(cells.get("ranges"), third), norm=norm,
        surface=value("surface", None, (None, *SURFACES), ", ".join(SURFACES)),
        standard=cells["standard"].string() if "standard" in cells else None,
        zeros=tuple(cell.string() for cell in cells["zeros"].sequence()) if "zeros" in cells else (),
        layouts={name: cell.string() for name, cell in _only(cells.get("layouts"), INPUTS).items()},
        recomputed=value("recomputed", "failed", ("failed", "skipped"), "failed or skipped"),
        calls=int(cells["calls"].number()) if "calls" in cells else 2,
        enabled=flag(cells["enabled"]) if "enabled" in cells else True,
    )  # fmt: skip


def _ranges(cell: Cell | None, third: str) -> dict[str, Range]:
    cells = _only(cell, ("dy", "x", "mean", third, "gamma", *ADDED))
    named = {"statistic" if name == third else name: part for name, part in cells.items()}
    from_x = [name for name in ("mean", "statistic") if name not in named or named[name].value == "from x"]
    return {**dict.fromkeys(from_x), **ranges_of({name: part for name, part in named.items() if name not in from_x})}


def _only(cell: Cell | None, allowed: tuple[str, ...]) -> dict[str, Cell]:
    """A mapping that has no other keys."""
    keys = cell.mapping() if cell else {}
    for key in keys:
        if key not in allowed:
            raise FileFormatError(f"{cell.where if cell else ''}: expected {', '.join(allowed)}, got {key!r}")
    return keys
