"""The command `lngrad sdk`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from lngrad.cli.terminal import REFUSED, SocName, existing, fail, say, working

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
    from lngrad.ascend.sdk import Settings, is_toolkit, write_toolkit
    from lngrad.ascend.sdk import cflags as compile_flags
    from lngrad.ascend.sdk import libs as link_flags

    chosen = {"soc": soc, "cann": cann, "mode": mode, "rounding": rounding, "unified": unified or None}
    try:
        settings = Settings(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]
    except ValueError as error:
        fail(f"--{error}", REFUSED)
    if run:
        _run(folder, settings, ctx.meta[_PROGRAM], time_limit)
        return
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


def _run(folder: Path | None, settings: Any, words: list[str], time_limit: float | None) -> None:
    from lngrad.ascend.sdk.program import run_program
    from lngrad.support.children import children, end_children, guarded

    if not words:
        fail("--run: expected a C or C++ file after it", REFUSED)
    existing(Path(words[0]))
    building = working(f"building {words[0]}")
    guarded()
    ours = dict(children())
    try:
        code = run_program(Path(words[0]), words[1:], folder, settings, time_limit, building)
    finally:
        end_children(lambda process, _: process in ours)  # what the program has started
    if code != 0:
        raise typer.Exit(code)
