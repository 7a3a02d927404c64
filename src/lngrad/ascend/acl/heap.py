"""Device memory: what an address or a host buffer gives access to.

A device address is a number that the host can't dereference, as on a device. Addresses grow and are
never given out twice, so that one kept after aclrtFree can't point into a younger block: use after
free is an error, never a mix-up.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from lngrad.ascend.acl.device import on_release
from lngrad.ascend.acl.refusals import Refused, invalid_param
from lngrad.ascend.acl.status import aclError
from lngrad.core.arrays import address_of, as_numpy
from lngrad.errors import DtypeError
from lngrad.typing import Address, Array, Bytes

FIRST_ADDRESS = 0x12C0_0000_0000
ALIGNMENT = 64  # of a block's start, as documented


class Block:
    """One allocation. ``memory`` outlives aclrtFree for as long as an array looks at it; ``alive``
    does not.
    """

    __slots__ = ("address", "alive", "memory", "reserved")

    def __init__(self, address: Address, memory: Bytes, reserved: int):
        self.address, self.memory, self.reserved, self.alive = address, memory, reserved, True


class Region(NamedTuple):
    """The bytes from an address, or a buffer's start, to its end; and the block if they are the
    device's.
    """

    memory: Bytes
    block: Block | None


class Heap:
    """All blocks of the device, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[Address] = []
        self._blocks: dict[Address, Block] = {}
        self._next = FIRST_ADDRESS
        self.allocated = 0

    def allocate(self, size: int, reserved: int) -> Address:
        """Make a block of `size` bytes that takes the place of `reserved` bytes.

        Raises:
            MemoryError, ValueError, OverflowError: NumPy can't allocate as many.
        """
        memory = aligned_bytes(size)
        with self._lock:
            address = self._next
            self._next += -(-reserved // ALIGNMENT) * ALIGNMENT
            self._starts.append(address)  # addresses grow, so the list stays sorted
            self._blocks[address] = Block(address, memory, reserved)
            self.allocated += reserved
        return address

    def free(self, address: Address) -> bool:
        """Free a block. Returns whether there was one."""
        with self._lock:
            block = self._blocks.pop(address, None)
            if block is None:
                return False
            block.alive = False
            self.allocated -= block.reserved
            del self._starts[bisect_right(self._starts, address) - 1]
        return True

    def find(self, address: Address) -> Block | None:
        """The block that an address lies in."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            block = self._blocks[self._starts[at]]
        return block if address < block.address + block.memory.nbytes else None

    def blocks(self) -> list[Block]:
        """All blocks, by address."""
        with self._lock:
            return [self._blocks[start] for start in self._starts]

    def clear(self) -> None:
        """Free all blocks."""
        with self._lock:
            for block in self._blocks.values():
                block.alive = False
            self._blocks.clear()
            self._starts.clear()
            self.allocated = 0


heap = Heap()
on_release("memory", heap.clear)


def aligned_bytes(size: int, alignment: int = ALIGNMENT) -> Bytes:
    """Uninitialised bytes whose first lies at a multiple of `alignment`."""
    memory = np.empty(size + alignment, np.uint8)
    start = -address_of(memory) % alignment
    return memory[start : start + size]


def region_of(name: str, data: object) -> Region:
    """The memory behind a device address or a host buffer.

    Args:
        name: The argument's name, for the text.
        data: An int is an address. Buffers: NumPy, torch on the CPU, anything with the buffer
            protocol.

    Raises:
        Refused: The address lies in no block, or the object is no contiguous buffer;
            ACL_ERROR_INVALID_PARAM.
    """
    if type(data) is int:
        block = heap.find(data)
        if block is None:
            raise invalid_param(f"{name}: expected an address inside device memory from aclrtMalloc, got {data:#x}")
        return Region(block.memory[data - block.address :], block)
    array = data if type(data) is np.ndarray else _host_array(name, data)
    if array.dtype.hasobject:
        raise invalid_param(f"{name}: expected a buffer of numbers, got one of Python objects")
    if not array.flags.c_contiguous:
        raise invalid_param(
            f"{name}: expected a contiguous buffer, got strides {array.strides} for shape {array.shape}"
        )
    return Region(array.reshape(-1).view(np.uint8), None)


def _host_array(name: str, data: object) -> Array:
    """Another object's memory as a NumPy array."""
    try:
        if hasattr(data, "data_ptr"):
            return as_numpy(data)
        return np.frombuffer(data, np.uint8)  # type: ignore[call-overload,no-any-return]  # or TypeError
    except (AttributeError, BufferError, DtypeError, LookupError, RuntimeError, TypeError, ValueError) as reason:
        kind = type(data).__name__
        raise invalid_param(
            f"{name}: expected a device address or a contiguous host buffer, got {kind}: {reason}"
        ) from None


def require_allocated(function: str, blocks: Iterable[Block]) -> None:
    """Check, when a task runs at last, that the memory it was submitted with is still there.

    Raises:
        Refused: With ACL_ERROR_RT_FAILURE.
    """
    if not all(block.alive for block in blocks):
        raise Refused(
            aclError.ACL_ERROR_RT_FAILURE, f"{function}: device memory that it uses was freed before the stream ran"
        )
