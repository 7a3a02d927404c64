"""An operator's folder as CANN's library has them, and a gtest that has just what its tests take."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from kernel_command import kernel
from typer.testing import Result

GTEST = r"""
#pragma once
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
namespace testing {
inline std::map<std::string, std::function<void()>> tests;
struct Test {};
struct Failure : std::runtime_error { using runtime_error::runtime_error; };
}
#define TEST_F(suite, name) \
    static void name(); \
    static const bool name##_known = (testing::tests[#suite "." #name] = name, true); \
    static void name()
#define ASSERT_EQ(a, b) if (!((a) == (b))) throw testing::Failure(std::string(#a " is not ") + #b)
"""
MAIN = r"""
#include "gtest/gtest.h"
int main(int count, char** words)
{
    if (!std::strcmp(words[1], "--gtest_list_tests")) {
        std::puts("suite.");
        for (auto& [name, test] : testing::tests) std::printf("  %s\n", name.c_str() + name.find('.') + 1);
        return 0;
    }
    const std::string wanted = std::string(":") + (words[1] + std::strlen("--gtest_filter=")) + ":";
    std::string report, comma;
    for (auto& [name, test] : testing::tests) {
        if (wanted.find(":" + name + ":") == std::string::npos) continue;
        std::string failure;
        try {
            test();
        } catch (const std::exception& error) {
            failure = error.what();
        }
        for (char& letter : failure) if (letter == '"' || letter == '\\') letter = '\'';
        report += comma + "{\"name\": \"" + name.substr(name.find('.') + 1) + "\"";
        if (!failure.empty()) report += ", \"failures\": [{\"failure\": \"" + failure + "\"}]";
        report += "}";
        comma = ", ";
    }
    std::FILE* file = std::fopen(words[2] + std::strlen("--gtest_output=json:"), "w");
    std::fprintf(file, "{\"testsuites\": [{\"name\": \"suite\", \"testsuite\": [%s]}]}", report.c_str());
    std::fclose(file);
    return 0;
}
"""
KERNEL = r"""
#include "kernel_operator.h"
#include "../doubled/scale.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void twice(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    GET_TILING_DATA(data, tiling);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> que;
    GlobalTensor<OFFSET_TYPE> in, out;
    in.SetGlobalBuffer((__gm__ OFFSET_TYPE*)x, 64);
    out.SetGlobalBuffer((__gm__ OFFSET_TYPE*)y, 64);
    for (int i = 0; i < 64; ++i) out.SetValue(i, SCALE * in.GetValue(i));
    if (data.mode == 1) {
        pipe.InitBuffer(que, 1, 256);
        LocalTensor<float> kept = que.AllocTensor<float>(); // never freed
    }
    if (data.mode == 2) *(volatile int*)0x10 = 1;
}
"""
TILING = r"""
#pragma once
#include "kernel_tiling/kernel_tiling.h"
struct TwiceTilingData { uint32_t mode = 0; };
#define GET_TILING_DATA(data, pointer) TwiceTilingData data; std::memcpy(&data, pointer, sizeof data)
"""
TESTS = r"""
#include "gtest/gtest.h"
#include "tikicpulib.h"
extern "C" __global__ __aicore__ void twice(GM_ADDR x, GM_ADDR y, GM_ADDR tiling);
class suite : public testing::Test {};
static float second(uint32_t mode)
{
    auto* x = (float*)AscendC::GmAlloc(256);
    auto* y = (float*)AscendC::GmAlloc(256);
    auto* tiling = (uint32_t*)AscendC::GmAlloc(32);
    for (int i = 0; i < 64; ++i) x[i] = i;
    *tiling = mode;
    ICPU_RUN_KF(twice, 1, (uint8_t*)x, (uint8_t*)y, (uint8_t*)tiling);
    return y[2];
}
TEST_F(suite, right) { ASSERT_EQ(second(0), 4.0f); static_assert(__NPU_ARCH__ == 2201); }
TEST_F(suite, leaks) { ASSERT_EQ(second(1), 4.0f); }
TEST_F(suite, wild) { second(2); }
TEST_F(suite, wrong) { ASSERT_EQ(second(0), 5.0f); }
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The test's folder, in which it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def gtest(tmp_path_factory):
    """A folder of gtest as it is installed: its headers and libraries."""
    gtest = tmp_path_factory.mktemp("gtest")
    for path, text in {"include/gtest/gtest.h": GTEST, "main.cpp": MAIN, "none.cpp": ""}.items():
        (gtest / path).parent.mkdir(parents=True, exist_ok=True)
        (gtest / path).write_text(text)
    (gtest / "lib").mkdir()
    for name, source in (("gtest_main", "main"), ("gtest", "none")):
        compiled = gtest / f"{source}.o"
        command = [
            "c++",
            "-std=c++17",
            f"-I{gtest / 'include'}",
            "-c",
            str(gtest / f"{source}.cpp"),
            "-o",
            str(compiled),
        ]
        subprocess.run(command, check=True)
        subprocess.run(["ar", "rc", str(gtest / "lib" / f"lib{name}.a"), str(compiled)], check=True)
    return gtest


class Operator(NamedTuple):
    """An operator's folder, and the folder of its gtest."""

    folder: Path
    gtest: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "op_kernel" / f"{self.folder.name}.cpp"

    @property
    def tests(self) -> Path:
        return self.folder / "tests" / "ut" / "op_kernel"

    @property
    def test(self) -> Path:
        return self.tests / f"test_{self.folder.name}.cpp"

    @property
    def cmake(self) -> Path:
        return self.tests / "CMakeLists.txt"

    def write_host(self, name: str, text: str) -> None:
        (self.folder / "op_host").mkdir()
        (self.folder / "op_host" / name).write_text(text)

    def run(self, *words: str) -> Result:
        return kernel("test", self.folder, "--gtest", self.gtest, *words)

    def states(self) -> tuple[dict[str, str], str]:
        """The tests' states in device mode, and the command's output."""
        output = self.run("--mode", "device").output
        rows = [line.split("│") for line in output.splitlines() if "suite." in line]
        return {row[1].strip().removeprefix("suite."): row[2].strip() for row in rows}, output

    def keep_tests(self, *names: str) -> None:
        """Leave these of the tests: each that crashes is run twice, and those beside it with it."""
        text = self.test.read_text()
        for name in {"right", "leaks", "wild", "wrong"} - {*names}:
            text, removed = re.subn(rf"(?m)^TEST_F\(suite, {name}\) .*\n", "", text)
            assert removed == 1
        self.test.write_text(text)


@pytest.fixture
def operator(tmp_path, gtest):
    operator = Operator(tmp_path / "library" / "norm" / "twice", gtest)
    library = tmp_path / "library"
    files = {
        operator.kernel: KERNEL,
        library / "norm" / "doubled" / "op_kernel" / "scale.h": "#define SCALE 2.0f\n",
        library / "common" / "inc" / "op_kernel" / "none.h": "",
        operator.tests / "twice_tiling_def.h": TILING,
        operator.test: TESTS,
        operator.tests / "arch35" / "test_twice_apt.cpp": "#error\n",
        operator.cmake: (
            '# AddOpTestCase(twice "ascend950" "-DOFFSET_TYPE=int")\n'
            'AddOpTestCase(twice "ascend910B1" "-DOFFSET_TYPE=float" doubled)\n'
        ),
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return operator
