"""The headers that a kernel includes: those of the folder include/, and two that are written from Python's tables, the numbers
of operations and the tiling structs; further names for them.
"""

from __future__ import annotations

import csv
import hashlib
import typing
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

from lngrad_ascend.cpp.protocol import numbers_header
from lngrad_ascend.tiling.structs import (
    DeepNormTiling,
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormSeparateTiling,
    LayerNormTiling,
    RmsNormTiling,
    SoftMaxTiling,
)

INCLUDE = Path(__file__).parent / "include"
_STRUCTS = (
    LayerNormTiling,
    LayerNormSeparateTiling,
    LayerNormGradTiling,
    LayerNormGradBetaTiling,
    SoftMaxTiling,
    RmsNormTiling,
    DeepNormTiling,
)

_CUBE = (
    "usedCoreNum M N Ka Kb singleCoreM singleCoreN singleCoreK baseM baseN baseK depthA1 depthB1 stepM stepN "
    "isBias transLength iterateOrder shareMode shareL1Size shareL0CSize shareUbSize batchM batchN singleBatchM "
    "singleBatchN stepKa stepKb depthAL1CacheUB depthBL1CacheUB dbL0A dbL0B dbL0C ALayoutInfoB ALayoutInfoS "
    "ALayoutInfoN ALayoutInfoG ALayoutInfoD BLayoutInfoB BLayoutInfoS BLayoutInfoN BLayoutInfoG BLayoutInfoD "
    "CLayoutInfoB CLayoutInfoS1 CLayoutInfoN CLayoutInfoG CLayoutInfoS2 BatchNum mxTypePara"
)  # the fields of matmul's tiling
_TOPK = (
    "tmpLocalSize allDataSize innerDataSize sortRepeat mrgSortRepeat kAlignFourBytes kAlignTwoBytes maskOffset "
    "maskVreducev2FourBytes maskVreducev2TwoBytes mrgSortSrc1offset mrgSortSrc2offset mrgSortSrc3offset "
    "mrgSortTwoQueueSrc1Offset mrgFourQueueTailPara1 mrgFourQueueTailPara2 srcIndexOffset copyUbToUbBlockCount "
    "topkMrgSrc1MaskSizeOffset topkNSmallSrcIndexOffset vreduceValMask0 vreduceValMask1 vreduceIdxMask0 "
    "vreduceIdxMask1"
)  # and of TopK's


# What the logs of op_host name of a parameter: SHAPE, and SHAPES of more than one.
_REFUSED = [
    f"{name}{many}"
    for name in ["SHAPE", "SHAPEDIM", "SHAPESIZE", "DTYPE", "FORMAT", "VALUE", "LISTSIZE", "TENSORNUM"]
    for many in ("", "S")
]


@cache
def own_headers() -> dict[str, str]:
    """Return the headers that have texts of their own, by their paths in the include folder."""
    texts = {str(path.relative_to(INCLUDE)): path.read_text(encoding="utf-8") for path in sorted(INCLUDE.rglob("*.h"))}
    texts["kernel_tiling/kernel_tiling.h"] = _tiling_structs()
    texts["lngrad/numbers.h"] = numbers_header()
    refused = (
        f"#define OP_LOGE_FOR_INVALID_{name}{why} LNGRAD_INVALID\n" for name in _REFUSED for why in ("", "_WITH_REASON")
    )
    texts["lngrad/refusals.h"] = "".join(refused)
    return texts


@cache
def header_files() -> dict[str, str]:
    """Return every header, with the further names under which kernels and hosts include them."""
    with (INCLUDE / "aliases.csv").open(encoding="utf-8", newline="") as file:
        aliases = {row["alias"]: f'#include "{row["header"]}"\n' for row in csv.DictReader(file)}
    return own_headers() | aliases


def _tiling_structs() -> str:
    structs = []
    for struct in _STRUCTS:
        types = typing.get_type_hints(struct)
        lines = (
            f"    LNGRAD_FIELD({'float' if types[field.name] is float else 'uint32_t'}, {field.name})"
            for field in fields(struct)
        )
        structs.append("\n".join([f"struct {struct.__name__} {{", *lines, "};"]))
    structs.append("using LogSoftMaxTiling = SoftMaxTiling;")  # the same fields
    halves = "".join(f"    uint16_t vreducehalfValMask{i} = 0;\n" for i in range(8))
    for name, words, more in (("TCubeTiling", _CUBE, ""), ("TopkTiling", _TOPK, halves)):
        lines = (f"    int32_t {field} = 0;\n" for field in words.split())
        structs.append(f"struct {name} {{\n{''.join(lines)}{more}}};")
    joined = "\n\n".join(structs)
    every = (*(struct.__name__ for struct in _STRUCTS), "LogSoftMaxTiling", "TCubeTiling", "TopkTiling")
    names = "\n".join(f"using ::{name};" for name in every)
    return f"""// The tiling structs of the tile APIs: packed little-endian words, as the host's tiling functions fill them.
// Written from lngrad_ascend.tiling.structs; change them there.
#ifndef LNGRAD_KERNEL_TILING_H
#define LNGRAD_KERNEL_TILING_H

#include <cstdint>
#include <cstring>

// A host's structs have get_ and set_ functions, as its tiling functions' code uses them.
#ifdef LNGRAD_TILINGDATA_BASE_H
#define LNGRAD_FIELD(Type, name) TILING_DATA_FIELD_DEF(Type, name)
#else
#define LNGRAD_FIELD(Type, name) Type name = 0;
#endif

{joined}
#undef LNGRAD_FIELD

namespace AscendC {{
namespace tiling {{
{names}
}} // namespace tiling
}} // namespace AscendC

#endif
"""


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files by their paths in a folder."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
