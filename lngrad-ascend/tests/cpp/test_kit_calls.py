"""Calls of the Ascend C kit's examples that have no row of a table: by kernels of one program, with its results."""

from __future__ import annotations

import re
import shutil

import pytest

from lngrad_ascend.sdk import Settings
from lngrad_ascend.sdk.program import run_program

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

HEAD = r"""
#include "acl/acl.h"
#include "kernel_operator.h"
#include "tiling/tiling_api.h"
#include <vector>
using namespace AscendC;
template <typename T>
struct Memory {
    T* at = nullptr;
    std::vector<T> host;
    explicit Memory(std::vector<T> values) : host(values)
    {
        aclrtMalloc(reinterpret_cast<void**>(&at), bytes(), ACL_MEM_MALLOC_HUGE_FIRST);
        aclrtMemcpy(at, bytes(), host.data(), bytes(), ACL_MEMCPY_HOST_TO_DEVICE);
    }
    std::size_t bytes() const { return host.size() * sizeof(T); }
    const std::vector<T>& back()
    {
        aclrtMemcpy(host.data(), bytes(), at, bytes(), ACL_MEMCPY_DEVICE_TO_HOST);
        return host;
    }
};
#define CHECK(condition) if (!(condition)) { std::printf("not so: %s\n", #condition); return 1; }
"""

