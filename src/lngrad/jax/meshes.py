"""Arrays spread over the devices of a mesh: every device works on the rows it has.

jax knows two ways to say so that our operations take part in. Inside jax.shard_map an array varies over axes of the mesh or
is the same for all. With explicit axes an array's type tells how it is sharded, and we go into jax.shard_map ourselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lngrad.errors import ShapeError


def vary_together(*arrays: Any) -> tuple[Any, ...]:
    """The arrays, or None, all varying over the same axes.

    What is the same for all shards is cast to vary here, outside of our derivatives: the gradient of that cast is the sum
    over shards.
    """
    varying = [frozenset() if array is None else jax.typeof(array).manual_axis_type.varying for array in arrays]
    axes = frozenset[str]().union(*varying)
    return tuple(
        array if array is None or axes == own else jax.lax.pcast(array, tuple(sorted(axes - own)), to="varying")
        for array, own in zip(arrays, varying, strict=True)
    )


def result(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A result of a foreign call: it varies over the same axes as one of the call's arguments."""
    kind = jax.typeof(like)
    if kind.sharding.mesh.empty:
        return jax.ShapeDtypeStruct(shape, dtype)
    sharding = NamedSharding(kind.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=kind.manual_axis_type)


def on_shards(function: Callable[..., Any], normalized: int, axis: Any, x: Any, residual: Any, *parameters: Any) -> Any:
    """A function of x, a residual and parameters, on the shards of x where its type tells how it is sharded.

    Args:
        function: (x, residual, *parameters, axis) -> arrays of x's shape; row by row. axis: That which rows are cut along.
        normalized: How many of x's last dimensions make a row.
        axis: That which rows are cut along inside the caller's jax.shard_map, or None.
        x, residual, parameters: Arrays; all but x may be None.

    Raises:
        ShapeError: A row is sharded along another than its first dimension, a parameter otherwise than a row, or the residual
            than x.
    """
    names, spec = _explicit_axes(x), jax.typeof(x).sharding.spec
    row = spec[len(spec) - normalized :]
    for parameter in parameters:
        if parameter is not None and (names or _explicit_axes(parameter)) and _spec(parameter) != tuple(row):
            expected, got = PartitionSpec(*row), jax.typeof(parameter).sharding.spec
            raise ShapeError(f"gamma, beta: expected to be sharded as x's rows, {expected}, got {got}; see jax.reshard")
    if residual is not None and (names or _explicit_axes(residual)) and jax.typeof(residual).sharding.spec != spec:
        got = jax.typeof(residual).sharding.spec
        raise ShapeError(f"residual: expected to be sharded as x, {spec}, got {got}; see jax.reshard")
    if not names:
        return function(*vary_together(x, residual, *parameters), axis)
    if axis is not None:
        raise ShapeError(f"axis_name: expected None where types tell how arrays are sharded, got {axis!r}")
    if any(row[1:]):
        raise ShapeError(f"x: expected its last {normalized - 1} dimensions on one device, got {spec}; see jax.reshard")
    return jax.shard_map(
        lambda *shards: function(*vary_together(*shards), row[0]),
        mesh=jax.typeof(x).sharding.mesh,
        in_specs=(
            spec,
            None if residual is None else spec,
            *(None if parameter is None else PartitionSpec(*row) for parameter in parameters),
        ),
        out_specs=spec,
        axis_names=names,
    )(x, residual, *parameters)


def refuse_sharded(names: str, *arrays: Any) -> None:
    """Raise ShapeError if the type of an array says that it is sharded over explicit axes."""
    for array in arrays:
        if _explicit_axes(array):
            got = jax.typeof(array).sharding.spec
            raise ShapeError(f"{names}: expected the same on every device, got {got}; see jax.reshard")


def _spec(array: Any) -> tuple[Any, ...]:
    return tuple(jax.typeof(array).sharding.spec)


def check_axis(axis: Any) -> None:
    """Refuse an axis that is not one of the jax.shard_map that is being traced."""
    try:
        if axis is not None:
            jax.lax.axis_size(axis)
    except (NameError, TypeError) as reason:
        raise ShapeError(f"axis_name: expected an axis of jax.shard_map around this call, got {axis!r}") from reason


def _explicit_axes(array: Any) -> set[str]:
    """All explicit axes of the mesh that an array is sharded over, none if its type does not tell or it is in one piece."""
    if array is None:
        return set()
    sharding = jax.typeof(array).sharding
    if not any(sharding.spec):
        return set()
    mesh = sharding.mesh
    return {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}
