"""Golden cases of the simulated NPU and of aclnn: golden_bits.json beside has their hashes, golden_cases.py their inputs.

`PYTHONPATH=lngrad/tests python lngrad-ascend/tests/ascend_golden_cases.py` writes the file anew, when bits are meant to change.

All are promised everywhere. aclnn computes with `numba_cpu`. `ascend_sim` adds by elementwise NumPy calls, which IEEE 754
decides, but for one: rstd⁻² is NumPy's float64 pow, which differs in the last bit between CPUs with and without AVX-512. What
is kept of it, float32 or half, is the same for the rstd used here; test_ascend_golden_bits.py proves it. For any rstd that
can't be promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from golden_cases import FOUR_WALKS, Call, GoldenCase, dtype_of, golden_case, transposed
from lngrad_ascend import acl, aclnn, soc

FILE = Path(__file__).with_name("golden_bits.json")


def _on(target: dict[str, str], run: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def run_on_target() -> dict[str, Any]:
        with soc.use(**target):
            return run()

    return run_on_target


def _simulated() -> Iterator[GoldenCase]:
    base = Call((69,), (40,), backend="ascend_sim", forward=False)
    calls = [
        (
            f"rows{' all in half' if half else ''}",
            replace(base, lead=(M,), normalized=(N,), dtype=dtype, statistics=half),
        )
        for M, N in ((1, 16), (13, 5), (69, 40), (130, 72), (7, 344))
        for dtype, half in (("float32", None), ("float16", None), ("float16", "float16"))
    ]
    calls += [
        ("no gamma", replace(base, gamma=None)),
        ("mask nyy", replace(base, mask=(False, True, True))),
        ("transposed", replace(base, layouts={"x": transposed, "dy": transposed, "dx": transposed})),
    ]
    for name, (title, call) in product(("Ascend310P", "Ascend910B1", "Ascend950"), calls):
        case = golden_case(f"{name} {title}", call)
        yield case._replace(run=_on({"name": name}, case.run))


ACL_DTYPES = {"float32": acl.ACL_FLOAT, "float16": acl.ACL_FLOAT16, "bfloat16": acl.ACL_BF16}


def _tensor(array: Any) -> Any:
    if array is None:
        return None
    steps = [stride // array.itemsize for stride in array.strides]
    if array.flags.c_contiguous:
        storage = array
    else:  # only transposed ones are asked for: their memory is that of the transpose
        storage = array.T
        assert storage.flags.c_contiguous
    dtype = ACL_DTYPES[array.dtype.name]
    tensor = acl.aclCreateTensor(array.shape, dtype, steps, 0, acl.ACL_FORMAT_ND, storage.shape, storage)
    assert tensor is not None, acl.aclGetRecentErrMsg()
    return tensor


def _two_phases(call: Call, dtypes: tuple[str, str, str], row: bool) -> dict[str, Any]:
    """aclnnLayerNormBackward; dtypes are its outputs', row: the sums are (1, N)."""
    inputs = call.inputs()
    sums = (1, *call.normalized) if row else call.normalized
    shapes = ((*call.lead, *call.normalized), sums, sums)
    results = [np.zeros(shape, dtype_of(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
    if "dx" in call.layouts:
        results[0] = call.layouts["dx"](results[0])
    size, executor, ret = aclnn.aclnnLayerNormBackwardGetWorkspaceSize(
        _tensor(inputs["dy"]),
        _tensor(inputs["x"]),
        acl.aclCreateIntArray(call.normalized),
        *(_tensor(inputs[name]) for name in ("mean", "rstd", "gamma", "beta")),
        acl.aclCreateBoolArray(call.mask),
        *map(_tensor, results),
    )
    assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
    ret = aclnn.aclnnLayerNormBackward(np.empty(size, np.uint8) if size else None, size, executor, None)
    assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
    assert acl.aclrtSynchronizeStream(None) == acl.ACL_SUCCESS, acl.aclGetRecentErrMsg()
    wanted = zip(("dx", "dgamma", "dbeta"), results, call.mask, strict=True)
    return {name: result for name, result, mask in wanted if mask}


def _aclnn_case(
    title: str, call: Call, dtypes: tuple[str, str, str] | None = None, row: bool = False, **target: str
) -> GoldenCase:
    target = {"name": "Ascend910B1"} | target
    results = dtypes or (call.dtype, call.gamma or call.dtype, call.gamma or call.dtype)
    name = golden_case(f"{' '.join(target.values())} {title} to {results[0]}", call).name.replace(
        call.backend, "aclnn", 1
    )
    return GoldenCase(name, "everywhere", (1, 2), _on(target, lambda: _two_phases(call, results, row)))


def _aclnn() -> Iterator[GoldenCase]:
    for rounding, N, dtype in product(("even", "device"), FOUR_WALKS, ACL_DTYPES):
        yield _aclnn_case("rows", Call((69,), (N,), dtype), rounding=rounding)
    for rounding, mode in product(("even", "device"), ("strict", "compat")):
        target = {"rounding": rounding, "mode": mode}
        for N in (5, 300):
            narrow = Call((130,), (N,), "bfloat16", gamma="float32", beta="float32")
            yield _aclnn_case("float32 gamma", narrow, **target)
            yield _aclnn_case("narrowed", Call((130,), (N,)), ("bfloat16", "bfloat16", "float16"), **target)
            yield _aclnn_case("no weight", Call((130,), (N,), "bfloat16", gamma=None, beta=None), **target)
        layouts = {"x": transposed, "dy": transposed, "dx": transposed}
        yield _aclnn_case("transposed", Call((69,), (40,), "bfloat16", layouts=layouts), **target)
        yield _aclnn_case("mask yny", Call((69,), (40,), "bfloat16", mask=(True, False, True)), **target)
        yield _aclnn_case("16-bit statistics", Call((69,), (40,), "bfloat16", statistics="bfloat16"), **target)
        yield _aclnn_case("no rows", Call((0,), (40,), "bfloat16"), **target)
    for rounding in ("even", "device"):
        target = {"rounding": rounding, "mode": "compat"}
        yield _aclnn_case(
            "bfloat16 mean beside float16", Call((69,), (40,), "float16", statistics="bfloat16"), **target
        )
        yield _aclnn_case("sums in a row", Call((69,), (40,), "bfloat16"), row=True, **target)
        yield _aclnn_case("rows", Call((69,), (40,), "bfloat16"), name="Ascend950", rounding=rounding)


CASES = (*_simulated(), *_aclnn())

if __name__ == "__main__":
    from write_golden_bits import write

    write(CASES, FILE)
