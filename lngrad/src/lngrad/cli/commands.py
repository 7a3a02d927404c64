"""The app, and every command in the order of the help: lngrad's, then those of packages that add some.

A command reads options, calls one function below and prints. It imports what it needs when it runs, so that
`lngrad --help` is quick. A package adds commands by an entry point of the group `lngrad.commands`: a tuple of `Command`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Annotated

import typer
from typer import Option

from lngrad import __version__
from lngrad.cli.bench import bench
from lngrad.cli.certify import certify
from lngrad.cli.check import check, golden
from lngrad.cli.demo import demo
from lngrad.cli.info import info
from lngrad.cli.run import run
from lngrad.cli.terminal import REFUSED, Command, fail, in_one_line
from lngrad.errors import page

app = typer.Typer(
    help="LayerNorm and RMSNorm on CPUs, a checker of gradients, and Ascend CANN without an NPU.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: 0.24 s where boxes take 0.35, and it can be piped
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    Command(demo, "Train on digits, check the gradients."),
    Command(run, "Compute gradients of arrays in files."),
    Command(check, "Say whether gradients are right, and which mistake it is."),
    Command(certify, "Measure reproducibility: threads, batch, order of sums."),
    Command(golden, "Write inputs and float64 results of cases."),
    Command(bench, "Time kernels in turns with torch, oneDNN and others."),
    Command(info, "Show what is installed, and what to install for what."),
)
# What another package brings, for those who have it not.
ELSEWHERE = {"kernel": "lngrad-ascend", "sdk": "lngrad-ascend", "tiling": "lngrad-ascend"}


def add(commands: Iterable[Command]) -> None:
    """Register commands; those of a group stand below its name, as `lngrad kernel run` does."""
    groups: dict[str, typer.Typer] = {}
    for command in commands:
        parent = app
        if command.group:
            if command.group not in groups:
                groups[command.group] = typer.Typer(help=command.group_help, no_args_is_help=True)
                app.add_typer(groups[command.group], name=command.group)
            parent = groups[command.group]
        parent.command(command.name, cls=command.cls, help=_help(command.function), short_help=command.line)(
            in_one_line(command.function)
        )


def _help(function: Callable[..., None]) -> str:
    """A docstring, in which pages are named by where they can be read."""
    return re.sub(r"docs/([\w-]+)\.md", lambda found: page(found[1]), inspect.getdoc(function) or "")


def _elsewhere(context: typer.Context) -> None:
    """Says which package brings the command."""
    package = ELSEWHERE[context.info_name or ""]
    fail(f"{context.info_name}: needs {package}: pip install {package}", REFUSED)


ADDED = tuple(command for point in entry_points(group="lngrad.commands") for command in point.load())
add((*COMMANDS, *ADDED))
for absent in ELSEWHERE.keys() - {command.words.split()[0] for command in ADDED}:
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(absent, help=f"Needs {ELSEWHERE[absent]}.", context_settings=anything)(_elsewhere)


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
