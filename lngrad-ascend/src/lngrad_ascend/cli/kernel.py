"""The commands `lngrad kernel …`: Ascend C kernels in C++ on the simulated NPU."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer
from typer import Argument, Option

from lngrad.cli.terminal import FAILED, REFUSED, existing, fail, given, say, working
from lngrad.errors import DtypeError, FileFormatError, LngradError, ShapeError
from lngrad.support.dtypes import DTYPES
from lngrad_ascend.cli.options import SocName, run_file

MAX_SECOND_RUN_S = 10.0  # without auto-sync
STOPPED = "it was stopped"  # as lngrad/watch.h says it
Strictness = Literal["checked", "device"]
# The options that a whole program has too.
_OF_PROGRAMS = {
    "file", "include", "define", "soc", "strictness", "auto_sync", "ordering", "cycles", "remarks", "time_limit",
}  # fmt: skip


def kernel_run(
    ctx: typer.Context,
    file: Annotated[
        Path | None, Argument(metavar="KERNEL.CPP", help="The C++ file.", show_default=False, callback=given)
    ] = None,
    kernel: Annotated[
        str | None, Option(help="The kernel function; a template with its arguments: name<0>.", show_default=False)
    ] = None,
    arg: Annotated[
        list[str] | None,
        Option(
            help="NAME=FILE.npy, or NAME=empty:DTYPE:SHAPE for an output; once for each array, in the kernel's order.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    project: Annotated[
        Path | None,
        Option(help="In the file's place: a folder with op_host and op_kernel, as msopgen makes it.", callback=given),
    ] = None,
    shape: Annotated[
        list[str] | None, Option(help="With --project: an input that is drawn at random.", metavar="NAME=SIZES")
    ] = None,
    dtype: Annotated[str, Option(help="With --project: of inputs that are drawn.")] = "float32",
    attr: Annotated[
        list[str] | None, Option(help="With --project: an attribute.", metavar="NAME=VALUE", show_default="its own")
    ] = None,
    blocks: Annotated[int | None, Option(help="How many blocks to launch.", show_default="1, or the project's")] = None,
    save: Annotated[
        list[str] | None, Option(help="NAME=FILE.npy: write an array after the run.", metavar="NAME=FILE")
    ] = None,
    workspace: Annotated[int | None, Option(help="Bytes of workspace.", show_default="none")] = None,
    tiling: Annotated[Path | None, Option(help="Its bytes (.bin), or a .json of fields.", callback=given)] = None,
    tiling_key: Annotated[int, Option(help="What TILING_KEY_IS compares with.")] = 0,
    include: Annotated[list[Path] | None, Option("-I", help="A folder to search for headers.", callback=given)] = None,
    header: Annotated[list[Path] | None, Option(help="A header to include ahead of the file.", callback=given)] = None,
    define: Annotated[list[str] | None, Option("-D", help="A macro: NAME or NAME=VALUE.")] = None,
    soc: SocName = None,
    strictness: Annotated[Strictness, Option(help="checked: what CANN's checker reports is an error.")] = "checked",
    auto_sync: Annotated[bool, Option(help="Whether the compiler inserts barriers and scalar flags.")] = True,
    ordering: Annotated[bool, Option(help="Whether races are looked for.")] = True,
    timeline: Annotated[Path | None, Option(help="Write what ran on which pipe, as SVG; --cycles: to scale.")] = None,
    cycles: Annotated[bool, Option("--cycles", help="Print how long a device would take, by a model.")] = False,
    cycles_json: Annotated[Path | None, Option(help="Write the same as JSON.")] = None,
    report: Annotated[bool, Option("--report", help="Print what each block did.")] = False,
    remarks: Annotated[bool, Option("--remarks", help="Print what is harmless here and worth a look.")] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the verdict as JSON; docs/ascend-c-skill.md has its fields.")
    ] = False,
    time_limit: Annotated[float, Option(help="Seconds for the kernel; compiling does not count.", min=0.01)] = 600.0,
    force: Annotated[bool, Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Compile an Ascend C kernel and run it on the simulated NPU.

    docs/ascend-c.md says what is simulated, and how fields of a tiling are written.

    Example: lngrad kernel run k.cpp --kernel k --arg x=x.npy --arg y=empty:float32:2,32 --save y=y.npy

    An .asc file has its kernel, its host's part and main: lngrad kernel run add.asc -D NUM=1 builds it, and runs it here.

    With --project the folder's op_host says blocks, tiling, workspace and the shapes of outputs:
    lngrad kernel run --project AddCustom --shape x=8,2048 --shape y=8,2048 --dtype float16 --save z=z.npy

    The kernel runs in a process of its own, with an unreadable page behind each array: what it crashes, ends or keeps busy
    is that process. Files of --save are written after it has ended well.

    Exit codes: 0 the kernel ran, 1 it broke a rule of the device, crashed or took too long, 2 the arguments are wrong.
    """
    from lngrad.files.writing import check_place
    from lngrad_ascend.soc import DEFAULT, Settings
    from lngrad_ascend.tiling.structs import tiling_of

    if file is not None and file.suffix == ".asc" and not (kernel or arg or project):
        for one in ctx.command.params:
            source = ctx.get_parameter_source(one.name or "")
            if one.name not in _OF_PROGRAMS and source is not None and source.name == "COMMANDLINE":
                raise FileFormatError(f"{one.opts[0]}: expected a kernel file, got the program {file.name}")
        rules = {"ordering": ordering, "auto_sync": auto_sync, "cycles": cycles, "remarks": remarks}
        words = [f"strictness={strictness}", *(f"{name}={'on' if on else 'off'}" for name, on in rules.items())]
        flags = [*(f"-I{one}" for one in include or ()), *(f"-D{one}" for one in define or ())]
        code = run_file([str(file)], Settings(soc=soc or DEFAULT), time_limit, flags=flags, rules=",".join(words))
        raise typer.Exit(FAILED if code else 0)
    if (project is None) == (file is None) or (file is not None and not (kernel and arg)):
        raise FileFormatError(
            "kernel run: expected KERNEL.CPP with --kernel and --arg, a whole program FILE.asc, or --project DIR; see lngrad "
            "kernel run --help"
        )
    arrays = dict(map(_array, arg or ()))
    targets = [_target(text, None if project else arrays) for text in save or ()]
    for path in filter(None, (*(path for path, _ in targets), timeline, cycles_json)):
        check_place(path, replace=force)
    macros = {name: value if equal else None for name, equal, value in (one.partition("=") for one in define or ())}
    request = _Request(
        {"path": file, "kernel": kernel, "include": include or (), "headers": header or (), "define": macros},
        arrays,
        {"blocks": blocks or (None if project else 1), "tiling": tiling and tiling_of(tiling), "tiling_key": tiling_key,
         "soc": soc, "strictness": strictness, "auto_sync": auto_sync, "ordering": ordering, "timeline": timeline is not None,
         "cycles": cycles or cycles_json is not None},
        workspace,
        [name for _, name in targets],
        project and (project, dict(map(_sizes, shape or ())), dtype, dict(map(_pair, attr or ()))),
    )  # fmt: skip
    try:
        result = _run_apart(request, time_limit)
    except LngradError as error:
        if as_json:
            say(_verdict(_Result(str(error), kind=type(error).__name__)))
            raise typer.Exit(REFUSED) from None
        raise
    if as_json:
        say("")  # the kernel may have left a line open
        say(_verdict(result))
    _write_files(result, timeline, cycles_json, targets, force, quiet=as_json)
    if not as_json:
        _say(result, report, cycles, remarks)


