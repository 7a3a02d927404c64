"""The soak through torch and JAX; in a file of its own, so that two processes share the soak."""

from __future__ import annotations

import pytest

from lngrad.check.soak import soak


@pytest.mark.parametrize(("doors", "calls"), [(("torch", "override"), 9_000), (("jax",), 1_000)])
def test_random_calls_of_frameworks(doors, calls):
    pytest.importorskip(doors[0])
    report = soak(calls=calls, seed=21, doors=doors)
    assert not report.violations, report.programs()
    assert report.calls == calls
