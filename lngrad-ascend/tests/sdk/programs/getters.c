#include "start.h"
int main(void)
{
    const int64_t shape[] = {2, 3, 4}, strides[] = {1, 2, 6}, storage[] = {4, 6};
    int64_t *values = NULL;
    uint64_t count = 0;
    start();
    aclTensor *tensor = aclCreateTensor(shape, 3, ACL_FLOAT16, strides, 0, ACL_FORMAT_ND, storage, 2, NULL);
    for (int i = 0; i < 3; i++) {
        aclnnStatus (*const get[])(const aclTensor *, int64_t **, uint64_t *) = {
            aclGetViewShape, aclGetViewStrides, aclGetStorageShape};
        if (get[i](tensor, &values, &count) != 0) return 1;
        for (uint64_t j = 0; j < count; j++) printf("%ld ", (long)values[j]);
        free(values);
    }
    aclDataType type;
    printf("%d ", aclGetDataType(tensor, &type));
    printf("%d\n", type);
    printf("%d ", aclDestroyTensor(tensor));
    printf("%d ", aclDestroyTensor(tensor));
    printf("%s\n", aclGetRecentErrMsg());
    return 0;
}
