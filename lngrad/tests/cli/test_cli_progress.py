"""What a command shows on a terminal while it works: a line or a bar, then the terminal as it was."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pty = pytest.importorskip("pty")

COMPILED = ("kernel", "sdk")  # these words begin commands that need a compiler
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor


def on_a_terminal(words: list[str], folder: Path) -> str:
    """All that the command writes, to stdout and stderr, which are one terminal."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "lngrad", *words]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**environment, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        received = b""
        try:
            while chunk := os.read(ours, 1 << 16):
                received += chunk
        except OSError:  # Linux's end of a terminal
            pass
        os.close(ours)
    assert process.returncode == 0, received
    return received.decode()


@pytest.mark.parametrize(
    ("words", "while_working"),
    [  # the commands of the tutorials, and others that take long
        ("check --impl numpy_cpu --limit 2", "0/2"),
        ("golden cases -o goldens --limit 2", "0/2"),
        ("tiling --sweep", "counting over 7,040 shapes"),
        ("sdk toolkit", "building toolkit"),
        ("sdk --run lines.c", "building lines.c"),
        ("kernel run k.cpp --kernel k --arg x=x.npy", "compiling k"),
    ],
    ids=lambda words: words.partition(" -")[0].replace(" ", "_"),
)
def test_progress_is_shown_on_a_terminal(words, while_working, tmp_path):
    if words.startswith(COMPILED) and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    np.save(tmp_path / "x.npy", np.ones(64, np.float32))
    begin = 'extern "C" __global__ __aicore__ void k(GM_ADDR x) {}'
    (tmp_path / "k.cpp").write_text(f'#include "kernel_operator.h"\n{begin}\n')
    (tmp_path / "lines.c").write_text('#include <stdio.h>\nint main() { puts("a line"); }\n')
    (tmp_path / "cases").symlink_to(Path(__file__).parents[3] / "cases")
    text_of_output = on_a_terminal(words.split(), tmp_path)
    before, _, after = text_of_output.rpartition(SHOWN)
    assert re.search(while_working, before)
    assert text_of_output.startswith(HIDDEN)  # it is the first that is said
    assert not re.search(while_working, after)
