"""The generated half of the library: one C function for each row of the table, which fills a frame and reads it back."""

from __future__ import annotations

from lngrad.ascend.acl import aclError
from lngrad.ascend.aclnn import aclnnStatus
from lngrad.ascend.sdk.frame import CALL_WORDS, LIST_WORDS, RESULT_WORDS, TEXT_BYTES
from lngrad.ascend.sdk.functions import FUNCTIONS
from lngrad.ascend.sdk.prototypes import Function, Kind, Parameter

# What a function returns when there is no interpreter to ask.
FAILURES = {
    "aclError": int(aclError.ACL_ERROR_FAILURE),
    "aclnnStatus": int(aclnnStatus.ACLNN_ERR_RUNTIME_ERROR),
}


def frame_header() -> str:
    """The sizes of a frame, for C."""
    return f"""\
#define LNGRAD_CALL_WORDS {CALL_WORDS}
#define LNGRAD_RESULT_WORDS {RESULT_WORDS}
#define LNGRAD_LIST_WORDS {LIST_WORDS}
#define LNGRAD_TEXT_BYTES {TEXT_BYTES}
"""


def entry_points(headers: list[str]) -> str:
    """The C file that defines every function.

    Args:
        headers: those that declare them.
    """
    includes = "".join(f'#include "{header}"\n' for header in headers)
    bodies = "\n".join(_definition(number, one) for number, one in enumerate(FUNCTIONS))
    return f'{includes}#include "shim.h"\n\n{bodies}'


def _definition(number: int, function: Function) -> str:
    words = ", ".join(_word(one) for one in function.parameters)
    fields = f".function = {number}" + (f", .words = {{{words}}}" if words else "")
    lines = [f"LNGRAD_EXPORT {function.prototype}", "{"]
    if function.result == "const char *":
        lines += ["    static _Thread_local char text[LNGRAD_TEXT_BYTES];"]
        fields += ", .text = text"
    lines += [
        f"    lngrad_frame frame = {{{fields}}};",
        f"    lngrad_call(&frame, {FAILURES.get(function.result, 0)});",
    ]
    writes = _writes(function)
    if writes:
        lines += ["    if (frame.results[0] == 0) {", *writes, "    }"]
    lines += [f"    return {_result(function)};", "}", ""]
    return "\n".join(lines)


def _word(one: Parameter) -> str:
    if one.kind is Kind.REAL:
        return f"lngrad_word_of_double({one.name})"
    if one.type.endswith("*") or one.kind is Kind.HANDLE:
        return f"LNGRAD_WORD({one.name})"
    return f"(int64_t){one.name}"


def _writes(function: Function) -> list[str]:
    """Results go through their pointers only if the call succeeded: the others stay as they were."""
    lines = []
    outs = [one for one in function.parameters if one.is_result]
    for at, one in enumerate(outs, start=1):
        if one.kind is Kind.OUT_LIST:
            lines.append(f"        *{one.name} = lngrad_new_array(frame.list, frame.results[{at + 1}]);")
        elif one.kind in (Kind.OUT_HANDLE, Kind.OUT_ADDRESS):
            lines.append(f"        *{one.name} = LNGRAD_POINTER(frame.results[{at}]);")
        elif one.kind is Kind.OUT_REAL:
            lines.append(f"        *{one.name} = ({one.base})lngrad_double_of_word(frame.results[{at}]);")
        else:
            lines.append(f"        *{one.name} = ({one.base})frame.results[{at}];")
    return lines


def _result(function: Function) -> str:
    if function.result == "const char *":
        return "frame.results[0] ? text : NULL"
    if function.result.endswith("*"):
        return "LNGRAD_POINTER(frame.results[0])"
    if function.result == "float":
        return "(float)lngrad_double_of_word(frame.results[0])"
    return f"({function.result})frame.results[0]"
