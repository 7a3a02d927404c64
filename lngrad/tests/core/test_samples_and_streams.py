"""A gamma and a beta for each sample (adaptive layer normalization), and totals in float32 beside 16 bits of x and y."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

import lngrad
from lngrad.api import execute
from lngrad.core import calls
from lngrad.core.norms import NORMS as FAMILY
from lngrad.core.norms import PLAIN
from lngrad.core.problem import BACKWARD, LAYER_NORM, RMS_NORM, GatedGrads, describe
from lngrad.cpu import plan as numba_cpu
from lngrad.errors import BackendUnavailable, DtypeError, NumberError, ShapeError
from lngrad.testing import (
    CASES,
    Case,
    GradientError,
    Normalization,
    check_forward,
    check_grads,
    check_same_bits,
    make_inputs,
)
from mutants import MUTANTS, round_to
from norms import backward, forward, light, options

MODULATED = Normalization(offset=1.0, modulated=True)
SAMPLES = (
    Case((3, 65), (8,)),
    Case((2, 130), (13,)),
    Case((4, 7), (5,)),
    Case((2, 200), (768,)),
    Case((3, 2, 40), (300,)),
)
# What make_inputs takes: the members with samples or a gate, and what further switches and float32 streams make of them.
NORMS = {
    **{name: options(norm) for name, norm in FAMILY.items() if name not in (*PLAIN, "rms_norm_of_gated")},
    "modulated without offset": {"normalization": Normalization(modulated=True)},
    "modulated total": {"normalization": MODULATED, "residual": True},
    "float32 stream": {"normalization": LAYER_NORM, "residual": "float32"},
    "float32 stream rms": {"normalization": RMS_NORM._replace(alpha=1.7), "residual": "float32"},
    "both": {"normalization": MODULATED, "residual": "float32"},
    "gate first with offset": {"normalization": RMS_NORM._replace(offset=1.0, norm_before_gate=False), "gated": True},
    "modulated gated": {"normalization": RMS_NORM._replace(modulated=True), "gated": True},
}
each = pytest.mark.parametrize("name", NORMS)


def dtypes_of(name):
    return ("bfloat16", "float16") if "residual" in NORMS[name] and NORMS[name]["residual"] is not True else (
        "float32", "bfloat16", "float64",
    )  # fmt: skip


@each
@pytest.mark.parametrize("case", light([*CASES, *SAMPLES]), ids=str)
def test_results_are_those_of_float64_rounded_once(case, name):
    for dtype in dtypes_of(name):
        inputs = make_inputs(case, dtype, **NORMS[name])  # they cost as much as a call: drawn once for both backends
        stream = "residual" in NORMS[name] and NORMS[name]["residual"] is not True
        for backend in ("numba_cpu", "numpy_cpu"):
            check_forward(forward(inputs, backend=backend), inputs)
            got = backward(inputs, backend=backend)
            check_grads(got, inputs)
            assert got.dx.dtype == (np.float32 if stream else inputs.x.dtype)


@pytest.mark.usefixtures("threads")
@each
@pytest.mark.parametrize(
    "case", [*SAMPLES, Case((2, 1500), (40,)), Case((2, 9), (8200,)), Case((70, 3), (64,))], ids=str
)
def test_threads_do_not_show(case, name):
    inputs, results = make_inputs(case, dtypes_of(name)[0], **NORMS[name]), []
    for threads in (1, 3, 64):
        lngrad.set_num_threads(threads)
        results.append((*forward(inputs), *backward(inputs)))
    check_same_bits(results[1], results[0])
    check_same_bits(results[2], results[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "case", [*SAMPLES, Case((2, 700), (1024,)), Case((4, 1), (64,)), Case((2, 5), (8200,))], ids=str
)
@pytest.mark.parametrize(
    "name",
    [name for name, facts in NORMS.items() if facts["normalization"].modulated and facts.get("residual") != "float32"],
)
def test_a_sample_has_the_bits_of_a_call_of_its_own(case, name, dtype, backend):
    inputs = make_inputs(case, dtype, **NORMS[name])
    y, grads = forward(inputs, backend=backend), backward(inputs, backend=backend)
    for sample in range(case.lead[0]):
        arrays = {
            name: getattr(inputs, name)
            for name in ("dy", "x", "mean", "rstd", "gamma", "beta", "residual", "dtotal", "gate")
        }
        arrays = {part: None if array is None else array[sample] for part, array in arrays.items()}
        for part in ("gamma", "beta"):
            arrays[part] = None if arrays[part] is None else arrays[part].reshape(case.normalized)
        alone = replace(inputs, **arrays, normalization=inputs.normalization._replace(modulated=False))
        check_same_bits(tuple(None if a is None else a[sample] for a in y), tuple(forward(alone, backend=backend)))
        dx, *sums = backward(alone, backend=backend)
        own = [None if a is None else a[sample].reshape(array.shape) for a, array in zip(grads[1:], sums, strict=True)]
        check_same_bits((grads[0][sample], *own), (dx, *sums))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_gradients_are_rejected(mutant):
    inputs = make_inputs(Case((3, 70), (40,)), "float32", normalization=MODULATED)
    right = backward(inputs)
    wrong = round_to(MUTANTS[mutant](inputs), right)
    with pytest.raises(GradientError):
        check_grads(wrong, inputs)


OF_SAMPLES = {
    "scale without 1": lambda inputs: replace(inputs, normalization=inputs.normalization._replace(offset=0.0)),
    "scale of the previous sample": lambda inputs: replace(inputs, gamma=np.roll(inputs.gamma, 1, 0)),
    "first sample's scale for all": lambda inputs: replace(
        inputs, gamma=np.broadcast_to(inputs.gamma[:1], inputs.gamma.shape)
    ),
}


@pytest.mark.parametrize("mutant", [*OF_SAMPLES, "sums over all samples", "sums of the previous sample"])
def test_wrong_samples_are_rejected(mutant):
    inputs = make_inputs(Case((3, 70), (40,)), "float32", normalization=MODULATED)
    grads = backward(inputs)
    if mutant in OF_SAMPLES:
        wrong = backward(OF_SAMPLES[mutant](inputs))
    elif mutant == "sums over all samples":
        wrong = grads._replace(dgamma=grads.dgamma.sum(0, keepdims=True).repeat(3, 0))
    else:
        wrong = grads._replace(dbeta=np.roll(grads.dbeta, 1, 0))
    with pytest.raises(GradientError):
        check_grads(wrong, inputs)


def test_a_stream_in_16_bits_is_rejected():
    inputs = make_inputs(Case((70,), (40,)), "bfloat16", residual="float32")
    narrow = replace(inputs, residual=inputs.residual.astype(inputs.x.dtype))
    with pytest.raises(GradientError, match="total"):
        check_forward(forward(narrow), inputs)
    wrong = backward(inputs)
    with pytest.raises(GradientError, match="dx"):
        check_grads(wrong._replace(dx=wrong.dx.astype(inputs.x.dtype).astype(np.float32)), inputs)


def apart(array):
    return np.repeat(array, 2, -1)[..., ::2]


def in_one(array):
    """As a chunk of a linear layer's result."""
    return np.concatenate([array, array], -1)[..., : array.shape[-1]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [apart, in_one])
