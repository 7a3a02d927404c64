"""The function that C++ calls: it reads a request, lets the simulator answer it, and writes the answer.

A fault can't cross C++ as a Python exception. It is kept in the session, the kernel's stack is unwound
by a C++ exception, and whoever called the kernel raises the fault again.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from lngrad.ascend.cpp import host, protocol
from lngrad.ascend.cpp.answers import ANSWERS
from lngrad.ascend.cpp.protocol import Op, Request
from lngrad.ascend.cpp.session import Session, current_session
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.operations import OPERATIONS
from lngrad.ascend.device.source import Site, site_text
from lngrad.ascend.faults import DeviceFault
from lngrad.errors import LngradError

_Run = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # PYFUNCTYPE: the kernel runs with the GIL held
_INSTRUCTIONS = len(OPERATIONS)
MOST_RECORDS = 1024
_records: dict[int, memoryview] = {}


def _record(address: int) -> memoryview:
    """The memory of a thread's record. A record lives as long as its library and its thread."""
    if len(_records) >= MOST_RECORDS:  # those of threads that have ended
        _records.clear()
    view = memoryview((ctypes.c_char * protocol.CALL_BYTES).from_address(address)).cast("B")
    _records[address] = view
    return view


@cache
def _file(address: int) -> str:
    """The name of a file, which the compiler has put into the library once."""
    return ctypes.string_at(address).decode(errors="replace")


def _run(address: int) -> int:
    """Answer one request. Returns 0, or 1 if there is a fault."""
    record = _records.get(address) or _record(address)
    request = protocol.read_request(record)
    session = current_session.get()
    if session is None:
        return _answer_host(request, record)
    site: Site = (_file(request.file), request.line)
    try:
        if request.op < _INSTRUCTIONS:
            descriptor = protocol.read_descriptor(record)
            session.core.issue(site, request.real, request.dst, request.src0, request.src1, descriptor)
        else:
            _answer(session, site, request, record)
        return 0
    except BaseException as error:  # also what stops a block that waits for another one
        session.error = _placed(error, site, request.op)
        return 1


def _answer(session: Session, site: Site, request: Request, record: memoryview) -> None:
    """Answer what is not a vector instruction."""
    core = session.core
    outer, core.site = core.site, site
    try:
        operands, integers = protocol.read_arguments(record, request.locals_used)
        tensors = [operands[at : at + 4] for at in range(0, len(operands), 4)]
        answer = ANSWERS[request.op](session, site, tensors, integers, request.real)
    finally:
        core.site = outer
    if isinstance(answer, LocalTensor):
        protocol.write_tensor(record, answer.handle, answer.code, answer.start, answer.nbytes)
    elif answer is not None:
        protocol.write_result(
            record, 0 if _is_real(answer) else int(answer), float(answer) if _is_real(answer) else 0.0
        )


def _answer_host(request: Request, record: memoryview) -> int:
    """Answer a program that runs no kernel."""
    try:
        _, integers = protocol.read_arguments(record, request.locals_used)
        protocol.write_result(record, host.host_answer(request.op, integers))
        return 0
    except BaseException as error:
        host.keep_fault(f"{type(error).__name__}: {error}")
        return 1


def _placed(error: BaseException, site: Site, op: int) -> BaseException:
    """An error of ours with the line of the kernel."""
    if isinstance(error, LngradError):
        api = Op(op).name if op >= _INSTRUCTIONS else OPERATIONS[op].name
        text = f"{site_text(site)}: {error}"
        error.args = (text if isinstance(error, DeviceFault) else f"{text} ({api})",)
    return error


def _is_real(answer: object) -> bool:
    """Whether a scalar is a half, a float or a bfloat16, which is a type of its own to NumPy."""
    return isinstance(answer, float) or (isinstance(answer, np.generic) and answer.dtype.kind not in "iu")


RUN = _Run(_run)
