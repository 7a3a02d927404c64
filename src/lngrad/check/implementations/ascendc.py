"""A kernel in Ascend C, compiled and launched on the simulated NPU. Its parameters say what they are by their names."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.implementations.interface import Implementation, NotApplicable
from lngrad.check.inputs import DrawnInputs
from lngrad.core.dtypes import numpy_dtype
from lngrad.core.problem import Grads
from lngrad.errors import BackendUnavailable

NAMES = ("dy", "x", "mean", "rstd", "variance", "gamma", "dx", "dgamma", "dbeta")
LAST = ("workspace", "tiling")  # behind the arrays, as launch passes them
OPTIONS = ("blocks", "workspace", "tiling", "tiling_key", "define", "include", "headers", "auto_sync")

Host = Callable[..., Mapping[str, Any]]


def ascendc_kernel(name: str) -> Implementation:
    """A kernel by file and function: "kernel.cpp:my_kernel".

    Its parameters are found in the file and bound by name: dy, x, mean, rstd, variance, gamma, dx, dgamma, dbeta, and then
    workspace and tiling. The host side is a function `host` in a Python file beside it (kernel.py): for M, N, dtype,
    gamma_dtype and eps, as far as it takes them, it returns what the launch needs, see OPTIONS. It raises
    NotImplementedError for a case that the kernel does not take. A dgamma or dbeta of another dtype than gamma has is for
    no kernel: the case says what is written.

    Raises:
        BackendUnavailable: There is no such file or function, or its parameters have other names.
    """
    path, _, kernel = name.rpartition(":")
    source = Path(path)
    if not source.is_file() or not kernel:
        raise BackendUnavailable(f"--impl: ascendc: expected FILE.cpp:KERNEL, got {name!r}")
    parameters = _parameters(source, kernel)
    host = _host(source.with_suffix(".py"), needed=bool(set(parameters) & set(LAST)))

    def call(case: CheckCase, given: DrawnInputs) -> Grads:
        from lngrad.ascend import ascendc

        options = _options(host, case, given, source)
        compiled = ascendc.compile(source, kernel, **{one: options.pop(one) for one in ("define", "include", "headers")
                                                      if one in options})  # fmt: skip
        arrays = _arrays(case, given)
        blocks = options.pop("blocks", 1)
        missing = [one for one in parameters if one in arrays and arrays[one] is None]
        if missing:
            raise NotApplicable(f"{kernel} takes {missing[0]}, which the case does not have")
        ascendc.launch(compiled, blocks, *(arrays[one] for one in parameters if one in arrays), **options)
        results = (arrays[one] if one in parameters else None for one in Grads._fields)
        return Grads(*(one if wanted else None for one, wanted in zip(results, case.output_mask, strict=True)))

    return call


def _parameters(source: Path, kernel: str) -> list[str]:
    """The names of a kernel function's parameters, from its text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source.read_text("utf-8"), flags=re.DOTALL)
    plain = re.escape(kernel.partition("<")[0].rpartition("::")[2])
    found = re.search(rf"__global__[^;{{}}()]*\b{plain}\s*\(([^)]*)\)", text)
    if found is None:
        raise BackendUnavailable(f"--impl: ascendc: {source}: expected a __global__ function {kernel}, found none")
    names = [re.findall(r"\w+", one)[-1] for one in found[1].split(",") if one.strip()]
    known = [name.lower() for name in names]
    for name in known:
        if name not in (*NAMES, *LAST):
            expected = ", ".join((*NAMES, *LAST))
            raise BackendUnavailable(f"--impl: ascendc: {kernel}: parameters: expected some of {expected}, got {name}")
    order = [name for name in known if name in LAST]
    if order != [name for name in LAST if name in known] or known[len(known) - len(order) :] != order:
        raise BackendUnavailable(
            f"--impl: ascendc: {kernel}: parameters: expected workspace and tiling last, got {', '.join(known)}"
        )
    return known


def _host(path: Path, needed: bool) -> Host | None:
    if not path.is_file():
        if needed:
            raise BackendUnavailable(f"--impl: ascendc: expected the host side in {path}, for workspace and tiling")
        return None
    host = runpy.run_path(str(path)).get("host")
    if not callable(host):
        raise BackendUnavailable(f"--impl: ascendc: {path}: expected a function host")
    return host  # type: ignore[no-any-return]  # whatever the file defines


def _options(host: Host | None, case: CheckCase, given: DrawnInputs, source: Path) -> dict[str, Any]:
    from inspect import signature

    if host is None:
        return {}
    possible = {"M": case.M, "N": case.N, "dtype": case.dtype, "gamma_dtype": case.gamma_dtype, "eps": given.eps}
    wanted = signature(host).parameters
    try:
        options = dict(host(**{name: value for name, value in possible.items() if name in wanted}))
    except NotImplementedError as reason:
        raise NotApplicable(str(reason)) from None
    for option in options:
        if option not in OPTIONS:
            raise BackendUnavailable(f"{source}: host: expected some of {', '.join(OPTIONS)}, got {option}")
    return options


def _arrays(case: CheckCase, given: DrawnInputs) -> dict[str, Any]:
    """All that a kernel may take: inputs of its own, and outputs in the case's dtypes, filled so that gaps are seen."""
    one = given.inputs
    arrays: dict[str, Any] = {
        "dy": one.dy, "x": one.x, "mean": one.mean, "rstd": one.rstd, "variance": given.variance, "gamma": one.gamma,
    }  # fmt: skip
    made = {name: None if array is None else np.ascontiguousarray(array) for name, array in arrays.items()}
    for name, dtype in zip(Grads._fields, case.output_dtypes, strict=True):
        made[name] = np.full(case.shape if name == "dx" else case.normalized, np.nan, numpy_dtype(dtype))
    return made
