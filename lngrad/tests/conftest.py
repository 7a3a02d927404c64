"""Fixtures of lngrad's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from norms import NORMS


@pytest.fixture(autouse=True, scope="module")
def programs_of_one_module() -> Iterator[None]:
    """What JAX and torch compile for the tests of a module goes with it: a worker that kept all had 4.6 GB."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()


@pytest.fixture(params=["numba_cpu", "numpy_cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    """Every CPU backend in turn."""
    return request.param


# An offset is one addition to gamma: the norms that differ by it alone run with -m slow, and in the tests of precision always.
_OFFSET_ALONE = {"gemma_rms_norm", "zero_centred_layer_norm"}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in _OFFSET_ALONE)) for name in NORMS])
def norm(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Every norm of the family in turn: what make_inputs takes for it."""
    return NORMS[request.param]
