"""The app, and every command in the order of the help.

A command reads options, calls one function below and prints. It imports what it needs when it runs, so that
`lngrad --help` is quick.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option
from typer.core import TyperCommand

from lngrad import __version__
from lngrad.cli.bench import bench
from lngrad.cli.certify import certify
from lngrad.cli.check import check, golden
from lngrad.cli.demo import demo
from lngrad.cli.info import info
from lngrad.cli.run import run
from lngrad.cli.terminal import in_one_line
from lngrad.errors import page
from lngrad_ascend.cli.kernel import kernel_run
from lngrad_ascend.cli.sdk import CutAtRun, kernel_test, sdk
from lngrad_ascend.cli.tiling import tiling

app = typer.Typer(
    help="LayerNorm and RMSNorm on CPUs, a checker of gradients, and Ascend CANN without an NPU.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: 0.24 s where boxes take 0.35, and it can be piped
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: dict[Callable[..., None], str] = {  # with its line in the list of all commands
    demo: "Train on digits, check the gradients.",
    run: "Compute gradients of arrays in files.",
    check: "Say whether gradients are right, and which mistake it is.",
    certify: "Measure reproducibility: threads, batch, order of sums.",
    golden: "Write inputs and float64 results of cases.",
    bench: "Time kernels in turns with torch, oneDNN and others.",
    tiling: "Say whether an Ascend C temporary buffer suffices.",
    sdk: "Write CANN's toolkit folder, or run a C or C++ program.",
    info: "Show what is installed, and what to install for what.",
}
CLASSES: dict[object, type[TyperCommand]] = {sdk: CutAtRun}  # of those whose words typer alone can't take apart


def _help(function: Callable[..., None]) -> str:
    """A docstring, in which pages are named by where they can be read."""
    return re.sub(r"docs/([\w-]+)\.md", lambda found: page(found[1]), inspect.getdoc(function) or "")


for function, says in COMMANDS.items():
    app.command(cls=CLASSES.get(function), help=_help(function), short_help=says)(in_one_line(function))

kernels = typer.Typer(help="Run Ascend C kernels in C++ on the simulated NPU.", no_args_is_help=True)
kernels.command("run", help=_help(kernel_run))(in_one_line(kernel_run))
kernels.command("test")(in_one_line(kernel_test))
app.add_typer(kernels, name="kernel")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lngrad {__version__}")
        raise typer.Exit


FIRST_LINES = """\
lngrad {version}: layer normalization and its gradients
  lngrad demo            trains on digits, checks gradients
  lngrad bench --quick   how fast is it here, next to torch?
  lngrad check --impl MODULE:FUNCTION   is my kernel right?
  lngrad info            what works here, what to install
  lngrad --help          all commands"""


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(FIRST_LINES.format(version=__version__))
