"""The command `lngrad kernel run`: an Ascend C kernel in C++ on the simulated NPU."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import typer
from typer import Argument, Option

import lngrad
from lngrad.cli.signature import with_options
from lngrad.cli.terminal import FAILED, REFUSED, existing, fail, files_exist, say, working
from lngrad.errors import DtypeError, FileFormatError, LngradError, ShapeError
from lngrad.support.dtypes import DTYPES
from lngrad_ascend.cli.options import Json, SocName, run_file, write_json

if TYPE_CHECKING:
    from lngrad_ascend.cpp.isolated import Result

Strictness = Literal["checked", "device"]
# The options that a whole program has too.
_OF_PROGRAMS = {
    "file", "include", "define", "soc", "strictness", "auto_sync", "ordering", "cycles", "remarks", "time_limit",
}  # fmt: skip


@dataclass
class RunOptions:
    """Options of `lngrad kernel run`."""

    context: typer.Context
    file: Annotated[
        Path | None, Argument(metavar="KERNEL.CPP", help="The C++ file.", show_default=False, callback=files_exist)
    ] = None
    kernel: Annotated[
        str | None, Option(help="The kernel function; a template with its arguments: name<0>.", show_default=False)
    ] = None
    arg: Annotated[
        list[str] | None,
        Option(
            help="NAME=FILE.npy; NAME=empty:DTYPE:SHAPE for an output; NAME=5 or 5:uint32, a number. In the kernel's order.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None
    project: Annotated[
        Path | None,
        Option(
            help="In the file's place: a folder with op_host and op_kernel, as msopgen makes it.", callback=files_exist
        ),
    ] = None
    shape: Annotated[
        list[str] | None, Option(help="With --project: an input that is drawn at random.", metavar="NAME=SIZES")
    ] = None
    dtype: Annotated[str, Option(help="With --project: of inputs that are drawn.")] = "float32"
    attr: Annotated[
        list[str] | None, Option(help="With --project: an attribute.", metavar="NAME=VALUE", show_default="its own")
    ] = None
    blocks: Annotated[int | None, Option(help="How many blocks to launch.", show_default="1, or the project's")] = None
    save: Annotated[
        list[str] | None, Option(help="NAME=FILE.npy: write an array after the run.", metavar="NAME=FILE")
    ] = None
    workspace: Annotated[int | None, Option(help="Bytes of workspace.", show_default="none")] = None
    tiling: Annotated[Path | None, Option(help="Its bytes (.bin), or a .json of fields.", callback=files_exist)] = None
    tiling_key: Annotated[int, Option(help="What TILING_KEY_IS compares with.")] = 0
    include: Annotated[
        list[Path] | None, Option("-I", help="A folder to search for headers.", callback=files_exist)
    ] = None
    header: Annotated[
        list[Path] | None, Option(help="A header to include ahead of the file.", callback=files_exist)
    ] = None
    define: Annotated[list[str] | None, Option("-D", help="A macro: NAME or NAME=VALUE.")] = None
    soc: SocName = None
    strictness: Annotated[Strictness, Option(help="checked: what CANN's checker reports is an error.")] = "checked"
    auto_sync: Annotated[bool, Option(help="Whether the compiler inserts barriers and scalar flags.")] = True
    ordering: Annotated[bool, Option(help="Whether races are looked for.")] = True
    timeline: Annotated[Path | None, Option(help="Write what ran on which pipe, as SVG; --cycles: to scale.")] = None
    cycles: Annotated[bool, Option("--cycles", help="Print how long a device would take, by a model.")] = False
    cycles_json: Annotated[Path | None, Option(help="Write the same as JSON.")] = None
    report: Annotated[bool, Option("--report", help="Print what each block did.")] = False
    remarks: Annotated[bool, Option("--remarks", help="Print what is harmless here and worth a look.")] = False
    json: Json = None
    time_limit: Annotated[float, Option(help="Seconds for the kernel; compiling does not count.", min=0.01)] = 600.0
    force: Annotated[bool, Option("--force", help="Replace files that exist.")] = False


_WHOLE = "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?::(\w+))?")


class _Target(NamedTuple):
    """An array to write after the run."""

    path: Path
    name: str


@with_options
def kernel_run(options: RunOptions) -> None:
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
    file, project = options.file, options.project
    if file is not None and file.suffix == ".asc" and not (options.kernel or options.arg or project):
        raise typer.Exit(FAILED if _run_program(file, options) else 0)
    if (project is None) == (file is None) or (file is not None and not (options.kernel and options.arg)):
        raise FileFormatError(
            "kernel run: expected KERNEL.CPP with --kernel and --arg, a whole program FILE.asc, or --project DIR; see lngrad "
            "kernel run --help"
        )
    arrays = dict(map(_array, options.arg or ()))
    targets = [_target(text, None if project else arrays) for text in options.save or ()]
    _check_places(options, targets)
    try:
        result = _run_kernel(options, arrays, targets)
    except LngradError as error:
        if options.json is not None:
            write_json(_verdict(str(error), type(error).__name__), options.json)
        if options.json == "-":
            raise typer.Exit(REFUSED) from None
        raise
    for line in result.output:
        say(line, err=True)
    if options.json is not None:
        if options.json == "-":
            say("")  # the kernel may have left a line open
        write_json(_verdict(result.fault, result.kind, result.warnings, result.remarks), options.json)
    if options.json != "-":
        for warning in result.warnings:
            say(f"warning: {warning}", err=True)
    _write_files(result, options, targets)
    if options.json != "-":
        _say(result, options)


def _run_program(file: Path, options: RunOptions) -> int:
    """Build and run an .asc file with its own main."""
    from lngrad_ascend.soc import DEFAULT, Settings

    for parameter in options.context.command.params:
        source = options.context.get_parameter_source(parameter.name or "")
        if parameter.name not in _OF_PROGRAMS and source is not None and source.name == "COMMANDLINE":
            raise FileFormatError(f"{parameter.opts[0]}: expected a kernel file, got the program {file.name}")
    words = [f"strictness={options.strictness}"]
    words += [
        f"{name}={'on' if getattr(options, name) else 'off'}" for name in ("ordering", "auto_sync", "cycles", "remarks")
    ]
    flags = [*(f"-I{folder}" for folder in options.include or ()), *(f"-D{macro}" for macro in options.define or ())]
    settings = Settings(soc=options.soc or DEFAULT)
    return run_file([str(file)], settings, options.time_limit, flags=flags, rules=",".join(words))


def _check_places(options: RunOptions, targets: list[_Target]) -> None:
    """Refuse a file that exists, or that can't be written, before anything runs."""
    from lngrad.files.writing import check_place

    report = None if options.json in (None, "-") else Path(options.json)
    for path in filter(None, (*(target.path for target in targets), options.timeline, options.cycles_json, report)):
        check_place(path, replace=options.force)


