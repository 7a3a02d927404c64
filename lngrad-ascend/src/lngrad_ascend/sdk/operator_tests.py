"""The unit tests of an operator's folder, as CANN's operator library has them, built against the toolkit and run.

A folder has op_kernel/ and tests/ut/op_kernel/ with test_*.cpp for gtest, an x_tiling_def.h or x_tiling.h that its
kernels are compiled behind, and a CMakeLists.txt with AddOpTestCase(name "socs" "options" …). Without that header the
operator build makes one of the tiling structs that op_host registers for the operator, and so does this. Kernels find
those of other operators beside their own or in the library four folders above, and tests their data four folders above
the one that they run in: all are laid out so. Which SoC a test is built for its AddOpTestCase says; for Ascend 950 the
kernel and its tests have files of their own, in arch35/ or with a name that ends with _apt or _regbase.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lngrad.errors import LngradError
from lngrad.support.compilers import cxx_compiler, run_compiler
from lngrad_ascend import soc as socs
from lngrad_ascend.cpp.bridge import CYCLES, REMARK, WARNING
from lngrad_ascend.cpp.compiling import flags_of, renaming
from lngrad_ascend.cpp.op_host import (
    OF_950,
    default_struct,
    defines,
    kernel_source,
    operator_of,
    texts_of,
    tiling_header,
)
from lngrad_ascend.cpp.project import CPP_TYPES, library_of
from lngrad_ascend.sdk.toolkit import cflags, is_toolkit, libs, required, write_toolkit
from lngrad_ascend.soc import Settings

# What CANN's checker reports is an error, races are looked for; what the hardware runs without an error runs here too.
MODES = {"checked": "strictness=checked,remarks=on", "device": "strictness=device,ordering=off"}
_CASES = re.compile(r"AddOpTestCase\(\s*(?P<words>[^)]*)\)")
REGBASE = "Ascend950"
# The SoCs of an AddOpTestCase, by whether they are 950; quoted: an operator may be called so too.
_SOCS = {True: re.compile(r'"[^"]*ascend(950|350)'), False: re.compile(r'"[^"]*ascend(?!950|350)\w+')}
_WORD = re.compile(r'"([^"]*)"|([^\s"]+)')
_PARAMETER = re.compile(r'put\("(\w+)"\)(?:[^;]*?\.DataType\(\{([^}]*)\})?')  # Input, Output
_OWN_TYPE = re.compile(r"(?m)^\s*#\s*(?:define|ifdef)\s+(DTYPE_\w+)|\bdefined\s*\(?\s*(DTYPE_\w+)")
_KERNEL = re.compile(r'#include\s+"(?!test_)[^"]*\.cpp"')  # of a test that includes its kernel
_ERROR = re.compile(r"(?:fatal )?error: .*|[^\n:]*(?:undefined reference to|multiple definition of) .*")
_FLAGS = ("-std=c++17", "-O1", "-g", "-w", "-D__CCE_KT_TEST__=1", "-DKERNELUT=1")


class Tests(NamedTuple):
    """The tests of an operator for a SoC: its row, their files, AddOpTestCase's arguments, and the kernel's file, if any."""

    soc: socs.Soc
    sources: list[Path]
    call: str
    kernel: Path | None

    def fits(self, path: Path) -> bool:
        """Whether a path below the operator's folder is for this SoC."""
        return self.soc.regbase or not OF_950.search(str(path))


class Outcome(NamedTuple):
    """One test in one mode: "passed", "failed" or "crashed", and the first line that says why."""

    name: str
    mode: str
    state: str
    why: str = ""


@dataclass
class TestFile:
    """A test_*.cpp: why it does not compile, or its cases, what was remarked in them, and their cycles, each line once."""

    path: Path
    error: str = ""
    cases: list[Outcome] = field(default_factory=list)
    remarks: dict[str, None] = field(default_factory=dict)
    cycles: dict[str, None] = field(default_factory=dict)

    def by_name(self) -> dict[str, list[Outcome]]:
        """Each test's cases, one a mode."""
        names = dict.fromkeys(case.name for case in self.cases)
        return {name: [case for case in self.cases if case.name == name] for name in names}

    def count(self, mode: str) -> tuple[int, int]:
        """Cases that passed in a mode, and all."""
        states = [case.state for case in self.cases if case.mode == mode]
        return states.count("passed"), len(states)


def run_operator(
    folder: Path,
    scratch: Path,
    *,
    toolkit: Path | None = None,
    soc: str | None = None,
    gtest: Path | None = None,
    options: Sequence[str] = (),
    modes: Sequence[str] = tuple(MODES),
    cycles: bool = False,
    time_limit: float = 120.0,
) -> Iterator[TestFile]:
    """Build and run the unit tests of an operator's kernels.

    Args:
        folder: The operator's.
        scratch: An empty folder, or the one of an operator of the same library, for what is built.
        toolkit: A toolkit folder, written if it is not there; None for one of its own.
        soc: The simulated SoC; None for the one that the tests are built for, Ascend910B1 before Ascend950.
        gtest: A folder with include/gtest and lib/libgtest.a; None for the system's.
        options: For the compiler, behind those of the operator's CMakeLists.txt.
        modes: Of MODES; without one, tests are compiled, not linked.
        cycles: Whether the cycles of each launch are wanted, in the mode "checked".
        time_limit: Seconds for a case.

    Yields:
        Each test file when its cases have run.

    Raises:
        LngradError: There are no such tests, or no compiler.
    """
    tests = folder / "tests" / "ut" / "op_kernel"
    of = chosen_tests(folder, soc)
    toolkit = toolkit or scratch / "toolkit"
    if not is_toolkit(toolkit):
        write_toolkit(toolkit, Settings(soc=of.soc.name))
    kernels = _staged(folder.resolve(), scratch)
    macros = [f"-D{name}={value}" for name, value in of.soc.macros.items()] + [f'-DUT_SOC_VERSION="{of.soc.name}"']
    flags = [*_FLAGS, *flags_of(socs.get(soc)), *macros, *cflags(toolkit), *_include(folder, kernels, tests, gtest)]
    hosts = _hosts(folder, of)
    call = of.call.replace("${CMAKE_CURRENT_SOURCE_DIR}", str(tests.resolve()))
    flags += [*_own_options(call, kernels, tests, hosts), *options]
    kernel = kernels / (of.kernel.relative_to(folder / "op_kernel") if of.kernel else f"{folder.name}.cpp")
    for source in of.sources:
        built = scratch / "built" / f"{folder.name}-{source.stem}"
        built.mkdir(parents=True, exist_ok=True)
        ahead = _ahead(source, kernels, kernel, hosts, of)
        linked = [*_gtest_libs(gtest), *libs(toolkit), "-o", str(built / "tests")] if modes else []
        result = TestFile(source, _build(source, kernel, built, flags, ahead, linked, of))
        if modes and not result.error:
            place = scratch / "build" / "tests" / "ut" / "op_kernel"
            for data in tests.glob("*_data"):
                shutil.copytree(data, place / data.name, dirs_exist_ok=True)
            place.mkdir(parents=True, exist_ok=True)
            names = _names(built / "tests")
            for mode in modes:
                result.cases += _run(
                    built / "tests", names, mode, place, time_limit, result, cycles and mode == "checked"
                )
        yield result


def chosen_tests(folder: Path, soc: str | None = None) -> Tests:
    """The tests of an operator that are built for a SoC; without one, for A2 if there are some, else for Ascend 950.

    Raises:
        UnknownSoc, LngradError: There is no such SoC, or no such test.
    """
    tests = folder / "tests" / "ut" / "op_kernel"
    every, calls = sorted(tests.rglob("test_*.cpp")), _calls(tests)
    ours = [path for path in every if OF_950.search(str(path.relative_to(tests)))]
    lines = {regbase: [words for words in calls if found.search(words)] for regbase, found in _SOCS.items()}
    chosen = socs.get(soc or (REGBASE if lines[True] and not lines[False] else socs.DEFAULT))
    sources = (ours or every) if chosen.regbase else [path for path in every if path not in ours]
    if chosen.regbase and not lines[True] and ours:
        lines[True] = calls or [""]  # of another SoC's line, or none
    if not calls and not (tests / "CMakeLists.txt").is_file():
        lines[False] = [""]
    if not sources:
        raise LngradError(f"{folder}: expected tests/ut/op_kernel/test_*.cpp of a vector kernel, got none")
    if not lines[chosen.regbase]:
        raise LngradError(f"{tests / 'CMakeLists.txt'}: expected an AddOpTestCase for {chosen.product}, got none")
    return Tests(chosen, sources, lines[chosen.regbase][0], kernel_source(folder, folder.name, chosen.regbase))