def test_layouts_and_given_outputs_do_not_show(layout, dtype, backend):
    inputs = make_inputs(Case((3, 70), (320,)), dtype, normalization=MODULATED)
    lies = replace(inputs, **{name: layout(getattr(inputs, name)) for name in ("gamma", "beta", "x", "dy")})
    check_same_bits(tuple(forward(lies, backend=backend)), tuple(forward(inputs, backend=backend)))
    expected = backward(inputs, backend=backend)
    out = lngrad.Grads(*(layout(np.zeros_like(array)) for array in expected))
    backward(lies, backend=backend, out=out)
    check_same_bits(tuple(out), tuple(expected))
    stream = make_inputs(Case((70,), (320,)), "bfloat16", residual="float32")
    lies = replace(stream, **{name: layout(getattr(stream, name)) for name in ("x", "dy", "residual", "dtotal")})
    check_same_bits(tuple(forward(lies, backend=backend)), tuple(forward(stream, backend=backend)))
    check_same_bits(tuple(backward(lies, backend=backend)), tuple(backward(stream, backend=backend)))


@pytest.mark.parametrize(
    "mask", [(True, False, False), (False, True, False), (False, False, True), (True, True, False)]
)
@pytest.mark.parametrize("N", [5, 40, 300])
def test_masks(mask, N):
    inputs = make_inputs(Case((3, 70), (N,)), "float32", normalization=MODULATED)
    expected = backward(inputs)
    got = backward(inputs, output_mask=mask)
    for grad, other, wanted in zip(got, expected, mask, strict=True):
        check_same_bits(grad, other if wanted else None)