def _run_kernel(options: RunOptions, arrays: dict[str, Any], targets: list[_Target]) -> Result:
    from lngrad_ascend.cpp.isolated import ProjectInputs, Request, run
    from lngrad_ascend.tiling.structs import tiling_of

    macros = {
        name: value if equal else None for name, equal, value in (word.partition("=") for word in options.define or ())
    }
    inputs = None
    if options.project:
        shapes, attributes = dict(map(_sizes, options.shape or ())), dict(map(_pair, options.attr or ()))
        inputs = ProjectInputs(options.project, shapes, options.dtype, attributes)
    request = Request(
        build={
            "path": options.file,
            "kernel": options.kernel,
            "include": options.include or (),
            "headers": options.header or (),
            "define": macros,
        },
        arrays=arrays,
        options={
            "blocks": options.blocks or (None if options.project else 1),
            "tiling": options.tiling and tiling_of(options.tiling),
            "timeline": options.timeline is not None,
            "cycles": options.cycles or options.cycles_json is not None,
            **{name: getattr(options, name) for name in ("tiling_key", "soc", "strictness", "auto_sync", "ordering")},
        },
        workspace=options.workspace,
        wanted=[target.name for target in targets],
        project=inputs,
    )
    return run(request, options.time_limit, working(f"compiling {request.name}"))


def _say(result: Result, options: RunOptions) -> None:
    if options.report:
        say(result.table)
    if options.cycles:
        say(result.cycles.table())
    for remark in result.remarks * options.remarks:
        say(f"remark: {remark}")
    if result.remarks and not options.remarks:
        say(f"remarks: {len(result.remarks)} (--remarks prints them)", err=True)