def _staged(folder: Path, scratch: Path) -> Path:
    """Copy the kernels of the operator and of those beside it to where they include each other. Returns the operator's."""
    root = scratch / "build" / "tbe" / "ascendc"
    (scratch / "built").mkdir(exist_ok=True)
    library = library_of(folder)
    kernels = {kernel.parent.name: kernel for kernel in folder.parent.glob("*/op_kernel")}
    if library is not None:
        kernels["inc"] = library / "common" / "inc" / "op_kernel"
        root.mkdir(parents=True, exist_ok=True)
        for part in library.iterdir():  # kernels and tests reach other folders of the library by "../"
            if part.is_dir() and not (scratch / part.name).exists():
                (scratch / part.name).symlink_to(part, target_is_directory=True)
    for name, kernel in kernels.items():
        if not (root / name).exists():
            shutil.copytree(kernel, root / name)
            (root.parent / name).symlink_to(kernel.parent, target_is_directory=True)  # "../../name/op_kernel"
    return root / folder.name


def _include(folder: Path, kernels: Path, tests: Path, gtest: Path | None) -> list[str]:
    parts = ("tests/ut/op_kernel", "tests/ut/common", "common/inc")
    above = [parent / part for parent in folder.resolve().parents for part in parts]
    folders = [kernels, kernels.parent, kernels.parent / "common", tests, *(path for path in above if path.is_dir())]
    return [*(f"-I{path}" for path in folders), *([f"-I{gtest / 'include'}"] if gtest else [])]


def _hosts(folder: Path, of: Tests) -> list[str]:
    """The texts of op_host of an operator, and of those beside it."""
    places = [folder, *sorted(path for path in folder.parent.iterdir() if path != folder)]
    texts = texts_of(*(path / "op_host" for path in places if (path / "op_host").is_dir()))
    return [text for path, text in texts.items() if of.fits(Path(*path.parts[-3:]))]


def _ahead(source: Path, kernels: Path, file: Path, hosts: list[str], of: Tests) -> tuple[list[str], list[str]]:
    """The options for headers ahead of a test and of its kernel: x_tiling_def.h, or one that is made of op_host's structs.

    Where the test defines the struct in a header of its own, the kernel gets that one.
    """
    name, last, link = kernels.name, list[str](), list[str]()
    operator = operator_of(name)
    struct = default_struct(hosts, operator)

    def whole(text: str) -> bool:
        """Whether a header needs nothing ahead of it: a namespace of the kernel, or op_host's struct."""
        uses = struct and re.search(rf"\b{struct}\b", text) and not defines(text, struct)
        return "\nusing namespace" not in text and not uses

    ours = (source.parent / f"{name}_tiling{end}.h" for end in ("_def", ""))  # as the libraries' CMake files have it
    tiling = next((path for path in ours if path.is_file() and whole(path.read_text(errors="replace"))), None)
    if hasattr(ctypes.CDLL(None), name):  # a function of C has the kernel's name
        header = kernels / "lngrad_name.h"
        header.write_text(f'#include "tikicpulib.h"\n#include <gtest/gtest.h>\n{renaming(name)}')
        last = ["-include", str(header)]
    # op_host has a namespace of its own.
    included = [file] if _KERNEL.search(source.read_text(errors="replace")) and of.soc.regbase else []
    known = {path: text for path, text in texts_of(source, *included).items() if "op_host" not in path.parts}
    if tiling:
        test = kernel = tiling
    else:
        own = [path for path, text in known.items() if struct and path.suffix == ".h" and defines(text, struct)][:1]
        parts = [path for path in kernels.rglob("*") if of.fits(path.relative_to(kernels))]
        test, kernel = kernels / "lngrad_test.h", kernels / "lngrad_kernel.h"
        test.write_text(tiling_header(hosts, operator, "\n".join(known.values())))
        includes = "".join(f'#include "{path}"\n' for path in ("kernel_operator.h", *own))
        kernel.write_text(includes + tiling_header(hosts, operator, "\n".join(texts_of(*parts, *own).values())))
    declared = re.search(rf'extern\s+"C"[^;{{}}]*\b{name}\s*\([^;{{}}]*\)\s*;', known[source.resolve()])
    if declared and 'extern "C"' not in "".join(texts_of(file).values()):
        linked = kernels / "lngrad_linked.h"  # as the test has it
        linked.write_text(f'#include "kernel_operator.h"\n{declared[0]}\n')
        link = ["-include", str(linked)]
    first = ["-include", "cstdint", "-include"]
    return [*first, str(test), *last], ["-DLNGRAD_TYPE_MACROS", *first, str(kernel), *link, *last]


