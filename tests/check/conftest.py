"""Cases made in memory, and the command run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from lngrad.check.case import CheckCase, Source
from lngrad.cli.check import register


@pytest.fixture
def make_case() -> Callable[..., CheckCase]:
    """A small float32 case, with what is given changed."""

    def make(**changes: Any) -> CheckCase:
        facts: dict[str, Any] = {
            "name": "case", "source": Source("memory"), "lead": (7, 11), "normalized": (4, 6), "dtype": "float32",
            "gamma_dtype": "float32", "statistics_dtype": "float32", "output_dtypes": ("float32",) * 3,
            "ranges": {"mean": None, "statistic": None},
        }  # fmt: skip
        return CheckCase(**(facts | changes))

    return make


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    """`lngrad` with these arguments."""
    app = typer.Typer()
    register(app)

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke
