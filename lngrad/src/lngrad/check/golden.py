"""Golden data: inputs and float64-true results of cases in files, in the layouts that device tests replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lngrad.check.case import ADDED, CheckCase
from lngrad.check.formats.reading import DUMP_INPUTS, MANIFEST, case_folder, file_name
from lngrad.check.inputs import draw, true_grads
from lngrad.errors import FileFormatError
from lngrad.files.writing import whole, write_tensor, write_tensors
from lngrad.support.dtypes import numpy_dtype

Format = Literal["bin", "npy", "npz", "safetensors"]


def write_goldens(
    cases: Sequence[CheckCase], folder: Path, form: Format, seed: int, max_bytes: int, done: Callable[[], None]
) -> int:
    """Write a folder for each case and a manifest for all; appears whole or not at all. Returns the number of bytes.

    Raises:
        FileFormatError: The folder exists and is not empty, or a case is larger than max_bytes.
    """

    def check(place: Path = folder) -> None:
        if place.exists() and any(place.iterdir()):
            raise FileFormatError(f"{folder}: exists and is not empty")

    check()
    for case in cases:
        if case.nbytes > max_bytes:
            text = f"needs {case.nbytes} bytes, --max-bytes allows {max_bytes}"
            raise FileFormatError(f"{case.source}: case {case.name!r}: too large: {text}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole(folder, replace=False, check=check) as partial:
        partial.mkdir()
        entries = []
        used: set[str] = set()
        for case in cases:
            place = case_folder(case.name)
            while place in used:
                place += "_"
            used.add(place)
            entries.append(_write_case(case, partial, place, form, seed, max_bytes))
            done()
        (partial / MANIFEST).write_text(json.dumps({"lngrad": 1, "seed": seed, "cases": entries}, indent=1), "utf-8")
        size = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    return size


def _write_case(case: CheckCase, root: Path, place: str, form: Format, seed: int, max_bytes: int) -> dict[str, Any]:
    arguments = draw(case, seed, 0, case.M, max_bytes)
    drawn = arguments.inputs
    arrays = {name: getattr(drawn, name) for name in ("dy", "x", "mean", "gamma", *ADDED)}
    arrays["statistic"] = drawn.rstd if case.third == "rstd" else arguments.variance
    inputs = {name: arrays[name] for name in DUMP_INPUTS if name not in ADDED or arrays[name] is not None}
    with np.errstate(over="ignore", invalid="ignore"):
        truth = true_grads(arguments.exact)._asdict()
        goldens: dict[str, Any] = dict.fromkeys(case.operator.outputs)
        goldens |= {name: truth[name].astype(numpy_dtype(case.output_dtypes[name])) for name in case.wanted or ()}
    (root / place).mkdir()
    return {
        "name": case.name, **({} if case.norm == "layer_norm" else {"norm": case.norm}), "given": case.third, "eps": case.eps,
        "normalized_shape": case.normalized, "output_mask": case.output_mask,
        "output_dtypes": [case.output_dtypes[name] for name in case.operator.outputs],
        "inputs": _write(root, place, "input", inputs, form), "goldens": _write(root, place, "golden", goldens, form),
    }  # fmt: skip


def _write(root: Path, place: str, kind: str, arrays: dict[str, Any], form: Format) -> dict[str, Any]:
    """Write tensors of one kind; entries for the manifest, by name."""
    present = {name: array for name, array in arrays.items() if array is not None}
    if form in ("npz", "safetensors"):
        path = f"{place}/{kind}s.{form}"
        write_tensors(root / path, present, sync=False)
        paths = {name: f"{path}::{name}" for name in present}
    else:
        paths = {}
        for index, (name, array) in enumerate(arrays.items()):
            if array is None:
                (root / place / file_name(kind, index, None, (), form)).touch()
            else:
                paths[name] = f"{place}/{file_name(kind, index, array.dtype.name, array.shape, form)}"
                write_tensor(root / paths[name], array, sync=False)
    entries = ((name, array.dtype.name, array.shape) for name, array in present.items())
    return {name: {"file": paths[name], "dtype": dtype, "shape": shape} for name, dtype, shape in entries}
