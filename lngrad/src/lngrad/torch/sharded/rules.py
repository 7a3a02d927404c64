"""What lngrad's operators do with DTensors: bring arguments to one layout, work on local shards, say where results lie.

Registered by torch.library.register_torch_dispatch, which a DTensor meets before its own rules; see decision 20.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from lngrad.core.problem import LAYER_NORM, SLICE_BACKWARD, Normalization, describe
from lngrad.errors import DtypeError, ShapeError
from lngrad.torch import calls, operators
from lngrad.torch.calls import accumulator_of
from lngrad.torch.operators import BACKWARD_RESULTS, FORWARD_RESULTS
from lngrad.torch.sharded import slices
from lngrad.torch.sharded.cuts import Cut, peers


@dataclass(frozen=True)
class Layout:
    """How a call lies on a mesh: placements, one per mesh axis, of everything that it reads and writes.

    Attributes:
        full: Of x, dy, y, dx.
        statistics: Of mean and rstd.
        parameters: Of gamma and beta as they are read.
        sums: Of dgamma and dbeta as they are written.
        hidden: The mesh axes that cut the normalized dimensions.
    """

    full: tuple[Any, ...]
    statistics: tuple[Any, ...]
    parameters: tuple[Any, ...]
    sums: tuple[Any, ...]
    hidden: tuple[int, ...]

    @staticmethod
    def of(placements: tuple[Any, ...], dims: int, split: int) -> Layout:
        """The layout that x's placements ask for.

        Args:
            placements: Of x. What is neither Replicate nor Shard (Partial, torch's interleaved shards) becomes Replicate.
            dims, split: How many dimensions x has, and how many of them are rows.
        """
        rows, hidden = [], []
        for axis, placement in enumerate(placements):
            if type(placement) is not Shard:
                rows.append((Replicate(), Replicate(), Replicate(), Replicate()))
            elif placement.dim % dims < split:
                row = Shard(placement.dim % dims)
                rows.append((row, row, Replicate(), Partial("sum")))
            else:
                column = Shard(placement.dim % dims - split)
                rows.append((Shard(placement.dim % dims), Replicate(), column, column))
                hidden.append(axis)
        full, statistics, parameters, sums = zip(*rows, strict=True)
        return Layout(full, statistics, parameters, sums, tuple(hidden))


def _forward(
    x: Any, normalized_shape: Any, gamma: Any, beta: Any, eps: float, residual: Any = None, centred: bool = True,
    offset: float = 0.0,
) -> tuple[Any, ...]:  # fmt: skip
    """y, mean, rstd and total as DTensors; tensors without elements for what there is not."""
    mesh = _mesh({"x": x, "gamma": gamma, "beta": beta, "residual": residual})
    call = operators.norm_call(x, normalized_shape, gamma, beta, residual, None, centred, offset)
    outputs = _outputs(call)
    split = x.dim() - len(normalized_shape)
    layout = Layout.of(x.placements, x.dim(), split)
    placements = {"y": layout.full, "mean": layout.statistics, "rstd": layout.statistics, "total": layout.full}
    if mesh.get_coordinate() is None:
        return _nothing(x, mesh, FORWARD_RESULTS, placements, outputs)
    local_x, local_residual = _local(x, layout.full), _local(residual, layout.full)
    local_gamma, local_beta = _local(gamma, layout.parameters), _local(beta, layout.parameters)
    if not layout.hidden or x.numel() == 0:
        arguments = local_x, local_x.shape[split:], local_gamma, local_beta, eps, local_residual, centred, offset
        results = dict(zip(FORWARD_RESULTS, operators.norm(*arguments), strict=True))
    else:
        results = {}
        _check_shards(local_x.shape[split:], gamma=local_gamma, beta=local_beta)
        if residual is not None:
            local_x = results["total"] = local_x + local_residual
        rows, n = local_x.shape[:split], math.prod(local_x.shape[split:])
        flat = local_x.reshape(math.prod(rows), n).to(_rows_dtype(local_x, gamma, beta))
        cut = Cut.of(x, local_x, split, layout.hidden)
        of_rows = slices.statistics(flat, cut, eps, centred)
        scale, shift = _flat(of_rows[1].dtype, flat, call[-1], local_gamma, local_beta)
        y = slices.normalized(flat, of_rows, scale, shift)
        columns = (*rows, *(1,) * len(normalized_shape))
        results["y"] = y.to(x.dtype).reshape(local_x.shape)
        results |= {name: of_rows[at].reshape(columns) for at, name in enumerate(("mean", "rstd")) if name in outputs}
    return _all_placed(x, results, mesh, FORWARD_RESULTS, placements, outputs)


def _check_shards(shape: Any, **parameters: Any) -> None:
    """Refuse a parameter's shard of another shape than x's: torch cuts a replicated one evenly, whatever x's shards are."""
    for name, local in parameters.items():
        if local is not None and tuple(local.shape) != tuple(shape):
            raise ShapeError(
                f"{name}: expected a shard of shape {tuple(shape)}, as x has in this process, got {tuple(local.shape)}; "
                f"shard {name} as x is"
            )


def _backward(
    dy: Any, x: Any, normalized_shape: Any, mean: Any, rstd: Any, gamma: Any, output_mask: Any, dtotal: Any = None,
    centred: bool = True, offset: float = 0.0,
) -> tuple[Any, ...]:  # fmt: skip
    """dx, dgamma and dbeta as DTensors; tensors without elements for those that are not wanted."""
    mean = mean if centred else None
    mesh = _mesh({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma, "dtotal": dtotal})
    switches = dtotal, None, centred, offset
    call = operators.norm_backward_call(dy, x, normalized_shape, mean, rstd, gamma, output_mask, *switches)
    outputs = _outputs(call)
    split = x.dim() - len(normalized_shape)
    columns = (*x.shape[:split], *(1,) * len(normalized_shape))  # mean and rstd may come in any shape
    layout = Layout.of(x.placements, x.dim(), split)
    placements = {"dx": layout.full, "dgamma": layout.sums, "dbeta": layout.sums}
    if mesh.get_coordinate() is None:
        return _nothing(x, mesh, BACKWARD_RESULTS, placements, outputs)
    local_dy, local_x, local_dtotal = (_local(tensor, layout.full) for tensor in (dy, x, dtotal))
    local_mean, local_rstd = (
        None if tensor is None else _local(tensor.reshape(columns), layout.statistics) for tensor in (mean, rstd)
    )
    local_gamma = _local(gamma, layout.parameters)
    shape, mask = local_x.shape[split:], list(output_mask)
    if not layout.hidden or x.numel() == 0:
        arguments = local_dy, local_x, shape, local_mean, local_rstd, local_gamma, mask, local_dtotal, centred, offset
        results = dict(zip(BACKWARD_RESULTS, operators.norm_backward(*arguments), strict=True))
        return _all_placed(x, results, mesh, BACKWARD_RESULTS, placements, outputs)
    _check_shards(shape, gamma=local_gamma)
    M, n = math.prod(local_x.shape[:split]), math.prod(shape)
    wide = accumulator_of(x, gamma)
    wide_mean, wide_rstd = (None if t is None else t.to(wide).reshape(M) for t in (local_mean, local_rstd))
    flat_dy, flat_x, flat_dtotal = (
        None if tensor is None else tensor.reshape(M, n).to(_rows_dtype(x, gamma))
        for tensor in (local_dy, local_x, local_dtotal)
    )
    scale, _ = _flat(wide, flat_x, call[-1], local_gamma)
    lost, results = None, {}
    if mask[0] or (mask[1] and centred and slices.shows_rests(wide_mean, wide_rstd)):
        cut = Cut.of(x, local_x, split, layout.hidden)
        means, lost = slices.row_means(flat_dy, flat_x, wide_mean, wide_rstd, scale, cut)
    of_rows = wide_mean, wide_rstd, lost
    if mask[0]:
        dx = slices.input_gradient(flat_dy, flat_x, of_rows, scale, flat_dtotal, means)
        results["dx"] = dx.to(x.dtype).reshape(local_x.shape)
    results["dgamma"], results["dbeta"] = _column_sums(local_dy.to(x.dtype), local_x, shape, of_rows, local_gamma, mask)
    return _all_placed(x, results, mesh, BACKWARD_RESULTS, placements, outputs)


def _column_sums(
    dy: Any, x: Any, shape: Any, of_rows: slices.Statistics, gamma: Any, mask: list[bool]
) -> tuple[Any, Any]:
    """dgamma and dbeta of the columns that are here, as far as they are wanted."""
    mean, rstd, lost = of_rows
    wanted = [False, *mask[1:]]
    if mean is None or x.device.type != "cpu" or not any(wanted):
        arguments = dy, x, shape, mean, rstd, gamma, wanted, None, mean is not None, 0.0
        return operators.norm_backward(*arguments)[1:]  # type: ignore[no-any-return]
    lost = torch.full_like(rstd, -0.0) if lost is None else lost
    _, dgamma, dbeta = calls.run(
        SLICE_BACKWARD, (dy, x, mean, rstd, lost, gamma), tuple(shape), tuple(wanted), LAYER_NORM
    )
    return dgamma, dbeta


def _outputs(call: Any) -> dict[str, Any]:
    """Shape and dtype of each result that there is."""
    operator, arrays, shape, mask, normalization = call
    problem, _ = describe(operator, arrays, shape, mask, None, normalization)
    results = zip(operator.outputs, problem.outputs(), strict=True)
    return {name: output for name, output in results if output is not None}


def _all_placed(
    x: Any, results: dict[str, Any], mesh: Any, names: tuple[str, ...], placements: dict[str, Any],
    outputs: dict[str, Any],
) -> tuple[Any, ...]:  # fmt: skip
    """The local results as DTensors, in the order of an operator of torch's; a plain empty tensor for what there is not."""
    nothing = torch.empty(0, dtype=x.dtype, device=x.device)
    return tuple(
        _placed(results[name], mesh, placements[name], outputs[name]) if name in outputs else nothing for name in names
    )


def _mesh(tensors: dict[str, Any]) -> Any:
    """The mesh that all tensors lie on."""
    mesh = next(tensor.device_mesh for tensor in tensors.values() if isinstance(tensor, DTensor))
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, DTensor):
            raise DtypeError(
                f"{name}: expected a DTensor beside others on {mesh}, got a {type(tensor).__name__} "
                "(distribute_tensor, or distribute_module for a module's parameters, makes it one)"
            )
        if tensor is not None and tensor.device_mesh != mesh:
            raise DtypeError(f"{name}: expected a DTensor on {mesh}, as others are, got one on {tensor.device_mesh}")
    return mesh


