"""What is generated in C from the table of prototypes: the headers that declare the functions, and the library's half that
defines them.

Each header is self-contained, and valid C11 and C++11. Values and first lines of documentation come from the Python
side, so that a header can't say anything else.
"""

from __future__ import annotations

import inspect
from enum import IntEnum

from lngrad_ascend import acl, aclnn
from lngrad_ascend.acl import enums
from lngrad_ascend.acl.device import VERSION
from lngrad_ascend.prototypes import FUNCTIONS, HANDLE_TYPES, HEADERS, OPAQUE, Function, Kind, Parameter
from lngrad_ascend.sdk.marshal import CALL_WORDS, LIST_WORDS, RESULT_WORDS, TEXT_BYTES, implementation

_BASE_ENUMS = ("aclDataType", "aclFormat")
_META_TYPES = (
    "".join(f"typedef struct {name} {name};\n" for name in OPAQUE)
    + "\n#ifndef ACLNN_META\n#define ACLNN_META\ntypedef int32_t aclnnStatus;\n"
    + "#ifdef __cplusplus\nconstexpr aclnnStatus OK = 0;\n#endif\n#endif\n"
)
_RUNTIME_ERRORS = [  # of rt_error_codes.h, which are macros there
    name for name in acl.aclError.__members__ if name.startswith("ACL_ERROR_RT_") and name != "ACL_ERROR_RT_FAILURE"
]


def headers() -> dict[str, str]:
    """Return the text of every header by its path under ``include``."""
    tables = {
        path: "\n".join(f"/** {_summary(function)} */\n{function.prototype};\n" for function in functions)
        for path, functions in HEADERS.items()
    }
    includes = {
        "acl/acl_base_rt.h": ["<stdbool.h>", "<stddef.h>", "<stdint.h>", '"error_codes/rt_error_codes.h"'],
        "acl/acl_base.h": ['"acl_base_rt.h"'],
        "acl/acl_rt.h": ['"acl_base_rt.h"'],
        "acl/acl.h": ['"acl_base.h"', '"acl_rt.h"'],
        "acl/error_codes/rt_error_codes.h": [],
        "aclnn/acl_meta.h": ['"acl/acl_rt.h"'],
        "aclnn/aclnn_base.h": ["<stdint.h>", "<stdlib.h>", '"aclnn/acl_meta.h"'],
        "aclnn/opdev/op_errno.h": ['"aclnn/acl_meta.h"'],
        "aclnnop/aclnn_util.h": [],
        "lngrad/graph_engine.h": ['"acl/acl_rt.h"'],
        **{path: ['"aclnn/aclnn_base.h"', '"aclnn_util.h"'] for path in HEADERS if path.startswith("aclnnop/")},
    }
    before = {
        "acl/acl_base_rt.h": "typedef int aclError;\ntypedef uint16_t aclFloat16;\n\n"
        + "\n".join([_constants("int", acl.aclError), *map(_enum, _BASE_ENUMS)]),
        "acl/acl_rt.h": "".join(f"typedef void *{name};\n" for name in HANDLE_TYPES) + "\n" + _runtime_enums(),
        "acl/acl.h": "#define ACL_MAJOR_VERSION {}\n#define ACL_MINOR_VERSION {}\n#define ACL_PATCH_VERSION {}\n".format(
            *VERSION
        ),
        "acl/error_codes/rt_error_codes.h": "".join(
            f"#define {name} {int(acl.aclError[name])}\n" for name in _RUNTIME_ERRORS
        ),
        "aclnn/acl_meta.h": _META_TYPES,
        "aclnn/opdev/op_errno.h": _constants("aclnnStatus", aclnn.aclnnStatus),
        "aclnnop/aclnn_util.h": '#define ACLNN_API __attribute__((visibility("default")))\n',
    }
    return {path: _header(path, lines, before.get(path, ""), tables.get(path, "")) for path, lines in includes.items()}


def _header(path: str, includes: list[str], before: str, prototypes: str) -> str:
    guard = "LNGRAD_" + path.upper().replace("/", "_").replace(".", "_")
    parts = [f"#ifndef {guard}\n#define {guard}\n", "".join(f"#include {path}\n" for path in includes), before]
    if prototypes:
        parts.append(f'#ifdef __cplusplus\nextern "C" {{\n#endif\n\n{prototypes}\n#ifdef __cplusplus\n}}\n#endif\n')
    parts.append("#endif\n")
    note = f"/* {path}: written by `lngrad sdk`; declares what lngrad's toolkit folder for host programs has. */\n"
    return note + "\n".join(part for part in parts if part)


