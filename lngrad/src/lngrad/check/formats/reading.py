"""From paths to cases: which format a file has, folders of dumps, and which cases are wanted.

A folder of dumps has a manifest, as `lngrad golden` writes it, or TTK's file names alone: input_0_bfloat16.bin,
golden_1_float32__shape_128.bin, …_none.bin. Inputs are numbered in the order dy, x, rstd or variance, mean, gamma,
residual, dtotal or gate; results dx, dgamma, dbeta or dgate.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lngrad.check.case import ADDED, OF_ROWS, SHIPPED, CheckCase, Range, Source
from lngrad.check.formats import Cell, build, dtype_name, names_unique, shape_of
from lngrad.check.formats.own import read_own, read_shipped
from lngrad.check.formats.ttk_atk import read_atk, read_ttk
from lngrad.core.norms import NORMS
from lngrad.errors import FileFormatError
from lngrad.files.boundary import MAX_TEXT_BYTES, as_format_error, parse_json, read_text
from lngrad.files.reading import read_tensor, read_tensors

MANIFEST = "manifest.json"
DUMP_INPUTS = ("dy", "x", "statistic", "mean", "gamma", *ADDED)
_NAME = re.compile(
    r"(?:.*_)?(?P<kind>input|output|golden)_(?P<index>\d{1,3})"
    r"(?:_(?P<dtype>float16|bfloat16|float32|float64))?(?:__shape_(?P<shape>scalar|\d{1,15}(?:x\d{1,15}){0,7}))?"
    r"(?P<none>_none)?\.(?P<suffix>bin|npy)"
)
_PREFERENCE = {"bin": 0, "npy": 1}
_READERS: dict[str, Callable[[str, str], list[CheckCase]]] = {
    ".csv": read_ttk, ".json": read_atk, ".yaml": read_own, ".yml": read_own,
}  # fmt: skip


def shipped(*names: str) -> list[CheckCase]:
    """The cases that come with lngrad: `default` of layer normalization, `family` of every other norm; both unless named."""
    files = [Path(__file__).with_name(f"{name.split()[0]}.yaml") for name in names or SHIPPED]
    return names_unique([case for file in files for case in read_shipped(file)])


def of_norm(cases: list[CheckCase], norm: str | None) -> list[CheckCase]:
    """Cases as those of a norm, without those that say another; all as they are if there is none.

    What a norm with an offset multiplies with where there is no gamma is not agreed on: 1, or offset + 1.
    """
    if norm is None:
        return cases
    known = [case for case in cases if case.gamma_dtype or not NORMS[norm].normalization.offset]
    return [case.of_norm(norm) for case in known if case.norm in ("layer_norm", norm)]


def read_cases(paths: Sequence[Path], max_bytes: int) -> list[CheckCase]:
    """The cases of all paths, in their order; a folder without dumps stands for the case files in it.

    Raises:
        FileFormatError: A path can't be read as what its suffix says; file, line and column are named.
    """
    cases = []
    for path in paths:
        with as_format_error(path, "can't be read as cases"):
            cases += _read(path, max_bytes)
    if not cases:
        raise FileFormatError(f"{', '.join(map(str, paths))}: expected at least one case, got none")
    return names_unique(cases)


def _read(path: Path, max_bytes: int) -> list[CheckCase]:
    if path.is_dir():
        inner = sorted(path.iterdir())
        files = [path for path in inner if path.suffix in _READERS and path.is_file()]
        folders = [path for path in inner if path.is_dir() and (path / MANIFEST).is_file()]
        dumped = not files and any(dumps_in(array) for array in (path, *inner) if array.is_dir())
        if dumped or (path / MANIFEST).is_file():
            return read_folder(path, max_bytes)
        if not files and not folders:
            raise FileFormatError(f"{path}: expected case files (.csv, .json, .yaml) or a folder of dumps")
        return [case for array in (*files, *folders) for case in _read(array, max_bytes)]
    if path.suffix not in _READERS:
        raise FileFormatError(f"{path}: expected .csv (TTK), .json (ATK), .yaml (lngrad) or a folder")
    return _READERS[path.suffix](read_text(path), str(path))


def select(cases: Sequence[CheckCase], pattern: str | None, limit: int | None) -> list[CheckCase]:
    """The cases whose name matches: a part of it, a shell pattern, or =NAME for exactly one; at most `limit`."""
    chosen = list(cases)
    if pattern:
        if pattern.startswith("="):
            chosen = [case for case in chosen if case.name == pattern[1:]]
        elif set(pattern) & set("*?["):
            chosen = [case for case in chosen if fnmatch.fnmatchcase(case.name, pattern)]
        else:
            chosen = [case for case in chosen if pattern in case.name]
        if not chosen:
            raise FileFormatError(f"--filter: none of {len(cases)} cases matches {pattern!r}")
    return chosen if limit is None else chosen[:limit]


def read_folder(folder: Path, max_bytes: int) -> list[CheckCase]:
    """All cases of a folder.

    Raises:
        FileFormatError: No manifest and no file named input_0_…; or either is not as it should be.
    """
    manifest = folder / MANIFEST
    if manifest.is_file():
        return _by_manifest(folder, manifest, max_bytes)
    cases = []
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        dumps = dumps_in(place)
        if ("input", 0) in dumps:
            cases.append(_by_names(folder, place, dumps))
    if not cases:
        named = "dumps named input_0_<dtype>__shape_<sizes>.bin or .npy"
        raise FileFormatError(f"{folder}: expected {MANIFEST}, or {named}")
    return names_unique(cases)


def _by_manifest(folder: Path, manifest: Path, max_bytes: int) -> list[CheckCase]:
    text = read_text(manifest, min(max_bytes, MAX_TEXT_BYTES))
    top = Cell(parse_json(text, manifest), str(manifest)).mapping()
    if "lngrad" not in top or top["lngrad"].value != 1 or "cases" not in top:
        raise FileFormatError(f"{manifest}: expected the keys 'lngrad': 1 and 'cases'")
    cases = []
    for number, item in enumerate(top["cases"].sequence()):
        where = f"{manifest}: case {number + 1}"
        keys = Cell(item.value, where).mapping()
        tensors = keys["inputs"].mapping() if "inputs" in keys else {}
        inputs, files = {}, {}
        for name, cell in tensors.items():
            if name not in DUMP_INPUTS:
                raise FileFormatError(f"{cell.where}: expected one of {', '.join(DUMP_INPUTS)}, got {name!r}")
            entry = cell.mapping()
            if not {"file", "dtype", "shape"} <= set(entry):
                raise FileFormatError(f"{cell.where}: expected the keys file, dtype and shape")
            inputs[name] = (shape_of(entry["shape"]), dtype_name(entry["dtype"]))
            files[name] = entry["file"].string()
        third = keys.get("given", Cell("rstd", where))
        if third.value not in ("rstd", "variance"):
            raise third.wrong("rstd or variance")
        cases.append(build(
            name=keys["name"].string() if "name" in keys else f"case {number + 1}",
            source=Source(str(folder)), inputs=inputs, third=third.value, ranges=_READ, files=files,
            normalized=shape_of(keys["normalized_shape"]) if "normalized_shape" in keys else None,
            output_dtypes=keys.get("output_dtypes"), mask=keys.get("output_mask"),
            eps=keys["eps"].number() if "eps" in keys else 1e-5,
            norm=keys["norm"].string() if "norm" in keys else "layer_norm",
        ))  # fmt: skip
    return names_unique(cases)


_READ: dict[str, Range] = {"mean": (0.0, 0.0), "statistic": (0.0, 0.0)}  # from files, and not computed from x


def _by_names(folder: Path, place: Path, dumps: dict[tuple[str, int], Dump]) -> CheckCase:
    inputs, files = {}, {}
    for index, name in enumerate(DUMP_INPUTS[:5]):  # names say no norm: it is layer normalization
        dump = dumps.get(("input", index))
        if dump is None or dump.path is None:
            continue
        if dump.shape is None or dump.dtype is None:
            expected = f"dtype and shape in the name (…_float32__shape_2x8.bin), or {MANIFEST}"
            raise FileFormatError(f"{dump.path}: expected {expected}")
        inputs[name] = (dump.shape, dump.dtype)
        files[name] = str(dump.path.relative_to(folder))
    golden = [dumps.get(("golden", index)) for index in range(3)]
    return build(
        name=(place if place != folder else folder.resolve()).name, source=Source(str(folder)), inputs=inputs, ranges=_READ,
        files=files, output_dtypes=Cell([dump.dtype if dump else None for dump in golden], str(place)),
        mask=Cell([dump is None or dump.path is not None for dump in golden], str(place)),
    )  # fmt: skip


class Dump(NamedTuple):
    """A dumped tensor's file, and what its name says; path None for a tensor that is named as absent."""

    path: Path | None
    dtype: str | None
    shape: tuple[int, ...] | None


