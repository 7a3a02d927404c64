"""The commands of lngrad.check: `check` and `golden`: both read cases."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from lngrad.cli.signature import with_options
from lngrad.cli.terminal import (
    FAILED,
    INTERRUPTED,
    REFUSED,
    choice,
    completing,
    escape,
    explaining,
    fail,
    file_option,
    files_exist,
    impl_names,
    in_table,
    known_norm,
    need,
    new_table,
    norm_names,
    one_of,
    progress,
    say,
)
from lngrad.files.boundary import one_line
from lngrad.support.children import end_children, guarded

if TYPE_CHECKING:
    from rich.console import Console

    from lngrad.check.case import CheckCase, Options
    from lngrad.check.implementations import Signature
    from lngrad.check.reports.journal import VerdictChange
    from lngrad.check.result import CaseResult
    from lngrad.check.verdict import Run

MAX_PRINTED = 20  # failures, and other lines of a kind
FORMATS = ("bin", "npy", "npz", "safetensors")  # of golden

CASES = "TTK .csv, ATK .json, our .yaml, folders of those, or folders of dumps."
Cases = Annotated[list[Path], Argument(metavar="CASES…", show_default=False, help=CASES, callback=files_exist)]
CasesOrOurs = Annotated[
    list[Path] | None,
    Argument(metavar="CASES…", show_default="those that come with lngrad", help=CASES, callback=files_exist),
]
SEED = "Of the inputs: equal seeds give equal inputs on every machine."
Seed = Annotated[int, Option(min=0, help=SEED)]
Filter = Annotated[
    str | None, Option(help="Part of a case's name, a pattern with * or ?, or =NAME.", show_default="all")
]
NormName = Annotated[
    str | None, Option("--norm", help="What is computed, where a case does not say: layer_norm, rms_norm, gemma_rms_norm, "
                       "zero_centred_layer_norm, add_layer_norm, add_rms_norm, deep_norm, gated_rms_norm, rms_norm_of_gated, "
                       "rms_norm_of_gated_groups, modulated_layer_norm, modulated_rms_norm.", show_default="a case's own",
                       autocompletion=completing(norm_names))
]  # fmt: skip
Limit = Annotated[int | None, Option(min=1, help="At most this many cases.", show_default="all")]
Explain = Annotated[
    str | None, Option(metavar="NAME|CODE", help="Say what a known mistake is, with an example, and do nothing else.",
                       show_default="none", is_eager=True, callback=explaining)
]  # fmt: skip
Resume = Annotated[
    str | None, Option(metavar="DIGEST|any", show_default="none", help="Keep the results of the --json file, which has the "
                       "digest that an interrupted run printed; any: believe it.")
]  # fmt: skip
MaxBytes = Annotated[int, Option(min=1, help="A case or file that takes more is not run, and not allocated.")]


@dataclass(frozen=True)
class CheckOptions:
    """The options of `lngrad check`."""

    cases: CasesOrOurs = None
    impl: Annotated[
        str,
        choice(
            "A backend, torch, torch_compile, jax, mindspore, graph, graph_v3, aclnn, ascend_sim; "
            "of yours module:NAME or FILE.py:NAME (a function, a module, an autograd.Function), hub:FOLDER, "
            "triton:module:function, ascendc:FILE.cpp:KERNEL or 'cmd:./program {in} {out}'; or mutant:NAME.",
            impl_names,
        ),
    ] = "numba_cpu"
    standard: Annotated[
        str,
        choice(
            "auto (stable; mixed where x has 16 bits), mixed, stat, close, cosine, binary, dual, exact, stable or "
            "llama; a case's own goes first.",
            lambda: ("auto", *in_table("lngrad.check.standards", "STANDARDS")),
        ),
    ] = "auto"
    norm: NormName = None
    level: Annotated[str, choice("Of the standard dual: L0, L1 or L2.", lambda: ("L0", "L1", "L2"))] = "L1"
    third: Annotated[str, choice("Implementation that the standard dual compares with.", impl_names)] = "torch"
    against: Annotated[
        Path | None,
        file_option("FOLDER", "Judge dumps of a device in place of an implementation.", callback=files_exist),
    ] = None
    report: Annotated[Path | None, file_option("HTML", "A report for people.")] = None
    junit: Annotated[Path | None, file_option("XML", "A report for CI.")] = None
    sarif: Annotated[Path | None, file_option("JSON", "A report for code scanning.")] = None
    json: Annotated[
        Path | None,
        file_option("JSONL", "Every result as it comes; the last line is the run. -: that line on stdout alone."),
    ] = None
    compare: Annotated[
        Path | None,
        file_option("JSONL", "An earlier --json file: say what got better and worse.", callback=files_exist),
    ] = None
    resume: Resume = None
    jobs: Annotated[int | None, Option(min=1, help="Processes.", show_default="one a core, at most 8")] = None
    time_limit: Annotated[float, Option(min=0.1, help="Seconds for a call; then its case has failed.")] = 300.0
    seed: Annotated[int | None, Option(min=0, help=SEED, show_default="drawn, and printed")] = None
    seeds: Annotated[int, Option(min=1, help="Every case with so many seeds, from --seed on.")] = 1
    fuzz: Annotated[
        int | None, Option(min=0, metavar="N", help="N random cases besides.", show_default="20 without CASES")
    ] = None
    repeatable: Annotated[bool, Option("--repeatable", help="Equal calls must give equal bits, 12 times.")] = False
    allow: Annotated[str | None, Option(help="inplace-dy: dx may lie in dy's memory.", show_default="none")] = None
    fail_fast: Annotated[bool, Option("--fail-fast", help="End with the first failure.")] = False
    no_diagnosis: Annotated[bool, Option("--no-diagnosis", help="Judge alone: search no mistake.")] = False
    time: Annotated[bool, Option("--time", help="Time right results too, one case after the other.")] = False
    max_skipped: Annotated[
        str, Option(metavar="N|N%", help="More skipped cases than this are no pass: exit code 1.")
    ] = "34%"
    filter: Filter = None
    limit: Limit = None
    max_bytes: MaxBytes = 8 << 30
    block_bytes: Annotated[int, Option(min=1, help="A larger case is judged in blocks of rows.")] = 512 << 20
    explain: Explain = None

    def words(self, norm: str | None) -> list[str]:
        """The command of a run of this norm, as far as cases fail by it."""
        from lngrad.check.standards import AUTO

        words = ["--standard", self.standard] * (self.standard != AUTO) + (["--norm", norm] if norm else [])
        words += ["--against", str(self.against)] if self.against else ["--impl", self.impl]
        words += ["--repeatable"] * self.repeatable + (["--allow", self.allow] if self.allow else [])
        return ["lngrad", "check", *words]

    def refuse(self) -> None:
        """End the command at an option that can't be used."""
        from lngrad.check.standards import AUTO, LEVELS, STANDARDS
        from lngrad.check.verdict import ALLOWED, valid_max_skipped

        one_of("--standard", self.standard, (AUTO, *STANDARDS))
        one_of("--level", self.level, LEVELS)
        known_norm(self.norm)
        valid_max_skipped(self.max_skipped)
        if self.allow is not None:
            one_of("--allow", self.allow, ALLOWED)
        _places(self.cases or (), self.report, self.junit, self.sarif, self.json)


