"""The arithmetic of one slice, here of all columns: compiled kernels, and the same formulas in torch's operators."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")

from lngrad.core.problem import Forward, Grads  # noqa: E402
from lngrad.cpu.cut_rows import segment_borders  # noqa: E402
from lngrad.support.addresses import as_numpy  # noqa: E402  # torch may be missing
from lngrad.testing import CASES, Case, check_forward, check_grads, check_same_bits, make_inputs  # noqa: E402
from lngrad.torch.calls import accumulator_of  # noqa: E402
from lngrad.torch.sharded import slices  # noqa: E402
from lngrad.torch.sharded.cuts import Cut  # noqa: E402
from norms import light, with_own_means  # noqa: E402


def tensor(array, shape=None):
    if array is None:
        return None
    narrow = (
        torch.from_numpy(array.view("uint16").copy()).view(torch.bfloat16) if array.dtype.name == "bfloat16" else None
    )
    return (torch.from_numpy(array.copy()) if narrow is None else narrow).reshape(shape or array.shape)


def both_ways(inputs):
    """Forward and dx of inputs, as one process of a group of one computes them."""
    N = math.prod(inputs.normalized_shape)
    x, dy = tensor(inputs.x, (-1, N)), tensor(inputs.dy, (-1, N))
    wide = accumulator_of(x)
    gamma, beta = (None if a is None else tensor(a, (N,)).to(wide) for a in (inputs.gamma, inputs.beta))
    cut = Cut(N, N, [], 0, [(0, N)])
    of_rows = slices.statistics(x, cut, 1e-5, True)
    y = slices.normalized(x, of_rows, gamma, beta)
    means, lost = slices.row_means(dy, x, *of_rows[:2], gamma, cut)
    dx = slices.input_gradient(dy, x, (*of_rows[:2], lost), gamma, None, means)
    mean, rstd, _ = of_rows
    rows = as_numpy(inputs.mean).shape
    return Forward(y.reshape(inputs.x.shape), mean.reshape(rows), rstd.reshape(rows)), dx.reshape(inputs.x.shape)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("case", light(CASES), ids=str)
def test_slices(case, dtype, kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(slices, "_PLAIN", ())
    inputs = make_inputs(case, dtype)
    forward, dx = both_ways(inputs)
    check_forward(forward, inputs)
    seen = replace(with_own_means(inputs), rstd=as_numpy(forward.rstd))
    check_grads(Grads(dx, None, None), seen, output_mask=(True, False, False))


def test_large_slices_are_streamed():
    inputs = make_inputs(Case((2100,), (1024,)), "float32")
    forward, dx = both_ways(inputs)
    few, few_dx = both_ways(
        replace(inputs, x=inputs.x[:9], dy=inputs.dy[:9], mean=inputs.mean[:9], rstd=inputs.rstd[:9])
    )
    check_same_bits((forward.y[:9], forward.mean[:9], forward.rstd[:9], dx[:9]), (*few, few_dx))


def test_rows_with_gaps():
    x = torch.randn(20, 100)[:, :40]
    check_same_bits(slices.moments(x), slices.moments(x.contiguous()))
    check_same_bits(slices.moments(x.t().contiguous().t()), slices.moments(x.contiguous()))


def test_a_tensor_that_has_no_address_goes_to_the_formulas(monkeypatch):
    class Wrapped(torch.Tensor):
        pass

    inputs = make_inputs(Case((20,), (40,)), "float32")
    dy, x, mean, rstd, gamma = map(tensor, inputs.arguments)
    rest = mean.reshape(-1), rstd.reshape(-1), gamma
    kernels, seen = slices.run_slices, []
    monkeypatch.setattr(slices, "run_slices", lambda *task, **how: seen.append(task) or kernels(*task, **how))
    cut = Cut(40, 40, [], 0, [(0, 40)])
    wrapped, _ = slices.row_means(dy.as_subclass(Wrapped), x.as_subclass(Wrapped), *rest, cut)
    assert not seen
    plain, _ = slices.row_means(dy, x, *rest, cut)
    assert seen
    torch.testing.assert_close(wrapped.as_subclass(torch.Tensor), plain)


def test_where_rows_can_be_cut():
    assert [list(segment_borders(N)) for N in (8, 1023, 1024, 2047, 2048)] == [
        [],
        [],
        [512],
        [512, 1024],
        [512, 1024, 1536],
    ]
    for N in (1023, 1024, 2600, 8192):
        for border in range(0, N, 64):
            cut = Cut(N, border, [], 0, [(0, border), (border, N - border)])
            assert (cut.trees is not None) == (border == 0 or border in segment_borders(N)), (N, border)
