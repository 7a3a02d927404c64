"""Commands with many options: a dataclass has them, and typer sees a signature with a parameter for each of its fields."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, get_type_hints


def with_options(command: Callable[[Any], None]) -> Callable[..., None]:
    """Make a command for typer of a function whose one parameter is a dataclass with typer's annotations on its fields."""
    (name,) = inspect.signature(command).parameters
    options = get_type_hints(command)[name]
    # With globals, as a lambda among the annotations has them.
    types = get_type_hints(options, vars(sys.modules[options.__module__]), include_extras=True)

    @wraps(command)
    def called(**values: Any) -> None:
        command(options(**values))

    called.__annotations__ = types
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=types[field.name],
            )
            for field in fields(options)
        ]
    )
    return called
