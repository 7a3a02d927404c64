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


def on_shards(function: Callable[..., Any], normalized: int, x: Any, residual: Any, *parameters: Any) -> Any:
    """A function of x, a residual and parameters, on the shards of x where its type tells how it is sharded.

    Args:
        function: (x, residual, *parameters) -> arrays of x's shape; row by row.
        normalized: How many of x's last dimensions make a row.
        x, residual, parameters: Arrays; all but x may be None.

    Raises:
        ShapeError: A row or a parameter is sharded, or the residual in another way than x.
    """
    refuse_sharded("gamma, beta", *parameters)
    names, spec = _explicit_axes(x), jax.typeof(x).sharding.spec
    if residual is not None and (names or _explicit_axes(residual)) and jax.typeof(residual).sharding.spec != spec:
        got = jax.typeof(residual).sharding.spec
        raise ShapeError(f"residual: expected to be sharded as x, {spec}, got {got}; see jax.reshard")
    if not names:
        return function(*vary_together(x, residual, *parameters))
    if any(spec[len(spec) - normalized :]):
        raise ShapeError(f"x: expected its last {normalized} dimensions on one device, got {spec}; see jax.reshard")
    return jax.shard_map(
        lambda *shards: function(*vary_together(*shards)),
        mesh=jax.typeof(x).sharding.mesh,
        in_specs=(
            spec,
            None if residual is None else spec,
            *(None if parameter is None else PartitionSpec() for parameter in parameters),
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


def _explicit_axes(array: Any) -> set[str]:
    """All explicit axes of the mesh that an array is sharded over, none if its type does not tell or it is in one piece."""
    if array is None:
        return set()
    sharding = jax.typeof(array).sharding
    if not any(sharding.spec):
        return set()
    mesh = sharding.mesh
    return {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}
