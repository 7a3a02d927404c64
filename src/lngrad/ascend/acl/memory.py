"""Device memory: allocating, copying, and telling what an address or a host buffer gives access to.

A device address is a number that the host can't dereference, as on a device. Addresses grow and are never handed out
twice, so that one kept after aclrtFree can't point into a younger block: use after free is an error, never a mix-up.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from lngrad.arrays import address_of, as_numpy
from lngrad.ascend.acl.codes import aclError, aclrtMemcpyKind, aclrtMemMallocPolicy
from lngrad.ascend.acl.device import on_release, require_device
from lngrad.ascend.acl.errors import Refused, report
from lngrad.errors import DtypeError

__all__ = ["Block", "Region", "aclrtFree", "aclrtMalloc", "aclrtMemcpy", "region_of"]

FIRST_ADDRESS = 0x12C0_0000_0000
ALIGNMENT = 64  # of a block's start, as documented
TAIL_BYTES = 32  # a block is rounded up to 32 bytes and has 32 more, as documented

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Block:
    """One allocation. ``memory`` outlives aclrtFree for as long as an array looks at it; ``alive`` does not."""

    __slots__ = ("address", "alive", "memory")

    def __init__(self, address: int, memory: Bytes):
        self.address, self.memory, self.alive = address, memory, True


class Region(NamedTuple):
    """The bytes from an address or a buffer's start to its end, and the block if they are the device's."""

    memory: Bytes
    block: Block | None


class _Heap:
    """All blocks of the device, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._blocks: dict[int, Block] = {}
        self._next = FIRST_ADDRESS

    def allocate(self, size: int) -> int:
        whole = -(-size // 32) * 32 + TAIL_BYTES
        memory = np.empty(whole + ALIGNMENT, np.uint8)
        start = -address_of(memory) % ALIGNMENT
        with self._lock:
            address = self._next
            self._next += -(-whole // ALIGNMENT) * ALIGNMENT
            self._starts.append(address)  # addresses grow, so the list stays sorted
            self._blocks[address] = Block(address, memory[start : start + size])
        return address

    def free(self, address: int) -> bool:
        with self._lock:
            block = self._blocks.pop(address, None)
            if block is None:
                return False
            block.alive = False
            del self._starts[bisect_right(self._starts, address) - 1]
        return True

    def find(self, address: int) -> Block | None:
        """The block that an address lies in."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            block = self._blocks[self._starts[at]]
        return block if address < block.address + block.memory.nbytes else None

    def clear(self) -> None:
        with self._lock:
            for block in self._blocks.values():
                block.alive = False
            self._blocks.clear()
            self._starts.clear()


_heap = _Heap()
on_release("memory", _heap.clear)


def region_of(name: str, data: Any) -> Region:
    """The memory behind a device address (an int), or a host buffer: NumPy, torch on the CPU, the buffer protocol.

    Raises:
        Refused: with ACL_ERROR_INVALID_PARAM; the address is in no living block, or the object no contiguous buffer.
    """
    if type(data) is int:
        block = _heap.find(data)
        if block is None:
            raise _invalid(f"{name}: expected an address inside device memory from aclrtMalloc, got {data:#x}")
        return Region(block.memory[data - block.address :], block)
    if type(data) is not np.ndarray:
        data = _host_array(name, data)
    if data.dtype.hasobject:
        raise _invalid(f"{name}: expected a buffer of numbers, got one of Python objects")
    if not data.flags.c_contiguous:
        raise _invalid(f"{name}: expected a contiguous buffer, got strides {data.strides} for shape {data.shape}")
    return Region(data.reshape(-1).view(np.uint8), None)


def _host_array(name: str, data: Any) -> np.ndarray[Any, Any]:
    """Another object's memory as a NumPy array."""
    try:
        if hasattr(data, "data_ptr"):
            return as_numpy(data)
        return np.frombuffer(data, np.uint8)
    except (AttributeError, BufferError, DtypeError, LookupError, RuntimeError, TypeError, ValueError) as reason:
        kind = type(data).__name__
        raise _invalid(f"{name}: expected a device address or a contiguous host buffer, got {kind}: {reason}") from None


def aclrtMalloc(size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST) -> tuple[int | None, aclError]:
    """Allocate uninitialised device memory, aligned to 64 bytes. Returns (address, ret).

    C: ``aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)``
    """
    try:
        require_device("aclrtMalloc")
        if not _is_size(size) or size == 0:
            raise _invalid(f"size: expected at least 1 byte, got {size!r}")
        if not _is_member(policy, aclrtMemMallocPolicy):
            raise _invalid(f"policy: expected 0 to 2, got {policy!r}")
        return _heap.allocate(size), aclError.ACL_SUCCESS
    except Refused as refusal:
        return None, report(aclError(refusal.code), refusal.text)
    except (MemoryError, ValueError, OverflowError):  # NumPy has ValueError for more bytes than an address can count
        return None, report(aclError.ACL_ERROR_BAD_ALLOC, f"size: {size} bytes can't be allocated")


def aclrtFree(devPtr: int) -> aclError:
    """Free what aclrtMalloc returned.

    C: ``aclError aclrtFree(void *devPtr)``
    """
    try:
        require_device("aclrtFree")
    except Refused as refusal:
        return report(aclError(refusal.code), refusal.text)
    if type(devPtr) is not int or not _heap.free(devPtr):
        at = f"{devPtr:#x}" if type(devPtr) is int else repr(devPtr)
        return report(
            aclError.ACL_ERROR_INVALID_PARAM, f"devPtr: expected an address from aclrtMalloc, not yet freed, got {at}"
        )
    return aclError.ACL_SUCCESS


def aclrtMemcpy(dst: Any, destMax: int, src: Any, count: int, kind: int) -> aclError:
    """Copy bytes now, whatever waits in the streams.

    A device side is an address, a host side a buffer: NumPy, torch, bytearray, bytes as a source.

    C: ``aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)``.
    CANN: destMax is trusted; here it is compared with the memory too.
    """
    try:
        require_device("aclrtMemcpy")
        target, source = _sides(dst, destMax, src, count, kind)
    except Refused as refusal:
        return report(aclError(refusal.code), refusal.text)
    target[:count] = source[:count]
    return aclError.ACL_SUCCESS


def _sides(dst: Any, destMax: int, src: Any, count: int, kind: int) -> tuple[Bytes, Bytes]:
    """The checked memory of both sides of a copy."""
    if not _is_member(kind, aclrtMemcpyKind):
        raise _invalid(f"kind: expected 0 to 3, got {kind!r}")
    if not _is_size(count) or not _is_size(destMax):
        raise _invalid(f"count, destMax: expected numbers of bytes, got {count!r} and {destMax!r}")
    if count > destMax:
        raise _invalid(f"count: expected at most destMax, {destMax} bytes, got {count}")
    regions = []
    for name, side, on_device in (("dst", dst, kind in (1, 3)), ("src", src, kind in (2, 3))):
        region = region_of(name, side)
        if (region.block is not None) != on_device:
            wanted, got = ("device", "host") if on_device else ("host", "device")
            raise _invalid(f"{name}: expected {wanted} memory for {aclrtMemcpyKind(kind).name}, got {got} memory")
        regions.append(region.memory)
    for name, number, region_bytes in (("destMax", destMax, regions[0].nbytes), ("count", count, regions[1].nbytes)):
        if number > region_bytes:
            side = "dst" if name == "destMax" else "src"
            raise _invalid(f"{name}: expected at most the {region_bytes} bytes that {side} has, got {number}")
    if not regions[0].flags.writeable:
        raise _invalid("dst: expected writable memory, got a read-only buffer")
    return regions[0], regions[1]


def _is_member(number: object, kind: type[IntEnum]) -> bool:
    return isinstance(number, int) and number in list(kind)


def _is_size(number: object) -> bool:
    return type(number) is int and number >= 0


def _invalid(text: str) -> Refused:
    return Refused(aclError.ACL_ERROR_INVALID_PARAM, text)
