"""aclnnRmsNorm and its gradient from C++, as a program on a device calls them."""

from __future__ import annotations

from pathlib import Path

from programs import build, needs_cxx, run

PROGRAM = r"""
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"

static void check(int status)
{
    if (status == 0) return;
    const char *text = aclGetRecentErrMsg();
    std::printf("%d: %s\n", status, text ? text : "no text");
    std::exit(1);
}

struct Array {
    void *data = nullptr;
    aclTensor *tensor = nullptr;
    std::vector<float> host;

    Array(std::vector<int64_t> shape, std::vector<float> values) : host(std::move(values))
    {
        const size_t bytes = host.size() * sizeof(float);
        check(aclrtMalloc(&data, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
        check(aclrtMemcpy(data, bytes, host.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE));
        tensor = aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape.data(),
                                 shape.size(), data);
        if (tensor == nullptr) check(1);
    }
    void print(const char *name)
    {
        const size_t bytes = host.size() * sizeof(float);
        check(aclrtMemcpy(host.data(), bytes, data, bytes, ACL_MEMCPY_DEVICE_TO_HOST));
        std::printf("%s", name);
        for (float value : host) std::printf(" %.4f", value);
        std::puts("");
    }
};

static void *space(uint64_t bytes)
{
    void *memory = nullptr;
    if (bytes > 0) check(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    return memory;
}

int main()
{
    check(aclInit(nullptr));
    check(aclrtSetDevice(0));
    Array x({2, 4}, {1, 2, 3, 6, 2, 0, 0, 0}), gamma({4}, {1, 2, 1, 1}), y({2, 4}, std::vector<float>(8));
    Array rstd({2, 1}, {0, 0}), dy({2, 4}, {1, 0, 0, 0, 0, 1, 0, 0}), dx({2, 4}, std::vector<float>(8));
    Array dgamma({4}, std::vector<float>(4));
    uint64_t bytes = 0;
    aclOpExecutor *executor = nullptr;
    check(aclnnRmsNormGetWorkspaceSize(x.tensor, gamma.tensor, 0.0, y.tensor, rstd.tensor, &bytes, &executor));
    check(aclnnRmsNorm(space(bytes), bytes, executor, nullptr));
    check(aclnnRmsNormGradGetWorkspaceSize(dy.tensor, x.tensor, rstd.tensor, gamma.tensor, dx.tensor, dgamma.tensor,
                                           &bytes, &executor));
    check(aclnnRmsNormGrad(space(bytes), bytes, executor, nullptr));
    check(aclrtSynchronizeStream(nullptr));
    y.print("y");
    rstd.print("rstd");
    dx.print("dx");
    dgamma.print("dgamma");
    const int code = aclnnRmsNormGetWorkspaceSize(x.tensor, nullptr, 0.0, y.tensor, rstd.tensor, &bytes, &executor);
    std::printf("%d: %s\n", code, aclGetRecentErrMsg());
    return aclFinalize();
}
"""


@needs_cxx
def test_root_mean_squares_from_cxx(any_toolkit: Path, tmp_path: Path) -> None:
    (tmp_path / "rms_norm.cpp").write_text(PROGRAM)
    done = run(build(any_toolkit, tmp_path / "rms_norm.cpp", tmp_path, "-std=c++11"))
    assert done.returncode == 0, done.stdout + done.stderr
    # rstd = 1/sqrt(50/4) and 1; dx = rstd·(g - xhat·mean(g·xhat)), dgamma = sum of dy·xhat, by hand
    assert done.stdout.splitlines() == [
        "y 0.2828 1.1314 0.8485 1.6971 2.0000 0.0000 0.0000 0.0000",
        "rstd 0.2828 1.0000",
        "dx 0.2772 -0.0113 -0.0170 -0.0339 0.0000 2.0000 0.0000 0.0000",
        "dgamma 0.2828 0.0000 0.0000 0.0000",
        "161001: gamma: expected an argument, got a null pointer",
    ]
