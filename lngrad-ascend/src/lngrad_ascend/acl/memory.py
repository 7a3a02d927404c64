"""Device memory and host memory: what an address or a buffer gives access to; copying and filling, now or on a stream.

A device address is a number that the host can't dereference, as on a device. Addresses grow and are never given out
twice, so that one kept after aclrtFree can't point into a younger block: use after free is an error, never a
mix-up.
"""

from __future__ import annotations

import os
from bisect import bisect_right, insort
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from lngrad.support.addresses import address_of, as_numpy
from lngrad.support.locks import fork_safe_lock
from lngrad.typing import Address, Array, Bytes
from lngrad_ascend import soc
from lngrad_ascend.acl.device import on_release, require_device
from lngrad_ascend.acl.enums import aclError, aclrtMemAttr, aclrtMemcpyKind, aclrtMemMallocPolicy
from lngrad_ascend.acl.interface import StatusError, invalid_param, report, returns_aclError, returns_value
from lngrad_ascend.acl.streams import aclrtStream, submit

FIRST_ADDRESS = 0x12C0_0000_0000
ALIGNMENT = 64  # of a block's start, as documented


@dataclass(eq=False, slots=True)
class Block:
    """One allocation. ``memory`` outlives aclrtFree for as long as an array looks at it; ``alive`` does not."""

    address: Address
    memory: Bytes
    reserved: int
    alive: bool = True


class Region(NamedTuple):
    """The bytes from an address, or a buffer's start, to its end; and the block if they are the device's."""

    memory: Bytes
    block: Block | None


class Heap:
    """All blocks of the device, by address."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._starts: list[Address] = []
        self._blocks: dict[Address, Block] = {}
        self._next = FIRST_ADDRESS
        self.allocated = 0

    def allocate(self, size: int, reserved: int) -> Address:
        """Make a block of `size` bytes that takes the place of `reserved` bytes. Raises as aligned_bytes."""
        memory = aligned_bytes(size)
        step = -(-reserved // ALIGNMENT) * ALIGNMENT
        with self._lock:  # but a finalizer or a signal handler may come in between: each step leaves the blocks whole
            address, self._next = self._next, self._next + step
            self._blocks[address] = Block(address, memory, reserved)
            insort(self._starts, address)
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
        """Return the block that an address lies in."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            block = self._blocks.get(self._starts[at])
        return block if block is not None and address < block.address + block.memory.nbytes else None

    def blocks(self) -> list[Block]:
        """Return all blocks, by address."""
        with self._lock:
            return [self._blocks[address] for address in sorted(self._blocks)]

    def clear(self) -> None:
        """Free all blocks."""
        with self._lock:
            for block in list(self._blocks.values()):
                block.alive = False
            self._blocks.clear()
            self._starts.clear()
            self.allocated = 0


heap = Heap()
on_release("memory", heap.clear)


def aligned_bytes(size: int, alignment: int = ALIGNMENT) -> Bytes:
    """Uninitialised bytes whose first lies at a multiple of `alignment`. Raises StatusError with ACL_ERROR_BAD_ALLOC."""
    try:
        memory = np.empty(size + alignment, np.uint8)
    except (MemoryError, ValueError, OverflowError):  # NumPy has ValueError for more bytes than an address can count
        raise StatusError(aclError.ACL_ERROR_BAD_ALLOC, f"size: {size} bytes can't be allocated") from None
    start = -address_of(memory) % alignment
    return memory[start : start + size]


def region_of(name: str, data: object) -> Region:
    """The memory behind a device address, which is an int, or a contiguous host buffer, or ACL_ERROR_INVALID_PARAM raised."""
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
    except Exception as reason:
        kind = type(data).__name__
        raise invalid_param(
            f"{name}: expected a device address or a contiguous host buffer, got {kind}: {reason}"
        ) from None


ALLOCATED = attrgetter("alive")  # of a block


def freed(function: str) -> StatusError:
    """Return the error of a task whose memory was freed before it ran."""
    text = f"{function}: device memory that it uses was freed before the stream ran"
    return StatusError(aclError.ACL_ERROR_RT_FAILURE, text)


UNIT_BYTES = 32  # a size is rounded up to a multiple of it
TAIL_BYTES = 32  # and has as many more, except on Ascend 950
FLAGS = (
    aclrtMemMallocPolicy.ACL_MEM_TYPE_LOW_BAND_WIDTH
    | aclrtMemMallocPolicy.ACL_MEM_TYPE_HIGH_BAND_WIDTH
    | aclrtMemMallocPolicy.ACL_MEM_ACCESS_USER_SPACE_READONLY
)