def _calls(tests: Path) -> list[str]:
    """The arguments of each AddOpTestCase of a CMakeLists.txt."""
    file = tests / "CMakeLists.txt"
    text = re.sub(r"(?m)^\s*#.*$", "", file.read_text(errors="replace")) if file.is_file() else ""
    return [call["words"] for call in _CASES.finditer(text)]


def _own_options(call: str, kernels: Path, tests: Path, hosts: list[str]) -> list[str]:
    """The compiler's options among an AddOpTestCase's arguments. Types that it leaves out are of the definition's first column
    with those that it has, or as one of these, or float; what the kernel or a header of the tests defines or asks for stays.
    """
    words = [quoted or plain for quoted, plain in _WORD.findall(call)]
    options = [option for word in words if word.startswith("-") for option in word.split()]
    chosen = dict(option[2:].split("=", 1) for option in options if option.startswith("-DDTYPE_") and "=" in option)
    columns: dict[str, list[str]] = {}
    for parameter in _PARAMETER.finditer("\n".join(hosts)):
        types = [CPP_TYPES.get(name, "") for name in re.findall(r"DT_(\w+)", parameter[2] or "")]
        columns.setdefault(f"DTYPE_{parameter[1].upper()}", types)

    def fits(place: int) -> bool:
        return all(columns[name][place : place + 1] == [cpp] for name, cpp in chosen.items() if name in columns)

    column, default = next(filter(fits, range(64)), 0), next(iter(chosen.values()), "float")
    text = "\n".join(texts_of(kernels).values())
    headers = "\n".join(text for path, text in texts_of(tests).items() if path.suffix == ".h")
    own = {name for found in re.findall(_OWN_TYPE, text + headers) for name in found}
    used = (name for name in dict.fromkeys(re.findall(r"\bDTYPE_\w+", text)) if name in (columns or text))
    defaults = {name: (columns.get(name, [])[column : column + 1] or [default])[0] or default for name in used}
    return options + [f"-D{name}={cpp}" for name, cpp in defaults.items() if name not in chosen and name not in own]


def _gtest_libs(gtest: Path | None) -> list[str]:
    places = [] if gtest is None else sorted({path.parent for path in gtest.rglob("libgtest.*")})
    return [*(f"-L{path}" for path in places), "-lgtest_main", "-lgtest", "-lpthread"]


