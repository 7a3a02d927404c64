#include "start.h"
int main(void)
{
    start();
    puts(aclrtGetSocName());
    return 0;
}
