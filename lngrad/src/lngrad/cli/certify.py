"""The command `lngrad certify`: measurements as they come, and reports of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from lngrad.cli.terminal import choice, file_option, impl_names, known_norm, plain_norms, say

if TYPE_CHECKING:
    from lngrad.check.certify.measured import Certificate, Measured


def certify(
    impl: Annotated[
        str, choice("As for lngrad check: a backend, torch, jax, module:function, ascendc:FILE.cpp:KERNEL.", impl_names)
    ],
    report: Annotated[Path | None, file_option("HTML", "A page for people, with the trees drawn.")] = None,
    json: Annotated[Path | None, file_option("JSON", "All measurements, for programs.")] = None,
    norm: Annotated[
        str, choice("layer_norm, rms_norm or another without a gate or samples.", plain_norms)
    ] = "layer_norm",
    trials: Annotated[int, Option(min=1, help="Of each promise; more find rarer failures.")] = 20,
    threads_variable: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="An environment variable that sets the kernel's number of threads, as OMP_NUM_THREADS; "
            "a function of yours may have a parameter threads.",
            show_default="none",
        ),
    ] = None,
) -> None:
    """Measure what a kernel promises: bits that repeat, rows that do not depend on their batch, the order of its sums.

    Nothing is judged: the exit code is 0 whatever was found. Where bits differ, the first counter-example is shown.

    Example: lngrad certify --impl numpy_cpu --trials 1
    """
    from lngrad.check.certify import certify as measure
    from lngrad.check.reports.certificate import write_certificate_html, write_certificate_json

    known_norm(norm, plain_norms)
    group = ""

    def tell(so_far: Certificate, measured: Measured | None) -> None:
        nonlocal group
        if measured is None:
            say(" · ".join(filter(None, (so_far.name, so_far.version, so_far.machine, so_far.norm, so_far.dtype))))
            return
        if measured.group != group:
            group = measured.group
            say(f"\n{group}")
        counted = f"  ({measured.trials} trials)" if measured.trials > 1 else ""
        say(f"  {measured.name}: {measured.answer}{counted}")
        if measured.counterexample:
            say(f"    {measured.counterexample}")

    certificate = measure(impl, trials, tell, threads_variable, norm)
    if report is not None:
        write_certificate_html(report, certificate)
    if json is not None:
        write_certificate_json(json, certificate)
