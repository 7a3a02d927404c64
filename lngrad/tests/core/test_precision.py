"""Where torch's CPU kernels lose accuracy, and ours must not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lngrad
import norms
from lngrad.core import reference
from lngrad.core.problem import LAYER_NORM
from lngrad.support.dtypes import DTYPES, numpy_dtype
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs
from norms import NORMS


def gradients(inputs, backend=None):
    return lngrad.layer_norm_backward(*inputs.arguments, backend=backend)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_ones_add_up_exactly(dtype, backend):
    """16,384 ones are 16384; torch 2.13 stops at 256 in bfloat16 and at 2048 in float16, a thread."""
    inputs = make_inputs(Case((16384,), (40,)), dtype)
    inputs = replace(inputs, dy=np.ones_like(inputs.dy))
    dbeta = gradients(inputs, backend).dbeta.astype(np.float64)
    check_same_bits(dbeta, np.full(40, 16384.0))


def relative_error(got, expected):
    return float(np.linalg.norm(got.astype(np.float64) - expected) / np.linalg.norm(expected))


def torch_gradients(inputs):
    torch = pytest.importorskip("torch")

    def tensor(array):
        if array.dtype == numpy_dtype("bfloat16"):
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    x, gamma = tensor(inputs.x), tensor(inputs.gamma)
    mean, rstd = (tensor(array).to(x.dtype) for array in (inputs.mean, inputs.rstd))
    return torch.ops.aten.native_layer_norm_backward(
        tensor(inputs.dy), x, list(inputs.normalized_shape), mean, rstd, gamma, gamma, [True] * 3
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dgamma_of_many_rows_is_ten_times_better_than_torch(dtype):
    inputs = make_inputs(Case((16384,), (64,)), dtype)
    expected = reference.layer_norm_backward(*inputs.arguments)
    ours = relative_error(gradients(inputs).dgamma, expected.dgamma)
    theirs = relative_error(torch_gradients(inputs)[1].float().numpy(), expected.dgamma)
    assert ours <= theirs / 10


@pytest.mark.parametrize("offset", [0.0, 10.0, 100.0, 1e3, 1e4])
def test_a_large_offset_costs_nothing(offset):
    """float32 with |mean| far above the spread: no worse than torch anywhere, dgamma ten times better at 1e4."""
    inputs = make_inputs(Case((512,), (768,), offset=offset, spread=1.0), "float32")
    expected = reference.layer_norm_backward(*inputs.arguments)
    ours, theirs = gradients(inputs), [tensor.numpy() for tensor in torch_gradients(inputs)]
    check_grads(ours, inputs)
    for got, other, truth in zip(ours, theirs, expected, strict=True):
        assert relative_error(got, truth) <= max(relative_error(other, truth), 3e-7)
    if offset == 1e4:
        assert relative_error(ours.dgamma, expected.dgamma) <= relative_error(theirs[1], expected.dgamma) / 10


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_the_forward_takes_its_mean_exactly(offset, backend):
    inputs = make_inputs(Case((33,), (768,), offset=offset, spread=1.0), "float32")
    forward = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, backend=backend)
    expected = reference.layer_norm(inputs.x, inputs.gamma, inputs.beta)
    assert np.max(np.abs(forward.mean - expected.mean) / offset) <= 2.0**-23
    assert np.max(np.abs(forward.rstd - expected.rstd) / expected.rstd) <= 1e-5


def completed(inputs, **options):
    return norms.backward(inputs, complete_mean=True, **options)


@pytest.mark.parametrize("offset", [10.0, 1e4, 1e6])
@pytest.mark.parametrize("shape", [(96, 5), (130, 40), (77, 40), (64, 768), (3, 8200)], ids=str)
def test_with_both_halves_of_the_mean_errors_do_not_grow(shape, offset, backend):
    """float32 with |mean| far above the spread: what torch loses of y, dx and dgamma grows with the offset."""
    inputs = make_inputs(Case(shape[:1], shape[1:], offset=offset, spread=1.0), "float32")
    forward = norms.forward(inputs, backend=backend)
    expected = reference.layer_norm(inputs.x, inputs.gamma, inputs.beta)
    assert relative_error(forward.y, expected.y) <= 5e-7
    inputs = replace(inputs, mean=forward.mean, rstd=forward.rstd)
    own = replace(inputs, mean=norms.own_means(inputs))
    got = completed(inputs, backend=backend)
    check_grads(got, own)
    truth = reference.layer_norm_backward(inputs.dy, inputs.x, own.mean, expected.rstd, inputs.gamma)
    for result, other in zip(got, truth, strict=True):
        assert relative_error(result, other) <= 1e-6
    check_grads(norms.backward(inputs, backend=backend), inputs)  # which takes them as they are
    if offset > 10:
        assert relative_error(norms.backward(inputs, backend=backend).dgamma, truth.dgamma) > 1e-6


@pytest.mark.usefixtures("threads")
def test_what_a_mean_lost_has_the_same_bits_whatever_goes_beside_its_row():
    """Rows of threads' blocks, rows by themselves, with and without dx."""
    inputs = make_inputs(Case((150,), (8200,), offset=1e4, spread=1.0), "float32")
    inputs = replace(inputs, mean=norms.forward(inputs).mean)
    lngrad.set_num_threads(1)
    whole = completed(inputs)
    few = completed(norms.of_rows(inputs, slice(0, 3)))
    check_same_bits(few.dx, whole.dx[:3])
    sums = completed(inputs, output_mask=(False, True, True))
    check_same_bits(tuple(sums), (None, whole.dgamma, whole.dbeta))
    lngrad.set_num_threads(4)
    check_same_bits(tuple(completed(norms.of_rows(inputs, slice(0, 3)))), tuple(few))


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_mean_is_completed_only_where_it_is_large_and_the_rows_own(offset):
    inputs = make_inputs(Case((70,), (300,), offset=offset, spread=1.0), "float32")
    if offset:
        inputs = replace(inputs, mean=inputs.mean + np.float32(0.25))
    check_same_bits(tuple(completed(inputs)), tuple(norms.backward(inputs)))


