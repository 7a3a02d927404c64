#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "acl/acl.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
__attribute__((unused)) static void start(void)
{
    if (aclInit(NULL) != ACL_SUCCESS || aclrtSetDevice(0) != ACL_SUCCESS) {
        printf("%s\n", aclGetRecentErrMsg());
        exit(9);
    }
}
