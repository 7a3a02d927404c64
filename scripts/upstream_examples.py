"""Build and run the vector examples of the Ascend C kit (asc-devkit), as their README says, on the simulated NPU.

Run by upstream.py --kit, a few times a year.

An example is an .asc file of examples/01_simd_cpp_api. Its CMakeLists.txt has the macros, the architecture and the other
sources; its README has the commands, of which those that make data, run the program and compare its results are run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lngrad.support.compilers import cxx_compiler
from lngrad_ascend.sdk.operator_tests import MODES
from lngrad_ascend.sdk.program import plain_source
from lngrad_ascend.sdk.toolkit import cflags, libs, write_toolkit
from lngrad_ascend.soc import Settings

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
_SECONDS = 60


class Example(NamedTuple):
    """What came of one.

    Attributes:
        state: "other", of another machine; "refused", it does not compile; "library", it has no main program; or "ran".
        why: The reason of the first two.
        checked, device: Why it does not end right in this mode, "" if it does.
        compares: Whether its own script compares the results.
    """

    state: str
    why: str = ""
    checked: str = ""
    device: str = ""
    compares: bool = False


def sources(devkit: Path) -> list[Path]:
    """Every .asc file that may be a vector example."""
    found = sorted((devkit / ROOM).rglob("*.asc"))
    return [path for path in found if not _OTHER_FOLDERS.search(str(path.relative_to(devkit)))]


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
        plain = [plain_source(folder / path.name, folder) for path in together]
        program = next((step.split()[0] for step in steps if step.startswith("./")), "./demo")
        command = [*cxx_compiler(), *flags, *map(str, plain), "-o", str(build / program), *libs(toolkit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "undefined reference to `main'" in done.stderr:
            return Example("library")
        if done.returncode:
            errors = re.findall(r"error: (.*)", done.stderr)
            return Example(
                "refused", next((line for line in errors if not line.startswith("ld returned")), "it does not link")
            )
        found = {mode: _run(steps, build, setting) for mode, setting in MODES.items()}
        return Example("ran", **found, compares="golden" in text or any("verify" in step for step in steps))


def _run(steps: list[str], build: Path, setting: str) -> str:
    """Run the README's commands in the build folder. Returns why they do not end right, "" if they do."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    script = "\n".join(["set -e", "mkdir -p input output", *(steps or ["./demo"])])
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=build, env={**os.environ, "PATH": path, "LNGRAD_KERNEL": setting},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"not done within {_SECONDS} s"
    lines = [line for line in output.splitlines() if line.strip()]
    faults = [line for line in lines if re.search(r"\w+Fault:|Error:|\[ERROR\]|what\(\)", line)]
    if process.returncode or re.search(r"test fail|verify fail|\[Failed\]", output, re.IGNORECASE):
        return (faults or lines or [f"ended with {process.returncode}"])[-1].replace("what():", "").strip()
    return ""


def _project(source: Path) -> tuple[dict[str, str], list[Path], list[str]]:
    """Variables of CMake and README, the sources that are linked together, and the README's commands to run."""
    cmake = source.parent / "CMakeLists.txt"
    text = cmake.read_text(encoding="utf-8") if cmake.is_file() else ""
    settings = {"CMAKE_ASC_ARCHITECTURES": "dav-2201"}
    settings |= dict(re.findall(r'set\((\w+) "?([\w-]+)"? CACHE', text))
    steps: list[str] = []
    readmes = [source.parent / name for name in ("README_en.md", "README.md")]
    for readme in (path for path in readmes if path.is_file()):
        blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        lines = next(
            (block.splitlines() for block in blocks if "cmake" in block and re.search(r"^ *\./", block, re.M)), []
        )
        values = dict(re.findall(r"^ *(\w+)=([\w-]+)", "\n".join(lines), re.MULTILINE))
        for line in (re.sub(r"\s#.*", "", line).strip() for line in lines):
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
    if source not in together or not all(path.is_file() for path in together):
        others = [path for path in (source.parent / "main.cpp",) if path.is_file()]
        together = [source, *others]
    return settings, together, steps


def _macros(source: Path, settings: dict[str, str]) -> list[str]:
    """What the CMakeLists.txt defines; of its branches those on the value of a variable that is known."""
    cmake = source.parent / "CMakeLists.txt"
    kept, taken = [], [True]
    for line in cmake.read_text(encoding="utf-8").splitlines() if cmake.is_file() else []:
        word = line.strip()
        found = re.match(r'(?:else)?if\s*\("?\$?\{?(\w+)\}?"? STREQUAL "?([\w-]+)"?\)', word)
        here = found is not None and settings.get(found[1]) == found[2]
        if re.match(r"if\s*\(", word):
            taken.append(here)
        elif word.startswith("elseif"):
            taken[-1] = here
        elif word.startswith("endif"):
            taken.pop()
        elif re.match(r"else\s*\(", word):
            taken[-1] = False
        elif all(taken):
            kept.append(line)
    number = settings["CMAKE_ASC_ARCHITECTURES"].removeprefix("dav-")
    inside = " ".join(re.findall(r"(?:compile_definitions\(\s*\w+\s+\w+|add_definitions\()([^)]*)\)", "\n".join(kept)))
    inside = re.sub(r"\$\{(\w+)\}", lambda found: settings.get(found[1], number if "ARCH" in found[1] else "1"), inside)
    return [word.removeprefix("-D") for word in inside.split()]


def section(results: dict[str, Example], cell: Callable[[str], str]) -> tuple[str, list[tuple[str, ...]]]:
    """How many do what, in a sentence; and of each its name, what both modes say, and why it does not compile."""
    ran = {name: example for name, example in results.items() if example.state == "ran"}
    compiled = {name for name, example in results.items() if example.state in ("ran", "library")}
    others = Counter(example.why for example in results.values() if example.state == "other")
    good = {mode: sum(not getattr(example, mode) for example in ran.values()) for mode in MODES}
    compares = sum(example.compares and not example.device for example in ran.values())
    summary = (
        f"Of {len(results) - others.total()} examples {len(compiled)} compile. {good['checked']} of them end as they should in "
        f"checked mode, {good['device']} in device mode, {compares} of these by the comparison that comes with them. "
        f"{others.total()} more are for another machine, and left out: "
        + ", ".join(f"{count} name {what}" for what, count in sorted(others.items()))
        + "."
    )
    rows: list[tuple[str, ...]] = []
    for name, example in results.items():
        short = "/".join(name.removesuffix(".asc").split("/")[1:])
        if example.state == "refused":
            rows.append((short, "", "", "", cell(example.why)))
        elif example.state == "library":
            rows.append((short, "", "", "", "yes; its main program is Python"))
        elif example.state == "ran":
            rows.append((short, cell(example.checked) or "right", cell(example.device) or "right"))
    return summary, rows
