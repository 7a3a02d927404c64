"""Arrays whose memory is gone or too short: a clear error at every entry point, never a read of it."""

from __future__ import annotations

import numpy as np
import pytest

import lngrad
from lngrad.core.problem import Forward, Grads
from lngrad.errors import DtypeError, ShapeError

torch = pytest.importorskip("torch")


def freed(*shape):
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened(*shape):
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(tensor.nbytes - 4)
    return tensor


def shortened_behind_an_offset(*shape):
    tensor = torch.ones(2, *shape)[1]
    tensor.untyped_storage().resize_(2 * tensor.nbytes - 4)
    return tensor


def zero(*shape):
    return torch._efficientzerotensor(shape)


class Exported:
    """A producer of DLPack whose memory is gone."""

    def __init__(self, *shape):
        self.tensor = freed(*shape)

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Interface:
    """An array interface at address 0."""

    def __init__(self, *shape):
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": "<f4", "data": (0, False)}


WITHOUT = (freed, shortened, shortened_behind_an_offset, zero)
BEHIND = (
    "(expected .* bytes of (storage|memory), got|expected a tensor with memory, got one without|"
    "its __array_interface__ can't be read: data is NULL)"
)


@pytest.mark.parametrize("make", [*WITHOUT, Exported, Interface], ids=lambda make: make.__name__)
def test_the_core_refuses_memory_that_is_gone(make, backend):
    kind = np.ones if make in (Exported, Interface) else torch.ones
    good = {"dy": (4, 8), "x": (4, 8), "mean": (4, 1), "rstd": (4, 1), "gamma": (8,)}
    for name, shape in good.items():
        arrays = {other: kind(size).astype("f") if kind is np.ones else kind(size) for other, size in good.items()}
        arrays[name] = make(*shape)
        with pytest.raises(DtypeError if make is zero else ShapeError, match=f"^{name}: {BEHIND}"):
            lngrad.layer_norm_backward(**arrays, backend=backend)
    for name in ("x", "gamma", "beta"):
        shape = (4, 8) if name == "x" else (8,)
        arrays = {"x": kind((4, 8)).astype("f") if kind is np.ones else kind((4, 8)), name: make(*shape)}
        with pytest.raises(DtypeError if make is zero else ShapeError, match=f"^{name}: {BEHIND}"):
            lngrad.layer_norm(**arrays, backend=backend)


@pytest.mark.parametrize("make", WITHOUT[:3], ids=lambda make: make.__name__)
def test_a_call_that_comes_again_is_refused_by_the_same_rules(make):
    rng = np.random.default_rng(5)
    shapes = {"dy": (4, 8), "x": (4, 8), "mean": (4, 1), "rstd": (4, 1), "gamma": (8,)}
    arrays = {name: torch.from_numpy(rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    out = Grads(torch.empty(4, 8), torch.empty(8), torch.empty(8))
    first = [result.clone() for result in lngrad.layer_norm_backward(**arrays, out=out)]
    for name, shape in shapes.items():
        with pytest.raises(ShapeError, match=f"^{name}: {BEHIND}"):
            lngrad.layer_norm_backward(**{**arrays, name: make(*shape)}, out=out)
    for name, good in out._asdict().items():
        with pytest.raises(ShapeError, match=f"^out.{name}: {BEHIND}"):
            lngrad.layer_norm_backward(**arrays, out=out._replace(**{name: make(*good.shape)}))
    again = lngrad.layer_norm_backward(**arrays, out=out)
    assert all(torch.equal(result, other) for result, other in zip(again, first, strict=True))


@pytest.mark.parametrize("make", WITHOUT[:3], ids=lambda make: make.__name__)
def test_results_need_memory_too(make, backend):
    x = torch.ones(4, 8)
    with pytest.raises(ShapeError, match=f"^out.y: {BEHIND}"):
        lngrad.layer_norm(x, out=Forward(make(4, 8), None, None), backend=backend)
    statistics = torch.ones(4, 1)
    with pytest.raises(ShapeError, match=f"^out.dgamma: {BEHIND}"):
        lngrad.layer_norm_backward(x, x, statistics, statistics, out=Grads(None, make(8), None), backend=backend)


def test_empty_arrays_need_none():
    for shape in ((0, 8), (3, 0)):
        assert lngrad.layer_norm(freed(*shape)).y.shape == shape


def test_tensors_that_never_have_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(4, 8)
    with pytest.raises(DtypeError, match="x: expected a tensor with memory, got a fake one"):
        lngrad.layer_norm(fake)
    with pytest.raises(DtypeError, match=r"x: expected a tensor with memory.*lngrad.torch.layer_norm takes these"):
        torch.func.vmap(lambda x: lngrad.layer_norm(x).y)(torch.ones(3, 4, 8))
    with pytest.raises(DtypeError, match="x: expected a tensor with memory, got one without"):
        lngrad.layer_norm(torch.ones(4, 8, device="meta"))


def ops_and_aten():
    """The torch entry points as (forward, backward), each of (x, shape, weight, bias, eps) and so on."""
    from lngrad.torch import override

    ours, atens = torch.ops.lngrad, torch.ops.aten

    def through_aten(call):
        def overridden(*arguments):
            with override():
                return call(*arguments)

        return overridden

    return {
        "operators": (ours.layer_norm, lambda *a: ours.layer_norm_backward(*a[:6], a[7])),
        "override": (through_aten(atens.native_layer_norm), through_aten(atens.native_layer_norm_backward)),
    }


@pytest.mark.parametrize("rows", [4, 5000])
@pytest.mark.parametrize("door", ["operators", "override"])
@pytest.mark.parametrize("make", WITHOUT[:3], ids=lambda make: make.__name__)
def test_torch_apis_refuse_memory_that_is_gone(make, door, rows):
    """A second call too, whose facts are known by then."""
    forward, backward = ops_and_aten()[door]
    x, statistics, w = (rows, 8), (rows, 1), (8,)
    forward(torch.ones(x), [8], torch.ones(w), torch.ones(w), 1e-5)
    for broken in range(3):
        shapes = [x, w, w]
        arrays = [make(*shape) if k == broken else torch.ones(shape) for k, shape in enumerate(shapes)]
        for _ in range(2):
            with pytest.raises(ShapeError, match=BEHIND):
                forward(arrays[0], [8], arrays[1], arrays[2], 1e-5)
    shapes = [x, x, statistics, statistics, w]
    for broken in range(5):
        dy, x_, mean, rstd, gamma = (
            make(*shape) if k == broken else torch.ones(shape) for k, shape in enumerate(shapes)
        )
        for _ in range(2):
            with pytest.raises(ShapeError, match=BEHIND):
                backward(dy, x_, [8], mean, rstd, gamma, torch.ones(w), [True, True, True])


def test_jax_refuses_memory_that_is_gone():
    pytest.importorskip("jax")
    from lngrad.jax import layer_norm, layer_norm_backward

    with pytest.raises(ShapeError, match=f"^x: {BEHIND}"):
        layer_norm(freed(4, 8))
    with pytest.raises(ShapeError, match=f"^rstd: {BEHIND}"):
        layer_norm_backward(torch.ones(4, 8), torch.ones(4, 8), torch.ones(4, 1), freed(4, 1))
