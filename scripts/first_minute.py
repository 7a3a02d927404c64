"""Take the transcript of docs/first-minute.md: the wheel in an empty environment, as a new user meets it, with times.

Run before a release, on a machine without other load.

    python scripts/first_minute.py                built now; packages come from the index that pip knows
    python scripts/first_minute.py --dist dist    archives that are there

Text between `<!-- transcript:begin -->` and `<!-- transcript:end -->` is replaced. The kernel cache is empty at the start.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from lngrad.core.machine import processor

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "first-minute.md"
KERNEL = re.compile(r"```python\n(.*?)```", re.DOTALL)  # the page's first block: the kernel that is checked
MARKED = re.compile(r"(<!-- transcript:begin -->\n).*(<!-- transcript:end -->)", re.DOTALL)
MAX_LINES = 45  # of one command

COMMANDS = (
    "python3 -m venv env && . env/bin/activate",
    "pip install --quiet '{wheel}[demo]'",
    "lngrad",
    "lngrad demo",
    "lngrad check --impl my_kernel:backward --seed 0 --filter '=float16 tail'",
    "lngrad info",
)


def taken(command: str, folder: Path, wheel: Path) -> str:
    """A command as the page shows it, what it printed, and its seconds. One that check ends with 1 has done its work."""
    line = command.format(wheel=wheel.name)
    words = ["bash", "-c", f"[ -f env/bin/activate ] && . env/bin/activate; {line}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"XDG_CACHE_HOME": str(folder / ".cache"), "COLUMNS": "80", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    start = perf_counter()
    done = subprocess.run(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    seconds = perf_counter() - start
    if done.returncode not in ((0, 1) if " check " in line else (0,)):
        raise SystemExit(f"{line}: exit code {done.returncode}\n{done.stdout}")
    lines = [line.rstrip().replace(str(folder), "~") for line in done.stdout.splitlines()]
    lines = [line for line in lines if not line.startswith(("WARNING: Location", "Looking in"))]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"… and {len(lines) - MAX_LINES} more lines"]
    return "\n".join([f"$ {line}", *lines, f"[{seconds:.1f} s]"])


def main(
    dist: Annotated[Path | None, typer.Option(help="A folder with the wheel; default: built now.")] = None,
) -> None:
    """Rewrite the transcript of docs/first-minute.md."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if not dist:
            command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT / "lngrad")]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        (wheel,) = (dist or folder).glob("lngrad-*.whl")
        if dist:
            (folder / wheel.name).write_bytes(wheel.read_bytes())
        (folder / "my_kernel.py").write_text(KERNEL.findall(PAGE.read_text(encoding="utf-8"))[0])
        shown = [taken(command, folder, wheel) for command in COMMANDS]
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    about = f"{today}, {processor()}, Python {sys.version.split()[0]}:"
    blocks = "\n\n".join(f"```text\n{text}\n```" for text in shown)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda found: f"{found[1]}{about}\n\n{blocks}\n{found[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
