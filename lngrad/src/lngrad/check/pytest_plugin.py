"""A plugin for pytest: `pytest --lngrad-impl module:function` makes one test of every case, with the diagnosis in the failure.

The kernel is called in a process of its own, one for all cases: a crash is a failed test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lngrad.check.calls.process import KernelProcesses
from lngrad.check.case import CheckCase, Options
from lngrad.check.judge import Patience, check_case
from lngrad.check.result import CaseResult
from lngrad.check.standards import AUTO, STANDARDS
from lngrad.check.verdict import MAX_SKIPPED, chosen_cases, drawn_seed, norm_of, too_many, valid_max_skipped
from lngrad.core.norms import NORMS
from lngrad.core.threads import get_num_threads
from lngrad.errors import LngradError

MAX_BYTES = 8 << 30
_KERNELS = pytest.StashKey[KernelProcesses]()
_STATUSES = pytest.StashKey[list[str]]()
_PATIENCE = pytest.StashKey[Patience]()
_OPTIONS: dict[str, dict[str, Any]] = {  # those of `lngrad check`
    "impl": {"metavar": "IMPL", "help": "check this implementation: module:NAME, or as in lngrad check"},
    "cases": {"metavar": "PATH", "action": "append", "help": "case files; default: as of lngrad check"},
    "norm": {"metavar": "NAME", "choices": list(NORMS), "help": "which norm it computes; default: what it is found to be"},
    "standard": {"metavar": "NAME", "default": AUTO, "choices": [AUTO, *STANDARDS],
                 "help": "default: stable, and mixed where x has 16 bits"},
    "seed": {"type": int, "help": "of the inputs; default: drawn, and printed"},
    "seeds": {"type": int, "default": 1, "help": "every case with so many seeds"},
    "fuzz": {"type": int, "help": "so many random cases besides; default: 20, 0 with case files"},
    "time-limit": {"type": float, "default": 300.0, "help": "seconds of a call; then its case has failed"},
    "max-skipped": {"metavar": "N|N%", "default": MAX_SKIPPED, "help": "more skipped cases than this are no pass"},
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("lngrad", "gradients of layer normalization")
    for name, facts in _OPTIONS.items():
        group.addoption(f"--lngrad-{name}", **facts)


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """One test for every case."""
    impl, norm, standard, seed, seeds, fuzz, limit, files = (
        config.getoption(f"--lngrad-{name}")
        for name in ("impl", "norm", "standard", "seed", "seeds", "fuzz", "time-limit", "cases")
    )
    if not impl:
        return
    invoked = f"lngrad check --impl {impl}" + (f" --norm {norm}" if norm else "")
    options = Options(impl=impl, standard=standard, seed=seed, invoked=invoked)
    kernels = KernelProcesses(get_num_threads(), limit)
    try:
        valid_max_skipped(config.getoption("--lngrad-max-skipped"))
        signature = kernels.signature(impl)
        norm = norm or norm_of(signature, bool(files))
        paths = [Path(path) for path in files or ()]
        cases = chosen_cases(paths, norm, (None, None), range(seed, seed + seeds), fuzz, MAX_BYTES, signature)
    except LngradError as error:
        kernels.end()
        raise pytest.UsageError(str(error).replace("max_skipped", "--lngrad-max-skipped")) from None
    session.stash[_KERNELS], session.stash[_STATUSES], session.stash[_PATIENCE] = kernels, [], Patience(options)
    items += [CaseItem.from_parent(session, name=f"lngrad[{case.label}]", case=case) for case in cases]


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed unless it is given: processes of pytest-xdist get this one."""
    if config.option.lngrad_seed is None:
        config.option.lngrad_seed = drawn_seed()


def pytest_report_header(config: pytest.Config) -> str | None:
    """The seed of the run."""
    return f"lngrad: --lngrad-seed {config.option.lngrad_seed}" if config.option.lngrad_impl else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the processes; too many skipped cases are no pass."""
    if _KERNELS in session.stash:
        session.stash[_KERNELS].end()
        statuses, most = session.stash[_STATUSES], session.config.getoption("--lngrad-max-skipped")
        if too_many(statuses.count("skipped"), len(statuses), most) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print(
                f"\n{statuses.count('skipped')} of {len(statuses)} cases were skipped, more than {most}: that is no pass"
            )


class WrongGradients(Exception):
    """A case failed; the result says why."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(result.reason)
        self.result = result


class CaseItem(pytest.Item):
    """A case as a test."""

    def __init__(self, *, case: CheckCase, **others: Any) -> None:
        super().__init__(**others)
        self.case = case

    def runtest(self) -> None:
        """Compute and judge the case.

        Raises:
            WrongGradients: It failed.
        """
        patience = self.session.stash[_PATIENCE]
        result = check_case(self.case, patience.options, self.session.stash[_KERNELS])
        patience.add(result)
        self.session.stash[_STATUSES].append(result.status)
        if result.status == "skipped":
            pytest.skip(result.reason)
        if result.status == "failed":
            raise WrongGradients(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The diagnosis, the formula and the command that reproduces the failure."""
        if not isinstance(excinfo.value, WrongGradients):
            return super().repr_failure(excinfo, style)
        result = excinfo.value.result
        label = f"{result.mistake}: " if result.mistake else ""
        formulas = [formula.text for formula in result.formulas]
        return "\n".join([result.facts, result.reason, f"{label}{result.sentence}", *formulas, result.command])

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        """Where the case was written."""
        return self.case.source.file, self.case.source.line, self.name