PROGRAMS = {
    # A struct read through a plain pointer, and a write through one.
    "tiling": r"""
struct Tiling { uint32_t count, factor; };
__global__ __vector__ void kernel(__gm__ uint8_t* out, __gm__ uint8_t* tiling)
{
    Tiling data = *reinterpret_cast<__gm__ Tiling*>(tiling);
    GlobalTensor<uint32_t> memory;
    memory.SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t*>(out), data.count);
    memory.SetValue(0, data.factor * 2);
    reinterpret_cast<__gm__ uint32_t*>(out)[1] = reinterpret_cast<__gm__ uint32_t*>(out)[0] + 1;
}
int run(aclrtStream stream)
{
    Memory<uint32_t> out({0, 0, 0, 0}), tiling({4, 21});
    kernel<<<1, 0, stream>>>(reinterpret_cast<uint8_t*>(out.at), reinterpret_cast<uint8_t*>(tiling.at));
    CHECK(out.back() == std::vector<uint32_t>({42, 43, 0, 0}))
    return 0;
}""",
    # A table of the kernel's own.
    "constants": r"""
const __gm__ int32_t TABLE[16] = {5, 4, 3, 2, 1, 0, 7, 6, 15, 14, 13, 12, 11, 10, 9, 8};
__global__ __vector__ void kernel(__gm__ int32_t* out)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 64);
    GlobalTensor<int32_t> memory, table;
    memory.SetGlobalBuffer(out);
    table.SetGlobalBuffer(const_cast<__gm__ int32_t*>(TABLE), 16);
    LocalTensor<int32_t> local = buffer.Get<int32_t>();
    DataCopy(local, table, 16);
    PipeBarrier<PIPE_ALL>();
    local.SetValue(0, local.GetValue(0) + table.GetValue(8));
    PipeBarrier<PIPE_ALL>();
    DataCopy(memory, local, 8);
}
int run(aclrtStream stream)
{
    Memory<int32_t> out(std::vector<int32_t>(8));
    kernel<<<1, 0, stream>>>(out.at);
    CHECK(out.back() == std::vector<int32_t>({20, 4, 3, 2, 1, 0, 7, 6}))
    return 0;
}""",
    "scalar atomics": r"""
__global__ __vector__ void kernel(__gm__ int32_t* sum, __gm__ float* real, __gm__ uint64_t* once)
{
    AtomicAdd(sum, int32_t(GetBlockIdx() + 1));
    AtomicAdd(real, 0.5f);
    AtomicCas(once, uint64_t(7), uint64_t(100 + GetBlockIdx()));
}
int run(aclrtStream stream)
{
    Memory<int32_t> sum({10});
    Memory<float> real({1});
    Memory<uint64_t> once({7});
    kernel<<<4, 0, stream>>>(sum.at, real.at, once.at);
    CHECK(sum.back()[0] == 20)
    CHECK(real.back()[0] == 3)
    CHECK(once.back()[0] >= 100 && once.host[0] < 104)
    return 0;
}""",
    "group barrier": r"""
__global__ __vector__ void kernel(__gm__ int32_t* memory)
{
    GroupBarrier<PipeMode::MTE3_MODE> barrier(nullptr, 2, 2);
    const int64_t id = GetBlockIdx();
    GlobalTensor<int32_t> all;
    all.SetGlobalBuffer(memory, 64); // a line of 64 bytes for each block
    if (id >= 2) {
        barrier.Wait(id - 2);
        all.SetValue(16 * id, all.GetValue(0) + all.GetValue(16));
    } else {
        all.SetValue(16 * id, 5 + id);
        DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(all[16 * id]);
        barrier.Arrive(id);
    }
}
int run(aclrtStream stream)
{
    Memory<int32_t> memory(std::vector<int32_t>(64));
    kernel<<<4, 0, stream>>>(memory.at);
    const std::vector<int32_t> all = memory.back();
    CHECK(all[0] == 5 && all[16] == 6 && all[32] == 11 && all[48] == 11)
    return 0;
}""",
    "slices and the rest of the buffer": r"""
__global__ __vector__ void kernel(__gm__ float* in, __gm__ float* out)
{
    LocalTensor<float> all;
    PopStackBuffer<float, TPosition::VECCALC>(all);
    all.SetShapeInfo(ShapeInfo(1, std::vector<uint32_t>{32}.data()));
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer(in, 60);
    target.SetGlobalBuffer(out, 32);
    SliceInfo from[] = {{1, 19, 3, 1, 20}, {0, 2, 1, 1, 3}}, to[] = {{0, 15, 0, 1, 16}, {0, 1, 0, 1, 2}};
    DataCopy(all, source, to, from, 2);
    SetFlag<HardEvent::MTE2_MTE3>(0);
    WaitFlag<HardEvent::MTE2_MTE3>(0);
    DataCopy(target, all, to, to, 2);
    target.SetValue(31, all.GetSize() * 4 == GetUBSizeInBytes() && GetRuntimeUBSize() == GetUBSizeInBytes());
    target.SetValue(30, float(all.GetShapeInfo().shape[0]));
}
int run(aclrtStream stream)
{
    std::vector<float> values(60), want;
    for (int i = 0; i < 60; ++i) values[i] = i;
    for (int row : {0, 40})
        for (int start : {1, 12})
            for (int i = 0; i < 8; ++i) want.push_back(row + start + i);
    Memory<float> in(values), out(std::vector<float>(32, -1));
    kernel<<<1, 0, stream>>>(in.at, out.at);
    out.back();
    CHECK(out.host[30] == 32 && out.host[31] == 1)
    for (int i = 0; i < 30; ++i) CHECK(out.host[i] == want[i])
    return 0;
}""",
    "control bits": r"""
__global__ __vector__ void kernel(__gm__ int32_t* out)
{
    SetCtrlSpr<48, 48>(1);
    SetCtrlSpr<6, 8>(5);
    out[0] = GetCtrlSpr<48, 48>();
    out[1] = GetCtrlSpr<6, 8>();
    out[2] = GetCtrlSpr<7, 7>();
    ResetCtrlSpr<6, 8>();
    out[3] = GetCtrlSpr<6, 8>() + GetCtrlSpr<48, 48>();
}
int run(aclrtStream stream)
{
    Memory<int32_t> out({0, 0, 0, 0});
    kernel<<<1, 0, stream>>>(out.at);
    CHECK(out.back() == std::vector<int32_t>({1, 5, 0, 1}))
    char small[2];
    CHECK(memcpy_s(small, 2, "abc", 3) != 0 && memcpy_s(small, 2, "ab", 2) == 0 && small[1] == 'b')
    return 0;
}""",
    "dequantization": r"""
__global__ __vector__ void kernel(__gm__ int32_t* in, __gm__ float* scale, __gm__ float* out)
{
    LocalMemAllocator<Hardware::UB> memory;
    LocalTensor<int32_t> whole = memory.Alloc<int32_t, 16>();
    LocalTensor<float> scales = memory.Alloc<float, 8>(), results = memory.Alloc<float, 32>();
    GlobalTensor<int32_t> source;
    GlobalTensor<float> factors, target;
    source.SetGlobalBuffer(in, 16);
    factors.SetGlobalBuffer(scale, 8);
    target.SetGlobalBuffer(out, 32);
    DataCopy(whole, source, 16);
    DataCopy(scales, factors, 8);
    SetFlag<HardEvent::MTE2_V>(0);
    WaitFlag<HardEvent::MTE2_V>(0);
    AscendDequant(results, whole, scales, {2, 8, 8});
    AscendDequant(results[16], whole, 0.5f, {2, 8, 8});
    SetFlag<HardEvent::V_MTE3>(0);
    WaitFlag<HardEvent::V_MTE3>(0);
    DataCopy(target, results, 32);
}
int run(aclrtStream stream)
{
    std::vector<int32_t> whole(16);
    std::vector<float> scales(8);
    for (int i = 0; i < 16; ++i) whole[i] = 3 * i - 20;
    for (int i = 0; i < 8; ++i) scales[i] = 0.25f * i - 1;
    Memory<int32_t> in(whole);
    Memory<float> scale(scales), out(std::vector<float>(32));
    kernel<<<1, 0, stream>>>(in.at, scale.at, out.at);
    out.back();
    for (int i = 0; i < 16; ++i) CHECK(out.host[i] == whole[i] * scales[i % 8] && out.host[16 + i] == whole[i] * 0.5f)
    return 0;
}""",
}
MUTEX = r"""
__global__ __vector__ void kernel(__gm__ float* in, __gm__ float* out)
{
    LocalMemAllocator<Hardware::UB> memory;
    LocalTensor<float> x = memory.Alloc<float, 64>(), y = memory.Alloc<float, 64>();
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer(in, 64);
    target.SetGlobalBuffer(out, 64);
    const uint8_t id = AllocMutexID();
    Mutex::Lock<PIPE_MTE2>(id);
    DataCopy(x, source, 64);
    Mutex::Unlock<PIPE_MTE2>(id);
    LOCK
    Adds(y, x, 1.0f, 64);
    Mutex::Unlock<PIPE_V>(id);
    Mutex::Lock<PIPE_MTE3>(id);
    DataCopy(target, y, 64);
    Mutex::Unlock<PIPE_MTE3>(id);
    ReleaseMutexID(id);
}
int run(aclrtStream stream)
{
    Memory<float> in(std::vector<float>(64, 2)), out(std::vector<float>(64));
    try {
        kernel<<<1, 0, stream>>>(in.at, out.at);
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 2;
    }
    CHECK(out.back() == std::vector<float>(64, 3))
    return 0;
}"""
MUTEXES = {
    "locked": "Mutex::Lock<PIPE_V>(id);",
    "unlocked": "Mutex::Unlock<PIPE_V>(id);",
    "locked twice": "Mutex::Lock<PIPE_V>(id); Mutex::Lock<PIPE_V>(id);",
    "not locked": "",
}
MAIN = r"""
int main(int, char** words)
{
    aclrtSetDevice(0);
    aclrtStream stream = nullptr;
    aclrtCreateStream(&stream);
    if (words[1]) std::freopen(words[1], "w", stdout);
"""