@with_options
def check(options: CheckOptions) -> None:
    """Say whether gradients are right, and if not, which mistake they look like.

    Exit code 0: all passed; 1: some failed, or too many were skipped; 2: an option or a file can't be used, or no case applies.

    Example: lngrad check --impl numpy_cpu --limit 5
    """
    from rich.console import Console

    from lngrad.check.reports.journal import STDOUT, changes, finish, read_journal, seed_of
    from lngrad.check.result import settled
    from lngrad.check.verdict import chosen_cases, drawn_seed, summary

    options.refuse()
    earlier = list(read_journal(options.compare).values()) if options.compare is not None else None
    guarded()
    kept = {} if options.resume is None else _kept(options.json, options.resume)
    is_drawn = options.seed is None
    seed = seed_of(kept.values(), 0 if options.against else drawn_seed()) if options.seed is None else options.seed
    signature, norm = _signature_and_norm(options)
    seeds, selected = range(seed, seed + options.seeds), (options.filter, options.limit)
    chosen = chosen_cases(options.cases, norm, selected, seeds, options.fuzz, options.max_bytes, signature)
    run_options = _run_options(options, seed, norm)
    start = monotonic()
    try:
        found, interrupted = _run(chosen, run_options, options, kept)
        seconds, results = monotonic() - start, settled(found)
        scripts = options.json is not None and not interrupted
        run = summary(results, chosen, run_options, signature, seconds, options.max_skipped, scripts=scripts)
    finally:
        end_children(lambda _, session: session == os.getsid(0))  # kernels' own, which could write what comes now
    digest = finish(options.json, run) if options.json is not None else ""
    console = Console(highlight=False, stderr=options.json == STDOUT)
    changed = [] if earlier is None else changes(earlier, results)
    if earlier is not None:
        _print_changes(console, changed)
    _print_summary(console, run, found, is_drawn)
    _write_reports(options, run, run_options, changed)
    if interrupted:
        hint = f"; --json {options.json} --resume {digest} goes on" if digest else "; with --json FILE it could go on"
        fail(f"interrupted after {len(results)} of {len(chosen)} cases{hint}", INTERRUPTED)
    _end(run.counts, options.max_skipped)


