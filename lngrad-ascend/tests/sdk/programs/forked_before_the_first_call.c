#include "start.h"
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    const pid_t child = fork();
    start();
    if (child == 0) return 0;
    int status;
    wait(&status);
    printf("%d\n", status);
    return 0;
}
