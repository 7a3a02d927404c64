"""A whole run for programs: its verdict, what the kernel refuses, which mistakes failed it, and how to see each alone."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from math import isfinite
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Literal

import lngrad
from lngrad.check.calls.kernel import Here, Kernel
from lngrad.check.calls.process import KernelProcesses
from lngrad.check.case import CheckCase, Options, fuzzed
from lngrad.check.formats.reading import of_norm, read_cases, select, shipped
from lngrad.check.implementations import Signature, implementation_of
from lngrad.check.judge import Patience, check_case
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.reproduction import SEARCH_SECONDS, SHOWN_BY_CALLS, script, smallest
from lngrad.check.result import BELIEVED, CaseResult, is_unexplained, settled
from lngrad.check.standards import AUTO
from lngrad.check.trial import IN_FLOAT32, OWN
from lngrad.core.threads import get_num_threads
from lngrad.errors import LngradError
from lngrad.support.dtypes import DTYPES

FORMAT = 1  # of to_json; it grows when a key changes its meaning or goes
MAX_SKIPPED = "34%"
DRAWN = 20  # random cases beside those that come with lngrad, a fifth: no kernel knows all shapes
INT32, WRAPS = 1 << 31, "2^31 elements, where int32 indices wrap"
REPEATED = "new inputs, as a seed was given"
ALLOWED = {"inplace-dy": ("dy",)}  # what an implementation may do beside its results, and to which inputs
_NO_LIMITS = OWN, "switched off", "a derivative computes", "XLA takes"  # statistics of its own are a choice
REPRODUCED = 3  # mistakes that get a script, the most frequent first
_PACKAGES = ("numpy", "torch", "jax", "triton")
_POWERS = tuple(2**power for power in range(1, 15))


def _is_strided(case: CheckCase, name: str) -> bool:
    """Whether torch is given strides: it has none that are negative, and one row or column may be contiguous."""
    return case.M > 1 < case.N and case.layouts.get(name) in ("reversed axes", "every second", "corner", "shared")


# What a kernel may refuse. A row holds if no case that it describes has run.
RESTRICTIONS: dict[str, Callable[[CheckCase], bool]] = {
    "gamma in another dtype than x": lambda case: case.gamma_dtype not in (None, case.dtype),
    "no gamma": lambda case: case.gamma_dtype is None,
    **{f"x in {dtype}": partial(lambda dtype, case: case.dtype == dtype, dtype) for dtype in DTYPES},
    "NaN or infinity": lambda case: (
        not all(isfinite(number) for values in case.ranges.values() for number in values or ())
    ),
    "no rows or no columns": lambda case: case.M * case.N == 0,
    "no columns": lambda case: case.N == 0,
    "more than one normalized axis": lambda case: len(case.normalized) > 1,
    "x without rows": lambda case: not case.lead,
    "x of more than 2 dimensions": lambda case: len(case.shape) > 2,
    "x that is not contiguous": lambda case: _is_strided(case, "x"),
    "dy that is not contiguous": lambda case: _is_strided(case, "dy"),
    "strides": lambda case: bool(case.layouts),
    "some results alone": lambda case: case.wanted != case.operator.outputs,
    **{f"N not a multiple of {n}": partial(lambda n, case: case.N % n > 0, n) for n in _POWERS[:10]},
    **{f"N over {n}": partial(lambda n, case: n < case.N, n) for n in _POWERS},
}


FACTS: dict[str, Callable[[CheckCase], bool]] = {
    **RESTRICTIONS, "several leading dimensions": lambda case: len(case.lead) > 1,
    "other than one leading dimension": lambda case: len(case.lead) != 1,
    **{f"M not a multiple of {n}": partial(lambda n, case: case.M % n > 0, n) for n in _POWERS[:10]},
    **{f"M over {n}": partial(lambda n, case: n < case.M, n) for n in (*_POWERS, 65535)},
}  # fmt: skip
PARTED = 3, 5  # cases that fail without a name, and cases that pass, at least, for a fact that parts them


@dataclass(frozen=True)
class Restriction:
    """What a kernel does not take, how many cases that were, and what it said."""

    text: str
    cases: int
    reason: str


@dataclass(frozen=True)
class FoundMistake:
    """A mistake: its name (None: no known one) and code, how many cases failed by it, and a script of the smallest one."""

    name: str | None
    code: str | None
    cases: int
    case: str
    command: str
    reproduction: str | None = None


@dataclass(frozen=True)
class Run:
    """A run of `lngrad check`.

    Attributes:
        verdict: FAIL if a case failed; INCONCLUSIVE if none passed, the run was stopped, or more were skipped than is allowed;
            PASS WITH LIMITS if some were skipped that another kernel takes, or were not judged.
        command, seed, versions, started, machine: What ran, with which inputs, when and on what.
        signature: How a forward was called.
        counts, not_run: Of cases: passed, failed, skipped; and of those that did not run.
        not_tried: What no case asked for.
        restrictions: What it refused.
        mistakes: Those that failed it, the most frequent first.
        results: Of all cases.
        seconds: That it took.
    """

    verdict: Literal["PASS", "PASS WITH LIMITS", "FAIL", "INCONCLUSIVE"]
    command: str
    seed: int
    versions: dict[str, str]
    started: str
    machine: str
    signature: str
    counts: dict[str, int]
    not_run: int
    not_tried: str
    restrictions: tuple[Restriction, ...]
    mistakes: tuple[FoundMistake, ...]
    results: tuple[CaseResult, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Without passed and skipped cases; of each failed one the mistake, where it is, and the error in units."""
        facts = asdict(replace(self, results=()))
        del facts["results"]
        for restriction in facts["restrictions"]:
            restriction["said"] = restriction.pop("reason")
        failures = [_failure(result) for result in self.results if result.status == "failed"]
        return {"format": FORMAT, "lngrad": lngrad.__version__, **facts, "failures": failures}


