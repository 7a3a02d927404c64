#include "start.h"
int main(void)
{
    start();
    printf("%d ", aclrtMalloc(NULL, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    printf("%s\n", aclGetRecentErrMsg());
    printf("%d ", aclGetViewOffset(NULL, NULL));
    printf("%s\n", aclGetRecentErrMsg());
    return 0;
}
