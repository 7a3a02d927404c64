"""What lngrad's two operators do with DTensors: bring arguments to one layout, work on local shards, say where results lie.

Registered by torch.library.register_torch_dispatch, which a DTensor meets before its own rules; see decision 20.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from lngrad.core.problem import Problem
from lngrad.errors import DtypeError
from lngrad.torch import operators
from lngrad.torch.calls import accumulator_of
from lngrad.torch.sharded import slices


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


def _forward(x: Any, normalized_shape: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, Any, Any]:
    mesh = _mesh({"x": x, "gamma": gamma, "beta": beta})
    outputs = Problem.forward(x, gamma, beta, tuple(normalized_shape))[0].outputs()
    split = x.dim() - len(normalized_shape)
    layout = Layout.of(x.placements, x.dim(), split)
    if mesh.get_coordinate() is None:
        return _nothing(x, mesh, (layout.full, layout.statistics, layout.statistics), outputs)
    local_x = _local(x, layout.full)
    local_gamma, local_beta = _local(gamma, layout.parameters), _local(beta, layout.parameters)
    if not layout.hidden or x.numel() == 0:
        results = operators.layer_norm(local_x, local_x.shape[split:], local_gamma, local_beta, eps)
    else:
        rows, n = local_x.shape[:split], math.prod(local_x.shape[split:])
        flat = local_x.reshape(math.prod(rows), n).to(_rows_dtype(x, gamma, beta))
        N = math.prod(normalized_shape)
        mean, rstd = slices.combined_statistics(slices.moments(flat), n, N, eps, _groups(mesh, layout))
        y = slices.normalized(flat, mean, rstd, *_flat(mean.dtype, local_gamma, local_beta))
        ones = (1,) * len(normalized_shape)
        results = y.to(x.dtype).reshape(local_x.shape), mean.reshape(*rows, *ones), rstd.reshape(*rows, *ones)
    placements = layout.full, layout.statistics, layout.statistics
    return tuple(
        _placed(result, mesh, placement, output)
        for result, placement, output in zip(results, placements, outputs, strict=True)
    )


def _backward(
    dy: Any, x: Any, normalized_shape: Any, mean: Any, rstd: Any, gamma: Any, output_mask: Any
) -> tuple[Any, Any, Any]:
    mesh = _mesh({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma})
    outputs = Problem.backward(dy, x, mean, rstd, gamma, tuple(normalized_shape), tuple(output_mask))[0].outputs()
    split = x.dim() - len(normalized_shape)
    columns = (*x.shape[:split], *(1,) * len(normalized_shape))  # mean and rstd may come in any shape
    layout = Layout.of(x.placements, x.dim(), split)
    if mesh.get_coordinate() is None:
        return _nothing(x, mesh, (layout.full, layout.sums, layout.sums), outputs)
    local_dy, local_x = _local(dy, layout.full), _local(x, layout.full)
    local_mean, local_rstd = (_local(tensor.reshape(columns), layout.statistics) for tensor in (mean, rstd))
    local_gamma = _local(gamma, layout.parameters)
    mask = list(output_mask)
    split_dx = mask[0] and layout.hidden and x.numel() > 0
    if split_dx:
        mask[0] = False
    results = list(
        operators.layer_norm_backward(
            local_dy, local_x, local_x.shape[split:], local_mean, local_rstd, local_gamma, mask
        )
    )
    if split_dx:
        accumulator, rows_dtype = accumulator_of(x, gamma), _rows_dtype(x, gamma)
        M, n = math.prod(local_x.shape[:split]), math.prod(local_x.shape[split:])
        (wide_gamma,) = _flat(accumulator, local_gamma)
        wide_mean, wide_rstd = (tensor.to(accumulator).reshape(M) for tensor in (local_mean, local_rstd))
        flat_dy, flat_x = (tensor.reshape(M, n).to(rows_dtype) for tensor in (local_dy, local_x))
        flat = flat_dy, flat_x, wide_mean, wide_rstd, wide_gamma
        means = slices.combined_sums(slices.row_sums(*flat), _groups(mesh, layout)) / math.prod(normalized_shape)
        results[0] = slices.input_gradient(*flat, means).to(x.dtype).reshape(local_x.shape)
    placements = layout.full, layout.sums, layout.sums
    return tuple(
        result if output is None else _placed(result, mesh, placement, output)
        for result, placement, output in zip(results, placements, outputs, strict=True)
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
        with slices.peers(f"redistribution from {tensor.placements} to {placements}", tensor.device_mesh.size()):
            tensor = tensor.redistribute(tensor.device_mesh, placements)
    local = tensor.to_local()
    return local.wait() if hasattr(local, "wait") else local  # one that is still on its way has no address yet


def _rows_dtype(x: Any, *parameters: Any) -> Any:
    """In which slices of rows come to their kernels: x's, unless a parameter has the call computed in float64."""
    wide = accumulator_of(x, *parameters)
    return x.dtype if wide is accumulator_of(x) else wide


def _flat(dtype: Any, *parameters: Any) -> tuple[Any, ...]:
    return tuple(None if parameter is None else parameter.to(dtype).reshape(-1) for parameter in parameters)


def _groups(mesh: Any, layout: Layout) -> list[Any]:
    return [mesh.get_group(axis) for axis in layout.hidden]


def _nothing(x: Any, mesh: Any, placements: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """The results on a process that is not on the mesh: DTensors without elements here."""
    results = []
    for placement, output in zip(placements, outputs, strict=True):
        dtype = x.dtype if output is None else getattr(torch, output.dtype)
        empty = torch.empty(0, dtype=dtype, device=x.device)
        results.append(empty if output is None else _placed(empty, mesh, placement, output))
    return tuple(results)


def _placed(local: Any, mesh: Any, placements: tuple[Any, ...], output: Any) -> Any:
    """A DTensor of a local result; its shape is given, since uneven shards do not tell it."""
    strides = torch.empty(output.shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(output.shape), stride=strides)


def _register(name: str, rule: Any) -> None:
    def dispatch(cls: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        with torch.no_grad():  # autograd is above: what is done here is one step to it
            return rule(*args, **(kwargs or {}))

    torch.library.register_torch_dispatch(name, DTensor, dispatch, lib=operators.library)


_register("lngrad::layer_norm", _forward)
_register("lngrad::layer_norm_backward", _backward)
