"""The headers that a kernel includes: those of the folder include/, and two that are written from Python's tables, the numbers
of operations and the tiling structs; further names for them.
"""

from __future__ import annotations

import hashlib
import typing
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

# Other names under which kernels include Ascend C; kernel_operator.h has it all.
_MATH = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "exp", "floor", "frac",
    "log", "power", "round", "sign", "sin", "sinh", "tan", "tanh", "trunc", "xor", "ceil", "clamp",
)  # fmt: skip
ALIASES = (
    "kernel_operator_intf.h", "kernel_basic_intf.h", "basic_api/kernel_basic_intf.h", "kernel_type.h",
    "basic_api/kernel_operator_block_sync_intf.h", "impl/dav_c220/kernel_operator_reg_others_impl.h",
    "utils/debug/asc_printf.h", "utils/debug/asc_dump.h", "utils/debug/asc_assert.h",
    "adv_api/reduce/reduce.h", "lib/sigmoid/kernel_operator_sigmoid_intf.h", "lib/matmul_intf.h", "kernel_utils.h",
    "adv_api/matmul/matmul_intf.h", "lib/matrix/matmul/matmul.h", "impl/dav_c220/kfc/kfc_log.h",
    "adv_api/pad/broadcast.h", "adv_api/math/sign.h", "kernel_operator_list_tensor_intf.h",
    "lib/pad/kernel_operator_pad_intf.h", "kernel_fp16.h", "kernel_operator_mm_intf.h", "kernel_operator_fixpipe_intf.h",
    "op_kernel/math_util.h", "op_kernel/platform_util.h",
    *(f"lib/math/kernel_operator_{name}_intf.h" for name in _MATH),
)  # fmt: skip
# And those of the host's side, which lngrad/op_host.h has.
HOST_ALIASES = (
    "register/op_def_registry.h", "register/op_impl_registry.h", "exe_graph/runtime/shape.h",
    "exe_graph/runtime/storage_shape.h", "exe_graph/runtime/tiling_context.h",
    "exe_graph/runtime/infer_shape_context.h", "exe_graph/runtime/tensor.h", "graph/c_types.h", "graph/ge_error_codes.h",
    "graph/ascend_string.h", "graph/types.h", "graph/utils/type_utils.h", "log/log.h", "platform/platform_ascendc.h",
    "platform/platform_info.h", "platform/platform_infos_def.h", "util/math_util.h", "op_host/tiling_util.h",
    "tiling_base/tiling_util.h", "op_host/tiling_templates_registry.h", "tiling_base/tiling_templates_registry.h",
    "op_common/op_host/util/platform_util.h", "op_host/tiling_base_util.h", "op_host/infershape_util.h",
    "error_util.h", "op_host/tiling_base_class.h", "platform/soc_spec.h", "op_host/util/fp16.h",
)  # fmt: skip


@cache
def own_headers() -> dict[str, str]:
    """Return the headers that have texts of their own, by their paths in the include folder."""
    texts = {str(path.relative_to(INCLUDE)): path.read_text(encoding="utf-8") for path in sorted(INCLUDE.rglob("*.h"))}
    texts["kernel_tiling/kernel_tiling.h"] = _tiling_structs()
    texts["lngrad/numbers.h"] = numbers_header()
    return texts


@cache
def header_files() -> dict[str, str]:
    """Return every header, with those that only include another one."""
    texts = dict(own_headers())
    texts |= dict.fromkeys(ALIASES, '#include "kernel_operator.h"\n')
    texts |= dict.fromkeys(HOST_ALIASES, '#include "lngrad/op_host.h"\n')
    texts["tiling_context_faker.h"] = '#include "tiling_case_executor.h"\n'
    return texts


def _tiling_structs() -> str:
    structs = []
    for struct in _STRUCTS:
        types = typing.get_type_hints(struct)
        lines = (
            f"    {'float' if types[field.name] is float else 'uint32_t'} {field.name} = 0;" for field in fields(struct)
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

{joined}

namespace AscendC {{
namespace tiling {{
{names}
}} // namespace tiling
}} // namespace AscendC

#endif
"""


def write_headers(folder: Path) -> None:
    """Write every header into an include folder."""
    for header, content in header_files().items():
        path = folder / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
