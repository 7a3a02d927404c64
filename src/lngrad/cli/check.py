"""The commands `lngrad check` and `lngrad golden`: options in, files and an exit code out."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from lngrad.cli.app import FAILED, INTERRUPTED, REFUSED, fail, in_one_line
from lngrad.errors import FileFormatError

Cases = Annotated[
    list[Path],
    typer.Argument(
        metavar="CASES…",
        show_default=False,
        help="TTK .csv, ATK .json, our .yaml, folders of those, or folders of dumps.",
    ),
]
CasesOrOurs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="CASES…",
        show_default="eighty that come with lngrad",
        help="TTK .csv, ATK .json, our .yaml, folders of those, or folders of dumps.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the inputs: equal seeds give equal inputs on every machine.")]
Filter = Annotated[
    str | None, typer.Option(help="Part of a case's name, a pattern with * or ?, or =NAME.", show_default="all")
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many cases.", show_default="all")]
MaxBytes = Annotated[int, typer.Option(min=1, help="A case or file that takes more is not run, and not allocated.")]


def register(app: typer.Typer) -> None:
    """Make both commands of an app. Errors are one line and exit code 2."""
    for function in (check, golden):
        app.command()(in_one_line(function))


def check(
    cases: CasesOrOurs = None,
    impl: Annotated[
        str,
        typer.Option(
            help="A backend, torch, torch_compile, jax, onednn, mindspore, graph, graph_v3, aclnn, ascend_sim; "
            "module:function, triton:module:function or 'cmd:./program {in} {out}' of yours; or mutant:NAME."
        ),
    ] = "numba_cpu",
    standard: Annotated[
        str, typer.Option(help="mixed, stat, close, cosine, binary, dual or exact; a case's own goes first.")
    ] = "mixed",
    level: Annotated[str, typer.Option(help="Of the standard dual: L0, L1 or L2.")] = "L1",
    third: Annotated[str, typer.Option(help="Implementation that the standard dual compares with.")] = "torch",
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Judge dumps of a device in place of an implementation.", show_default="none"
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="HTML", help="A report for people.", show_default="none")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="XML", help="A report for CI.", show_default="none")] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="JSONL", help="Every result as it comes.", show_default="none")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="JSONL", help="An earlier --json file: say what got better and worse.", show_default="none"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the results that the --json file has already.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core, at most 8")] = None,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for a case; then it has failed.")] = 300.0,
    seed: Seed = 0,
    filter: Filter = None,
    limit: Limit = None,
    max_bytes: MaxBytes = 8 << 30,
    block_bytes: Annotated[int, typer.Option(min=1, help="A larger case is computed in blocks of rows.")] = 512 << 20,
) -> None:
    """Say whether gradients are right, and if not, which mistake they look like.

    Exit code 0: all passed; 1: some failed; 2: an option or a file can't be used, or no case applies.

    Example: lngrad check --impl numpy_cpu --limit 5
    """
    from lngrad.check.formats.reading import read_cases, select, shipped
    from lngrad.check.judge import Options
    from lngrad.check.reports.journal import read_journal
    from lngrad.check.standards.rules import LEVELS, STANDARDS

    _one_of("--standard", standard, STANDARDS)
    _one_of("--level", level, LEVELS)
    if resume and json is None:
        raise FileFormatError("--resume: needs --json FILE, which has the results so far")
    if against is not None and not against.is_dir():
        raise FileFormatError(f"--against: {against}: no such folder")
    if report is not None:
        _need_jinja2()
    for path in (report, junit, json):
        if path is not None and not path.absolute().parent.is_dir():
            raise FileFormatError(f"{path}: no folder {path.parent}")
    for path in cases or ():
        if not path.exists():
            raise FileFormatError(
                f"{path}: no such file or folder; without CASES, those that come with lngrad are taken"
            )
    earlier = list(read_journal(compare).values()) if compare is not None else None
    chosen = select(read_cases(cases or [shipped()], max_bytes), filter, limit)
    invoked = ["lngrad", "check", "--standard", standard] if standard != "mixed" else ["lngrad", "check"]
    invoked += ["--against", str(against)] if against else ["--impl", impl]
    options = Options(
        impl=impl, standard=standard, level=level, third=third, against=str(against) if against else None,
        seed=seed, max_bytes=max_bytes, block_bytes=block_bytes, invoked=shlex.join(invoked),
    )  # fmt: skip
    start = monotonic()
    results, interrupted = _run(chosen, options, json, resume, jobs, time_limit)
    _report(results, options, monotonic() - start, report, junit, earlier)
    if interrupted:
        hint = f"; --resume --json {json} goes on" if json else "; with --json FILE it could go on"
        fail(f"interrupted after {len(results)} of {len(chosen)} cases{hint}", INTERRUPTED)
    if any(result.status == "failed" for result in results):
        raise typer.Exit(FAILED)
    if not any(result.status == "passed" for result in results):
        fail("no case was checked: all are skipped", REFUSED)


def golden(
    cases: Cases,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", show_default=False, help="New, or empty.")
    ],
    format: Annotated[str, typer.Option(help="bin, npy, npz or safetensors.")] = "bin",
    seed: Seed = 0,
    filter: Filter = None,
    limit: Limit = None,
    max_bytes: MaxBytes = 8 << 30,
) -> None:
    """Write inputs and float64-true results of cases, in the layout that device tests replay.

    Example: lngrad golden cases -o goldens --limit 5
    """
    from lngrad.check.formats.reading import read_cases, select
    from lngrad.check.golden import write_goldens

    _one_of("--format", format, ("bin", "npy", "npz", "safetensors"))
    chosen = select(read_cases(cases, max_bytes), filter, limit)
    with _progress(len(chosen)) as (advance, _):
        size = write_goldens(chosen, output, format, seed, max_bytes, advance)  # type: ignore[arg-type]  # checked
    typer.echo(f"{output}: {len(chosen)} cases, {size / 1e6:.1f} MB")


def _one_of(name: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise FileFormatError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


def _need_jinja2() -> None:
    if find_spec("jinja2") is None:
        raise FileFormatError("--report: needs jinja2: pip install 'lngrad[check]'")


def _run(
    cases: list[Any], options: Any, journal: Path | None, resume: bool, jobs: int | None, time_limit: float
) -> tuple[list[Any], bool]:
    """All results, in the order of the cases; and whether Ctrl-C cut them short."""
    from contextlib import ExitStack

    from lngrad.check.processes.runner import default_jobs, run_cases
    from lngrad.check.reports.journal import Journal, key_of, read_journal
    from lngrad.cli.check_report import MOST_PRINTED, print_result

    keys = {case.name: key_of(case, options) for case in cases}
    kept = read_journal(journal) if resume and journal and journal.is_file() else {}
    found = {case.name: kept[keys[case.name]] for case in cases if keys[case.name] in kept}
    waiting = [case for case in cases if case.name not in found]
    interrupted = False
    with ExitStack() as stack:
        file = stack.enter_context(Journal(journal, found.values())) if journal else None
        advance, console = stack.enter_context(_progress(len(cases), len(found)))
        printed = 0

        def done(result: Any) -> None:
            nonlocal printed
            result = replace(result, key=keys[result.name])
            found[result.name] = result
            if file:
                file.append(result)
            if result.status == "failed" and printed < MOST_PRINTED:
                print_result(console, result)
                printed += 1
                if printed == MOST_PRINTED:
                    console.print("[dim]further failures are in the reports[/]")
            advance()

        try:
            run_cases(waiting, options, jobs or default_jobs(), time_limit, done)
        except KeyboardInterrupt:
            interrupted = True
    return [found[case.name] for case in cases if case.name in found], interrupted


def _report(
    results: list[Any], options: Any, seconds: float, report: Path | None, junit: Path | None, earlier: list[Any] | None
) -> None:
    from rich.console import Console

    from lngrad.check.reports.journal import changes
    from lngrad.cli.check_report import print_changes, print_summary

    console = Console(highlight=False)
    changed = changes(earlier, results) if earlier is not None else []
    if earlier is not None:
        print_changes(console, changed)
    print_summary(console, results, seconds)
    if junit is not None:
        from lngrad.check.reports.journal import write_junit

        write_junit(junit, results, options.against or options.impl)
    if report is not None:
        from lngrad.check.reports.html import write_report

        write_report(report, results, options, seconds, changed)
        typer.echo(f"report: {report}")


@contextmanager
def _progress(total: int, completed: int = 0) -> Any:
    """Gives a function to be called for every case that is done, and a console whose lines stay above the bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:.1f} cases/s" if task.speed else "", style="dim")

    console = Console(highlight=False)
    columns = (TextColumn("cases"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("cases", total=total, completed=completed)
        yield lambda: bar.advance(task), console