def _local(tensor: Any, placements: tuple[Any, ...]) -> Any:
    """The local shard of a tensor that is first brought to these placements."""
    if tensor is None:
        return None
    if tensor.placements != placements:
        with peers(f"redistribution from {tensor.placements} to {placements}", tensor.device_mesh.size()):
            tensor = tensor.redistribute(tensor.device_mesh, placements)
    local = tensor.to_local()
    return local.wait() if hasattr(local, "wait") else local  # one that is still on its way has no address yet


def _rows_dtype(x: Any, *parameters: Any) -> Any:
    """In which slices of rows come to their kernels: x's, unless a parameter has the call computed in float64."""
    wide = accumulator_of(x, *parameters)
    return x.dtype if wide is accumulator_of(x) else wide


def _flat(dtype: Any, x: Any, normalization: Normalization, gamma: Any, beta: Any = None) -> tuple[Any, Any]:
    """offset + gamma, and beta, as a slice's kernels take them."""
    if gamma is None and normalization.offset:
        gamma = torch.ones(x.shape[1], dtype=dtype, device=x.device)
    gamma, beta = (None if parameter is None else parameter.to(dtype).reshape(-1) for parameter in (gamma, beta))
    return None if gamma is None else normalization.scale(gamma), beta


def _nothing(
    x: Any, mesh: Any, names: tuple[str, ...], placements: dict[str, Any], outputs: dict[str, Any]
) -> tuple[Any, ...]:
    """The results on a process that is not on the mesh: DTensors without elements here."""
    results = {
        name: torch.empty(0, dtype=getattr(torch, output.dtype), device=x.device) for name, output in outputs.items()
    }
    return _all_placed(x, results, mesh, names, placements, outputs)


def _placed(local: Any, mesh: Any, placements: tuple[Any, ...], output: Any) -> Any:
    """A DTensor of a local result; its shape is given, since uneven shards do not tell it."""
    strides = torch.empty(output.shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(output.shape), stride=strides)


def _register(name: str, rule: Any) -> None:
    def dispatch(cls: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        with torch.no_grad():  # autograd is above: what is done here is one step to it
            return rule(*args, **(kwargs or {}))[: len(func._schema.returns)]

    torch.library.register_torch_dispatch(name, DTensor, dispatch, lib=operators.library)


for name, rule in (("layer_norm", _forward), ("layer_norm_backward", _backward)):
    _register(f"lngrad::{name}", rule)
    _register(f"lngrad::{name.removeprefix('layer_')}", rule)
