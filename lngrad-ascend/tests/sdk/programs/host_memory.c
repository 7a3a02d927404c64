#include "start.h"
int main(void)
{
    void *host, *device;
    aclrtStream stream;
    start();
    if (aclrtMallocHost(&host, 64) != 0 || aclrtMalloc(&device, 64, ACL_MEM_MALLOC_HUGE_FIRST) != 0) return 1;
    if (aclrtCreateStream(&stream) != 0) return 2;
    memset(host, 7, 64);
    if (aclrtMemcpyAsync(device, 64, host, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream) != 0) return 3;
    if (aclrtSynchronizeStream(stream) != 0) return 4;
    memset(host, 0, 64);
    if (aclrtMemcpyAsync(host, 64, device, 64, ACL_MEMCPY_DEVICE_TO_HOST, stream) != 0) return 5;
    if (aclrtSynchronizeStream(stream) != 0) return 6;
    printf("%d ", ((char *)host)[63]);
    printf("%d ", aclrtFreeHost(host));
    printf("%d\n", aclrtFreeHost(host));
    return 0;
}
