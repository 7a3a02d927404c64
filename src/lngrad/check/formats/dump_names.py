"""Names of dumped tensors, as TTK's replay has them: input_0_bfloat16.bin, golden_1_float32__shape_128.bin, …_none.bin.

Inputs are numbered in the order dy, x, rstd or variance, mean, gamma; results dx, dgamma, dbeta.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DUMP_INPUTS = ("dy", "x", "statistic", "mean", "gamma")
_NAME = re.compile(
    r"(?:.*_)?(?P<kind>input|output|golden)_(?P<index>\d{1,3})"
    r"(?:_(?P<dtype>float16|bfloat16|float32|float64))?(?:__shape_(?P<shape>scalar|\d{1,15}(?:x\d{1,15}){0,7}))?"
    r"(?P<none>_none)?\.(?P<suffix>bin|npy)"
)
_PREFERENCE = {"bin": 0, "npy": 1}


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
    paths = [
        path for path in folder.iterdir() if not path.is_symlink() or path.resolve().is_relative_to(folder.resolve())
    ]
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
