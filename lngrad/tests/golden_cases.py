"""Calls through the public entry points alone, and hashes of their results: golden_bits.json has them as they should be.

Inputs come from 64-bit integers and exact divisions by powers of two, so that they are the same with any NumPy on any
machine. Their exponents are spread: a sum of them rounds at nearly every step, and another order gives other bits.

Where the bits are promised (`where`):

- "everywhere": any machine, any number of threads. `numba_cpu` writes every order of summation down.
- "numpy": machine-dependent as far as NumPy may change it. The row sums of `numpy_cpu` are NumPy's pairwise ones: no BLAS,
  no einsum, eight accumulators that do not follow the width of a register. With NumPy 2.4.6 on x86-64 the bits were the
  same with AVX-512, AVX2 and SSE code (NPY_DISABLE_CPU_FEATURES); another NumPy may add otherwise. Their hashes are there
  to be the same before and after a change here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import lngrad
import norms
from lngrad.core.problem import LAYER_NORM, Normalization
from lngrad.testing import Inputs

FILE = Path(__file__).with_name("golden_bits.json")
OUTPUTS = ("y", "mean", "rstd", "total", "dx", "dgamma", "dbeta", "dgate")
DTYPES = ("float32", "bfloat16", "float16", "float64")
FOUR_WALKS = (5, 40, 300, 8200)  # rows that are tiny, short, plain, wide
MASKS = tuple(product((True, False), repeat=3))
_V2 = "+64bit,+cmov,+cx8,+cx16,+fxsr,+mmx,+popcnt,+sahf,+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2"
_V3 = _V2 + ",+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
X86_LEVELS = {
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V3 + ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl",
}


class GoldenCase(NamedTuple):
    """A call: `run` returns its outputs by name. It is run once for each number of threads, and the bits must be equal."""

    name: str
    where: str
    threads: tuple[int, ...]
    run: Callable[[], dict[str, Any]]


def hashes(case: GoldenCase) -> dict[str, str]:
    """A hash of each output that there is."""
    return {name: _hash(array) for name, array in case.run().items() if array is not None}


def check_names(cases: Sequence[GoldenCase], golden: dict[str, dict[str, str]]) -> None:
    """The file has these cases and no others."""
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert list(golden) == names
    assert [bits["where"] for bits in golden.values()] == [case.where for case in cases]


def check_bits(case: GoldenCase, golden: dict[str, dict[str, str]]) -> None:
    """With each number of threads, every output has the bits of the file."""
    for threads in case.threads:
        lngrad.set_num_threads(threads)
        got = hashes(case)
        wrong = [name for name in OUTPUTS if got.get(name) != golden[case.name].get(name)]
        assert not wrong, f"{case.name}, {threads} thread(s), bits promised {case.where}: {', '.join(wrong)} differ"


def _hash(array: Any) -> str:
    """128 bits of SHA-256 over dtype, shape and bits; every NaN counts as the same."""
    bits = np.array(array, order="C").view(f"u{array.itemsize}")
    bits[np.isnan(array)] = np.iinfo(bits.dtype).max
    facts = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.sha256(facts + bits.astype(bits.dtype.newbyteorder("<")).tobytes()).hexdigest()[:32]


# --- Inputs ---------------------------------------------------------------------------------------------------------

SALTS = {
    name: salt
    for salt, name in enumerate(("dy", "x", "mean", "rstd", "gamma", "beta", "residual", "dtotal", "gate"), 1)
}
RSTD_NUMERATORS, RSTD_DENOMINATOR = range(160, 224), 128


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def integers(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """64 bits for every element: splitmix64 of its index."""
    z = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
    z += np.uint64(SALTS[name] << 32)
    z *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    return (z ^ (z >> np.uint64(31))).reshape(shape)


def values(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """An input by its name. Only the cast to 16 bits rounds; statistics are exact in every dtype."""
    z = integers(name, shape)
    digits = 53 if dtype == "float64" else 24
    k = (z >> np.uint64(64 - digits)).astype(np.int64)
    half = 1 << (digits - 1)
    if name == "mean":
        exact = ((z % np.uint64(257)).astype(np.int64) - 128) / 1024
    elif name == "rstd":
        exact = ((z % np.uint64(len(RSTD_NUMERATORS))).astype(np.int64) + RSTD_NUMERATORS[0]) / RSTD_DENOMINATOR
    elif name == "gamma":  # 0.5 to 1.5, every eighth one negative
        exact = ((k >> 1) + half // 2) / half * np.where(z % np.uint64(8), 1.0, -1.0)
    else:
        exact = (k - half) / (half >> 2) / (1 << (z % np.uint64(16)).astype(np.int64))
    narrow = exact if dtype == "float64" else exact.astype(np.float32)
    return narrow.astype(dtype_of(dtype))


# --- Layouts: a copy of an array that lies otherwise ------------------------------------------------------------------


def plain(a):
    return a.copy()


def padded_rows(a):
    room = np.zeros((*a.shape[:-1], a.shape[-1] + 3), a.dtype)
    return _filled(room[..., : a.shape[-1]], a)


def every_second_row(a):
    return _filled(np.zeros((2 * a.shape[0], *a.shape[1:]), a.dtype)[::2], a)


def reversed_rows(a):
    return a[::-1].copy()[::-1]


def reversed_columns(a):
    return a[..., ::-1].copy()[..., ::-1]


def every_second_column(a):
    return _filled(np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2], a)


def transposed(a):
    return a.T.copy().T


def swapped_lead(a):
    return a if a.ndim < 3 else a.swapaxes(0, 1).copy().swapaxes(0, 1)


def misaligned(a):
    return _filled(np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape), a)


def one_row(a):
    return np.broadcast_to(a[:1], a.shape)


def one_column(a):
    return np.broadcast_to(a[..., :1], a.shape)


def _filled(view, a):
    view[...] = a
    return view


LAYOUTS = (
    padded_rows,
    every_second_row,
    reversed_rows,
    reversed_columns,
    every_second_column,
    transposed,
    swapped_lead,
    misaligned,
)


# --- Calls of lngrad ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """The forward and the backward of one shape.

    Attributes:
        lead, normalized, dtype: Of x.
        gamma, beta, statistics: Their dtypes; "" for x's, None for no gamma or beta. statistics None: the accumulator's.
        chained: The backward takes the forward's statistics, else independent ones.
        forward, backward: Whether there is one.
        layouts: How an argument or a result lies, by name.
        in_place: For dx or y, the input whose place it takes.
        results: Dtypes of dgamma and dbeta where the caller brings the arrays.
        changed: Elements set to a value, by input: (index, value).
        normalization: Which norm it is; without a centre there is no beta.
        residual: Whether there is one, and so a gradient of the total, which is the backward's x where it is chained; or the
            dtype of both, which is then that of the backward's x and dx.
        gated: Whether there is a gate.
    """

    lead: tuple[int, ...]
    normalized: tuple[int, ...]
    dtype: str = "float32"
    backend: str = "numba_cpu"
    gamma: str | None = ""
    beta: str | None = ""
    statistics: str | None = None
    mask: tuple[bool, bool, bool] = (True, True, True)
    eps: float = 1e-5
    chained: bool = False
    forward: bool = True
    backward: bool = True
    layouts: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    in_place: dict[str, str] = field(default_factory=dict)
    results: tuple[str, str] | None = None
    changed: dict[str, tuple[Any, float]] = field(default_factory=dict)
    normalization: Normalization = LAYER_NORM
    residual: bool | str = False
    gated: bool = False

    def inputs(self) -> dict[str, Any]:
        full, accumulator = (*self.lead, *self.normalized), "float64" if self.dtype == "float64" else "float32"
        dtypes = {"gamma": self.gamma, "beta": self.beta if self.normalization.has_beta else None}
        of_total = self.residual if isinstance(self.residual, str) else ""
        dtypes |= dict.fromkeys(("residual", "dtotal"), of_total if self.residual else None)
        dtypes["gate"] = "" if self.gated else None
        dtypes |= dict.fromkeys(("mean", "rstd"), accumulator if self.statistics is None else self.statistics)
        arrays = {}
        for name in SALTS:
            own = (self.lead[0], *(1,) * len(self.lead[1:])) if self.normalization.modulated else ()
            shape = dict.fromkeys(("gamma", "beta"), (*own, *self.normalized)) | dict.fromkeys(
                ("mean", "rstd"), self.lead
            )
            dtype = dtypes.get(name, "")
            if dtype is None:
                arrays[name] = None
                continue
            array = values(name, shape.get(name, full), dtype or self.dtype)
            if name in self.changed:
                index, value = self.changed[name]
                array[index] = value
            arrays[name] = self.layouts.get(name, lambda a: a)(array)
        return arrays

    def place(self, name: str, shape: tuple[int, ...], dtype: str, inputs: dict[str, Any]) -> Any:
        """An array for a result, where it must not be the backend's own; else None."""
        if name in self.in_place:
            return inputs[self.in_place[name]]
        layout = self.layouts.get(name, plain if self.results and name in ("dgamma", "dbeta") else None)
        return None if layout is None else layout(np.zeros(shape, dtype_of(dtype)))

    def run(self) -> dict[str, Any]:
        inputs, got = self.inputs(), {}
        full = (*self.lead, *self.normalized)
        if self.forward:
            arrays = self.inputs() if "y" in self.in_place else inputs
            y = self.place("y", full, self.dtype, arrays)
            arrays = Inputs(**arrays, normalized=len(self.normalized), normalization=self.normalization)
            out = None if y is None else lngrad.Forward(y, None, None)
            got |= norms.forward(arrays, eps=self.eps, backend=self.backend, out=out)._asdict()
        if not self.backward:
            return got
        x = got["total"] if self.chained and self.residual else inputs["x"]
        mean, rstd = (got.get("mean"), got["rstd"]) if self.chained else (inputs["mean"], inputs["rstd"])
        dtypes = self.results or (self.gamma or self.dtype,) * 2
        out = (
            self.place("dx", full, self.dtype, inputs),
            self.place("dgamma", self.normalized, dtypes[0], inputs),
            self.place("dbeta", self.normalized, dtypes[1], inputs),
        )
        arrays = inputs | {"mean": mean, "rstd": rstd, "x": x, "residual": None}
        arrays = Inputs(**arrays, normalized=len(self.normalized), normalization=self.normalization)
        mask = self.mask[: 3 if self.normalization.centred or self.gated else 2]
        out = None if all(result is None for result in out) else lngrad.Grads(*out)
        return got | norms.backward(arrays, output_mask=mask, backend=self.backend, out=out)._asdict()


