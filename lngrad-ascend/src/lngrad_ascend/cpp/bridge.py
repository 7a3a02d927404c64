"""The function that C++ calls: it reads a request, calls the simulator, and writes the reply.

A program without a running kernel has global memory here, and its kernels run on the simulated NPU.

A fault can't cross C++ as a Python exception. It is kept in the session, the kernel's stack is unwound by a C++
exception, and whoever called the kernel raises the fault again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.ctypeslib import as_array

from lngrad.errors import LngradError, ShapeError
from lngrad.support.addresses import address_of
from lngrad.support.locks import fork_safe_lock
from lngrad.typing import Address, Array, Bytes
from lngrad_ascend import acl
from lngrad_ascend.acl.memory import aligned_bytes, heap
from lngrad_ascend.cpp import protocol
from lngrad_ascend.cpp.handlers import HANDLERS, KernelCall
from lngrad_ascend.cpp.host import answer as answer_of_host
from lngrad_ascend.cpp.protocol import Op
from lngrad_ascend.cpp.session import Session, current_session, run_block
from lngrad_ascend.device.core import running
from lngrad_ascend.device.global_memory import GlobalRegion
from lngrad_ascend.device.launch import launch
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.operations import OPERATIONS
from lngrad_ascend.device.report import Site, site_text
from lngrad_ascend.faults import DeviceFault

SETTINGS_VARIABLE = "LNGRAD_KERNEL"
REMARK, WARNING, CYCLES = (
    "lngrad: remark: ",
    "lngrad: warning: ",
    "lngrad: cycles: ",
)  # before each, in a program's stderr
ALIGNMENT = 512  # bytes, as aclrtMalloc's
_Block = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # PYFUNCTYPE: the kernel runs with the GIL held


class _Thread(threading.local):
    """What a thread of the program has set, and its last fault."""

    tiling_key = 0
    fault = ""


_thread = _Thread()
_memory: dict[int, Array] = {}
_lock = fork_safe_lock()  # over _memory


def last_fault() -> str:
    """Return the text of this thread's last fault, once."""
    text, _thread.fault = _thread.fault, ""
    return text


def _handle_host(op: int, integers: tuple[int, ...]) -> int:
    """Answer a call that a program makes outside a kernel.

    Raises:
        LngradError: A kernel broke a rule, or the call makes no sense there.
    """
    if op == Op.GM_ALLOC:
        if integers[0] < 0:
            raise ShapeError(f"GmAlloc: expected a size of at least 0 bytes, got {integers[0]}")
        memory = aligned_bytes(integers[0], ALIGNMENT)
        memory[:] = 0  # as CANN's CPU twin: programs leave parts of their tiling to it
        with _lock:
            _memory[address_of(memory)] = memory
        return address_of(memory)
    if op == Op.GM_FREE:
        with _lock:
            if _memory.pop(integers[0], None) is None:
                raise DeviceFault(f"GmFree: {integers[0]:#x} is not an address that GmAlloc returned [ErrorFree]")
    elif op == Op.SET_TILING_KEY:
        _thread.tiling_key = integers[0]
    elif op == Op.ASK_HOST:
        _ask_host(*integers)
    elif op == Op.RUN_KERNEL:
        _run_kernel(*integers)
    else:
        raise DeviceFault(f"{Op(op).name if op in tuple(Op) else 'a vector instruction'}: no kernel is running")
    return 0


def _ask_host(name: int, out: int, size: int, axes: int, *rest: int) -> None:
    """Answer a tiling function of the program: dimensions, then numbers."""
    api = ctypes.string_at(name).decode()
    found = answer_of_host(api, rest[:axes], rest[axes:])
    if len(found) != size:
        raise ShapeError(f"{api}: the program's struct has {size} bytes, CANN's has {len(found)}")
    ctypes.memmove(out, found, size)


def _run_kernel(name: int, block: int, closure: int, blocks: int) -> None:
    """Run a closure of the program once a block."""
    call = _Block(block)

    def kernel() -> None:
        session = Session(running("ICPU_RUN_KF"), name)
        run_block(session, kernel.__name__, lambda: int(call(closure)), lambda: "it threw an exception")

    kernel.__name__ = ctypes.string_at(name).decode(errors="replace")
    with _lock:
        memory = [
            GlobalRegion(array, f"the GmAlloc memory at {address:#x}") for address, array in list(_memory.items())
        ]
    acl.aclrtSynchronizeDevice()  # a launch comes behind what waits in streams
    device = {block.address: block.memory for block in heap.blocks()}
    with _opened(device) as views:
        memory += [GlobalRegion(view, f"the device memory at {at:#x}", at) for at, view in views.items()]
        settings = _settings()
        shows_remarks = settings.pop("remarks", False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = launch(kernel, blocks, memory=memory, tiling_key=_thread.tiling_key, **settings)
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"{WARNING}{text}", file=sys.stderr)
    for remark in report.remarks() if shows_remarks else ():
        print(f"{REMARK}{remark}", file=sys.stderr)
    for line in report.cycles.table().splitlines()[:2] if report.cycles else ():
        print(f"{CYCLES}{line}", file=sys.stderr)


_NO_ACCESS = 0  # PROT_NONE
MAX_OPENED_BYTES = 1 << 28  # of device memory that is there for pointers


