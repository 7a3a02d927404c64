"""What the headers of ``aclnnop`` and ``aclnn/aclnn_base.h`` declare, under the same names."""

# ruff: noqa: F403, F405 - the names are listed once, below; one that no module has fails at import
from lngrad.ascend.acl.enums import aclnnStatus
from lngrad.ascend.aclnn.executor import *
from lngrad.ascend.aclnn.fused_norms import *
from lngrad.ascend.aclnn.layer_norm import *
from lngrad.ascend.aclnn.norms import *
from lngrad.ascend.aclnn.quantized_norms import *
from lngrad.ascend.prototypes import add_to_docstrings

__all__ = [
    "AclSetDynamicInputTensorAddr", "AclSetDynamicOutputTensorAddr", "AclSetDynamicTensorAddr",
    "AclSetInputTensorAddr", "AclSetOutputTensorAddr", "AclSetTensorAddr", "aclDestroyAclOpExecutor",
    "aclOpExecutor", "aclSetAclOpExecutorRepeatable", "aclSetDynamicInputTensorAddr",
    "aclSetDynamicOutputTensorAddr", "aclSetDynamicTensorAddr", "aclSetInputTensorAddr", "aclSetOutputTensorAddr",
    "aclSetTensorAddr", "aclnnAdaLayerNorm", "aclnnAdaLayerNormGetWorkspaceSize", "aclnnAdaLayerNormV2",
    "aclnnAdaLayerNormV2GetWorkspaceSize", "aclnnAddLayerNorm", "aclnnAddLayerNormGetWorkspaceSize",
    "aclnnAddLayerNormGrad", "aclnnAddLayerNormGradGetWorkspaceSize", "aclnnAddRmsNorm", "aclnnAddRmsNormCast",
    "aclnnAddRmsNormCastGetWorkspaceSize", "aclnnAddRmsNormGetWorkspaceSize", "aclnnAddRmsNormQuant",
    "aclnnAddRmsNormQuantGetWorkspaceSize", "aclnnDeepNorm", "aclnnDeepNormGetWorkspaceSize", "aclnnDeepNormGrad",
    "aclnnDeepNormGradGetWorkspaceSize", "aclnnFastLayerNorm", "aclnnFastLayerNormGetWorkspaceSize",
    "aclnnFinalize", "aclnnFusedAddRmsNorm", "aclnnFusedAddRmsNormGetWorkspaceSize", "aclnnGemmaRmsNorm",
    "aclnnGemmaRmsNormGetWorkspaceSize", "aclnnInit", "aclnnInplaceAddRmsNorm",
    "aclnnInplaceAddRmsNormGetWorkspaceSize", "aclnnLayerNorm", "aclnnLayerNormBackward",
    "aclnnLayerNormBackwardGetWorkspaceSize", "aclnnLayerNormGetWorkspaceSize", "aclnnLayerNormQuant",
    "aclnnLayerNormQuantGetWorkspaceSize", "aclnnLayerNormWithImplMode",
    "aclnnLayerNormWithImplModeGetWorkspaceSize", "aclnnLayerNormalizationGrad",
    "aclnnLayerNormalizationGradGetWorkspaceSize", "aclnnRmsNorm", "aclnnRmsNormGetWorkspaceSize",
    "aclnnRmsNormGrad", "aclnnRmsNormGradGetWorkspaceSize", "aclnnRmsNormQuant",
    "aclnnRmsNormQuantGetWorkspaceSize", "aclnnStatus",
]  # fmt: skip

globals().update(aclnnStatus.__members__)  # the enumerators are plain names in C too
__all__ += list(aclnnStatus.__members__)
add_to_docstrings(globals()[name] for name in __all__)