def _summary(function: Function) -> str:
    """The first line of the Python function's documentation."""
    found = implementation(function)
    if found is None:
        return "Not supported here: returns ACL_ERROR_API_NOT_SUPPORT, or a null pointer."
    return (inspect.getdoc(found) or function.name).split("\n")[0].replace("*/", "")


def _runtime_enums() -> str:
    """The enumerations that lngrad_ascend.acl declares, without those of base types and status codes."""
    found = [name for name in enums.__all__ if inspect.isclass(getattr(acl, name))]
    return "\n".join(_enum(name) for name in found if name not in (*_BASE_ENUMS, *FAILURES))


def _enum(name: str) -> str:
    kind: type[IntEnum] = getattr(acl, name)
    lines = [f"    {member} = {int(value)}," for member, value in kind.__members__.items()]
    return "\n".join([f"typedef enum {name} {{", *lines, f"}} {name};", ""])


def _constants(type_: str, kind: type[IntEnum]) -> str:
    """Constants that have the type in C++, as `auto` sees it, and are constant expressions in C too."""
    members = {name: int(value) for name, value in kind.__members__.items() if name not in _RUNTIME_ERRORS}
    typed = "".join(f"static const {type_} {name} = {value};\n" for name, value in members.items())
    plain = "".join(f"    {name} = {value},\n" for name, value in members.items())
    return f"#ifdef __cplusplus\n{typed}#else\nenum {{\n{plain}}};\n#endif\n"


# What a function returns when there is no interpreter to ask.
FAILURES = {
    "aclError": int(acl.aclError.ACL_ERROR_FAILURE),
    "aclnnStatus": int(aclnn.aclnnStatus.ACLNN_ERR_RUNTIME_ERROR),
}


def frame_header() -> str:
    """The sizes of a frame, for C."""
    return f"""\
#define LNGRAD_CALL_WORDS {CALL_WORDS}
#define LNGRAD_RESULT_WORDS {RESULT_WORDS}
#define LNGRAD_LIST_WORDS {LIST_WORDS}
#define LNGRAD_TEXT_BYTES {TEXT_BYTES}
"""


def entry_points() -> str:
    """The C file that defines every function: it fills a frame, and reads the frame back."""
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    bodies = "\n".join(_definition(number, function) for number, function in enumerate(FUNCTIONS.values()))
    return f'{includes}#include "shim.h"\n\n{bodies}'


def _definition(number: int, function: Function) -> str:
    words = ", ".join(_word(parameter) for parameter in function.parameters)
    fields = f".function = {number}" + (f", .words = {{{words}}}" if words else "")
    lines = [f"LNGRAD_EXPORT {function.prototype}", "{"]
    if function.result == "const char *":
        lines += ["    static _Thread_local char text[LNGRAD_TEXT_BYTES];"]
        fields += ", .text = text"
    lines += [
        f"    lngrad_frame frame = {{{fields}}};",
        f"    lngrad_call(&frame, {FAILURES.get(function.result, 0)});",
    ]
    if writes := _writes(function):
        lines += ["    if (frame.results[0] == 0) {", *writes, "    }"]
    lines += [f"    return {_result(function)};", "}", ""]
    return "\n".join(lines)


def _word(parameter: Parameter) -> str:
    if parameter.kind is Kind.REAL:
        return f"lngrad_word_of_double({parameter.name})"
    if parameter.type.endswith("*") or parameter.kind is Kind.HANDLE:
        return f"LNGRAD_WORD({parameter.name})"
    return f"(int64_t){parameter.name}"


def _writes(function: Function) -> list[str]:
    """Results go through their pointers only if the call succeeded: the others stay as they were."""
    lines = []
    for at, parameter in enumerate((parameter for parameter in function.parameters if parameter.is_result), start=1):
        value = {
            Kind.OUT_LIST: f"lngrad_new_array(frame.list, frame.results[{at + 1}])",
            Kind.OUT_HANDLE: f"LNGRAD_POINTER(frame.results[{at}])",
            Kind.OUT_ADDRESS: f"LNGRAD_POINTER(frame.results[{at}])",
            Kind.OUT_REAL: f"({parameter.base})lngrad_double_of_word(frame.results[{at}])",
        }.get(parameter.kind, f"({parameter.base})frame.results[{at}]")
        lines.append(f"        *{parameter.name} = {value};")
    return lines


def _result(function: Function) -> str:
    if function.result == "const char *":
        return "frame.results[0] ? text : NULL"
    if function.result.endswith("*"):
        return "LNGRAD_POINTER(frame.results[0])"
    if function.result == "float":
        return "(float)lngrad_double_of_word(frame.results[0])"
    return f"({function.result})frame.results[0]"