def golden_case(name: str, call: Call) -> GoldenCase:
    where = "numpy" if call.backend == "numpy_cpu" else "everywhere"
    size = "x".join(map(str, call.lead)) + "," + "x".join(map(str, call.normalized))
    threads = (1, 2) if call.backend == "numba_cpu" else (1,)
    return GoldenCase(f"{call.backend} {name} ({size}) {call.dtype}", where, threads, call.run)


def _shapes() -> Iterator[GoldenCase]:
    """Every kind of row in every dtype, and every place where the rows are cut."""
    widths = (1, 2, 3, 7, 8, 9, 13, 16, 31, 32, 33, 64, 100, 255, 256, 257, 300, 1000, 4095, 4096, 4097, 5003)
    for N, M in zip(widths, cycle((3, 13, 66, 130))):
        for dtype in DTYPES:
            yield golden_case("rows", Call((M,), (N,), dtype))
    for M, N in ((3, 8191), (9, 8192), (70, 8200), (2, 12300)):  # wide; 8191 is the widest that is not
        for dtype in DTYPES:
            yield golden_case("rows", Call((M,), (N,), dtype))
    for M, N in ((130, 1000), (120, 1056)):  # in pairs of columns with one thread, in order with two
        yield golden_case("rows", Call((M,), (N,), "bfloat16"))
    for M in (1, 2, 4, 7, 8, 9, 63, 64, 65, 127, 128, 129, 192, 193, 1000, 4097):
        for N in (5, 40):
            yield golden_case("chunks", Call((M,), (N,)))
    for M, dtype in product((1, 64, 129, 1000), DTYPES[1:]):
        yield golden_case("chunks", Call((M,), (24,), dtype))
    yield golden_case("chunks", Call((4097,), (7,), "float64"))
    yield golden_case("chunks", Call((4097,), (9,), "bfloat16"))
    yield golden_case("several combining tasks", Call((640,), (3000,)))
    yield golden_case("groups of wide rows", Call((40,), (16384,)))
    yield golden_case("groups of wide rows", Call((20,), (16389,), "float64"))
    yield golden_case("past the caches", Call((2048,), (1024,)))
    yield golden_case("past the caches", Call((1031,), (1028,), "float64"))
    for N, dtype in product((1, *FOUR_WALKS), DTYPES):
        yield golden_case("forward's statistics", Call((69,), (N,), dtype, chained=True))
    yield golden_case("many dimensions", Call((2, 3, 1, 4), (3, 1, 5), chained=True))
    yield golden_case("no lead", Call((), (40,), chained=True))


def _wishes() -> Iterator[GoldenCase]:
    """What is wanted, and what it is wanted in."""
    for N, mask in product(FOUR_WALKS, MASKS):
        name = "mask " + "".join("yn"[not wanted] for wanted in mask)
        yield golden_case(name, Call((70,), (N,), mask=mask, forward=False))
        if N in (5, 300):
            yield golden_case(name, Call((70,), (N,), "bfloat16", mask=mask, forward=False))
    for N, dtype in product(FOUR_WALKS, DTYPES):
        yield golden_case("no gamma", Call((69,), (N,), dtype, gamma=None, beta=None))
    for N, dtype in product(FOUR_WALKS, ("bfloat16", "float16")):
        yield golden_case("float32 gamma", Call((69,), (N,), dtype, gamma="float32", beta="float32"))
        yield golden_case("16-bit statistics", Call((69,), (N,), dtype, statistics=dtype))
    yield golden_case("gamma and beta differ", Call((69,), (40,), "bfloat16", gamma="float32"))
    yield golden_case("gamma alone", Call((69,), (40,), beta=None))
    yield golden_case("beta alone", Call((69,), (40,), gamma=None))
    for dtype, results in (
        ("float32", ("float64", "float64")),
        ("float32", ("bfloat16", "float16")),
        ("bfloat16", ("float32", "bfloat16")),
        ("float16", ("float64", "float32")),
        ("float64", ("float32", "float16")),
    ):
        for N in (5, 300):
            name = f"results in {' and '.join(results)}"
            yield golden_case(name, Call((130,), (N,), dtype, results=results, forward=False))


