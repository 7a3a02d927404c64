"""Wrong gradients that a comparator must reject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.check.inputs import true_grads
from lngrad.core.problem import Grads
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Inputs, terms_of


def _normalized_axes(inputs: Inputs) -> tuple[int, ...]:
    return tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))


def _mutate(**changes: Callable[[Inputs], Any]) -> Callable[[Inputs], Grads]:
    """The reference on changed inputs."""

    def mutant(inputs: Inputs) -> Grads:
        return true_grads(replace(inputs, **{name: change(inputs) for name, change in changes.items()}))

    return mutant


def _without(term: str) -> Callable[[Inputs], Grads]:
    """The reference without one of the two row means."""

    def mutant(inputs: Inputs) -> Grads:
        (_, xhat, dxhat, rstd), axes = terms_of(inputs), _normalized_axes(inputs)
        terms = {
            "dxhat": dxhat.mean(axes, keepdims=True),
            "dxhat·xhat": xhat * (dxhat * xhat).mean(axes, keepdims=True),
        }
        del terms[term]
        return true_grads(inputs)._replace(dx=rstd * (dxhat - sum(terms.values())))

    return mutant


def _low_precision_sums(inputs: Inputs) -> Grads:
    dy, xhat, *_ = terms_of(inputs)
    narrow = numpy_dtype("bfloat16")

    def total(terms: Any) -> Any:
        flat = terms.reshape(-1, *inputs.normalized_shape)
        result = np.zeros(flat.shape[1:], narrow)
        for row in flat:
            result = (result.astype(np.float32) + row).astype(narrow)
        return result.astype(np.float64)

    return true_grads(inputs)._replace(dgamma=total(dy * xhat), dbeta=total(dy))


def _last_row_lost(inputs: Inputs) -> Grads:
    dy, xhat = (array.reshape(-1, *inputs.normalized_shape)[:-1] for array in terms_of(inputs)[:2])
    return true_grads(inputs)._replace(dgamma=(dy * xhat).sum(0), dbeta=dy.sum(0))


def _last_column_lost(inputs: Inputs) -> Grads:
    true = true_grads(inputs)
    true.dx[..., -1] = 0
    return true


def _sums_twice(inputs: Inputs) -> Grads:
    true = true_grads(inputs)
    return true._replace(dgamma=2 * true.dgamma, dbeta=2 * true.dbeta)


def _roll_rows(array: Any, split: int) -> Any:
    rows = array.reshape(-1, *array.shape[split:])
    return np.roll(rows, 1, axis=0).reshape(array.shape)


def _variance(inputs: Inputs) -> Any:
    return 1 / np.asarray(inputs.rstd, np.float64) ** 2


# What each does wrong. They return float64; round_to brings them to the dtypes of a real result.
MUTANTS: dict[str, Callable[[Inputs], Grads]] = {
    "gamma forgotten": _mutate(gamma=lambda inputs: None),
    "dy ignored": _mutate(dy=lambda inputs: np.ones_like(inputs.dy)),
    "dy of the previous row": _mutate(dy=lambda inputs: _roll_rows(inputs.dy, inputs.x.ndim - inputs.normalized)),
    "mean of dxhat missing": _without("dxhat"),
    "mean of dxhat·xhat missing": _without("dxhat·xhat"),
    "variance in rstd's place": _mutate(rstd=_variance),
    "variance 1 % too large": _mutate(rstd=lambda inputs: 1 / np.sqrt(1.01 * _variance(inputs))),
    "last row lost": _last_row_lost,
    "last column lost": _last_column_lost,
    "bfloat16 sums": _low_precision_sums,
    "sums added twice": _sums_twice,
    "mean of the previous row": _mutate(mean=lambda inputs: np.roll(np.asarray(inputs.mean).ravel(), 1)),
}


def round_to(grads: Grads, like: Grads) -> Grads:
    """float64 gradients in the dtypes of others."""
    return Grads(*(g.astype(as_numpy(other).dtype) for g, other in zip(grads, like, strict=True)))