def _say(result: _Result, report: bool, cycles: bool, remarks: bool) -> None:
    if report:
        say(result.table)
    if cycles:
        say(result.cycles.table())
    for warning in result.warnings:
        say(f"warning: {warning}", err=True)
    for remark in result.remarks * remarks:
        say(f"remark: {remark}")
    if result.remarks and not remarks:
        say(f"remarks: {len(result.remarks)} (--remarks prints them)", err=True)


def _verdict(result: _Result) -> str:
    """What is known of a run, for programs: the verdict, and of a fault its text, kind, line, and what is missing."""
    fault = result.fault or ""
    line = re.search(r"(?m)^(?:block \d+: )?(\S+:\d+): |Ascend C call was at (\S+:\d+)", fault)
    missing = re.search(
        r"Missing between them: (.*?)(?: \[\w[\w, ]*\])?$|(\w+) is not declared; as an Ascend C API", fault
    )
    kinds = {"": "crashed" if fault else "warned" if result.warnings else "passed", "CompileError": "does not compile"}
    facts = {
        "verdict": kinds.get(result.kind, "fault"),
        "fault": result.fault,
        "kind": result.kind or None,
        "line": line and (line[1] or line[2]),
        "missing": missing and (missing[1] or missing[2]),
        "warnings": result.warnings,
        "remarks": result.remarks,
    }
    return json.dumps(facts, ensure_ascii=False)


