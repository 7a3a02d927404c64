#include <stdio.h>
#include <unistd.h>
int main(void)
{
    if (fork() == 0) {
        setsid();
        FILE *file = fopen("pid", "w");
        fprintf(file, "%d", getpid());
        fclose(file);
        close(1), close(2);
        sleep(200);
        return 0;
    }
    sleep(200);
    return 0;
}
