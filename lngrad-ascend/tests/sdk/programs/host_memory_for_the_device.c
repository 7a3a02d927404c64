#include "start.h"
int main(void)
{
    float host[4] = {1, 2, 3, 4}, copy[4] = {0};
    const int64_t four = 4;
    start();
    aclTensor *tensor = aclCreateTensor(&four, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &four, 1, host);
    printf("%d %d\n", tensor != NULL, aclrtMemcpy(copy, 16, host, 16, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("%g\n", copy[3]);
    return 0;
}
