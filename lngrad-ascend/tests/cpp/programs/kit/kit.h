#pragma once
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