def _failure(result: CaseResult) -> dict[str, Any]:
    where = [
        {"result": output.name, "dtype": output.dtype, "shape": output.shape, "off": output.off, "ulps": output.worst_ulp,
         "tolerances": output.worst_share, "worst": [asdict(worst) for worst in output.worst[:1]]}
        for output in result.outputs if not output.passed
    ]  # fmt: skip
    facts = {name: getattr(result, name) for name in ("name", "facts", "reason", "mistake", "sentence", "command")}
    weights = [weight.text for weight in result.weights]
    return {**facts, "code": code_of(result.mistake), "where": where, "rows_and_columns": weights}


def code_of(mistake: str | None) -> str | None:
    """The code of a known mistake's family."""
    known = MISTAKES.get(mistake or "")
    return None if known is None else known.family.code


def norm_of(signature: Signature | None, has_files: bool) -> str | None:
    """What a kernel of the user's computes unless it is said: None where case files say it, and no trial does."""
    if signature is not None and signature.norms:
        return signature.norms[0]
    return None if has_files else "layer_norm"


def selection(cases: Sequence[Path] | None, **options: Any) -> str:
    """The words that choose these cases, as the command line has them, with a space before them."""
    words = [(f"--{name}", str(value)) for name, value in options.items() if value is not None]
    return "".join(f" {shlex.quote(word)}" for word in (*map(str, cases or ()), *chain(*words)))


def _name_of(target: Any) -> str:
    """What --impl calls a function or a class, where a new process finds it; else its own name."""
    name, file = (
        getattr(target, "__qualname__", type(target).__name__),
        sys.modules.get(getattr(target, "__module__", "")),
    )
    if file is None or getattr(file, name, None) is not target:
        return name
    return f"{getattr(file, '__file__', '') if file.__name__ == '__main__' else file.__name__}:{name}"


def chosen_cases(
    cases: Sequence[Path] | None, norm: str | None, selected: tuple[str | None, int | None], seeds: range,
    fuzz: int | None, max_bytes: int, signature: Signature | None = None,
) -> list[CheckCase]:  # fmt: skip
    """The cases of the files, or the package's own, and random ones, DRAWN unless it is said; again for each further seed.

    Of a kernel that takes one number of columns alone, all have that.
    """
    read = read_cases(cases, max_bytes) if cases else shipped()
    fuzz = fuzz if fuzz is not None else 0 if cases else DRAWN
    chosen = [select(of_norm([*read, *fuzzed(fuzz, seed)], norm), *selected) for seed in seeds]
    if signature is not None and (size := signature.size):
        chosen = [[replace(case, normalized=(size,)) if len(case.normalized) == 1 and case.N and not case.files else case
                   for case in cases_of_seed] for cases_of_seed in chosen]  # fmt: skip
    return chosen[0] + [
        replace(case, seed=seed) for seed, again in zip(seeds[1:], chosen[1:], strict=True) for case in again
    ]


