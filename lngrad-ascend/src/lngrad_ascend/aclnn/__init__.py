"""The declarations of the headers of ``aclnnop`` and of ``aclnn/aclnn_base.h``, under the same names."""

# ruff: noqa: F403 - public are the functions that have a prototype, and their types
from lngrad_ascend.acl.enums import aclnnStatus as aclnnStatus
from lngrad_ascend.aclnn.executor import *
from lngrad_ascend.aclnn.fused_norms import *
from lngrad_ascend.aclnn.layer_norm import *
from lngrad_ascend.aclnn.norms import *
from lngrad_ascend.aclnn.quantized_norms import *
from lngrad_ascend.prototypes import FUNCTIONS, add_to_docstrings

__all__ = [name for name in (*FUNCTIONS, "aclOpExecutor", "aclnnStatus") if name in globals()]
globals().update(aclnnStatus.__members__)  # the enumerators are plain names in C too
__all__ += list(aclnnStatus.__members__)
add_to_docstrings(globals()[name] for name in __all__)
