"""The command `lngrad soak`."""

from __future__ import annotations

from typing import Annotated

import typer

from lngrad.cli.app import FAILED, REFUSED, fail


def soak(
    seconds: Annotated[
        float | None, typer.Option(help="For how long.", show_default="60, or as long as --calls take")
    ] = None,
    calls: Annotated[int | None, typer.Option(help="How many calls at most.", show_default="no limit")] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds draw equal calls.")] = 0,
    doors: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Of numba_cpu, numpy_cpu, torch, override, jax.", show_default="all that are installed"
        ),
    ] = None,
) -> None:
    """Make random calls and check each: values, memory around outputs, inputs, bits on other numbers of threads.

    What breaks a rule is shrunk to a program of one line. docs/soak.md says what is drawn and what is looked at.

    Example: lngrad soak --calls 200 --doors numba_cpu,numpy_cpu

    Exit codes: 0 no call broke a rule, 1 one did, 2 the options are wrong.
    """
    from lngrad.check.soak import DOORS
    from lngrad.check.soak import soak as run_calls

    chosen = DOORS if doors is None else tuple(doors.split(","))
    try:
        report = run_calls(calls=calls, seconds=seconds, seed=seed, doors=chosen)
    except ValueError as error:
        fail(str(error), REFUSED)
    typer.echo(str(report))
    if report.violations:
        typer.echo(report.programs())
        raise typer.Exit(FAILED)
