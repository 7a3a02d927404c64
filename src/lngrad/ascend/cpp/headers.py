"""The headers that a kernel includes: those of the folder include/, and the tiling structs, written from Python's."""

from __future__ import annotations

import hashlib
import typing
from dataclasses import fields
from functools import cache
from pathlib import Path

from lngrad.ascend.cpp.protocol import numbers_header
from lngrad.ascend.tiling.structs import (
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormSeparateTiling,
    LayerNormTiling,
    TilingStruct,
)

INCLUDE = Path(__file__).parent / "include"
_STRUCTS = (LayerNormTiling, LayerNormSeparateTiling, LayerNormGradTiling, LayerNormGradBetaTiling)


@cache
def header_files() -> dict[str, str]:
    """Every header, as its path in the include folder and its text."""
    texts = {str(path.relative_to(INCLUDE)): path.read_text(encoding="utf-8") for path in sorted(INCLUDE.rglob("*.h"))}
    texts["kernel_tiling/kernel_tiling.h"] = _tiling_structs()
    texts["lngrad/numbers.h"] = numbers_header()
    return texts


@cache
def digest() -> str:
    """A name for the content of all headers."""
    content = hashlib.sha256()
    for name, text in header_files().items():
        content.update(f"{name}\0{text}\0".encode())
    return content.hexdigest()


def write_headers(folder: Path) -> None:
    """Write every header below a folder.

    Args:
        folder: Becomes what a compiler is given as ``-I``. It and its folders are made.

    Raises:
        OSError: A file can't be written.
    """
    for name, text in header_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _tiling_structs() -> str:
    structs = "\n\n".join(map(_struct, _STRUCTS))
    names = "\n".join(f"using ::{struct.__name__};" for struct in _STRUCTS)
    return f"""// The tiling structs of the tile APIs: packed little-endian words, as the host's tiling functions fill them.
// Written from lngrad.ascend.tiling.structs; change them there.
#ifndef LNGRAD_KERNEL_TILING_H
#define LNGRAD_KERNEL_TILING_H

#include <cstdint>
#include <cstring>

{structs}

namespace AscendC {{
namespace tiling {{
{names}
}} // namespace tiling
}} // namespace AscendC

#endif
"""


def _struct(struct: type[TilingStruct]) -> str:
    types = typing.get_type_hints(struct)
    lines = (f"    {'float' if types[one.name] is float else 'uint32_t'} {one.name} = 0;" for one in fields(struct))
    return "\n".join([f"struct {struct.__name__} {{", *lines, "};"])
