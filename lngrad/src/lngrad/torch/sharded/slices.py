"""Rows that are cut among processes: what a process computes of its slice of the columns, and of the sums of whole rows.

x, dy, dtotal: (M, n). mean, rstd, lost and the row means: (M,) in the accumulator's dtype; mean and lost None where rows are
not centred. gamma, beta: (n,) or None, in it too. CPU tensors go to compiled kernels; those on other devices, and slices of
fewer than 8 columns, to the same formulas in torch's operators. Source: docs/math.md. What is sent: cuts.py.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from lngrad.core.threads import torch_parallel_for, torch_thread_count, use_parallel_for
from lngrad.cpu.cut_rows import centred_statistics, lost_of, means_of_rows, rstd_of, shows_rest, totals
from lngrad.cpu.jobs import LANES
from lngrad.cpu.plan import MIN_COLUMNS, run_slices
from lngrad.torch.calls import accumulator_of
from lngrad.torch.sharded.cuts import Cut

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # what has an address

Statistics: TypeAlias = tuple[Any, Any, Any]  # mean, rstd and what xhat lost when the mean was rounded


# --- Forward --------------------------------------------------------------------------------------------------------


def statistics(x: Any, cut: Cut, eps: float, centred: bool) -> Statistics:
    """Mean, rstd and what xhat lost of whole rows, the same bits on every rank.

    Collectives: one gather; two of rows that are centred and cut at borders of segments, since the second sum goes over x less
    what the first one comes to.

    Raises:
        ShapeError: The slices do not make up rows of N columns.
        PeerError: A peer failed.
    """
    if not _has_lanes(x):
        cut.starts = None
    rests, rstd = cut.agreed(
        lambda: _statistics_of_lanes(x, cut, eps, centred), lambda: _statistics_of_slices(x, cut, eps, centred)
    )
    if rests is None:
        return None, rstd, None
    mean, rest = rests
    return mean, rstd, lost_of(mean, rest, rstd, torch)


def _statistics_of_lanes(x: Any, cut: Cut, eps: float, centred: bool) -> tuple[Any, Any] | None:
    """(mean, what its rounding left), None if not centred; and rstd: step by step what the forward's kernel does."""
    if not centred:
        squares = _whole_sums("rms_slice_sums", 1, x, cut, "sums of squares")
        return None if squares is None else (None, _rstd(squares[0] / _count(squares, cut.N), eps))
    sums = _whole_sums("slice_sums", 1, x, cut, "row sums")
    if sums is None:
        return None
    centre = sums[0] / _count(sums, cut.N)
    sums = _whole_sums("slice_centred_sums", 2, x, cut, "centred sums and squares", mean=centre)
    assert sums is not None  # all ranks have agreed about the columns
    mean, rest, rstd = map(torch.from_numpy, centred_statistics(centre.numpy(), sums.numpy(), cut.N, eps))
    return (mean, rest), rstd


def _statistics_of_slices(x: Any, cut: Cut, eps: float, centred: bool) -> tuple[Any, Any] | None:
    """The same by Chan's formula from the statistics of slices."""
    gathered = cut.gather(moments(x) if centred else _squares(x), "mean and centred squares")
    if gathered is None:
        return None
    parts, counts = gathered[0].double(), gathered[1]
    if not centred:
        return None, torch.rsqrt(parts.sum(0)[0] / cut.N + eps).to(gathered[0].dtype)
    # Means are counted from one slice's centre: differences of means are what Chan's formula squares, and a large offset
    # would take their last digits.
    (origin,) = parts[:, 0].index_select(0, counts.argmax().reshape(1))
    mean, squares, summed = torch.zeros_like(origin), torch.zeros_like(origin), torch.zeros_like(counts[0])
    for count, (centre, shift, part) in zip(counts, parts, strict=True):
        delta = (centre - origin) + shift - mean
        weight = count / (summed + count).clamp(min=1)
        mean = torch.where(count > 0, mean + delta * weight, mean)
        squares = torch.where(count > 0, squares + part + delta * delta * (weight * summed), squares)
        summed = summed + count
    rstd = torch.rsqrt(squares / cut.N + eps)
    rounded = (origin + mean).to(gathered[0].dtype)
    rest = (origin - rounded.double()) + mean
    return (rounded, rest.to(rounded.dtype)), rstd.to(rounded.dtype)