def file_name(kind: str, index: int, dtype: str | None, shape: tuple[int, ...], suffix: str) -> str:
    if dtype is None:
        return f"{kind}_{index}_none.bin"
    sizes = "x".join(map(str, shape)) or "scalar"
    return f"{kind}_{index}_{dtype}__shape_{sizes}.{suffix}"


def dumps_in(folder: Path) -> dict[tuple[str, int], Dump]:
    """All dumps of a folder by kind ("input", "output", "golden") and number; .bin before .npy, as TTK prefers."""
    found: dict[tuple[str, int], Dump] = {}
    root = folder.resolve()
    paths = [path for path in folder.iterdir() if not path.is_symlink() or path.resolve().is_relative_to(root)]
    for path in sorted(paths, key=lambda path: (_PREFERENCE.get(path.suffix[1:], 2), path.name)):
        match = _NAME.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        kind = "output" if "_xpu_" in path.name else match["kind"]
        sizes = match["shape"]
        shape = None if sizes is None else () if sizes == "scalar" else tuple(map(int, sizes.split("x")))
        dump = Dump(None if match["none"] else path, match["dtype"], shape)
        found.setdefault((kind, int(match["index"])), dump)
    return found


def case_folder(name: str) -> str:
    """The folder of a case: its name, with everything but letters, digits, '.', '_' and '-' made '_'."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
    return safe.lstrip(".")[:120] or "case"


def dump_of(case: CheckCase, folder: str, start: int, stop: int, max_bytes: int) -> Any:
    """Rows [start, stop) of a dumped dx and dgate, and the whole dumped dgamma and dbeta.

    Looked for in FOLDER/<case>/ and FOLDER/: output_<i>… or <case>_xpu_golden_<i>.bin, then golden_<i>…; and
    outputs.npz or outputs.safetensors, then goldens.….

    Raises:
        FileFormatError: A wanted result is missing, or has another size.
    """
    root = Path(folder)
    place = root / case_folder(case.name)
    place = place if place.is_dir() else root
    if not place.is_dir():
        raise FileFormatError(f"--against: {folder}: no such folder")
    together = _together(place, max_bytes)
    dumps = dumps_in(place)
    results: dict[str, Any] = {}
    shapes = case.shapes_of_results()
    for index, name in enumerate(case.operator.outputs):
        if name not in (case.wanted or ()):
            continue
        shape, dtype = shapes[name], case.output_dtypes[name]
        if name in together:
            array = together[name]
            if math.prod(array.shape) != math.prod(shape):
                raise FileFormatError(f"{place}: {name}: expected shape {shape}, got {array.shape}")
            array = array.reshape(shape)
        else:
            dump = dumps.get(("output", index)) or dumps.get(("golden", index))
            if dump is None or dump.path is None:
                raise FileFormatError(f"{place}: expected output_{index}_{dtype}.bin or .npy for {name}, found none")
            array = read_tensor(dump.path, dump.dtype or dtype, shape, max_bytes)
        if name in OF_ROWS and (start, stop) != (0, case.M):
            array = array.reshape(case.M, *case.normalized)[start:stop]
        results[name] = array
    return case.results(results)


def _together(place: Path, max_bytes: int) -> dict[str, Any]:
    for stem in ("outputs", "goldens"):
        for suffix in (".npz", ".safetensors"):
            path = place / (stem + suffix)
            if path.is_file():
                return read_tensors(path, None, max_bytes).arrays
    return {}
