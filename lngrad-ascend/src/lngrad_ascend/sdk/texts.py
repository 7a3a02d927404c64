"""The small text files of a toolkit folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lngrad_ascend.soc import Settings

# Python's part of the start. %d: where in the search path lngrad's folders go; %lld: where the callback goes; %d, %lld:
# the size and address of the place for the reason, if it fails.
_ATTACH = """\
import sys
sys.path[(place := %d):place] = {packages!r}
try:
    from lngrad_ascend.sdk.attach import attach
    from lngrad_ascend.soc import Settings
    attach(%lld, {settings!r})
except BaseException as error:
    import ctypes
    text = f"lngrad: Python could not start: {{type(error).__name__}}: {{error}}".encode()[: %d - 1]
    ctypes.memmove(%lld, text + bytes(1), len(text) + 1)
"""


def environment_header(python: str, libpython: str, version: str, packages: Sequence[str], settings: Settings) -> str:
    """Where Python, its shared library ("": none) and folders (this package's first) are, and what runs at the start."""
    constants = {
        "LNGRAD_PYTHON": python,
        "LNGRAD_LIBPYTHON": libpython,
        "LNGRAD_PYTHON_VERSION": version,
        "LNGRAD_PACKAGE": packages[0],
        "LNGRAD_ATTACH": _ATTACH.format(packages=[path.replace("%", "%%") for path in packages], settings=settings),
    }
    # JSON's escapes are C's, as long as the text is left as it is otherwise.
    return "".join(f"#define {name} {json.dumps(value, ensure_ascii=False)}\n" for name, value in constants.items())


def python_of(header: str) -> tuple[str, str]:
    """Python and its shared library, of such a header."""
    constants = dict(line.split(" ", 2)[1:] for line in header.splitlines())
    return json.loads(constants["LNGRAD_PYTHON"]), json.loads(constants["LNGRAD_LIBPYTHON"])


def set_env() -> str:
    """For `source DIR/set_env.sh`: the variables that CANN's own script sets, and that host programs' builds read."""
    return """\
# source this file: build scripts and programs of CANN then find this folder in the place of the toolkit.
_lngrad_here="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)"
export ASCEND_HOME_PATH="$_lngrad_here"
export ASCEND_TOOLKIT_HOME="$_lngrad_here"
export ASCEND_PATH="$_lngrad_here"
export LD_LIBRARY_PATH="$_lngrad_here/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CMAKE_PREFIX_PATH="$_lngrad_here${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
unset _lngrad_here
"""


def cmake_package(libraries: Sequence[str], library: str, include: Sequence[str]) -> str:
    """find_package(lngrad-cann): the target lngrad::cann, and one of each name that programs link."""
    folders = ";".join(f"${{_lngrad_root}}/{path}" for path in include)
    names = " ".join(libraries)
    return f"""\
# find_package(lngrad-cann REQUIRED), then target_link_libraries(program PRIVATE lngrad::cann),
# or the names of the documents: ascendcl nnopbase opapi_nn opapi_math
get_filename_component(_lngrad_root "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
foreach(_lngrad_name lngrad::cann {names})
  if(NOT TARGET ${{_lngrad_name}})
    add_library(${{_lngrad_name}} SHARED IMPORTED GLOBAL)
    set_target_properties(${{_lngrad_name}} PROPERTIES
      IMPORTED_LOCATION "${{_lngrad_root}}/lib64/{library}"
      INTERFACE_INCLUDE_DIRECTORIES "{folders}")
  endif()
endforeach()
unset(_lngrad_name)
"""


def readme(folder: Path, settings: Settings) -> str:
    """What the folder is, for somebody who finds it."""
    memory = "may be" if settings.unified else "must not be"
    return f"""\
# A toolkit folder for CANN host programs, without an NPU

Written by `lngrad sdk {folder}`. Programs that call `acl`, `aclnnLayerNormBackward` and
`aclnnLayerNorm` compile against `include/`, link `lib64/`, and run on this machine. The device is
simulated: {settings.soc}, rules of CANN {settings.cann} ({settings.mode}), rounding {settings.rounding};
host memory {memory} in the place of device memory.

    source set_env.sh
    g++ main.cpp -I$ASCEND_HOME_PATH/include -I$ASCEND_HOME_PATH/include/aclnn \\
        -I$ASCEND_HOME_PATH/include/aclnnop -L$ASCEND_HOME_PATH/lib64 \\
        -lopapi_nn -lopapi_math -lascendcl -lnnopbase -o main
    ./main

`lngrad sdk --run main.cpp` does the three in one. The library starts the Python that wrote this folder;
if that environment is removed, programs say so, and the folder must be written again.
"""
