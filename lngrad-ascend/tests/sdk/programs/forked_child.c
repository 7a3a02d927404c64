#include "start.h"
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    start();
    fflush(stdout);
    if (fork() == 0) {
        printf("%d ", aclrtSetDevice(0));
        printf("%s\n", aclGetRecentErrMsg());
        exit(7);
    }
    int status;
    wait(&status);
    printf("child ended with %d, parent gets %d\n", WEXITSTATUS(status), aclrtSetDevice(0));
    return 0;
}
