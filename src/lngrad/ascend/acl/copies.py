"""Copying and filling memory: now, or on a stream."""

from __future__ import annotations

from lngrad.ascend.acl.device import require_device
from lngrad.ascend.acl.enums import aclError, aclrtMemcpyKind
from lngrad.ascend.acl.interface import invalid_param, returns_status
from lngrad.ascend.acl.memory import Region, region_of, require_allocated
from lngrad.ascend.acl.streams import aclrtStream, submit

# Whether the destination and the source are the device's; None: either will do.
SIDES: dict[aclrtMemcpyKind, tuple[bool | None, bool | None]] = {
    aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_HOST: (False, False),
    aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE: (True, False),
    aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST: (False, True),
    aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_DEVICE: (True, True),
    aclrtMemcpyKind.ACL_MEMCPY_DEFAULT: (None, None),
    aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE: (True, False),
    aclrtMemcpyKind.ACL_MEMCPY_INNER_DEVICE_TO_DEVICE: (True, True),
    aclrtMemcpyKind.ACL_MEMCPY_INTER_DEVICE_TO_DEVICE: (True, True),
}


@returns_status(aclError)
def aclrtMemcpy(dst: object, destMax: int, src: object, count: int, kind: int) -> None:
    """Copy bytes now, whatever waits in the streams.

    Args:
        dst, src: The device's side is an address, the host's a buffer: NumPy, torch, bytearray; bytes as a source.
        destMax: Bytes that dst has room for. CANN: trusted; here it is compared with the memory too.
        count: Bytes to copy.
        kind: Of aclrtMemcpyKind.
    """
    require_device("aclrtMemcpy")
    target, source = _sides(dst, destMax, src, count, kind)
    target.memory[:count] = source.memory[:count]


@returns_status(aclError)
def aclrtMemcpyAsync(dst: object, destMax: int, src: object, count: int, kind: int, stream: aclrtStream | None) -> None:
    """Copy bytes on a stream, after what was submitted before. Arguments as for aclrtMemcpy."""
    require_device("aclrtMemcpyAsync")
    target, source = _sides(dst, destMax, src, count, kind)
    blocks = [region.block for region in (target, source) if region.block is not None]

    def task() -> None:
        require_allocated("aclrtMemcpyAsync", blocks)
        target.memory[:count] = source.memory[:count]

    submit(stream, task)


@returns_status(aclError)
def aclrtMemset(devPtr: object, maxCount: int, value: int, count: int) -> None:
    """Fill bytes now.

    Args:
        devPtr: A device address, or a writable host buffer.
        maxCount: Bytes that devPtr has room for.
        value: Its lowest 8 bits.
        count: Bytes to fill.
    """
    require_device("aclrtMemset")
    region, byte = _filled_region(devPtr, maxCount, value, count)
    region.memory[:count] = byte


@returns_status(aclError)
def aclrtMemsetAsync(devPtr: object, maxCount: int, value: int, count: int, stream: aclrtStream | None) -> None:
    """Fill bytes on a stream, after what was submitted before. Arguments as for aclrtMemset."""
    require_device("aclrtMemsetAsync")
    region, byte = _filled_region(devPtr, maxCount, value, count)

    def task() -> None:
        require_allocated("aclrtMemsetAsync", [] if region.block is None else [region.block])
        region.memory[:count] = byte

    submit(stream, task)


def _sides(dst: object, destMax: object, src: object, count: object, kind: object) -> tuple[Region, Region]:
    """The checked memory of both sides of a copy."""
    if not isinstance(kind, int) or kind not in list(aclrtMemcpyKind):
        raise invalid_param(f"kind: expected 0 to {max(aclrtMemcpyKind)}, got {kind!r}")
    room, number = _check_count("destMax", destMax, count)
    regions = []
    for name, side, on_device in zip(("dst", "src"), (dst, src), SIDES[aclrtMemcpyKind(kind)], strict=True):
        region = region_of(name, side)
        if on_device is not None and (region.block is not None) != on_device:
            wanted, got = ("device", "host") if on_device else ("host", "device")
            raise invalid_param(f"{name}: expected {wanted} memory for {aclrtMemcpyKind(kind).name}, got {got} memory")
        regions.append(region)
    target, source = regions
    _check_room("destMax", room, "dst", target)
    _check_room("count", number, "src", source)
    _check_writable("dst", target)
    return target, source


def _filled_region(devPtr: object, maxCount: object, value: object, count: object) -> tuple[Region, int]:
    room, _ = _check_count("maxCount", maxCount, count)
    if not isinstance(value, int):
        raise invalid_param(f"value: expected an integer, got {value!r}")
    region = region_of("devPtr", devPtr)
    _check_room("maxCount", room, "devPtr", region)
    _check_writable("devPtr", region)
    return region, value & 0xFF


def _check_count(limit_name: str, limit: object, count: object) -> tuple[int, int]:
    if type(count) is not int or type(limit) is not int or count < 0 or limit < 0:
        raise invalid_param(f"count, {limit_name}: expected numbers of bytes, got {count!r} and {limit!r}")
    if count > limit:
        raise invalid_param(f"count: expected at most {limit_name}, {limit} bytes, got {count}")
    return limit, count


def _check_room(name: str, number: int, side: str, region: Region) -> None:
    if number > region.memory.nbytes:
        raise invalid_param(f"{name}: expected at most the {region.memory.nbytes} bytes that {side} has, got {number}")


def _check_writable(name: str, region: Region) -> None:
    if not region.memory.flags.writeable:
        raise invalid_param(f"{name}: expected writable memory, got a read-only buffer")
