"""Rows that lie beside each other, as in images with channels first: the bits of rows that lie one after the other.

Columns are copied, turned or computed a tile at a time, so sizes are drawn around those of tiles; rows begin anywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lngrad
from lngrad.testing import Case, check_same_bits, make_inputs
from norms import NORMS, backward, forward

TENSORS = ("dy", "x", "residual", "dtotal")


def beside(array):
    """The same numbers with the first column of all of an image's rows first, then the second, and so on."""
    return None if array is None else np.ascontiguousarray(np.moveaxis(array, -1, 1))


def misaligned(array, elements):
    """A copy that begins so many elements behind a cache line's beginning, or close to that."""
    if array is None:
        return None
    memory = np.zeros(array.size + elements, array.dtype)
    copy = memory[elements:].reshape(array.shape)
    copy[...] = array
    return copy


def drawn(seed):
    """Inputs of images with as many rows and columns as tiles have, or some more or less, and how they are called."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 3, 8, 15, 16, 17, 31, 32, 33, 49, 64, 100, 130, 529]))
    columns = int(rng.choice([2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 96, 101, 200, 511, 700, 1024, 1100]))
    if rows * columns > 60_000:
        rows = 33
    lead = int(rng.integers(1, 4)), rows
    dtype = str(rng.choice(["float32", "bfloat16", "float16", "float64"]))
    norm = list(NORMS)[int(rng.integers(len(NORMS)))]
    inputs = make_inputs(Case(lead, (columns,)), dtype, seed=seed, **NORMS[norm])
    if rng.random() < 0.2:
        inputs.x[0, rows // 2, columns // 2] = [np.nan, np.inf, 1e30 if dtype in ("float32", "bfloat16") else 0][
            seed % 3
        ]
    if rng.random() < 0.3:
        inputs = replace(inputs, gamma=None, beta=None)
    return rng, inputs


def alike(tensors, like):
    """Results with one row after the other, of results with rows beside each other."""
    return type(like)(
        *(part if part is None or part.ndim < 3 else np.ascontiguousarray(np.moveaxis(part, 1, -1)) for part in tensors)
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_bits_of_rows_one_after_the_other(seed):
    rng, inputs = drawn(seed)
    shift = int(rng.integers(0, 20))
    turned = replace(inputs, **{name: misaligned(beside(getattr(inputs, name)), shift) for name in TENSORS})
    lngrad.set_num_threads(int(rng.integers(1, 4)))
    options = {"normalized_shape": None, "axis": 1, "backend": "numba_cpu"}
    with np.errstate(all="ignore"):
        expected, plain = forward(inputs, backend="numba_cpu"), backward(inputs, backend="numba_cpu")
        for _ in range(2):  # a call that was seen before goes another way
            check_same_bits(alike(forward(turned, **options), expected), expected)
            check_same_bits(alike(backward(turned, **options), plain), plain)
        out = type(expected)(*(None if part is None else misaligned(beside(part), shift) for part in expected))
        check_same_bits(alike(forward(turned, out=out, **options), expected), expected)
        in_place = expected._replace(**dict.fromkeys(expected._fields))._replace(y=turned.x)
        check_same_bits(alike(forward(turned, out=in_place, **options), expected), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_more_rows_than_one_block_of_scratch(dtype):
    inputs = make_inputs(Case((2, 1300), (72,)), dtype)
    turned = replace(inputs, **{name: beside(getattr(inputs, name)) for name in TENSORS})
    options = {"normalized_shape": None, "axis": 1, "backend": "numba_cpu"}
    expected, plain = forward(inputs, backend="numba_cpu"), backward(inputs, backend="numba_cpu")
    check_same_bits(alike(forward(turned, **options), expected), expected)
    check_same_bits(alike(backward(turned, **options), plain), plain)
