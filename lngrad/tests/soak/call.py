"""One call, described so that its text can be run again; and its arrays, in memory that shows what was written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from math import prod
from random import Random
from typing import Any

import numpy as np

from lngrad.check.layouts import LAYOUTS, Guarded
from lngrad.core.norms import NORMS, PLAIN
from lngrad.core.problem import Operator
from lngrad.support.dtypes import ACCUMULATORS, DTYPES, accumulator_for, numpy_dtype
from lngrad.typing import Array, Mask, Shape
from soak.entries import ENTRIES
from soak.faults import FAULTS

SPECIALS = (
    "", "zeros", "inf in x", "nan in x", "inf in dy", "nan in dy", "offset", "tiny", "ones as dy", "positive dy", "x as dy",
    "one row of dy",
)  # fmt: skip
ENTRY_POINTS = tuple(ENTRIES)
"""The ways into lngrad: two backends from NumPy, lngrad.torch's functions, torch's own under override(), lngrad.jax, aclnn."""

# Whose memory dx takes, and y x's, and a total the residual's, or dx dtotal's; the last must be refused.
PLACES = ("", "dy", "x", "residual", "shifted x")
_SIZES = (1, 1, 2, 3, 5, 7, 8, 9, 16, 17, 33)
_MAX_ELEMENTS = 1024  # of most calls; a few have long rows, or many
_FAULTS = (
    1 / 100
)  # of all calls; JAX's, which neither survive a fork nor may call JAX from inside JAX, are interrupted alone
_COMPILATIONS = 1 / 200  # of those: seconds each

Given = dict[str, Array | None]


@dataclass(frozen=True)
class Call:
    """A forward and a backward with the same arrays.

    Attributes:
        seed: Of all values.
        lead, normalized: x has the shape (*lead, *normalized); without any dimension it must be refused.
        dtype: Of x and dy; `parameters` of gamma and beta, "" for neither; `statistics` of mean and rstd, and of the small
            outputs that are given.
        x, dy: Layouts.
        small: The layout of gamma, beta, mean and rstd.
        out: The layout of dx and y, which are given then, as are all other outputs; "" lets the call allocate them.
        mask: Which gradients are wanted.
        place: Whose memory dx and y take.
        special: What is unusual about the values.
        entry_point: Which of the ways in.
        threads: With how many threads the call is repeated, for its bits; 0 does not repeat it.
        fault: With which fault it is repeated, of `faults.FAULTS`; "" for none.
        norm: Which one, of PLAIN.
    """

    seed: int = 0
    lead: Shape = (2,)
    normalized: Shape = (3,)
    dtype: str = "float32"
    parameters: str = "float32"
    statistics: str = "float32"
    x: str = "plain"
    dy: str = "plain"
    small: str = "plain"
    out: str = ""
    mask: Mask = (True, True, True)
    place: str = ""
    special: str = ""
    entry_point: str = "numba_cpu"
    threads: int = 0
    fault: str = ""
    norm: str = "layer_norm"


def draw(
    rng: Random,
    entry_points: tuple[str, ...] = ENTRY_POINTS,
    traced: list[Call] | None = None,
    norm: str | None = None,
    fault: str | None = None,
) -> Call:
    """A random call.

    Args:
        rng: Where it comes from.
        entry_points: Which entry points to use of those that are installed.
        traced: Calls of JAX so far. XLA compiles each new set of shapes and dtypes for about 0.3 s, so all but one of 200
            calls take those of an earlier one.
        norm: Which one; None: half of the calls are layer normalizations, the others any that the entry point has.
        fault: Which one every call has; None: a few have any.
    """

    def choose(choices: tuple[str, ...], usual: float = 0.0) -> str:
        return choices[0] if rng.random() < usual else rng.choice(choices)

    lead, normalized = _shape(rng)
    dtype, entry_point = rng.choice(tuple(DTYPES)), rng.choice(installed(entry_points))
    parameters, statistics = _dtypes(rng, dtype, entry_point)
    if norm is None:
        norm = (
            "layer_norm"
            if rng.random() < 0.5
            else rng.choice([item for item in PLAIN if item in ENTRIES[entry_point].norms])
        )
    call = Call(
        seed=rng.getrandbits(31),
        lead=lead,
        normalized=normalized,
        dtype=dtype,
        parameters=parameters,
        statistics=statistics,
        x=choose(LAYOUTS, 0.3),
        dy=choose(LAYOUTS, 0.3),
        small=choose(LAYOUTS[:-1], 0.6),
        out=choose(("", *LAYOUTS[:-1]), 0.5),
        mask=(rng.random() < 0.75, rng.random() < 0.75, rng.random() < 0.75),
        place=choose(PLACES, 0.8),
        special=choose(SPECIALS, 0.5),
        entry_point=entry_point,
        threads=rng.randint(1, 4) if rng.random() < 0.2 else 0,
        norm=norm,
    )
    if call.place == "residual" and not NORMS[norm].residual:
        call = replace(call, place="")
    if fault:
        call = replace(call, fault=fault, place="")
    elif FAULTS and rng.random() < _FAULTS:
        call = _with_fault(call, rng)
    if entry_point != "jax" or traced is None:
        return call
    if len(traced) < 10 or rng.random() < 1 / 200:
        traced.append(call)
        return call
    compiled = rng.choice(traced)
    same: dict[str, Any] = {
        name: getattr(compiled, name)
        for name in ("lead", "normalized", "dtype", "parameters", "statistics", "mask", "norm")
    }
    return replace(call, **same)


def _with_fault(call: Call, rng: Random) -> Call:
    """The call with a fault; where memory or threads are to be missing, with a shape that wants some.

    Torch shares large calls among OpenMP's threads, which do not survive a fork.
    """
    choices = (
        "fork",
        "interrupt",
        "signal handler",
        "finalizer",
        *(("no memory", "no threads") if call.entry_point.endswith("_cpu") else ("resized storages",)),
        *(("other mode",) if call.entry_point != "numpy_cpu" else ()),  # NumPy itself computes in the caller's
    )
    if call.entry_point == "aclnn":  # a stream that is waited for inside itself refuses
        choices = ("fork", "interrupt", "interrupted kernel")
    if call.entry_point == "jax":
        return replace(call, fault="interrupt", place="")
    fault = "fork while compiling" if rng.random() < _COMPILATIONS else rng.choice(choices)
    call = replace(call, fault=fault, place="")
    if not fault.startswith("no ") or not call.normalized:
        return call
    return replace(call, lead=(rng.randint(200, 900),), normalized=(rng.randint(200, 600),))


def _shape(rng: Random) -> tuple[Shape, Shape]:
    """0 to 6 dimensions, sizes 0 and 1 among them; sometimes a long row or many rows."""
    if rng.random() < 0.01:
        return (), ()
    dims = rng.randint(1, 6)
    shape = [rng.choice(_SIZES) for _ in range(dims)]
    while prod(shape) > _MAX_ELEMENTS:
        shape[shape.index(max(shape))] //= 2
    split = rng.randrange(dims)
    if rng.random() < 0.06:
        shape[rng.randrange(dims)] = 0
    kind = rng.random()
    if kind < 0.04:
        shape = [*(min(size, 2) for size in shape[:-1]), rng.randint(1, 3000)]
    elif kind < 0.08 and split:
        shape = [rng.randint(60, 700), *[1] * (dims - 2), rng.randint(1, 40)]
    return tuple(shape[:split]), tuple(shape[split:])


def _dtypes(rng: Random, dtype: str, entry_point: str) -> tuple[str, str]:
    """The dtypes of parameters and statistics: any; for aten and aclnn mostly those that it mixes."""
    if entry_point == "aclnn" and rng.random() < 0.9:
        return rng.choice((dtype, dtype, "float32")), "float32"
    if entry_point == "override" and rng.random() < 0.9:
        parameters = rng.choice((dtype, dtype, ACCUMULATORS[dtype], ""))
        return parameters, parameters or dtype
    return rng.choice(("", *DTYPES)), rng.choice(tuple(DTYPES))


@cache
def installed(entry_points: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some entry points whose framework is installed."""
    return tuple(
        entry_point
        for entry_point in entry_points
        if not ENTRIES[entry_point].needs or find_spec(ENTRIES[entry_point].needs)
    )


