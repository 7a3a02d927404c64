"""Any layout in, any layout out: transposed, sliced, expanded, reversed, read-only, misaligned, of other libraries."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import lngrad
from lngrad.core.arrays import ArraySpec
from lngrad.cpu.strides import row_stride
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs


def sliced_rows(a):
    big = np.zeros((a.shape[0] * 3, *a.shape[1:]), a.dtype)
    big[1::3] = a
    return big[1::3]


def sliced_columns(a):
    big = np.zeros((*a.shape[:-1], a.shape[-1] + 5), a.dtype)
    big[..., 2:-3] = a
    return big[..., 2:-3]


def every_second_column(a):
    big = np.zeros((*a.shape[:-1], a.shape[-1] * 2), a.dtype)
    big[..., ::2] = a
    return big[..., ::2]


def transposed(a):
    return np.ascontiguousarray(a.transpose()).transpose()


def swapped_lead(a):
    if a.ndim < 2:
        return a
    return np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1)


def reversed_rows(a):
    return np.ascontiguousarray(a[::-1])[::-1]


def reversed_columns(a):
    return np.ascontiguousarray(a[..., ::-1])[..., ::-1]


def misaligned(a):
    buffer = np.zeros(a.nbytes + 1, np.uint8)
    view = buffer[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def field_of_records(a):
    records = np.zeros(a.shape, np.dtype([("a", np.uint8), ("b", a.dtype)]))
    records["b"] = a
    return records["b"]


LAYOUTS = [
    sliced_rows,
    sliced_columns,
    every_second_column,
    transposed,
    swapped_lead,
    reversed_rows,
    reversed_columns,
    misaligned,
    read_only,
    field_of_records,
]


def gradients(inputs, backend, **more):
    return lngrad.layer_norm_backward(
        *inputs.arguments,
        normalized_shape=inputs.normalized_shape,
        backend=backend,
        **more,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("case", [Case((5, 31), (48,)), Case((4, 3, 7), (5,)), Case((70, 2), (3, 100))], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_inputs_in_any_layout(layout, case, dtype, backend):
    inputs = make_inputs(case, dtype)
    plain = tuple(gradients(inputs, backend))
    for names in (("x",), ("dy",), ("dy", "x"), ("mean", "rstd"), ("gamma",)):
        changed = replace(inputs, **{name: layout(getattr(inputs, name)) for name in names})
        check_same_bits(tuple(gradients(changed, backend)), plain)
    y = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=case.normalized, backend=backend)
    other = lngrad.layer_norm(
        layout(inputs.x), layout(inputs.gamma), inputs.beta, normalized_shape=case.normalized, backend=backend
    )
    check_same_bits(tuple(other), tuple(y))


@pytest.mark.parametrize("case", [Case((5, 31), (48,)), Case((4, 3, 7), (5,)), Case((70, 2), (3, 100))], ids=str)
@pytest.mark.parametrize("layout", [f for f in LAYOUTS if f is not read_only], ids=lambda f: f.__name__)
def test_outputs_in_any_layout(layout, case, backend):
    inputs = make_inputs(case, "float32")
    plain = tuple(gradients(inputs, backend))
    out = lngrad.Grads(*(layout(np.zeros_like(grad)) for grad in plain))
    result = gradients(inputs, backend, out=out)
    assert result.dx is out.dx
    assert result.dgamma is out.dgamma
    check_same_bits(tuple(result), plain)
    forward = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=case.normalized, backend=backend)
    out = lngrad.Forward(*(layout(np.zeros_like(array)) for array in forward))
    check_same_bits(
        tuple(
            lngrad.layer_norm(
                inputs.x, inputs.gamma, inputs.beta, normalized_shape=case.normalized, out=out, backend=backend
            )
        ),
        tuple(forward),
    )


def test_expanded_inputs_are_read_in_place(backend):
    inputs = make_inputs(Case((130,), (40,)), "float32")
    row = np.broadcast_to(inputs.dy[:1], (130, 40))
    statistics = np.broadcast_to(inputs.rstd[:1], (130, 1))
    gamma = np.broadcast_to(inputs.gamma[:1], (40,))
    expanded = replace(inputs, dy=row, rstd=statistics, gamma=gamma)
    check_grads(gradients(expanded, backend), expanded)


@pytest.mark.parametrize("columns", [40, 10000], ids=["table kept", "table too large to keep"])
def test_a_call_over_channels_that_comes_again(columns):
    rng = np.random.default_rng(columns)
    for _ in range(3):
        x, dy = rng.standard_normal((2, 2, columns, 3, 3), dtype=np.float32)
        gamma, beta = rng.standard_normal((2, columns), dtype=np.float32)
        last, dy_last = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, dy))
        forward = lngrad.layer_norm(x, gamma, beta, axis=1)
        of_last = lngrad.layer_norm(last, gamma, beta)
        check_same_bits(tuple(np.moveaxis(a, 1, -1) for a in forward), tuple(of_last))
        grads = lngrad.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma, axis=1)
        of_last = lngrad.layer_norm_backward(dy_last, last, of_last.mean, of_last.rstd, gamma)
        check_same_bits((np.moveaxis(grads.dx, 1, -1), *grads[1:]), tuple(of_last))


def test_a_gap_between_rows_needs_no_copy():
    assert row_stride(ArraySpec((6, 8), "float32", (64, 4), "cpu", "numpy"), 1) == 64
    assert row_stride(ArraySpec((6, 8), "float32", (-32, 4), "cpu", "numpy"), 1) == -32
    assert row_stride(ArraySpec((6, 8), "float32", (0, 4), "cpu", "numpy"), 1) == 0
    assert row_stride(ArraySpec((2, 3, 8), "float32", (96, 32, 4), "cpu", "numpy"), 1) == 32
    assert row_stride(ArraySpec((2, 3, 8), "float32", (128, 32, 4), "cpu", "numpy"), 1) is None
    assert row_stride(ArraySpec((6, 8), "float32", (4, 24), "cpu", "numpy"), 1) is None
    assert row_stride(ArraySpec((1, 8), "float32", (999, 4), "cpu", "numpy"), 1) == 32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch_tensors_come_back_as_tensors(dtype, backend):
    torch = pytest.importorskip("torch")
    inputs = make_inputs(Case((9,), (40,)), dtype)

    def tensor(array):
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    tensors = replace(
        inputs, **{name: tensor(getattr(inputs, name)) for name in ("dy", "x", "mean", "rstd", "gamma", "beta")}
    )
    grads = lngrad.layer_norm_backward(*tensors.arguments, backend=backend)
    assert all(isinstance(grad, torch.Tensor) for grad in grads)
    assert grads.dx.dtype == getattr(torch, dtype)
    check_same_bits(tuple(grads), tuple(gradients(inputs, backend)))
    forward = lngrad.layer_norm(tensors.x, tensors.gamma, tensors.beta, normalized_shape=40, backend=backend)
    assert isinstance(forward.y, torch.Tensor)
    check_same_bits(
        tuple(forward),
        tuple(lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=40, backend=backend)),
    )
    transposed_x = tensors.x.t().contiguous().t()
    again = lngrad.layer_norm_backward(
        tensors.dy, transposed_x, tensors.mean, tensors.rstd, tensors.gamma, backend=backend
    )
    check_same_bits(tuple(again), tuple(grads))


def test_large_torch_outputs_are_aligned_and_right():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 800, generator=generator).to(torch.bfloat16)
    dy = torch.randn(700, 800, generator=generator).to(torch.bfloat16)
    forward = lngrad.layer_norm(x)
    grads = lngrad.layer_norm_backward(dy, x, forward.mean, forward.rstd)
    assert grads.dx.dtype == torch.bfloat16
    assert grads.dx.data_ptr() % 64 == 0
    plain = lngrad.layer_norm_backward(
        *(lngrad.support.addresses.as_numpy(tensor) for tensor in (dy, x, forward.mean, forward.rstd))
    )
    check_same_bits(tuple(grads), tuple(plain))


class Interface:
    """An array of some library that offers `__array_interface__` alone."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.array = array


class Capsule:
    """An array of some library that offers DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", [Interface, Capsule])
def test_arrays_of_other_libraries(kind, backend):
    inputs = make_inputs(Case((9,), (40,)), "float32")
    foreign = (kind(array) for array in inputs.arguments)
    grads = lngrad.layer_norm_backward(*foreign, backend=backend)
    assert all(type(grad) is np.ndarray for grad in grads)
    check_same_bits(tuple(grads), tuple(gradients(inputs, backend)))


def test_subclasses_of_ndarray_are_arrays(backend, tmp_path):
    inputs = make_inputs(Case((9,), (40,)), "float32")
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=inputs.x.shape)
    mapped[...] = inputs.x
    check_same_bits(tuple(gradients(replace(inputs, x=mapped), backend)), tuple(gradients(inputs, backend)))