GATED = [name for name in NORMS if "gated" in NORMS[name]]


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("N", [5, 13, 40, 300])
def test_results_beside_a_gate_may_replace_what_goes_in(N, dtype, name):
    inputs = make_inputs(Case((3, 70), (N,)), dtype, **NORMS[name])
    fwd, grads = forward(inputs), backward(inputs)
    for replaced in ("x", "gate"):
        own = replace(inputs, **{replaced: getattr(inputs, replaced).copy()})
        out = lngrad.RmsForward(getattr(own, replaced), None)
        check_same_bits(tuple(forward(own, out=out)), tuple(fwd))
    for first, second in [*permutations(("dy", "x", "gate", None), 2), (None, None)]:
        own = replace(inputs, **{part: getattr(inputs, part).copy() for part in ("dy", "x", "gate")})
        dx, dgate = (None if part is None else getattr(own, part) for part in (first, second))
        check_same_bits(tuple(backward(own, out=GatedGrads(dx, None, dgate))), tuple(grads))


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("N", [5, 13, 40, 300])
def test_masks_and_layouts_beside_a_gate(N, dtype, name):
    inputs = make_inputs(Case((3, 70), (N,)), dtype, **NORMS[name])
    expected = backward(inputs)
    for mask in product((True, False), repeat=3):
        got = backward(inputs, output_mask=mask)
        for grad, other, wanted in zip(got, expected, mask, strict=True):
            check_same_bits(grad, other if wanted else None)
    for several in (("x",), ("gate",), ("dy",), ("x", "gate", "dy")):
        for layout in (apart, in_one):
            lies = replace(inputs, **{part: layout(getattr(inputs, part)) for part in several})
            check_same_bits(tuple(forward(lies)), tuple(forward(inputs)))
            out = GatedGrads(layout(np.zeros_like(inputs.x)), None, layout(np.zeros_like(inputs.x)))
            check_same_bits(tuple(backward(lies)), tuple(expected))
            check_same_bits(tuple(backward(lies, out=out)), tuple(expected))


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("together", [1, 32])
def test_blocks_of_more_rows_than_are_measured_at_once(together, dtype, name, monkeypatch):
    """Rows that lie anywhere are packed in large blocks; a table may take them one by one, or as many as go together."""
    monkeypatch.setattr("lngrad.cpu.plan.rows_of", lambda *_: (together, 1))
    calls.forget()
    inputs = make_inputs(Case((5, 211), (64,)), dtype, **NORMS[name])
    expected = forward(inputs)
    lies = replace(inputs, x=np.moveaxis(np.moveaxis(inputs.x, 1, 0).copy(), 0, 1)[:, ::-1], gate=inputs.gate[:, ::-1])
    check_same_bits(
        tuple(array if array is None else array[:, ::-1].copy() for array in forward(lies)), tuple(expected)
    )
    x = np.moveaxis(np.ascontiguousarray(np.moveaxis(inputs.x, -1, 0)), 0, -1)
    check_same_bits(tuple(forward(replace(inputs, x=x))), tuple(expected))
    calls.forget()


@pytest.mark.usefixtures("threads")
def test_the_walk_does_not_show(monkeypatch):
    inputs = make_inputs(Case((3, 333), (300,)), "float32", normalization=MODULATED)
    arguments = inputs.arguments
    problem, arrays = describe(BACKWARD, arguments, 300, (True,) * 3, None, MODULATED)
    results = []
    for threads, elements in ((1, 1 << 13), (4, 1), (64, 1 << 20)):
        monkeypatch.setattr(numba_cpu, "TASK_ELEMENTS", elements)
        results.append(execute(numba_cpu.plan(problem, threads), arrays))
    check_same_bits(results[1], results[0])
    check_same_bits(results[2], results[0])


@pytest.mark.parametrize("lead", [(0, 3), (3, 0), (2, 3)])
def test_nothing(lead, backend):
    N = 0 if lead == (2, 3) else 4
    x, gamma = np.ones((*lead, N), np.float32), np.ones((lead[0], 1, N), np.float32)
    y, mean, rstd = lngrad.layer_norm(x, gamma, gamma, normalized_shape=N, backend=backend)
    grads = lngrad.layer_norm_backward(x, x, mean, rstd, gamma, normalized_shape=N, backend=backend)
    assert y.shape == grads.dx.shape == x.shape
    assert grads.dgamma.shape == grads.dbeta.shape == gamma.shape
    assert not grads.dgamma.any()


