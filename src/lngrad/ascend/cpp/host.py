"""The CPU-debug side of a C++ program: its global memory, and its kernels run on the simulated NPU."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from lngrad.ascend import acl
from lngrad.ascend.acl.memory import aligned_bytes, heap
from lngrad.ascend.cpp.protocol import Op
from lngrad.ascend.cpp.session import Session, run_block
from lngrad.ascend.device.current import running
from lngrad.ascend.device.launch import launch
from lngrad.ascend.device.regions import Region
from lngrad.ascend.faults import DeviceFault
from lngrad.core.arrays import address_of
from lngrad.errors import LngradError, ShapeError
from lngrad.typing import Array

SETTINGS_VARIABLE = "LNGRAD_KERNEL"
ALIGNMENT = 512  # bytes, as aclrtMalloc's
_RunBlock = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Thread(threading.local):
    """What a thread of the program has set, and its last fault."""

    tiling_key = 0
    fault = ""


_thread = _Thread()
_memory: dict[int, Array] = {}
_lock = threading.Lock()  # over _memory


def last_fault() -> str:
    """The text of this thread's last fault."""
    return _thread.fault


def host_answer(op: int, integers: tuple[int, ...]) -> int:
    """Answer a call that a program makes outside of a kernel.

    Raises:
        LngradError: A kernel broke a rule, or the call makes no sense there.
    """
    if op == Op.GM_ALLOC:
        return _allocate(integers[0])
    if op == Op.GM_FREE:
        with _lock:
            if _memory.pop(integers[0], None) is None:
                raise DeviceFault(f"GmFree: {integers[0]:#x} is not an address that GmAlloc returned [ErrorFree]")
        return 0
    if op == Op.SET_TILING_KEY:
        _thread.tiling_key = integers[0]
        return 0
    if op == Op.RUN_KERNEL:
        _run_kernel(*integers)
        return 0
    raise DeviceFault(f"{Op(op).name if op in tuple(Op) else 'a vector instruction'}: no kernel is running")


def keep_fault(text: str) -> None:
    """Keep what the program asks for next."""
    _thread.fault = text


def _allocate(size: int) -> int:
    if size < 0:
        raise ShapeError(f"GmAlloc: expected a size of at least 0 bytes, got {size}")
    memory = aligned_bytes(size, ALIGNMENT)
    memory[:] = 0xFF
    address = address_of(memory)
    with _lock:
        _memory[address] = memory
    return address


def _run_kernel(name: int, block: int, closure: int, blocks: int) -> None:
    """Run a closure of the program once a block."""
    call = _RunBlock(block)

    def kernel() -> None:
        run_block(Session(running("ICPU_RUN_KF")), kernel.__name__, lambda: int(call(closure)))

    kernel.__name__ = ctypes.string_at(name).decode(errors="replace")
    with _lock:
        memory = [Region(array, f"the GmAlloc memory at {address:#x}") for address, array in _memory.items()]
    acl.aclrtSynchronizeDevice()  # a launch comes behind what waits in streams
    memory += [Region(b.memory, f"the device memory at {b.address:#x}", b.address) for b in heap.blocks()]
    launch(kernel, blocks, memory=memory, tiling_key=_thread.tiling_key, **_settings())


def _settings() -> dict[str, Any]:
    """How strict launches are: ``LNGRAD_KERNEL=strictness=device,ordering=off,auto_sync=off``.

    Raises:
        LngradError: A word of it is not known.
    """
    known: dict[str, dict[str, Any]] = {
        "strictness": {"checked": "checked", "device": "device"},
        "ordering": {"on": True, "off": False},
        "auto_sync": {"on": True, "off": False},
    }
    chosen: dict[str, Any] = {}
    for word in filter(None, os.environ.get(SETTINGS_VARIABLE, "").split(",")):
        name, _, value = word.partition("=")
        if value not in known.get(name, {}):
            allowed = "; ".join(f"{key}={'|'.join(values)}" for key, values in known.items())
            raise LngradError(f"{SETTINGS_VARIABLE}: expected {allowed}, got {word!r}")
        chosen[name] = known[name][value]
    return chosen
