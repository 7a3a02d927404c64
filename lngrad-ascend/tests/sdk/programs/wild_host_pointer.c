#include "start.h"
#define WILD (void *)0x10
int main(void)
{
    void *device;
    char host[64] = {0};
    start();
    aclrtMalloc(&device, 64, ACL_MEM_MALLOC_HUGE_FIRST);
    (void)host;
    printf("%d ", CALL);
    printf("%s\n", aclGetRecentErrMsg());
    return 0;
}