def _signature_and_norm(options: CheckOptions) -> tuple[Signature | None, str | None]:
    """How a forward is called, by a trial in a process; and which norm is checked, None: the cases' own."""
    from lngrad.check.calls.process import CALL_SECONDS, KernelProcesses
    from lngrad.check.verdict import norm_of

    kernels = KernelProcesses(1, CALL_SECONDS)
    try:
        signature = None if options.against else kernels.signature(options.impl)
    finally:
        kernels.end()
    if options.norm is None and (":" in options.impl or options.against):
        return signature, norm_of(signature, bool(options.cases))  # what dumps are of, too, unless --norm says
    return signature, options.norm


def _run_options(options: CheckOptions, seed: int, norm: str | None) -> Options:
    """What a run is about, besides the cases."""
    from lngrad.check.case import Options
    from lngrad.check.verdict import ALLOWED, selection

    seeds = options.seeds if options.seeds > 1 else None

    return Options(
        impl=options.impl, standard=options.standard, level=options.level, third=options.third,
        against=str(options.against) if options.against else None, seed=seed, max_bytes=options.max_bytes,
        block_bytes=options.block_bytes, timed=options.time, explained="not" if options.no_diagnosis else "whole",
        repeatable=options.repeatable, allowed=ALLOWED.get(options.allow or "", ()), fail_fast=options.fail_fast,
        repeated=not (options.seed is None or options.cases or options.against),
        invoked=shlex.join(options.words(norm)),
        selected=selection(options.cases, fuzz=options.fuzz, filter=options.filter, limit=options.limit, seeds=seeds),
    )  # fmt: skip


def _kept(json: Path | None, digest: str) -> dict[str, CaseResult]:
    """The results of an earlier run that a file with this digest has; none without a file."""
    from lngrad.check.reports.journal import STDOUT, read_journal

    if json is None or json == STDOUT:
        fail("--resume: needs --json FILE, which has the results so far", REFUSED)
    return read_journal(json, digest) if json.is_file() else {}


def _places(cases: Sequence[Path], report: Path | None, *others: Path | None) -> None:
    """Refuse reports that can't be written where they are asked for."""
    if report is not None:
        need("check", jinja2="jinja2")
    for path in (report, *others):
        if path is not None and not path.absolute().parent.is_dir():
            fail(f"{path}: no folder {path.parent}", REFUSED)
        if path is not None and path.exists() and any(map(path.samefile, cases)):
            fail(f"{path}: has the cases, and is not replaced", REFUSED)


def _write_reports(options: CheckOptions, run: Run, run_options: Options, changed: list[VerdictChange]) -> None:
    from lngrad.check.reports.journal import write_junit, write_sarif

    if options.junit is not None:
        write_junit(options.junit, run.results, run_options.against or run_options.impl)
    if options.sarif is not None:
        write_sarif(options.sarif, run, options.impl)
    if options.report is not None:
        from lngrad.check.reports.html import write_report

        write_report(options.report, list(run.results), run_options, run.seconds, changed)
        say(f"report: {options.report}")


