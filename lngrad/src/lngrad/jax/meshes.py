"""Arrays spread over the devices of a mesh: every device works on what it has of rows, or of a row's columns.

jax knows two ways to say so that our operations take part in. Inside jax.shard_map an array varies over axes of the mesh or
is the same for all. With explicit axes an array's type tells how it is sharded, and we go into jax.shard_map ourselves.

Of rows that are cut along an axis, a device sends the lanes of the whole subtrees of segments that it has; all add up the rest
of the tree: the bits of rows in one piece. XLA moves numbers and our handler computes them, because XLA may fuse products and
sums of jax.numpy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lngrad.core.arrays import ArraySpec, array_at
from lngrad.core.problem import RMS_BACKWARD, SLICE_BACKWARD, Normalization
from lngrad.core.threads import get_num_threads
from lngrad.cpu.cut_rows import (
    centred_statistics,
    lost_of,
    means_of_rows,
    rstd_of,
    subtrees_of_slices,
    sums_of_rows,
)
from lngrad.cpu.jobs import LANES, SEGMENT
from lngrad.cpu.plan import run_slices
from lngrad.errors import ShapeError
from lngrad.jax import calls
from lngrad.support.addresses import address_of
from lngrad.support.dtypes import ACCUMULATORS, bytes_of, contiguous_strides, numpy_dtype

TARGET = "lngrad_slices"  # in XLA's table of CPU functions

Buffers: TypeAlias = "dict[str, calls.Buffer]"

# --- Which device has what ----------------------------------------------------------------------------------------


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
        if parameter is None or not (names or _explicit_axes(parameter)):
            continue
        expected, got = PartitionSpec(*row), jax.typeof(parameter).sharding.spec
        if tuple(got) != tuple(row):
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


# --- In the handler -------------------------------------------------------------------------------------------------


def _array(buffer: calls.Buffer) -> Any:
    address, dtype, shape = buffer
    return array_at(address, ArraySpec(shape, dtype, contiguous_strides(shape, bytes_of(dtype)), "cpu", "numpy"))


def _trees(parts: int, n: int) -> list[list[tuple[int, int, int]]]:
    """The whole subtrees that each of `parts` devices has, of n columns each."""
    trees = subtrees_of_slices(parts * n, range(0, parts * n, n), [n] * parts)
    assert trees is not None  # no segment is cut: see keeps_bits
    return trees


class _Slice:
    """One step's buffers: x (M, n) and what goes with it, of the columns of one of `parts` devices."""

    def __init__(self, buffers: Buffers, parts: int, eps: float, offset: float, *, centred: bool):
        self.buffers, self.eps, self.centred = buffers, eps, centred
        _, self.dtype, (self.M, self.n) = buffers["x"]
        self.N, self.wide = parts * self.n, numpy_dtype(ACCUMULATORS[self.dtype])
        self.trees = _trees(parts, self.n)
        self.scale = None
        if "gamma" in buffers:
            self.scale = _array(buffers["gamma"]) + self.wide.type(offset) if offset else _array(buffers["gamma"])
        elif offset:
            self.scale = np.full(self.n, 1 + offset, self.wide)

    def run(self, task: str, start: int = 0, count: int | None = None, **arrays: Any) -> None:
        """A compiled task on some columns; arrays are NumPy's, in the accumulator's dtype."""
        itemsize, count = bytes_of(self.dtype), self.n if count is None else count
        rows: dict[str, Any] = {
            name: (self.buffers[name][0] + start * itemsize, self.n * itemsize)
            for name in ("x", "dy", "dtotal")
            if name in self.buffers
        }
        if self.scale is not None:
            arrays["gamma"] = self.scale[start : start + count]
        addresses: dict[str, Any] = {
            name: array if isinstance(array, int) else address_of(array) for name, array in arrays.items()
        }
        task = task if self.centred else f"rms_{task}"
        run_slices(task, self.dtype, self.M, count, threads=get_num_threads(), **rows, **addresses)

    def lanes(self, task: str, sums: int, **arrays: Any) -> None:
        """Lanes of the subtrees that are here, the last of the task's sums of them, to `lanes` (subtrees, M, sums, LANES)."""
        place, sent = int(_array(self.buffers["place"])[0]), _array(self.buffers["lanes"])
        sent[len(self.trees[place]) :] = 0
        for part, (_, start, count) in zip(sent, self.trees[place], strict=False):
            own = np.empty((self.M, sums, LANES), self.wide)
            self.run(task, start - place * self.n, count, row_numbers=own, **arrays)
            part[...] = own if part.shape == own.shape else own[:, 1:2]

    def whole(self, name: str) -> Any:
        """(sums, M) over whole rows, of lanes that were gathered from all devices."""
        gathered = _array(self.buffers[name])
        parts = [
            (part, level)
            for of_device, trees in zip(gathered, self.trees, strict=True)
            for part, (level, _, _) in zip(of_device, trees, strict=False)
        ]
        return sums_of_rows(parts, None)

    def row(self, name: str) -> Any:
        """A statistic (M,), None where there is none."""
        return _array(self.buffers[name]).reshape(-1) if name in self.buffers else None

    # The steps.

    def first_sums(self) -> None:
        """Of x, or of its squares where rows are not centred."""
        self.lanes("slice_sums", 1)

    def centre(self) -> Any:
        return self.whole("sums")[0] / self.wide.type(self.N)

    def centred_sums(self) -> None:
        self.lanes("slice_centred_sums", 2, mean=self.centre())

    def forward(self) -> None:
        if self.centred:
            mean, rest, rstd = centred_statistics(self.centre(), self.whole("squares"), self.N, self.eps)
            statistics = {"mean": mean, "rstd": rstd, "lost": lost_of(mean, rest, rstd)}
            _array(self.buffers["mean"])[:, 0] = mean
        else:
            rstd = rstd_of(self.centre(), self.eps)
            statistics = {"rstd": rstd}
        _array(self.buffers["rstd"])[:, 0] = rstd
        if "beta" in self.buffers:
            statistics["beta"] = _array(self.buffers["beta"])
        self.run("slice_forward", result=self.buffers["y"][0], **statistics)

    def row_sums(self) -> None:
        statistics = {name: self.row(name) for name in ("mean", "rstd") if name in self.buffers}
        self.lanes("slice_row_sums", 3, **statistics)

    def backward(self) -> None:
        mean, rstd, buffers = self.row("mean"), self.row("rstd"), self.buffers.copy()
        means, lost = means_of_rows(self.whole("sums"), mean, rstd, self.wide.type(self.N))
        statistics = {"rstd": rstd} if mean is None else {"mean": mean, "rstd": rstd, "lost": lost}
        if "dx" in buffers:
            self.run("slice_dx", result=buffers["dx"][0], row_numbers=np.stack(means), **statistics)
        if "dgamma" in buffers or "dbeta" in buffers:
            operator = SLICE_BACKWARD if self.centred else RMS_BACKWARD
            mask = tuple(name != "dx" and name in buffers for name in operator.outputs)
            if lost is not None:
                buffers["lost"] = (address_of(lost), lost.dtype.name, (self.M, 1))
            attribute = calls.attribute(operator, 1, 1, ["gamma" in buffers], mask)
            inputs = [buffers[name] for name in operator.inputs if name in buffers]
            results = [buffers[name] for name in ("dgamma", "dbeta") if name in buffers]
            calls.serve(tuple(attribute.tolist()), inputs, results)


