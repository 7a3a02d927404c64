"""What this machine and installation are, as far as they decide speed or what works: processor, versions, memory."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from pathlib import Path

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

BUSY = 0.1  # share of all cores: where other programs use more, no ratio is measured


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
    """The identity of a kind of processor, in one line: others run other instructions."""
    facts = processor_facts()
    identity = [f"{key}={facts[key]}" for key in _IDENTITY if key in facts]
    return "; ".join([platform.machine(), *(identity or [platform.processor()])])


def processor_facts() -> dict[str, str]:
    """Linux's facts about the first processor, by its own names; asking for the others takes time. Empty elsewhere."""
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
    """Flags of a processor with these facts, by Linux's names, such as avx2 or asimd; empty where it tells nothing."""
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
    rows = [line.split() for line in caches() if "Instruction" not in line]
    units = {"K": 10, "M": 20}
    sizes = {level[1:]: int(size[:-1]) << units[size[-1]] for level, _, size in rows if size[-1] in units}
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


class Others:
    """The share of all cores that other processes use, since this was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), _busy() - time.process_time()

    def share(self) -> float:
        """From 0 to 1; 0 where Linux does not say."""
        start, busy = self._start
        used = _busy() - time.process_time() - busy
        return max(0.0, used / (time.perf_counter() - start + 1e-9) / (os.cpu_count() or 1))


def _busy() -> float:
    """Seconds that all cores have worked since the start of the system."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = map(int, file.readline().split()[1:4])
    except OSError:
        return 0.0
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")
