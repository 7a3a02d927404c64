"""`lngrad kernel test`: an operator's folder as CANN's library has them, with a gtest that has just what it takes."""

from __future__ import annotations

import shutil

import pytest
from kernel_command import kernel

from lngrad_ascend.cpp.op_host import kernel_source
from lngrad_ascend.sdk import Settings, operator_tests, write_toolkit

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or shutil.which("ar") is None, reason="needs a C++ compiler"
)


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit") / "toolkit"
    write_toolkit(folder)
    return folder


@pytest.fixture
def one_toolkit(toolkit, monkeypatch):
    """The command finds the toolkit that it would write: it is compiled once for all tests but the first."""

    def found(folder, settings):
        assert settings == Settings()
        folder.symlink_to(toolkit, target_is_directory=True)

    monkeypatch.setattr(operator_tests, "write_toolkit", found)


def append(path, text):
    path.write_text(path.read_text() + text)


def test_an_operator_s_own_tests(operator):
    before = {path: path.read_bytes() for path in operator.folder.parents[1].rglob("*") if path.is_file()}
    result = operator.run("--cycles")
    assert result.exit_code == 1, result.output
    rows = {line.split("│")[1].strip(): line.split("│")[2:] for line in result.output.splitlines() if "suite." in line}
    states = {name: [cell.strip() for cell in cells[:2]] for name, cells in rows.items()}
    assert states == {
        "suite.right": ["passed", "passed"],
        "suite.leaks": ["failed", "passed"],  # CANN's checker reports it, the hardware does not
        "suite.wild": ["crashed", "crashed"],
        "suite.wrong": ["failed", "failed"],
    }
    output = " ".join(result.output.split())
    for text in (
        "LeakFault",
        "SIGSEGV",
        "last Ascend C call was at",
        "second(0) is not 5.0f",
        "µs by the model",
        "busy: S ",
    ):
        assert text in output
    assert {path: path.read_bytes() for path in operator.folder.parents[1].rglob("*") if path.is_file()} == before


def test_what_does_not_compile_and_what_is_no_operator(operator, one_toolkit):
    operator.kernel.write_text("int twice = Nothing;\n")
    result = operator.run("--mode", "device")
    assert result.exit_code == 1
    assert "does not compile" in result.output
    result = kernel("test", operator.gtest)
    assert (result.exit_code, result.output) == (
        2, f"lngrad: {operator.gtest}: expected tests/ut/op_kernel/test_*.cpp of a vector kernel, got none\n"
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


def test_the_tiling_header_is_made_of_what_op_host_registers(operator, one_toolkit):
    operator.keep_tests("right", "wild")
    (operator.tests / "twice_tiling_def.h").unlink()
    host = operator.folder.parent / "doubled" / "op_host" / "doubled_tiling.h"  # of the operator beside it
    host.parent.mkdir()
    host.write_text(HOST_TILING)
    found, output = operator.states()
    assert (found["right"], found["wild"]) == ("passed", "crashed"), output


CONSTANTS = """
constexpr uint32_t PAIRS = 2;
#define PIECES (2 * PAIRS) // of both
namespace optiling {
BEGIN_TILING_DATA_DEF(TwiceTilingData)
TILING_DATA_FIELD_DEF(uint32_t, mode);
TILING_DATA_FIELD_DEF_ARR(uint32_t, PIECES, pieces);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(Twice, TwiceTilingData)
}
"""


OF_ANOTHER = {  # the struct of a header of the test, and what makes it op_host's
    "typedef": ("OfAnother", "typedef OfAnother TwiceTilingData;\n"),
    "alias": ("OfAnother", "using TwiceTilingData = OfAnother;\n"),
    "longer name": ("TwiceTilingDataOfOne", ""),
}


@pytest.mark.parametrize("own", ["", "test", "header", *OF_ANOTHER, "kernel", "copies"])
def test_op_host_s_struct_with_its_constants_or_the_one_of_the_test_or_of_the_kernel(operator, one_toolkit, own):
    operator.keep_tests("right", "wild")
    tests, test = operator.tests, operator.test
    (tests / "twice_tiling_def.h").unlink()
    operator.write_host("twice_tiling.h", CONSTANTS)
    struct = "struct TwiceTilingData { uint32_t mode; uint32_t pieces[4]; };\n"
    name, same = OF_ANOTHER.get(own, ("TwiceTilingData", ""))
    head, tail = test.read_text().split("class suite", 1)
    if own == "copies":  # a header of the test that uses the struct, and has none
        (tests / "twice_tiling.h").write_text("#define COPY(p) TwiceTilingData tiling = *(TwiceTilingData*)(p);\n")
    if own == "header":
        (tests / "common.h").write_text(f"#pragma once\n{struct}")
    if own in OF_ANOTHER:  # twice_tiling.h comes ahead of the test and of the kernel
        of_another, macro = struct.replace("TwiceTilingData", name), f"{name} data = *(const __gm__ {name}*)(at)"
        content = f"{of_another}{same}#define GET_TILING_DATA(data, at) {macro}\n"
        (tests / "twice_tiling.h").write_text(f"#pragma once\n#include <cstdint>\n{content}")
    if own != "kernel":
        before = {"test": struct, "header": '#include "common.h"\n'}.get(own, "")
        test.write_text(f"{head}{before}static_assert(sizeof({name}) == 20);\nclass suite{tail}")
    text = operator.kernel.read_text()
    at = text.index("using namespace AscendC;")
    operator.kernel.write_text(
        f"{text[:at]}{struct if own == 'kernel' else ''}static_assert(sizeof({name}) == 20);\n{text[at:]}"
    )
    found, output = operator.states()
    assert (found.get("right"), found.get("wild")) == ("passed", "crashed"), output


def test_a_header_beside_a_test_is_no_second_test(operator, one_toolkit):
    operator.keep_tests("right")
    test = operator.test
    test.with_suffix(".h").write_text("#pragma once\n")
    test.write_text('#include "test_twice.h"\nint once = 1;\n' + test.read_text())
    assert operator.states()[0]["right"] == "passed"


def test_the_first_true_error_is_told_not_the_linker_s_last_word(operator, one_toolkit):
    append(operator.kernel, "int shared_by_two = 1;\n")
    append(operator.test, "int shared_by_two = 2;\n")
    output = " ".join(operator.states()[1].split())
    assert "multiple definition of `shared_by_two'" in output
    assert "ld returned" not in output


def test_an_operator_may_have_the_name_of_a_function_of_c(operator, one_toolkit):
    operator.keep_tests("right")
    renamed = operator._replace(folder=operator.folder.parent / "fmax")
    for path in sorted(path for path in operator.folder.rglob("*") if path.is_file()):
        to = renamed.folder / str(path.relative_to(operator.folder)).replace("twice", "fmax")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(path.read_text().replace("twice", "fmax"))
    assert renamed.states()[0]["right"] == "passed"


def test_types_that_the_cmake_file_leaves_out_are_as_the_one_that_it_has(operator, one_toolkit):
    operator.keep_tests("right")
    operator.cmake.write_text('AddOpTestCase(twice "ascend910B1" "-DOFFSET_TYPE=float -DDTYPE_X=int32_t")\n')
    operator.write_host("twice_def.cpp", 'this->Input("x"); this->Output("y"); this->Output("z");\n')
    (operator.tests / "entry.h").write_text("/* Define it first:\n *   #define DTYPE_Y half\n */\n")
    own = "#ifndef DTYPE_Z\n#define DTYPE_Z half\n#endif\nconstexpr int DTYPE_MODE = 1;\n"  # of the kernel itself
    own += "static_assert(std::is_same_v<DTYPE_Y, int32_t> && std::is_same_v<DTYPE_Z, half>);\n"
    append(operator.kernel, own)
    assert operator.states()[0]["right"] == "passed"


def test_a_definition_s_types_in_the_column_that_the_cmake_file_names(operator, one_toolkit):
    operator.keep_tests("right")
    operator.cmake.write_text('AddOpTestCase(twice "ascend910B1" "-DOFFSET_TYPE=float -DDTYPE_X=half")\n')
    operator.write_host(
        "twice_def.cpp",
        'this->Input("x").ParamType(REQUIRED).DataType({ge::DT_FLOAT, ge::DT_FLOAT16});\n'
        'this->Output("y").DataType({ge::DT_INT32, ge::DT_INT8}); this->Output("z").DataType(types);\n'
        'this->Output("w");\n',
    )
    own = "static_assert(std::is_same_v<DTYPE_Y, int8_t> && std::is_same_v<DTYPE_Z, half>);\n"
    own += "#ifdef DTYPE_W\n#error the kernel goes without it\n#endif\n"
    append(operator.kernel, own)
    assert operator.states()[0]["right"] == "passed"


TILED = """
#include "tiling_context_faker.h"
#include <fstream>
#define TEXT_OF(word) #word
#define TEXT(word) TEXT_OF(word)
TEST_F(suite, tiled)
{
    struct Compiled { int64_t cores; } compiled = {7};
    gert::TilingContextPara para("Twice", {{{{3, 8}, {3, 8}}, ge::DT_FLOAT16, ge::FORMAT_ND}},
                                 {{{{3, 8}, {3, 8}}, ge::DT_FLOAT16, ge::FORMAT_ND}},
                                 {{"scale", Value{Value::VT_FLOAT, std::make_shared<float>(0.5f)}}},
                                 &compiled);
    TilingInfo info;
    ASSERT_EQ(ExecuteTiling(para, info), true);
    ASSERT_EQ(info.tilingKey, 24);
    ASSERT_EQ(info.blockNum, 7u);
    ASSERT_EQ(info.workspaceSizes.at(0), 32);
    ASSERT_EQ(*reinterpret_cast<float*>(info.tilingData.get()), 0.5f);
    ASSERT_EQ(ExecuteTiling(gert::TilingContextPara("Twice", {}, {}), info), false);
}
TEST_F(suite, reads)
{
    int beside = 0, named = 0;
    std::ifstream("./twice_data/two.txt") >> beside;
    std::ifstream(TEXT(TWICE_DIR) "/twice_data/two.txt") >> named;
    ASSERT_EQ(beside + named, 4);
}
TEST_F(suite, cut) { std::ofstream("../../../../built/twice-test_twice/report.json"); std::abort(); }
"""
STEPS = """
#include "op_host/tiling_base_class.h"
#include "register/op_impl_registry.h"
namespace optiling {
struct Compiled { int64_t cores; };
class Steps : public Ops::Base::TilingBaseClass {
public:
    explicit Steps(gert::TilingContext* context) : TilingBaseClass(context) {}

protected:
    bool IsCapable() override { return !Ops::Base::IsRegbaseSocVersion(context_); }
    ge::graphStatus GetShapeAttrsInfo() override { return context_->GetInputShape(0) ? ge::GRAPH_SUCCESS : ge::GRAPH_FAILED; }
    ge::graphStatus GetPlatformInfo() override
    {
        return context_->SetBlockDim(context_->GetCompileInfo<Compiled>()->cores);
    }
    ge::graphStatus DoOpTiling() override
    {
        *context_->GetTilingData<float>() = *context_->GetAttrs()->GetFloat(0);
        return ge::GRAPH_SUCCESS;
    }
    ge::graphStatus DoLibApiTiling() override { return ge::GRAPH_SUCCESS; }
    ge::graphStatus GetWorkspaceSize() override { return context_->GetWorkspaceSizes(1)[0] = 32, ge::GRAPH_SUCCESS; }
    ge::graphStatus PostTiling() override { return ge::GRAPH_SUCCESS; }
    uint64_t GetTilingKey() const override { return context_->GetInputShape(0)->GetStorageShape().GetShapeSize(); }
};
ge::graphStatus Tiling4Twice(gert::TilingContext* context) { return Steps(context).DoTiling(); }
IMPL_OP_OPTILING(Twice).Tiling(Tiling4Twice);
}
"""
# As a library's any_value.h has a value: its type as a number, and a pointer.
VALUE = """
#include <memory>
struct Value { enum { VT_STRING = 1, VT_FLOAT, VT_BOOL, VT_INT }; int type_; std::shared_ptr<void> valuePtr_; };
"""


def test_a_test_may_run_op_host_s_tiling_and_read_its_data(operator, one_toolkit):
    operator.keep_tests("right")
    data, kernel, test = operator.tests / "twice_data", operator.kernel, operator.test
    operator.cmake.write_text(
        'AddOpTestCase(twice "ascend910B1" "-DOFFSET_TYPE=float -DTWICE_DIR=${CMAKE_CURRENT_SOURCE_DIR}")\n'
    )
    data.mkdir()
    (data / "two.txt").write_text("2")
    operator.write_host("twice_tiling.cpp", STEPS)
    test.write_text(VALUE + test.read_text() + TILED)
    # A kernel without extern "C" is linked as its test declares it; kernels beside it are reached by "../../" too.
    kernel.write_text(kernel.read_text().replace('extern "C" ', "").replace("../doubled/", "../../doubled/op_kernel/"))
    found, output = operator.states()
    assert {found.get(name) for name in ("right", "tiled", "reads")} == {"passed"}, output
    assert found["cut"] == "crashed"  # with an empty report


FOR_950, FOR_A2 = 'AddOpTestCase(twice "ascend950pr_9599" "-D{}")\n', 'AddOpTestCase(twice "ascend910B1" "-D{}")\n'


def write(folder, *names):
    for name in names:
        path, _, text = name.partition(":")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.parametrize(
    ("cmake", "soc", "found"),
    [
        (FOR_950 + FOR_A2, None, ("Ascend910B1", "test_twice", 1)),
        (FOR_950 + FOR_A2, "Ascend950PR_9599", ("Ascend950", "test_twice_apt", 0)),
        (FOR_950 + "# " + FOR_A2, None, ("Ascend950", "test_twice_apt", 0)),
        (
            FOR_A2,
            "Ascend950",
            ("Ascend950", "test_twice_apt", 0),
        ),  # a test of another SoC's line, as libraries have them
    ],
)
def test_the_tests_of_a_soc(operator, cmake, soc, found):
    operator.cmake.write_text(cmake.format(*range(cmake.count("{}"))))
    tests = operator_tests.chosen_tests(operator.folder, soc)
    (source,) = tests.sources
    assert (tests.soc.name, source.stem, int(tests.call.partition("-D")[2][0]) if "950" in cmake else found[2]) == found


def test_an_operator_without_tests_for_a_soc(operator):
    operator.cmake.write_text(FOR_950.format("A"))
    result = operator.run("--soc", "Ascend910B1")
    assert (result.exit_code, result.output) == (
        2, f"lngrad: {operator.cmake}: expected an AddOpTestCase for Atlas A2 training/inference, got none\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("files", "kernel"),
    [
        (["op_kernel/arch35/twice.cpp"], "arch35/twice.cpp"),
        (["op_kernel/twice_apt.cpp"], "twice_apt.cpp"),
        (["op_kernel/twice_x.cpp", 'op_host/twice_def.cpp:ExtendCfgInfo("opFile.value", "twice_x")'], "twice_x.cpp"),
        (["op_kernel/arch35/t.cpp", "op_kernel/CMakeLists.txt:    KERNEL_SRC arch35/t.cpp\n"], "arch35/t.cpp"),
        ([], "twice.cpp"),
    ],
)
def test_the_kernel_s_file_for_950(tmp_path, files, kernel):
    write(tmp_path, "op_kernel/twice.cpp", *files)
    assert kernel_source(tmp_path, "twice", True) == tmp_path / "op_kernel" / kernel
    assert kernel_source(tmp_path, "twice", False) == tmp_path / "op_kernel" / "twice.cpp"
