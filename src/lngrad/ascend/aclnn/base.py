"""What ``aclnn/aclnn_base.h`` declares."""

from __future__ import annotations

from lngrad.ascend.acl.refusals import returns_status
from lngrad.ascend.acl.status import aclnnStatus


@returns_status(aclnnStatus)
def aclnnInit(configPath: str | None = None) -> None:
    """Nothing to do: the aclnn functions need no initialising.

    C: ``aclnnStatus aclnnInit(const char *configPath)``
    """


@returns_status(aclnnStatus)
def aclnnFinalize() -> None:
    """Nothing to do.

    C: ``aclnnStatus aclnnFinalize()``
    """
