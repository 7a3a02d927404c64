"""The soak's command, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# As in pyproject.toml; the child of a fork runs calls as a user's does.
WARNINGS = ("-W", "error", "-W", "ignore:os.fork() was called:RuntimeWarning")


@pytest.fixture
def soaked():
    """`python -m soak` with these options. A fork of the suite's process, which has gigabytes, takes as long as 50 calls."""

    def run(*options):
        command = [sys.executable, *WARNINGS, "-m", "soak", *map(str, options)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run