def _memory() -> Iterator[GoldenCase]:
    """Where arguments and results lie."""
    for N, dtype, source in product((5, 13, 40, 300, 8203), ("float32", "bfloat16"), ("dy", "x")):
        places = {"dx": source, "y": "x"}
        yield golden_case(
            f"dx and y in place of {source}", Call((69,), (N,), dtype, in_place=places, forward=source == "x")
        )
    for layout, N in product(LAYOUTS, (5, 40, 300)):
        name = layout.__name__.replace("_", " ")
        shape = (5, 15) if layout is swapped_lead else (75,)
        lies = dict.fromkeys(("x", "dy", "dx", "y"), layout)
        yield golden_case(f"{name}: x, dy, dx, y", Call(shape, (N,), layouts=lies))
        if N != 40:
            yield golden_case(f"{name}: dx, dy", Call(shape, (N,), "bfloat16", layouts={"dx": layout, "dy": layout}))
    for layout in (padded_rows, reversed_rows, transposed):
        lies = dict.fromkeys(("x", "dy", "dx", "y"), layout)
        yield golden_case(f"{layout.__name__.replace('_', ' ')}: x, dy, dx, y", Call((9,), (8200,), layouts=lies))
        yield golden_case(
            f"{layout.__name__.replace('_', ' ')}: x", Call((9,), (5000,), "float64", layouts={"x": layout})
        )
    for layout, N in product((one_row, one_column), FOUR_WALKS):
        for name in ("dy", "x"):
            yield golden_case(f"{layout.__name__.replace('_', ' ')}: {name}", Call((66,), (N,), layouts={name: layout}))
    small = dict.fromkeys(("gamma", "beta", "mean", "rstd", "dgamma", "dbeta"), every_second_row)
    for N in (5, 300):
        yield golden_case("small arrays apart", Call((66,), (N,), layouts=small))
        yield golden_case("small arrays apart", Call((66,), (N,), "float16", layouts=small))
        yield golden_case("one mean, one rstd", Call((66,), (N,), layouts={"mean": one_row, "rstd": one_row}))
    yield golden_case("transposed: gamma, x", Call((33,), (4, 15), layouts={"gamma": transposed, "x": transposed}))


def _edges() -> Iterator[GoldenCase]:
    """Nothing to compute, and numbers that are no numbers."""
    for lead, normalized in (((0,), (5,)), ((0,), (40,)), ((3, 0), (300,)), ((4,), (0,))):
        yield golden_case("empty", Call(lead, normalized))
        yield golden_case("empty", Call(lead, normalized, "bfloat16", gamma="float32", beta="float32"))
    inf, nan = float("inf"), float("nan")
    for N, dtype in product((5, 40, 300), DTYPES):
        yield golden_case("NaN in x", Call((11,), (N,), dtype, chained=True, changed={"x": ((2, N - 2), nan)}))
        yield golden_case("infinity in dy", Call((11,), (N,), dtype, changed={"dy": ((3, 1), inf), "rstd": (5, 0.0)}))
    changed = {"x": ((2, slice(5, 9)), nan), "dy": ((3, slice(0, 70)), 1e-39)}
    for M, N in ((130, 1000), (120, 1056)):
        yield golden_case("NaN in x, subnormals", Call((M,), (N,), "bfloat16", chained=True, changed=changed))
    for N in (5, 40, 300):
        yield golden_case("equal elements", Call((11,), (N,), chained=True, changed={"x": (..., 1.25)}))
        yield golden_case(
            "an offset", Call((11,), (N,), chained=True, changed={"x": ((..., slice(0, None, 2)), 4097.25)})
        )
        yield golden_case(
            "too large for float16", Call((11,), (N,), "float16", changed={"dy": ((slice(0, None, 3), 2), 6e4)})
        )
        yield golden_case("eps 0", Call((11,), (N,), eps=0.0, chained=True))
    yield golden_case("eps 0, equal elements", Call((11,), (40,), eps=0.0, backward=False, changed={"x": (..., 1.25)}))


def _numpy() -> Iterator[GoldenCase]:
    for (M, N), dtype in product(((1, 1), (66, 5), (130, 40), (5, 1000), (3, 8200)), DTYPES):
        yield golden_case("rows", Call((M,), (N,), dtype, "numpy_cpu"))
    yield golden_case("chunks", Call((1000,), (24,), backend="numpy_cpu"))
    yield golden_case("no gamma", Call((69,), (40,), backend="numpy_cpu", gamma=None, beta=None))
    yield golden_case("empty", Call((0,), (40,), backend="numpy_cpu"))
    yield golden_case("mask nyn", Call((69,), (40,), backend="numpy_cpu", mask=(False, True, False)))
    yield golden_case("float32 gamma", Call((69,), (40,), "bfloat16", "numpy_cpu", gamma="float32", beta="float32"))
    yield golden_case("16-bit statistics", Call((69,), (40,), "float16", "numpy_cpu", statistics="float16"))
    for layout in (padded_rows, reversed_columns, transposed):
        lies = dict.fromkeys(("x", "dy", "dx", "y"), layout)
        yield golden_case(layout.__name__.replace("_", " "), Call((69,), (40,), backend="numpy_cpu", layouts=lies))


