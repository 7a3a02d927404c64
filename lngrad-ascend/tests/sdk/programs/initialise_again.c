#include "start.h"
int main(void)
{
    void *address = NULL;
    for (int i = 0; i < 3; i++) {
        start();
        if (aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS) return 1;
        if (aclFinalize() != ACL_SUCCESS) return 2;
    }
    printf("%d\n", aclrtFree(address));
    return 0;
}