def _count(like: Any, N: int) -> Any:
    return like.new_tensor(float(N))


def _rstd(variance: Any, eps: float) -> Any:
    return torch.from_numpy(rstd_of(variance.numpy(), eps))


def shows_rests(mean: Any, rstd: Any) -> bool:
    """Whether the mean of a row is so large that xhat shows its rounding: the same answer on every rank that has the row."""
    return mean.device.type == "cpu" and bool(shows_rest(mean, rstd).any())


def moments(x: Any) -> Any:
    """(3, M) of each row's slice: a centre near its mean, its mean less the centre, the sum of squares around its mean.

    In one number the mean would be too coarse: with an offset of 1000 and a spread of 1 its rounding showed in rstd as 3
    tolerances. All are 0 where the slice is empty.
    """
    result = torch.zeros((3, x.shape[0]), dtype=accumulator_of(x), device=x.device)
    n = x.shape[1]
    if _kernel("slice_moments", x, row_numbers=result) or n == 0:
        return result
    wide = x.to(result.dtype)
    result[0] = wide.sum(1) / n
    centred = wide - result[0, :, None]
    result[1] = centred.sum(1) / n
    result[2] = (centred - result[1, :, None]).square_().sum(1)
    return result


def _squares(x: Any) -> Any:
    """(1, M): the sum of squares of each row's slice."""
    lanes = _lanes("rms_slice_sums", 1, x)
    return x.to(accumulator_of(x)).square().sum(1).unsqueeze(0) if lanes is None else totals(lanes)


def normalized(x: Any, of_rows: Statistics, gamma: Any, beta: Any) -> Any:
    """y (M, n) in x's dtype."""
    mean, rstd, lost = of_rows
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if _kernel("slice_forward", x, result=y, mean=mean, rstd=rstd, lost=lost, gamma=gamma, beta=beta):
        return y
    result = _xhat(x, of_rows)
    if gamma is not None:
        result *= gamma
    if beta is not None:
        result += beta
    return y.copy_(result)


# --- Backward -------------------------------------------------------------------------------------------------------


def row_means(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, cut: Cut) -> tuple[Any, Any]:
    """(2, M): mean_dxhat and mean_dxhat_xhat of whole rows; and what xhat lost with the mean, None where it lost nothing.

    One gather. Rows without a mean have mean_dxhat_xhat alone.
    """
    if not _has_lanes(x):
        cut.starts = None
    if mean is None:
        names = slice(1, 2)
    else:
        names = slice(0, 3 if shows_rests(mean, rstd) else 2)
    arrays = {"dy": dy, "mean": mean, "rstd": rstd, "gamma": gamma}

    def by_lanes() -> Any:
        return _whole_sums("slice_row_sums", 3, x, cut, "row sums", names, **arrays)

    def by_slices() -> Any:
        gathered = cut.gather(_row_sums(x, names, **arrays), "row sums")
        if gathered is None:
            return None
        total = torch.zeros(gathered[0].shape[1:], dtype=torch.float64, device=x.device)
        for part in gathered[0]:
            total = total + part
        return total.to(rstd.dtype)

    sums = cut.agreed(by_lanes, by_slices)
    means, lost = means_of_rows(sums, mean, rstd, _count(sums, cut.N), torch)
    return torch.stack(means), lost


def _row_sums(x: Any, names: slice, *, dy: Any, mean: Any, rstd: Any, gamma: Any) -> Any:
    """(3, M), or those of them that are named: sums of dxhat, of dxhat·xhat and of x - mean over each row's slice."""
    lanes = _lanes("slice_row_sums", 3, x, dy=dy, mean=mean, rstd=rstd, gamma=gamma)
    if lanes is not None:
        return totals(lanes)[names]
    dxhat, xhat = _scaled(dy, rstd, gamma), _xhat(x, (mean, rstd, None))
    centred = xhat if mean is None else x.to(rstd.dtype) - mean[:, None]
    return torch.stack([dxhat.sum(1), (dxhat * xhat).sum(1), centred.sum(1)])[names]


