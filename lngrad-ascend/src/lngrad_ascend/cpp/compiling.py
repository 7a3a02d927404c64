"""From a C++ file with a kernel to a shared library, by the user's own compiler, kept by content.

The headers that a kernel includes are those of the folder include/, and two that are written from Python's tables:
the numbers of operations and the tiling structs.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import re
import shutil
import tempfile
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from itertools import chain
from pathlib import Path

from lngrad.errors import LngradError, page
from lngrad.support.cache_folder import keep, kept, trusted_folder
from lngrad.support.compilers import compiler_version, cxx_compiler, run_compiler
from lngrad_ascend import soc as socs
from lngrad_ascend.cpp.op_host import operator_of, registers, tiling_header
from lngrad_ascend.cpp.protocol import numbers_header
from lngrad_ascend.tiling.structs import (
    DeepNormTiling,
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormSeparateTiling,
    LayerNormTiling,
    RmsNormTiling,
    SoftMaxTiling,
)

FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fno-gnu-unique", "-Wno-narrowing", "-w")
MAX_ERRORS = 5  # lines of the compiler that an error repeats
INCLUDE = Path(__file__).parent / "include"
_STRUCTS = (
    LayerNormTiling,
    LayerNormSeparateTiling,
    LayerNormGradTiling,
    LayerNormGradBetaTiling,
    SoftMaxTiling,
    RmsNormTiling,
    DeepNormTiling,
)

_CUBE = (
    "usedCoreNum M N Ka Kb singleCoreM singleCoreN singleCoreK baseM baseN baseK depthA1 depthB1 stepM stepN "
    "isBias transLength iterateOrder shareMode shareL1Size shareL0CSize shareUbSize batchM batchN singleBatchM "
    "singleBatchN stepKa stepKb depthAL1CacheUB depthBL1CacheUB dbL0A dbL0B dbL0C ALayoutInfoB ALayoutInfoS "
    "ALayoutInfoN ALayoutInfoG ALayoutInfoD BLayoutInfoB BLayoutInfoS BLayoutInfoN BLayoutInfoG BLayoutInfoD "
    "CLayoutInfoB CLayoutInfoS1 CLayoutInfoN CLayoutInfoG CLayoutInfoS2 BatchNum mxTypePara"
)  # the fields of matmul's tiling
_TOPK = (
    "tmpLocalSize allDataSize innerDataSize sortRepeat mrgSortRepeat kAlignFourBytes kAlignTwoBytes maskOffset "
    "maskVreducev2FourBytes maskVreducev2TwoBytes mrgSortSrc1offset mrgSortSrc2offset mrgSortSrc3offset "
    "mrgSortTwoQueueSrc1Offset mrgFourQueueTailPara1 mrgFourQueueTailPara2 srcIndexOffset copyUbToUbBlockCount "
    "topkMrgSrc1MaskSizeOffset topkNSmallSrcIndexOffset vreduceValMask0 vreduceValMask1 vreduceIdxMask0 "
    "vreduceIdxMask1"
)  # and of TopK's

# Other names under which kernels include Ascend C; kernel_operator.h has it all.
_MATH = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "exp", "floor", "frac",
    "log", "power", "round", "sign", "sin", "sinh", "tan", "tanh", "trunc", "xor", "ceil", "clamp",
)  # fmt: skip
ALIASES = (
    "kernel_operator_intf.h", "kernel_basic_intf.h", "basic_api/kernel_basic_intf.h", "kernel_type.h",
    "basic_api/kernel_operator_block_sync_intf.h", "impl/dav_c220/kernel_operator_reg_others_impl.h",
    "utils/debug/asc_printf.h", "utils/debug/asc_dump.h", "utils/debug/asc_assert.h",
    "adv_api/reduce/reduce.h", "lib/sigmoid/kernel_operator_sigmoid_intf.h", "lib/matmul_intf.h", "kernel_utils.h",
    "adv_api/matmul/matmul_intf.h", "lib/matrix/matmul/matmul.h", "impl/dav_c220/kfc/kfc_log.h",
    "adv_api/pad/broadcast.h", "adv_api/math/sign.h", "kernel_operator_list_tensor_intf.h",
    "lib/pad/kernel_operator_pad_intf.h", "kernel_fp16.h", "kernel_operator_mm_intf.h", "kernel_operator_fixpipe_intf.h",
    "op_kernel/math_util.h", "op_kernel/platform_util.h",
    *(f"lib/math/kernel_operator_{name}_intf.h" for name in _MATH),
)  # fmt: skip
# And those of the host's side, which lngrad/op_host.h has.
HOST_ALIASES = (
    "register/op_def_registry.h", "register/op_impl_registry.h", "exe_graph/runtime/shape.h",
    "exe_graph/runtime/storage_shape.h", "exe_graph/runtime/tiling_context.h",
    "exe_graph/runtime/infer_shape_context.h", "exe_graph/runtime/tensor.h", "graph/c_types.h", "graph/ge_error_codes.h",
    "graph/ascend_string.h", "graph/types.h", "graph/utils/type_utils.h", "log/log.h", "platform/platform_ascendc.h",
    "platform/platform_info.h", "platform/platform_infos_def.h", "util/math_util.h", "op_host/tiling_util.h",
    "tiling_base/tiling_util.h", "op_host/tiling_templates_registry.h", "tiling_base/tiling_templates_registry.h",
    "op_common/op_host/util/platform_util.h", "op_host/tiling_base_util.h", "op_host/infershape_util.h",
    "error_util.h", "op_host/tiling_base_class.h", "platform/soc_spec.h", "op_host/util/fp16.h",
)  # fmt: skip


class CompileError(LngradError, RuntimeError):
    """A kernel's file can't be compiled."""


@cache
def header_files() -> dict[str, str]:
    """Return every header, as its path in the include folder and its text."""
    texts = {str(path.relative_to(INCLUDE)): path.read_text(encoding="utf-8") for path in sorted(INCLUDE.rglob("*.h"))}
    texts["kernel_tiling/kernel_tiling.h"] = _tiling_structs()
    texts["lngrad/numbers.h"] = numbers_header()
    texts |= dict.fromkeys(ALIASES, '#include "kernel_operator.h"\n')
    texts |= dict.fromkeys(HOST_ALIASES, '#include "lngrad/op_host.h"\n')
    texts["tiling_context_faker.h"] = '#include "tiling_case_executor.h"\n'
    return texts


def _tiling_structs() -> str:
    structs = []
    for struct in _STRUCTS:
        types = typing.get_type_hints(struct)
        lines = (f"    {'float' if types[one.name] is float else 'uint32_t'} {one.name} = 0;" for one in fields(struct))
        structs.append("\n".join([f"struct {struct.__name__} {{", *lines, "};"]))
    structs.append("using LogSoftMaxTiling = SoftMaxTiling;")  # the same fields
    halves = "".join(f"    uint16_t vreducehalfValMask{i} = 0;\n" for i in range(8))
    for name, words, more in (("TCubeTiling", _CUBE, ""), ("TopkTiling", _TOPK, halves)):
        lines = (f"    int32_t {one} = 0;\n" for one in words.split())
        structs.append(f"struct {name} {{\n{''.join(lines)}{more}}};")
    joined = "\n\n".join(structs)
    every = (*(one.__name__ for one in _STRUCTS), "LogSoftMaxTiling", "TCubeTiling", "TopkTiling")
    names = "\n".join(f"using ::{name};" for name in every)
    return f"""// The tiling structs of the tile APIs: packed little-endian words, as the host's tiling functions fill them.