def drawn_seed() -> int:
    """A seed for a run that names none: results of an earlier run are wrong in it."""
    return Random().randrange(1_000_000)


def valid_max_skipped(text: str) -> str:
    """The same; raises LngradError unless it is a number of cases or a share."""
    if re.fullmatch(r"\d+%?", text) is None:
        raise LngradError(f"max_skipped: expected a number of cases, or a share as 50%, got {text!r}")
    return text


def too_many(skipped: int, of: int, max_skipped: str) -> bool:
    """Whether so many skipped cases are no pass."""
    return skipped > int(max_skipped.rstrip("%")) * (of / 100 if "%" in max_skipped else 1)


def is_refusal(result: CaseResult) -> bool:
    """Whether a case was not taken that another kernel takes."""
    return result.status == "skipped" and not result.reason.startswith(_NO_LIMITS)


def restrictions(results: Iterable[CaseResult], cases: Mapping[str, CheckCase]) -> list[Restriction]:
    """What was refused, in as few lines as explain it: a row of RESTRICTIONS where no case that ran contradicts it."""
    refused: dict[str, list[CaseResult]] = {}
    ran = [cases[result.name] for result in results if result.status != "skipped"]
    for result in filter(is_refusal, results):
        refused.setdefault(re.sub(r"\d+", "#", result.reason), []).append(result)
    # Where nothing ran, every row would explain it.
    possible = {text: holds for text, holds in RESTRICTIONS.items() if ran and not any(map(holds, ran))}
    found: dict[str, Restriction] = {}
    for left in refused.values():
        while left:
            reason = left[0].reason
            covered = {
                text: [result for result in left if holds(cases[result.name])]
                for text, holds in possible.items()
                if reason != IN_FLOAT32
            }
            text, most = max(covered.items(), key=lambda item: len(item[1]), default=("", []))
            text, most = (text, most) if most else (reason, left)
            known = found.get(text, Restriction(text, 0, reason))
            found[text] = replace(known, cases=known.cases + len(most))
            left = [result for result in left if result not in most]
    return sorted(found.values(), key=lambda item: -item.cases)


def summary(
    results: Sequence[CaseResult], cases: Sequence[CheckCase], options: Options, signature: Signature | None, seconds: float,
    max_skipped: str = MAX_SKIPPED, *, scripts: bool = False,
) -> Run:  # fmt: skip
    """The run of these results; mistakes have scripts if these are wanted."""
    counts = {status: sum(result.status == status for result in results) for status in ("passed", "failed", "skipped")}
    by_name = {case.label: case for case in cases}
    results = parted(results, by_name)
    limits = [result for result in results if is_refusal(result) or BELIEVED in result.notes]
    is_small = all(case.M * case.N < INT32 for case in cases)
    not_run = len(cases) - len(results)
    is_open = not_run or not counts["passed"] or too_many(counts["skipped"], len(results), max_skipped)
    versions, started = {"python": platform.python_version()}, datetime.now(timezone.utc) - timedelta(seconds=seconds)
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return Run(
        "FAIL" if counts["failed"] else "INCONCLUSIVE" if is_open else "PASS WITH LIMITS" if limits else "PASS",
        options.invoked + options.selected, options.seed, versions, started.isoformat("T", "seconds"),
        f"{platform.system()} {platform.machine()}", signature.text if signature else "", counts,
        not_run, "; ".join(filter(None, (WRAPS * is_small, REPEATED * options.repeated))),
        tuple(restrictions(results, by_name)),
        tuple(_mistakes(results, by_name, options, signature if scripts else None)), tuple(results), seconds,
    )  # fmt: skip


