"""The figures of the cycle model: how fast units and instructions are, and who says so.

Nothing here was measured by us. Rates are Huawei's table of theoretical performance and its tuned Add example, in asc-devkit;
starts and copies follow from profiles of single tiles on A2 devices, published with pto-isa, a half of which
`scripts/fit_cycles.py` fits. What has no such source is a guess, and is reported as one.
"""

from __future__ import annotations

from typing import NamedTuple

from lngrad_ascend.soc import Soc


class Timing(NamedTuple):
    """The cycles of one vector instruction.

    Attributes:
        wide, narrow: Of a repeat of 256 bytes, of 32-bit and of 16-bit elements.
        start: From the first repeat to the first result.
        sourced: Whether a published figure says so; else it is a guess.
    """

    wide: float
    narrow: float
    start: float
    sourced: bool = True


GUESS = Timing(1, 1, 18, False)
LIBRARY = Timing(12, 12, 60, False)  # a function that a device computes in steps: about a dozen instructions
WAKE, IDLE = 6.0, 16.0  # more, where the unit had nothing to do for so long
IN_PLACE = 0.6  # a repeat more, where dst is a source: a bank is read and written
TIMINGS = {
    **dict.fromkeys(("Add", "Sub"), Timing(1, 1, 18)),
    **dict.fromkeys(("Mul", "Muls", "Axpy", "LeakyRelu", "FusedMulAdd", "MulAddRelu", "MulCast"), Timing(1, 1, 23)),
    **dict.fromkeys(("Adds", "Rsqrt", "Reciprocal", "AddRelu", "SubRelu", "AddReluCast", "SubReluCast"), Timing(1, 1, 20)),
    **dict.fromkeys(("Max", "Min", "Maxs", "Mins", "Relu", "Abs"), Timing(1, 1, 17)),
    **dict.fromkeys(("And", "Or", "Not", "ShiftLeft", "ShiftRight"), Timing(1, 1, 18)),
    "MulAddDst": Timing(2, 2, 23),
    "Div": Timing(2, 4, 33),
    **dict.fromkeys(("Exp", "Ln", "Sqrt"), Timing(2, 2, 25)),  # the table has 4 for half, the profiles 2
    "Cast": Timing(1, 1, 23),
    **dict.fromkeys(("Copy", "CreateVecIndex", "TransDataTo5HD", "PairReduceSum"), Timing(1, 1, 18)),
    "DataCopy": Timing(8, 8, 0),  # within the Unified Buffer: a block a cycle
    "Duplicate": Timing(1, 1, 6),
    "Brcb": Timing(1, 1, 12),
    "Gather": Timing(12.8, 25.6, 20),
    "GatherMask": Timing(2, 2, 28),
    **dict.fromkeys(("Compare", "CompareScalar"), Timing(1, 1, 30)),
    **dict.fromkeys(("Select", "SelectScalar"), Timing(1, 1, 13)),
    "WholeReduceSum": Timing(7, 7, 45),
    **dict.fromkeys(("ReduceSum", "ReduceMax", "ReduceMin"), Timing(7, 7, 45, False)),  # made of the former
    **dict.fromkeys(("WholeReduceMax", "WholeReduceMin"), Timing(7, 7, 27)),
    **dict.fromkeys(("BlockReduceSum", "BlockReduceMax", "BlockReduceMin"), Timing(1, 7, 32)),
}  # fmt: skip

ISSUE = 2.0  # the scalar unit, for a call of Ascend C
MASK = 4.0  # more, for an instruction that sets a mask of its own: SetMaskCount, SetMask, ResetMask, SetMaskNorm
SCALAR_ACCESS = 4.0  # GetValue and SetValue of the Unified Buffer
GLOBAL_SCALAR = 200.0  # of global memory: a guess
SYNC_ALL = 600.0  # a guess


class Machine(NamedTuple):
    """The figures of a SoC; rates are bytes a second of all cores, sizes bytes.

    Attributes:
        clock: Cycles a second.
        groups: Bank groups of the Unified Buffer; 0: conflicts are not modelled.
        sourced: Whether they were published for it; else they are those of A2.
    """

    clock: float = 1.85e9
    groups: int = 16
    sourced: bool = True
    memory_rate: float = 1.6e12
    cache_rate: float = 4.8e12  # a guess: "several times" that of the memory
    cache_bytes: int = 192 << 20
    launch: float = 2e-6
    launch_core: float = 0.09e-6


# By pipe (MTE2, MTE3): the cycles until a copy's first bytes, and bytes a cycle from then on.
COPY_START = {2: 265.0, 3: 220.0}
COPY_RATE = {2: 128.0, 3: 109.0}
COPY_BLOCK = 1.0  # at least so many cycles for each block of a copy: a guess
FULL_RATE_BYTES = 16 << 10  # a copy of so many bytes has about the full rate: asc-devkit's advice


def machine(soc: Soc) -> Machine:
    """Return the figures for a SoC."""
    if soc.arch == 3510:
        return Machine(clock=1.65e9, groups=0, sourced=False)
    return Machine(sourced=soc.arch == 2201)