def _write_files(
    result: _Result,
    timeline: Path | None,
    cycles: Path | None,
    targets: list[tuple[Path, str]],
    replace: bool,
    quiet: bool,
) -> None:
    """The picture, also of a kernel that failed, which ends the command here; the cycles, and the arrays that are wanted."""
    from lngrad.files.writing import write_tensor, write_text

    if timeline is not None and result.picture is not None:
        write_text(timeline, result.picture)
    if result.fault is not None and quiet:
        raise typer.Exit(FAILED)
    if result.fault is not None:
        fail(result.fault, FAILED)
    if cycles is not None:
        write_text(cycles, result.cycles.to_json() + "\n")
    for path, name in targets:
        write_tensor(path, result.arrays[name], replace=replace)


class _Request(NamedTuple):
    """What the process of a kernel gets: arguments of `compile`, arrays, options of `launch`, which arrays come back."""

    build: dict[str, Any]
    arrays: dict[str, Any]
    options: dict[str, Any]
    workspace: int | None
    wanted: list[str]
    project: Any = None  # its folder, shapes, dtype and attributes


class _Result(NamedTuple):
    """What comes back: why the kernel failed, or what it wrote; a picture if one was asked for, and the report."""

    fault: str | None = None
    arrays: Mapping[str, Any] = {}
    picture: str | None = None
    table: str = ""
    remarks: tuple[str, ...] = ()
    cycles: Any = None
    kind: str = ""  # of the fault
    warnings: tuple[str, ...] = ()


def _run_apart(request: _Request, time_limit: float) -> _Result:
    """Run a kernel in a process of its own, which it may crash, end or keep busy for ever."""
    from lngrad.support.children import Child

    kernel = request.build["kernel"] or request.project[0].name
    with tempfile.TemporaryDirectory(prefix="lngrad-kernel-") as folder:
        worker = Child(_work, request, folder=Path(folder), keep_stdout=True)
        result, seconds = None, math.inf  # compiling is not limited
        try:
            with working(f"compiling {kernel}"):
                worker.connection.poll(None)
            while result is None and worker.connection.poll(None if seconds == math.inf else seconds):
                result, seconds = worker.connection.recv(), time_limit
                if isinstance(result, Exception):
                    raise result
            if isinstance(result, _Result) and result.fault is None:
                with suppress(EOFError):
                    if worker.connection.poll(MAX_SECOND_RUN_S):
                        result = result._replace(remarks=(*result.remarks, *worker.connection.recv()))
            late = result is None
            if late:
                worker.stop()
        except EOFError:
            worker.process.join(5)
            late = False
            if worker.process.exitcode == -signal.SIGPIPE:  # whoever read what the kernel prints has gone
                raise BrokenPipeError(errno.EPIPE, "") from None
        finally:
            worker.end()
        said = worker.output().splitlines()
    ours = [line for line in said if line.startswith("lngrad: ")]
    for line in said:
        if line not in ours:
            say(line, err=True)
    if isinstance(result, _Result):
        return result
    told = ours[-1].removeprefix("lngrad: ") if ours else f"{kernel}: {STOPPED if late else worker.how_it_died()}"
    return _Result(told.replace(STOPPED, f"not done within {time_limit:g} s (--time-limit)"))


def _work(tasks: Connection, request: _Request) -> None:
    """In that process: None when the kernel begins, then a _Result; or the error of its arguments."""
    from lngrad_ascend.ascendc import DeviceFault, compile, launch
    from lngrad_ascend.cpp.kernel import guarded
    from lngrad_ascend.faults import RaceFault

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it; a kernel that prints is to end as a program does
    try:
        if request.project:
            request = _planned(request)
        kernel = compile(**request.build)
        own: dict[int, Any] = {}  # what is one array stays one
        arrays = {
            name: own.setdefault(id(one), one if one is None else guarded(one)) for name, one in request.arrays.items()
        }
        workspace = request.workspace and guarded(np.full(request.workspace, 0xFF, np.uint8))
        blocks = request.options.pop("blocks")
        tasks.send(None)
        start = time.monotonic()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            done = launch(kernel, blocks, *arrays.values(), workspace=workspace, **request.options)
        picture = done.timeline_svg() if request.options["timeline"] else None
        texts = tuple(dict.fromkeys(str(one.message) for one in told))
        wanted = {name: arrays[name] for name in request.wanted}
        tasks.send(_Result(None, wanted, picture, done.table(), done.remarks(), done.cycles, warnings=texts))
        own = {}
        again = [own.setdefault(id(one), one if one is None else guarded(one)) for one in request.arrays.values()]
        quick = time.monotonic() - start < MAX_SECOND_RUN_S / 2 and request.options["auto_sync"]
        tasks.send(_without_auto_sync(kernel, blocks, again, request) if quick and request.options["ordering"] else ())
    except DeviceFault as fault:
        # Of the two instructions on their pipes.
        picture = fault.svg if request.options["timeline"] and isinstance(fault, RaceFault) else None
        tasks.send(_Result(str(fault), picture=picture, kind=type(fault).__name__))
    except (LngradError, OSError, MemoryError) as error:
        tasks.send(error)