X = np.ones((2, 3, 4), np.float32)


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (ShapeError, r"^gamma: expected the first of x's dimensions \(2, 3\), ones and \(4,\), got \(2, 2, 4\)$",
         {"gamma": ones(2, 2, 4)}),
        (ShapeError, r"^gamma: expected the first of x's dimensions \(2, 3\), ones and \(4,\), got \(1, 3, 4\)$",
         {"gamma": ones(1, 3, 4)}),
        (ShapeError, r"^gamma: expected the normalized shape \(4,\), got \(2, 4\)$", {"gamma": ones(2, 4)}),
        (ShapeError, r"^beta: expected the shape of gamma, \(2, 1, 4\), got \(4,\)$",
         {"gamma": ones(2, 1, 4), "beta": ones(4)}),
        (ShapeError, r"^normalized_shape: expected the last dimensions of x",
         {"gamma": ones(2, 1, 4), "normalized_shape": None}),
        (DtypeError, r"^residual: expected the dtype of x, float16, got bfloat16$",
         {"x": X.astype("f2"), "residual": X.astype("bfloat16")}),
        (DtypeError, r"^residual: expected the dtype of x, float16, got float64$",
         {"x": X.astype("f2"), "residual": X.astype("f8")}),
        (DtypeError, r"^out.total: expected the dtype of residual, float32, got float16$",
         {"x": X.astype("f2"), "residual": X, "out": lngrad.ForwardWithTotal(None, None, None, X.astype("f2"))}),
        (BackendUnavailable, "^backend: ascend_sim does not compute the forward of x, gamma, beta to y, mean, rstd; numba_cpu "
         "or numpy_cpu does$", {"gamma": ones(2, 1, 4), "backend": "ascend_sim"}),
    ],
)  # fmt: skip
def test_rules(error, text, arguments):
    with pytest.raises(error, match=text):
        lngrad.layer_norm(**{"x": X, "normalized_shape": 4, **arguments})


@pytest.mark.parametrize("dy", ["float16", "bfloat16"])
def test_a_narrow_dy_needs_a_gradient_of_the_total(dy):
    narrow, rows = X.astype(dy), np.ones(6, np.float32)
    with pytest.raises(DtypeError, match=f"dy: expected the dtype of x, float32, got {dy}"):
        lngrad.rms_norm_backward(narrow, X, rows)
    assert lngrad.rms_norm_backward(narrow, X, rows, dtotal=X).dx.dtype == np.float32


class Quantity(np.ndarray):
    units = "metre"


@pytest.mark.parametrize(
    ("array", "what"),
    [(np.ma.masked_array(X, X > 2), "MaskedArray with a mask"), (X.view(Quantity), "Quantity with a units")],
)
@pytest.mark.parametrize("name", ["x", "gamma", "residual", "out.y"])
def test_what_is_more_than_its_numbers_is_refused(array, what, name):
    arguments = {"x": X, "normalized_shape": (2, 3, 4)}
    arguments |= {"out": lngrad.Forward(array, None, None)} if name == "out.y" else {name: array}
    with pytest.raises(DtypeError, match=f"^{name}: expected an array of numbers alone, got {what}$"):
        lngrad.layer_norm(**arguments)


def test_other_subclasses_are_taken(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 4))
    mapped[...] = np.arange(12).reshape(3, 4)
    check_same_bits(lngrad.layer_norm(mapped).y, lngrad.layer_norm(np.array(mapped)).y)


@pytest.mark.parametrize("eps", ["1e-5", b"1", [1e-5, 1], "small"])
def test_an_eps_that_is_no_number(eps):
    for call in (lngrad.layer_norm, lngrad.rms_norm):
        with pytest.raises(NumberError, match=r"^eps: expected a number, got "):
            call(X, eps=eps)


def test_no_eps():
    with pytest.raises(NumberError, match=r"^eps: expected a number, got None$"):
        lngrad.layer_norm(X, eps=None)
    check_same_bits(lngrad.layer_norm(X, eps=np.float64(1e-5)).y, lngrad.layer_norm(X, eps=1e-5).y)
