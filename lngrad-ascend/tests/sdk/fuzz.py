"""A C program that calls every function of the table with random arguments: handles of any kind, alive, destroyed or
foreign, null pointers, enumerators out of range, sizes from nothing to everything.

It leaves out what no library can survive: a valid host buffer with a count beyond its end.
"""

from __future__ import annotations

from pathlib import Path

from lngrad_ascend import acl, aclnn
from lngrad_ascend.prototypes import FUNCTIONS, HEADERS, HOST_SIZES, Function, Kind, Parameter

__all__ = ["fuzz_program"]

PROGRAMS = Path(__file__).with_name("programs")
_HEAD = (PROGRAMS / "fuzz_head.h").read_text()
_MAIN = (PROGRAMS / "fuzz_main.c").read_text()

_RARE = {"aclFinalize": 40, "aclrtResetDevice": 20, "aclrtResetDeviceForce": 20}  # they end everything


def fuzz_program(folder: Path) -> Path:
    """Write it into a folder. Arguments of the program: how many calls, and a seed."""
    codes = sorted({int(code) for kind in (acl.aclError, aclnn.aclnnStatus) for code in kind})
    head = _HEAD.replace("@CODES@", "".join(f"    case {code}:\n" for code in codes if code))
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    callers = "\n".join(_caller(function) for function in FUNCTIONS.values())
    main = _MAIN.replace("@NAMES@", ", ".join(f"call_{function.name}" for function in FUNCTIONS.values()))
    (folder / "fuzz.c").write_text(includes + head + callers + main)
    return folder / "fuzz.c"


def _caller(function: Function) -> str:
    rarely = _RARE.get(function.name)
    lines = [f"    if (below({rarely})) return;"] if rarely else []
    arguments = [_argument(function, parameter, lines) for parameter in function.parameters]
    call = f"{function.name}({', '.join(arguments)})"
    if function.has_status:
        lines.append(f'    const long code = {call};\n    expect_code("{function.name}", code);')
        kept = [(parameter, _kept(parameter)) for parameter in function.parameters if parameter.is_result]
        lines += [
            f"    if (code == 0 && to_{parameter.name}) {statement}" for parameter, statement in kept if statement
        ]
    elif function.result.endswith("*") and function.result != "const char *":
        lines.append(f"    keep({call});\n    calls++;")
    else:
        lines.append(f"    (void){call};\n    calls++;")
    return f"static void call_{function.name}(void)\n{{\n" + "\n".join(lines) + "\n}\n"


def _kept(parameter: Parameter) -> str:
    if parameter.kind is Kind.OUT_HANDLE:
        return f"keep({parameter.name});"
    if parameter.kind is Kind.OUT_ADDRESS:
        return f"{'keep_block' if parameter.name == 'hostPtr' else 'keep_address'}({parameter.name});"
    if parameter.kind is Kind.OUT_LIST:
        return f"free({parameter.name});"
    return ""


def _argument(function: Function, parameter: Parameter, lines: list[str]) -> str:
    if parameter.is_result:
        type_ = parameter.type.removesuffix("*").strip()
        name = parameter.name
        lines.append(f"    {type_} {name} = 0;\n    {type_} *const to_{name} = below(20) ? &{name} : NULL;")
        return f"to_{name}"
    if function.size_of(HOST_SIZES, parameter.name):
        buffer = "host" if parameter.name == "dst" else "other_host"
        return f"(below(2) ? (void *){buffer} : address())"
    if parameter.kind is Kind.LIST:
        return (
            "(below(10) ? (void *)numbers : wild())"
            if parameter.base not in ("aclTensor", "aclScalar")
            else "(void *)handles"
        )
    if parameter.kind is Kind.LENGTH:
        return "few()"
    if parameter.kind is Kind.HANDLE:
        return "handle()"
    if parameter.kind is Kind.TEXT:
        return "NULL"
    if parameter.name == "hostPtr":
        return "(below(4) ? blocks[below(POOL)] : wild())"
    if parameter.kind is Kind.ADDRESS:
        return "(below(3) ? (void *)host : wild())" if function.name == "aclCreateScalar" else "address()"
    if parameter.kind is Kind.REAL:
        return "real()"
    counts = parameter.type == "size_t" and parameter.name in (
        "size",
        "count",
        "destMax",
        "maxCount",
        "graphSize",
        "factsSize",
    )
    return "count()" if counts else "number()"
