"""All that a short time on a machine with a GPU is for, in order of worth: two commands of less than ten minutes each.

    python benchmarks/gpu_session.py FOLDER 1               the first half: is it right, and which cuts are fast
    python benchmarks/gpu_session.py FOLDER 2               the second: a model's step, and the bench beside its peers
    python benchmarks/gpu_session.py FOLDER tests bands     these parts

FOLDER gets said.txt, what the parts print, and the records as they are made. A part that fails or runs out of time ends no
other. Together with the machine's start the halves take a quarter of an hour. A machine without a cache compiles a kernel of
Triton's in 0.7 s and a model in 30 to 40 s, which takes most of the time that is expected.

Never run on a GPU as a whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = [sys.executable]


@dataclass(frozen=True)
class Part:
    """A command of a half, the minutes after which it is ended, and the seconds that it is expected to take.

    ordered: With sums in a written order.
    """

    half: int
    minutes: float
    expected: int
    command: list[str]
    ordered: bool = False


def parts(folder: Path) -> dict[str, Part]:
    """By name, in order."""

    def script(name: str, *options: str) -> list[str]:
        return [*PYTHON, str(HERE / f"gpu_{name}.py"), "--json", str(folder / f"{name}.jsonl"), *options]

    def bench(seconds: int, name: str, **options: str) -> list[str]:
        words = (word for option, value in options.items() for word in (f"--{option}", value))
        records = ["--json", str(folder / f"{name}.jsonl"), "--resume", "--rounds", "7", "--time-limit", str(seconds)]
        return [*PYTHON, str(HERE / "bench.py"), *words, *records]

    def cuda(seconds: int, scopes: str, cases: str, dtypes: str, peers: str, norm: str = "layer_norm") -> list[str]:
        return bench(
            seconds, "gpu", device="cuda", scopes=scopes, cases=cases, dtypes=dtypes, peers=peers, norm=norm
        )  # fmt: skip

    model = "model", "8192x768,128x768", "bfloat16", "torch,compile"
    large = "65536x1024,131072x512,29128x2304,13108x5120,9363x7168,5462x12288,4096x16384,64x768,512x1024"
    native = "from lngrad.torch.native import building; print(building.build())"
    tests = "-q", "-x", "-n", "8", "-m", "gpu", "lngrad/tests/gpu", "lngrad/tests/core"
    two = "forward,autograd", "16384x4096,512x1024", "bfloat16", "torch,liger,quack"
    return {
        "native": Part(1, 1.5, 60, [*PYTHON, "-c", native]),
        "tests": Part(1, 1.7, 80, [*PYTHON, "-m", "pytest", *tests]),
        "ordered": Part(
            1, 0.8, 35, [*PYTHON, "-m", "pytest", *tests[:-2], "lngrad/tests/gpu", "-k", "golden"], ordered=True
        ),
        "sums": Part(1, 0.5, 25, script("bands", "--sums")),
        "host": Part(1, 1.8, 100, script("host")),
        "bands": Part(1, 3.1, 170, script("bands", "--minutes", "2.7")),
        "model": Part(2, 1.4, 75, cuda(50, *model)),
        "model of rms_norm": Part(2, 1.4, 75, cuda(50, *model, "rms_norm")),
        "bench": Part(2, 1.4, 75, cuda(75, "call,forward,overhead", large, "bfloat16", "torch,liger")),
        **{norm: Part(2, 0.4, 20, cuda(15, *two, norm)) for norm in ("rms_norm", "add_rms_norm")},
        "threads": Part(
            2,
            0.8,
            45,
            bench(
                40, "cpu", threads="1,2,4,8,16", scopes="kernel,forward", cases="4096x768,16384x1024", dtypes="float32"
            ),
        ),
    }


def main(folder: Path, chosen: list[str]) -> None:
    """Run a half, or parts, one after another."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts(folder).items():
        if chosen and name not in chosen and str(part.half) not in chosen:
            continue
        environment = os.environ | {"TRITON_INTERPRET": "0", "LNGRAD_GPU_ORDERED": str(int(part.ordered))}
        start = time.monotonic()
        with (folder / "said.txt").open("a", encoding="utf-8") as output:
            print(f"=== {name}", file=output, flush=True)
            try:
                done = subprocess.run(
                    part.command, cwd=HERE.parent, env=environment, stdout=output, stderr=subprocess.STDOUT,
                    timeout=60 * part.minutes, check=False,
                )  # fmt: skip
                outcome = f"exit code {done.returncode}"
            except subprocess.TimeoutExpired:
                outcome = "out of time"
        print(f"{name}: {outcome} after {time.monotonic() - start:.0f} s, {part.expected} expected", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
