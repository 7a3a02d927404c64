"""Random valid calls of aclnnLayerNormBackward against the float64 reference, and one fault in each argument."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aclnn_harness import OUTPUTS, Call, strided, tensor
from lngrad.testing import Case, check_grads
from lngrad_ascend import acl, aclnn, soc

pytestmark = pytest.mark.property

BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
ANY = ("float32", "float16", "bfloat16")


@st.composite
def layouts(draw, dims):
    """Order, steps and offset of a view."""
    order = draw(st.permutations(range(dims)))
    return order, draw(st.lists(st.integers(1, 3), min_size=dims, max_size=dims)), draw(st.integers(0, 9))


@st.composite
def calls(draw):
    """A valid call, the SoC it is valid on, and a rounding."""
    name = draw(st.sampled_from([name for name in soc.names() if name != "Ascend310B"]))  # its page has no backward
    known = ANY if soc.get(name).bf16 else ANY[:2]
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8).filter(lambda sizes: np.prod(sizes) <= 3000))
    shape[-1] = draw(st.integers(1, 40))
    normalized = draw(st.integers(1, len(shape)))
    dtype = draw(st.sampled_from(known))
    weight = draw(st.sampled_from([None, "float32", dtype]))
    case = Case(
        tuple(shape[:-normalized]),
        tuple(shape[-normalized:]),
        gamma=weight is not None,
        gamma_dtype=weight,
        statistics_dtype=draw(st.sampled_from([kind for kind in known if BITS[kind] >= BITS[dtype]])),
    )
    mask = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any))
    call = Call(case, dtype, mask=mask, bias=draw(st.booleans()), seed=draw(st.integers(0, 99)),
                out_dtypes=tuple(draw(st.sampled_from(known)) for _ in OUTPUTS))  # fmt: skip
    i = call.inputs
    arrays = {"gradOut": i.dy, "input": i.x, "mean": i.mean, "rstd": i.rstd, "weightOptional": i.gamma, **call.results}
    for argument, array in arrays.items():
        if array is not None and draw(st.booleans()):
            call.arguments[argument], view = strided(array.shape, array.dtype.name, *draw(layouts(array.ndim)))
            view[...] = array
            if argument in OUTPUTS:
                call.results[argument] = view
    return call, name, draw(st.sampled_from(["even", "device"]))


@settings(max_examples=60)
@given(calls())
def test_random_calls(drawn):
    call, name, rounding = drawn
    with soc.use(name, rounding=rounding):
        call.check()


FAULTS = (
    "gradOut",
    "input",
    "normalizedShape",
    "mean",
    "rstd",
    "weightOptional",
    "biasOptional",
    "outputMask",
    *OUTPUTS,
)


def break_rule(call, name):
    """Give an argument another size; a null pointer for gradWeightOut. An output is wanted then, whatever the mask says."""
    i, kind = call.inputs, call.inputs.x.dtype
    if name in OUTPUTS:
        mask = [wanted or output == name for output, wanted in zip(OUTPUTS, call.mask, strict=True)]
        call.changed(outputMask=acl.aclCreateBoolArray(mask))
    arrays = {"gradOut": i.dy, "input": i.x, "mean": i.mean.ravel(), "rstd": i.rstd.ravel(), "gradInputOut": i.x}
    array = arrays.get(name, np.zeros(i.normalized_shape, np.float32 if name == "biasOptional" else kind))
    shape = (array.shape[0] + 1, *array.shape[1:])
    values = {
        "normalizedShape": acl.aclCreateIntArray([size + 1 for size in i.normalized_shape]),
        "outputMask": acl.aclCreateBoolArray([True]),
        "gradWeightOut": None,
    }
    return call.changed(**{name: values.get(name, tensor(np.zeros(shape, array.dtype)))})


@settings(max_examples=60)
@given(calls(), st.sampled_from(FAULTS))
def test_one_fault_gives_its_code_and_writes_nothing(drawn, argument):
    call, name, rounding = drawn
    with soc.use(name, rounding=rounding):
        size, executor, ret = break_rule(call, argument).phase1()
    expected = aclnn.ACLNN_ERR_PARAM_NULLPTR if argument == "gradWeightOut" else aclnn.ACLNN_ERR_PARAM_INVALID
    assert ret == expected, acl.aclGetRecentErrMsg()
    assert (size, executor) == (0, None)
    assert aclnn.aclnnLayerNormBackward(np.empty(64, np.uint8), 64, executor, None) == aclnn.ACLNN_ERR_PARAM_NULLPTR
    assert acl.aclrtSynchronizeStream(None) == 0
    call.check_untouched()


def test_the_random_calls_would_catch_a_wrong_result():
    call = Call(Case((3,), (5,)))
    call.run()
    call.results["gradInputOut"][0, 0] += 1
    with pytest.raises(AssertionError, match="dx"):
        check_grads(call.computed(), call.inputs)
