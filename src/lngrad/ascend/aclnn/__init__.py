"""What ``aclnnop/aclnn_layer_norm_backward.h`` and ``aclnn/aclnn_base.h`` declare, under the same names."""

from lngrad.ascend.acl.codes import aclnnStatus
from lngrad.ascend.aclnn.executor import (
    aclDestroyAclOpExecutor,
    aclOpExecutor,
    aclSetAclOpExecutorRepeatable,
    aclSetInputTensorAddr,
    aclSetOutputTensorAddr,
)
from lngrad.ascend.aclnn.layer_norm_backward import aclnnLayerNormBackward, aclnnLayerNormBackwardGetWorkspaceSize

__all__ = [
    "aclDestroyAclOpExecutor",
    "aclOpExecutor",
    "aclSetAclOpExecutorRepeatable",
    "aclSetInputTensorAddr",
    "aclSetOutputTensorAddr",
    "aclnnLayerNormBackward",
    "aclnnLayerNormBackwardGetWorkspaceSize",
    "aclnnStatus",
]

globals().update(aclnnStatus.__members__)  # the enumerators are plain names in C too
__all__ += list(aclnnStatus.__members__)