def _verdict(fault: str | None, kind: str, warnings: Sequence[str] = (), remarks: Sequence[str] = ()) -> str:
    """What is known of a run, for programs: the verdict, and of a fault its text, kind, line, and what is missing."""
    line = re.search(r"(?m)^(?:block \d+: )?(\S+:\d+): |Ascend C call was at (\S+:\d+)", fault or "")
    missing = re.search(
        r"Missing between them: (.*?)(?: \[\w[\w, ]*\])?$|(\w+) is not declared; as an Ascend C API", fault or ""
    )
    kinds = {"": "crashed" if fault else "warned" if warnings else "passed", "CompileError": "does not compile"}
    facts = {
        "format": 1,
        "lngrad": lngrad.__version__,
        "verdict": kinds.get(kind, "fault"),
        "fault": fault,
        "kind": kind or None,
        "line": line and (line[1] or line[2]),
        "missing": missing and (missing[1] or missing[2]),
        "warnings": warnings,
        "remarks": remarks,
    }
    return json.dumps(facts, ensure_ascii=False)


def _write_files(result: Result, options: RunOptions, targets: list[_Target]) -> None:
    """The picture, also of a kernel that failed, which ends the command here; the cycles, and the arrays that are wanted."""
    from lngrad.files.writing import write_tensor, write_text

    if options.timeline is not None and result.picture is not None:
        write_text(options.timeline, result.picture)
    if result.fault is not None and options.json == "-":
        raise typer.Exit(FAILED)
    if result.fault is not None:
        fail(result.fault, FAILED)
    if options.cycles_json is not None:
        write_text(options.cycles_json, result.cycles.to_json() + "\n")
    for target in targets:
        write_tensor(target.path, result.arrays[target.name], replace=options.force)


def _pair(text: str, where: str = "--shape and --attr", form: str = "NAME=VALUE") -> tuple[str, str]:
    name, equal, value = text.partition("=")
    if not name or not equal:
        raise ShapeError(f"{where}: expected {form}, got {text!r}")
    return name, value


def _numbers(sizes: str, where: str, form: str, whole: str) -> list[int]:
    if not all(size.isdigit() for size in sizes.split(",")):
        raise ShapeError(f"{where}: expected {form}, got {whole!r}")
    return [int(size) for size in sizes.split(",")]


def _number(where: str, digits: str, dtype: str | None) -> int | float:
    """A number, which a dtype must be able to hold."""
    if dtype is None or dtype in _WHOLE:
        whole = not set(digits) & set(".eE")
        value = int(digits) if whole else float(digits)
        if dtype and (not whole or np.array(value).astype(dtype) != value):
            raise DtypeError(f"{where}: expected a number of {dtype}, got {digits}")
        return value
    if dtype not in DTYPES:
        raise DtypeError(f"{where}: expected a dtype of {', '.join((*DTYPES, *_WHOLE))}, got {dtype!r}")
    return float(DTYPES[dtype].type(digits))


def _sizes(text: str) -> tuple[str, list[int]]:
    name, value = _pair(text)
    return name, _numbers(value, f"--shape {name}", "sizes as 8,2048", value)


def _array(text: str) -> tuple[str, Any]:
    """An argument: its name and its array."""
    name, value = _pair(text, "--arg", "NAME=FILE.npy, NAME=empty:DTYPE:SHAPE or NAME=NUMBER")
    number = _NUMBER.fullmatch(value)
    if number:
        return name, _number(f"--arg {name}", number[1], number[2])
    if not value.startswith("empty:"):
        return name, _read(Path(value))
    _, dtype, *sizes = value.split(":")
    shape = _numbers(":".join(sizes), f"--arg {name}", "empty:DTYPE:SHAPE as empty:float32:2,32", value)
    return name, empty(shape, dtype, f"--arg {name}")


def empty(shape: Sequence[int], dtype: str, where: str) -> Any:
    """An array of bytes 0xFF: NaN in every float format, and true where it is bool."""
    known = {**DTYPES, **{name: np.dtype(name) for name in _WHOLE}}
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


def _target(text: str, arrays: dict[str, Any] | None) -> _Target:
    name, equal, value = text.partition("=")
    whole = arrays and [known for known, array in arrays.items() if isinstance(array, np.ndarray)]
    if not equal or (whole is not None and name not in whole):
        known = ", ".join(whole or ("an input or an output",))
        raise ShapeError(f"--save: expected NAME=FILE.npy with a NAME of {known}, got {text!r}")
    return _Target(Path(value), name)