// Written from lngrad_ascend.tiling.structs; change them there.
#ifndef LNGRAD_KERNEL_TILING_H
#define LNGRAD_KERNEL_TILING_H

#include <cstdint>
#include <cstring>

{joined}

namespace AscendC {{
namespace tiling {{
{names}
}} // namespace tiling
}} // namespace AscendC

#endif
"""


_LAUNCH = re.compile(
    r"(?P<kernel>[A-Za-z_][\w:]*(?:<(?:[^<>;]|<[^<>;]*>)*>)?)\s*<<<(?P<numbers>[^<>;]*)>>>\s*\(\s*(?P<rest>\)?)"
)


def without_chevrons(text: str) -> str:
    """Write every launch as ACLRT_LAUNCH_KERNEL, which tikicpulib.h declares.

    Args:
        text: A C++ file.

    Returns:
        The file with the same lines. A launch's second number, the L2 control, has no meaning here.

    Raises:
        CompileError: A launch has not three numbers between its chevrons.
    """

    def plain(launch: re.Match[str]) -> str:
        numbers = [one.strip() for one in launch["numbers"].split(",")]
        numbers += ["nullptr"] * (len(numbers) == 2)  # without a stream: the default one
        if len(numbers) != 3:
            line = text.count("\n", 0, launch.start()) + 1
            raise CompileError(
                f"line {line}: {launch['kernel']}<<<…>>>: expected blocks, l2ctrl and stream, got {launch['numbers']!r}"
            )
        return f"ACLRT_LAUNCH_KERNEL({launch['kernel']})({numbers[0]}, {numbers[2]}{')' if launch['rest'] else ', '}"

    return _LAUNCH.sub(plain, text)


# The file that is compiled: it includes the kernel's, so that a template can be named as the kernel too.
_ENTRY = """\
#include "lngrad/entry.h"
#include "lngrad/watch.h"
#include "kernel_operator.h"
{headers}{source}