def _without_auto_sync(kernel: Any, blocks: int, arrays: list[Any], request: _Request) -> tuple[str, ...]:
    """Run a kernel once more, as if the compiler inserted nothing: the remark where a race is found then."""
    from lngrad_ascend.ascendc import AscendWarning, DeviceFault, launch
    from lngrad_ascend.faults import RaceFault

    workspace = request.workspace and np.full(request.workspace, 0xFF, np.uint8)
    ctypes.CDLL(None).fflush(None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what it prints was printed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AscendWarning)
            launch(kernel, blocks, *arrays, workspace=workspace, **{**request.options, "auto_sync": False})
    except RaceFault as fault:
        return (f"needs auto-sync: where the compiler inserts no flags and barriers (--no-auto-sync), {fault}",)
    except DeviceFault:
        return ()
    return ()


def _planned(request: _Request) -> _Request:
    """A request for a project's folder, as its op_host has it; options of the command come first."""
    from lngrad_ascend import soc as socs
    from lngrad_ascend.cpp.project import Project

    folder, *words = request.project
    if request.options["soc"]:
        socs.use(request.options["soc"])
    plan = Project(folder).plan(request.arrays, *words)
    for name in request.wanted:
        if plan.arrays.get(name) is None:
            known = ", ".join(word for word, one in plan.arrays.items() if one is not None)
            raise ShapeError(f"--save: expected NAME=FILE.npy with a NAME of {known}, got {name!r}")
    asked = request.build
    build = {**plan.build, "include": asked["include"], "headers": [*plan.build["headers"], *asked["headers"]]}
    build["define"] = {**plan.build["define"], **asked["define"]}
    options = {**request.options, **{name: request.options[name] or value for name, value in plan.options.items()}}
    return _Request(build, plan.arrays, options, max(request.workspace or plan.workspace, 32), request.wanted)


def _pair(text: str, where: str = "--shape and --attr", form: str = "NAME=VALUE") -> tuple[str, str]:
    name, equal, value = text.partition("=")
    if not name or not equal:
        raise ShapeError(f"{where}: expected {form}, got {text!r}")
    return name, value


def _numbers(sizes: str, where: str, form: str, whole: str) -> list[int]:
    if not all(size.isdigit() for size in sizes.split(",")):
        raise ShapeError(f"{where}: expected {form}, got {whole!r}")
    return [int(size) for size in sizes.split(",")]


def _sizes(text: str) -> tuple[str, list[int]]:
    name, value = _pair(text)
    return name, _numbers(value, f"--shape {name}", "sizes as 8,2048", value)


def _array(text: str) -> tuple[str, Any]:
    """An argument: its name and its array."""
    name, value = _pair(text, "--arg", "NAME=FILE.npy or NAME=empty:DTYPE:SHAPE")
    if not value.startswith("empty:"):
        return name, _read(Path(value))
    _, dtype, *sizes = value.split(":")
    shape = _numbers(":".join(sizes), f"--arg {name}", "empty:DTYPE:SHAPE as empty:float32:2,32", value)
    return name, empty(shape, dtype, f"--arg {name}")


def empty(shape: Sequence[int], dtype: str, where: str) -> Any:
    """An array of bytes 0xFF: NaN in every float format, and true where it is bool."""
    whole = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    known = {**DTYPES, **{one: np.dtype(one) for one in whole}}
    if dtype not in known:
        raise DtypeError(f"{where}: expected a dtype of {', '.join(known)}, got {dtype!r}")
    if dtype == "bool":
        return np.ones(shape, bool)
    return np.frombuffer(b"\xff" * (math.prod(shape) * known[dtype].itemsize), known[dtype]).reshape(shape).copy()


def _read(path: Path) -> Any:
    from lngrad.files.boundary import map_file
    from lngrad.files.formats import npy_array

    existing(path)
    return np.array(npy_array(map_file(path), str(path)))  # its own memory: the kernel may write to it


def _target(text: str, arrays: dict[str, Any] | None) -> tuple[Path, str]:
    name, equal, value = text.partition("=")
    if not equal or (arrays is not None and name not in arrays):
        known = ", ".join(arrays or ("an input or an output",))
        raise ShapeError(f"--save: expected NAME=FILE.npy with a NAME of {known}, got {text!r}")
    return Path(value), name