@pytest.mark.parametrize("norm", [part for part in NORMS.values() if "residual" in part], ids=str)
@pytest.mark.parametrize("gamma", [None, "float64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_residual_has_the_bits_of_adding_first(dtype, gamma, norm, backend):
    """With alpha 1 the total is x + residual in x's dtype; y, the statistics and the gradients are those of it."""
    inputs = make_inputs(Case((70,), (300,), gamma_dtype=gamma), dtype, **norm)
    inputs = replace(inputs, normalization=inputs.normalization._replace(alpha=1.0))
    got = norms.forward(inputs, backend=backend)
    check_same_bits(got.total, inputs.x + inputs.residual)
    check_same_bits(got.total, inputs.total)
    of_total = replace(inputs, x=got.total, residual=None)
    plain = norms.forward(of_total, backend=backend)
    for name in {"y", "mean", "rstd"} & set(got._fields):
        check_same_bits(getattr(got, name), getattr(plain, name))
    check_same_bits(norms.backward(inputs, backend=backend), norms.backward(of_total, backend=backend))


@pytest.mark.parametrize("norm", ["add_rms_norm", "deep_norm"])
def test_a_zero_dtotal_is_none(norm, backend):
    inputs = make_inputs(Case((70,), (48,)), "float32", normalization=NORMS[norm]["normalization"])
    zeros = replace(inputs, dtotal=np.zeros_like(inputs.dy))
    check_same_bits(norms.backward(zeros, backend=backend), norms.backward(inputs, backend=backend))


@pytest.mark.parametrize("offset", [1.0, 0.25])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_an_offset_is_added_to_gamma_in_the_dtype_of_the_call(norm, offset, backend):
    """gamma in 16 bits and 1 do not become a number of 16 bits."""
    plain = NORMS[norm].get("normalization", LAYER_NORM)
    inputs = make_inputs(Case((70,), (48,)), "bfloat16", normalization=plain._replace(offset=offset))
    added = replace(inputs, gamma=inputs.gamma.astype("f4") + np.float32(offset), normalization=plain)
    check_same_bits(norms.forward(inputs, backend=backend), norms.forward(added, backend=backend))
    check_same_bits(norms.backward(inputs, backend=backend).dx, norms.backward(added, backend=backend).dx)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_are_rounded_once_to_nearest_even(dtype, backend):
    """dbeta of two rows is a sum of two numbers: exact in float32, so its rounding can be foreseen."""
    rng = np.random.default_rng(0)
    dy = rng.standard_normal((2, 4096)).astype(numpy_dtype(dtype))
    inputs = replace(make_inputs(Case((2,), (4096,)), dtype), dy=dy)
    expected = (dy[0].astype(np.float64) + dy[1].astype(np.float64)).astype(numpy_dtype(dtype))
    check_same_bits(gradients(inputs, backend).dbeta, expected)


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000])
def test_every_nan_stays_a_nan_in_bfloat16(bits):
    inputs = make_inputs(Case((9,), (40,)), "bfloat16")
    rstd = inputs.rstd.copy()
    rstd.view(np.uint32)[4] = bits
    grads = gradients(replace(inputs, rstd=rstd))
    assert np.isnan(grads.dx[4].astype(np.float32)).all()
    assert np.isnan(grads.dgamma.astype(np.float32)).all()
    assert np.isfinite(np.delete(grads.dx, 4, 0).astype(np.float32)).all()