def _build(
    source: Path,
    kernel: Path,
    built: Path,
    flags: list[str],
    ahead: tuple[list[str], list[str]],
    linked: list[str],
    of: Tests,
) -> str:
    """Compile one test file with its kernel, and link it with what is ``linked``, if anything. Returns the first error."""
    own = _KERNEL.search(source.read_text(errors="replace"))  # it includes its kernel
    sources = [source, *([kernel] if kernel.is_file() and not own else []), *_helpers(source, flags, of)]
    objects = [built / f"{path.stem}.o" for path in sources]
    compiler = required(cxx_compiler)
    commands = [
        [*compiler, *ahead[path == kernel], *flags, "-c", str(path), "-o", str(target)]
        for path, target in zip(sources, objects, strict=True)
    ]
    for command in [*commands, *([[*compiler, *map(str, objects), *linked]] if linked else [])]:
        done = run_compiler(command)
        if done.returncode:
            found = _ERROR.search(done.stderr)
            error = found[0].strip() if found else done.stderr.strip()[:200]
            return error or f"the compiler failed with {done.returncode}"
    return ""


def _helpers(source: Path, flags: list[str], of: Tests) -> list[Path]:
    """Sources that are linked to a test: the .cpp beside headers that it includes by name, and op_host's tiling."""
    text = source.read_text(errors="replace")
    names = re.findall(r'#include\s+"(\w+)\.h"', text)
    folders = [Path(flag[2:]) for flag in flags if flag.startswith("-I")]
    headers = (next(filter(Path.is_file, (folder / f"{name}.h" for folder in folders)), source) for name in names)
    found = [path for path in headers if path.stem != source.stem]
    if "ExecuteTiling(" in text:
        folder = next(parent.parent for parent in source.resolve().parents if parent.name == "tests")
        hosts = sorted((folder / "op_host").rglob("*tiling*.cpp"))
        found += [path for path in hosts if of.fits(path.relative_to(folder))]
    return [path.with_suffix(".cpp") for path in found if path.with_suffix(".cpp").is_file()]


def _names(program: Path) -> list[str]:
    listed = subprocess.run([str(program), "--gtest_list_tests"], capture_output=True, text=True, check=False).stdout
    names, suite = [], ""
    for line in listed.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith(" "):
            names.append(f"{suite}{word}")
        elif word.endswith("."):
            suite = word
    return names


def _run(
    program: Path, names: list[str], mode: str, place: Path, time_limit: float, file: TestFile, cycles: bool
) -> list[Outcome]:
    """Run tests in one process, and add what it says to ``file``; one by one where that ends without a report."""
    report = program.parent / "report.json"
    report.unlink(missing_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # its gen_data.py needs NumPy
    environment = {**os.environ, "LNGRAD_KERNEL": MODES[mode] + ",cycles=on" * cycles, "PATH": path}
    command = [str(program), f"--gtest_filter={':'.join(names)}", f"--gtest_output=json:{report}"]
    why = ""
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, errors="replace",
            timeout=time_limit * len(names), check=False,
        )  # fmt: skip
        lines = done.stderr.splitlines()
        for found, prefix in ((file.remarks, REMARK), (file.cycles, CYCLES)):
            found.update(dict.fromkeys(line.removeprefix(prefix) for line in lines if line.startswith(prefix)))
        lines = [
            line for line in lines if line.startswith("lngrad: ") and not line.startswith((REMARK, WARNING, CYCLES))
        ]
        ours = [line.removeprefix("lngrad: ") for line in lines]
        why = ours[-1] if ours else f"ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        why = f"not done within {time_limit:g} s"
    with suppress(OSError, ValueError):  # the process may have ended before it wrote a report, or as it did
        suites = json.loads(report.read_text())["testsuites"]
        return [_case(f"{suite['name']}.{test['name']}", mode, test) for suite in suites for test in suite["testsuite"]]
    if len(names) == 1:
        return [Outcome(names[0], mode, "crashed", why)]
    return [case for name in names for case in _run(program, [name], mode, place, time_limit, file, cycles)]


def _case(name: str, mode: str, test: dict[str, Any]) -> Outcome:
    failures = test.get("failures", ())
    if not failures:
        return Outcome(name, mode, "passed")
    text = failures[0]["failure"]
    thrown = re.search(r'description "(.*?)" thrown', text, re.DOTALL)
    lines = (thrown[1] if thrown else text).strip().splitlines()
    return Outcome(name, mode, "failed", " ".join(line.strip() for line in lines[:4]))