def _end(count: dict[str, int], max_skipped: str) -> None:
    """End the command with the exit code of these results; return if all is well."""
    from lngrad.check.verdict import too_many

    cases = sum(count.values())
    if count["failed"]:
        raise typer.Exit(FAILED)
    if not count["passed"]:
        fail("no case was checked: all are skipped", REFUSED)
    if too_many(count["skipped"], cases, max_skipped):
        of = f"{count['skipped']} of {cases} cases were skipped"
        fail(f"{of}, more than --max-skipped {max_skipped}: that is no pass", FAILED)


def golden(
    cases: Cases,
    output: Annotated[Path, Option("--output", "-o", metavar="FOLDER", show_default=False, help="New, or empty.")],
    norm: NormName = None, format: Annotated[str, choice("bin, npy, npz or safetensors.", lambda: FORMATS)] = "bin",
    seed: Seed = 0, filter: Filter = None, limit: Limit = None, max_bytes: MaxBytes = 8 << 30,
) -> None:  # fmt: skip
    """Write inputs and float64-true results of cases, in the layout that device tests replay.

    Example: lngrad golden cases -o goldens --limit 5
    """
    from rich.console import Console

    from lngrad.check.formats.reading import of_norm, read_cases, select
    from lngrad.check.golden import write_goldens

    one_of("--format", format, FORMATS)
    known_norm(norm)
    chosen = select(of_norm(read_cases(cases, max_bytes), norm), filter, limit)
    with progress(Console(), "cases", len(chosen)) as advance:
        size = write_goldens(chosen, output, format, seed, max_bytes, lambda: advance(1))  # type: ignore[arg-type]  # checked
    say(f"{output}: {len(chosen)} cases, {size / 1e6:.1f} MB")


def _run(
    cases: list[CheckCase], options: Options, command: CheckOptions, kept: dict[str, CaseResult]
) -> tuple[list[CaseResult], bool]:
    """All results, in the order of the cases; and whether Ctrl-C cut them short."""
    from rich.console import Console

    from lngrad.check.judge import default_jobs, run_cases
    from lngrad.check.reports.journal import STDOUT, Journal, key_of
    from lngrad.check.result import NO_NAME, kind_of

    journal, jobs = command.json, 1 if command.time else command.jobs or default_jobs()
    keys = {case.label: key_of(case, options) for case in cases}
    found = {case.label: kept[keys[case.label]] for case in cases if keys[case.label] in kept}
    waiting = [case for case in cases if case.label not in found]
    printed = Counter[str]()
    console = Console(highlight=False, stderr=journal == STDOUT)
    bar = progress(console, "cases", len(cases), len(found))
    with Journal(journal, found.values()) if journal not in (None, STDOUT) else nullcontext() as file, bar as advance:

        def done(result: CaseResult) -> None:
            result = replace(result, key=keys[result.name])
            found[result.name] = result
            if file:
                file.append(result)
            if result.status == "failed" and printed.total() < MAX_PRINTED:
                known = result.mistake or (NO_NAME if result.outputs else result.reason)
                kind = kind_of(known)
                _print_result(console, result, known if printed[kind] else "")
                printed[kind] += 1
                if printed.total() == MAX_PRINTED:
                    console.print(f"[dim]further failures: {f'in {journal}' if file else '--json FILE has them'}[/]")
            advance(1)

        interrupted = False
        try:
            run_cases(waiting, options, jobs, command.time_limit, done)
        except KeyboardInterrupt:
            interrupted = True
    return [found[case.label] for case in cases if case.label in found], interrupted


def _print_result(console: Console, result: CaseResult, known: str = "") -> None:
    """A failed case in a few lines: which, which rule and where, which mistake, how to see it again; one alike in one line."""
    console.print(f"[bold red]failed[/] [bold]{escape(result.name)}[/]  [dim]{escape(known or result.facts)}[/]")
    if known:
        return
    console.print(f"  {escape(result.reason)}")
    if result.sentence:
        label = f"[yellow]{escape(result.mistake)}[/]: " if result.mistake else ""
        console.print(f"  {label}{escape(result.sentence)}")
    for formula in result.formulas:
        parts = (f"[bold red]{escape(text)}[/]" if changed else escape(text) for text, changed in formula.parts)
        console.print(f"  your {formula.output} = {''.join(parts)}", soft_wrap=True)
    console.print(f"  [dim]{escape(result.command)}[/]", soft_wrap=True)


