"""Folders of dumps as cases: with a manifest, as `lngrad golden` writes it, or by TTK's file names alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lngrad.check.case import CheckCase, Source
from lngrad.check.formats.cells import Cell, build, dtype_name, names_unique, shape_of
from lngrad.check.formats.dump_names import DUMP_INPUTS, Dump, dumps_in
from lngrad.errors import FileFormatError
from lngrad.files.boundary import MAX_TEXT_BYTES, parse_json, read_text

MANIFEST = "manifest.json"


def read_folder(folder: Path, max_bytes: int) -> list[CheckCase]:
    """All cases of a folder.

    Raises:
        FileFormatError: No manifest and no file named input_0_…; or either is not as it should be.
    """
    manifest = folder / MANIFEST
    if manifest.is_file():
        return _by_manifest(folder, manifest, max_bytes)
    cases = []
    for place in (folder, *sorted(one for one in folder.iterdir() if one.is_dir())):
        dumps = dumps_in(place)
        if ("input", 0) in dumps:
            cases.append(_by_names(folder, place, dumps))
    if not cases:
        raise FileFormatError(
            f"{folder}: expected {MANIFEST}, or dumps named input_0_<dtype>__shape_<sizes>.bin or .npy"
        )
    return names_unique(cases)


def _by_manifest(folder: Path, manifest: Path, max_bytes: int) -> list[CheckCase]:
    text = read_text(manifest, min(max_bytes, MAX_TEXT_BYTES))
    top = Cell(parse_json(text, manifest), str(manifest)).mapping()
    if "lngrad" not in top or top["lngrad"].value != 1 or "cases" not in top:
        raise FileFormatError(f"{manifest}: expected the keys 'lngrad': 1 and 'cases'")
    cases = []
    for number, item in enumerate(top["cases"].sequence()):
        keys = Cell(item.value, f"{manifest}: case {number + 1}").mapping()
        where = f"{manifest}: case {number + 1}"
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
        cases.append(_build(keys, where, Source(str(folder)), inputs, files, number))
    return names_unique(cases)


def _build(
    keys: dict[str, Cell], where: str, source: Source, inputs: dict[str, Any], files: dict[str, str], number: int
) -> CheckCase:
    third = keys.get("given", Cell("rstd", where))
    if third.value not in ("rstd", "variance"):
        raise third.wrong("rstd or variance")
    outputs = keys["output_dtypes"].sequence(3) if "output_dtypes" in keys else [Cell(None, where)] * 3
    return build(
        name=keys["name"].string() if "name" in keys else f"case {number + 1}",
        source=source,
        inputs=inputs,
        normalized=shape_of(keys["normalized_shape"]) if "normalized_shape" in keys else None,
        output_dtypes=outputs,
        mask=keys.get("output_mask"),
        third=third.value,
        eps=keys["eps"].number() if "eps" in keys else 1e-5,
        ranges={"mean": Cell((0, 0), where), "statistic": Cell((0, 0), where)},
        files=files,
        surface=None,
        tolerances=None,
        atol=None,
        enabled=True,
        others={},
    )


def _by_names(folder: Path, place: Path, dumps: dict[tuple[str, int], Dump]) -> CheckCase:
    inputs, files = {}, {}
    for index, name in enumerate(DUMP_INPUTS):
        dump = dumps.get(("input", index))
        if dump is None or dump.path is None:
            continue
        shape, dtype = dump.shape, dump.dtype
        if shape is None or dtype is None:
            raise FileFormatError(
                f"{dump.path}: expected dtype and shape in the name (…_float32__shape_2x8.bin), or {MANIFEST}"
            )
        inputs[name] = (shape, dtype)
        files[name] = str(dump.path.relative_to(folder))
    golden = [dumps.get((kind, index)) for kind in ("golden",) for index in range(3)]
    outputs = [Cell(one.dtype if one else None, str(place)) for one in golden]
    mask = [one is None or one.path is not None for one in golden]
    name = place.name if place != folder else folder.resolve().name
    keys = {"name": Cell(name, str(place)), "output_mask": Cell(mask, str(place))}
    case = _build(
        keys | {"output_dtypes": Cell([cell.value for cell in outputs], str(place))},
        str(place),
        Source(str(folder)),
        inputs,
        files,
        0,
    )
    return case
