"""Functions of acl that exist, and that this machine can't do."""

from __future__ import annotations

from lngrad.ascend.acl.refusals import Refused, report, returns_status
from lngrad.ascend.acl.status import aclError


def not_supported(function: str) -> aclError:
    """Return ACL_ERROR_API_NOT_SUPPORT, and leave a text for aclGetRecentErrMsg that names the
    function.
    """
    return report(_refusal(function), aclError)


def _refusal(function: str) -> Refused:
    return Refused(aclError.ACL_ERROR_API_NOT_SUPPORT, f"{function}: expected a device, which this host is not")


@returns_status(aclError)
def aclDumpOpTensors(
    opType: str, opName: str, tensors: object, inputTensorNum: int, outputTensorNum: int, stream: object
) -> None:
    """Not supported: ACL_ERROR_API_NOT_SUPPORT. CANN: writes tensors to the dump files of a
    profiler.

    C: ``aclnnStatus aclDumpOpTensors(const char *opType, const char *opName, aclTensor **tensors,
    size_t inputTensorNum, size_t outputTensorNum, aclrtStream stream)``
    """
    raise _refusal("aclDumpOpTensors")
