#include "start.h"
static void *address;
static void late(void) { printf("%d\n", aclrtFree(address)); }
int main(void)
{
    atexit(late);  /* runs after the library's own, which comes later */
    start();
    return aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST);
}