@contextmanager
def _opened(memory: Mapping[Address, Bytes]) -> Iterator[dict[Address, Bytes]]:
    """Map device memory at its own addresses while a kernel runs, which may read a tiling through a plain pointer.

    Yields the arrays that have the bytes in this time; what is written there is in `memory` afterwards. Where there is more of
    it than 256 MiB, or the addresses are not reserved, those of `memory` itself: a pointer to them is a crash, as for the host.
    """
    page = mmap.PAGESIZE
    pages = {at: (at - at % page, at % page + data.nbytes) for at, data in memory.items()}
    if sum(data.nbytes for data in memory.values()) > MAX_OPENED_BYTES or not all(
        _protect(*place, mmap.PROT_READ | mmap.PROT_WRITE) for place in pages.values()
    ):
        yield dict(memory)
        return
    views = {at: as_array((ctypes.c_uint8 * data.nbytes).from_address(at)) for at, data in memory.items()}
    for at, view in views.items():
        view[...] = memory[at]
    try:
        yield views
    finally:
        for at, view in views.items():
            memory[at][...] = view
        for place in pages.values():
            _protect(*place, _NO_ACCESS)


def _protect(start: Address, nbytes: int, how: int) -> bool:
    """Set the access to pages (mprotect). Returns whether they are mapped."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    return bool(protect(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), how) == 0)


def _settings() -> dict[str, Any]:
    """Return the options of launches: ``LNGRAD_KERNEL=strictness=device,ordering=off,auto_sync=off,remarks=on``.

    Raises:
        LngradError: A word of it is not known.
    """
    switch = {"on": True, "off": False}
    modes = {"checked": "checked", "device": "device"}
    switches = dict.fromkeys(("ordering", "auto_sync", "remarks", "cycles"), switch)
    known: dict[str, dict[str, Any]] = {"strictness": modes, **switches}
    chosen: dict[str, Any] = {}
    for word in filter(None, os.environ.get(SETTINGS_VARIABLE, "").split(",")):
        name, _, value = word.partition("=")
        if value not in known.get(name, {}):
            allowed = "; ".join(f"{key}={'|'.join(values)}" for key, values in known.items())
            raise LngradError(f"{SETTINGS_VARIABLE}: expected {allowed}, got {word!r}")
        chosen[name] = known[name][value]
    return chosen


_INSTRUCTIONS = len(OPERATIONS)
MAX_RECORDS = 1024
_records: dict[int, memoryview] = {}


def _record(address: int) -> memoryview:
    """Return the memory of a thread's record. A record lives as long as its library and its thread."""
    if len(_records) >= MAX_RECORDS:  # those of threads that have ended
        _records.clear()
    view = memoryview((ctypes.c_char * protocol.CALL_BYTES).from_address(address)).cast("B")
    _records[address] = view
    return view


def answer(address: int) -> int:
    """Handle one request. Return 0, or 1 if there is a fault. What a signal's handler raises on the way out passes through."""
    record = _records.get(address) or _record(address)
    op, line, file, dst, src0, src1, src2, used, real, _, descriptor = protocol.read_head(record)
    session = current_session.get()
    if session is None:  # a program that runs no kernel
        try:
            _, integers = protocol.read_arguments(record, used)
            protocol.write_result(record, _handle_host(op, integers))
            return 0
        except BaseException as error:
            _thread.fault = f"{type(error).__name__}: {error}"
            return 1
    site: Site = (protocol.file_name(file), line)
    core = session.core
    outer, core.site = core.site, site
    try:
        if op < _INSTRUCTIONS:
            core.issue(site, real, dst, src0, src1, descriptor, src2)
        else:
            call: KernelCall = session.call or KernelCall(session, core)
            session.call, call.site, call.real = call, site, real
            call.tensors, call.n = protocol.read_arguments(record, used)
            reply = HANDLERS[op](call)
            if reply is not None:
                _reply(record, reply)
        return 0
    except BaseException as error:  # also what stops a block that waits for another one
        session.error = _placed(error, site, op, core.index)
        return 1
    finally:
        core.site = outer


def _reply(record: memoryview, reply: LocalTensor | float | np.generic) -> None:
    if isinstance(reply, LocalTensor):
        protocol.write_tensor(record, reply.handle, reply.code, reply.start, reply.end - reply.start)
    else:
        # A half, a float or a bfloat16, which is a type of its own to NumPy.
        real = isinstance(reply, float) or (isinstance(reply, np.generic) and reply.dtype.kind not in "iu")
        protocol.write_result(record, 0 if real else int(reply), float(reply) if real else 0.0)


def _placed(error: BaseException, site: Site, op: int, block: int) -> BaseException:
    """Put the kernel's line before the text of an error of ours, and the block where `Core.entered` does not."""
    if isinstance(error, LngradError):
        api = Op(op).name if op >= _INSTRUCTIONS else OPERATIONS[op].name
        text = f"{site_text(site)}: {error}"
        named = api.replace("_", "").lower() in text.lower()
        error.args = (
            text if isinstance(error, DeviceFault) else f"block {block}: {text}{'' if named else f' ({api})'}",
        )
    return error


def _answer_program(address: int, place: int) -> None:
    ctypes.c_int.from_address(place).value = answer(address)


# For programs in C++: no exception passes, and an interrupt leaves in `place` what the program took for a fault.
RUN = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(_answer_program)
