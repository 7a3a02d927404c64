"""A C program that calls every function of the table with random arguments: handles of any kind, alive, destroyed or
foreign, null pointers, enumerators out of range, sizes from nothing to everything.

It leaves out what no library can survive: a valid host buffer with a count beyond its end.
"""

from __future__ import annotations

from lngrad_ascend import acl, aclnn
from lngrad_ascend.prototypes import FUNCTIONS, HEADERS, HOST_SIZES, Function, Kind, Parameter

__all__ = ["fuzz_program"]

_HEAD = """
#include <stdio.h>
#include <stdlib.h>

enum { POOL = 64, ROOM = 64 };
static uint64_t state = 1;
static uint64_t draw(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
static uint64_t below(uint64_t n) { return draw() % n; }

static void *handles[POOL];   /* whatever came back, alive or not */
static void *addresses[POOL]; /* device memory, freed or not, and a place inside it */
static void *blocks[POOL];    /* host memory of the library, which only goes back: it may be smaller than a copy */
static unsigned kept, given, lent;
static int64_t numbers[ROOM / 8] = {2, 3, 1, 4, 0, 8, 2, 1};
static char host[ROOM], other_host[ROOM];

static void *wild(void)
{
    switch (below(6)) {
    case 0: return NULL;
    case 1: return (void *)(intptr_t)below(4096);
    case 2: return (void *)(intptr_t)(0x110000000000 + below(1 << 14));
    case 3: return (void *)(intptr_t)(0x12C000000000 + below(1 << 14));
    case 4: return (void *)(intptr_t)draw();
    default: return (void *)(intptr_t)(0x200000000000 + below(1ull << 44)); /* no system maps anything there */
    }
}
static void *handle(void) { return below(8) ? handles[below(POOL)] : below(4) ? wild() : (void *)host; }
static void *address(void) { return below(8) ? addresses[below(POOL)] : wild(); }
static void keep(void *handle) { if (handle) handles[kept++ % POOL] = handle; }
static void keep_address(void *address) { addresses[given++ % POOL] = (char *)address + 32 * below(2); }
static void keep_block(void *block) { blocks[lent++ % POOL] = block; }
static uint64_t count(void)
{
    static const uint64_t odd[] = {1ull << 47, 1ull << 63, ~0ull, (1ull << 62) + 5};
    return below(8) ? below(ROOM + 1) : odd[below(4)];
}
static uint64_t few(void) { return below(12) ? below(5) : below(2) ? below(9) : ~0ull - below(9); }
static int64_t number(void) { return below(6) ? (int64_t)below(8) : below(2) ? (int64_t)draw() : -(int64_t)below(9); }
static double real(void) { return below(6) ? 1e-5 : (double)(int64_t)draw(); }

static long calls, failures;
static void expect_code(const char *name, long code)
{
    calls++;
    if (code == 0) return;
    failures++;
    switch (code) {
@CODES@        break;
    default:
        printf("%s: %ld is no code\\n", name, code);
        exit(3);
    }
    const char *text = aclGetRecentErrMsg();
    if (text == NULL || *text == 0) {
        printf("%s: %ld has no text\\n", name, code);
        exit(4);
    }
}
"""

_MAIN = """
int main(int argc, char **argv)
{
    const long wanted = argc > 1 ? atol(argv[1]) : 1000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15 + 1 : 1;
    void (*const all[])(void) = {@NAMES@};
    const size_t functions = sizeof all / sizeof *all;
    aclInit(NULL);
    aclrtSetDevice(0);
    while (calls < wanted) {
        if (below(20) == 0) {
            aclInit(NULL);
            aclrtSetDevice(0);
        }
        all[below(functions)]();
    }
    printf("%ld calls, %ld refused\\n", calls, failures);
    return 0;
}
"""

_RARE = {"aclFinalize": 40, "aclrtResetDevice": 20, "aclrtResetDeviceForce": 20}  # they end everything


def fuzz_program() -> str:
    """Return its text. Arguments of the program: how many calls, and a seed."""
    codes = sorted({int(code) for kind in (acl.aclError, aclnn.aclnnStatus) for code in kind})
    head = _HEAD.replace("@CODES@", "".join(f"    case {code}:\n" for code in codes if code))
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    callers = "\n".join(_caller(function) for function in FUNCTIONS.values())
    main = _MAIN.replace("@NAMES@", ", ".join(f"call_{function.name}" for function in FUNCTIONS.values()))
    return includes + head + callers + main


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
    counts = parameter.type == "size_t" and parameter.name in ("size", "count", "destMax", "maxCount")
    return "count()" if counts else "number()"
