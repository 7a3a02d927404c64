"""Valid calls of root mean squares, norms of a sum and norms with what follows them; `valid_call` of any operator."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

import numpy as np

from aclnn_harness import EPSILON, FORWARDS, SENTINEL, Call, ForwardCall, OperatorCall
from lngrad.core import reference
from lngrad.core.problem import Forward, Grads, RmsForward, RmsGrads
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Case, Normalization, check_forward, check_grads, error_share, make_inputs
from lngrad_ascend import aclnn

ALPHA, SCALE = 0.3, 0.7
BASE = Case((3, 4), (16,))  # x (3, 4, 16), 12 rows
NUMBERS = {"epsilon": EPSILON, "alpha": ALPHA, "additionalOutput": True, "scale": SCALE, "axis": -1, "divMode": True}
NUMBERS |= {"quantMode": 0}
ROOT_MEAN_SQUARES = (
    "aclnnRmsNorm",
    "aclnnRmsNormGrad",
    "aclnnGemmaRmsNorm",
    "aclnnAddRmsNorm",
    "aclnnInplaceAddRmsNorm",
)
SUMS = ("aclnnAddLayerNorm", "aclnnAddLayerNormGrad", "aclnnDeepNorm", "aclnnDeepNormGrad")
QUANTIZED = ("aclnnRmsNormQuant", "aclnnAddRmsNormQuant", "aclnnLayerNormQuant")
FUSED = (
    "aclnnAddRmsNormCast",
    "aclnnFusedAddRmsNorm",
    "aclnnAdaLayerNorm",
    "aclnnAdaLayerNormV2",
    *QUANTIZED,
    "aclnnLayerNormalizationGrad",
)
FUNCTIONS = ("aclnnLayerNormBackward", *FORWARDS, *ROOT_MEAN_SQUARES, *SUMS, *FUSED)


def wide(*arrays):
    return [array.astype(np.float64) for array in arrays]


def numbers_of(function):
    names = signature(getattr(aclnn, f"{function}GetWorkspaceSize")).parameters
    return {name: number for name, number in NUMBERS.items() if name in names}


class RmsCall(OperatorCall):
    def __init__(self, function, case=BASE, dtype="float32"):
        norm = Normalization(centred=False, offset=float("Gemma" in function))
        i = make_inputs(case, dtype, normalization=norm, residual="Add" in function)
        x, y, total = i.x.copy(), *(np.full(i.x.shape, SENTINEL, numpy_dtype(dtype)) for _ in range(2))
        rstd = np.full((*case.lead, *(1,) * len(case.normalized)), SENTINEL, np.float32)
        read = {"gamma": i.gamma}
        if function == "aclnnRmsNormGrad":
            read |= {"dy": i.dy, "x": x, "rstd": i.rstd}
            written = {"dxOut": y, "dgammaOut": np.full(case.normalized, SENTINEL, np.float32)}
        elif function == "aclnnInplaceAddRmsNorm":
            written = {"x1Ref": x, "rstdOut": rstd, "x2Ref": i.residual.copy()}
        elif function == "aclnnAddRmsNorm":
            read |= {"x1": x, "x2": i.residual}
            written = {"yOut": y, "rstdOut": rstd, "xOut": total}
        else:
            read, written = read | {"x": x}, {"yOut": y, "rstdOut": rstd}
        super().__init__(function, i, read, written, numbers_of(function))

    def check(self):
        self.run()
        if self.function == "aclnnRmsNormGrad":
            check_grads(RmsGrads(*self.results.values()), self.inputs)
        else:
            check_forward(RmsForward(*self.results.values()), self.inputs, eps=EPSILON)


class SumCall(OperatorCall):
    def __init__(self, function, case=BASE, dtype="float32", bias="columns", seed=0):
        self.alpha = ALPHA if "Deep" in function else 1.0
        i = make_inputs(case, dtype, seed, residual=True)
        rows = (*case.lead, *(1,) * len(case.normalized))
        # What is normalized, in float64: the inputs of the comparators have it in float32, and mean and rstd of it.
        exact = self.alpha * i.x.astype(np.float64) + i.residual.astype(np.float64)
        self.bias = None
        if function == "aclnnAddLayerNorm" and bias:
            shape = case.normalized if bias == "columns" else i.x.shape
            self.bias = np.random.default_rng(7).standard_normal(shape).astype(numpy_dtype(dtype))
            exact = exact + self.bias.astype(np.float64)
        self.total, self.scale = exact, np.abs(self.alpha * i.x) + np.abs(i.residual) + np.abs(exact)
        known = reference.layer_norm(exact, normalized=len(case.normalized))
        self.statistics = {
            name: np.asarray(getattr(known, name), np.float32).reshape(rows) for name in ("mean", "rstd")
        }
        terms = ("x", "gx") if "Deep" in function else ("x1", "x2")
        read = dict(zip(terms, (i.x.copy(), i.residual.copy()), strict=True)) | {"gamma": i.gamma}
        if function.endswith("Grad"):
            read |= {"dy": i.dy, **self.statistics}
            shapes = {"dxOut": i.x.shape, "dgammaOut": case.normalized, "dbetaOut": case.normalized}
        else:
            read |= {"beta": i.beta}
            shapes = {"yOut": i.x.shape, "meanOut": rows, "rstdOut": rows}
        if function == "aclnnAddLayerNorm":
            read, shapes = read | {"biasOptional": self.bias}, shapes | {"xOut": i.x.shape}
        elif function == "aclnnAddLayerNormGrad":
            read |= {"dsumOptional": i.dtotal}
        elif function == "aclnnDeepNormGrad":
            shapes |= {"dgxOut": i.x.shape}
        written = {
            name: np.full(
                shape, SENTINEL, numpy_dtype(dtype) if name in ("yOut", "xOut", "dxOut", "dgxOut") else np.float32
            )
            for name, shape in shapes.items()
        }
        super().__init__(function, i, read, written, numbers_of(function))

    def check(self):
        """Against float64: results are those of the sum as it is in float32, each rounded once."""
        self.run()
        results, total = self.results, self.total.astype(np.float32)
        exact = replace(self.inputs, x=total, residual=None, dtotal=None, **self.statistics)
        if not self.function.endswith("Grad"):
            check_forward(Forward(results["yOut"], results["meanOut"], results["rstdOut"]), exact, eps=EPSILON)
            if "xOut" in results:
                assert error_share(results["xOut"], self.total, self.scale, "float32").max() <= 1
            return
        if self.arguments.get("dsumOptional") is not None:
            exact = replace(exact, dtotal=self.inputs.dtotal)
        sums = results["dgammaOut"], results["dbetaOut"]
        check_grads(Grads(results.get("dgxOut", results["dxOut"]), *sums), exact)
        if "dgxOut" in results:  # linear in dy
            dy = self.alpha * exact.dy.astype(np.float32)
            check_grads(Grads(results["dxOut"], None, None), replace(exact, dy=dy), output_mask=(True, False, False))


def rms(h, gamma, axes):
    rstd = 1 / np.sqrt((h**2).mean(axes, keepdims=True) + EPSILON)
    return h * rstd * gamma, rstd


def layer(h, gamma, beta, axes):
    mean = h.mean(axes, keepdims=True)
    rstd = 1 / np.sqrt(((h - mean) ** 2).mean(axes, keepdims=True) + EPSILON)
    return (h - mean) * rstd * gamma + beta, mean, rstd


class FusedCall(OperatorCall):
    """A valid call, with its results in float64: `truth` with their dtypes, and `int8` before they are rounded."""

    def __init__(self, function, case=BASE, dtype="float16", seed=0):
        i, random, kind = (
            make_inputs(case, dtype, seed, residual=True),
            np.random.default_rng(seed + 1),
            numpy_dtype(dtype),
        )
        x, residual, gamma, beta = wide(i.x, i.residual, i.gamma, i.beta)
        axes = tuple(range(-len(case.normalized), 0))
        size, values = case.normalized[-1], numbers_of(function)

        def drawn(shape, dtype=kind, low=0.02, high=0.05):
            return random.uniform(low, high, shape).astype(dtype)

        read, truth, self.int8 = {"x": i.x, "gamma": i.gamma}, {}, {}
        added = {"x1": i.x, "x2": i.residual, "gamma": i.gamma}
        if function in ("aclnnAddRmsNormCast", "aclnnFusedAddRmsNorm"):
            total = (SCALE if "Fused" in function else 1) * x + residual
            y, rstd = rms(total, gamma, axes)
            read, truth = added, {"rstdOut": (rstd, "float32"), "xOut": (total, dtype)}
            cast = {"y1Out": (y, "float32"), "y2Out": (y, dtype)}
            truth |= cast if "Cast" in function else {"yOut": (y, dtype)}
        elif function.startswith("aclnnAda"):
            scale, shift = (random.standard_normal((*case.lead[:-1], size)).astype(kind) for _ in range(2))
            read = {"x": i.x, "scale": scale, "shift": shift, "weightOptional": i.gamma, "biasOptional": i.beta}
            y, mean, rstd = layer(x, gamma, beta, axes)
            scale, shift = (array[..., None, :] for array in wide(scale, shift))
            truth["out"] = (y * (1 + scale) + shift, dtype)
            if function.endswith("V2"):
                truth |= {"meanOutOptional": (mean, dtype), "rstdOutOptional": (rstd, dtype)}
        elif function == "aclnnAddRmsNormQuant":
            kinds = (kind, kind) if dtype != "float16" else (np.dtype(np.float32), np.dtype(np.int32))
            scales = [drawn(case.normalized, kinds[0]) for _ in range(2)]
            zeros = [random.integers(-9, 9, case.normalized).astype(kinds[1]) for _ in range(2)]
            names = ("scales1", "scales2Optional", "zeroPoints1Optional", "zeroPoints2Optional")
            read = added | dict(zip(names, (*scales, *zeros), strict=True))
            y, _ = rms(x + residual, gamma, axes)
            truth["xOut"] = (x + residual, dtype)
            for name, scale, zero in zip(("y1Out", "y2Out"), scales, zeros, strict=True):
                self.int8[name] = y / scale.astype(np.float64) + zero.astype(np.float64)
        elif function == "aclnnLayerNormalizationGrad":
            known, rows = reference.layer_norm(x, normalized=len(axes)), (*case.lead, *(1,) * len(axes))
            self.statistics = {
                name: np.asarray(getattr(known, name)).reshape(rows).astype(kind) for name in ("mean", "rstd")
            }
            read |= {"dy": i.dy, **self.statistics}
            truth = {"dx": (x, dtype), "dgamma": (gamma, dtype), "dbeta": (gamma, dtype)}
        else:
            scale, zero = drawn((1,)), np.array([3], np.int8)
            read |= {"gamma": i.gamma.reshape(1, size), "beta": i.beta.reshape(1, size), "scale": scale}
            if function == "aclnnRmsNormQuant":
                read["offset"], name, y = zero, "y", rms(x, gamma, axes)[0] + beta
            else:
                read["zeroPointsOptional"], name, y = zero, "res", layer(x, gamma, beta, axes)[0]
            self.int8[name] = y / scale.astype(np.float64) + 3
        self.truth = truth
        written = {name: np.full(y.shape, SENTINEL, numpy_dtype(kind)) for name, (y, kind) in truth.items()}
        written |= {name: np.full(y.shape, 99, np.int8) for name, y in self.int8.items()}
        super().__init__(function, i, read, written, values)

    def check(self):
        """Each result against float64: rounded once, or the nearest integer where it is no tie."""
        self.run()
        if self.function == "aclnnLayerNormalizationGrad":
            exact = replace(self.inputs, residual=None, dtotal=None, **self.statistics)
            check_grads(Grads(*self.results.values()), exact)
            return
        for name, (truth, _) in self.truth.items():
            size = np.abs(truth) + np.abs(truth).max(-1, keepdims=True)
            if name == "meanOutOptional":  # terms of either sign
                size = size + np.abs(self.inputs.x).astype(np.float64).mean(-1, keepdims=True)
            assert error_share(self.results[name], truth, size, "float32").max() <= 1, name
        for name, truth in self.int8.items():
            nearest = np.clip(np.rint(truth), -128, 127)
            off = self.results[name].astype(np.float64) - nearest
            tie = np.abs(np.abs(truth - np.floor(truth)) - 0.5) < 1e-3
            assert self.results[name].dtype == np.int8
            assert (np.abs(off)[~tie] == 0).all(), name
            assert np.abs(off).max() <= 1, name
            assert len(np.unique(self.results[name])) > 20, name  # not all at one end


CALLS = dict.fromkeys(ROOT_MEAN_SQUARES, RmsCall) | dict.fromkeys(SUMS, SumCall) | dict.fromkeys(FUSED, FusedCall)


def valid_call(function, case=None, dtype=None, **options):
    """A valid call of any operator, by default of x (3, 4, 5) or (3, 4, 16) in float32, of fused norms in float16."""
    options |= {name: value for name, value in (("case", case), ("dtype", dtype)) if value is not None}
    if function == "aclnnLayerNormBackward":
        return Call(**options)
    if function in FORWARDS:
        return ForwardCall(function=function, **options)
    return CALLS[function](function, **options)
