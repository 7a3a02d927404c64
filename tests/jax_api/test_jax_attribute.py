"""What exported programs carry: an attribute that later versions must read."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

from lngrad.core.problem import (
    ADD_BACKWARD,
    ADD_FORWARD,
    ADD_RMS_BACKWARD,
    ADD_RMS_FORWARD,
    BACKWARD,
    FORWARD,
    RMS_BACKWARD,
    RMS_FORWARD,
    Normalization,
)
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


def test_numbers_of_operators_stay():
    family = RMS_FORWARD, RMS_BACKWARD, ADD_FORWARD, ADD_BACKWARD, ADD_RMS_FORWARD, ADD_RMS_BACKWARD
    assert calls._OPERATORS[:8] == (FORWARD, BACKWARD, *family)


def test_offset_and_alpha_come_last_where_they_are_not_0_and_1():
    one, two = (int(np.float64(number).view(np.int64)) for number in (1.0, 2.0))
    given = calls.attribute(ADD_RMS_FORWARD, 1, 1, (True,), (), (1e-5,), Normalization(False, 1.0, 2.0)).tolist()
    assert given == [6, 1, 1, BITS, 1, one, two]
    call = calls._Call(tuple(given), [TENSOR, COLUMN, TENSOR], [TENSOR, ROW, TENSOR])
    assert call._problem.normalization == Normalization(False, 1.0, 2.0)
    assert calls.attribute(RMS_BACKWARD, 1, 1, (True,), (True, False)).tolist() == [3, 1, 1, 1, 1, 0]
    call = calls._Call((3, 1, 1, 1, 1, 0), [TENSOR, TENSOR, ROW, COLUMN], [TENSOR])
    assert call._problem.normalization == Normalization(False)