class Step(NamedTuple):
    """What XLA's call of a step says beside its buffers: an array of int64, in which names are their places
    in the tables. A step's is negative, since operators have the other numbers.

    Attributes:
        name: A method of _Slice.
        parts: The number of devices that a row is cut among.
        eps, offset, centred: The normalization's.
        buffers: The names of the call's arguments and results.
    """

    name: str
    parts: int
    eps: float
    offset: float
    centred: bool
    buffers: tuple[str, ...]

    def packed(self) -> Any:
        numbers, places = calls.bits_of((self.eps, self.offset)), map(_BUFFERS.index, self.buffers)
        return np.array([-1 - _STEPS.index(self.name), self.parts, *numbers, self.centred, *places], np.int64)

    @staticmethod
    def unpacked(words: tuple[int, ...]) -> Step:
        step, parts, *numbers, centred = words[:5]
        eps, offset = calls.numbers_of(numbers)
        return Step(_STEPS[-1 - step], parts, eps, offset, bool(centred), tuple(_BUFFERS[place] for place in words[5:]))


_STEPS = ("first_sums", "centred_sums", "forward", "row_sums", "backward")
_BUFFERS = ("place", "dy", "x", "mean", "rstd", "gamma", "beta", "dtotal", "sums", "squares",
            "lanes", "y", "dx", "dgamma", "dbeta")  # fmt: skip


