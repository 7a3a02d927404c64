"""The console script: how the process begins and ends. Commands return or raise; their errors are one line (terminal.py).

Exit codes: 0 done; 1 a check did not pass; 2 bad input, or something is missing; 3 more to do; 130 Ctrl-C; 141 whoever
read the output has gone, as in `lngrad info | head -1`; 143 ended from outside (129 by a
closed terminal).
"""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report a program that the signal ends


class Interrupt(KeyboardInterrupt):
    """Ctrl-C, as a class of our own.

    Python sets a flag if a plain KeyboardInterrupt leaves the exec() of a text, which is how imports make dataclasses.
    Under `python -m` it then ends by SIGINT, even if the exception was caught and answered with another exit code.
    """


def main() -> None:
    """Run the command line."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # under nohup it stays ignored
            signal.signal(signal.SIGINT, _interrupt)
        # An end from outside unwinds as Ctrl-C does, so that no temporary file stays behind.
        signal.signal(signal.SIGTERM, _end)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a closed terminal
            signal.signal(signal.SIGHUP, _end)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a locale without µ gets a question mark, not a traceback
        from lngrad.cli.commands import app
        from lngrad.cli.terminal import exit_code

        sys.exit(exit_code(app))
    except KeyboardInterrupt:
        sys.exit(_say("interrupted", 130))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # click and rich end with 1 where a pipe is closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python has still to flush
            sys.exit(PIPE_CLOSED)
        raise
    except OSError as error:  # of --install-completion: commands answer for themselves
        from lngrad.errors import printable

        sys.exit(_say(printable(f"{error.filename or 'a file'}: {error.strerror or error}"), 1))


def _say(text: str, code: int) -> int:
    print(f"lngrad: {text}", file=sys.stderr)
    return code


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupt


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
