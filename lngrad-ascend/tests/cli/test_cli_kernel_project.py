"""`lngrad kernel run --project`: a folder as msopgen makes it, run as its op_host says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from kernel_command import kernel, needs_cxx, refuses

from lngrad.testing import check_same_bits

pytestmark = needs_cxx
SAME_PATHS = True

ADD = Path(__file__).parent / "project" / "AddCustom"
BOTH = ["--shape", "x=8,2048", "--shape", "y=8,2048"]


def run(*words):
    """Run a project, which succeeds."""
    result = kernel("run", *words)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def x(here):
    """An input, in x.npy too."""
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    np.save("x.npy", x)
    return x


@pytest.fixture
def changed(here):
    """A copy of the project."""
    return Path(shutil.copytree(ADD, here / "AddCustom"))


def replace(path, *pairs):
    """Change a file, each text where it stands."""
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_op_host_says_blocks_tiling_key_and_the_output(dtype, here):
    saved = [word for name in "xyz" for word in ("--save", f"{name}={name}.npy")]
    assert "add_custom on Ascend910B1, 8 blocks" in run("--project", ADD, *BOTH, "--dtype", dtype, "--report", *saved)
    x, y, z = (np.load(f"{name}.npy") for name in "xyz")
    assert (z.dtype, z.shape) == (np.dtype(dtype), (8, 2048))
    assert x.std() > 0.5
    assert (x != y).any()
    check_same_bits(z, x + y)


def test_arrays_attributes_and_options_of_one_s_own(x):
    words = ["--project", ADD, "--arg", "x=x.npy", "--arg", "y=x.npy", "--save", "z=z.npy", "--force"]
    run(*words, "--blocks", 4)
    check_same_bits(np.load("z.npy"), x + x)
    run(*words, "--attr", "scale=2")  # the tiling key is another one, and the kernel does nothing
    assert np.isnan(np.load("z.npy")).all()
    run(*words, "--attr", "axes=3,2")
    check_same_bits(np.load("z.npy"), x + x)
    run(*words, "--attr", "axes=[3, 2]")
    check_same_bits(np.load("z.npy"), x + x)
    run(*words, "--attr", "axes=2")
    assert np.isnan(np.load("z.npy")).all()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--shape", "x=8,2048"], "y: expected --arg y=FILE.npy or --shape y=…, got neither"),
        (["--shape", "w=8"], "--shape: expected a name of x, y, z, got 'w'"),
        (["--shape", "x=8,a"], "--shape x: expected sizes as 8,2048, got '8,a'"),
        (["--shape", "x"], "--shape and --attr: expected NAME=VALUE, got 'x'"),
        (["--attr", "eps=1"], "--attr: expected a name of scale, axes, got 'eps'"),
        ([*BOTH, "--attr", "scale=x"], "--attr scale: expected a number, got 'x'"),
        ([*BOTH, "--attr", "axes=3,a"], "--attr axes: expected whole numbers as 1,2 or [1,2], got '3,a'"),
        ([*BOTH, "--attr", "axes=4.7"], "--attr axes: expected whole numbers as 1,2 or [1,2], got '4.7'"),
        (["--arg", "x=3", *BOTH], "--arg x: expected an array for --project, got 3"),
        ([*BOTH, "--save", "w=w.npy"], "--save: expected NAME=FILE.npy with a NAME of x, y, z, got 'w'"),
        ([*BOTH, "--dtype", "float"], "--dtype: expected a dtype of float32, float16"),
    ],
)  # fmt: skip
def test_names_that_op_host_does_not_have(words, text, here):
    refuses(text, "run", "--project", ADD, *words)


def test_folders_that_are_no_project_and_functions_that_fail(here, changed):
    refuses("expected op_host/*.cpp of an operator, got none", "run", "--project", here)
    refuses("", "run", "--project", ADD, ADD / "op_kernel" / "add_custom.cpp")
    host = changed / "op_host" / "add_custom.cpp"
    replace(host, ("if (scale == nullptr)", "if (scale != nullptr)"))
    refuses("the tiling function failed", "run", "--project", changed, *BOTH)
    replace(host, ("OP_ADD(AddCustom);", ""))
    refuses("expected an operator's definition (OpDef and OP_ADD), got none", "run", "--project", changed, *BOTH)


def test_a_struct_that_is_registered_in_a_source_file(changed):
    host, header = (changed / "op_host" / name for name in ("add_custom.cpp", "add_custom_tiling.h"))
    replace(host, ('#include "add_custom_tiling.h"', header.read_text()))
    header.unlink()
    run("--project", changed, *BOTH)


def test_the_tiling_may_read_an_input_and_its_header_may_lie_with_the_kernel(x, changed):
    """As for indices or an axis; behind the kernel a launcher whose arguments are nowhere declared."""
    (changed / "op_host" / "add_custom_tiling.h").rename(changed / "op_kernel" / "add_custom_tiling.h")
    replace(
        changed / "op_host" / "add_custom.cpp",
        ('"add_custom_tiling.h"', '"../op_kernel/add_custom_tiling.h"'),
        ("axes->GetData()[1] == 2 ?", "context->GetInputTensor(0)->GetData<float>()[1] == 3.5f ?"),
    )
    with (changed / "op_kernel" / "add_custom.cpp").open("a") as kernel:
        kernel.write("void add_do(void* stream) { add_custom<<<8, nullptr, stream>>>(nowhere, (GM_ADDR)0, other); }\n")
    x[1] = 3.5
    np.save("x.npy", x)
    run("--project", changed, "--arg", "x=x.npy", "--arg", "y=x.npy", "--save", "z=z.npy")
    check_same_bits(np.load("z.npy"), x + x)


def test_an_output_with_an_input_s_name_is_that_input(x, changed):
    replace(
        changed / "op_host" / "add_custom.cpp",
        ("axes->GetSize() == 2", "*context->GetAttrs()->GetAttrPointer<char>(2) == 'n'"),
        ("        this->SetInferShape", '        this->Attr("reduce").String("none");\n        this->SetInferShape'),
        ('Output("z")', 'Output("x")'),
    )
    replace(changed / "op_kernel" / "add_custom.cpp", ("DTYPE_Z", "DTYPE_X"))
    saved = ["--save", "x=a.npy", "--save", "x_ref=b.npy"]
    run("--project", changed, "--arg", "x=x.npy", "--shape", "y=4096", "--save", "y=y.npy", *saved)
    a, b, y = (np.load(f"{name}.npy") for name in "aby")
    check_same_bits(a, x + y)
    check_same_bits(b, a)


def test_an_optional_input_that_is_not_given_keeps_its_place(x, changed):
    """Its address is null, and op_host finds none at its place in the definition; the next one stays where it is."""
    host, begin = changed / "op_host" / "add_custom.cpp", '        this->Input("y")'
    definition = host.read_text().partition(begin)[2].partition(";")[0].replace("REQUIRED", "OPTIONAL") + ";"
    replace(
        host,
        (begin, f'this->Input("bias"){definition} this->Input("mask"){definition}{begin}'),
        ("context->GetInputShape(0)->", "context->GetOptionalInputShape(2)->"),
        ("*scale == 1.0f &&", "*scale == 1.0f && !context->GetOptionalInputShape(1) &&"),
    )
    replace(
        changed / "op_kernel" / "add_custom.cpp",
        ("op.Init(x,", "op.Init(bias ? nullptr : mask,"),
        ("void add_custom(GM_ADDR x,", "void add_custom(GM_ADDR x, GM_ADDR bias, GM_ADDR mask,"),
    )
    mask = np.random.default_rng(2).standard_normal(4096).astype(np.float32)
    np.save("mask.npy", mask)
    words = ["--project", changed, "--arg", "x=x.npy", "--arg", "mask=mask.npy", "--arg", "y=x.npy", "--force"]
    run(*words, "--save", "z=z.npy")
    check_same_bits(np.load("z.npy"), mask + x)
    refuses("a NAME of x, mask, y, z, got 'bias'", "run", *words, "--save", "bias=b.npy")


def test_the_struct_of_an_op_host_header_alone(x):
    """`--header op_host/x_tiling.h`, with the definition's dtypes by hand."""
    np.array([4096, 4, 0, 0, 0, 0], np.uint32).tofile("tiling.bin")
    defines = [word for name in "XYZ" for word in ("-D", f"DTYPE_{name}=float")]
    arrays = ["--arg", "x=x.npy", "--arg", "y=x.npy", "--arg", "z=empty:float32:4096", "--save", "z=z.npy"]
    run(
        ADD / "op_kernel" / "add_custom.cpp", "--kernel", "add_custom", "--header", ADD / "op_host" / "add_custom_tiling.h",
        *defines, *arrays, "--tiling", "tiling.bin", "--tiling-key", 1, "--workspace", 32, "--blocks", 2,
    )  # fmt: skip
    check_same_bits(np.load("z.npy"), x + x)