def mutex(lock):
    text = MUTEX.replace("LOCK", lock)
    return text if lock else text.replace("    Mutex::Unlock<PIPE_V>(id);\n", "")


def ends(programs, folder, soc="Ascend910B1"):
    """What run() of each program returns and prints: all of them in one file and one process, for a compiler takes a second."""
    source, output = folder / "program.asc", folder / "told.txt"
    texts = [f"namespace program{n} {{\n{text}\n}}\n" for n, text in enumerate(programs.values())]
    calls = [f'std::printf("\\f%d\\n", program{n}::run(stream));\n' for n in range(len(texts))]
    source.write_text(f"{HEAD}{''.join(texts)}{MAIN}{''.join(calls)}}}\n")
    assert run_program(source, [str(output)], None, Settings(soc=soc)) == 0
    *printed, _ = re.split(r"\f(\d)\n", output.read_text())
    return dict(zip(programs, zip(map(int, printed[1::2]), printed[::2], strict=True), strict=True))


@pytest.fixture(scope="module")
def on_910b(tmp_path_factory):
    return ends(PROGRAMS | {"mutex": mutex(MUTEXES["locked"])}, tmp_path_factory.mktemp("kit"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_kits_examples_call(name, on_910b):
    assert on_910b[name] == (0, "")


def test_a_mutex_orders_pipes_and_its_misuse_is_found(on_910b, tmp_path):
    on_950 = ends({name: mutex(lock) for name, lock in MUTEXES.items()}, tmp_path, "Ascend950")
    assert on_950["locked"] == (0, "")
    for (code, text_printed), text in (
        (on_910b["mutex"], "Mutex::Lock: only 950 has it"),
        (on_950["locked twice"], "the mutex is locked; a device would wait for ever"),
        (on_950["not locked"], "RaceFault"),
        (on_950["unlocked"], "Mutex::Unlock(0): the mutex is not locked"),
    ):
        assert code == 2
        assert text in text_printed


def test_remarks_name_the_line_and_are_printed_where_asked(tmp_path, capfd, monkeypatch):
    program = r"""
__global__ __vector__ void kernel(__gm__ float* out)
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 256);
    LocalTensor<float> x = queue.AllocTensor<float>();
    Duplicate(x, 2.0f, 64); // in a state that its queue does not mean
    queue.FreeTensor(x);
}
int run(aclrtStream stream)
{
    Memory<float> out(std::vector<float>(64));
    kernel<<<1, 0, stream>>>(out.at);
    return 0;
}"""
    line = f"{HEAD}namespace program0 {{\n{program}".partition("Duplicate")[0].count("\n") + 1
    assert ends({"remarks": program}, tmp_path) == {"remarks": (0, "")}
    assert "remark" not in capfd.readouterr().err
    monkeypatch.setenv("LNGRAD_KERNEL", "remarks=on")
    assert ends({"remarks": program}, tmp_path) == {"remarks": (0, "")}
    (line_printed,) = capfd.readouterr().err.splitlines()
    assert line_printed.startswith(f"lngrad: remark: program.asc:{line}: Duplicate: dst ")
