"""The processors that kernels are compiled for ahead: what each must have, and which of them this one can run."""

from __future__ import annotations

import os
import platform
from typing import NamedTuple

from lngrad.core.machine import processor_facts, processor_flags

CHOICE = "LNGRAD_COMPILE_FOR"  # environment variable: the name of one of PROCESSORS, in place of the processor at hand


class Processor(NamedTuple):
    """A processor that kernels are compiled for.

    Attributes:
        name: LLVM's.
        architecture: x86_64 or aarch64.
        maker: As Linux names it; "" for any.
        flags: By Linux's names, all that its machine code may need beyond what every processor of the architecture has.
    """

    name: str
    architecture: str
    maker: str
    flags: frozenset[str]

    @property
    def features(self) -> str:
        """The flags by LLVM's names, such as "+avx512bf16,+sse4.1"; none on ARM, where no kernel asks."""
        if self.architecture != "x86_64":
            return ""
        return ",".join(sorted(f"+{_LLVM_NAMES.get(flag, flag.replace('_', ''))}" for flag in self.flags))


_LLVM_NAMES = {
    "abm": "lzcnt", "bmi1": "bmi", "lahf_lm": "sahf", "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2",
}  # fmt: skip


def _rows(architecture: str, *rows: tuple[str, str, str]) -> list[Processor]:
    return [Processor(name, architecture, maker, frozenset(flags.split())) for name, maker, flags in rows]


_V2 = "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"
_V3 = f"{_V2} abm avx avx2 bmi1 bmi2 f16c fma movbe"
_V4 = f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl"
_ICELAKE = f"{_V4} avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vpopcntdq avx512ifma avx512vbmi gfni"
_N1 = "asimddp asimdhp asimdrdm atomics crc32 lrcpc"

# In order of preference: the first that this processor can run is taken. A maker's later processors have its earlier ones'
# flags, and machine code for a processor by its name is 5 to 40 % faster than for a level.
PROCESSORS = {
    processor.name: processor
    for processor in [
        *_rows(
            "x86_64",
            ("znver5", "AuthenticAMD", f"{_ICELAKE} avx512_bf16 avx_vnni sse4a"),
            ("znver4", "AuthenticAMD", f"{_ICELAKE} avx512_bf16 sse4a"),
            ("znver3", "AuthenticAMD", f"{_V3} sse4a"),
            ("sapphirerapids", "GenuineIntel", f"{_ICELAKE} avx512_bf16 avx512_fp16 avx_vnni"),
            ("icelake-server", "GenuineIntel", _ICELAKE),
            ("skylake-avx512", "GenuineIntel", _V4),
            ("haswell", "GenuineIntel", _V3),
            ("x86-64-v4", "", _V4),
            ("x86-64-v3", "", _V3),
            ("x86-64-v2", "", _V2),
        ),
        *_rows(
            "aarch64",
            ("neoverse-v2", "", f"{_N1} bf16 fcma flagm i8mm ilrcpc jscvt sve sve2"),
            ("neoverse-n1", "", _N1),
            ("generic", "", ""),
        ),
    ]
}


def _chosen() -> Processor | None:
    name = os.environ.get(CHOICE)
    if name and name not in PROCESSORS:
        raise ValueError(f"{CHOICE}: expected one of {', '.join(PROCESSORS)}, got {name!r}")
    return PROCESSORS[name] if name else None


CHOSEN = _chosen()
HERE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
ARCHITECTURE = CHOSEN.architecture if CHOSEN else HERE  # that kernels are compiled for


def fitting() -> list[Processor]:
    """Those whose kernels this processor can run, the best first; none where Linux does not tell what it has."""
    return [CHOSEN] if CHOSEN else fits(HERE, processor_facts())


def fits(architecture: str, facts: dict[str, str]) -> list[Processor]:
    """Those of PROCESSORS that a processor with these facts can run.

    Args:
        architecture: x86_64 or aarch64.
        facts: As `processor_facts` returns them.
    """
    flags = processor_flags(facts)
    maker = facts.get("vendor_id", "")
    alike = [
        processor
        for processor in PROCESSORS.values()
        if processor.architecture == architecture and processor.maker in ("", maker)
    ]
    return [processor for processor in alike if flags and processor.flags <= flags]
