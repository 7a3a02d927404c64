#include "start.h"
#include <pthread.h>
static void *work(void *unused)
{
    void *address = unused;
    aclInit(NULL);  /* 100002 from the second call on */
    aclrtSetDevice(0);
    if (aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS || aclrtFree(address) != 0) exit(1);
    return NULL;
}
int main(void)
{
    for (int i = 0; i < 200; i++) {
        pthread_t two[2];
        for (int j = 0; j < 2; j++) pthread_create(&two[j], NULL, work, NULL);
        for (int j = 0; j < 2; j++) pthread_join(two[j], NULL);
    }
    puts("done");
    return 0;
}
