"""The soak through torch and JAX; in a file of its own, so that two processes share the soak."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize(
    ("entry_points", "calls"), [(("torch", "override"), 1_500), (("jax",), 300), (("aclnn",), 300)]
)
def test_random_calls_of_frameworks(entry_points, calls, soaked):
    if entry_points[0] != "aclnn":
        pytest.importorskip(entry_points[0])
    done = soaked("--calls", calls, "--seed", 21, "--entry-points", ",".join(entry_points))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert re.match(rf"{calls:,} calls in \d+ s, 0 violations$", done.stdout, re.MULTILINE)
