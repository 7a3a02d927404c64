"""The headers: self-contained, valid C and C++, with the values of the documents."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from building import needs_c, needs_cxx

from lngrad_ascend.sdk import cflags
from lngrad_ascend.sdk.c_sources import headers

STRICT = ["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x"]


def compiles(compiler: str, language: str, standard: str, text: str, toolkit: Path) -> None:
    command = [compiler, f"-std={standard}", *cflags(toolkit), *STRICT, language, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_c
@pytest.mark.parametrize("path", headers())
def test_a_header_alone_is_c(path: str, toolkit: Path) -> None:
    compiles("cc", "c", "c11", f'#include "{path}"\n#include "{path}"\nextern int nonempty;\n', toolkit)


@needs_cxx
@pytest.mark.parametrize("path", headers())
def test_a_header_alone_is_cxx(path: str, toolkit: Path) -> None:
    compiles("c++", "c++", "c++11", f'#include "{path}"\n#include "{path}"\nextern int nonempty;\n', toolkit)


@needs_c
def test_values_in_c(toolkit: Path) -> None:
    compiles(
        "cc",
        "c",
        "c11",
        """
        #include "acl/acl.h"
        #include "aclnn/aclnn_base.h"
        #include "aclnn/opdev/op_errno.h"
        _Static_assert(ACL_SUCCESS == 0 && ACL_FLOAT == 0 && ACL_BF16 == 27 && ACL_FORMAT_ND == 2, "enums");
        _Static_assert(ACL_MEM_MALLOC_HUGE_FIRST == 0 && ACL_MEMCPY_DEVICE_TO_HOST == 2, "enums");
        _Static_assert(ACLNN_ERR_PARAM_NULLPTR == 161001 && ACL_ERROR_INVALID_PARAM == 100000, "codes");
        _Static_assert(sizeof(aclDataType) == 4 && sizeof(aclnnStatus) == 4 && sizeof(aclFloat16) == 2, "sizes");
        int f(int code) { switch (code) { case ACL_SUCCESS: return 1; case ACL_ERROR_BAD_ALLOC: return 2; } return 0; }
        """,
        toolkit,
    )


@needs_cxx
def test_programs_spellings_in_cxx(toolkit: Path) -> None:
    compiles(
        "c++",
        "c++",
        "c++11",
        """
        #include "acl/acl.h"
        #include "aclnnop/aclnn_layer_norm_backward.h"
        #include "aclnn_layer_norm.h"
        static_assert(aclDataType::ACL_FLOAT == 0 && aclFormat::ACL_FORMAT_ND == 2, "unscoped, and named");
        static_assert(OK == 0, "constant");
        int f() { auto ret = ACL_SUCCESS; aclnnStatus status = ACL_SUCCESS; ret = aclInit(nullptr); return ret + status; }
        ACLNN_API int g();
        """,
        toolkit,
    )
