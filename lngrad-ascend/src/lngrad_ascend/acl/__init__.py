"""The declarations of ``acl/acl.h`` and ``aclnn/acl_meta.h``, under the same names.

Each function returns values first, its status last, as pyACL does; those that return a pointer in C
(aclCreateTensor, aclCreateIntArray, …, aclGetRecentErrMsg) return the object alone, None for a null pointer.
Nothing raises: a wrong argument gives a code, and a text for aclGetRecentErrMsg.
"""

# ruff: noqa: F403 - public are the functions that have a prototype, and the types
from __future__ import annotations

from lngrad_ascend.acl import enums as acl_enums
from lngrad_ascend.acl.device import *
from lngrad_ascend.acl.enums import *
from lngrad_ascend.acl.interface import *
from lngrad_ascend.acl.memory import *
from lngrad_ascend.acl.streams import *
from lngrad_ascend.acl.tensor import *
from lngrad_ascend.acl.values import *
from lngrad_ascend.prototypes import FUNCTIONS, HANDLES, add_to_docstrings

__all__ = [name for name in (*FUNCTIONS, *HANDLES, "not_supported") if name in globals()]
__all__ += acl_enums.__all__
add_to_docstrings(globals()[name] for name in __all__)