def _serve(attribute: tuple[int, ...], inputs: list[calls.Buffer], results: list[calls.Buffer]) -> None:
    step = Step.unpacked(attribute)
    buffers = dict(zip(step.buffers, inputs + results, strict=True))
    with np.errstate(all="ignore"):
        getattr(_Slice(buffers, step.parts, step.eps, step.offset, centred=step.centred), step.name)()


calls.of_slices.append(_serve)


# --- For XLA --------------------------------------------------------------------------------------------------------


def keeps_bits(n: int) -> bool:
    """Whether devices with n columns each cut rows at borders of segments."""
    return n > 0 and n % SEGMENT == 0


class SlicedCall:
    """The steps of a call inside jax.shard_map, each an XLA custom call, on rows (M, n) that are cut along `axis`."""

    def __init__(self, axis: Any, x: Any, normalization: Normalization, eps: float = 0.0):
        self.axis, self.x, self.parts = axis, x, jax.lax.axis_size(axis)
        self.normalization, self.eps = normalization, eps
        self.wide = numpy_dtype(ACCUMULATORS[x.dtype.name])
        place = jax.lax.axis_index(axis).astype(jnp.float32).reshape(1)
        self.place = vary_together(place, x)[0]
        self.most = max(map(len, _trees(self.parts, x.shape[1])))

    def call(self, step: str, specs: dict[str, Any], **arrays: Any) -> dict[str, Any]:
        """A step's results by name, of the shapes and dtypes that specs has."""
        arrays = {name: array for name, array in arrays.items() if array is not None}
        offset, centred = self.normalization.offset, self.normalization.centred
        attribute = Step(step, self.parts, self.eps, offset, centred, (*arrays, *specs)).packed()
        types = [result(self.x, *spec) for spec in specs.values()]
        function = jax.ffi.ffi_call(TARGET, types, vmap_method="sequential")
        return dict(zip(specs, function(*arrays.values(), call=attribute), strict=True))

    def gathered(self, step: str, count: int, **arrays: Any) -> Any:
        """Lanes of all devices, (parts, subtrees, M, sums, LANES). One collective."""
        specs = {"lanes": ((self.most, self.x.shape[0], count, LANES), self.wide)}
        lanes = self.call(step, specs, place=self.place, x=self.x, **arrays)["lanes"]
        return jax.lax.all_gather(lanes, self.axis)

    def forward(self, gamma: Any, beta: Any) -> dict[str, Any]:
        """y, mean (where it is centred) and rstd, the latter (M, 1)."""
        sums, squares = self.gathered("first_sums", 1), None
        statistics = ["rstd"]
        if self.normalization.centred:
            squares = self.gathered("centred_sums", 2, sums=sums)
            statistics = ["mean", "rstd"]
        specs: dict[str, Any] = {"y": (self.x.shape, self.x.dtype)}
        specs |= dict.fromkeys(statistics, ((self.x.shape[0], 1), self.wide))
        return self.call("forward", specs, x=self.x, gamma=gamma, beta=beta, sums=sums, squares=squares)

    def backward(self, specs: dict[str, Any], gamma: Any, dtotal: Any, **arrays: Any) -> dict[str, Any]:
        """Of dx, dgamma and dbeta those that are asked for, from dy, mean and rstd."""
        sums = self.gathered("row_sums", 3 if self.normalization.centred else 1, gamma=gamma, **arrays)
        return self.call("backward", specs, x=self.x, gamma=gamma, dtotal=dtotal, sums=sums, **arrays)
