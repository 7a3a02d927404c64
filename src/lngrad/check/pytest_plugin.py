"""A plugin for pytest: `pytest --lngrad-impl module:function` makes one test of every case, with the diagnosis in the failure.

The kernel is called in a process of its own, one for all cases: a crash is a failed test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lngrad.check.calls.process import KernelProcesses
from lngrad.check.case import NORMS, CheckCase, Options
from lngrad.check.formats.reading import of_norm, read_cases, shipped
from lngrad.check.judge import check_case
from lngrad.check.result import CaseResult
from lngrad.check.standards import AUTO, STANDARDS
from lngrad.core.threads import get_num_threads
from lngrad.errors import LngradError

MAX_BYTES = 8 << 30
TIME_LIMIT = 300.0  # seconds of a call
_KERNELS = pytest.StashKey[KernelProcesses]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("lngrad", "gradients of layer normalization")
    group.addoption(
        "--lngrad-impl", metavar="IMPL", help="check this implementation: module:function, or as in lngrad check"
    )
    group.addoption("--lngrad-cases", metavar="PATH", action="append", help="case files; default: as of lngrad check")
    group.addoption(
        "--lngrad-norm", metavar="NAME", choices=list(NORMS), help="which norm it computes; default: layer_norm"
    )
    group.addoption(
        "--lngrad-standard",
        metavar="NAME",
        default=AUTO,
        choices=[AUTO, *STANDARDS],
        help="default: stable, and mixed where x has 16 bits",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """One test for every case."""
    impl = config.getoption("--lngrad-impl")
    if not impl:
        return
    norm, files = config.getoption("--lngrad-norm"), config.getoption("--lngrad-cases")
    invoked = f"lngrad check --impl {impl}" + (f" --norm {norm}" if norm else "")
    options = Options(impl=impl, standard=config.getoption("--lngrad-standard"), invoked=invoked)
    norm = norm or (None if files else "layer_norm")
    try:
        cases = of_norm(read_cases([Path(path) for path in files], MAX_BYTES) if files else shipped(), norm)
    except LngradError as error:
        raise pytest.UsageError(str(error)) from None
    session.stash[_KERNELS] = KernelProcesses(get_num_threads(), TIME_LIMIT)
    items += [CaseItem.from_parent(session, name=f"lngrad[{case.label}]", case=case, options=options) for case in cases]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the processes."""
    if _KERNELS in session.stash:
        session.stash[_KERNELS].end()


class WrongGradients(Exception):
    """A case failed; the result says why."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(result.reason)
        self.result = result


class CaseItem(pytest.Item):
    """A case as a test."""

    def __init__(self, *, case: CheckCase, options: Options, **others: Any) -> None:
        super().__init__(**others)
        self.case, self.options = case, options

    def runtest(self) -> None:
        """Compute and judge the case.

        Raises:
            WrongGradients: It failed.
        """
        result = check_case(self.case, self.options, self.session.stash[_KERNELS])
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
