"""One block of a compiled kernel: what its numbers stand for in the simulator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from lngrad.support.addresses import address_of
from lngrad.typing import Address, Dtype
from lngrad_ascend.device.core import Core
from lngrad_ascend.device.global_memory import GlobalRegion
from lngrad_ascend.device.global_tensor import GlobalTensor
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.numerics import DTYPES
from lngrad_ascend.device.queues import TBuf, TBufPool, TQue
from lngrad_ascend.device.unified_buffer import Allocation, State, TPosition
from lngrad_ascend.device.vector_function import VectorFunctions
from lngrad_ascend.faults import BoundsFault, DeviceFault, QueueFault

O = TypeVar("O", TQue, TBuf, TBufPool)
# CANN's numbers of the positions that a vector core has; the others are the cube's.
_POSITIONS = {9: TPosition.VECIN, 10: TPosition.VECOUT, 11: TPosition.VECCALC}


class Session:
    """The pipes, queues and tensors of one block, by the numbers that its C++ objects keep.

    Args:
        core: The core that runs the block.
        code: An address in the kernel's program or library.

    Attributes:
        error: What the simulator raised last. The kernel's stack is unwound before it goes on.
        tilings: Bytes of the tiling by the host's address, for kernels that Python launches.
        call: The call that runs (``KernelCall``), or None before the first.
        ub_address: Of the Unified Buffer's first byte, on the host.
        vectors: The block's vector functions.
    """

    def __init__(self, core: Core, code: Address) -> None:
        self.core, self.code = core, code
        self.error: BaseException | None = None
        self.tilings: dict[int, int] = {}
        self.call: Any = None
        self._owners: list[TQue | TBuf | TBufPool] = []
        self.ub_address = address_of(core.ub.data)
        self.vectors = VectorFunctions(core)

    def new_owner(self, owner: TQue | TBuf | TBufPool) -> int:
        """Keep a queue or a buffer that InitBuffer has given memory, or a TBufPool."""
        self._owners.append(owner)
        return len(self._owners) - 1

    def owner(self, api: str, kind: type[O], number: int) -> O:
        """The queue, the buffer or the pool of a number.

        Raises:
            QueueFault: InitBuffer has not given it memory.
        """
        owner = self._owners[number] if number >= 0 else None
        if not isinstance(owner, kind):
            name = "queue" if kind is TQue else "TBuf"
            raise QueueFault(f"{api}: the {name} has no memory; TPipe.InitBuffer comes first [ErrorBuffer0]")
        return owner

    def local(self, api: str, operand: tuple[int, ...]) -> LocalTensor:
        """The tensor of an operand: (handle, type, first byte, bytes).

        Raises:
            DeviceFault: No queue or buffer has handed it out.
        """
        handle, code, start, nbytes = operand
        handles = self.core.ub.handles
        if not 0 <= handle < len(handles):
            raise DeviceFault(f"{api}: the tensor was not handed out by a queue or a TBuf [ErrorBuffer3]")
        tensor = LocalTensor.__new__(LocalTensor)
        tensor.core, tensor.allocation, tensor.handle = self.core, handles[handle], handle
        tensor.dtype, tensor.code, tensor.start, tensor.end = DTYPES[code], code, start, start + nbytes
        return tensor

    def remote(self, api: str, address: int, size: int, code: int) -> GlobalTensor:
        """The global tensor that begins at an address; ``size`` in elements, -1 to the end of its memory.

        Raises:
            DeviceFault: The address lies in no memory of the launch.
        """
        dtype = DTYPES[code & 255]
        region = self._region(api, address, 0, max(0, size) * dtype.itemsize)
        start, stop = address - region.start, region.data.size
        if size >= 0 and self.core.checked:  # the hardware does not know the size that SetGlobalBuffer was given
            stop = min(stop, start + size * dtype.itemsize)
        return GlobalTensor.at(region, start, stop, dtype, code > 255)

    def _region(self, api: str, address: int, nbytes: int, size: int = 0) -> GlobalRegion:
        if self.core.regions is None:
            raise DeviceFault(f"{api}: the core has no global memory")
        return self.core.regions.find(api, address, nbytes, self.code, size)

    def read_global(self, target: int, address: int, size: int) -> None:
        """Copy bytes of global memory, or of the tiling that `launch` has passed, to the kernel's own variables.

        Raises:
            DeviceFault: The address lies in no memory of the launch.
        """
        if address in self.tilings:
            if size > self.tilings[address]:
                raise BoundsFault(f"CopyTiling: the tiling has {self.tilings[address]} bytes, the struct has {size}")
            ctypes.memmove(target, address, size)
            return
        region = self._region("CopyTiling", address, size)
        first = address - region.start
        ctypes.memmove(target, region.data[first : first + size].tobytes(), size)

    def tensor_at(self, address: int, dtype: Dtype) -> LocalTensor:
        """The rest of the buffer that contains a host's address in the Unified Buffer; 0: Compare's register."""
        start, ub = address - self.ub_address, self.core.ub
        if not address:
            return LocalTensor(self.core, ub.compared, dtype, ub.compared.start, ub.compared.size)
        nothing = Allocation("nothing", TPosition.VECCALC, start, 0, State.FREE)
        piece = next((a for a in ub.allocations if a.start <= start < a.start + a.size), nothing)
        return LocalTensor(self.core, piece, dtype, start, piece.start + piece.size - start)


current_session: ContextVar[Session | None] = ContextVar("current_session", default=None)


def run_block(session: Session, name: str, call: Callable[[], int], exception: Callable[[], str]) -> None:
    """Run native code whose Ascend C calls go to this session.

    Args:
        session: Of the block.
        name: Of the kernel, for the text.
        call: Runs the code. 1: a fault has unwound its stack; 2: an exception of its own.
        exception: What is told of a C++ exception of its own.

    Raises:
        DeviceFault: The kernel broke a rule, or ended with a C++ exception of its own.
        KeyboardInterrupt: A program's call was interrupted on the way.
    """

    def inside() -> int:
        current_session.set(session)
        return call()

    failed = copy_context().run(inside)  # no interrupt leaves the session behind
    if session.error is not None:
        raise session.error
    if failed == 1:
        raise KeyboardInterrupt(f"{name} was interrupted")
    if failed:
        raise DeviceFault(f"{name}: {exception()}")


def position_of(api: str, number: int, gm: bool = False) -> TPosition:
    """The position of CANN's number; ``gm``: it may be global memory.

    Raises:
        DeviceFault: It is not one of a vector core.
    """
    if gm and number == 0:
        return TPosition.GM
    if number not in _POSITIONS:
        names = ", ".join(f"{position.value} ({code})" for code, position in _POSITIONS.items())
        raise DeviceFault(f"{api}: expected a position of the vector core, {names}, got {number}")
    return _POSITIONS[number]
