"""Our own case files: YAML, one mapping a case, with defaults on top. See docs/check.md for every key."""

from __future__ import annotations

from typing import Any

from lngrad.check.case import DEFAULT_RANGE, CheckCase, Range, Source
from lngrad.check.formats.cells import Cell, dtype_name, flag, names_unique, range_of, shape_of
from lngrad.errors import FileFormatError
from lngrad.files.boundary import as_format_error

KEYS = (
    "name", "shape", "normalized", "dtype", "gamma", "statistics", "outputs", "output_mask", "given", "eps", "ranges",
    "surface", "standard", "enabled",
)  # fmt: skip
MAX_DEPTH = 8
SURFACES = ("graph", "graph_v3", "aclnn")


def read_own(text: str, file: str) -> list[CheckCase]:
    """All cases of a YAML file.

    Raises:
        FileFormatError: Naming file, line and column.
    """
    with as_format_error(file, "is no YAML that can be read"):
        top = _mapping(_compose(text, file), file)
    top.pop("")
    version = top.pop("lngrad", None)
    if version is None or version.value != 1:
        raise FileFormatError(
            f"{file}:1: expected 'lngrad: 1', the version of this format, got {version and version.value}"
        )
    defaults = _mapping(top.pop("defaults").value, file) if "defaults" in top else {}
    if "cases" not in top:
        raise FileFormatError(f"{file}:1: expected the key 'cases'")
    listed = top.pop("cases")
    if top:
        key, cell = next(iter(top.items()))
        raise FileFormatError(f"{cell.where}: expected lngrad, defaults or cases, got {key!r}")
    if not isinstance(listed.value, list):
        raise listed.wrong("a list of cases")
    return names_unique([_case(_mapping(item, file), defaults, file) for item in listed.value])


def _compose(text: str, file: str) -> Any:
    """The document's nodes. Aliases are refused, since ten lines of them stand for gigabytes."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        try:
            for token in yaml.scan(text):
                if isinstance(token, yaml.AliasToken | yaml.AnchorToken | yaml.TagToken):
                    mark = token.start_mark
                    where = f"{file}:{mark.line + 1}:{mark.column + 1}"
                    raise FileFormatError(f"{where}: expected plain values: no anchors, aliases or tags")
            node = loader.get_single_node()
        finally:
            loader.dispose()
        if node is None:
            raise FileFormatError(f"{file}:1: expected cases, got an empty file")
        return _Node(node, loader, file)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise FileFormatError(f"{where}: {getattr(error, 'problem', None) or 'not YAML'}") from None


class _Node:
    """A YAML node and where it is."""

    def __init__(self, node: Any, loader: Any, file: str) -> None:
        self.node, self.loader, self.file = node, loader, file

    @property
    def where(self) -> str:
        mark = self.node.start_mark
        return f"{self.file}:{mark.line + 1}:{mark.column + 1}"

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def plain(self, depth: int = 0) -> Any:
        """Scalars, lists and dictionaries; a mapping's and a list's top level keep their nodes' places."""
        if depth > MAX_DEPTH:
            raise FileFormatError(f"{self.where}: expected at most {MAX_DEPTH} levels")
        kind = type(self.node).__name__
        if kind == "ScalarNode":
            with as_format_error(self.where, f"{self.node.value[:40]!r} can't be read"):
                value = self.loader.construct_object(self.node)
            if value is not None and not isinstance(value, bool | int | float | str):
                raise FileFormatError(
                    f"{self.where}: expected a number, a word or a list, got {self.node.value[:40]!r}"
                )
            return value
        if kind == "SequenceNode":
            return [_Node(item, self.loader, self.file).plain(depth + 1) for item in self.node.value]
        return {
            str(_Node(key, self.loader, self.file).plain(depth + 1)): _Node(item, self.loader, self.file).plain(
                depth + 1
            )
            for key, item in self.node.value
        }


