"""Valid calls of the aclnn operators, whose arguments tests then exchange; norm_calls.py has those of the other norms."""

from __future__ import annotations

import re
from ast import literal_eval
from dataclasses import replace
from inspect import signature
from typing import Any

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
EPSILON = 1e-5


def refused(ret, code, text):
    """A function has returned this code, and the message has this text."""
    message = acl.aclGetRecentErrMsg()
    assert ret == code, message
    assert text in (message or ""), message


def accepted(ret):
    assert ret == 0, acl.aclGetRecentErrMsg()


def tensor(array, dtype=None, data=...):
    """A contiguous tensor over a NumPy array's memory, or over other data of the same shape."""
    dtype, data = NAMES[array.dtype.name] if dtype is None else dtype, array if data is ... else data
    handle = acl.aclCreateTensor(array.shape, dtype, None, 0, acl.ACL_FORMAT_ND, array.shape, data)
    assert handle is not None, acl.aclGetRecentErrMsg()
    return handle


def view_of(storage, shape, strides, offset=0, dtype=None):
    """A tensor over elements of a storage, and a NumPy array of the same elements."""
    dtype = NAMES[storage.dtype.name] if dtype is None else dtype
    handle = acl.aclCreateTensor(shape, dtype, strides, offset, acl.ACL_FORMAT_ND, storage.shape, storage)
    assert handle is not None, acl.aclGetRecentErrMsg()
    steps = [step * storage.itemsize for step in strides]
    return handle, np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def strided(shape, dtype, order=None, steps=None, offset=0):
    """A view of a larger storage: dimensions laid out in `order`, each with a step. Returns (tensor, NumPy view)."""
    order = range(len(shape)) if order is None else order
    steps = [1] * len(shape) if steps is None else steps
    strides, stride = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = stride * steps[axis]
        stride *= shape[axis] * steps[axis]
    return view_of(np.full(offset + stride, SENTINEL, numpy_dtype(dtype)), shape, strides, offset)


_ARRAY = re.compile(r"(\w+)\(([\d,]*)\)(?:/\(([\d,]*)\))?")


class OperatorCall:
    """A valid call; `arguments` may be exchanged before phase 1.

    Args:
        function: the operator's name.
        inputs: what the comparators take.
        read, written: arrays by the names of the prototype; None for a null pointer.
        values: all other arguments.

    Attributes:
        results: the arrays that are written, each full of SENTINEL at first.
    """

    def __init__(self, function: str, inputs: Any, read: dict, written: dict, values: dict):
        self.function, self.inputs, self.read, self.results = function, inputs, read, written
        arrays = {name: None if array is None else tensor(array) for name, array in (read | written).items()}
        names = signature(getattr(aclnn, f"{function}GetWorkspaceSize")).parameters
        self.arguments = {name: (values | arrays).get(name) for name in names}
        self.before = {name: array.copy() for name, array in written.items()}

    def changed(self, changes: str = "", **arguments: Any):
        """The call with other arguments: by name, where an array is the data of a tensor, or in the notation of rules.csv.

        `mean rstd=FLOAT(3,5); biasOptional=null`: a tensor is DTYPE(shape) or DTYPE(shape)/(strides), and has the values of
        its predecessor if it has as many elements; ints(…) and bools(…) are arrays, anything else is a literal.
        """
        for names, notation in (part.split("=", 1) for part in changes.split("; ") if part):
            for name in names.split():
                self.arguments[name] = self._made(name, notation)
        for name, value in arguments.items():
            self.arguments[name] = tensor(value) if isinstance(value, np.ndarray) else value
        return self

    def _made(self, name: str, notation: str):
        match = _ARRAY.fullmatch(notation)
        if match is None:
            return None if notation == "null" else literal_eval(notation)
        kind, shape, strides = match[1], *(literal_eval(f"({text},)") if text else () for text in match.groups()[1:])
        if kind == "ints":
            return acl.aclCreateIntArray(shape)
        if kind == "bools":
            return acl.aclCreateBoolArray(shape)
        kept = self.read if name in self.read else self.results
        dtype, array = acl.aclDataType[f"ACL_{kind}"], kept.get(name)
        if array is None or array.size != np.prod(shape):
            array = np.random.default_rng(len(shape)).uniform(1, 2, shape)
        kept[name] = array.astype(NUMPY_DTYPES.get(dtype, np.float32)).reshape(shape)
        if match[3] is None:
            handle = tensor(kept[name], dtype)
        else:
            storage = np.zeros(
                1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True)), np.float32
            )
            handle, kept[name] = view_of(storage, shape, strides, dtype=dtype)
        if name in self.results:
            self.before[name] = kept[name].copy()
        return handle

    def phase1(self):
        """(workspaceSize, executor, ret)."""
        return getattr(aclnn, f"{self.function}GetWorkspaceSize")(**self.arguments)

    def phase2(self, stream=None):
        """Both phases, with a workspace of exactly the size that phase 1 returned. Returns ret of phase 2."""
        size, executor, ret = self.phase1()
        accepted(ret)
        return getattr(aclnn, self.function)(np.empty(size, np.uint8) if size else None, size, executor, stream)

    def run(self, stream=None):
        """Both phases and synchronize. Returns the results, None where masked off."""
        accepted(self.phase2(stream))
        accepted(acl.aclrtSynchronizeStream(stream))
        return self.computed()

    def computed(self):
        """The results as they are now."""
        return self.results

    def refused(self, code, text):
        """Phase 1 fails with this code and text, and nothing is written."""
        size, executor, ret = self.phase1()
        refused(ret, code, text)
        assert (size, executor) == (0, None)
        self.check_untouched()

    def check_untouched(self, names=None):
        """The outputs are as they were at first."""
        for name in self.before if names is None else names:
            check_same_bits(self.results[name], self.before[name])


