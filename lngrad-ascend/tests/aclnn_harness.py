"""Calls of the aclnn functions for tests: valid ones, in which single arguments are then exchanged."""

from __future__ import annotations

import numpy as np

from lngrad.core.problem import Forward, Grads
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs
from lngrad_ascend import acl, aclnn
from lngrad_ascend.acl.tensor import NUMPY_DTYPES

NAMES = {
    "float32": acl.ACL_FLOAT,
    "float16": acl.ACL_FLOAT16,
    "bfloat16": acl.ACL_BF16,
    "float64": acl.ACL_DOUBLE,
    "int8": acl.ACL_INT8,
    "int32": acl.ACL_INT32,
}
OUTPUTS = ("gradInputOut", "gradWeightOut", "gradBiasOut")
SENTINEL = 77.0


def tensor(array, dtype=None, data=...):
    """A contiguous tensor over a NumPy array's memory, or over other data of the same shape."""
    made = acl.aclCreateTensor(
        array.shape,
        NAMES[array.dtype.name] if dtype is None else dtype,
        None,
        0,
        acl.ACL_FORMAT_ND,
        array.shape,
        array if data is ... else data,
    )
    assert made is not None, acl.aclGetRecentErrMsg()
    return made


def empty_tensor(shape, dtype=acl.ACL_FLOAT):
    """A tensor with a storage of its own, for arguments that will be refused."""
    return tensor(np.zeros(shape, NUMPY_DTYPES.get(dtype, np.float32)), dtype)


def strided(shape, dtype, order=None, steps=None, offset=0):
    """A view of a larger storage: dimensions laid out in `order`, each with a step. Returns (tensor, NumPy view)."""
    order = range(len(shape)) if order is None else order
    steps = [1] * len(shape) if steps is None else steps
    strides, stride = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = stride * steps[axis]
        stride *= shape[axis] * steps[axis]
    storage = np.full(offset + stride, SENTINEL, numpy_dtype(dtype))
    made = acl.aclCreateTensor(shape, NAMES[dtype], strides, offset, acl.ACL_FORMAT_ND, storage.shape, storage)
    assert made is not None, acl.aclGetRecentErrMsg()
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape, [step * storage.itemsize for step in strides])
    return made, view


class Call:
    """A valid call; `arguments` may be exchanged before phase 1.

    Args:
        case: shape and dtypes.
        dtype: of gradOut and input.
        mask: outputMask.
        out_dtypes: of the three outputs; None for input's, weight's, weight's.
        weight, bias: whether there is one.
        out_shapes: instead of the right ones, by name.
    """

    def __init__(
        self,
        case=None,
        dtype="float32",
        *,
        mask=(True, True, True),
        out_dtypes=(None, None, None),
        bias=True,
        out_shapes=None,
        seed=0,
    ):
        case = Case((3, 4), (5,)) if case is None else case
        self.inputs = inputs = make_inputs(case, dtype, seed)
        self.mask = mask
        parameter = dtype if inputs.gamma is None else inputs.gamma.dtype.name
        shapes = {"gradInputOut": inputs.x.shape} | dict.fromkeys(OUTPUTS[1:], inputs.normalized_shape)
        shapes |= out_shapes or {}
        self.results = {
            name: np.full(shapes[name], SENTINEL, numpy_dtype(given or default))
            for name, given, default in zip(OUTPUTS, out_dtypes, (dtype, parameter, parameter), strict=True)
        }
        self.arguments = {
            "gradOut": tensor(inputs.dy),
            "input": tensor(inputs.x),
            "normalizedShape": acl.aclCreateIntArray(inputs.normalized_shape),
            "mean": tensor(inputs.mean),
            "rstd": tensor(inputs.rstd),
            "weightOptional": None if inputs.gamma is None else tensor(inputs.gamma),
            "biasOptional": tensor(inputs.beta) if bias and inputs.beta is not None else None,
            "outputMask": acl.aclCreateBoolArray(mask),
            **{name: tensor(result) for name, result in self.results.items()},
        }

    def phase1(self):
        """(workspaceSize, executor, ret)."""
        return aclnn.aclnnLayerNormBackwardGetWorkspaceSize(**self.arguments)

    def phase2(self, stream=None):
        """Both phases, with a workspace of exactly the size that phase 1 returned. Returns ret of phase 2."""
        size, executor, ret = self.phase1()
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        return aclnn.aclnnLayerNormBackward(np.empty(size, np.uint8) if size else None, size, executor, stream)

    def run(self, stream=None):
        """Both phases and synchronize. Returns the results as Grads, None where masked off."""
        ret = self.phase2(stream)
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        ret = acl.aclrtSynchronizeStream(stream)
        assert ret == acl.ACL_SUCCESS, acl.aclGetRecentErrMsg()
        return self.grads()

    def grads(self):
        """The results as they are now."""
        x, r = self.inputs.x.shape, self.inputs.normalized_shape
        return Grads(
            *(
                self.results[name].reshape(shape) if wanted else None
                for name, wanted, shape in zip(OUTPUTS, self.mask, (x, r, r), strict=True)
            )
        )

    def check(self):
        """Run, and compare with the float64 reference; masked-off outputs must be untouched."""
        check_grads(self.run(), self.inputs, output_mask=self.mask)
        self.check_untouched([name for name, wanted in zip(OUTPUTS, self.mask, strict=True) if not wanted])

    def check_untouched(self, names=OUTPUTS):
        """The outputs are as they were at first."""
        for name in names:
            check_same_bits(self.results[name], np.full_like(self.results[name], SENTINEL))