def _mapping(node: Any, file: str) -> dict[str, Cell]:
    """Keys with their places. The values of `defaults` and `cases` stay nodes, for places further in."""
    if not isinstance(node, _Node) or type(node.node).__name__ != "MappingNode":
        raise FileFormatError(
            f"{node.where if isinstance(node, _Node) else file}: expected a mapping of keys to values"
        )
    cells: dict[str, Cell] = {}
    for key, item in node.node.value:
        name, inner = str(_Node(key, node.loader, file).plain()), _Node(item, node.loader, file)
        where = f"{file}:{key.start_mark.line + 1}:{key.start_mark.column + 1}"
        if name in cells:
            raise FileFormatError(f"{where}: expected every key once, got {name!r} again")
        value: Any = inner.plain()
        if name == "defaults":
            value = inner
        elif name == "cases" and isinstance(value, list):
            value = [_Node(part, node.loader, file) for part in item.value]
        cells[name] = Cell(value, f"{inner.where}: {name}")
    cells.setdefault("", Cell(node.line, node.where))
    return cells


def _case(given: dict[str, Cell], defaults: dict[str, Cell], file: str) -> CheckCase:
    place = given[""]
    cells = {key: cell for key, cell in {**defaults, **given}.items() if key}
    unknown = next((key for key in cells if key not in KEYS), None)
    if unknown is not None:
        raise FileFormatError(f"{cells[unknown].where}: expected one of {', '.join(KEYS)}, got {unknown!r}")
    if "shape" not in cells:
        raise FileFormatError(f"{place.where}: expected a shape")
    shape = shape_of(cells["shape"])
    count = cells.get("normalized", Cell(1, place.where))
    if isinstance(count.value, bool) or not isinstance(count.value, int) or not 1 <= count.value <= max(len(shape), 1):
        raise count.wrong(f"how many of x's last dimensions are normalized, 1 to {len(shape)}")
    split = len(shape) - count.value
    dtype = dtype_name(cells.get("dtype", Cell("float32", place.where)))
    gamma = cells.get("gamma", Cell("same", place.where))
    gamma_dtype = None if gamma.value in (None, "none") else dtype if gamma.value == "same" else dtype_name(gamma)
    accumulator = "float64" if dtype == "float64" else "float32"
    statistics = dtype_name(cells["statistics"]) if "statistics" in cells else accumulator
    third = cells.get("given", Cell("rstd", place.where))
    if third.value not in ("rstd", "variance"):
        raise third.wrong("rstd or variance")
    surface = cells.get("surface", Cell(None, place.where))
    if surface.value not in (None, *SURFACES):
        raise surface.wrong(", ".join(SURFACES))
    return CheckCase(
        name=str(cells["name"].value)[:200] if "name" in cells else f"line {place.value}",
        source=Source(file, place.value),
        lead=shape[:split],
        normalized=shape[split:],
        dtype=dtype,
        gamma_dtype=gamma_dtype,
        statistics_dtype=statistics,
        output_dtypes=_outputs(cells.get("outputs"), dtype, gamma_dtype or dtype),
        output_mask=_mask(cells.get("output_mask")),
        third=third.value,
        eps=cells["eps"].number() if "eps" in cells else 1e-5,
        ranges=_ranges(cells.get("ranges"), third.value),
        surface=surface.value,
        standard=cells["standard"].string() if "standard" in cells else None,
        enabled=flag(cells["enabled"]) if "enabled" in cells else True,
    )


def _outputs(cell: Cell | None, dtype: str, parameter: str) -> tuple[str, str, str]:
    keys = cell.mapping() if cell else {}
    _only(cell, keys, ("dx", "dgamma", "dbeta"))
    defaults = {"dx": dtype, "dgamma": parameter, "dbeta": parameter}
    first, second, third = (dtype_name(keys[name]) if name in keys else default for name, default in defaults.items())
    return first, second, third


def _mask(cell: Cell | None) -> tuple[bool, bool, bool]:
    if cell is None:
        return (True, True, True)
    first, second, third = (flag(part) for part in cell.sequence(3))
    return first, second, third


def _ranges(cell: Cell | None, third: str) -> dict[str, Range]:
    keys = cell.mapping() if cell else {}
    _only(cell, keys, ("dy", "x", "mean", third, "gamma"))
    ranges: dict[str, Range] = {"mean": None, "statistic": None}
    for name, given in keys.items():
        label = "statistic" if name == third else name
        if given.value == "from x" and label in ("mean", "statistic"):
            ranges[label] = None
        else:
            ranges[label] = DEFAULT_RANGE if given.value is None else range_of(given)
    return ranges


def _only(cell: Cell | None, keys: dict[str, Cell], allowed: tuple[str, ...]) -> None:
    for key in keys:
        if key not in allowed:
            raise FileFormatError(f"{cell.where if cell else ''}: expected {', '.join(allowed)}, got {key!r}")
