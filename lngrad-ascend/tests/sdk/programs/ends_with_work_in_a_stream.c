#include "start.h"
#include <unistd.h>
int main(void)
{
    aclrtStream stream;
    void *address, *other;
    start();
    aclrtCreateStream(&stream);
    aclrtMalloc(&address, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST);
    aclrtMalloc(&other, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST);
    for (int i = 0; i < 50; i++)
        aclrtMemcpyAsync(other, 1 << 20, address, 1 << 20, ACL_MEMCPY_DEVICE_TO_DEVICE, stream);
    END
}