extern "C" void lngrad_bind(lngrad::Run run) {{ lngrad::run = run; }}
extern "C" int lngrad_arity() {{ return lngrad::arity(&{kernel}); }}
static thread_local std::string lngrad_thrown;
extern "C" const char* lngrad_exception() {{ return lngrad_thrown.c_str(); }}
extern "C" int lngrad_entry(void* const* arguments)
{{
    const lngrad::Watch watch("{kernel}");
    lngrad_thrown.clear();
    try {{
        return lngrad::call_kernel(&{kernel}, arguments);
    }} catch (...) {{
        lngrad_thrown = lngrad::thrown();
        return 2;
    }}
}}
"""


def compiler() -> list[str]:
    """Return the command of the C++ compiler: ``$CXX``, else the first of c++, g++ and clang++ that is installed.

    Raises:
        CompileError: There is none.
    """
    try:
        return cxx_compiler()
    except FileNotFoundError as reason:
        raise CompileError(f"compiler: {reason}; set CXX or install g++") from None


def build(
    source: Path, kernel: str, include: Sequence[Path], ahead: Sequence[Path], define: Mapping[str, str | None]
) -> Path:
    """Compile a kernel, or find what an earlier process compiled.

    Arguments and errors are those of `kernel.compile`; ``ahead`` are headers to include before the source.

    Returns:
        The shared library. It is kept as long as no file that went into it changes.
    """
    source = source.resolve(strict=True)
    included = "".join(_header(path.resolve(strict=True), kernel, source) for path in ahead)
    if not re.fullmatch(r"[A-Za-z_][\w:]*(<[\w:, ]*>)?", kernel):
        raise CompileError(f"kernel: expected the name of a C++ function, got {kernel!r}")
    options = ["-DLNGRAD_TYPE_MACROS", *(f"-I{folder}" for folder in (*include, source.parent))]
    options += [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in define.items()]
    if hasattr(ctypes.CDLL(None), kernel):
        included += renaming(kernel)
    text = _ENTRY.format(headers=included, source=_source(source), kernel=kernel)
    return library(text, source, kernel, options)


def library(text: str, source: Path, kernel: str, options: Sequence[str]) -> Path:
    """The shared library of an entry file, compiled or found: ``text`` includes ``source``, which must not change meanwhile."""
    given = {one.removeprefix("-D").partition("=")[0] for one in options}
    macros = socs.current().soc.macros.items()
    options = [*options, *(f"-D{name}={value}" for name, value in macros if name not in given)]
    key = _digest("\0".join([text, *options, compiler_version(*compiler()), *chain(*header_files().items())]).encode())
    trusted = trusted_folder()
    for folder in (trusted, *_temporary):
        library = None if folder is None else _fresh(folder, key[:32])
        if library is not None:
            return library
    before = _digest(source.read_bytes())
    content, files = _compile(text, source, kernel, options)
    if files.get(str(source), before) != before:
        raise CompileError(f"{source}: changed while it was compiled")
    if trusted is not None:
        with suppress(OSError):  # full, or read-only
            return _keep(trusted, key[:32], content, files)
    return _keep(_folder_of_process(), key[:32], content, files)


def _header(path: Path, kernel: str, source: Path) -> str:
    """What includes a header ahead; of one of op_host, the tiling structs that it registers."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not registers(text):
        return f"#include {json.dumps(str(path))}\n"
    structs = tiling_header([text], operator_of(kernel), source.read_text(encoding="utf-8", errors="replace"))
    if not structs:
        raise CompileError(
            f"{path}: expected REGISTER_TILING_DATA_CLASS({operator_of(kernel)}, …) for {kernel}, got none"
        )
    return structs.replace("#pragma once\n", "")


def renaming(kernel: str) -> str:
    """What lets a kernel be called as a function of C, behind the headers that declare that one."""
    return f"#define {kernel} {kernel}_kernel\n"


