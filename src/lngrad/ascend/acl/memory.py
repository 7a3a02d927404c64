"""Allocating and freeing: device memory, and host memory that streams may copy from."""

from __future__ import annotations

import os

from lngrad.ascend import soc
from lngrad.ascend.acl.device import require_device
from lngrad.ascend.acl.enums import aclrtMemAttr, aclrtMemMallocPolicy
from lngrad.ascend.acl.heap import aligned_bytes, heap
from lngrad.ascend.acl.refusals import Refused, invalid_param, report, returns_status, returns_value
from lngrad.ascend.acl.status import aclError
from lngrad.core.arrays import address_of
from lngrad.typing import Address, Bytes

UNIT_BYTES = 32  # a size is rounded up to a multiple of it
TAIL_BYTES = 32  # and has as many more, except on Ascend 950
FLAGS = (
    aclrtMemMallocPolicy.ACL_MEM_TYPE_LOW_BAND_WIDTH
    | aclrtMemMallocPolicy.ACL_MEM_TYPE_HIGH_BAND_WIDTH
    | aclrtMemMallocPolicy.ACL_MEM_ACCESS_USER_SPACE_READONLY
)


@returns_value(aclError, otherwise=None)
def aclrtMalloc(size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST) -> Address:
    """Allocate uninitialised device memory, aligned to 64 bytes. Returns (address, ret).

    The size is rounded up to a multiple of 32 bytes; all SoCs but Ascend 950 add 32 more. What lies
    past `size` is reserved and can't be used: an access there is refused.

    Args:
        size: In bytes, at least 1.
        policy: Of aclrtMemMallocPolicy; all memory is the same here.

    C: ``aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)``
    """
    return _allocate("aclrtMalloc", size, policy, 0 if soc.current().soc.regbase else TAIL_BYTES)


@returns_value(aclError, otherwise=None)
def aclrtMallocAlign32(size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST) -> Address:
    """Allocate as aclrtMalloc does, without the 32 bytes more. Returns (address, ret).

    C: ``aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy)``
    """
    return _allocate("aclrtMallocAlign32", size, policy, 0)


@returns_value(aclError, otherwise=None)
def aclrtMallocCached(size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST) -> Address:
    """Allocate as aclrtMalloc does. CANN: in memory that the device's CPU caches. Returns (address,
    ret).

    C: ``aclError aclrtMallocCached(void **devPtr, size_t size, aclrtMemMallocPolicy policy)``
    """
    return _allocate("aclrtMallocCached", size, policy, 0 if soc.current().soc.regbase else TAIL_BYTES)


def _allocate(function: str, size: object, policy: object, tail: int) -> Address:
    require_device(function)
    if not isinstance(policy, int) or policy < 0 or policy & ~FLAGS not in list(aclrtMemMallocPolicy):
        raise invalid_param(f"policy: expected one of aclrtMemMallocPolicy, got {policy!r}")
    number = _checked_size(size)
    try:
        return heap.allocate(number, -(-number // UNIT_BYTES) * UNIT_BYTES + tail)
    except (MemoryError, ValueError, OverflowError):  # NumPy has ValueError for more bytes than an address can count
        raise _no_memory(number) from None


@returns_status(aclError)
def aclrtFree(devPtr: Address) -> None:
    """Free what aclrtMalloc returned.

    C: ``aclError aclrtFree(void *devPtr)``
    """
    require_device("aclrtFree")
    if type(devPtr) is not int or not heap.free(devPtr):
        got = f"{devPtr:#x}" if type(devPtr) is int else repr(devPtr)
        raise invalid_param(f"devPtr: expected an address from aclrtMalloc, not yet freed, got {got}")


_host: dict[Address, Bytes] = {}  # from aclrtMallocHost, until aclrtFreeHost


@returns_value(aclError, otherwise=None)
def aclrtMallocHost(size: int) -> Bytes:
    """Allocate uninitialised host memory, aligned to 64 bytes. Returns (buffer, ret).

    C: ``aclError aclrtMallocHost(void **hostPtr, size_t size)``. CANN: pinned memory, for faster
    copies.
    """
    require_device("aclrtMallocHost")
    number = _checked_size(size)
    try:
        memory = aligned_bytes(number)
    except (MemoryError, ValueError, OverflowError):
        raise _no_memory(number) from None
    _host[address_of(memory)] = memory
    return memory


@returns_status(aclError)
def aclrtFreeHost(hostPtr: Bytes | Address) -> None:
    """Free what aclrtMallocHost returned. An array that still looks at it stays valid.

    Args:
        hostPtr: The buffer, or its address.

    C: ``aclError aclrtFreeHost(void *hostPtr)``
    """
    address = hostPtr if type(hostPtr) is int else getattr(getattr(hostPtr, "ctypes", None), "data", None)
    if _host.pop(address, None) is None:  # type: ignore[arg-type]  # None is no key
        raise invalid_param(
            f"hostPtr: expected memory from aclrtMallocHost, not yet freed, got {type(hostPtr).__name__}"
        )


def aclrtGetMemInfo(attr: int) -> tuple[int, int, aclError]:
    """Return (free, total, ret) in bytes. The device's memory is the host's, so total is that of
    the host.

    Args:
        attr: Of aclrtMemAttr; all memory is the same here.

    C: ``aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total)``
    """
    try:
        require_device("aclrtGetMemInfo")
        if not isinstance(attr, int) or attr not in list(aclrtMemAttr):
            raise invalid_param(f"attr: expected one of aclrtMemAttr, got {attr!r}")
    except Refused as refusal:
        return 0, 0, report(refusal, aclError)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(total - heap.allocated, 0), total, aclError.ACL_SUCCESS


def _checked_size(size: object) -> int:
    if type(size) is not int or size < 1:
        raise invalid_param(f"size: expected at least 1 byte, got {size!r}")
    return size


def _no_memory(size: int) -> Refused:
    return Refused(aclError.ACL_ERROR_BAD_ALLOC, f"size: {size} bytes can't be allocated")
