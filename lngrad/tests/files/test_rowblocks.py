"""Blocks of rows have the bits of one call, whatever the block, the layout and the statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lngrad
from lngrad.core.problem import Grads
from lngrad.errors import DtypeError, FileFormatError, ShapeError
from lngrad.files.rowblocks import RowBlocks
from lngrad.support.dtypes import DTYPES
from lngrad.testing import Case, Inputs, check_grads, check_same_bits, make_inputs
from norms import NORMS, backward

CASE = Case((700,), (24,))


def arrays_of(inputs: Inputs, *names: str) -> dict[str, Any]:
    found = {name: getattr(inputs, name) for name in names or ("dy", "x", "mean", "rstd", "gamma")}
    return {name: array for name, array in found.items() if array is not None}


def run(arrays: dict[str, Any], backend: str | None = None, **options: Any) -> Grads:
    blocks = RowBlocks(arrays, **options)
    written: dict[str, list[Any]] = {"dx": [], "dgamma": [], "dbeta": []}
    rows = []
    blocks.run(lambda name, array: written[name].append(array.copy()), backend=backend, advance=rows.append)
    assert sum(rows) == blocks.problem.M
    assert len(rows) == max(1, -(-blocks.problem.M // blocks.rows))
    dx, dgamma, dbeta = (pieces or None for pieces in written.values())
    return Grads(
        None if dx is None else np.concatenate(dx).reshape(arrays["x"].shape),
        None if dgamma is None else dgamma[0],
        None if dbeta is None else dbeta[0],
    )


def whole(inputs: Inputs, **options: Any) -> Grads:
    return lngrad.layer_norm_backward(*map(inputs.__getattribute__, ("dy", "x", "mean", "rstd", "gamma")), **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunks", [1, 4, 16])
def test_blocks_have_the_bits_of_one_call(dtype, chunks, backend):
    inputs = make_inputs(CASE, dtype)
    block_bytes = 3 * chunks * 64 * 24 * DTYPES[dtype].itemsize
    assert RowBlocks(arrays_of(inputs), block_bytes=block_bytes).rows == 64 * chunks
    got = run(arrays_of(inputs), backend, block_bytes=block_bytes)
    check_grads(got, inputs)
    check_same_bits(got, whole(inputs, backend=backend))


@pytest.mark.parametrize("norm", NORMS)
def test_blocks_of_every_norm_have_the_bits_of_one_call(norm):
    inputs = make_inputs(CASE, "bfloat16", **NORMS[norm])
    arrays = arrays_of(replace(inputs, x=inputs.total), "dy", "x", "rstd", "gamma", "dtotal")
    arrays |= arrays_of(inputs, "mean") if inputs.normalization.centred else {}
    got = run(arrays, "numpy_cpu", block_bytes=3 * 64 * 24 * 2, normalization=inputs.normalization)
    expected = backward(inputs, backend="numpy_cpu")
    check_same_bits(got[: len(expected)], tuple(expected))


@pytest.mark.parametrize("M", [0, 1, 63, 64, 65, 192, 320, 448, 1000])
@pytest.mark.parametrize("N", [1, 7, 40, 17000])
def test_the_tree_for_any_number_of_rows(M, N):
    if M * N > 3_000_000:
        M = M % 128 + 64
    inputs = make_inputs(Case((M,), (N,)), "float32")
    check_same_bits(run(arrays_of(inputs), block_bytes=1), whole(inputs))


@pytest.mark.parametrize(
    "mask", [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]
)
def test_masks(mask):
    inputs = make_inputs(CASE, "float32")
    for names in ((), ("dy", "x", "gamma")):
        got = run(arrays_of(inputs, *names), output_mask=mask, block_bytes=1)
        assert tuple(g is not None for g in got) == mask
    check_same_bits(run(arrays_of(inputs), output_mask=mask, block_bytes=1), whole(inputs, output_mask=mask))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("lead", "normalized"), [((5, 60), (3, 4)), ((2, 3, 50), (12,)), ((300,), (12,)), ((), (12,))])
def test_any_shape_in_either_order(lead, normalized, order):
    inputs = make_inputs(Case(lead, normalized), "float32")
    laid = {name: np.asarray(array, order=order) for name, array in arrays_of(inputs).items()}
    check_same_bits(run(laid, block_bytes=1), whole(inputs))
    without_gamma = {name: array for name, array in laid.items() if name != "gamma"}
    got = run(without_gamma, normalized_dims=len(normalized), block_bytes=1)
    check_same_bits(got, whole(Inputs(**{**vars(inputs), "gamma": None}), normalized_shape=normalized))


def test_statistics_from_x_and_from_the_variance():
    inputs = make_inputs(CASE, "float32")
    forward = lngrad.layer_norm(inputs.x, eps=1e-3)
    expected = lngrad.layer_norm_backward(inputs.dy, inputs.x, forward.mean, forward.rstd, inputs.gamma)
    check_same_bits(run(arrays_of(inputs, "dy", "x", "gamma"), eps=1e-3, block_bytes=1), expected)

    variance = inputs.x.astype(np.float64).var(-1)
    arrays = arrays_of(inputs, "dy", "x", "mean", "gamma")
    got = run({**arrays, "variance": variance.astype(np.float32)}, eps=1e-3, block_bytes=1)
    rstd = 1 / np.sqrt(variance.astype(np.float32).astype(np.float64) + 1e-3)
    check_same_bits(got, whole(Inputs(**{**vars(inputs), "rstd": rstd.astype(np.float32)})))


def test_unaligned_inputs():
    """As they are where a .npz has them: at any byte."""
    inputs = make_inputs(CASE, "float32")
    unaligned = {}
    for name, array in arrays_of(inputs).items():
        memory = np.empty(array.nbytes + 1, np.uint8)
        unaligned[name] = np.ndarray(array.shape, array.dtype, memory, 1)
        unaligned[name][...] = array
    check_same_bits(run(unaligned), whole(inputs))


def test_infinities_and_overflow_are_results_not_warnings():
    inputs = make_inputs(CASE, "float16")
    dy = inputs.dy.copy()
    dy[::2], dy[5, 3], dy[130, 3] = 60000, np.inf, -np.inf
    changed = Inputs(**{**vars(inputs), "dy": dy})
    got = run(arrays_of(changed), block_bytes=1)
    check_same_bits(got.dx, whole(changed).dx)
    assert np.isinf(got.dbeta[0])
    assert np.isnan(got.dbeta[3])


def refused(error: type[Exception], text: str, change: dict[str, Any], *names: str, **options: Any) -> None:
    arrays = {**arrays_of(make_inputs(CASE, "float32"), *names), **change}
    with pytest.raises(error, match=text):
        run({name: array for name, array in arrays.items() if array is not None}, **options)


def test_rules():
    row = np.ones(700, np.float32)
    refused(FileFormatError, r"^dy: is missing; expected dy and x, got x$", {}, "x")
    refused(FileFormatError, r"^x: is missing; expected dy and x, got dy$", {}, "dy")
    refused(FileFormatError, r"^dy: is missing; expected dy and x, got neither$", {"dy": None}, "dy")
    refused(FileFormatError, r"^variance: expected rstd or variance, got both$", {"variance": row})
    refused(FileFormatError, r"^mean: is missing; expected mean with rstd or variance, or neither", {"mean": None})
    refused(FileFormatError, r"^rstd: is missing; expected mean with rstd or variance, or neither", {"rstd": None})
    refused(FileFormatError, r"^eps: has no effect where rstd is given", {}, eps=1e-5)
    for eps in (-1.0, float("nan"), float("inf")):
        refused(
            ShapeError,
            r"^eps: expected a number that is finite and not negative",
            {"mean": None, "rstd": None},
            eps=eps,
        )
    refused(
        ShapeError, r"^normalized dims: expected 1 to 2, as x has the shape \(700, 24\), got 3$", {}, normalized_dims=3
    )
    refused(ShapeError, r"^normalized dims: expected 1 to 2", {}, normalized_dims=0)
    refused(ShapeError, r"^dy: expected the shape of x, \(700, 24\), got \(3,\)$", {"dy": row[:3]})
    refused(DtypeError, r"^dy: expected float16, .* got int64$", {"dy": np.ones((700, 24), np.int64)})
    refused(ShapeError, r"^rstd: expected 700 elements", {"rstd": row[:3]})
    without = {"rstd": None, "variance": row[:3]}
    refused(ShapeError, r"^variance: expected 700 elements, one per row of x .*, got shape \(3,\)$", without)
    refused(ShapeError, r"^gamma: expected the normalized shape \(24,\), got \(23,\)$", {"gamma": row[:23]})
    refused(ShapeError, r"^x: expected 1 to 8 dimensions, got 0$", {"x": row[0, ...]}, "dy", "x")
    negative = row.copy()
    negative[300] = -2
    text = r"^variance: expected no negative numbers, got -2 for row 300$"
    refused(FileFormatError, text, {"rstd": None, "variance": negative}, block_bytes=1)