def inputs(call: Call) -> dict[str, Guarded | None]:
    """dy, x, mean, rstd, gamma and beta, and residual and dtotal of a norm with these; equal calls give equal values."""
    rng = np.random.default_rng(call.seed)
    shape = (*call.lead, *call.normalized)
    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    if call.special == "zeros":
        x, dy = np.zeros(shape), np.zeros(shape)
    elif call.special == "offset":
        x = x + 100
    elif call.special == "tiny":
        x = x * 1e-3
    elif call.special == "ones as dy":
        dy = np.ones(shape)
    elif call.special == "positive dy":
        dy = np.abs(dy)
    elif call.special == "x as dy":
        dy = x.copy()
    elif call.special == "one row of dy" and shape:
        dy[1:] = 0
    for name, array in (("x", x), ("dy", dy)):
        if call.special.endswith(f" in {name}") and shape and 0 not in shape:
            array.flat[int(rng.integers(array.size))] = np.inf if call.special.startswith("inf") else np.nan
    gamma, beta = 1 + 0.5 * rng.standard_normal(call.normalized), rng.standard_normal(call.normalized)
    # Wider statistics are rounded to the accumulator's dtype first; these are there already.
    kept, rows = numpy_dtype(accumulator_for(call.dtype, call.parameters)), _rows(call)
    mean, rstd = (0.1 * rng.standard_normal(rows)).astype(kept), (0.5 + rng.random(rows)).astype(kept)

    arrays = {
        "dy": (dy, call.dtype, call.dy), "x": (x, call.dtype, call.x),
        "mean": (mean, call.statistics, call.small), "rstd": (rstd, call.statistics, call.small),
        "gamma": (gamma, call.parameters, call.small), "beta": (beta, call.parameters, call.small),
    }  # fmt: skip
    if NORMS[call.norm].residual:
        arrays |= {name: (rng.standard_normal(shape), call.dtype, call.dy) for name in ("residual", "dtotal")}
    if not NORMS[call.norm].normalization.centred:
        arrays |= {"beta": (beta, "", call.small)}
    return {
        name: Guarded(np.shape(values), numpy_dtype(dtype), layout, values) if dtype else None
        for name, (values, dtype, layout) in arrays.items()
    }


