"""The frame of the command line: the app, and how a command ends when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer

from lngrad import __version__
from lngrad.errors import LngradError

# Exit codes: Ctrl-C; a check did not pass; bad input, or something is missing; more to do.
INTERRUPTED, FAILED, REFUSED, UNFINISHED = 130, 1, 2, 3

app = typer.Typer(
    help="Layer-normalization gradients: exact, fast and the same everywhere.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: 0.24 s where boxes take 0.35, and it can be piped
    context_settings={"help_option_names": ["-h", "--help"]},
)


def in_one_line(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors are one line and an exit code."""

    @wraps(function)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            function(*arguments, **options)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except LngradError as error:
            fail(str(error), REFUSED)
        except MemoryError as error:
            fail(f"not enough memory{': ' if str(error) else ''}{error}", REFUSED)
        except BrokenPipeError:
            raise  # typer ends quietly: whoever read our output has gone
        except OSError as error:
            fail(f"{error.filename or 'a file'}: {error.strerror or error}", REFUSED)

    return guarded


def fail(text: str, code: int) -> NoReturn:
    """End the command with one line on stderr."""
    typer.echo(f"lngrad: {text}", err=True)
    raise typer.Exit(code)


def need(extra: str, **modules: str) -> None:
    """End the command if a module is not installed; the error names the extra that installs it.

    Args:
        extra: Of lngrad.
        modules: By their distributions, with _ for -.
    """
    missing = [name.replace("_", "-") for name, module in modules.items() if find_spec(module) is None]
    if missing:
        fail(f"needs {' and '.join(missing)}: pip install 'lngrad[{extra}]'", REFUSED)


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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(FIRST_LINES.format(version=__version__))
