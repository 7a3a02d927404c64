"""Functions of the user's, on NumPy arrays or as hosts of Triton kernels, and known mistakes made on purpose."""

from __future__ import annotations

import inspect
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.implementations.interface import Implementation, NotApplicable
from lngrad.check.implementations.tensors import on_device, quiet, require_triton
from lngrad.check.inputs import DrawnInputs
from lngrad.core.arrays import as_array, as_numpy
from lngrad.core.dtypes import DTYPES, bytes_of, numpy_dtype
from lngrad.core.problem import Grads
from lngrad.errors import BackendUnavailable, FileFormatError

_PARAMETERS = (
    "dy",
    "x",
    "mean",
    "rstd",
    "variance",
    "gamma",
    "eps",
    "normalized_shape",
    "output_mask",
    "output_dtypes",
)


def users_function(name: str, on_gpu: bool = False) -> Implementation:
    """A function of the user's, module:function; it is given what its parameters are named after.

    A NotImplementedError from it skips the case. Results that are masked off are dropped if it does not take the mask.

    Args:
        name: Of the module and the function in it.
        on_gpu: Whether it takes tensors, on the GPU if there is one.

    Raises:
        BackendUnavailable: There is no such function, or it takes parameters of other names.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        target: Any = import_module(module)
        for part in function.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"--impl: {module}:{function}: {error}") from None
    finally:
        sys.path.pop(0)
    parameters = inspect.signature(target).parameters
    catches = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    wanted = [name for name in _PARAMETERS if catches or name in parameters]
    needed = [
        name
        for name, one in parameters.items()
        if name not in _PARAMETERS
        and one.default is one.empty
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if needed:
        raise BackendUnavailable(
            f"--impl: {module}:{function}: parameters: expected some of {', '.join(_PARAMETERS)}, got {needed[0]}"
        )

    def call(case: CheckCase, given: DrawnInputs) -> Grads:
        one = given.inputs
        possible = {
            "dy": one.dy, "x": one.x, "mean": one.mean, "rstd": one.rstd, "variance": given.variance,
            "gamma": one.gamma, "eps": given.eps, "normalized_shape": case.normalized, "output_mask": case.output_mask,
            "output_dtypes": case.output_dtypes,
        }  # fmt: skip
        arguments = {name: possible[name] for name in wanted}
        try:
            with quiet() if on_gpu else nullcontext():
                results = three(target(**(on_device(arguments) if on_gpu else arguments)), f"{module}:{function}")
        except NotImplementedError as reason:
            raise NotApplicable(str(reason) or f"{module}:{function} does not implement it") from None
        if "output_mask" not in wanted:  # it can't know which results are not wanted
            results = Grads(*(one if kept else None for one, kept in zip(results, case.output_mask, strict=True)))
        return Grads(*(_narrowed(one, dtype) for one, dtype in zip(results, case.output_dtypes, strict=True)))

    return call


def _narrowed(result: Any, dtype: str) -> Any:
    """A float result that is wider than the case declares, rounded; any other stays, and fails."""
    if result is None or result.dtype.name not in DTYPES or result.dtype.itemsize <= bytes_of(dtype):
        return result
    with np.errstate(over="ignore", invalid="ignore"):
        return result.astype(numpy_dtype(dtype))


def three(results: Any, name: str) -> Grads:
    """What a user's function returned, as NumPy arrays.

    Raises:
        FileFormatError: These are not three arrays or None.
    """
    if not isinstance(results, tuple | list) or len(results) != 3:
        raise FileFormatError(f"{name}: expected to return dx, dgamma, dbeta, got {type(results).__name__}")
    arrays = [None if one is None else as_array(label, one) for label, one in zip(OUTPUTS, results, strict=True)]
    return Grads(*(None if one is None else as_numpy(one.cpu() if hasattr(one, "cpu") else one) for one in arrays))


def triton_function(name: str) -> Implementation:
    """A function that launches Triton kernels: it takes tensors, on a GPU, or on the CPU with Triton's interpreter.

    Raises:
        BackendUnavailable: There is no such function, or no Triton.
    """
    require_triton()
    return users_function(name, on_gpu=True)


def mutant(name: str) -> Implementation:
    from lngrad.check.mistakes.catalogue import MISTAKES

    if name not in MISTAKES:
        raise BackendUnavailable(f"--impl: mutant: expected one of {', '.join(MISTAKES)}, got {name!r}")

    def call(case: CheckCase, given: DrawnInputs) -> Grads:
        grads = MISTAKES[name].grads(case, given.exact)
        if grads is None:
            raise NotApplicable(f"{name} makes no difference to this case")
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = [one.astype(numpy_dtype(dtype)) for one, dtype in zip(grads, case.output_dtypes, strict=True)]
        return Grads(*(one if wanted else None for one, wanted in zip(rounded, case.output_mask, strict=True)))

    return call