def operators(call: Call) -> tuple[Operator, Operator]:
    """The forward and the backward."""
    norm = NORMS[call.norm]
    return norm.forward, norm.backward


def outputs(call: Call, arrays_in: Given, operator: Operator) -> tuple[Any, dict[str, Guarded]]:
    """The outputs that are given, None if there are none; and by name those that must be looked at afterwards."""
    arrays: dict[str, Array] = {}
    guards: dict[str, Guarded] = {}
    for name, replaced in (("y", ("x",)), ("total", ("residual",)), ("dx", ("dy", "x", "dtotal"))):
        if (
            name not in operator.outputs
            or (name == "total" and "residual" not in arrays_in)
            or (name == "dx" and not call.mask[0])
        ):
            continue
        array, guard = _full_output(name, call, arrays_in, replaced)
        guards |= guard
        if array is not None:
            arrays[name] = array
    if call.out:
        for name in operator.outputs:
            if name in ("mean", "rstd", "dgamma", "dbeta"):
                shape = call.normalized if name.startswith("d") else _rows(call)
                guards[name] = Guarded(shape, numpy_dtype(call.statistics), call.small)
    arrays |= {name: guard.array for name, guard in guards.items()}
    return (operator.results(*map(arrays.get, operator.outputs)) if arrays else None), guards


def wanted(call: Call) -> tuple[str, ...]:
    """Names of the gradients that are wanted."""
    outputs = NORMS[call.norm].backward.outputs
    return tuple(name for name, is_wanted in zip(outputs, call.mask, strict=False) if is_wanted)


def _rows(call: Call) -> Shape:
    return (*call.lead, *(1,) * len(call.normalized))


def _full_output(
    name: str, call: Call, arrays_in: Given, replaced: tuple[str, ...]
) -> tuple[Array | None, dict[str, Guarded]]:
    """An array of x's shape. An input that it takes the place of is copied first, so that inputs stay as they were."""
    shape, dtype = (*call.lead, *call.normalized), numpy_dtype(call.dtype)
    place = "dtotal" if call.place == "residual" and name == "dx" else call.place
    if place == "shifted x" and prod(shape) > 1 and name != "total":
        memory = np.zeros(prod(shape) + 1, dtype)
        memory[1:] = arrays_in["x"].reshape(-1)  # type: ignore[union-attr]  # x is there
        arrays_in["x"] = memory[1:].reshape(shape)
        return memory[:-1].reshape(shape), {}
    if place in replaced:
        target = Guarded(shape, dtype, "plain", arrays_in[place])
        arrays_in[place] = target.array
    elif call.out:
        target = Guarded(shape, dtype, call.out)
    else:
        return None, {}
    return target.array, {name: target}
