"""`lngrad kernel …` in this process."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner, Result

from lngrad.cli.commands import app

needs_cxx = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def kernel(*words: object) -> Result:
    return CliRunner().invoke(app, ["kernel", *map(str, words)])


def refuses(text: str, *words: object) -> None:
    """Check that a command ends with 2 and this text, wherever its lines break."""
    result = kernel(*words)
    assert result.exit_code == 2, result.output
    assert text in " ".join(result.output.split())
