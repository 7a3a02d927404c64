"""`lngrad kernel run --project`: a folder as msopgen makes it, run as its op_host says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lngrad.cli.commands import app
from lngrad.testing import check_same_bits

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
SAME_PATHS = True

ADD = Path(__file__).parent / "project" / "AddCustom"
BOTH = ["--shape", "x=8,2048", "--shape", "y=8,2048"]


def run(*words):
    return CliRunner().invoke(app, ["kernel", "run", *map(str, words)])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_op_host_says_blocks_tiling_key_and_the_output(dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = [word for name in "xyz" for word in ("--save", f"{name}={name}.npy")]
    result = run("--project", ADD, *BOTH, "--dtype", dtype, "--report", *saved)
    assert result.exit_code == 0, result.output
    assert "add_custom on Ascend910B1, 8 blocks" in result.output
    x, y, z = (np.load(f"{name}.npy") for name in "xyz")
    assert (z.dtype, z.shape) == (np.dtype(dtype), (8, 2048))
    assert x.std() > 0.5
    assert (x != y).any()
    check_same_bits(z, x + y)


def test_arrays_attributes_and_options_of_one_s_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    np.save("x.npy", x)
    words = ["--project", ADD, "--arg", "x=x.npy", "--arg", "y=x.npy", "--save", "z=z.npy", "--force"]
    assert run(*words, "--blocks", 4).exit_code == 0
    check_same_bits(np.load("z.npy"), x + x)
    assert run(*words, "--attr", "scale=2").exit_code == 0  # the tiling key is another one, and the kernel does nothing
    assert np.isnan(np.load("z.npy")).all()
    assert run(*words, "--attr", "axes=3,2").exit_code == 0
    check_same_bits(np.load("z.npy"), x + x)
    assert run(*words, "--attr", "axes=2").exit_code == 0
    assert np.isnan(np.load("z.npy")).all()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--shape", "x=8,2048"], "y: expected --arg y=FILE.npy or --shape y=…, got neither"),
        (["--shape", "w=8"], "--shape: expected a name of x, y, z, got 'w'"),
        (["--shape", "x=8,a"], "--shape x: expected sizes as 8,2048, got '8,a'"),
        (["--shape", "x"], "--shape and --attr: expected NAME=VALUE, got 'x'"),
        (["--attr", "eps=1"], "--attr: expected a name of scale, axes, got 'eps'"),
        ([*BOTH, "--save", "w=w.npy"], "--save: expected NAME=FILE.npy with a NAME of x, y, z, got 'w'"),
        ([*BOTH, "--dtype", "float"], "--dtype: expected a dtype of float32, float16"),
    ],
)  # fmt: skip
def test_names_that_op_host_does_not_have(words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("--project", ADD, *words)
    assert result.exit_code == 2, result.output
    assert text in " ".join(result.output.split())


def test_folders_that_are_no_project_and_functions_that_fail(tmp_path):
    result = run("--project", tmp_path)
    assert result.exit_code == 2
    assert "expected op_host/*.cpp of an operator, got none" in " ".join(result.output.split())
    assert run("--project", ADD, ADD / "op_kernel" / "add_custom.cpp").exit_code == 2
    changed = tmp_path / "AddCustom"
    shutil.copytree(ADD, changed)
    host = changed / "op_host" / "add_custom.cpp"
    host.write_text(host.read_text().replace("if (scale == nullptr)", "if (scale != nullptr)"))
    result = run("--project", changed, *BOTH)
    assert result.exit_code == 2
    assert "the tiling function failed" in " ".join(result.output.split())
    host.write_text(host.read_text().replace("OP_ADD(AddCustom);", ""))
    result = run("--project", changed, *BOTH)
    assert "expected an operator's definition (OpDef and OP_ADD), got none" in " ".join(result.output.split())


def test_a_struct_that_is_registered_in_a_source_file(tmp_path):
    changed = tmp_path / "AddCustom"
    shutil.copytree(ADD, changed)
    host, header = (changed / "op_host" / name for name in ("add_custom.cpp", "add_custom_tiling.h"))
    host.write_text(host.read_text().replace('#include "add_custom_tiling.h"', header.read_text()))
    header.unlink()
    result = run("--project", changed, *BOTH)
    assert result.exit_code == 0, result.output


def test_the_tiling_may_read_an_input_and_its_header_may_lie_with_the_kernel(tmp_path, monkeypatch):
    """As for indices or an axis; behind the kernel a launcher whose arguments are nowhere declared."""
    monkeypatch.chdir(tmp_path)
    changed = tmp_path / "AddCustom"
    shutil.copytree(ADD, changed)
    host, kernel = changed / "op_host" / "add_custom.cpp", changed / "op_kernel" / "add_custom.cpp"
    (changed / "op_host" / "add_custom_tiling.h").rename(changed / "op_kernel" / "add_custom_tiling.h")
    text = host.read_text().replace('"add_custom_tiling.h"', '"../op_kernel/add_custom_tiling.h"')
    assert "axes->GetData()[1] == 2 ?" in text
    host.write_text(
        text.replace("axes->GetData()[1] == 2 ?", "context->GetInputTensor(0)->GetData<float>()[1] == 3.5f ?")
    )
    launch = "void add_do(void* stream) { add_custom<<<8, nullptr, stream>>>(nowhere, (GM_ADDR)0, other); }\n"
    kernel.write_text(kernel.read_text() + launch)
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    x[1] = 3.5
    np.save("x.npy", x)
    result = run("--project", changed, "--arg", "x=x.npy", "--arg", "y=x.npy", "--save", "z=z.npy")
    assert result.exit_code == 0, result.output
    check_same_bits(np.load("z.npy"), x + x)


def test_an_output_with_an_input_s_name_is_that_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed = tmp_path / "AddCustom"
    shutil.copytree(ADD, changed)
    host = changed / "op_host" / "add_custom.cpp"
    text = host.read_text().replace("axes->GetSize() == 2", "*context->GetAttrs()->GetAttrPointer<char>(2) == 'n'")
    text = text.replace(
        "        this->SetInfer", '        this->Attr("reduce").String("none");\n        this->SetInfer', 1
    )
    assert text.count("reduce") == 1
    host.write_text(text.replace('Output("z")', 'Output("x")'))
    kernel = changed / "op_kernel" / "add_custom.cpp"
    kernel.write_text(kernel.read_text().replace("DTYPE_Z", "DTYPE_X"))
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    np.save("x.npy", x)
    saved = ["--save", "x=a.npy", "--save", "x_ref=b.npy"]
    result = run("--project", changed, "--arg", "x=x.npy", "--shape", "y=4096", "--save", "y=y.npy", *saved)
    assert result.exit_code == 0, result.output
    a, b, y = (np.load(f"{name}.npy") for name in "aby")
    check_same_bits(a, x + y)
    check_same_bits(b, a)


def test_an_optional_input_that_is_not_given_keeps_its_place(tmp_path, monkeypatch):
    """Its address is null, and op_host finds none at its place in the definition; the next one stays where it is."""
    monkeypatch.chdir(tmp_path)
    changed = tmp_path / "AddCustom"
    shutil.copytree(ADD, changed)
    host, kernel = changed / "op_host" / "add_custom.cpp", changed / "op_kernel" / "add_custom.cpp"
    begin, text = '        this->Input("y")', host.read_text()
    definition = text[text.index(begin) + len(begin) :]
    definition = definition[: definition.index(";") + 1].replace("REQUIRED", "OPTIONAL")
    text = text.replace(begin, f'this->Input("bias"){definition} this->Input("mask"){definition}{begin}')
    text = text.replace("context->GetInputShape(0)->", "context->GetOptionalInputShape(2)->")
    host.write_text(text.replace("*scale == 1.0f &&", "*scale == 1.0f && !context->GetOptionalInputShape(1) &&"))
    text = kernel.read_text().replace("op.Init(x,", "op.Init(bias ? nullptr : mask,")
    kernel.write_text(
        text.replace("void add_custom(GM_ADDR x,", "void add_custom(GM_ADDR x, GM_ADDR bias, GM_ADDR mask,")
    )
    x, mask = np.random.default_rng(1).standard_normal((2, 4096)).astype(np.float32)
    np.save("x.npy", x)
    np.save("mask.npy", mask)
    words = ["--project", changed, "--arg", "x=x.npy", "--arg", "mask=mask.npy", "--arg", "y=x.npy", "--force"]
    result = run(*words, "--save", "z=z.npy")
    assert result.exit_code == 0, result.output
    check_same_bits(np.load("z.npy"), mask + x)
    result = run(*words, "--save", "bias=b.npy")
    assert result.exit_code == 2
    assert "a NAME of x, mask, y, z, got 'bias'" in " ".join(result.output.split())


def test_the_struct_of_an_op_host_header_alone(tmp_path, monkeypatch):
    """`--header op_host/x_tiling.h`, with the definition's dtypes by hand."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    np.save("x.npy", x)
    np.array([4096, 4, 0, 0, 0, 0], np.uint32).tofile("tiling.bin")
    defines = [word for name in "XYZ" for word in ("-D", f"DTYPE_{name}=float")]
    arrays = ["--arg", "x=x.npy", "--arg", "y=x.npy", "--arg", "z=empty:float32:4096", "--save", "z=z.npy"]
    result = run(
        ADD / "op_kernel" / "add_custom.cpp", "--kernel", "add_custom", "--header", ADD / "op_host" / "add_custom_tiling.h",
        *defines, *arrays, "--tiling", "tiling.bin", "--tiling-key", 1, "--workspace", 32, "--blocks", 2,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    check_same_bits(np.load("z.npy"), x + x)