COMPILED = """
struct Compiled { uint32_t cores; };
static ge::graphStatus Parse(gert::TilingParseContext* context)
{
    return context->GetCompiledInfo<Compiled>()->cores = context->GetPlatformInfo()->GetCoreNumAiv(), ge::GRAPH_SUCCESS;
}
"""
REFUSED = """
    if (totalLength % 16384 != 0) {
        const std::string text = Ops::Base::ToString(context->GetInputShape(0)->GetStorageShape());
        OP_LOGE_FOR_INVALID_SHAPE_WITH_REASON(context->GetNodeName(), "x", text, "16384 must divide its size");
        return ge::GRAPH_FAILED;
    }
"""


def test_ascend_950_has_a_tiling_and_a_kernel_of_its_own(changed):
    """Two files of op_host have functions and constants of the same names; A2 does not see what is 950's."""
    host, kernels = changed / "op_host" / "arch35" / "add_custom_tiling_arch35.cpp", changed / "op_kernel"
    host.parent.mkdir()
    tiling = (
        (changed / "op_host" / "add_custom.cpp").read_text().partition("namespace ge {")[0].rstrip().removesuffix("}")
    )
    host.write_text(f"{tiling}IMPL_OP_OPTILING(AddCustom).Tiling(TilingFunc).TilingParse<Compiled>(Parse);\n}}\n")
    replace(
        host,
        ('"add_custom_tiling.h"', '"../add_custom_tiling.h"'),
        ("const uint32_t TILE_NUM = 4;", f"const uint32_t TILE_NUM = 2;{COMPILED}"),
        ("cores < 8 ? cores : 8", "context->GetCompileInfo<Compiled>()->cores"),
        ("    const float* scale", f"{REFUSED}    const float* scale"),
    )
    shutil.copy(kernels / "add_custom.cpp", kernels / "add_custom_apt.cpp")
    replace(kernels / "add_custom.cpp", ("#include", "#error of A2\n#include"))
    words, saved = ["--project", changed, "--soc", "Ascend950"], [w for n in "xyz" for w in ("--save", f"{n}={n}.npy")]
    assert "add_custom on Ascend950, 64 blocks" in run(*words, *BOTH, "--report", *saved)
    x, y, z = (np.load(f"{name}.npy") for name in "xyz")
    check_same_bits(z, x + y)
    refuses(
        "the tiling function failed: x",
        "run",
        *words,
        "--shape",
        "x=8",
        "--shape",
        "y=8",
    )