FORWARD_OUTPUTS = ("out", "meanOutOptional", "rstdOutOptional")
FORWARDS = ("aclnnLayerNorm", "aclnnLayerNormWithImplMode", "aclnnFastLayerNorm")


class ForwardCall:
    """A valid call of a forward function; `arguments` may be exchanged before phase 1.

    Args:
        case: shape and dtypes.
        dtype: of input.
        function: which of FORWARDS.
        out_dtypes: of the three outputs; None for input's.
        out_shapes: instead of the right ones, by name.
        eps: as in C.
    """

    def __init__(
        self,
        case=None,
        dtype="float32",
        *,
        function="aclnnLayerNorm",
        out_dtypes=(None, None, None),
        out_shapes=None,
        eps=1e-5,
        seed=0,
    ):
        case = Case((3, 4), (5,)) if case is None else case
        self.inputs = inputs = make_inputs(case, dtype, seed)
        self.function, self.eps = function, eps
        rows = (*case.lead, *(1,) * len(case.normalized))
        shapes = {"out": inputs.x.shape, "meanOutOptional": rows, "rstdOutOptional": rows} | (out_shapes or {})
        self.results = {
            name: np.full(shapes[name], SENTINEL, numpy_dtype(given or dtype))
            for name, given in zip(FORWARD_OUTPUTS, out_dtypes, strict=True)
        }
        self.arguments = {
            "input": tensor(inputs.x),
            "normalizedShape": acl.aclCreateIntArray(inputs.normalized_shape),
            "weightOptional": None if inputs.gamma is None else tensor(inputs.gamma),
            "biasOptional": None if inputs.beta is None else tensor(inputs.beta),
            "eps": eps,
            **{name: tensor(result) for name, result in self.results.items()},
        }
        if function == "aclnnLayerNormWithImplMode":
            self.arguments["implMode"] = 0

    def phase1(self):
        """(workspaceSize, executor, ret)."""
        return getattr(aclnn, f"{self.function}GetWorkspaceSize")(**self.arguments)

    def phase2(self, stream=None):
        """Both phases, with a workspace of exactly the size that phase 1 returned. Returns ret of phase 2."""
        size, executor, ret = self.phase1()
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        workspace = np.empty(size, np.uint8) if size else None
        return getattr(aclnn, self.function)(workspace, size, executor, stream)

    def run(self, stream=None):
        """Both phases and synchronize. Returns the results as Forward."""
        ret = self.phase2(stream)
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        ret = acl.aclrtSynchronizeStream(stream)
        assert ret == acl.ACL_SUCCESS, acl.aclGetRecentErrMsg()
        return self.forward()

    def forward(self):
        """The results as they are now, in the documented shapes."""
        i = self.inputs
        rows = i.x.shape[: i.x.ndim - i.normalized] + (1,) * i.normalized
        out, mean, rstd = self.results.values()
        return Forward(out, mean.reshape(rows), rstd.reshape(rows))

    def check(self):
        """Run, and compare with the float64 reference."""
        check_forward(self.run(), self.inputs, eps=self.eps)

    def check_untouched(self, names=FORWARD_OUTPUTS):
        """The outputs are as they were at first."""
        for name in names:
            check_same_bits(self.results[name], np.full_like(self.results[name], SENTINEL))
