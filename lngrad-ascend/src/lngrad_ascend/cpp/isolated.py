"""One run of a kernel in a child process, which the kernel may crash, end or keep busy for ever."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lngrad.errors import LngradError, ShapeError
from lngrad.support.children import Child
from lngrad_ascend import soc as socs
from lngrad_ascend.cpp.kernel import compile, guarded
from lngrad_ascend.cpp.project import Project
from lngrad_ascend.device.launch import launch
from lngrad_ascend.faults import AscendWarning, DeviceFault, RaceFault

MAX_SECOND_RUN_S = 10.0  # without auto-sync
_STOPPED = "it was stopped"  # as lngrad/watch.h says it
_OURS = "lngrad: "  # how its lines begin


class ProjectInputs(NamedTuple):
    """A folder with op_host and op_kernel, and what `Project.plan` takes beside arrays."""

    folder: Path
    shapes: Mapping[str, Sequence[int]]
    dtype: str
    attributes: Mapping[str, str]


class Request(NamedTuple):
    """Arguments of `compile`, arrays by name, options of `launch`, bytes of workspace, and which arrays come back."""

    build: dict[str, Any]
    arrays: dict[str, Any]
    options: dict[str, Any]
    workspace: int | None
    wanted: list[str]
    project: ProjectInputs | None = None

    @property
    def name(self) -> str:
        return self.build["kernel"] or (self.project.folder.name if self.project else "")


class Result(NamedTuple):
    """What a kernel wrote, or its fault and the fault's kind; a picture if one was asked for, and the report."""

    fault: str | None = None
    arrays: Mapping[str, Any] = {}
    picture: str | None = None
    table: str = ""
    remarks: tuple[str, ...] = ()
    cycles: Any = None
    kind: str = ""
    warnings: tuple[str, ...] = ()
    output: tuple[str, ...] = ()  # lines that the kernel wrote to stderr


def run(request: Request, time_limit: float, compiling: AbstractContextManager[object]) -> Result:
    """Run a kernel in a child.

    Args:
        request: What to run.
        time_limit: Seconds for the kernel; compiling does not count.
        compiling: Entered until the kernel begins.

    Raises:
        LngradError: The kernel does not compile, or arguments are wrong.
        BrokenPipeError: Whoever read what the kernel prints has gone.
    """
    with tempfile.TemporaryDirectory(prefix="lngrad-kernel-") as folder:
        child = Child(_work, request, folder=Path(folder), keep_stdout=True)
        result, is_late = None, False
        try:
            with compiling:
                child.connection.poll(None)
            result = _answer(child.connection, time_limit)
            is_late = result is None
            if is_late:
                child.stop()
        except EOFError:
            child.process.join(5)
            if child.process.exitcode == -signal.SIGPIPE:
                raise BrokenPipeError(errno.EPIPE, "") from None
        finally:
            child.end()
        lines = child.output().splitlines()
    output = tuple(line for line in lines if not line.startswith(_OURS))
    if result is not None:
        return result._replace(output=output)
    faults = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS)]
    fault = faults[-1] if faults else f"{request.name}: {_STOPPED if is_late else child.how_it_died()}"
    return Result(fault.replace(_STOPPED, f"not done within {time_limit:g} s (--time-limit)"), output=output)


def _answer(connection: Connection, time_limit: float) -> Result | None:
    """The child's result, with the remarks of its second run; None if there is none within the limit."""
    answer = _received(connection)
    if answer is None:  # the kernel begins
        if not connection.poll(time_limit):
            return None
        answer = _received(connection)
    if answer is not None and answer.fault is None:
        with suppress(EOFError):
            if connection.poll(MAX_SECOND_RUN_S):
                answer = answer._replace(remarks=(*answer.remarks, *connection.recv()))
    return answer


def _received(connection: Connection) -> Result | None:
    answer: Result | Exception | None = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _work(connection: Connection, request: Request) -> None:
    """Send None when the kernel begins, then its Result and remarks of a second run; or the error of its arguments."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it; a kernel that prints is to end as a program does
    warned: list[warnings.WarningMessage] = []
    try:
        if request.options["soc"]:
            socs.use(request.options["soc"])  # its macros are the compiler's
        if request.project:
            request = _planned(request, request.project)
        kernel = compile(**request.build)
        arrays = _guarded_copies(request.arrays)
        workspace = request.workspace and guarded(np.full(request.workspace, 0xFF, np.uint8))
        blocks = request.options.pop("blocks")
        connection.send(None)
        start = time.monotonic()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            done = launch(kernel, blocks, *arrays.values(), workspace=workspace, names=[*arrays], **request.options)
        picture = done.timeline_svg() if request.options["timeline"] else None
        wanted = {name: arrays[name] for name in request.wanted}
        connection.send(
            Result(None, wanted, picture, done.table(), done.remarks(), done.cycles, warnings=_texts(warned))
        )
        is_quick = time.monotonic() - start < MAX_SECOND_RUN_S / 2
        again = is_quick and request.options["auto_sync"] and request.options["ordering"]
        connection.send(_without_auto_sync(kernel, blocks, request) if again else ())
    except DeviceFault as fault:
        # Of the two instructions on their pipes.
        picture = fault.svg if request.options["timeline"] and isinstance(fault, RaceFault) else None
        connection.send(Result(str(fault), picture=picture, kind=type(fault).__name__, warnings=_texts(warned)))
    except (LngradError, OSError, MemoryError) as error:
        broken = str(error).startswith("block ")  # by the kernel, not by the command's arguments
        connection.send(Result(str(error), kind=type(error).__name__) if broken else error)


def _texts(warned: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(warning.message) for warning in warned))


def _guarded_copies(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copies in guarded pages; what is one array stays one, and a number a number."""
    copies: dict[int, Any] = {}
    return {
        name: copies.setdefault(id(array), guarded(array) if isinstance(array, np.ndarray) else array)
        for name, array in arrays.items()
    }


def _without_auto_sync(kernel: Any, blocks: int, request: Request) -> tuple[str, ...]:
    """Run a kernel once more, as if the compiler inserted nothing: the remark where a race is found then."""
    arrays = _guarded_copies(request.arrays)
    workspace = request.workspace and np.full(request.workspace, 0xFF, np.uint8)
    ctypes.CDLL(None).fflush(None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what it prints was printed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AscendWarning)
            options = {**request.options, "auto_sync": False}
            launch(kernel, blocks, *arrays.values(), workspace=workspace, names=[*arrays], **options)
    except RaceFault as fault:
        return (f"needs auto-sync: where the compiler inserts no flags and barriers (--no-auto-sync), {fault}",)
    except DeviceFault:
        return ()
    return ()


def _planned(request: Request, inputs: ProjectInputs) -> Request:
    """A request for a project's folder, as its op_host has it; options of the command come first."""
    plan = Project(inputs.folder, request.build["include"]).plan(
        request.arrays, inputs.shapes, inputs.dtype, inputs.attributes
    )
    for name in request.wanted:
        if plan.arrays.get(name) is None:
            known = ", ".join(word for word, array in plan.arrays.items() if array is not None)
            raise ShapeError(f"--save: expected NAME=FILE.npy with a NAME of {known}, got {name!r}")
    asked = request.build
    build = {
        **plan.build,
        "include": [*asked["include"], *plan.build["include"]],
        "headers": [*plan.build["headers"], *asked["headers"]],
    }
    build["define"] = {**plan.build["define"], **asked["define"]}
    options = {**request.options, **{name: request.options[name] or value for name, value in plan.options.items()}}
    return Request(build, plan.arrays, options, max(request.workspace or plan.workspace, 32), request.wanted)
