"""`lngrad kernel run` of a tile API: what breaks a rule ends with 1 and the kernel's line; a host's tiling structs."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from kernel_command import kernel, needs_cxx

from lngrad_ascend import tiling
from lngrad_ascend.cpp.headers import header_files, write_files

pytestmark = needs_cxx

KERNEL = """\
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void grad(GM_ADDR x, GM_ADDR tiling)
{
    TPipe pipe;
    LayerNormGradTiling info;
    CopyTiling(&info, tiling);
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 32768);
    LocalTensor<ELEMENT> all = buffer.Get<ELEMENT>();
    LocalTensor<uint8_t> shared = all[1024].template ReinterpretCast<uint8_t>();
    Duplicate(all, ELEMENT(1), 32768 / sizeof(ELEMENT));
    LayerNormGrad<ELEMENT, REUSE>(all, all[256], all[512], all[768], all[GAMMA], all[GAMMA], all[GAMMA], shared,
                                  ELEMENT(1e-5), info, {DataFormat(FORMAT)});
}
"""
HOST = """\
#include "tiling/tiling_api.h"
namespace optiling {
BEGIN_TILING_DATA_DEF(Own)
TILING_DATA_FIELD_DEF_STRUCT(LayerNormGradTiling, grad);
TILING_DATA_FIELD_DEF_STRUCT(LayerNormGradBetaTiling, beta);
END_TILING_DATA_DEF;
}
uint32_t both(optiling::Own& own)
{
    own.grad.set_hLength(16);
    own.beta.set_stackBufferSize(3);
    static_assert(sizeof own.grad == 120 && sizeof own.beta == 80);
    return own.grad.get_hLength() + own.beta.get_stackBufferSize();
}
"""
CALL = """
#include "kernel_operator.h"
template <typename... Tensors>
void beta(const LayerNormGradBetaTiling& tiling, Tensors&... tensors) { AscendC::LayerNormGradBeta<float>(tensors..., tiling); }
using Tensor = AscendC::LocalTensor<float>;
using Bytes = AscendC::LocalTensor<uint8_t>;
void with(Tensor& t, Bytes& shared, const LayerNormGradBetaTiling& info) { beta(info, t, t, t, t, shared); }
"""
WITHOUT = "void without(Tensor& t, const LayerNormGradBetaTiling& info) { beta(info, t, t, t, t); }\n"


def info(size=4, reuse=False):
    return tiling.GetLayerNormGradNDTilingInfo((1, 16, 16, 16), 9216, size, reuse)


@pytest.mark.parametrize(
    ("tiling_struct", "element", "macros", "text"),
    [
        (info(), "float", {}, "ran"),
        (info(), "float", {"FORMAT": 8}, "LayerNormGrad: dataFormat must be ND, got 8, which is no DataFormat"),
        (tiling.LayerNormGradTiling(), "float", {}, "LayerNormGrad: bLength must be above 0, got 0"),
        (info(2), "float", {}, "LayerNormGrad: the tiling was made for half"),
        (info(4, True), "float", {}, "LayerNormGrad: the tiling was made for float with isReuseSource=true"),
        (info(2), "half", {"REUSE": "true"}, "LayerNormGrad: isReuseSource=true takes float only, T is half"),
        (info(), "float", {"GAMMA": 1032}, "LayerNormGrad: sharedTmpBuffer (bytes 4096 to 13312) and inputVariance"),
    ],
)
def test_a_broken_rule_ends_with_1(tmp_path, tiling_struct, element, macros, text):
    source = tmp_path / "grad.cpp"
    source.write_text(KERNEL)
    (tmp_path / "tiling.bin").write_bytes(tiling_struct.to_bytes())
    np.save(tmp_path / "x.npy", np.zeros(8, np.float32))
    defined = {"ELEMENT": element, "REUSE": "false", "FORMAT": 0, "GAMMA": 6144, **macros}
    words = [word for name, value in defined.items() for word in ("-D", f"{name}={value}")]
    words += ["--kernel", "grad", "--arg", f"x={tmp_path}/x.npy", "--tiling", tmp_path / "tiling.bin"]
    result = kernel("run", source, *words)
    if text == "ran":
        assert result.exit_code == 0, result.output
        refused = kernel("run", source, *words, "--soc", "Ascend910A")
        assert refused.exit_code == 2
        assert "grad.cpp:13" in refused.output
        assert "not available on this SoC" in refused.output
        return
    assert result.exit_code == 1, result.output
    assert f"block 0: grad.cpp:13: {text}" in " ".join(result.output.split())
    assert "LAYER_NORM_GRAD" not in result.output


@pytest.mark.parametrize(("text", "compiles"), [(HOST, True), (CALL, True), (CALL + WITHOUT, False)])
def test_structs_and_prototypes(tmp_path, text, compiles):
    write_files(tmp_path, header_files())
    (tmp_path / "host.cpp").write_text(text)
    command = [shutil.which("c++"), "-std=c++17", "-fsyntax-only", f"-I{tmp_path}", tmp_path / "host.cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == compiles, done.stderr


def test_a_tiling_without_its_struct_is_told_what_names_it(tmp_path):
    source = tmp_path / "bare.cpp"
    source.write_text(KERNEL.partition("{")[0] + "{\n    GET_TILING_DATA(info, tiling);\n}\n")
    result = kernel("run", source, "--kernel", "grad", "--arg", "x=empty:float32:8", "-D", "FORMAT=0")
    assert result.exit_code == 2
    assert "GET_TILING_DATA: expected REGISTER_TILING_DEFAULT(Struct) ahead of it, or op_host's header" in result.output
