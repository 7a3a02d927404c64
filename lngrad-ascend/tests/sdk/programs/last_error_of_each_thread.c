#include "start.h"
#include <pthread.h>
#include <unistd.h>
static pthread_barrier_t barrier;
static void *work(void *id)
{
    char expected[64];
    for (int round = 0; round < 50; round++) {
        snprintf(expected, sizeof expected, "got %d", 100 + *(int *)id);
        aclrtSetDevice(100 + *(int *)id);
        pthread_barrier_wait(&barrier);
        if (strstr(aclGetRecentErrMsg(), expected) == NULL || aclGetRecentErrMsg() != NULL) exit(1);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}
int main(void)
{
    pthread_t threads[8];
    int ids[8];
    start();
    pthread_barrier_init(&barrier, NULL, 8);
    for (int i = 0; i < 8; i++) { ids[i] = i; pthread_create(&threads[i], NULL, work, &ids[i]); }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    puts(aclGetRecentErrMsg() == NULL ? "none here" : "mixed up");
    return 0;
}
