"""The command behind `make soak`: PYTHONPATH=tests python -m soak --calls 200 --entry-points numba_cpu,numpy_cpu"""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from lngrad.cli.terminal import FAILED, REFUSED, fail, in_one_line, known_norm, say, working
from lngrad.core.norms import PLAIN
from soak.call import ENTRY_POINTS
from soak.faults import FAULTS
from soak.run import Report, program, shrink
from soak.run import soak as run_calls

CALLS_A_LINE = 50  # between two lines about its progress


def soak(
    seconds: Annotated[
        float | None, Option(help="For how long.", show_default="60, or as long as --calls take")
    ] = None,
    calls: Annotated[int | None, Option(help="How many calls at most.", show_default="no limit")] = None,
    seed: Annotated[int, Option(help="Equal seeds draw equal calls.")] = 0,
    entry_points: Annotated[
        str | None, Option(metavar="A,B", help=f"Of {', '.join(ENTRY_POINTS)}.", show_default="all that are installed")
    ] = None,
    norm: Annotated[str | None, Option(help=f"One of {', '.join(PLAIN)}.", show_default="all of them")] = None,
    fault: Annotated[
        str | None, Option(help=f"Around every call: one of {', '.join(FAULTS)}.", show_default="any around a few")
    ] = None,
) -> None:
    """Make random calls and check each: values, memory around outputs, inputs, bits on other numbers of threads.

    A call that breaks a rule is shrunk to a program of one line; docs/soak.md says what is drawn and checked.

    Exit codes: 0 no call broke a rule, 1 one did, 2 the options are wrong.
    """
    known_norm(norm)
    chosen = ENTRY_POINTS if entry_points is None else tuple(entry_points.split(","))

    def tell(so_far: Report) -> None:
        if so_far.calls % CALLS_A_LINE == 0:
            update(f"{so_far.calls:,} calls, {len(so_far.violations)} violations")

    try:
        with working("compiling or loading kernels") as update:
            report = run_calls(
                calls=calls, seconds=seconds, seed=seed, entry_points=chosen, norm=norm, fault=fault, tell=tell
            )
    except ValueError as error:
        fail(f"--{error}", REFUSED)
    say(str(report))
    for call, reason in report.violations:
        say(f"{reason}\n  {program(call)}")
        with working("looking for the smallest such call"):  # one that hangs takes two minutes a step
            say(f"  smallest: {program(shrink(call))}")
    if report.violations:
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    typer.run(in_one_line(soak))
