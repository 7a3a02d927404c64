"""What this machine and installation are, as far as they decide speed or what works: processor, versions, compilers."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import CompletedProcess

# Distributions that lngrad computes with, compares with or shows results by.
_PACKAGES = (
    "lngrad", "numpy", "ml_dtypes", "numba", "llvmlite", "torch", "jax", "triton", "scikit-learn", "matplotlib",
)  # fmt: skip

# What decides how wide and how a kernel computes, by Linux's names of processor flags.
_INSTRUCTION_SETS = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16", "avx_ne_convert",
    "amx_bf16", "amx_fp16", "asimd", "bf16", "sve", "sve2",
)  # fmt: skip

# What decides which instructions a compiler chooses, by Linux's names, for x86 and for ARM.
_IDENTITY = (
    "vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU architecture", "CPU variant",
    "CPU part", "CPU revision", "Features",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Version by distribution; "not installed" where there is none."""
    from importlib.metadata import PackageNotFoundError, version  # 50 ms, and the first call needs this file

    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def processor() -> str:
    """The processor's model, with family and model numbers where Linux tells them, and its number of logical cores."""
    facts = processor_facts()
    name = facts.get("model name") or facts.get("Model") or platform.processor() or platform.machine()
    if "cpu family" in facts and "model" in facts:
        name += f" (family {facts['cpu family']}, model {facts['model']})"
    return f"{name}, {os.cpu_count()} logical cores"


def instruction_sets() -> list[str]:
    """The vector instructions that Linux reports, such as avx2 and avx512f; empty elsewhere."""
    flags = processor_flags(processor_facts())
    return [name for name in _INSTRUCTION_SETS if name in flags]


def processor_identity() -> str:
    """What tells one kind of processor from another that runs other instructions, in one line."""
    facts = processor_facts()
    told = [f"{key}={facts[key]}" for key in _IDENTITY if key in facts]
    return "; ".join([platform.machine(), *(told or [platform.processor()])])


def processor_facts() -> dict[str, str]:
    """What Linux says about the first processor, by its own names; the others take it time to ask. Empty elsewhere."""
    facts: dict[str, str] = {}
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                key, colon, value = line.partition(":")
                if not colon and facts:
                    break
                facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return facts


def processor_flags(facts: dict[str, str]) -> frozenset[str]:
    """What a processor with these facts has, by Linux's names, such as avx2 or asimd; empty where it tells nothing."""
    return frozenset((facts.get("flags") or facts.get("Features") or "").split())


def caches() -> list[str]:
    """The first core's caches, such as "L1 Data 32K", as Linux tells them; empty elsewhere."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        facts = [" ".join(_lines(folder / name)) for name in ("level", "type", "size")]
        if all(facts):
            found.append("L{} {} {}".format(*facts))
    return found


@cache
def cache_bytes() -> tuple[int, int, int]:
    """A core's first-level data cache, its second-level cache, and the largest one; 32 KiB, 512 KiB and 16 MiB unless told."""
    found = {"1": 1 << 15, "2": 1 << 19, "3": 1 << 24}
    told = [one.split() for one in caches() if "Instruction" not in one]
    units = {"K": 10, "M": 20}
    sizes = {level[1:]: int(size[:-1]) << units[size[-1]] for level, _, size in told if size[-1] in units}
    found |= sizes
    return found["1"], found["2"], max(sizes.values(), default=found["3"])


def available_bytes() -> int:
    """Memory that can be had without swapping, as Linux and its control group tell it; elsewhere 2^40."""
    found = [1 << 40]
    found += [int(line.split()[1]) * 1024 for line in _lines(Path("/proc/meminfo")) if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    limit, used = (_lines(group / name) for name in ("memory.max", "memory.current"))
    if limit and used and limit[0].isdigit():
        found.append(max(0, int(limit[0]) - int(used[0])))
    return min(found)


@cache
def copy_speed(threads: int) -> float:
    """Bytes a second, read and written, of copies of 32 MiB by so many threads; the best of five."""
    from concurrent.futures import ThreadPoolExecutor
    from time import perf_counter

    import numpy as np

    pairs = [(np.ones(1 << 22), np.empty(1 << 22)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        times = []
        for _ in range(6):
            start = perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            times.append(perf_counter() - start)
    return threads * 2 * pairs[0][0].nbytes / min(times[1:])


def huge_pages() -> str:
    """When Linux gives memory in huge pages: always, madvise (NumPy asks for them, for large arrays) or never."""
    for line in _lines(Path("/sys/kernel/mm/transparent_hugepage/enabled")):
        for word in line.split():
            if word.startswith("["):
                return word.strip("[]")
    return "unknown"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


C_COMPILERS = ("cc", "gcc", "clang")
CXX_COMPILERS = ("c++", "g++", "clang++")


def c_compiler() -> list[str]:
    """Return the command of a C compiler: $CC, else the first of cc, gcc, clang.

    Raises:
        FileNotFoundError: there is none.
    """
    return _compiler("CC", "C", C_COMPILERS)


def cxx_compiler() -> list[str]:
    """Return the command of a C++ compiler: $CXX, else the first of c++, g++, clang++.

    Raises:
        FileNotFoundError: there is none.
    """
    return _compiler("CXX", "C++", CXX_COMPILERS)


def _compiler(variable: str, language: str, names: tuple[str, ...]) -> list[str]:
    import shlex  # these three take 5 ms, and the first call of a process needs this file
    import shutil

    chosen = shlex.split(os.environ.get(variable, ""))
    if chosen and shutil.which(chosen[0]):
        return chosen
    if chosen:
        raise FileNotFoundError(f"{variable}: expected a {language} compiler, got {chosen[0]!r}, which is not found")
    for name in names:
        if shutil.which(name):
            return [name]
    raise FileNotFoundError(f"expected a {language} compiler ({', '.join(names)}, or ${variable}), found none")


@cache
def compiler_version(*command: str) -> str:
    """All that a compiler says of its version."""
    import subprocess

    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout


# Runs a command in a process group of its own, and ends that group when the process that asked for it is gone: a compiler
# driver's own children would work on for a minute, for nobody.
_ENDS_WITH_US = """
import os, signal, subprocess, sys
asked_by, *command = sys.argv[1:]
process = subprocess.Popen(command, start_new_session=True)
try:
    while process.poll() is None and os.getppid() == int(asked_by):
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
finally:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
sys.exit(process.wait())
"""


def run_compiler(command: list[str], **environment: str) -> CompletedProcess[str]:
    """Run a command to its end, or to that of this process.

    Args:
        command: The program and its arguments.
        environment: Variables to set beside those of this process.
    """
    import subprocess

    return subprocess.run(
        [sys.executable, "-c", _ENDS_WITH_US, str(os.getpid()), *command],
        capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip
