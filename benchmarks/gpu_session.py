"""All that a short time on a machine with a GPU is for, in order of worth, each part with a limit of time: 13 minutes.

    python benchmarks/gpu_session.py FOLDER                 all parts
    python benchmarks/gpu_session.py FOLDER tests bands     these

FOLDER gets what each part prints, and the records as they are made. A part that fails or runs out of time ends no other.
Never run on a GPU as a whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = [sys.executable]


def parts(folder: Path) -> dict[str, tuple[float, list[str]]]:
    """By name: minutes, and the command."""

    def script(name: str, minutes: float) -> list[str]:
        return [
            *PYTHON,
            str(HERE / f"gpu_{name}.py"),
            "--json",
            str(folder / f"{name}.jsonl"),
            "--minutes",
            str(minutes),
        ]

    def bench(seconds: int, name: str, *options: str) -> list[str]:
        records = ["--json", str(folder / f"{name}.jsonl"), "--resume", "--rounds", "7", "--time-limit", str(seconds)]
        return [*PYTHON, "-m", "lngrad", "bench", *options, *records]

    cuda = "--device", "cuda", "--peers"
    norms = "rms_norm", "add_rms_norm", "add_layer_norm"
    return {
        "tests": (1.5, [*PYTHON, "-m", "pytest", "-q", "-x", "-m", "gpu", "tests/gpu", "tests/core"]),
        "host": (2, script("host", 0.5)),
        "bands": (4.3, script("bands", 4)),
        "bench": (2, bench(110, "gpu", *cuda, "torch,compile,liger,quack")),
        **{norm: (0.5, bench(25, "gpu", *cuda, "torch,compile,liger,quack", "--norm", norm)) for norm in norms},
        "threads": (1.5, bench(80, "cpu", "--threads", "1,2,4,8,16", "--scopes", "kernel,forward")),
    }


def main(folder: Path, chosen: list[str]) -> None:
    """Run the parts, one after another."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    known = parts(folder)
    for name in chosen or known:
        minutes, command = known[name]
        start = time.monotonic()
        with (folder / f"{name}.txt").open("w", encoding="utf-8") as output:
            try:
                done = subprocess.run(
                    command, cwd=HERE.parent, env=environment, stdout=output, stderr=subprocess.STDOUT,
                    timeout=60 * minutes, check=False,
                )  # fmt: skip
                said = f"exit code {done.returncode}"
            except subprocess.TimeoutExpired:
                said = "out of time"
        print(f"{name}: {said} after {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
