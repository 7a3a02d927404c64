"""How a command ends: exit codes, and one line where something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import typer
from typer.models import OptionInfo

from lngrad.errors import LngradError

# Exit codes: Ctrl-C; a check did not pass; bad input, or something is missing; more to do.
INTERRUPTED, FAILED, REFUSED, UNFINISHED = 130, 1, 2, 3

MISSING = "no such file or folder"  # behind a path, in every command


def in_one_line(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors are one line and an exit code."""

    @wraps(function)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            function(*arguments, **options)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except LngradError as error:
            fail(_as_typed(str(error), function), REFUSED)
        except MemoryError as error:
            fail(f"not enough memory{': ' if str(error) else ''}{error}", REFUSED)
        except BrokenPipeError:
            raise  # whoever read our output has gone: main() ends quietly
        except FileNotFoundError as error:
            fail(f"{error.filename or 'a file'}: {MISSING}", REFUSED)
        except OSError as error:
            fail(f"{error.filename or 'a file'}: {error.strerror or error}", REFUSED)

    return guarded


def _as_typed(text: str, function: Callable[..., None]) -> str:
    """An error `name: expected …` with the name as it is typed, if that is an option of the command."""
    name = text.partition(":")[0]
    annotation = get_type_hints(function, include_extras=True).get(name)
    is_option = any(isinstance(one, OptionInfo) for one in getattr(annotation, "__metadata__", ()))
    return text.replace(name, f"--{name.replace('_', '-')}", 1) if is_option else text


def fail(text: str, code: int) -> NoReturn:
    """End the command with one line on stderr."""
    typer.echo(f"lngrad: {text}", err=True)
    raise typer.Exit(code)


def existing(*paths: Path | None) -> None:
    """End the command at the first path that is given and does not exist."""
    for path in paths:
        if path is not None and not path.exists():
            fail(f"{path}: {MISSING}", REFUSED)


def need(extra: str, **modules: str) -> None:
    """End the command if a module is not installed; the error names the extra that installs it.

    Args:
        extra: Of lngrad.
        modules: By their distributions, with _ for -.
    """
    missing = [name.replace("_", "-") for name, module in modules.items() if find_spec(module) is None]
    if missing:
        fail(f"needs {' and '.join(missing)}: pip install 'lngrad[{extra}]'", REFUSED)