@returns_value(aclError, None)
def aclrtMalloc(size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST) -> Address:
    """Allocate uninitialised device memory, aligned to 64 bytes. Returns (address, ret).

    The size is rounded up to a multiple of 32 bytes; all SoCs but Ascend 950 add 32 more. What lies past `size` is
    reserved and can't be used: an access there is refused.

    Args:
        size: In bytes, at least 1.
        policy: Of aclrtMemMallocPolicy; all memory is the same here.
    """
    return _allocate("aclrtMalloc", size, policy, not soc.current().soc.regbase)


@returns_value(aclError, None)
def aclrtMallocAlign32(size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST) -> Address:
    """Allocate as aclrtMalloc does, without the 32 bytes more. Returns (address, ret)."""
    return _allocate("aclrtMallocAlign32", size, policy, False)


@returns_value(aclError, None)
def aclrtMallocCached(size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST) -> Address:
    """Allocate as aclrtMalloc does. CANN: in memory that the device's CPU caches. Returns (address, ret)."""
    return _allocate("aclrtMallocCached", size, policy, not soc.current().soc.regbase)


def _allocate(function: str, size: object, policy: object, has_tail: bool) -> Address:
    require_device(function)
    if not isinstance(policy, int) or policy < 0 or policy & ~FLAGS not in list(aclrtMemMallocPolicy):
        raise invalid_param(f"policy: expected one of aclrtMemMallocPolicy, got {policy!r}")
    number = _checked_size(size)
    return heap.allocate(number, -(-number // UNIT_BYTES) * UNIT_BYTES + TAIL_BYTES * has_tail)


@returns_aclError
def aclrtFree(devPtr: Address) -> None:
    """Free what aclrtMalloc returned."""
    require_device("aclrtFree")
    if type(devPtr) is not int or not heap.free(devPtr):
        got = f"{devPtr:#x}" if type(devPtr) is int else repr(devPtr)
        raise invalid_param(f"devPtr: expected an address from aclrtMalloc, not yet freed, got {got}")


_host: dict[Address, Bytes] = {}  # from aclrtMallocHost, until aclrtFreeHost


@returns_value(aclError, None)
def aclrtMallocHost(size: int) -> Bytes:
    """Allocate uninitialised host memory, aligned to 64 bytes. Returns (buffer, ret).

    CANN: pinned memory, for faster copies.
    """
    require_device("aclrtMallocHost")
    memory = aligned_bytes(_checked_size(size))
    _host[address_of(memory)] = memory
    return memory


@returns_aclError
def aclrtFreeHost(hostPtr: Bytes | Address) -> None:
    """Free what aclrtMallocHost returned. An array that still looks at it stays valid.

    hostPtr is the buffer, or its address.
    """
    address = hostPtr if type(hostPtr) is int else getattr(getattr(hostPtr, "ctypes", None), "data", None)
    if _host.pop(address, None) is None:  # type: ignore[arg-type]  # None is no key
        raise invalid_param(
            f"hostPtr: expected memory from aclrtMallocHost, not yet freed, got {type(hostPtr).__name__}"
        )


def aclrtGetMemInfo(attr: int) -> tuple[int, int, aclError]:
    """Return (free, total, ret) in bytes. The device's memory is the host's, and so is total.

    Args:
        attr: Of aclrtMemAttr; all memory is the same here.
    """
    try:
        require_device("aclrtGetMemInfo")
        if not isinstance(attr, int) or attr not in list(aclrtMemAttr):
            raise invalid_param(f"attr: expected one of aclrtMemAttr, got {attr!r}")
    except StatusError as error:
        return 0, 0, report(error, aclError)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(total - heap.allocated, 0), total, aclError.ACL_SUCCESS


def _checked_size(size: object) -> int:
    if type(size) is not int or size < 1:
        raise invalid_param(f"size: expected at least 1 byte, got {size!r}")
    return size


@returns_aclError
def aclrtMemcpy(dst: object, destMax: int, src: object, count: int, kind: int) -> None:
    """Copy bytes now, whatever waits in the streams.

    Args:
        dst, src: The device's side is an address, the host's a buffer: NumPy, torch, bytearray; bytes as a source.
        destMax: Bytes that dst has room for. CANN: trusted; here it is compared with the memory too.
        count: Bytes to copy.
        kind: Of aclrtMemcpyKind.
    """
    target, source = _sides("aclrtMemcpy", dst, destMax, src, count, kind)
    target.memory[:count] = source.memory[:count]


@returns_aclError
def aclrtMemcpyAsync(dst: object, destMax: int, src: object, count: int, kind: int, stream: aclrtStream | None) -> None:
    """Copy bytes on a stream, after what was submitted before. Arguments as for aclrtMemcpy."""
    target, source = _sides("aclrtMemcpyAsync", dst, destMax, src, count, kind)
    _write_later("aclrtMemcpyAsync", stream, target.memory[:count], source.memory[:count], target, source)


@returns_aclError
def aclrtMemset(devPtr: object, maxCount: int, value: int, count: int) -> None:
    """Fill bytes now.

    Args:
        devPtr: A device address, or a writable host buffer.
        maxCount: Bytes that devPtr has room for.
        value: Its lowest 8 bits.
        count: Bytes to fill.
    """
    region, byte = _filled_region("aclrtMemset", devPtr, maxCount, value, count)
    region.memory[:count] = byte


@returns_aclError
def aclrtMemsetAsync(devPtr: object, maxCount: int, value: int, count: int, stream: aclrtStream | None) -> None:
    """Fill bytes on a stream, after what was submitted before. Arguments as for aclrtMemset."""
    region, byte = _filled_region("aclrtMemsetAsync", devPtr, maxCount, value, count)
    _write_later("aclrtMemsetAsync", stream, region.memory[:count], byte, region)


def _write_later(function: str, stream: object, target: Bytes, value: Bytes | int, *regions: Region) -> None:
    blocks = [region.block for region in regions if region.block is not None]

    def task() -> None:
        if not all(map(ALLOCATED, blocks)):
            raise freed(function)
        target[...] = value

    submit(stream, task)


def _sides(function: str, dst: object, destMax: int, src: object, count: int, kind: object) -> tuple[Region, Region]:
    """The checked memory of both sides of a copy."""
    require_device(function)
    if not isinstance(kind, int) or kind not in list(aclrtMemcpyKind):
        raise invalid_param(f"kind: expected 0 to {max(aclrtMemcpyKind)}, got {kind!r}")
    _check_count("destMax", destMax, count)
    words = aclrtMemcpyKind(kind).name.split("_TO_")  # the last is where dst lies, the first where src does
    regions = []
    for name, side, place in (("dst", dst, words[-1]), ("src", src, words[0])):
        region = region_of(name, side)
        on_device = place.endswith("DEVICE")
        if kind != aclrtMemcpyKind.ACL_MEMCPY_DEFAULT and (region.block is not None) != on_device:
            wanted, got = ("device", "host") if on_device else ("host", "device")
            raise invalid_param(f"{name}: expected {wanted} memory for {aclrtMemcpyKind(kind).name}, got {got} memory")
        regions.append(region)
    target, source = regions
    _check_room("destMax", destMax, "dst", target)
    _check_room("count", count, "src", source)
    _check_writable("dst", target)
    return target, source


def _filled_region(function: str, devPtr: object, maxCount: int, value: object, count: int) -> tuple[Region, int]:
    require_device(function)
    _check_count("maxCount", maxCount, count)
    if not isinstance(value, int):
        raise invalid_param(f"value: expected an integer, got {value!r}")
    region = region_of("devPtr", devPtr)
    _check_room("maxCount", maxCount, "devPtr", region)
    _check_writable("devPtr", region)
    return region, value & 0xFF


def _check_count(limit_name: str, limit: int, count: int) -> None:
    if type(count) is not int or type(limit) is not int or count < 0 or limit < 0:
        raise invalid_param(f"count, {limit_name}: expected numbers of bytes, got {count!r} and {limit!r}")
    if count > limit:
        raise invalid_param(f"count: expected at most {limit_name}, {limit} bytes, got {count}")


def _check_room(name: str, number: int, side: str, region: Region) -> None:
    if number > region.memory.nbytes:
        raise invalid_param(f"{name}: expected at most the {region.memory.nbytes} bytes that {side} has, got {number}")


def _check_writable(name: str, region: Region) -> None:
    if not region.memory.flags.writeable:
        raise invalid_param(f"{name}: expected writable memory, got a read-only buffer")
