"""Cases made in memory, and the command run in this process, for tests of both packages."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from lngrad.check.case import CheckCase, Source
from lngrad.cli.commands import app


def make_case(**changes: Any) -> CheckCase:
    """A small float32 case, with these changes."""
    facts: dict[str, Any] = {
        "name": "case", "source": Source("memory"), "lead": (7, 11), "normalized": (4, 6), "dtype": "float32",
        "gamma_dtype": "float32", "statistics_dtype": "float32",
        "output_dtypes": dict.fromkeys(("dx", "dgamma", "dbeta"), "float32"),
        "ranges": {"mean": None, "statistic": None},
    }  # fmt: skip
    return CheckCase(**(facts | changes))


def run(*arguments: object) -> Result:
    """`lngrad` with these arguments, the same inputs in every run, and one process, for pytest-xdist has others at work."""
    words, more = [str(argument) for argument in arguments], []
    if words[0] == "check" and not {"--explain", "--against"} & {*words}:
        more += ["--seed", "0"] * ("--seed" not in words) + ["--jobs", "1"] * ("--jobs" not in words)
    return CliRunner().invoke(app, [*words, *more])
