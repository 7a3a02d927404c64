// Layer normalization through CANN's interfaces, in C++: a batch split over two threads with a stream each, tensors
// that are views of larger ones, an executor that is reused for every batch, and an error on purpose. It runs on any
// machine:
//
//     lngrad sdk --run examples/cpp/layer_norm.cpp
//
// It ends with 0 if both halves give the gradients of the whole, bit for bit in dx, and within rounding in dgamma.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"

namespace {

void check(int status, const char *what)
{
    if (status == ACL_SUCCESS) return;
    const char *text = aclGetRecentErrMsg();
    std::fprintf(stderr, "%s: %d: %s\n", what, status, text ? text : "no text");
    std::exit(1);
}

using Shape = std::vector<int64_t>;

// Device memory that frees itself.
class Memory {
public:
    explicit Memory(size_t count) : bytes_(count * sizeof(float))
    {
        check(aclrtMalloc(&address_, bytes_, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    }
    explicit Memory(const std::vector<float> &values) : Memory(values.size())
    {
        check(aclrtMemcpy(address_, bytes_, values.data(), bytes_, ACL_MEMCPY_HOST_TO_DEVICE), "aclrtMemcpy");
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { aclrtFree(address_); }

    void *address() const { return address_; }
    std::vector<float> values() const
    {
        std::vector<float> host(bytes_ / sizeof(float));
        check(aclrtMemcpy(host.data(), bytes_, address_, bytes_, ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy");
        return host;
    }

private:
    void *address_ = nullptr;
    size_t bytes_;
};

using Tensor = std::unique_ptr<aclTensor, decltype(&aclDestroyTensor)>;

// A view of memory: its shape, its first element, and the steps between rows where they are not those of the shape.
Tensor view(const Memory &memory, int64_t storage, const Shape &shape, int64_t offset = 0, int64_t row_step = 0)
{
    Shape strides(shape.size(), 1);
    for (auto i = static_cast<int>(shape.size()) - 2; i >= 0; i--) strides[i] = strides[i + 1] * shape[i + 1];
    if (row_step != 0) strides[0] = row_step;
    aclTensor *tensor = aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, strides.data(), offset, ACL_FORMAT_ND,
                                        &storage, 1, memory.address());
    if (tensor == nullptr) check(1, "aclCreateTensor");
    return Tensor(tensor, aclDestroyTensor);
}

constexpr int64_t ROWS = 64, COLUMNS = 48, PADDED = 56;  // rows lie PADDED elements apart
const Shape NORMALIZED = {COLUMNS};

struct Gradients {
    std::vector<float> dx, dgamma, dbeta;
};

// Forward and backward of some rows of x and dy, which lie on the device; on a stream of its own.
Gradients train(const Memory &x_memory, const Memory &dy_memory, const Memory &gamma, int64_t first, int64_t rows)
{
    check(aclrtSetDevice(0), "aclrtSetDevice");  // each thread says which device it uses
    aclrtStream stream = nullptr;
    check(aclrtCreateStream(&stream), "aclrtCreateStream");

    const Shape shape = {rows, COLUMNS}, row_shape = {rows, 1};
    Memory y(rows * COLUMNS), mean(rows), rstd(rows), dx(rows * COLUMNS), dgamma(COLUMNS), dbeta(COLUMNS);
    const Tensor x_view = view(x_memory, ROWS * PADDED, shape, first * PADDED, PADDED);
    const Tensor dy_view = view(dy_memory, ROWS * PADDED, shape, first * PADDED, PADDED);
    const Tensor gamma_view = view(gamma, COLUMNS, NORMALIZED), y_view = view(y, rows * COLUMNS, shape);
    const Tensor mean_view = view(mean, rows, row_shape), rstd_view = view(rstd, rows, row_shape);
    const Tensor dx_view = view(dx, rows * COLUMNS, shape), dgamma_view = view(dgamma, COLUMNS, NORMALIZED);
    const Tensor dbeta_view = view(dbeta, COLUMNS, NORMALIZED);
    aclIntArray *normalized = aclCreateIntArray(NORMALIZED.data(), NORMALIZED.size());
    const bool all[] = {true, true, true};
    aclBoolArray *mask = aclCreateBoolArray(all, 3);

    uint64_t forward_bytes = 0, backward_bytes = 0;
    aclOpExecutor *forward = nullptr, *backward = nullptr;
    check(aclnnLayerNormGetWorkspaceSize(x_view.get(), normalized, gamma_view.get(), nullptr, 1e-5, y_view.get(),
                                         mean_view.get(), rstd_view.get(), &forward_bytes, &forward),
          "aclnnLayerNormGetWorkspaceSize");
    check(aclnnLayerNormBackwardGetWorkspaceSize(dy_view.get(), x_view.get(), normalized, mean_view.get(),
                                                 rstd_view.get(), gamma_view.get(), nullptr, mask, dx_view.get(),
                                                 dgamma_view.get(), dbeta_view.get(), &backward_bytes, &backward),
          "aclnnLayerNormBackwardGetWorkspaceSize");
    check(aclSetAclOpExecutorRepeatable(forward), "aclSetAclOpExecutorRepeatable");
    check(aclSetAclOpExecutorRepeatable(backward), "aclSetAclOpExecutorRepeatable");
    const Memory forward_space(forward_bytes / sizeof(float) + 16), backward_space(backward_bytes / sizeof(float) + 16);

    for (int step = 0; step < 5; step++) {  // both run in the stream's order: the statistics are there in time
        check(aclnnLayerNorm(forward_space.address(), forward_bytes, forward, stream), "aclnnLayerNorm");
        check(aclnnLayerNormBackward(backward_space.address(), backward_bytes, backward, stream), "aclnnLayerNormBackward");
    }
    check(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");

    check(aclDestroyAclOpExecutor(forward), "aclDestroyAclOpExecutor");
    check(aclDestroyAclOpExecutor(backward), "aclDestroyAclOpExecutor");
    check(aclDestroyIntArray(normalized), "aclDestroyIntArray");
    check(aclDestroyBoolArray(mask), "aclDestroyBoolArray");
    check(aclrtDestroyStream(stream), "aclrtDestroyStream");
    return {dx.values(), dgamma.values(), dbeta.values()};
}

// The largest difference between a sum and its two halves, relative to the sum's own size.
double difference(const std::vector<float> &whole, const std::vector<float> &one, const std::vector<float> &other)
{
    double largest = 0;
    for (size_t i = 0; i < whole.size(); i++)
        largest = std::max(largest, std::fabs(whole[i] - (double{one[i]} + other[i])) / (1 + std::fabs(whole[i])));
    return largest;
}

// Host memory where the device's is expected: refused, as a device refuses it, when the executor runs.
bool refuses_host_memory(const Memory &gamma)
{
    std::vector<float> host(COLUMNS, 1.0F);
    const int64_t storage = COLUMNS;
    const aclTensor *tensor = aclCreateTensor(NORMALIZED.data(), 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &storage, 1,
                                              host.data());
    const char *text = aclGetRecentErrMsg();
    std::printf("host memory: %s\n", text ? text : "accepted");
    aclDestroyTensor(tensor);
    return tensor == nullptr && gamma.address() != nullptr;
}

}  // namespace

int main()
{
    check(aclInit(nullptr), "aclInit");
    check(aclrtSetDevice(0), "aclrtSetDevice");
    bool good = true;
    {
        std::vector<float> x(ROWS * PADDED), dy(ROWS * PADDED), gamma(COLUMNS);
        for (size_t i = 0; i < x.size(); i++) x[i] = std::sin(0.37F * i) * 3 + 1, dy[i] = std::cos(1.3F * i);
        for (size_t i = 0; i < gamma.size(); i++) gamma[i] = 0.5F + 0.05F * i;
        const Memory x_memory(x), dy_memory(dy), gamma_memory(gamma);

        const Gradients whole = train(x_memory, dy_memory, gamma_memory, 0, ROWS);
        Gradients upper, lower;
        std::thread first([&] { upper = train(x_memory, dy_memory, gamma_memory, 0, ROWS / 2); });
        std::thread second([&] { lower = train(x_memory, dy_memory, gamma_memory, ROWS / 2, ROWS / 2); });
        first.join();
        second.join();

        std::vector<float> both = upper.dx;
        both.insert(both.end(), lower.dx.begin(), lower.dx.end());
        good = both == whole.dx && difference(whole.dgamma, upper.dgamma, lower.dgamma) < 1e-5 &&
               difference(whole.dbeta, upper.dbeta, lower.dbeta) < 1e-5;
        std::printf("dx[0] %f, dgamma[0] %f, dbeta[0] %f\n", whole.dx[0], whole.dgamma[0], whole.dbeta[0]);
        good = refuses_host_memory(gamma_memory) && good;
    }
    check(aclrtResetDevice(0), "aclrtResetDevice");
    check(aclFinalize(), "aclFinalize");
    std::puts(good ? "ok" : "wrong");
    return good ? 0 : 1;
}
