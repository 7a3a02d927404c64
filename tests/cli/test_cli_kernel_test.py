"""`lngrad kernel test`: an operator's folder as CANN's library has them, with a gtest that has just what it takes."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner

from lngrad.cli.commands import app

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or shutil.which("ar") is None, reason="needs a C++ compiler"
)


def test_an_operator_s_own_tests(operator, monkeypatch):
    folder, gtest = operator
    monkeypatch.setenv("COLUMNS", "200")
    before = {path: path.read_bytes() for path in folder.parents[1].rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, ["kernel", "test", str(folder), "--gtest", str(gtest)])
    assert result.exit_code == 1, result.output
    rows = {line.split("│")[1].strip(): line.split("│")[2:] for line in result.output.splitlines() if "suite." in line}
    states = {name: [cell.strip() for cell in cells[:2]] for name, cells in rows.items()}
    assert states == {
        "suite.right": ["passed", "passed"],
        "suite.leaks": ["failed", "passed"],  # CANN's checker reports it, the hardware does not
        "suite.wild": ["crashed", "crashed"],
        "suite.wrong": ["failed", "failed"],
    }
    told = " ".join(result.output.split())
    for text in ("LeakFault", "SIGSEGV", "last Ascend C call was at", "second(0) is not 5.0f"):
        assert text in told
    assert {path: path.read_bytes() for path in folder.parents[1].rglob("*") if path.is_file()} == before


def test_what_does_not_compile_and_what_is_no_operator(operator, tmp_path):
    folder, gtest = operator
    (folder / "op_kernel" / "twice.cpp").write_text("int twice = Nothing;\n")
    result = CliRunner().invoke(app, ["kernel", "test", str(folder), "--gtest", str(gtest), "--mode", "device"])
    assert result.exit_code == 1
    assert "does not compile" in result.output
    result = CliRunner().invoke(app, ["kernel", "test", str(tmp_path / "gtest")])
    assert (result.exit_code, result.output) == (
        2, f"lngrad: {tmp_path / 'gtest'}: expected tests/ut/op_kernel/test_*.cpp of a vector kernel, got none\n"
    )  # fmt: skip


HOST_TILING = """
namespace optiling {
BEGIN_TILING_DATA_DEF(Part)
TILING_DATA_FIELD_DEF(uint32_t, mode);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(PartOp, Part)
BEGIN_TILING_DATA_DEF(TwiceTilingData)
TILING_DATA_FIELD_DEF(uint32_t, mode);
TILING_DATA_FIELD_DEF_STRUCT(Part, part);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(Twice, TwiceTilingData)
REGISTER_TILING_DATA_CLASS(Twice_7, Part)
}
"""


def test_the_tiling_header_is_made_of_what_op_host_registers(operator, monkeypatch):
    folder, gtest = operator
    monkeypatch.setenv("COLUMNS", "200")
    (folder / "tests" / "ut" / "op_kernel" / "twice_tiling_def.h").unlink()
    host = folder.parent / "doubled" / "op_host" / "doubled_tiling.h"  # of the operator beside it
    host.parent.mkdir()
    host.write_text(HOST_TILING)
    result = CliRunner().invoke(app, ["kernel", "test", str(folder), "--gtest", str(gtest), "--mode", "device"])
    rows = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in result.output.splitlines()
        if "suite." in line
    }
    assert (rows["suite.right"], rows["suite.wild"]) == ("passed", "crashed"), result.output


def test_tests_that_are_built_for_950_alone(operator):
    folder, gtest = operator
    cmake = folder / "tests" / "ut" / "op_kernel" / "CMakeLists.txt"
    cmake.write_text('AddOpTestCase(twice "ascend950pr_9599" "")\n# AddOpTestCase(twice "ascend910B1" "")\n')
    result = CliRunner().invoke(app, ["kernel", "test", str(folder), "--gtest", str(gtest)])
    assert (result.exit_code, result.output) == (
        2, f"lngrad: {cmake}: expected an AddOpTestCase for another SoC than 950, got none\n"
    )  # fmt: skip
