"""Results that a device has dumped, in place of an implementation's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.formats.dump_names import dumps_in
from lngrad.core.problem import Grads
from lngrad.errors import FileFormatError
from lngrad.files.reading import read_tensor, read_tensors


def case_folder(name: str) -> str:
    """The folder of a case: its name, with everything but letters, digits, '.', '_' and '-' made '_'."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
    return safe.lstrip(".")[:120] or "case"


def dump_of(case: CheckCase, folder: str, start: int, stop: int, max_bytes: int) -> Grads:
    """Rows [start, stop) of a dumped dx, and the whole dumped dgamma and dbeta.

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
    results: list[Any] = []
    for index, (name, dtype, wanted) in enumerate(zip(OUTPUTS, case.output_dtypes, case.output_mask, strict=True)):
        if not wanted:
            results.append(None)
            continue
        shape = (case.M, case.N) if name == "dx" else case.normalized
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
        if name == "dx":
            lead = case.lead if (start, stop) == (0, case.M) else (stop - start,)
            array = array[start:stop].reshape(*lead, *case.normalized)
        results.append(array)
    return Grads(*results)


def _together(place: Path, max_bytes: int) -> dict[str, Any]:
    for stem in ("outputs", "goldens"):
        for suffix in (".npz", ".safetensors"):
            path = place / (stem + suffix)
            if path.is_file():
                return read_tensors(path, None, max_bytes).arrays
    return {}
