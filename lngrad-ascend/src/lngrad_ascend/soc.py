"""The SoCs that can be simulated, and which of them this thread uses.

One row per SoC: what the tiling functions, the memory rules and the aclnn checks need to know about it. The row
says where its numbers come from; a number that could not be confirmed is marked UNVERIFIED there.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeAlias

from lngrad_ascend.faults import UnknownSoc

__all__ = ["DEFAULT", "Documents", "Mode", "Rounding", "Soc", "Target", "current", "get", "names", "use"]

Mode = Literal["strict", "compat"]
Rounding = Literal["even", "device"]
Documents = Literal["8.0.RC1", "8.3", "master"]

DEFAULT = "Ascend910B1"
_RELEASE = re.compile(r"(?:[89]|[1-9]\d+)\.\d+")  # of earlier ones the documents are not here
_FIRST_RELEASE = re.compile(r"8\.0\.RC1(?!\d)")


@dataclass(frozen=True)
class Soc:
    """The facts of one SoC.

    Attributes:
        name: the name that ``use`` takes.
        product: the product family, in the words of the manuals.
        arch: the architecture number (``NpuArch``); 2002 and 2201 run the "common" tile code, 3510 the register
            code.
        ub_bytes: Unified Buffer of one vector core that a kernel may fill.
        vector_cores: cores that run vector kernels; a coupled architecture (1001, 2002) counts its AI cores.
        bf16: whether the vector unit knows bfloat16.
        tile_api: whether the manuals list LayerNormGrad and LayerNormGradBeta for the product.
        data_copy_pad: whether DataCopyPad exists (the separated architectures).
        tensors_per_position: tensors that all queues of one TPosition may have allocated at a time.
        source: where the numbers come from.
        block_bytes: the unit of Unified Buffer addresses and of DataCopy.
    """

    name: str
    product: str
    arch: int
    ub_bytes: int
    vector_cores: int
    bf16: bool
    tile_api: bool
    data_copy_pad: bool
    tensors_per_position: int
    source: str
    block_bytes: int = 32

    @property
    def macros(self) -> dict[str, str]:
        """The macros by which kernels ask the compiler for the architecture."""
        core = {1001: "100", 2002: "200", 2201: "220", 3002: "300", 3510: "310"}[self.arch]
        return {"__CCE_AICORE__": core, "__NPU_ARCH__": str(self.arch)}

    @property
    def regbase(self) -> bool:
        """Whether the tile APIs run the register-based (3510) code."""
        return self.arch == 3510


@dataclass(frozen=True)
class Target:
    """The target that a thread simulates: a SoC, a CANN release, its documents or its code, and its rounding.

    Attributes:
        soc: the facts of the SoC.
        cann: the CANN release whose documents the checks follow; "master" for the pages as they are published now.
        mode: "strict" follows the documents, "compat" the published code, quirk for quirk.
        rounding: "even" rounds every narrowing store to nearest even; "device" as the SoC's kernels do.
    """

    soc: Soc
    cann: str = "8.3"
    mode: Mode = "strict"
    rounding: Rounding = "even"

    @property
    def documents(self) -> Documents:
        """The documents that apply: those of the first release, the later ones, or the newest."""
        if _FIRST_RELEASE.match(self.cann):
            return "8.0.RC1"
        return "master" if self.cann == "master" else "8.3"


SocLike: TypeAlias = "str | Soc | None"  # a name, a row, or this thread's

KIB = 1024
_A2 = "Atlas A2 training/inference"
_INIT_BUFFER = "buffers a position: CANN 8.0 manual, TPipe::InitBuffer"
_INI = "platform_config/{}.ini (ub_size, vector_core_cnt) as quoted in public projects; " + _INIT_BUFFER

_TABLE = {
    soc.name: soc
    for soc in (
        Soc("Ascend310P", "Atlas inference (310P)", 2002, 256 * KIB, 8, False, True, False, 8,
            "platform_config/Ascend310P3.ini: ub_size 262144, ai_core_cnt 8 (7 further vector cores are not used "
            "here); that all of it is free to kernels is UNVERIFIED; " + _INIT_BUFFER),
        Soc("Ascend310B", "Atlas 200I/500 A2 inference (310B)", 3002, 256 * KIB, 1, False, False, True, 8,
            "NpuArch 3002: asc-devkit; no tile API, DataCopyPad: product tables of the manual; one AI core: Atlas 200I DK "
            "A2. The Unified Buffer, bfloat16 and buffers a position are UNVERIFIED"),
        Soc("Ascend910A", "Atlas training (910)", 1001, 256 * KIB, 32, False, False, False, 4,
            "hardware_info of the operator unit tests (UB_SIZE 262144, CORE_NUM 32), UNVERIFIED on a device; "
            + _INIT_BUFFER),
        *(Soc(name, _A2, 2201, 192 * KIB, cores, True, True, True, 8, _INI.format(name))
          for name, cores in {"Ascend910B1": 48, "Ascend910B2": 48, "Ascend910B3": 40, "Ascend910B4": 40}.items()),
        Soc("Ascend910_93", "Atlas A3 training/inference", 2201, 192 * KIB, 48, True, True, True, 8,
            _INI.format("Ascend910_9392")),
        Soc("Ascend950", "Ascend 950PR/950DT", 3510, 248 * KIB, 64, True, True, True, 8,
            "256 KiB of which 248 KiB are reported to operators; 64 vector cores as platform_config/"
            "Ascend950PR_958b.ini (smaller bins have fewer); 8 buffers a position: AllocTensor's page of asc-devkit"),
        Soc("Ascend350", "Atlas 350 accelerator card", 3510, 248 * KIB, 64, True, True, True, 8,
            "ops-nn registers LayerNormGradV3 for it with the register-based code; all numbers are Ascend950's and "
            "UNVERIFIED for it"),
    )
}  # fmt: skip

# Names that a device reports for itself, or that operators are registered under, where a row is for a family.
_ALIASES = {
    **{f"Ascend310P{number}": "Ascend310P" for number in (1, 2, 3, 4, 5, 7)},
    **{f"Ascend310B{number}": "Ascend310B" for number in (1, 2, 3, 4)},
    **dict.fromkeys(("Ascend910", *(f"Ascend910{part}" for part in ("B", "ProA", "ProB", "PremiumA"))), "Ascend910A"),
    "ascend910b": DEFAULT,  # of build.sh: all A2; Ascend910B is a bin of the first 910
    "Ascend910B2C": "Ascend910B2",
    "Ascend910B4-1": "Ascend910B4",
    **{f"Ascend910_93{part}": "Ascend910_93" for part in (61, 62, 72, 81, 82, 91, 92)},
    **dict.fromkeys(("Ascend950PR", "Ascend950DT"), "Ascend950"),
    **{
        f"Ascend950PR_{part}": "Ascend950"
        for part in ("950z", "957b", "957c", "957d", "958a", "958b", 9579, 9589, 9598, 9599)
    },
    **{f"Ascend950DT_{part}": "Ascend950" for part in ("950x", "950y", "95A1", "95A2", 9591, 9592, 9595, 9596)},
    **{f"Ascend950DT_95{part}": "Ascend950" for part in (*range(71, 79), *range(81, 89))},
    "Ascend350_355e": "Ascend350",
}
_LOWER = {name.lower(): name for name in (*_ALIASES, *_TABLE)} | {"ascend910b": "ascend910b"}


class _Thread(threading.local):
    """The target of each thread; a new thread starts with the default."""

    def __init__(self) -> None:
        self.target = Target(_TABLE[DEFAULT])


_thread = _Thread()


class use:
    """Choose what this thread simulates, from now on or for a ``with`` block.

    Args:
        name: a SoC of ``names()``.
        cann: the CANN release whose documents the checks follow, such as "8.0.RC1" or "8.3"; "master" for the pages
            as they are published now.
        mode: "strict" (documents) or "compat" (published code).
        rounding: "even" or "device".

    Raises:
        UnknownSoc: the name is not in the table; the text lists the known ones.
        ValueError: ``cann`` is no release from 8.0.RC1 on, or ``mode`` or ``rounding`` not one of its two words.

    Examples:
        >>> with use("Ascend950") as target:
        ...     target.soc.arch
        3510
        >>> current().soc.name
        'Ascend910B1'
    """

    # Lower case, as it reads as a verb; a class, as it restores the earlier target at the end of the block.
    def __init__(self, name: str, *, cann: str = "8.3", mode: Mode = "strict", rounding: Rounding = "even") -> None:
        if mode not in ("strict", "compat"):
            raise ValueError(f"mode: expected 'strict' or 'compat', got {mode!r}")
        if rounding not in ("even", "device"):
            raise ValueError(f"rounding: expected 'even' or 'device', got {rounding!r}")
        if cann != "master" and not _RELEASE.match(cann):
            raise ValueError(f"cann: expected a release such as '8.3', from 8.0.RC1 on, or 'master', got {cann!r}")
        self._before = _thread.target
        self._target = Target(get(name), cann, mode, rounding)
        _thread.target = self._target

    def __enter__(self) -> Target:
        return self._target

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.target = self._before


def current() -> Target:
    """Return what this thread simulates: the last ``use``, else Ascend910B1, strict, nearest even."""
    return _thread.target


def get(name: SocLike = None) -> Soc:
    """Return the row of a SoC; a row is returned as it is, None means this thread's SoC.

    Names that devices and build files use are known too, in upper or lower case.

    Raises:
        UnknownSoc: the name is not in the table.
    """
    if name is None:
        return _thread.target.soc
    if isinstance(name, Soc):
        return name
    if name not in _ALIASES:
        name = _LOWER.get(name.lower(), name)
    try:
        return _TABLE[_ALIASES.get(name, name)]
    except KeyError:
        raise UnknownSoc(f"soc: expected one of {', '.join(names())}, got {name!r}") from None


def names() -> tuple[str, ...]:
    """Return the names of all SoCs that can be simulated."""
    return tuple(_TABLE)


@dataclass(frozen=True)
class Settings:
    """The settings that a folder is written with: options of ``lngrad sdk``.

    Attributes:
        soc: a SoC of ``names()``.
        cann: the CANN release whose documents the checks follow.
        mode: "strict" or "compat".
        rounding: "even" or "device".
        unified: whether host memory may be in the place of device memory.
    """

    soc: str = DEFAULT
    cann: str = "8.3"
    mode: Mode = "strict"
    rounding: Rounding = "even"
    unified: bool = False

    def __post_init__(self) -> None:
        with self.choose():  # refuses what is wrong
            pass

    def choose(self) -> use:
        """Simulate this in the calling thread, from now on or for a ``with`` block.

        Raises:
            UnknownSoc, ValueError: as ``use``.
        """
        return use(self.soc, cann=self.cann, mode=self.mode, rounding=self.rounding)
