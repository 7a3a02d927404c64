#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "acl/acl.h"
static void *work(void *id)
{
    char host[4096], back[4096];
    aclrtStream stream;
    memset(host, *(int *)id, sizeof host);
    if (aclrtSetDevice(0) != 0 || aclrtCreateStream(&stream) != 0) exit(1);
    for (int round = 0; round < 100; round++) {
        void *device = NULL;
        if (aclrtMalloc(&device, sizeof host, ACL_MEM_MALLOC_HUGE_FIRST) != 0) exit(2);
        if (aclrtMemcpy(device, sizeof host, host, sizeof host, ACL_MEMCPY_HOST_TO_DEVICE) != 0) exit(3);
        if (aclrtSynchronizeStream(stream) != 0) exit(4);
        if (aclrtMemcpy(back, sizeof back, device, sizeof host, ACL_MEMCPY_DEVICE_TO_HOST) != 0) exit(5);
        if (memcmp(host, back, sizeof host) != 0 || aclrtFree(device) != 0) exit(6);
        if (aclrtFree(device) == 0 || aclGetRecentErrMsg() == NULL) exit(7);
    }
    return aclrtDestroyStream(stream) == 0 ? NULL : (void *)1;
}
int main(void)
{
    pthread_t threads[8];
    int ids[8];
    if (aclInit(NULL) != 0) return 1;
    for (int i = 0; i < 8; i++) { ids[i] = i; pthread_create(&threads[i], NULL, work, &ids[i]); }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return aclFinalize();
}