def _family() -> Iterator[GoldenCase]:
    """The other norms: every kind of row in every dtype, residual streams, offsets, and what has no gamma."""
    for name, switches in norms.NORMS.items():
        if not switches:
            continue
        name, facts = norms.OF_GOLDEN_BITS.get(name, name), {"normalization": LAYER_NORM, "residual": False} | switches
        for N, dtype in product((1, *FOUR_WALKS), DTYPES):
            yield golden_case(f"{name}: rows", Call((69,), (N,), dtype, **facts))
        for N in (40, 8200):
            yield golden_case(f"{name}: forward's statistics", Call((66,), (N,), "bfloat16", chained=True, **facts))
        yield golden_case(f"{name}: chunks", Call((1000,), (24,), **facts))
        yield golden_case(f"{name}: no gamma", Call((69,), (40,), gamma=None, beta=None, **facts))
        yield golden_case(
            f"{name}: float32 gamma", Call((69,), (300,), "float16", gamma="float32", beta="float32", **facts)
        )
        yield golden_case(f"{name}: many dimensions", Call((2, 3, 1, 4), (3, 1, 5), chained=True, **facts))
        lies = dict.fromkeys(("x", "dy", "residual", "dtotal"), transposed)
        yield golden_case(f"{name}: transposed", Call((69,), (40,), layouts=lies, **facts))
        yield golden_case(f"{name}: empty", Call((0,), (40,), **facts))
        yield golden_case(f"{name}: rows", Call((66,), (40,), "float16", "numpy_cpu", **facts))


def _samples_and_streams() -> Iterator[GoldenCase]:
    """A gamma and a beta for each sample, and totals in float32 beside 16 bits."""
    modulated = Normalization(offset=1.0, modulated=True)
    for N, dtype in product((1, *FOUR_WALKS), DTYPES):
        yield golden_case("modulated: rows", Call((3, 69), (N,), dtype, normalization=modulated))
    for lead in ((7, 1), (5, 64), (2, 65), (2, 300), (4, 3, 11)):
        yield golden_case("modulated: chunks", Call(lead, (24,), normalization=modulated))
        yield golden_case("modulated: chunks", Call(lead, (1056,), "bfloat16", chained=True, normalization=modulated))
    lies = dict.fromkeys(("gamma", "beta"), every_second_column) | {"x": swapped_lead, "dy": swapped_lead}
    yield golden_case("modulated: apart", Call((5, 20), (40,), layouts=lies, normalization=modulated))
    lies = dict.fromkeys(("gamma", "beta"), padded_rows)
    yield golden_case("modulated: padded", Call((5, 20), (320,), "bfloat16", layouts=lies, normalization=modulated))
    without_centre = Normalization(centred=False, modulated=True)
    yield golden_case("modulated rms", Call((3, 69), (300,), normalization=without_centre))
    for name, norm_before_gate in (("gated", True), ("gate first", False)):
        gated = Normalization(centred=False, norm_before_gate=norm_before_gate)
        for N, dtype in product((*FOUR_WALKS, 13), DTYPES):
            yield golden_case(f"{name}: rows", Call((69,), (N,), dtype, normalization=gated, gated=True))
        yield golden_case(f"{name}: chunks", Call((640,), (24,), chained=True, normalization=gated, gated=True))
        lies = dict.fromkeys(("gate", "x", "dy"), padded_rows)
        yield golden_case(
            f"{name}: apart", Call((70,), (40,), "bfloat16", layouts=lies, normalization=gated, gated=True)
        )
        lies = dict.fromkeys(("gate", "x"), every_second_column)
        yield golden_case(f"{name}: apart", Call((70,), (40,), layouts=lies, normalization=gated, gated=True))
        own = gated._replace(offset=1.0, modulated=True)
        yield golden_case(f"{name}: modulated", Call((3, 69), (300,), normalization=own, gated=True))
    yield golden_case("modulated: rows", Call((3, 20), (40,), "float16", "numpy_cpu", normalization=modulated))
    for N, dtype, centred in product((1, *FOUR_WALKS), ("bfloat16", "float16"), (True, False)):
        facts = {"normalization": Normalization(centred), "residual": "float32", "chained": True}
        yield golden_case(f"float32 stream{'' if centred else ' rms'}", Call((69,), (N,), dtype, **facts))
    lies = dict.fromkeys(("residual", "dtotal", "dy"), every_second_column)
    facts = {"residual": "float32", "chained": True}
    yield golden_case("float32 stream: apart", Call((69,), (40,), "bfloat16", layouts=lies, **facts))
    yield golden_case("float32 stream", Call((69,), (40,), "bfloat16", "numpy_cpu", **facts))


CASES = tuple(
    case for part in (_shapes, _wishes, _memory, _edges, _numpy, _family, _samples_and_streams) for case in part()
)
