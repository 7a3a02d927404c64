"""The commands that lngrad-ascend adds to `lngrad`: its pyproject.toml names this table as an entry point."""

from __future__ import annotations

from functools import partial

from lngrad.cli.terminal import Command
from lngrad_ascend.cli.kernel import kernel_run
from lngrad_ascend.cli.sdk import CutAtRun, kernel_test, sdk
from lngrad_ascend.cli.tiling import tiling

_kernel = partial(Command, group="kernel", group_help="Run Ascend C kernels in C++ on the simulated NPU.")

COMMANDS = (
    Command(tiling, "Say whether an Ascend C temporary buffer suffices."),
    Command(sdk, "Write CANN's toolkit folder, or run a C or C++ program.", cls=CutAtRun),
    _kernel(kernel_run, "Compile an Ascend C kernel and run it.", name="run"),
    _kernel(kernel_test, "Build and run an operator's own gtest tests.", name="test"),
)
