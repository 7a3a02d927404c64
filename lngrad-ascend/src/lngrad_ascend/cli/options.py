"""What the commands of lngrad-ascend share: the simulated SoC as an option, and programs that are built and run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from lngrad.cli.terminal import choice, existing, say, working


def soc_names() -> Iterable[str]:
    """Of --soc."""
    from lngrad_ascend.soc import names

    return names()


SocName = Annotated[str | None, choice("The simulated SoC.", soc_names, show_default="Ascend910B1")]


Json = Annotated[str | None, Option("--json", metavar="FILE|-", help="Write the verdict as JSON; - prints it alone.")]


def write_json(text: str, place: str) -> None:
    """Write JSON to a file, or to stdout where the place is -."""
    from lngrad.files.writing import write_text

    if place == "-":
        say(text)
    else:
        write_text(Path(place), text + "\n")


def run_file(words: list[str], settings: Any, time_limit: float | None, folder: Path | None = None, **more: Any) -> int:
    """Build a program against the toolkit, run it with its arguments, and return its code."""
    from lngrad.support.children import children, end_children, guarded
    from lngrad_ascend.sdk.program import run_program

    existing(Path(words[0]))
    building = working(f"building {words[0]}")
    guarded()
    ours = dict(children())
    try:
        return run_program(Path(words[0]), words[1:], folder, settings, time_limit, building, **more)
    finally:
        end_children(lambda process, _: process in ours)  # what the program has started
