"""TPipe, TBufPool, TQue and TBuf: who gets which bytes of the Unified Buffer, and in which order a kernel may use them.

A queue is how a kernel says that one unit must wait for another: AllocTensor, fill, EnQue, DeQue, use, FreeTensor.
The simulator runs one instruction after the other and would get away with any order; a device would not, so the order
is checked here.
"""

from __future__ import annotations

from collections import deque

from numpy.typing import DTypeLike

from lngrad_ascend import soc as socs
from lngrad_ascend.device.core import Core, current_core, running
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.numerics import element_type
from lngrad_ascend.device.pipes import MTE2, MTE3, HardEvent, V
from lngrad_ascend.device.report import caller
from lngrad_ascend.device.unified_buffer import UNUSED, VECIN, VECOUT, Allocation, State, TPosition, UnifiedBuffer
from lngrad_ascend.faults import (
    BoundsFault,
    CapacityFault,
    DeviceFault,
    LifetimeFault,
    PositionFault,
    QueueFault,
    SyncFault,
)

FREE, ALLOCATED, ENQUED, DEQUED, BUFFER = State
VECTOR_POSITIONS = (TPosition.VECIN, TPosition.VECOUT, TPosition.VECCALC)
BUFFERS_PER_KERNEL, BUFFERS_PER_POOL = 64, 16  # CANN manual, InitBuffer of TPipe and TBufPool
Positions = tuple[TPosition, TPosition]  # from where to where a queue goes
# What a queue binds that names one position.
_BOUND = {TPosition.VECIN: (TPosition.GM, TPosition.VECIN), TPosition.VECOUT: (TPosition.VECOUT, TPosition.GM)}


def queue_pipes(positions: Positions) -> tuple[int, int]:
    """Return from which pipe to which EnQue's flag goes; FreeTensor's goes back."""
    return V if positions[0] is VECOUT else MTE2, V if positions[1] is VECIN else MTE3


class _Buffered:
    """A queue or a buffer: InitBuffer gives it memory."""

    word = ""

    def __init__(self, position: TPosition, name: str | None) -> None:
        if position not in VECTOR_POSITIONS:
            raise PositionFault(
                f"{type(self).__name__}: expected VECIN, VECOUT or VECCALC (no cube is simulated), got {position}"
            )
        self.position = position
        self.name = name or f"a {position.value} {self.word}"
        self._core: Core | None = None
        self._slots: list[Allocation] = []

    def unbind(self) -> None:
        """Give the memory back."""
        self._core, self._slots = None, []

    def _bound(self, api: str) -> Core:
        if self._core is None:
            raise QueueFault(f"{api}: {self.name} has no memory; TPipe.InitBuffer comes first [ErrorBuffer0]")
        if (pool := self._slots[0].pool) is not None:
            pool.enter(f"{api}: {self.name}", self._slots[0], self._slots[-1])
        return self._core