def _source(path: Path) -> str:
    """A kernel's file, as an entry includes it; one with launches as its text, in which they do nothing."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not _LAUNCH.search(text):
        return f"#include {json.dumps(str(path))}"
    return f"#line 1 {json.dumps(str(path))}\n" + _LAUNCH.sub(
        lambda launch: f"LNGRAD_ELSEWHERE({launch['rest'] or ''}", text
    )


def _fresh(folder: Path, key: str) -> Path | None:
    """Return a key's library, if it is whole and every file that it was made of is as it was."""
    made_of = kept(_list_of(folder, key))
    if made_of is None:
        return None
    try:
        if any(_digest(Path(one).read_bytes()) != was for one, was in json.loads(made_of).items()):
            return None
    except OSError:  # one is not there any more
        return None
    library = _library_of(folder, key, made_of)
    return None if kept(library) is None else library


def _keep(folder: Path, key: str, content: bytes, files: dict[str, str]) -> Path:
    """Write a library, and then what it was made of; remove those of other files."""
    made_of = json.dumps(files).encode()
    library = _library_of(folder, key, made_of)
    keep(library, content)
    keep(_list_of(folder, key), made_of)
    for old in folder.glob(f"ascendc-{key}-*.so"):
        if old != library:
            old.unlink(missing_ok=True)  # who has loaded it keeps it
    return library


def _list_of(folder: Path, key: str) -> Path:
    return folder / f"ascendc-{key}.json"


def _library_of(folder: Path, key: str, made_of: bytes) -> Path:
    """A name of its own for each content: a process that has loaded a path gets the same library for it again."""
    return folder / f"ascendc-{key}-{_digest(made_of)[:16]}.so"


_temporary: list[Path] = []  # the folder of this process, where nothing can be kept


def _folder_of_process() -> Path:
    """A folder that is removed when this process ends."""
    if not _temporary:
        folder, owner = Path(tempfile.mkdtemp(prefix="lngrad-")), os.getpid()
        atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
        _temporary.append(folder)
    return _temporary[0]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compile(text: str, source: Path, kernel: str, options: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """The library, and a digest of each file that went into it, by path."""
    with tempfile.TemporaryDirectory() as name:
        draft = Path(name)
        for header, content in header_files().items():
            path = draft / "include" / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        entry = draft / "entry.cpp"
        entry.write_text(text, encoding="utf-8")
        command = [*compiler(), *FLAGS, *options, f"-I{draft / 'include'}", "-MMD", "-MF", str(draft / "files.d")]
        done = run_compiler([*command, str(entry), "-o", str(draft / "kernel.so")])
        if done.returncode:
            raise CompileError(_explained(done.stderr, source, kernel, draft))
        # The compiler's make rule names the files that it read, but for those of the system.
        words = (draft / "files.d").read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2]
        used = [Path(word.replace("\\ ", " ")) for word in re.findall(r"(?:\\ |\S)+", words)]
        files = {str(path): _digest(path.read_bytes()) for path in used if draft not in path.parents}
        return (draft / "kernel.so").read_bytes(), files


_MISSING = (
    re.compile(r"‘(?P<name>[A-Z]\w+)’ is not a member of ‘AscendC(?:::\w+)*’"),
    re.compile(r"no member named '(?P<name>[A-Z]\w+)' in namespace 'AscendC"),
    re.compile(r"‘(?P<name>[A-Z]\w+)’ (?:was not declared in this scope|does not name a type)"),
    re.compile(r"there are no arguments to ‘(?P<name>[A-Z]\w+)’ that depend on a template parameter"),
    re.compile(r"use of undeclared identifier '(?P<name>[A-Z]\w+)'"),
)
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.MULTILINE)


@cache
def _declared(name: str) -> bool:
    """Whether the headers have a name, so that it is not what is missing."""
    return any(re.search(rf"\b{name}\b", text) for text in header_files().values())


def _explained(output: str, source: Path, kernel: str, draft: Path) -> str:
    """Return the compiler's first errors, those about Ascend C in our words."""
    lines: list[str] = []
    for error in _ERROR.finditer(output):
        place, text = f"{error['file']}:{error['line']}", error["text"]
        if Path(error["file"]).name == "entry.cpp" and draft in Path(error["file"]).parents:
            place, text = str(source), f"kernel: expected a function of this file, got {kernel!r} ({text})"
        for pattern in _MISSING:
            missing = pattern.search(text)
            if missing and not _declared(missing["name"]):
                text = f"{missing['name']} is not declared; as an Ascend C API it is not simulated: {page('ascend-c')}"
                break
        line = f"{place}: {text}"
        if line not in lines:
            lines.append(line)
    if not lines:
        return f"{source}: {output.strip()[:2000]}"
    rest = f"\n… and {len(lines) - MAX_ERRORS} more" if len(lines) > MAX_ERRORS else ""
    return "\n".join(lines[:MAX_ERRORS]) + rest