def parted(results: Sequence[CaseResult], cases: Mapping[str, CheckCase]) -> list[CaseResult]:
    """The same, where failures without a name have one by a fact that all of them have, and no case that passed."""
    nameless = [result.name for result in results if is_unexplained(result)]
    passed = [result.name for result in results if result.status == "passed"]
    if len(nameless) < PARTED[0] or len(passed) < PARTED[1]:
        return [*results]
    facts = (text for text, holds in FACTS.items() if all(holds(cases[name]) for name in nameless)
             and not any(holds(cases[name]) for name in passed))  # fmt: skip
    if (fact := next(facts, None)) is None:
        return [*results]
    name, text = (
        f"wrong only for {fact}",
        f"All {len(nameless)} failures that nothing explains have {fact}, and no case that passed.",
    )
    named = (replace(result, mistake=name, sentence=f"{text} {result.sentence}") for result in results)
    return [new if new.name in nameless else result for new, result in zip(named, results, strict=True)]


def _mistakes(
    results: Sequence[CaseResult], cases: Mapping[str, CheckCase], options: Options, signature: Signature | None
) -> list[FoundMistake]:
    failed = [result for result in results if result.status == "failed"]
    found: list[FoundMistake] = []
    kernels = KernelProcesses(get_num_threads(), SEARCH_SECONDS)
    for name, number in Counter(result.mistake for result in failed).most_common():
        least = min((result for result in failed if result.mistake == name), key=lambda item: cases[item.name].nbytes)
        text = None
        is_shown = least.outputs or name in SHOWN_BY_CALLS
        if signature and signature.call and is_shown and len(found) < REPRODUCED:
            text = script(options.impl, signature, smallest(cases[least.name], name, options, kernels))
        found.append(FoundMistake(name, code_of(name), number, least.name, least.command, text))
    kernels.end()
    return found


def run(
    impl: str | Callable[..., Any], cases: Sequence[str | Path] | None = None, *, norm: str | None = None,
    standard: str = AUTO, seed: int | None = None, seeds: int = 1, fuzz: int | None = None,
    filter: str | None = None, limit: int | None = None,
    time_limit: float = 300.0, max_skipped: str = MAX_SKIPPED, max_bytes: int = 8 << 30,
) -> Run:  # fmt: skip
    """Check an implementation, as `lngrad check` does, one case after the other.

    Args:
        impl: A name, as of --impl: it runs in a process of its own. Or a function, a module or a class of one: it runs in this
            process, which a crash ends.
        cases: Files; None: those that come with lngrad.
        norm, standard, seed, seeds, fuzz, filter, limit, time_limit, max_skipped, max_bytes: As the options; a seed of None is
            drawn.

    A function, module or class is called in the process that judges it, and could change that: trust what a name gives.

    Raises:
        BackendUnavailable: There is no such implementation, or no call of it gives an array.
        FileFormatError: A file can't be used.
    """
    start, name = monotonic(), impl if isinstance(impl, str) else _name_of(impl)
    own = None if isinstance(impl, str) else Here(implementation_of(impl, name))
    valid_max_skipped(max_skipped)
    processes = KernelProcesses(get_num_threads(), time_limit)

    def kernels(asked: str, filled: bool = True) -> Kernel:
        return own if own and asked == name else processes(asked, filled)

    try:
        signature = own.signature if own else processes.signature(name)
        if norm is None and (own or ":" in name):
            norm = norm_of(signature, bool(cases))
        paths, is_repeated = None if cases is None else [Path(cas) for cas in cases], seed is not None and cases is None
        seed = drawn_seed() if seed is None else seed
        chosen = chosen_cases(paths, norm, (filter, limit), range(seed, seed + seeds), fuzz, max_bytes, signature)
        invoked = f"lngrad check --impl {shlex.quote(name)}" + (f" --norm {norm}" if norm else "")
        selected = selection(paths, fuzz=fuzz, filter=filter, limit=limit, seeds=seeds if seeds > 1 else None)
        options = Options(
            impl=name, standard=standard, seed=seed, max_bytes=max_bytes, invoked=invoked, selected=selected,
            repeated=is_repeated,
        )  # fmt: skip
        patience, results = Patience(options), []
        for case in chosen:
            results.append(check_case(case, patience.options, kernels))
            patience.add(results[-1])
    finally:
        processes.end()
    scripts = own is None  # which import by name
    return summary(settled(results), chosen, options, signature, monotonic() - start, max_skipped, scripts=scripts)