class Call(OperatorCall):
    """A valid call of aclnnLayerNormBackward.

    Args:
        case: shape and dtypes.
        dtype: of gradOut and input.
        mask: outputMask.
        out_dtypes: of the three outputs; None for input's, weight's, weight's.
        bias: whether there is one.
    """

    def __init__(
        self,
        case=None,
        dtype="float32",
        *,
        mask=(True, True, True),
        out_dtypes=(None, None, None),
        bias=True,
        seed=0,
    ):
        i = make_inputs(Case((3, 4), (5,)) if case is None else case, dtype, seed)
        parameter = dtype if i.gamma is None else i.gamma.dtype.name
        shapes, defaults = (i.x.shape, i.normalized_shape, i.normalized_shape), (dtype, parameter, parameter)
        kinds = [numpy_dtype(kind or default) for kind, default in zip(out_dtypes, defaults, strict=True)]
        written = map(np.full, shapes, [SENTINEL] * 3, kinds)
        super().__init__(
            "aclnnLayerNormBackward",
            i,
            {"gradOut": i.dy, "input": i.x, "mean": i.mean, "rstd": i.rstd, "weightOptional": i.gamma}
            | {"biasOptional": i.beta if bias else None},
            dict(zip(OUTPUTS, written, strict=True)),
            {
                "normalizedShape": acl.aclCreateIntArray(i.normalized_shape),
                "outputMask": acl.aclCreateBoolArray(mask),
            },
        )

    @property
    def mask(self):
        return tuple(map(bool, self.arguments["outputMask"].values))

    def actual(self):
        """The inputs as they were exchanged."""
        read, normalized = self.read, len(self.arguments["normalizedShape"].values)
        x = read["input"]
        rows = (*x.shape[: x.ndim - normalized], *(1,) * normalized)
        mean, rstd = (read[name].reshape(rows) for name in ("mean", "rstd"))
        gamma = None if self.arguments["weightOptional"] is None else read["weightOptional"]
        return replace(self.inputs, dy=read["gradOut"], x=x, mean=mean, rstd=rstd, gamma=gamma, normalized=normalized)

    def computed(self):
        shapes = self.results["gradInputOut"].shape, *[self.actual().normalized_shape] * 2
        results = zip(self.results.values(), shapes, self.mask, strict=True)
        return Grads(*(result.reshape(shape) if wanted else None for result, shape, wanted in results))

    def check(self):
        """Run, and compare with the float64 reference; masked-off outputs must be untouched."""
        check_grads(self.run(), self.actual(), output_mask=self.mask)
        self.check_untouched([name for name, wanted in zip(OUTPUTS, self.mask, strict=True) if not wanted])


FORWARD_OUTPUTS = ("out", "meanOutOptional", "rstdOutOptional")
FORWARDS = ("aclnnLayerNorm", "aclnnLayerNormWithImplMode", "aclnnFastLayerNorm")


class ForwardCall(OperatorCall):
    """A valid call of a forward function.

    Args:
        case: shape and dtypes.
        dtype: of input.
        function: which of FORWARDS.
        out_dtypes: of the three outputs; None for input's.
        eps: as in C.
    """

    def __init__(
        self,
        case=None,
        dtype="float32",
        *,
        function="aclnnLayerNorm",
        out_dtypes=(None, None, None),
        eps=EPSILON,
        seed=0,
    ):
        i = make_inputs(Case((3, 4), (5,)) if case is None else case, dtype, seed)
        self.eps = eps
        written = {
            name: np.full(i.x.shape if name == "out" else self.rows(i), SENTINEL, numpy_dtype(kind or dtype))
            for name, kind in zip(FORWARD_OUTPUTS, out_dtypes, strict=True)
        }
        read = {"input": i.x, "weightOptional": i.gamma, "biasOptional": i.beta}
        values = {"normalizedShape": acl.aclCreateIntArray(i.normalized_shape), "eps": eps, "implMode": 0}
        super().__init__(function, i, read, written, values)

    @staticmethod
    def rows(i):
        """The documented shape of mean and rstd."""
        return i.x.shape[: i.x.ndim - i.normalized] + (1,) * i.normalized

    def computed(self):
        """The results as they are now, in the documented shapes."""
        out, mean, rstd = self.results.values()
        return Forward(out, mean.reshape(self.rows(self.inputs)), rstd.reshape(self.rows(self.inputs)))

    def check(self):
        """Run, and compare with the float64 reference."""
        check_forward(self.run(), self.inputs, eps=self.eps)
