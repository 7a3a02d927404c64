"""The arrays of a call: inputs with their values, and the memory that its results go to."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lngrad.check.soak.call import Call
from lngrad.check.soak.memory import Guarded
from lngrad.core.dtypes import accumulator_for, numpy_dtype
from lngrad.core.problem import Forward, Grads
from lngrad.typing import Array, Shape

Given = dict[str, Array | None]


def inputs(call: Call) -> dict[str, Guarded | None]:
    """dy, x, mean, rstd, gamma and beta; equal calls give equal values."""
    rng = np.random.default_rng(call.seed)
    shape = (*call.lead, *call.normalized)
    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    if call.special == "zeros":
        x, dy = np.zeros(shape), np.zeros(shape)
    elif call.special == "offset":
        x = x + 100
    elif call.special == "tiny":
        x = x * 1e-3
    for name, array in (("x", x), ("dy", dy)):
        if call.special.endswith(f" in {name}") and shape and 0 not in shape:
            array.flat[int(rng.integers(array.size))] = np.inf if call.special.startswith("inf") else np.nan
    gamma, beta = 1 + 0.5 * rng.standard_normal(call.normalized), rng.standard_normal(call.normalized)
    # Wider statistics are rounded to the accumulator's dtype first; these are there already.
    kept, rows = numpy_dtype(accumulator_for(call.dtype, call.parameters)), _rows(call)
    mean, rstd = (0.1 * rng.standard_normal(rows)).astype(kept), (0.5 + rng.random(rows)).astype(kept)

    def filled(values: Any, dtype: str, layout: str) -> Guarded:
        return Guarded(np.shape(values), numpy_dtype(dtype), layout, values)

    return {
        "dy": filled(dy, call.dtype, call.dy),
        "x": filled(x, call.dtype, call.x),
        "mean": filled(mean, call.statistics, call.small),
        "rstd": filled(rstd, call.statistics, call.small),
        "gamma": filled(gamma, call.parameters, call.small) if call.parameters else None,
        "beta": filled(beta, call.parameters, call.small) if call.parameters else None,
    }


def forward_outputs(call: Call, given: Given) -> tuple[Forward | None, dict[str, Guarded]]:
    """Where y goes, and mean and rstd; and by name what must be looked at afterwards."""
    y, guards = _full_output("y", call, given, ("x",))
    if call.out:
        guards |= {name: Guarded(_rows(call), numpy_dtype(call.statistics), call.small) for name in ("mean", "rstd")}
    return _given(Forward, y, guards), guards


def gradient_outputs(call: Call, given: Given) -> tuple[Grads | None, dict[str, Guarded]]:
    """Where dx goes, and dgamma and dbeta; and by name what must be looked at afterwards."""
    dx, guards = _full_output("dx", call, given, ("dy", "x")) if call.mask[0] else (None, {})
    if call.out:
        dtype = numpy_dtype(call.statistics)
        guards |= {name: Guarded(call.normalized, dtype, call.small) for name in ("dgamma", "dbeta")}
    return _given(Grads, dx, guards), guards


def _given(kind: Any, first: Array | None, guards: dict[str, Guarded]) -> Any:
    """A Forward or Grads of given arrays; None if there are none."""
    if first is None and not guards:
        return None
    return kind(first, *(guards[name].array if name in guards else None for name in kind._fields[1:]))


def _rows(call: Call) -> Shape:
    return (*call.lead, *(1,) * len(call.normalized))


def _full_output(
    name: str, call: Call, given: Given, replaced: tuple[str, ...]
) -> tuple[Array | None, dict[str, Guarded]]:
    """An array of x's shape. An input that it takes the place of is copied first, so that inputs stay as they were."""
    shape, dtype = (*call.lead, *call.normalized), numpy_dtype(call.dtype)
    if call.place == "shifted x" and prod(shape) > 1:
        memory = np.zeros(prod(shape) + 1, dtype)
        memory[1:] = given["x"].reshape(-1)  # type: ignore[union-attr]  # x is there
        given["x"] = memory[1:].reshape(shape)
        return memory[:-1].reshape(shape), {}
    if call.place in replaced:
        target = Guarded(shape, dtype, "plain", given[call.place])
        given[call.place] = target.array
    elif call.out:
        target = Guarded(shape, dtype, call.out)
    else:
        return None, {}
    return target.array, {name: target}
