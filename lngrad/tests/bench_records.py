"""Records as the bench writes them, for tests."""

from __future__ import annotations

from typing import Any


def line(M: int, N: int, dtype: str, scope: str = "kernel", threads: int = 2, **ratio: float) -> dict[str, Any]:
    """A record of 100 µs; keyword arguments are ratios to peers."""
    machine = {"cpu": "Intel(R) Xeon(R) Processor (family 6, model 207), 2 logical cores", "cores": 2}
    return {
        "date": "2026-01-01T00:00Z", "scope": scope, "M": M, "N": N, "dtype": dtype, "op": "backward",
        "threads": threads, "rounds": 15, "ratio": ratio, "time_us": {"lngrad": {"median": 100.0, "p90": 120.0}},
        "of_roofline": 0.5, "commit": "abc", "versions": {"torch": "2.13"},
        "machine": machine | {"instruction_sets": ["avx2", "avx512f"], "cache": "L3"},
    }  # fmt: skip


LINES = [
    line(64, 128, "float32", torch=2.0, onednn=0.5),
    line(64, 128, "bfloat16", torch=4.0, onednn=2.0),
    line(64, 13, "float32", torch=8.0, onednn=9.0),
    line(64, 128, "float32", threads=1, torch=3.0),
]
