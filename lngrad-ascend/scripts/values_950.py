"""Run CANN's norm kernels for Ascend 950 from op_host to their results, and compare these with float64.

    python lngrad-ascend/scripts/values_950.py ops-nn                 a shape of each tiling for each operator
    python lngrad-ascend/scripts/values_950.py ops-nn --random 200    and random shapes, dtypes and masks
    python lngrad-ascend/scripts/values_950.py ops-nn --only layer_norm_grad --seed 3

ops-nn is a checkout of the operator library (hicann/ops-nn); its tiling and its kernels stay as they are. A line for each
run: blocks, tiling key, the worst share of the tolerance, or what went wrong. Exit code 1 if anything did.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from lngrad.core.norms import NORMS
from lngrad.core.problem import LAYER_NORM, Forward, Grads, Normalization, RmsGrads
from lngrad.errors import LngradError
from lngrad.testing import Case, GradientError, Inputs, check_forward, check_grads, make_inputs
from lngrad_ascend import soc
from lngrad_ascend.ascendc import compile, launch
from lngrad_ascend.cpp.project import Project
from lngrad_ascend.faults import AscendWarning

Arrays = Mapping[str, Any]
ALPHA = 0.5  # a power of two: what is scaled by it is as exact as before
DEEP = LAYER_NORM._replace(alpha=ALPHA)
RMS = NORMS["rms_norm"].normalization
EPS = 1e-5
# Epsilon of layer_norm_grad's tiling, which no caller can set.
EPS_OF_GRAD = {"float32": 1e-12}


class Operator(NamedTuple):
    """How an operator of the library is called, and what its results are.

    Attributes:
        arrays: Of inputs, by its definition's names.
        check: Compares its results; returns the worst share of the tolerance.
        normalization: What it computes.
        residual: Whether it adds a second input first.
        attributes: As `lngrad kernel run --attr` takes them.
        shapes: Rows and columns, one of each of its tilings.
    """

    arrays: Callable[[Inputs], Arrays]
    check: Callable[[Arrays, Inputs], float]
    normalization: Normalization = LAYER_NORM
    residual: bool = False
    attributes: Mapping[str, str] = {}
    shapes: tuple[tuple[int, int], ...] = ((64, 256), (7, 1000), (3, 40))


def _variance(inputs: Inputs) -> Any:
    """The variance of which layer_norm_grad, with an epsilon of its own, makes rstd."""
    eps = EPS_OF_GRAD.get(inputs.x.dtype.name, EPS)
    return (1 / np.square(inputs.rstd.astype(np.float64)) - eps).astype(np.float32)


def _gradients(dx: str, dgamma: str, dbeta: str = "") -> Callable[[Arrays, Inputs], float]:
    def check(found: Arrays, inputs: Inputs) -> float:
        sums = [found[name].astype(inputs.gamma.dtype) for name in (dgamma, dbeta) if name]
        return check_grads((Grads if dbeta else RmsGrads)(found[dx], *sums), inputs)

    return check


def _deep_norm_grad(found: Arrays, inputs: Inputs) -> float:
    """The gradient of the total is gx's, and x's is alpha times that."""
    if not (found["dx"] == np.float32(ALPHA) * found["dgx"].astype(np.float32)).all():
        raise GradientError("dx: expected alpha times dgx")
    return _gradients("dgx", "dgamma", "dbeta")(found, inputs)


def _forward(y: str, mean: str, rstd: str) -> Callable[[Arrays, Inputs], float]:
    def check(found: Arrays, inputs: Inputs) -> float:
        rows = inputs.mean.shape
        statistics = (found[name].reshape(rows).astype(inputs.mean.dtype) for name in (mean, rstd))
        whole = replace(inputs, x=inputs.total, residual=None, dtotal=None, normalization=LAYER_NORM)
        return check_forward(Forward(found[y], *statistics), whole, eps=EPS)

    return check


_BACKWARD = ((64, 256), (7, 1000), (1, 1024), (10000, 64), (4, 20000))
OPERATORS = {
    "layer_norm_grad": Operator(
        lambda i: {"dy": i.dy, "x": i.x, "variance": _variance(i), "mean": i.mean, "gamma": i.gamma},
        _gradients("pd_x", "pd_gamma", "pd_beta"), shapes=_BACKWARD,
    ),
    "layer_norm_grad_v3": Operator(
        lambda i: {"dy": i.dy, "x": i.x, "rstd": i.rstd, "mean": i.mean, "gamma": i.gamma},
        _gradients("pd_x", "pd_gamma", "pd_beta"), shapes=_BACKWARD,
    ),
    "layer_norm_v3": Operator(
        lambda i: {"x": i.x, "gamma": i.gamma, "beta": i.beta}, _forward("y", "mean", "rstd"),
        attributes={"epsilon": str(EPS), "begin_norm_axis": "1", "begin_params_axis": "1"},
        shapes=((64, 256), (7, 1000), (64, 1), (2, 20000), (3, 60000)),
    ),
    "add_layer_norm_grad": Operator(
        lambda i: {"dy": i.dy, "x1": i.x, "x2": i.residual, "rstd": i.rstd, "mean": i.mean, "gamma": i.gamma, "dsum": i.dtotal},
        _gradients("dx", "dgamma", "dbeta"), residual=True,
    ),
    "deep_norm": Operator(
        lambda i: {"x": i.x, "gx": i.residual, "beta": i.beta, "gamma": i.gamma}, _forward("y", "mean", "rstd"), DEEP, True,
        {"alpha": str(ALPHA), "epsilon": str(EPS)},
    ),
    "deep_norm_grad": Operator(
        lambda i: {"dy": i.dy, "x": i.x, "gx": i.residual, "gamma": i.gamma, "mean": i.mean, "rstd": i.rstd},
        _deep_norm_grad, DEEP, True, {"alpha": str(ALPHA)}, ((64, 256), (7, 1000), (2000, 64)),
    ),
    "rms_norm_grad": Operator(
        lambda i: {"dy": i.dy, "x": i.x, "rstd": i.rstd, "gamma": i.gamma}, _gradients("dx", "dgamma"), RMS,
        shapes=((64, 256), (7, 1000), (10000, 64), (4, 20000)),
    ),
}  # fmt: skip


def run(library: Path, name: str, inputs: Inputs, name_of_soc: str, rules: Mapping[str, Any]) -> tuple[str, float]:
    """Run an operator. Returns its blocks and its tiling key as text, and the worst share of the tolerance.

    Raises:
        LngradError, AssertionError: What went wrong.
    """
    row = OPERATORS[name]
    arrays = {key: np.ascontiguousarray(array) for key, array in row.arrays(inputs).items()}
    with soc.use(name_of_soc), warnings.catch_warnings():
        warnings.simplefilter("ignore", AscendWarning)
        plan = Project(library / "norm" / name).plan(arrays, {}, inputs.x.dtype.name, row.attributes)
        kernel = compile(**plan.build)
        blocks = plan.options.pop("blocks")
        launch(kernel, blocks, *plan.arrays.values(), workspace=max(plan.workspace, 32), **plan.options, **rules)
    return f"{blocks:2} blocks, key {plan.options['tiling_key']}", row.check(plan.arrays, inputs)  # type: ignore[arg-type]


def _cases(name: str, random: int, seed: int) -> list[tuple[Case, str, int]]:
    row, rng = OPERATORS[name], np.random.default_rng([seed, len(name)])
    cases = [(Case((rows,), (columns,)), "float32", seed) for rows, columns in row.shapes]
    for number in range(random):
        rows, columns = (int(2 ** rng.uniform(0, most)) for most in (9, 12))
        dtype = str(rng.choice(["float32", "float16", "bfloat16"]))
        gamma = dtype if rng.integers(2) else "float32"
        case = Case((rows,), (columns,), gamma_dtype=gamma, statistics_dtype="float32")
        cases.append((case, dtype, seed + number))
    return cases


def main(
    library: Annotated[Path, typer.Argument(metavar="OPS_NN", help="A checkout of the operator library.")],
    only: Annotated[list[str] | None, typer.Option(help="Operators; all by default.")] = None,
    random: Annotated[int, typer.Option(help="Random cases for each.")] = 0,
    seed: Annotated[int, typer.Option(help="Of inputs and of random cases.")] = 0,
    device: Annotated[bool, typer.Option("--device", help="In device mode; default: with all checks.")] = False,
) -> None:
    """Run them, and say how exact they are."""
    rules = {"strictness": "device", "ordering": False} if device else {}
    failed = 0
    for name in only or OPERATORS:
        for case, dtype, number in _cases(name, random, seed):
            row, begin = OPERATORS[name], time.monotonic()
            inputs = make_inputs(case, dtype, number, normalization=row.normalization, residual=row.residual)
            if "dsum" not in row.arrays(inputs):
                inputs = replace(inputs, dtotal=None)
            try:
                how, share = run(library, name, inputs, "Ascend950", rules)
                text = f"{how}: {share:.3f} of the tolerance"
            except (LngradError, AssertionError) as error:
                failed, text = failed + 1, f"{type(error).__name__}: {str(error)[:300]}"
            print(
                f"{name} {case} {dtype}, gamma {inputs.gamma.dtype}, {time.monotonic() - begin:.1f} s: {text}",
                flush=True,
            )
    sys.exit(failed > 0)


if __name__ == "__main__":
    typer.run(main)
