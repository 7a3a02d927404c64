"""lngrad over several processes. The checks are in distributed_checks.py; here is what became of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.tensor")
sys.path.insert(0, str(Path(__file__).parent))

import distributed_checks  # noqa: E402  # torch may be missing
import distributed_harness  # noqa: E402

NAMED = [(size, name) for size, checks in distributed_checks.CHECKS.items() for name in checks]


@pytest.mark.parametrize(("size", "name"), NAMED, ids=lambda value: str(value))
def test_in_a_world(size, name):
    said = [text for text in distributed_harness.results("distributed_checks", size)[name] if text]
    assert not said, "\n".join(said)
