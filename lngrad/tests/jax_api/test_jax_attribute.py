"""What exported programs carry: an attribute that later versions must read."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import lngrad
from frames import second_and_third
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
from lngrad.testing import check_same_bits

TENSOR, ROW, COLUMN = (0, "float32", (6, 4)), (0, "float32", (6, 1)), (0, "float32", (4,))
BITS = int(np.float64(1e-5).view(np.int64))


def test_attributes_of_the_first_release_are_read():
    call = calls.XlaCall((0, 1, 1, BITS, 1, 0, 0), [TENSOR, COLUMN], [TENSOR, ROW, ROW])
    assert call.numbers == (1e-5,)
    assert call.plan.problem.operator is FORWARD
    assert call.plan.problem.inputs["beta"] is None
    call = calls.XlaCall((1, 1, 1, 1, 0, 1, 0), [TENSOR, TENSOR, ROW, ROW, COLUMN], [COLUMN])
    assert call.plan.problem.wanted == {"dgamma"}


def test_attributes_are_those_of_the_first_release():
    assert calls.attribute(FORWARD, 1, 2, (True, False), numbers=(1e-5,)).tolist() == [0, 1, 2, BITS, 1, 0]
    mask = (True, False, True)
    assert calls.attribute(BACKWARD, 1, 2, (True,), mask).tolist() == [1, 1, 2, 1, 1, 0, 1]


def test_numbers_of_operators_stay():
    family = RMS_FORWARD, RMS_BACKWARD, ADD_FORWARD, ADD_BACKWARD, ADD_RMS_FORWARD, ADD_RMS_BACKWARD
    assert calls._OPERATORS[:8] == (FORWARD, BACKWARD, *family)


def test_offset_and_alpha_come_last_where_they_are_not_0_and_1():
    unit, two = (int(np.float64(number).view(np.int64)) for number in (1.0, 2.0))
    words = calls.attribute(ADD_RMS_FORWARD, 1, 1, (True,), (), (1e-5,), Normalization(False, 1.0, 2.0)).tolist()
    assert words == [6, 1, 1, BITS, 1, unit, two]
    call = calls.XlaCall(tuple(words), [TENSOR, COLUMN, TENSOR], [TENSOR, ROW, TENSOR])
    assert call.plan.problem.normalization == Normalization(False, 1.0, 2.0)
    assert calls.attribute(RMS_BACKWARD, 1, 1, (True,), (True, False)).tolist() == [3, 1, 1, 1, 1, 0]
    call = calls.XlaCall((3, 1, 1, 1, 1, 0), [TENSOR, TENSOR, ROW, COLUMN], [TENSOR])
    assert call.plan.problem.normalization == Normalization(False)


@pytest.mark.parametrize("operator", [FORWARD, RMS_FORWARD])
def test_a_second_call_of_xla_is_the_third(operator):
    """From the buffers that it names on: it is looked up, and run on their addresses."""
    x, y = np.random.default_rng(0).standard_normal((2, 64, 64), np.float32)
    statistics = [np.empty((64, 1), np.float32) for name in operator.outputs if name in ("mean", "rstd")]
    present = (False,) * (len(operator.inputs) - 1)
    wanted = operator.outputs[: 1 + len(statistics)]
    assert wanted == tuple(name for name in operator.outputs if name != "total")
    attribute = tuple(calls.attribute(operator, 1, 1, present, (), (1e-5,)).tolist())
    inputs, *results = ((array.ctypes.data, "float32", array.shape) for array in (x, y, *statistics))
    second_and_third(lambda: calls.serve(attribute, [inputs], results))
    right = (lngrad.layer_norm if operator is FORWARD else lngrad.rms_norm)(x, eps=1e-5)
    check_same_bits((y, *statistics), tuple(right[: len(wanted)]))
