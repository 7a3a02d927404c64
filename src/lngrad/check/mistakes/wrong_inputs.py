"""Mistakes in what goes into a right formula: other statistics, another row's dy, the gamma that was never read.

Each takes the case and its inputs, and returns what changes, by name; or None where the mistake makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.core import reference
from lngrad.core.dtypes import numpy_dtype
from lngrad.testing import Inputs
from lngrad.typing import Array

Change = Callable[[CheckCase, Inputs], dict[str, Any] | None]


def _axes(inputs: Inputs) -> tuple[int, ...]:
    return tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))


def _x(inputs: Inputs) -> Array:
    return np.asarray(inputs.x).astype(np.float64)


def _variance(case: CheckCase, inputs: Inputs) -> Array:
    """The variance that rstd was made of, without eps."""
    return np.asarray(1 / np.asarray(inputs.rstd, np.float64) ** 2 - case.eps)


def nothing_for_gamma(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
    return None if inputs.gamma is None else {"gamma": None}


def ones_for_dy(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    return {"dy": np.ones_like(inputs.dy)}


def by_rows(name: str, step: int) -> Change:
    """The dy or the mean of the row `step` rows further on."""

    def change(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
        array = np.asarray(getattr(inputs, name)).astype(np.float64)
        rows = inputs.x.size // max(1, int(np.prod(inputs.normalized_shape)))
        return None if rows < 2 else {name: np.roll(array.reshape(rows, -1), -step, axis=0).reshape(array.shape)}

    return change


def rstd_as(new: Callable[[Array, float, int], Array]) -> Change:
    """Another rstd, from (variance, eps, number of columns)."""

    def change(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
        return {"rstd": new(_variance(case, inputs), case.eps, case.N)}

    return change


def with_eps(new: Callable[[float], float]) -> Change:
    """rstd with another eps."""
    return rstd_as(lambda variance, eps, N: 1 / np.sqrt(np.maximum(variance + new(eps), 0)))


def mean_of_x(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    return {"mean": _x(inputs).mean(_axes(inputs), keepdims=True)}


def no_mean(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    return {"mean": np.zeros_like(np.asarray(inputs.mean))}


def narrow_statistics(dtype: str) -> Change:
    """mean and rstd rounded to 16 bits."""

    def change(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
        narrow = numpy_dtype(dtype)
        if np.asarray(inputs.rstd).dtype == narrow:
            return None
        return {name: np.asarray(getattr(inputs, name)).astype(narrow).astype(np.float64) for name in ("mean", "rstd")}

    return change


def narrow_input(name: str, dtype: str) -> Change:
    """dy, x or gamma rounded to 16 bits; None where it is 16 bits wide already."""

    def change(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
        array = getattr(inputs, name)
        narrow = numpy_dtype(dtype)
        if array is None:
            return None
        rounded = np.asarray(array).astype(narrow).astype(np.float64)
        return None if (rounded == np.asarray(array).astype(np.float64)).all() else {name: rounded}

    return change


def gamma_transposed(back: bool) -> Change:
    """gamma's elements in the order of its transposed dimensions, or from that order."""

    def change(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
        shape = inputs.normalized_shape
        if inputs.gamma is None or sum(size > 1 for size in shape) < 2:
            return None
        gamma = np.asarray(inputs.gamma, np.float64)
        return {"gamma": gamma.reshape(shape if back else shape[::-1]).T.reshape(shape)}

    return change


def statistics_of_x(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    forward = reference.layer_norm(inputs.x, normalized=inputs.normalized, eps=case.eps)
    return {"mean": forward.mean, "rstd": forward.rstd}


def uncentred(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    return {"rstd": 1 / np.sqrt((_x(inputs) ** 2).mean(_axes(inputs), keepdims=True) + case.eps)}


def in_float32(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    """The variance as E[x²] − E[x]², in float32."""
    x, axes = np.asarray(inputs.x).astype(np.float32), _axes(inputs)
    mean = x.mean(axes, keepdims=True, dtype=np.float32)
    variance = (x * x).mean(axes, keepdims=True, dtype=np.float32) - mean * mean
    return {"rstd": 1 / np.sqrt(np.maximum(variance, 0).astype(np.float64) + case.eps)}


def padded_variance(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
    """The columns that fill a row up to a power of two are zeros, and (0 − mean)² is counted for each."""
    padding = (1 << max(0, case.N - 1).bit_length()) - case.N
    if not padding:
        return None
    mean = np.asarray(inputs.mean, np.float64).reshape(-1)
    variance = _variance(case, inputs).reshape(-1) + padding / case.N * mean**2
    return {"rstd": 1 / np.sqrt(variance + case.eps)}


def transposed(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
    lead = inputs.x.shape[: inputs.x.ndim - inputs.normalized]
    if sum(size > 1 for size in lead) < 2:
        return None
    turned = [np.asarray(one, np.float64).reshape(lead).T.reshape(-1) for one in (inputs.mean, inputs.rstd)]
    return {"mean": turned[0], "rstd": turned[1]}


def swapped(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    return {"mean": inputs.rstd, "rstd": inputs.mean}