def input_gradient(dy: Any, x: Any, of_rows: Statistics, gamma: Any, dtotal: Any, means: Any) -> Any:
    """dx (M, n) in x's dtype, given mean_dxhat and mean_dxhat_xhat of whole rows as (2, M)."""
    mean, rstd, lost = of_rows
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    arrays = {"mean": mean, "rstd": rstd, "lost": lost, "gamma": gamma, "row_numbers": means}
    if _kernel("slice_dx", x, dy, dtotal, result=dx, **arrays):
        return dx
    result = ((_scaled(dy, rstd, gamma) - means[0, :, None]) - _xhat(x, of_rows) * means[1, :, None]) * rstd[:, None]
    return dx.copy_(result if dtotal is None else result + dtotal.to(rstd.dtype))


def _scaled(dy: Any, rstd: Any, gamma: Any) -> Any:
    return dy.to(rstd.dtype) if gamma is None else dy.to(rstd.dtype) * gamma


def _xhat(x: Any, of_rows: Statistics) -> Any:
    mean, rstd, lost = of_rows
    wide = x.to(rstd.dtype)
    xhat = (wide if mean is None else wide - mean[:, None]) * rstd[:, None]
    return xhat if lost is None else xhat + lost[:, None]


# --- Kernels --------------------------------------------------------------------------------------------------------


def _has_lanes(x: Any) -> bool:
    """Whether sums come in lanes; the same answer on every rank."""
    return x.device.type == "cpu" and type(x) in _PLAIN


def _lanes(task: str, sums: int, x: Any, dy: Any = None, **arrays: Any) -> Any:
    """(M, sums, LANES): sums over each row's slice, in lanes; None if there is no kernel for it."""
    lanes = torch.zeros((x.shape[0], sums, LANES), dtype=accumulator_of(x), device=x.device)
    return lanes if _kernel(task, x, dy, row_numbers=lanes, **arrays) else None


def _whole_sums(
    task: str, sums: int, x: Any, cut: Cut, what: str, names: slice = slice(None), *, dy: Any = None, gamma: Any = None,
    **statistics: Any,
) -> Any:  # fmt: skip
    """(sums, M), or those of them that are named: sums over whole rows with the bits of one process; None as Cut.gather."""

    def lanes(start: int, count: int) -> Any:
        columns = slice(start, start + count)
        of_columns = [None if array is None else array[..., columns] for array in (x, dy, gamma)]
        found = _lanes(task, sums, of_columns[0], of_columns[1], gamma=of_columns[2], **statistics)
        return None if found is None else found[:, names]

    like = torch.zeros((x.shape[0], sums, LANES), dtype=accumulator_of(x))[:, names]
    return cut.whole_sums(lanes, like, what)


def _kernel(task: str, x: Any, dy: Any = None, dtotal: Any = None, **arrays: Any) -> bool:
    """Run a compiled task, if it takes these tensors; whether it did. Without a mean it is the task of rows not centred."""
    M, n = x.shape
    tensors = [tensor for tensor in (x, dy, dtotal, *arrays.values()) if tensor is not None]
    if x.device.type != "cpu" or M == 0 or any(type(tensor) not in _PLAIN for tensor in tensors):
        return False
    if n < MIN_COLUMNS:
        return False
    if "mean" in arrays and arrays["mean"] is None:
        task = f"rms_{task}"
    elif "lost" in arrays and arrays["lost"] is None:
        arrays["lost"] = torch.full_like(arrays["rstd"], -0.0)
    x, dy, dtotal = (t if t is None or t.stride(1) == 1 else t.contiguous() for t in (x, dy, dtotal))
    ready = {name: array.contiguous() for name, array in arrays.items() if array is not None}
    with use_parallel_for(torch_parallel_for()):
        run_slices(
            task, str(x.dtype).removeprefix("torch."), M, n, threads=torch_thread_count(),
            x=_rows(x), dy=_rows(dy), dtotal=_rows(dtotal),
            **{name: array.data_ptr() for name, array in ready.items()},
        )  # fmt: skip
    return True


def _rows(tensor: Any) -> tuple[int, int]:
    return (0, 0) if tensor is None else (tensor.data_ptr(), tensor.stride(0) * tensor.element_size())
