"""The console script: every command, in the order of the help.

A command reads options, calls one function below and prints. It imports what it needs when it runs,
so that `lngrad --help` is quick and `import lngrad` stays light.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper
from types import FrameType

import typer
from typer.core import TyperCommand

from lngrad.cli.app import app, in_one_line
from lngrad.cli.bench import bench
from lngrad.cli.certify import certify
from lngrad.cli.check import check, golden
from lngrad.cli.demo import demo
from lngrad.cli.info import info
from lngrad.cli.kernel import kernel_run
from lngrad.cli.run import run
from lngrad.cli.sdk import CutAtRun, sdk
from lngrad.cli.soak import soak
from lngrad.cli.tiling import tiling

COMMANDS: dict[Callable[..., None], str] = {  # with what the list of all commands says of each
    demo: "Train on digits, check the gradients, draw a picture.",
    run: "Compute gradients of arrays in files.",
    check: "Say whether gradients are right, and which mistake it is.",
    certify: "Measure what a kernel promises.",
    golden: "Write inputs and float64 results of cases.",
    bench: "Time kernels side by side with torch, oneDNN and others.",
    tiling: "Say whether an Ascend C temporary buffer suffices.",
    sdk: "Write CANN's toolkit folder, or run a C or C++ program.",
    soak: "Make random calls, and check each.",
    info: "Show what is installed, and what to install for what.",
}
CLASSES: dict[object, type[TyperCommand]] = {sdk: CutAtRun}  # of those whose words typer alone can't take apart

for function, says in COMMANDS.items():
    app.command(cls=CLASSES.get(function), short_help=says)(in_one_line(function))

kernels = typer.Typer(help="Run Ascend C kernels in C++ on the simulated NPU.", no_args_is_help=True)
kernels.command("run")(in_one_line(kernel_run))
kernels.callback()(lambda: None)  # keeps "run" a word of its own while it is the only one
app.add_typer(kernels, name="kernel")


def main() -> None:
    """Run the command line."""
    # An end from outside unwinds like Ctrl-C does, so that no temporary file stays behind.
    signal.signal(signal.SIGTERM, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without µ gets a question mark, not a traceback
    try:
        app(prog_name="lngrad")
    except OSError as error:  # of --install-completion: commands answer for themselves
        sys.exit(f"lngrad: {error.filename or 'a file'}: {error.strerror or error}")


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
