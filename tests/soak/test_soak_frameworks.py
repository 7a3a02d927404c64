"""The soak through torch and JAX; in a file of its own, so that two processes share the soak."""

from __future__ import annotations

import pytest

from soak import soak


@pytest.mark.parametrize(
    ("entry_points", "calls"), [(("torch", "override"), 1_500), (("jax",), 300), (("aclnn",), 300)]
)
def test_random_calls_of_frameworks(entry_points, calls):
    if entry_points[0] != "aclnn":
        pytest.importorskip(entry_points[0])
    report = soak(calls=calls, seed=21, entry_points=entry_points)
    assert not report.violations, report.programs()
    assert report.calls == calls
