"""The faults of the simulated NPU, a class for each rule that a kernel can break, and the class of its warnings.

On a device most of these rules are not checked: the kernel hangs, stops with a vector-core exception that names no
line, or writes wrong numbers. Every text here names the object, the rule with its numbers, and what came.
"""

from __future__ import annotations

from lngrad.errors import LngradError

__all__ = [
    "AlignmentFault", "AscendWarning", "BoundsFault", "CapacityFault", "DeadlockFault", "DeviceFault", "LeakFault",
    "LifetimeFault", "OverlapFault", "PoisonFault", "PositionFault", "QueueFault", "RaceFault", "SyncFault", "TilingError",
    "UnknownSoc",
]  # fmt: skip


class UnknownSoc(LngradError, ValueError):
    """The SoC name is not in the table."""


class TilingError(LngradError, ValueError):
    """A tiling function or a tiling buffer got values that upstream would only log, or wrap silently."""


class DeviceFault(LngradError, RuntimeError):
    """A kernel broke a rule of the device. Base of the faults below."""


class CapacityFault(DeviceFault):
    """More Unified Buffer, or more queue buffers, than the SoC has."""


class AlignmentFault(DeviceFault):
    """An address or a length is not a multiple of the 32-byte block."""


class BoundsFault(DeviceFault):
    """An access reaches past the end of its tensor."""


class PositionFault(DeviceFault):
    """A tensor lies at a TPosition that the instruction does not take."""


class QueueFault(DeviceFault):
    """AllocTensor, EnQue, DeQue and FreeTensor in an order, or a number, that the queue does not take."""


class LifetimeFault(DeviceFault):
    """A tensor is used after FreeTensor, or while it waits in a queue."""


class LeakFault(DeviceFault):
    """A kernel ended with tensors that it never freed, or that still wait in a queue."""


class PoisonFault(DeviceFault):
    """An instruction reads bytes that nothing has written since they were allocated."""


class OverlapFault(DeviceFault):
    """Two operands share memory where the instruction needs them apart."""


class SyncFault(DeviceFault):
    """A flag that is set twice, waited for without being set, never waited for, or between pipes that have none."""


class DeadlockFault(SyncFault):
    """Blocks wait for each other, and none can go on."""


class RaceFault(SyncFault):
    """Two accesses to the same bytes, one of them a write, that nothing on the device orders.

    Attributes:
        svg: A picture of the last instructions of the block by pipe, the two in red.
    """

    svg: str = ""


class AscendWarning(UserWarning):
    """The call runs as published, and its result is probably not what the caller wants."""
