"""The units of a vector core that run side by side (pipes), and the events between them."""

from __future__ import annotations

import enum

# As plain numbers, because every instruction indexes with them. pipe_t has the same values.
S, V, MTE2, MTE3 = range(4)
ALL_PIPES = (S, V, MTE2, MTE3)
PIPE_NAMES = ("S", "V", "MTE2", "MTE3")
PIPE_WORDS = (
    "the scalar unit",
    "the vector unit",
    "the copy from global memory",
    "the copy to global memory",
)


class pipe_t(enum.IntEnum):
    """The pipes as kernels name them. M, MTE1 and FIX belong to the cube, which is not simulated.

    The numbers are this package's; CANN's are in headers that are not published.
    """

    PIPE_S = 0
    PIPE_V = 1
    PIPE_MTE2 = 2
    PIPE_MTE3 = 3
    PIPE_M = 4
    PIPE_MTE1 = 5
    PIPE_FIX = 6
    PIPE_ALL = 7


class HardEvent(enum.IntEnum):
    """From which pipe to which a flag goes: ``MTE2_V`` is set on MTE2 and waited for on V."""

    MTE2_MTE1 = 0
    MTE1_MTE2 = 1
    MTE1_M = 2
    M_MTE1 = 3
    MTE2_V = 4
    V_MTE2 = 5
    MTE3_V = 6
    V_MTE3 = 7
    M_V = 8
    V_M = 9
    V_V = 10
    MTE3_MTE1 = 11
    MTE1_MTE3 = 12
    MTE1_V = 13
    MTE2_M = 14
    M_MTE2 = 15
    V_MTE1 = 16
    M_FIX = 17
    FIX_M = 18
    MTE3_MTE2 = 19
    MTE2_MTE3 = 20
    S_V = 21
    V_S = 22
    S_MTE2 = 23
    MTE2_S = 24
    S_MTE3 = 25
    MTE3_S = 26
    MTE2_FIX = 27
    FIX_MTE2 = 28
    FIX_S = 29
    M_S = 30
    FIX_MTE3 = 31
    MTE1_FIX = 32
    FIX_MTE1 = 33
    FIX_FIX = 34


def _pipes(event: HardEvent) -> tuple[int, int] | None:
    source, target = event.name.split("_")
    if source == target or source not in PIPE_NAMES or target not in PIPE_NAMES:
        return None
    return PIPE_NAMES.index(source), PIPE_NAMES.index(target)


# The two pipes of every event that a vector core has.
EVENT_PIPES: dict[int, tuple[int, int]] = {int(e): pipes for e in HardEvent if (pipes := _pipes(e)) is not None}
