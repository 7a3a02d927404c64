#include "start.h"
int main(void)
{
    start();
    return 0;
}
