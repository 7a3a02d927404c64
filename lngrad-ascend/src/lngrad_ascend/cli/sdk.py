"""The commands that build against the toolkit folder: `lngrad sdk`, `lngrad kernel test`."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from lngrad.cli.terminal import FAILED, REFUSED, completing, fail, files_exist, new_table, say, working
from lngrad.errors import printable
from lngrad_ascend.cli.options import SocName, run_file, soc_names

_PROGRAM = "lngrad.sdk.program"


class CutAtRun(TyperCommand):
    """Everything after --run belongs to the program: its file, and its own arguments and options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--run" in args:
            at = args.index("--run")
            ctx.meta[_PROGRAM] = args[at + 1 :]
            args = args[: at + 1]
        return super().parse_args(ctx, args)


def sdk(
    ctx: typer.Context,
    folder: Annotated[
        Path | None,
        Argument(metavar="DIR", show_default=False, help="The toolkit folder; with --run it may be left out."),
    ] = None,
    run: Annotated[
        bool, Option("--run", help="FILE [ARG]…: compile, link and run one C or C++ file. Comes last.")
    ] = False,
    cflags: Annotated[bool, Option("--cflags", help="Print what a compiler needs to find DIR's headers.")] = False,
    libs: Annotated[bool, Option("--libs", help="Print what a compiler needs to link DIR's library.")] = False,
    soc: SocName = None,
    cann: Annotated[
        str | None, Option(help="The CANN release whose documents the checks follow.", show_default="8.3")
    ] = None,
    mode: Annotated[
        str | None, Option(help="strict (documents) or compat (published code).", show_default="strict")
    ] = None,
    rounding: Annotated[
        str | None, Option(help="even, or device: as the SoC's kernels round.", show_default="even")
    ] = None,
    time_limit: Annotated[
        float | None, Option(help="Seconds for the program of --run.", min=0.01, show_default="none")
    ] = None,
    unified: Annotated[
        bool, Option("--unified", help="Programs may pass host memory in the place of device memory.")
    ] = False,
) -> None:
    """Write a toolkit folder: CANN host programs in C and C++ compile, link and run with it, without an NPU.

    Headers, a library under the names that programs link, set_env.sh, a CMake package. Built with your C compiler. With
    --cflags or --libs, a folder that is there is described, not written.

    Example: lngrad sdk toolkit
    """
    from lngrad_ascend.sdk import Settings, is_toolkit, write_toolkit
    from lngrad_ascend.sdk import cflags as compile_flags
    from lngrad_ascend.sdk import libs as link_flags
    from lngrad_ascend.sdk.toolkit import host

    chosen = {"soc": soc, "cann": cann, "mode": mode, "rounding": rounding, "unified": unified or None}
    try:
        settings = Settings(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]
    except ValueError as error:
        fail(f"--{error}", REFUSED)
    if run:
        if not ctx.meta[_PROGRAM]:
            fail("--run: expected a C or C++ file after it", REFUSED)
        raise typer.Exit(run_file(ctx.meta[_PROGRAM], settings, time_limit, folder))
    if folder is None:
        fail("DIR: expected a folder to write, or --run FILE", REFUSED)
    if cflags or libs:
        if not is_toolkit(folder):
            fail(f"{folder}: expected a folder that `lngrad sdk` wrote", REFUSED)
        words = compile_flags(folder) * cflags + link_flags(folder) * libs
        say(shlex.join(words))
        return
    with working(f"building {folder}"):
        write_toolkit(folder, settings)
    say(f"{folder}: headers, library, set_env.sh; see {folder / 'README.md'}")
    if python := host(folder):
        say(f"warning: {python} has no shared library: programs start only by lngrad sdk {folder} --run FILE", err=True)


def kernel_test(
    folder: Annotated[
        Path, Argument(metavar="DIR", help="The operator's folder, with tests/ut/op_kernel.", callback=files_exist)
    ],
    gtest: Annotated[
        Path | None,
        Option(help="A folder with include/gtest and libgtest.", show_default="the system's", callback=files_exist),
    ] = None,
    define: Annotated[list[str] | None, Option("-D", help="A macro: NAME or NAME=VALUE.")] = None,
    include: Annotated[
        list[Path] | None, Option("-I", help="A folder to search for headers.", callback=files_exist)
    ] = None,
    soc: Annotated[
        str | None,
        Option(help="The simulated SoC.", autocompletion=completing(soc_names), show_default="the tests'"),
    ] = None,
    mode: Annotated[Literal["checked", "device", "both"], Option(help="How strict; see kernel run.")] = "both",
    cycles: Annotated[bool, Option("--cycles", help="Print how long each launch would take, by a model.")] = False,
    time_limit: Annotated[float, Option(help="Seconds for a test.", min=0.01)] = 120.0,
) -> None:
    """Build an operator's own gtest unit tests for the simulated NPU, and run them.

    The folder is one of CANN's operator library, or like one of them: op_kernel/ and tests/ut/op_kernel/ with test_*.cpp,
    a tiling header and the compiler's options in CMakeLists.txt. Where a test takes its process down, each gets one of its
    own. In the mode "device", what the hardware runs without an error runs here too, and races are not looked for.

    Example: lngrad kernel test ops-nn/norm/layer_norm_grad_v3

    Exit codes: 0 all tests passed, 1 one did not, 2 there are none, or there is no compiler.
    """
    from rich.console import Console

    from lngrad_ascend.sdk.operator_tests import MODES, run_operator

    modes = tuple(MODES) if mode == "both" else (mode,)
    options = [*(f"-I{path}" for path in include or ()), *(f"-D{macro}" for macro in define or ())]
    table = new_table(folder.name, "test", *modes, "why", show_lines=True)
    passed, took = True, dict[str, None]()
    building = working(f"building and running the tests of {folder.name}")
    with tempfile.TemporaryDirectory(prefix="lngrad-kernel-") as scratch, building:
        found = run_operator(
            folder, Path(scratch), soc=soc, gtest=gtest, options=options, modes=modes, cycles=cycles, time_limit=time_limit,
        )  # fmt: skip
        for file in found:
            if file.error:
                why = printable(f"does not compile: {file.error}", markup=True)
                table.add_row(printable(file.path.name, markup=True), *("-" for _ in modes), why)
            for name, cases in file.by_name().items():
                whys = dict.fromkeys(case.why for case in cases if case.why)
                shown = (printable(text, markup=True) for text in (name, "\n".join(whys)))
                table.add_row(next(shown), *(case.state for case in cases), next(shown))
            passed = passed and not file.error and all(case.state == "passed" for case in file.cases)
            took |= file.cycles
    Console().print(table)
    for line in took:
        say(line)
    if not passed:
        raise typer.Exit(FAILED)
