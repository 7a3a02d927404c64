"""TPipe, TQue and TBuf: who gets which bytes of the Unified Buffer, and in which order a kernel may use them.

A queue is how a kernel says that one unit must wait for another: AllocTensor, fill, EnQue, DeQue, use, FreeTensor. The
simulator runs one instruction after the other and would get away with any order; a device would not, so the order is
checked here.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lngrad.ascend import soc as socs
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.unified_buffer import Allocation, Block, State, TPosition, UnifiedBuffer, current_block
from lngrad.ascend.faults import CapacityFault, LeakFault, LifetimeFault, PositionFault, QueueFault

__all__ = ["TBuf", "TPipe", "TQue"]

VECTOR_POSITIONS = (TPosition.VECIN, TPosition.VECOUT, TPosition.VECCALC)
BUFFERS_PER_KERNEL = 64  # CANN manual, TPipe::InitBuffer


class TQue:
    """A queue of tensors (``TQue<TPosition, depth>``).

    Args:
        position: VECIN, VECOUT or VECCALC.
        depth: how many tensors may wait in the queue at a time.
        name: for the texts of errors; C++ has no such thing.
    """

    def __init__(self, position: TPosition, depth: int = 1, *, name: str | None = None) -> None:
        _check_position("TQue", position)
        if depth < 1:
            raise QueueFault(f"TQue: depth must be at least 1, got {depth}")
        self.position = position
        self.depth = depth
        self.name = name or f"a {position.value} queue"
        self._pipe: TPipe | None = None
        self._slots: list[Allocation] = []
        self._waiting: deque[LocalTensor] = deque()

    def bind(self, pipe: TPipe, slots: list[Allocation]) -> None:
        """Take the memory that InitBuffer reserved."""
        self._pipe, self._slots = pipe, slots

    def AllocTensor(self, dtype: DTypeLike) -> LocalTensor:
        """Take a free buffer of the queue. Its content is undefined: reading it before writing is an error.

        C prototype: ``template <typename T> LocalTensor<T> AllocTensor()``

        Raises:
            QueueFault: no buffer is free (a device waits for ever), or the position has too many tensors at once.
        """
        pipe = self._bound("AllocTensor")
        slot = next((slot for slot in self._slots if slot.state is State.FREE), None)
        if slot is None:
            raise QueueFault(
                f"AllocTensor: all {len(self._slots)} buffers of {self.name} are in use; a device would wait for ever. "
                "Free a tensor first, or InitBuffer with a larger num"
            )
        pipe.check_position_limit(self.position)
        slot.state = State.ALLOCATED
        slot.epoch += 1
        pipe.ub.poison(slot.start, slot.start + slot.size)
        kind = np.dtype(dtype)
        return LocalTensor(pipe.ub, slot, kind, slot.start, slot.size // kind.itemsize * kind.itemsize)

    def EnQue(self, tensor: LocalTensor) -> None:
        """Put a tensor into the queue. C prototype: ``bool EnQue(const LocalTensor<T>& tensor)``.

        Raises:
            QueueFault: the tensor is not an allocated one of this queue, or the queue is full.
        """
        self._own("EnQue", tensor)
        if tensor.allocation.state is not State.ALLOCATED:
            raise QueueFault(f"EnQue: {tensor.describe()} is {tensor.allocation.state.value}, expected allocated")
        if len(self._waiting) == self.depth:
            raise QueueFault(f"EnQue: {self.name} has depth {self.depth}, and {self.depth} tensors wait in it already")
        tensor.allocation.state = State.ENQUED
        self._waiting.append(tensor)

    def DeQue(self, dtype: DTypeLike | None = None) -> LocalTensor:
        """Take the tensor that has waited longest. C prototype: ``template <typename T> LocalTensor<T> DeQue()``.

        Args:
            dtype: T; default: the type with which the tensor was put in.

        Raises:
            QueueFault: nothing waits.
        """
        self._bound("DeQue")
        if not self._waiting:
            raise QueueFault(f"DeQue: nothing waits in {self.name}; EnQue comes first")
        tensor = self._waiting.popleft()
        tensor.allocation.state = State.DEQUED
        return tensor if dtype is None else tensor.ReinterpretCast(dtype)

    def FreeTensor(self, tensor: LocalTensor) -> None:
        """Give the buffer back. C prototype: ``void FreeTensor(LocalTensor<T>& tensor)``.

        Raises:
            QueueFault: the tensor is not of this queue, or still waits in it.
            LifetimeFault: it was freed before.
        """
        self._own("FreeTensor", tensor)
        if tensor.allocation.state is State.ENQUED:
            raise QueueFault(f"FreeTensor: {tensor.describe()} waits in its queue, DeQue it first")
        tensor.allocation.state = State.FREE
        tensor.allocation.epoch += 1

    def GetTensorCountInQue(self) -> int:
        """Return how many tensors wait. C prototype: ``int32_t GetTensorCountInQue()``."""
        return len(self._waiting)

    def HasTensorInQue(self) -> bool:
        """Return whether a tensor waits. C prototype: ``bool HasTensorInQue()``."""
        return bool(self._waiting)

    def VacantInQue(self) -> bool:
        """Return whether the queue can take a tensor. C prototype: ``bool VacantInQue()``."""
        return len(self._waiting) < self.depth

    def _bound(self, api: str) -> TPipe:
        if self._pipe is None:
            raise QueueFault(f"{api}: {self.name} has no memory; TPipe.InitBuffer comes first")
        return self._pipe

    def _own(self, api: str, tensor: LocalTensor) -> None:
        self._bound(api)
        if all(slot is not tensor.allocation for slot in self._slots):
            raise QueueFault(f"{api}: {tensor.describe()} does not come from {self.name}")
        if tensor.is_dead:
            raise LifetimeFault(f"{api}: {tensor.describe()} was freed before")


class TBuf:
    """Memory without a queue, for temporary data (``TBuf<TPosition>``).

    Args:
        position: VECCALC (the usual one), VECIN or VECOUT.
        name: for the texts of errors; C++ has no such thing.
    """

    def __init__(self, position: TPosition = TPosition.VECCALC, *, name: str | None = None) -> None:
        _check_position("TBuf", position)
        self.position = position
        self.name = name or f"a {position.value} TBuf"
        self._pipe: TPipe | None = None
        self._slots: list[Allocation] = []

    def bind(self, pipe: TPipe, slots: list[Allocation]) -> None:
        """Take the memory that InitBuffer reserved."""
        self._pipe, self._slots = pipe, slots

    def Get(self, dtype: DTypeLike, len: int | None = None) -> LocalTensor:
        """Return the memory as a tensor of ``len`` elements; default: all of it.

        C prototypes: ``template <typename T> LocalTensor<T> Get()`` and ``Get(uint32_t len)``
        """
        if self._pipe is None:
            raise QueueFault(f"Get: {self.name} has no memory; TPipe.InitBuffer comes first")
        slot, kind = self._slots[0], np.dtype(dtype)
        tensor = LocalTensor(self._pipe.ub, slot, kind, slot.start, slot.size // kind.itemsize * kind.itemsize)
        if len is not None:
            tensor.SetSize(len)
        return tensor


class TPipe:
    """The owner of a block's Unified Buffer (``TPipe``).

    Inside ``launch`` it manages the running block; elsewhere (a notebook, a test) a block of its own on this thread's
    SoC.
    """

    def __init__(self) -> None:
        self.block = current_block.get() or Block(0, 1, UnifiedBuffer(socs.current().soc))
        self.block.pipes.append(self)
        self._queues: list[TQue | TBuf] = []

    @property
    def ub(self) -> UnifiedBuffer:
        """The Unified Buffer."""
        return self.block.ub

    def InitBuffer(self, que: TQue | TBuf, *sizes: int) -> None:
        """Reserve memory for a queue, ``InitBuffer(que, num, len)``, or a buffer, ``InitBuffer(buf, len)``.

        C prototypes::

            template <class T> bool InitBuffer(T& que, uint8_t num, uint32_t len)
            template <TPosition bufPos> bool InitBuffer(TBuf<bufPos>& buf, uint32_t len)

        As in CANN, ``len`` is in bytes and is rounded up to 32.

        Raises:
            CapacityFault: the Unified Buffer, or the number of buffers of a kernel, is used up.
            QueueFault: the queue has memory already, or a size is below 1.
        """
        if len(sizes) != (2 if isinstance(que, TQue) else 1):
            raise QueueFault(f"InitBuffer: expected (que, num, len) or (buf, len), got {len(sizes)} sizes")
        num, length = sizes if len(sizes) == 2 else (1, sizes[0])
        if num < 1 or length < 1:
            raise QueueFault(f"InitBuffer: num and len must be at least 1, got {num} and {length}")
        if que in self._queues:
            raise QueueFault(f"InitBuffer: {que.name} has memory already; Reset comes first")
        if len(self.ub.allocations) + num > BUFFERS_PER_KERNEL:
            raise CapacityFault(
                f"InitBuffer: a kernel may have {BUFFERS_PER_KERNEL} buffers in all, {que.name} would be number "
                f"{len(self.ub.allocations) + num}"
            )
        queued = isinstance(que, TQue)
        state = State.FREE if queued else State.BUFFER
        slots = [
            self.ub.allocate(f"buffer {index} of {que.name}" if queued else que.name, que.position, length, state)
            for index in range(num)
        ]
        for slot in slots:
            self.ub.poison(slot.start, slot.start + slot.size)
        que.bind(self, slots)
        self._queues.append(que)

    def Reset(self) -> None:
        """Take all memory back; queues need a new InitBuffer. C prototype: ``void Reset()``."""
        self.check_leaks()
        self.ub.release_all()
        self._queues.clear()

    def check_position_limit(self, position: TPosition) -> None:
        """Refuse one tensor more than the SoC has events for at a position."""
        limit = self.ub.soc.tensors_per_position
        used = [a for a in self.ub.allocations if a.position is position and a.state not in (State.FREE, State.BUFFER)]
        if len(used) >= limit:
            raise QueueFault(
                f"AllocTensor: the queues of {position.value} may have {limit} tensors at a time on "
                f"{self.ub.soc.name}, and {len(used)} are in use"
            )

    def check_leaks(self) -> None:
        """Refuse tensors that were not freed, or that still wait.

        Raises:
            LeakFault: naming every one.
        """
        left = [a for a in self.ub.allocations if a.state not in (State.FREE, State.BUFFER)]
        if left:
            names = ", ".join(f"{a.name} ({a.state.value})" for a in left)
            raise LeakFault(f"end of kernel: {len(left)} tensors were not freed: {names}")


def _check_position(api: str, position: Any) -> None:
    if position not in VECTOR_POSITIONS:
        raise PositionFault(f"{api}: expected VECIN, VECOUT or VECCALC (no cube is simulated), got {position}")
