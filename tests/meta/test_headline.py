"""The speed that README's first lines claim over the best peer is what the records say."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import geometric_mean

from lngrad.bench.records import newest, read

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "results" / "amd-epyc-9005-2-cores.jsonl"


def test_the_headline_has_the_figures_of_the_records():
    records = [record for record in read(RECORDS) if record.get("threads", 2) == 2]
    ratios = {key: min(record["ratio"].values()) for key, record in newest(records, "kernel").items()}

    def mean(long: bool, dtypes: tuple[str, ...]) -> float:
        chosen = [ratio for (_, N, dtype), ratio in ratios.items() if dtype in dtypes and (N >= 64) == long]
        return geometric_mean(chosen)

    sixteen = ("float16", "bfloat16")
    expected = [mean(True, ("float32",)), mean(True, sixteen), mean(False, ("float32", *sixteen))]
    first_lines = (ROOT / "README.md").read_text("utf-8").partition("**You write kernels")[0]
    claimed = [float(number) for number in re.findall(r"\*\*([\d.]+)×\*\*", first_lines)]
    assert claimed == [float(f"{ratio:.2g}") for ratio in expected], [f"{ratio:.2f}" for ratio in expected]
