"""Write lngrad/tests/golden_bits.json anew: `python lngrad/tests/write_golden_bits.py`, when bits are meant to change.

A case whose bits depend on the number of threads, or on the run, stops it, and nothing is written. With the argument `gpu` it
writes lngrad/tests/gpu/golden_bits.json, by Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import lngrad
from golden_cases import CASES, FILE, GoldenCase, hashes


def gpu() -> int:
    """The bits of the Triton kernels with sums in a written order."""
    os.environ |= {"TRITON_INTERPRET": "1", "LNGRAD_GPU_ORDERED": "1"}
    sys.path.insert(0, str(Path(__file__).parent / "gpu"))
    from test_triton_gpu import GOLDEN, ORDERED, ordered_bits

    lines = [f"{json.dumps(name)}: {json.dumps(ordered_bits(name))}" for name in ORDERED]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(lines)} cases in {GOLDEN}")
    return 0


def write(cases: Sequence[GoldenCase], file: Path) -> int:
    """The bits of these cases, which are the same with any number of threads and in every run."""
    lines = []
    for case in cases:
        results = []
        for threads in (*case.threads, case.threads[0]):
            lngrad.set_num_threads(threads)
            results.append(hashes(case))
        if any(result != results[0] for result in results):
            raise SystemExit(f"{case.name}: not the same bits with {case.threads} threads, run after run: {results}")
        lines.append(f"{json.dumps(case.name)}: {json.dumps({'where': case.where, **results[0]})}")
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(lines)} cases in {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(gpu() if sys.argv[1:] == ["gpu"] else write(CASES, FILE))
