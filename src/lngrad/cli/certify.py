"""The command `lngrad certify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lngrad.check.certify.measured import Certificate, Measured


def certify(
    impl: Annotated[str, typer.Option(help="As for lngrad check: a backend, torch, jax, onednn, module:function.")],
    report: Annotated[
        Path | None, typer.Option(metavar="HTML", help="A page for people, with the trees drawn.", show_default="none")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="JSON", help="All measurements, for programs.", show_default="none")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Of each promise; more find rarer failures.")] = 20,
) -> None:
    """Measure what a kernel promises: bits that repeat, rows that do not depend on their batch, the order of its sums.

    Nothing is judged: the exit code is 0 whatever was found. Where bits differ, the first counter-example is shown.

    Example: lngrad certify --impl numpy_cpu --trials 1
    """
    from lngrad.check.certify.certify import certify as measure
    from lngrad.check.reports.certificate import write_certificate_html, write_certificate_json

    group = ""

    def tell(so_far: Certificate, one: Measured | None) -> None:
        nonlocal group
        if one is None:
            typer.echo(" · ".join(filter(None, (so_far.name, so_far.version, so_far.machine, so_far.dtype))))
            return
        if one.group != group:
            group = one.group
            typer.echo(f"\n{group}")
        counted = f"  ({one.trials} trials)" if one.trials > 1 else ""
        typer.echo(f"  {one.name}: {one.answer}{counted}")
        if one.counterexample:
            typer.echo(f"    {one.counterexample}")

    certificate = measure(impl, trials, tell)
    if report is not None:
        write_certificate_html(report, certificate)
    if json is not None:
        write_certificate_json(json, certificate)
