#include <stdio.h>
#include "acl/acl.h"
#include "beside.h"
int main(int count, char **arguments)
{
    if (aclInit(NULL) != ACL_SUCCESS) return 1;
    printf("%s", aclrtGetSocName());
    for (int i = 1; i < count; i++) printf(" %s", arguments[i]);
    return BESIDE;
}
