"""Rows that are cut over 2, 4 and 8 host devices have the bits of one device. A program of its own: XLA_FLAGS come first."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lngrad.jax as lngrad_jax
from lngrad.errors import ShapeError
from lngrad.testing import Case, Inputs, check_same_bits, make_inputs
from norms import NORMS


def norm_of(inputs: Inputs, **options: Any) -> Any:
    """(x, gamma, beta, residual) -> y and total of one of the doors."""
    switches = inputs.normalization
    name = "layer_norm" if switches.centred else "rms_norm"
    options |= {"eps": 1e-5, "offset": switches.offset}

    def norm(x: Any, gamma: Any, beta: Any, residual: Any) -> tuple[Any, ...]:
        parameters = (gamma, beta) if switches.centred else (gamma,)
        if residual is None:
            return (getattr(lngrad_jax, name)(x, *parameters, **options),)
        return getattr(lngrad_jax, f"add_{name}")(x, residual, *parameters, alpha=switches.alpha, **options)

    return norm


def results(norm: Any, arrays: Any, outer: Any) -> Any:
    """What a norm comes to, and all gradients, where its outputs have the gradients `outer`."""
    outputs, pull = jax.vjp(norm, *arrays)
    return outputs, pull(outer[: len(outputs)])


def specs(arrays: Any) -> tuple[Any, ...]:
    return tuple(None if array is None else P(*[None] * (array.ndim - 1), "hidden") for array in arrays)


def mesh_of(parts: int, kind: Any = AxisType.Auto) -> Mesh:
    return jax.make_mesh((parts,), ("hidden",), axis_types=(kind,), devices=jax.devices()[:parts])


def same_bits(norm_name: str, dtype: str, parts: int, n: int, check_vma: bool, **case: Any) -> None:
    inputs = make_inputs(Case((5,), (parts * n,), **case), dtype, **NORMS[norm_name])
    beta = inputs.beta if inputs.normalization.centred else None
    arrays, outer = (inputs.x, inputs.gamma, beta, inputs.residual), (inputs.dy, inputs.dtotal)
    outer = outer[: 1 if inputs.residual is None else 2]
    expected = jax.jit(partial(results, norm_of(inputs)))(arrays, outer)
    shard = partial(jax.shard_map, mesh=mesh_of(parts), check_vma=check_vma)
    inner = shard(norm_of(inputs, axis_name="hidden"), in_specs=specs(arrays), out_specs=specs(outer))
    check_same_bits(
        tuple(map(np.asarray, jax.tree.leaves(jax.jit(partial(results, inner))(arrays, outer)))),
        tuple(map(np.asarray, jax.tree.leaves(expected))),
    )


def backwards(parts: int) -> None:
    """The backward's own function, vmap, an eager call, and explicit axes."""
    inputs = make_inputs(Case((3,), (parts * 512,), offset=1e4, spread=1.0), "float32")
    arrays = (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    expected = jax.jit(lngrad_jax.layer_norm_backward)(*arrays)
    columns, rows = P(None, "hidden"), P()
    sharded = jax.shard_map(
        partial(lngrad_jax.layer_norm_backward, axis_name="hidden"),
        mesh=mesh_of(parts),
        in_specs=(columns, columns, rows, rows, P("hidden")),
        out_specs=type(expected)(columns, P("hidden"), P("hidden")),
    )
    check_same_bits(tuple(map(np.asarray, sharded(*map(jnp.asarray, arrays)))), tuple(map(np.asarray, expected)))
    of_rows = jax.vmap(lambda x: lngrad_jax.layer_norm(x, inputs.gamma))(inputs.x)
    inner = jax.shard_map(
        lambda x, gamma: jax.vmap(lambda x: lngrad_jax.layer_norm(x, gamma, axis_name="hidden"))(x),
        mesh=mesh_of(parts), in_specs=(columns, P("hidden")), out_specs=columns,
    )  # fmt: skip
    check_same_bits(np.asarray(inner(inputs.x, inputs.gamma)), np.asarray(of_rows))
    mesh = mesh_of(parts, AxisType.Explicit)
    x, dy = (jax.device_put(array, NamedSharding(mesh, columns)) for array in (inputs.x, inputs.dy))
    gamma = jax.device_put(inputs.gamma, NamedSharding(mesh, P("hidden")))
    with jax.set_mesh(mesh):
        got = jax.jit(partial(results, lngrad_jax.layer_norm))((x, gamma), dy)
        assert got[0].sharding.spec == columns
        try:
            lngrad_jax.layer_norm(x, inputs.gamma)
        except ShapeError as error:
            print(error)
    expected = jax.jit(partial(results, lngrad_jax.layer_norm))((inputs.x, inputs.gamma), inputs.dy)
    check_same_bits(tuple(map(np.asarray, jax.tree.leaves(got))), tuple(map(np.asarray, jax.tree.leaves(expected))))


def derivatives(n: int) -> None:
    """Of second order, forward mode, and segments that are cut: those of the formula of whole rows, by roundings."""
    inputs = make_inputs(Case((3,), (2 * n,)), "float32", **NORMS["layer_norm"])
    x, v = inputs.x, inputs.dy

    def second(norm: Any, check_vma: bool) -> Any:
        def of(x: Any, gamma: Any, v: Any) -> Any:
            gradient = jax.grad(lambda x: (norm(x, gamma) * v).sum())
            return jax.jvp(norm, (x, gamma), (v, gamma))[1], jax.grad(lambda x: (gradient(x) ** 2).sum())(x)

        return of

    expected = jax.jit(second(lngrad_jax.layer_norm, True))(x, inputs.gamma, v)
    for check_vma in (True, False)[: 2 if n < 512 else 1]:
        inner = jax.shard_map(
            partial(lngrad_jax.layer_norm, axis_name="hidden"),
            mesh=mesh_of(2), in_specs=(P(None, "hidden"), P("hidden")), out_specs=P(None, "hidden"), check_vma=check_vma,
        )  # fmt: skip
        got = jax.jit(second(inner, check_vma))(x, inputs.gamma, v)
        for array, other in zip(got, expected, strict=True):
            assert abs(array - other).max() <= 1e-4 * abs(other).max()


if __name__ == "__main__":
    norms = list(NORMS)
    for number, (parts, n) in enumerate(((2, 512), (4, 1536), (8, 1024))):
        same_bits("layer_norm", "float32", parts, n, check_vma=True, offset=1e4, spread=1.0)
        for at, norm in enumerate(norms):
            if at % 3 == number:
                dtype = ("bfloat16", "float64", "float32")[(at + number) % 3]
                same_bits(norm, dtype, parts, n, check_vma=bool(at % 2), gamma_dtype=("float32", dtype)[number % 2])
    backwards(4)
    for n in (512, 96):
        derivatives(n)
    try:
        lngrad_jax.layer_norm(np.ones((2, 8), np.float32), axis_name="hidden")
    except ShapeError as error:
        print(error)
    print("done")
