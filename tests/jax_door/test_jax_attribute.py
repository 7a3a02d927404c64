"""What exported programs carry: an attribute that later versions must read."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

from lngrad.core.problem import BACKWARD, FORWARD
from lngrad.jax import calls

TENSOR, ROW, COLUMN = (0, "float32", (6, 4)), (0, "float32", (6, 1)), (0, "float32", (4,))
BITS = int(np.float64(1e-5).view(np.int64))


def test_attributes_of_the_first_release_are_read():
    call = calls._Call((0, 1, 1, BITS, 1, 0, 0), [TENSOR, COLUMN], [TENSOR, ROW, ROW])
    assert call._last == (1e-5,)
    assert call._problem.operator is FORWARD
    assert call._problem.inputs["beta"] is None
    call = calls._Call((1, 1, 1, 1, 0, 1, 0), [TENSOR, TENSOR, ROW, ROW, COLUMN], [COLUMN])
    assert call._problem.wanted == (False, True, False)


def test_attributes_are_those_of_the_first_release():
    assert calls.attribute(FORWARD, 1, 2, (True, False), numbers=(1e-5,)).tolist() == [0, 1, 2, BITS, 1, 0]
    mask = (True, False, True)
    assert calls.attribute(BACKWARD, 1, 2, (True,), mask).tolist() == [1, 1, 2, 1, 1, 0, 1]