class TQue(_Buffered):
    """A queue of tensors (``TQue<TPosition, depth>``).

    Args:
        position: VECIN, VECOUT or VECCALC.
        depth: How many tensors may wait in the queue at a time.
        name: For the texts of errors; C++ has no such thing.
        binds: From where to where tensors go, as ``TQueBind<source, target, depth>`` says; default: by the position.
    """

    word = "queue"

    def __init__(
        self, position: TPosition, depth: int = 1, *, name: str | None = None, binds: Positions | None = None
    ) -> None:
        super().__init__(position, name)
        if depth < 1:
            raise QueueFault(f"TQue: depth must be at least 1, got {depth}")
        self.depth = depth
        self._pipes = queue_pipes(binds or _BOUND.get(position, (position, position)))
        self._turn = 0  # whose turn it is: buffers are handed out one after the other
        self._waiting: deque[LocalTensor] = deque()

    def unbind(self) -> None:
        """Give the memory back."""
        super().unbind()
        self._waiting.clear()
        self._turn = 0

    def AllocTensor(self, dtype: DTypeLike) -> LocalTensor:
        """Take the next free buffer in turn. Its content is undefined: reading it before writing is an error.

        C prototype: ``template <typename T> LocalTensor<T> AllocTensor()``. Python's ``float`` and ``int`` are C++'s,
        32 bits wide.

        Raises:
            QueueFault: No buffer is free (a device waits for ever), or the position has too many tensors at once.
        """
        core, T = self._bound("AllocTensor"), element_type("AllocTensor", dtype)
        slots = self._slots
        for turn in range(self._turn, self._turn + len(slots)):
            slot = slots[turn % len(slots)]
            if slot.state is FREE:
                break
        else:
            raise QueueFault(
                f"AllocTensor: all {len(slots)} buffers of {self.name} are in use; a device would wait for ever. "
                "Free a tensor first, or InitBuffer with a larger num"
            )
        checked = core.checked
        if checked:
            if len(core.ub.allocations) >= core.soc.tensors_per_position:
                _check_position_limit(core, self.position)
            site = core.site or caller()
            core.ub.forget(slot.start, slot.start + slot.size, "was not written since AllocTensor", site)
        self._turn = (turn + 1) % len(slots)
        slot.enter(ALLOCATED, checked)
        core.ub.new_handle(slot)
        _wait(core, slot)
        return LocalTensor(core, slot, T, slot.start, slot.size // T.itemsize * T.itemsize)

    def EnQue(self, tensor: LocalTensor, positions: Positions | None = None) -> bool:
        """Put a tensor into the queue.

        C prototypes: ``bool EnQue(const LocalTensor<T>& tensor)`` and, where the positions say what DeQue waits for,
        ``template <TPosition source, TPosition target, typename T> bool EnQue(const LocalTensor<T>& tensor)``

        Returns:
            True.

        Raises:
            QueueFault: The tensor is not an allocated one of this queue, or the queue is full.
        """
        core = self._own("EnQue", tensor)
        if tensor.allocation.state is not ALLOCATED and tensor.allocation.state is not DEQUED:
            raise QueueFault(f"EnQue: {tensor.describe()} waits in its queue already, DeQue it first [ErrorBuffer2]")
        if len(self._waiting) == self.depth:
            raise QueueFault(f"EnQue: {self.name} has depth {self.depth}, and {self.depth} tensors wait in it already")
        tensor.allocation.enter(ENQUED, core.checked)
        source, target = queue_pipes(positions) if positions else self._pipes
        tensor.allocation.flag, tensor.allocation.waits = core.clock.release(source), target
        self._waiting.append(tensor)
        return True

    def DeQue(self, dtype: DTypeLike | None = None) -> LocalTensor:
        """Take the tensor that has waited longest.

        C prototype: ``template <typename T> LocalTensor<T> DeQue()``

        Args:
            dtype: T; default: the type with which the tensor was put in.

        Raises:
            QueueFault: Nothing waits.
        """
        core = self._bound("DeQue")
        if not self._waiting:
            raise QueueFault(f"DeQue: nothing waits in {self.name}; EnQue comes first")
        tensor = self._waiting.popleft()
        slot = tensor.allocation
        slot.enter(DEQUED, core.checked)
        _wait(core, slot)
        return tensor if dtype is None or dtype is tensor.dtype else tensor.ReinterpretCast(dtype)

    def FreeTensor(self, tensor: LocalTensor) -> None:
        """Give the buffer back. C prototype: ``void FreeTensor(LocalTensor<T>& tensor)``.

        Raises:
            QueueFault: The tensor is not of this queue, or still waits in it.
            LifetimeFault: It was freed before.
        """
        core = self._own("FreeTensor", tensor)
        slot = tensor.allocation
        if slot.state is ENQUED and not core.checked:
            self._waiting = deque(waiting for waiting in self._waiting if waiting.allocation is not slot)
        elif slot.state is ENQUED:
            raise QueueFault(f"FreeTensor: {tensor.describe()} waits in its queue, DeQue it first [ErrorBuffer2]")
        slot.enter(FREE, core.checked)
        slot.flag, slot.waits = core.clock.release(self._pipes[1]), self._pipes[0]
        slot.handle = -1

    def FreeAllEvent(self) -> None:
        """Wait for the flags that FreeTensor has set. C prototype: ``void FreeAllEvent()``."""
        core = self._bound("FreeAllEvent")
        for slot in self._slots:
            if slot.state is FREE:
                _wait(core, slot)

    def GetTensorCountInQue(self) -> int:
        """Return how many tensors wait. C prototype: ``int32_t GetTensorCountInQue()``."""
        return len(self._waiting)

    def HasTensorInQue(self) -> bool:
        """Return whether a tensor waits. C prototype: ``bool HasTensorInQue()``."""
        return bool(self._waiting)

    def VacantInQue(self) -> bool:
        """Return whether the queue can take a tensor. C prototype: ``bool VacantInQue()``."""
        return len(self._waiting) < self.depth

    def HasIdleBuffer(self) -> bool:
        """Return whether AllocTensor would find a buffer. C prototype: ``bool HasIdleBuffer()``."""
        return any(slot.state is FREE for slot in self._slots)

    def _own(self, api: str, tensor: LocalTensor) -> Core:
        core = self._bound(api)
        if tensor.allocation not in self._slots:
            raise QueueFault(f"{api}: {tensor.describe()} does not come from {self.name} [ErrorBuffer3]")
        if tensor.allocation.handle != tensor.handle:
            raise LifetimeFault(f"{api}: {tensor.describe()} was freed before [ErrorFree]")
        return core


def _wait(core: Core, slot: Allocation) -> None:
    """Let the pipe that the flag of a buffer goes to wait for it."""
    if slot.flag is not None:
        core.clock.acquire(slot.waits, slot.flag)
        slot.flag = None


class TBuf(_Buffered):
    """Memory without a queue, for temporary data (``TBuf<TPosition>``).

    Args:
        position: VECCALC (the usual one), VECIN or VECOUT.
        name: For the texts of errors; C++ has no such thing.
    """

    word = "TBuf"

    def __init__(self, position: TPosition = TPosition.VECCALC, *, name: str | None = None) -> None:
        super().__init__(position, name)

    def Get(self, dtype: DTypeLike, len: int | None = None) -> LocalTensor:
        """Return the memory as a tensor of ``len`` elements; default: all of it.

        C prototypes: ``template <typename T> LocalTensor<T> Get()`` and ``Get(uint32_t len)``
        """
        T = element_type("Get", dtype)
        core, slot = self._bound("Get"), self._slots[0]
        tensor = LocalTensor(core, slot, T, slot.start, slot.size // T.itemsize * T.itemsize)
        if len is not None:
            tensor.SetSize(len)
        return tensor

    def GetWithOffset(self, dtype: DTypeLike, size: int, bufOffset: int) -> LocalTensor:
        """Return ``size`` elements from byte ``bufOffset`` on.

        C prototype: ``template <typename T> LocalTensor<T> GetWithOffset(uint32_t size, uint32_t bufOffset)``

        Raises:
            BoundsFault: They reach past the end ("device": of the Unified Buffer).
        """
        T = element_type("GetWithOffset", dtype)
        core, slot = self._bound("GetWithOffset"), self._slots[0]
        nbytes = size * T.itemsize
        if bufOffset < 0 or bufOffset + nbytes > slot.size:
            fault = BoundsFault(
                f"GetWithOffset: {self.name} has {slot.size} bytes, {size} elements from byte {bufOffset} on reach "
                f"byte {bufOffset + nbytes}"
            )
            if not 0 <= slot.start + bufOffset <= core.ub.size - nbytes:
                raise fault
            core.tolerate(fault)
        return LocalTensor(core, slot, T, slot.start + bufOffset, nbytes)


class TPipe:
    """The owner of a block's Unified Buffer (``TPipe``).

    Inside ``launch`` it manages the running block; elsewhere (a notebook, a test) a core of its own on this thread's
    SoC. What it knows is kept by the core: two pipes of a block are two names for the same.

    Args:
        core: Default: the running block's, else a new one.
    """

    limit = BUFFERS_PER_KERNEL

    def __init__(self, core: Core | None = None) -> None:
        self.core = core or current_core.get() or Core(socs.current().soc)
        self.core.has_pipe = True

    @property
    def ub(self) -> UnifiedBuffer:
        """The Unified Buffer."""
        return self.core.ub

    def _number(self) -> int:
        return sum(a.pool is None for a in self.ub.allocations)

    def InitBuffer(self, que: TQue | TBuf, *sizes: int) -> bool:
        """Reserve memory for a queue, ``InitBuffer(que, num, len)``, or a buffer, ``InitBuffer(buf, len)``.

        C prototypes::

            template <class T> bool InitBuffer(T& que, uint8_t num, uint32_t len)
            template <TPosition bufPos> bool InitBuffer(TBuf<bufPos>& buf, uint32_t len)

        As in CANN, ``len`` is in bytes and is rounded up to 32.

        Returns:
            True.

        Raises:
            CapacityFault: The Unified Buffer, or the number of buffers of a kernel, is used up.
            QueueFault: The queue has memory already, num is below 1, or len below 0 (0 is a remark, using it a fault).
        """
        if len(sizes) != (2 if isinstance(que, TQue) else 1):
            raise QueueFault(f"InitBuffer: expected (que, num, len) or (buf, len), got {len(sizes)} sizes")
        num, length = sizes if len(sizes) == 2 else (1, sizes[0])
        if num < 1 or length < 0:
            raise QueueFault(f"InitBuffer: expected num of at least 1 and len of at least 0, got {num} and {length}")
        if not length:  # decision 10
            self.core.remark(
                f"InitBuffer: {que.name} gets 0 bytes; CANN's CPU build asserts len > 0, a device takes it"
            )
        if que._core is not None:
            raise QueueFault(f"InitBuffer: {que.name} has memory already; Reset comes first")
        if self._number() + num > self.limit:
            whose = "a kernel may have" if self.limit == BUFFERS_PER_KERNEL else "a TBufPool (bufIDSize) may have"
            raise CapacityFault(
                f"InitBuffer: {whose} {self.limit} buffers in all, {que.name} would be number {self._number() + num}"
            )
        queued, slots = isinstance(que, TQue), []
        for index in range(num):
            name, state = (f"buffer {index} of {que.name}", FREE) if queued else (que.name, BUFFER)
            slot = self.ub.allocate(name, que.position, length, state)
            self.ub.forget(slot.start, slot.start + slot.size)
            if not queued:
                self.ub.new_handle(slot)
            slots.append(slot)
        que._core, que._slots = self.core, slots
        self.ub.on_release.append(que.unbind)
        return True

    def Init(self) -> None:
        """Do nothing: a TPipe is ready when it is made. C prototype: ``void Init()``."""

    def Reset(self) -> None:
        """Take all memory back; queues need a new InitBuffer. C prototype: ``void Reset()``.

        Raises:
            LeakFault: A tensor was not freed ("checked").
        """
        self.core.check_leaks()
        self.core.clock.barrier_all()  # it waits for everything before addresses start again at 0
        self.ub.release_all()

    def Destroy(self) -> None:
        """Do what ``Reset`` does. C prototype: ``void Destroy()``."""
        self.Reset()

    def AllocEventID(self, event: HardEvent) -> int:
        """Take a free id of an event.

        C prototype: ``template <HardEvent evt> TEventID AllocEventID()``

        Raises:
            SyncFault: All are taken.
        """
        identity = self.FetchEventID(event)
        self.core.events[event].add(identity)
        return identity

    def ReleaseEventID(self, event: HardEvent, id: int) -> None:
        """Give an id back.

        C prototype: ``template <HardEvent evt> void ReleaseEventID(TEventID id)``

        Raises:
            SyncFault: It was not taken.
        """
        if id not in self.core.events[event]:
            raise SyncFault(f"ReleaseEventID: id {id} of {HardEvent(event).name} was not taken by AllocEventID")
        self.core.events[event].remove(id)

    def FetchEventID(self, event: HardEvent) -> int:
        """Return a free id without taking it.

        C prototype: ``TEventID FetchEventID(HardEvent evt)``

        Raises:
            SyncFault: All are taken.
        """
        limit = self.core.soc.tensors_per_position  # as many as a queue has events
        taken, free = self.core.events[event], 0
        while free in taken:
            free += 1
        if free >= limit:
            raise SyncFault(f"FetchEventID: all {limit} ids of {HardEvent(event).name} are taken")
        return free


class TBufPool(TPipe):
    """A part of the Unified Buffer (``TBufPool<TPosition, bufIDSize>``). Those that share bytes take turns, until a Reset."""

    def __init__(self, core: Core, limit: int) -> None:
        self.core, self.limit = core, min(limit, BUFFERS_PER_POOL)
        self.queues, self.slots, self.ended, self.in_use = list[TQue | TBuf](), list[Allocation](), False, False
        self.start = self.next_free = self.stop = 0
        self.around: tuple[TBufPool, ...] = (self,)  # it, and the pools that it lies in

    def take(self, owner: TPipe, length: int, shared: TPipe) -> None:
        """Take memory of the TPipe or of a pool, or share that of a pool (InitBufPool). CapacityFault: there is less."""
        ub, block = self.ub, self.core.soc.block_bytes
        start, stop = (owner.next_free, owner.stop) if isinstance(owner, TBufPool) else (ub.next_free, ub.size)
        if isinstance(shared, TBufPool):
            start, stop = shared.start, shared.stop
        end = start + -(-length // block) * block
        if end > stop:
            self.core.tolerate(CapacityFault(f"InitBufPool: {length} bytes do not fit, there are {stop - start}"))
        if not isinstance(shared, TBufPool):
            (owner if isinstance(owner, TBufPool) else ub).next_free = stop = end
        self.around = (self, *(owner.around if isinstance(owner, TBufPool) else ()))
        self.start, self.next_free, self.stop, self.ended = start, start, stop, True
        self.ub.on_release.append(self._give_back)

    def _give_back(self) -> None:
        self.start = self.next_free = self.stop = 0

    def _number(self) -> int:
        return len(self.slots)

    def InitBuffer(self, que: TQue | TBuf, *sizes: int) -> bool:
        """Do what TPipe's does, in this pool. CapacityFault: its bytes, or its number of buffers, are used up."""
        if self.ended:  # new buffers take the place of those of before
            self._forget()
        self.ub.next_free, outer = self.next_free, self.ub.next_free
        super().InitBuffer(que, *sizes)
        self.ub.next_free, self.next_free = outer, self.ub.next_free
        self.queues, self.slots = [*self.queues, que], self.slots + que._slots
        for slot in que._slots:
            slot.pool = self
        if (over := self.next_free - self.stop) > 0:
            hint = "" if self.stop else "; InitBufPool comes first, on A2 again after Reset [ErrorBuffer4]"
            self.core.tolerate(CapacityFault(f"InitBuffer: {que.name} ends {over} bytes behind its TBufPool{hint}"))
        return True

    def enter(self, call: str, first: Allocation, last: Allocation) -> None:
        """Use a queue's buffers. QueueFault: a pool that is in use has some of their bytes."""
        for other in self.ub.allocations:
            inside = other.start < last.start + last.size and first.start < other.start + other.size
            if inside and other.pool not in (None, self) and other.pool.in_use:
                self.core.tolerate(QueueFault(f"{call} overlaps {other.name}: Reset of its TBufPool comes first"))
        self.in_use = True
        # Who looks for the owner of a byte finds these.
        self.ub.allocations.sort(key=lambda a: a.pool is None or not a.pool.in_use)

    def Reset(self) -> None:
        """End what is under way, in inner pools too, but wait for its own flags alone: no buffer has a value. LeakFault.

        For new buffers InitBufPool comes first, except on 950.
        """
        within = [a for a in self.ub.allocations if a.pool is not None and self in a.pool.around]
        self.core.check_leaks(within, "TBufPool.Reset")
        for slot in within:
            if slot.pool is self:
                _wait(self.core, slot)
            if slot.state is BUFFER:
                self.ub.new_handle(slot)
            self.ub.forget(slot.start, slot.start + slot.size, "was not written since TBufPool.Reset", self.core.site)
            slot.pool.in_use = False
        self.start, self.stop = (self.start, self.stop) if self.core.soc.regbase else (0, 0)
        self.next_free, self.ended, self.in_use = self.start, True, False

    def Destroy(self) -> None:
        """Reset it, and take its buffers' memory: its C++ object is at the end of its scope."""
        self.Reset()
        self._forget()

    def _forget(self) -> None:
        self.ub.allocations = [a for a in self.ub.allocations if a not in self.slots]
        for old in self.queues:
            old.unbind()
        self.queues, self.slots, self.ended = [], [], False


def _check_position_limit(core: Core, position: TPosition) -> None:
    """Refuse one tensor more than the SoC has events for at a position."""
    limit = core.soc.tensors_per_position
    used = [a for a in core.ub.allocations if a.position is position and a.state not in UNUSED]
    if len(used) >= limit:
        raise QueueFault(
            f"AllocTensor: the queues of {position.value} may have {limit} tensors at a time on "
            f"{core.soc.name}, and {len(used)} are in use"
        )


def GetTPipePtr() -> TPipe:
    """Return the TPipe of the running block. C prototype: ``TPipe* GetTPipePtr()``.

    Raises:
        DeviceFault: The kernel has made none.
    """
    core = running("GetTPipePtr")
    if not core.has_pipe:
        raise DeviceFault("GetTPipePtr: the kernel has made no TPipe yet")
    return TPipe(core)