def _print_summary(console: Console, run: Run, found: Sequence[CaseResult], is_drawn: bool = False) -> None:
    """What the run says; `found` are the results as they came, with the names that were printed then."""
    from lngrad.check.result import tally

    _print_limits(console, run)
    _print_times(console, run.results)
    for mistake, number in tally(run.results)[:MAX_PRINTED]:
        console.print(f"{number} × {escape(mistake)}")
    pairs = (
        (before.mistake, after.mistake) for before, after in zip(found, run.results, strict=True) if before.mistake
    )
    for (was, now), number in Counter(pair for pair in pairs if pair[0] != pair[1]).most_common(MAX_PRINTED):
        why = f"it is {now}, which explains more failures" if now else "the other failures speak against it"
        _print_dim(console, f"withdrawn above: {number} × {was}: {why}")
    if run.not_tried:
        _print_dim(console, f"not tried: {run.not_tried}")
    colour = "red" if run.counts["failed"] else "green"
    counted = ", ".join(f"{number} {status}" for status, number in run.counts.items())
    more = f", {run.not_run} not run" * bool(run.not_run)
    again = f"; --seed {run.seed} draws the same inputs" * is_drawn
    console.print(f"[bold {colour}]{run.verdict}: {counted}{more}[/] in {run.seconds:.1f} s{again}")


def _print_limits(console: Console, run: Run) -> None:
    """What was not judged, what was refused or skipped, how a forward was called, and notes."""
    from lngrad.check.result import BELIEVED
    from lngrad.check.verdict import is_refusal

    results = run.results
    if believed := sum(BELIEVED in result.notes for result in results):
        console.print(f"[yellow]{believed} of {len(results)} cases were not judged: {BELIEVED}[/]")
    if refused := sum(restriction.cases for restriction in run.restrictions):
        kinds = (
            f"{refusal.cases} × {refusal.text}" + f" ({refusal.reason})" * (refusal.reason != refusal.text)
            for refusal in run.restrictions
        )
        console.print(f"[yellow]refused {refused} of {len(results)} cases: {escape(', '.join(kinds))}[/]")
    if run.signature:
        _print_dim(console, run.signature)
    skipped = Counter(result.reason for result in results if result.status == "skipped" and not is_refusal(result))
    printed = run.signature, BELIEVED
    notes = Counter(note.partition(": ")[0] for result in results for note in result.notes if note not in printed)
    for kind, texts in (("skipped", skipped), ("note", notes)):
        for text, number in texts.most_common(MAX_PRINTED):
            _print_dim(console, f"{kind} {number}: {text}")


def _print_dim(console: Console, text: str) -> None:
    console.print(f"[dim]{escape(text)}[/]")


def _print_times(console: Console, results: Sequence[CaseResult]) -> None:
    timed = [(result, result.time) for result in results if result.time is not None]
    if timed:
        table = new_table("Time of a call, and its bytes over it as a share of a copy's speed", "case",
                          right=("time", "GB/s", "of memory"))  # fmt: skip
        for result, time in timed:
            share = "" if result.of_memory is None else f"{result.of_memory:.0%}"
            table.add_row(escape(result.name), f"{1e6 * time:.1f} µs", f"{result.nbytes / time / 1e9:.2f}", share)
        console.print(table)


def _print_changes(console: Console, changes: Sequence[VerdictChange]) -> None:
    """What got better and what got worse, and how many of each."""
    for change in changes[:MAX_PRINTED]:
        colour = {"better": "green", "worse": "red"}.get(change.kind, "yellow")
        console.print(
            f"[{colour}]{change.kind}[/] [bold]{escape(one_line(change.name))}[/]  {escape(one_line(change.text))}"
        )
    counts = Counter(change.kind for change in changes)
    console.print(f"{counts['better']} better, {counts['worse']} worse, {counts['other']} otherwise changed")
