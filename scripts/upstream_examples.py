"""Build and run the vector examples of the Ascend C kit (asc-devkit), as their README says, on the simulated NPU.

An example is an .asc file of examples/01_simd_cpp_api. Its CMakeLists.txt has the macros, the architecture and the other
sources; its README has the commands, of which those that make data, run the program and compare its results are run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from lngrad.ascend.cpp.compiling import without_chevrons
from lngrad.ascend.sdk.settings import Settings
from lngrad.ascend.sdk.toolkit import cflags, libs, write_toolkit
from lngrad.core.machine import cxx_compiler

ROOM = "examples/01_simd_cpp_api"
SOCS = {"2201": "Ascend910B1", "2002": "Ascend310P", "3510": "Ascend950"}  # by the architecture's number

# What an example of another machine than the vector cores of the memory-based API names: cube, register API, threads, or
# a framework that builds it. They are left out, and counted.
_OTHER_FOLDERS = re.compile(
    r"/\d*_?(reg_vector_compute|matrix_compute|matmul|matrix|reg_compute|fusion_operation|fusion_compute)/"
)
_OTHERS = {
    "the cube": r"\b(Mmad|Matmul\w*|LoadData\w*|Fixpipe\w*|TPosition::(A1|B1|A2|B2|CO1|C1)|Hardware::L1|Nd2NzParams)\b",
    "the register API": r"__VEC_SCOPE__|__simd_vf__|\b(MicroAPI|Reg)::",
    "threads (SIMT)": r"simt_api/|__simt_vf__",
    "a framework": r"(torch/extension|pybind11/pybind11|graph/custom_op)\.h",
}
_SECONDS = 120


class Example(NamedTuple):
    """What came of one: `state` is "other", "refused" (it does not compile), "failed" or "right", `why` its reason."""

    state: str
    why: str = ""


def sources(devkit: Path) -> list[Path]:
    """Every .asc file that may be a vector example."""
    found = sorted((devkit / ROOM).rglob("*.asc"))
    return [one for one in found if not _OTHER_FOLDERS.search(str(one.relative_to(devkit)))]


def run_example(source: Path, toolkits: Path) -> Example:
    """Build and run one. `toolkits` is a folder for the toolkits, one an architecture."""
    text = source.read_text(encoding="utf-8")
    for what, words in _OTHERS.items():
        if re.search(words, text):
            return Example("other", what)
    settings, together, steps = _project(source)
    toolkit = toolkits / settings["CMAKE_ASC_ARCHITECTURES"].removeprefix("dav-")
    if not toolkit.exists():
        write_toolkit(toolkit, Settings(soc=SOCS[toolkit.name]))
    with tempfile.TemporaryDirectory(prefix="lngrad-example-") as scratch:
        folder = Path(scratch) / source.parent.name
        shutil.copytree(source.parent, folder)
        build = folder / "build"
        build.mkdir(exist_ok=True)
        macros = [f"-D{name}" for name in _macros(source, settings)]
        flags = ["-std=c++17", "-O1", "-w", *macros, *cflags(toolkit), f"-I{folder}"]
        plain = [_plain(folder / one.name) for one in together]
        program = next((one.split()[0] for one in steps if one.startswith("./")), "./demo")
        command = [*cxx_compiler(), *flags, *map(str, plain), "-o", str(build / program), *libs(toolkit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = re.findall(r"error: (.*)", done.stderr)
            main = "undefined reference to `main'" in done.stderr
            if not main:
                return Example(
                    "refused", next((e for e in errors if e != "ld returned 1 exit status"), done.stderr[-200:])
                )
            return Example("refused", "its main program is not in this folder")
        return _run(steps, build)


def _run(steps: list[str], build: Path) -> Example:
    """Run the README's commands in the build folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    script = "\n".join(["set -e", "mkdir -p input output", *(steps or ["./demo"])])
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=build, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            errors="replace", timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Example("failed", f"not done within {_SECONDS} s")
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    faults = [line for line in said if re.search(r"\w+Fault:|Error:|\[ERROR\]|what\(\)", line)]
    if done.returncode or re.search(r"test fail|verify fail|\[Failed\]", done.stdout, re.IGNORECASE):
        return Example("failed", (faults or said or [f"ended with {done.returncode}"])[-1])
    return Example("right", "compared" if any("verify" in step for step in steps) else "")


def _project(source: Path) -> tuple[dict[str, str], list[Path], list[str]]:
    """Variables of CMake and README, the sources that are linked together, and the README's commands to run."""
    cmake = source.parent / "CMakeLists.txt"
    text = cmake.read_text(encoding="utf-8") if cmake.is_file() else ""
    settings = {"CMAKE_ASC_ARCHITECTURES": "dav-2201"}
    settings |= dict(re.findall(r'set\((\w+) "?([\w-]+)"? CACHE', text))
    steps: list[str] = []
    readmes = [source.parent / name for name in ("README_en.md", "README.md")]
    for readme in (one for one in readmes if one.is_file()):
        blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        lines = next((one.splitlines() for one in blocks if "cmake" in one and re.search(r"^ *\./", one, re.M)), [])
        values = dict(re.findall(r"^ *(\w+)=([\w-]+)", "\n".join(lines), re.MULTILINE))
        for line in (re.sub(r"\s#.*", "", one).strip() for one in lines):
            if "cmake" in line:
                found = re.findall(r"-D(\w+)=(\$?[\w{}-]+)", line)
                named = {name: values.get(value.strip("${}"), value) for name, value in found}
                settings |= {name: value for name, value in named.items() if "$" not in value}
            elif re.match(r"python3|\./|\w+=\w", line):
                steps.append(line)
        if steps:
            break
    named = re.search(r"add_executable\(\s*\w+([^)]*)\)", text)
    together = [source.parent / word for word in re.findall(r"[\w.]+\.(?:asc|cpp)", named[1] if named else "")]
    if source not in together or not all(one.is_file() for one in together):
        others = [one for one in (source.parent / "main.cpp",) if one.is_file()]
        together = [source, *others]
    return settings, together, steps


def _macros(source: Path, settings: dict[str, str]) -> list[str]:
    """What the CMakeLists.txt defines."""
    cmake = source.parent / "CMakeLists.txt"
    text = cmake.read_text(encoding="utf-8") if cmake.is_file() else ""
    inside = " ".join(re.findall(r"(?:compile_definitions\(\s*\w+\s+\w+|add_definitions\()([^)]*)\)", text))
    number = settings["CMAKE_ASC_ARCHITECTURES"].removeprefix("dav-")
    inside = re.sub(r"\$\{(\w+)\}", lambda one: settings.get(one[1], number if "ARCH" in one[1] else "1"), inside)
    return [one.removeprefix("-D") for one in inside.split()]


def _plain(source: Path) -> Path:
    """The file in plain C++, where it is an .asc file: its launches by macro, its lines as they were."""
    if source.suffix != ".asc":
        return source
    plain = source.with_name(f"{source.stem}_asc.cpp")
    text = without_chevrons(source.read_text(encoding="utf-8"))
    plain.write_text(f'#include "tikicpulib.h"\n#line 1 "{source}"\n{text}', encoding="utf-8")
    return plain
