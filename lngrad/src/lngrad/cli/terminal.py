"""What commands share: how they end, with an exit code and one line where something is wrong; tables and bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_type_hints

import typer
from typer import Option
from typer.core import TyperCommand
from typer.models import OptionInfo

from lngrad.errors import MISSING, LngradError, install_command, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task
    from rich.table import Table
    from rich.text import Text

# Exit codes: Ctrl-C; a check did not pass; bad input, or something is missing; more to do.
INTERRUPTED, FAILED, REFUSED, UNFINISHED = 130, 1, 2, 3


class Command(NamedTuple):
    """A row of the command line.

    Attributes:
        function: What runs; its docstring is the help.
        line: What the list of all commands says.
        name: As it is typed, where that is not the function's.
        group, group_help: The word before it, as in `lngrad kernel run`, and what its help says.
        cls: Of a command whose words typer alone can't take apart.
    """

    function: Callable[..., None]
    line: str
    name: str | None = None
    group: str = ""
    group_help: str = ""
    cls: type[TyperCommand] | None = None

    @property
    def words(self) -> str:
        """What is typed behind lngrad."""
        return f"{self.group} {self.name or self.function.__name__}".strip()


def exit_code(app: typer.Typer, *words: str) -> int:
    """Run the command line, or these words; where one is wrong, that is one line, as all other errors are."""
    usage_error: Any = typer.BadParameter.__base__  # typer does not export it, and has a click of its own from 0.2x on
    try:
        return app(words or None, prog_name="lngrad", standalone_mode=False) or 0
    except usage_error as error:
        where, text = error.ctx.command_path if error.ctx else "lngrad", error.format_message()
        say(f"{where}: {text[:1].lower()}{text[1:].rstrip('.')}; see {where} --help", err=True)
        return int(error.exit_code)
    except typer.Abort:  # Ctrl-C while the words were read
        say("lngrad: interrupted", err=True)
        return INTERRUPTED


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
    is_option = any(isinstance(option, OptionInfo) for option in getattr(annotation, "__metadata__", ()))
    return text.replace(name, f"--{name.replace('_', '-')}", 1) if is_option else text


def fail(text: str, code: int) -> NoReturn:
    """End the command with one line on stderr."""
    say(f"lngrad: {text}", err=True)
    raise typer.Exit(code)


def say(text: str, *, err: bool = False) -> None:
    """A line for the terminal, in which names from files and programs move nothing."""
    typer.echo(printable(text), err=err)


def escape(text: str) -> str:
    """The same inside rich's markup."""
    return printable(text, markup=True)


def existing(*paths: Path | None) -> None:
    """End the command at the first path that is given and does not exist."""
    for path in paths:
        try:
            if path is not None and not path.exists():
                fail(f"{path}: {MISSING}", REFUSED)
        except OSError as error:  # such as too long a name
            fail(f"{path}: {error.strerror}", REFUSED)


def files_exist(context: typer.Context, value: Any) -> Any:
    """The callback of options and arguments that name files: a missing one is named ahead of any other fault."""
    if not context.resilient_parsing:  # completing a line refuses nothing
        existing(*(value if isinstance(value, list) else [value]))
    return value


def explaining(context: typer.Context, name: str | None) -> None:
    """The callback of --explain, which ends the command."""
    if name is None or context.resilient_parsing:
        return
    from lngrad.check.mistakes.explain import explained

    try:
        typer.echo(explained(name))
    except ValueError as error:
        fail(f"--explain: {error}", REFUSED)
    raise typer.Exit


def completing(values: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell offers for a value; the table that has the names is loaded then alone."""
    return lambda incomplete: [value for value in values() if value.startswith(incomplete)]


def choice(help: str, values: Callable[[], Iterable[str]], **options: Any) -> Any:
    """An option whose values a shell offers."""
    return Option(help=help, autocompletion=completing(values), **options)


def file_option(kind: str, help: str, **options: Any) -> Any:
    """An option that names a file or a folder, of which there is none by default."""
    return Option(metavar=kind, help=help, show_default="none", **options)


def in_table(module: str, name: str) -> Iterable[str]:
    """The keys of a table, whose module is loaded then alone."""
    table: Iterable[str] = getattr(import_module(module), name)
    return table


norm_names = partial(in_table, "lngrad.core.norms", "NORMS")  # of --norm
plain_norms = partial(in_table, "lngrad.core.norms", "PLAIN")  # of --norm where there are neither gates nor samples


def impl_names() -> Iterable[str]:
    """Of --impl; forms that end in a name of yours end at the colon."""
    from lngrad.check.implementations import names

    return (name if name.isidentifier() else name.partition(":")[0] + ":" for name in names() if name[:7] != "module:")


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """End the command unless an option's value is one of these."""
    if value not in (known := list(allowed)):
        fail(f"{name}: expected one of {', '.join(known)}, got {value!r}", REFUSED)


def known_norm(norm: str | None, names: Callable[[], Iterable[str]] = norm_names) -> None:
    """End the command at a --norm that there is not."""
    if norm is not None:
        one_of("--norm", norm, names())


def need(extra: str, **modules: str) -> None:
    """End the command if a module is not installed; the error names the extra that installs it.

    Args:
        extra: Of lngrad.
        modules: By their distributions, with _ for -.
    """
    missing = [name.replace("_", "-") for name, module in modules.items() if find_spec(module) is None]
    if missing:
        fail(f"needs {' and '.join(missing)}: {install_command(extra)}", REFUSED)


def new_table(title: str, *left: str, right: Sequence[str] = (), **options: Any) -> Table:
    """A rich table with these columns to the left, and those to the right aligned there; the options are rich's."""
    from rich.table import Table

    table = Table(*left, title=title, **options)
    for heading in right:
        table.add_column(heading, justify="right")
    return table


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr while something takes long, on a terminal; gives a function that changes it."""
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


@contextmanager
def progress(
    console: Console, unit: str, total: int, completed: int = 0, large: bool = True
) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how many more are done: a bar, on a terminal and for what is large."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f} {unit}/s" if task.speed else "", style="dim")

    columns = TextColumn(unit), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    shown = large and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(unit, total=total, completed=completed)
        yield lambda number: bar.advance(task, number)
