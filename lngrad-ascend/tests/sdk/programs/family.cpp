#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_add_layer_norm.h"
#include "aclnnop/aclnn_deep_norm_grad.h"
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
    Array beta({4}, {0, 0, 0, 1}), zero({2, 4}, std::vector<float>(8)), mean({2, 1}, {0, 0}), sum({2, 4}, dx.host);
    for (bool wanted : {true, false}) {
        aclTensor *bias = wanted ? nullptr : gamma.tensor;
        check(aclnnAddLayerNormGetWorkspaceSize(x.tensor, x.tensor, gamma.tensor, beta.tensor, bias, 0.0, wanted, y.tensor,
                                                mean.tensor, rstd.tensor, sum.tensor, &bytes, &executor));
        check(aclnnAddLayerNorm(space(bytes), bytes, executor, nullptr));
        check(aclrtSynchronizeStream(nullptr));
        mean.print("mean");
        rstd.print("rstd");
        sum.print("sum");
    }
    check(aclnnDeepNormGradGetWorkspaceSize(dy.tensor, x.tensor, zero.tensor, gamma.tensor, mean.tensor, rstd.tensor, 2.0,
                                            dx.tensor, y.tensor, dgamma.tensor, beta.tensor, &bytes, &executor));
    check(aclnnDeepNormGrad(space(bytes), bytes, executor, nullptr));
    check(aclrtSynchronizeStream(nullptr));
    dgamma.print("dbeta");  // dbetaOut comes first
    for (int place = 0; place < 8; place++) y.host[place] = 0;
    y.print("dgx");
    dx.print("dx");
    const int code = aclnnRmsNormGetWorkspaceSize(x.tensor, nullptr, 0.0, y.tensor, rstd.tensor, &bytes, &executor);
    std::printf("%d: %s\n", code, aclGetRecentErrMsg());
    return aclFinalize();
}
