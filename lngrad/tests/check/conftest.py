"""Cases made in memory, and the command run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

import check_cases
from lngrad.check.case import CheckCase
from lngrad.check.inputs import DrawnInputs, draw, true_grads
from lngrad.check.mistakes.diagnosis import Diagnosis, diagnose
from lngrad.check.mistakes.terms import Terms, terms_of
from lngrad.support.dtypes import accumulator_for, numpy_dtype
from lngrad.testing import error_share, gradient_scales


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """A diagnosis multiplies small matrices, for which OpenBLAS's threads wait longer than they compute on a busy machine."""
    if find_spec("threadpoolctl") is None:  # it comes with scikit-learn
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def make_case() -> Callable[..., CheckCase]:
    return check_cases.make_case


@pytest.fixture
def judged() -> Callable[..., Diagnosis]:
    """What is said of some float64 results of a case, rounded to its dtypes."""

    def diagnosis(case: CheckCase, drawn: DrawnInputs, results: dict[str, Any]) -> Diagnosis:
        truth, scales = true_grads(drawn.exact), gradient_scales(drawn.exact)
        got = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for name in case.operator.outputs:
                if (array := results[name]) is not None:
                    shaped = np.asarray(array).reshape(getattr(truth, name).shape)
                    got[name] = shaped.astype(numpy_dtype(case.output_dtypes[name]))
        shares = {
            name: error_share(
                array, getattr(truth, name), getattr(scales, name), accumulator_for(array.dtype.name)
            ).reshape(-1, case.N)
            for name, array in got.items()
        }
        wrong = {name: share for name, share in shares.items() if (share > 1).any()}
        return diagnose(case, drawn, case.results(got), wrong)

    return diagnosis


@pytest.fixture
def diagnosed(make_case: Callable[..., CheckCase], judged: Callable[..., Diagnosis]) -> Callable[..., Diagnosis]:
    """What is said of the right gradients with those replaced that a function of the terms gives."""

    def diagnosis(
        wrong: Callable[[Terms], dict[str, Any]], dtype: str = "float32", seed: int = 0, **facts: Any
    ) -> Diagnosis:
        wide = "float64" if dtype == "float64" else "float32"
        case = make_case(
            **{"dtype": dtype, "gamma_dtype": dtype, "output_dtypes": {}, "statistics_dtype": wide} | facts
        )
        drawn = draw(case, seed, 0, case.M, 1 << 30)
        return judged(case, drawn, true_grads(drawn.exact)._asdict() | wrong(terms_of(drawn.exact)))

    return diagnosis


@pytest.fixture
def run() -> Callable[..., Result]:
    return check_cases.run
