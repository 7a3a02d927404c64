"""Copying and filling memory: now, or on a stream."""

from __future__ import annotations

from lngrad.ascend.acl.device import require_device
from lngrad.ascend.acl.enums import aclrtMemcpyKind
from lngrad.ascend.acl.interface import invalid_param, returns_aclError
from lngrad.ascend.acl.memory import ALLOCATED, Region, freed, region_of
from lngrad.ascend.acl.streams import aclrtStream, submit
from lngrad.typing import Bytes


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
