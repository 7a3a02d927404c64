"""The Triton kernels under Triton's interpreter: every regime, dtype, mask and stride, on the CPU.

conftest.py turns the interpreter on. Tests marked gpu need a process without it: TRITON_INTERPRET=0 pytest -m gpu.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import lngrad  # noqa: E402
from lngrad.api import execute  # noqa: E402
from lngrad.backends import triton_gpu, triton_policy  # noqa: E402
from lngrad.backends.triton_policy import Chunks, Columns, Tiles  # noqa: E402
from lngrad.errors import BackendUnavailable  # noqa: E402
from lngrad.kernels import triton_gpu as kernels  # noqa: E402
from lngrad.problem import Forward, Grads, Problem  # noqa: E402
from lngrad.testing import Case, Inputs, check_forward, check_grads, check_same_bits, make_inputs  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16", "float64")

# Every kernel's small cases: the tile's tails, N of 1 and odd, and rows longer than a tile in both regimes for them.
SMALL = (
    Case((1,), (1,)),
    Case((130,), (1,)),
    Case((67,), (7,)),
    Case((3, 5, 7), (4, 6)),
    Case((131,), (13,)),
    Case((100,), (129,), gamma=False),
    Case((65,), (1000,), offset=3.0),
    Case((9,), (4096,)),
)
LONG = (Case((3,), (8197,)),)  # by columns, as there are few rows


def tensor(array: Any) -> Any:
    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("u2").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def tensors(inputs: Inputs) -> tuple[Any, ...]:
    return tuple(map(tensor, (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)))


def backward(*arguments: Any, **options: Any) -> Grads:
    problem, arrays = Problem.backward(*arguments, **options)
    return Grads(*execute(triton_gpu.plan(problem, 1), arrays, options.get("out")))


def forward(x: Any, gamma: Any = None, beta: Any = None, *shape: Any) -> Forward:
    problem, arrays = Problem.forward(x, gamma, beta, *shape)
    return Forward(*execute(triton_gpu.plan(problem, 1), (*arrays, 1e-5)))


def regime_of(M: int, N: int, dtype: str = "float32") -> type:
    return type(triton_policy.choose(M, N, dtype, triton_gpu.INTERPRETED_MULTIPROCESSORS))


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows by chunks are for more data than L2 holds; a small L2 brings them into the interpreter's reach."""
    monkeypatch.setattr(triton_policy, "L2_BYTES", 0)


def test_the_interpreter_is_on() -> None:
    assert kernels.INTERPRETED
    assert type(kernels.backward_tiles).__name__ == "InterpretedFunction"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [*SMALL, *LONG], ids=str)
def test_backward(case: Case, dtype: str) -> None:
    inputs = make_inputs(case, dtype)
    check_grads(backward(*tensors(inputs), normalized_shape=inputs.normalized_shape), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [*SMALL, *LONG], ids=str)
def test_forward(case: Case, dtype: str) -> None:
    inputs = make_inputs(case, dtype)
    got = forward(tensor(inputs.x), tensor(inputs.gamma), tensor(inputs.beta), inputs.normalized_shape)
    check_forward(got, inputs)


def test_forward_with_a_large_offset() -> None:
    for columns in (40, 8200):
        inputs = make_inputs(Case((6,), (columns,), offset=1000.0, spread=1.0), "float32")
        check_forward(forward(tensor(inputs.x), tensor(inputs.gamma), tensor(inputs.beta)), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_by_chunks(small_cache: None, dtype: str) -> None:
    assert regime_of(7, 8200, dtype) is Chunks
    inputs = make_inputs(Case((7,), (8200,)), dtype)
    check_grads(backward(*tensors(inputs)), inputs)


def test_regimes() -> None:
    assert regime_of(100, 8192) is Tiles
    assert regime_of(3, 8193) is Columns
    assert regime_of(10**6, 8193) is Chunks
    assert regime_of(100, 4097, "float64") is Columns


MASKS = [(dx, dgamma, dbeta) for dx in (True, False) for dgamma in (True, False) for dbeta in (True, False)]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("case", [Case((19,), (37,)), Case((2,), (8197,))], ids=str)
def test_masks(case: Case, mask: tuple[bool, bool, bool]) -> None:
    inputs = make_inputs(case, "float32")
    check_grads(backward(*tensors(inputs), output_mask=mask), inputs, output_mask=mask)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_masks_by_chunks(small_cache: None, mask: tuple[bool, bool, bool]) -> None:
    inputs = make_inputs(Case((5,), (8200,)), "float32")
    check_grads(backward(*tensors(inputs), output_mask=mask), inputs, output_mask=mask)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [33, 8200])
def test_mixed(dtype: str, columns: int) -> None:
    inputs = make_inputs(Case((9,), (columns,), gamma_dtype="float32", statistics_dtype=dtype), dtype)
    got = backward(*tensors(inputs))
    check_grads(got, inputs)
    assert got.dgamma.dtype == torch.float32


def test_gamma_absent() -> None:
    for columns in (33, 8200):
        inputs = make_inputs(Case((9,), (columns,), gamma=False), "float32")
        check_grads(backward(*tensors(inputs)), inputs)
        check_forward(forward(tensor(inputs.x), None, None), inputs)


def test_one_column_gives_exact_zeros() -> None:
    inputs = make_inputs(Case((77,), (1,)), "float32")
    x = tensor(inputs.x)
    got = backward(tensor(inputs.dy), x, x.clone(), tensor(inputs.rstd), tensor(inputs.gamma))
    check_same_bits(got.dx.abs(), torch.zeros(77, 1))
    check_same_bits(got.dgamma.abs(), torch.zeros(1))


def test_nothing() -> None:
    x = torch.empty(0, 5)
    got = backward(x, x, torch.empty(0), torch.empty(0), torch.ones(5))
    check_same_bits(got.dgamma, torch.zeros(5))
    x = torch.empty(3, 0)
    result = forward(x)
    check_same_bits(result.mean, torch.zeros(3, 1))
    assert result.rstd.isnan().all()


def test_nan_stays_in_its_row() -> None:
    inputs = make_inputs(Case((9,), (20,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    before = backward(dy, x, mean, rstd, gamma).dx
    x[4, 7] = float("nan")
    after = backward(dy, x, mean, rstd, gamma).dx
    assert after[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    check_same_bits(after[others], before[others])
    result = forward(x)
    assert result.y[4].isnan().all()
    assert result.rstd[4].isnan().all()


# --- Bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [13, 300])
def test_bits_are_the_same_every_run(columns: int) -> None:
    inputs = make_inputs(Case((37,), (columns,)), "float32")
    check_same_bits(tuple(backward(*tensors(inputs))), tuple(backward(*tensors(inputs))))


@pytest.mark.parametrize("columns", [13, 300])
def test_a_row_does_not_know_its_batch(columns: int) -> None:
    inputs = make_inputs(Case((301,), (columns,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    whole = backward(dy, x, mean, rstd, gamma).dx
    alone = backward(dy[200:203], x[200:203], mean[200:203], rstd[200:203], gamma).dx
    check_same_bits(alone, whole[200:203].clone())


def test_a_row_does_not_know_its_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(Case((5,), (8200,)), "float32")
    monkeypatch.setattr(triton_gpu, "_multiprocessors", lambda device: 1)
    monkeypatch.setattr(triton_policy, "_CHUNK_PROGRAMS", 0)  # so that L2_BYTES decides the regime alone
    dx = {}
    for l2_bytes, regime in ((1 << 30, Columns), (0, Chunks)):
        monkeypatch.setattr(triton_policy, "L2_BYTES", l2_bytes)
        assert type(triton_policy.choose(5, 8200, "float32", 1)) is regime
        dx[regime] = backward(*tensors(inputs)).dx
    check_same_bits(dx[Chunks], dx[Columns])


# --- Strides and outputs --------------------------------------------------------------------------------------------


def strided(array: Any, how: str) -> Any:
    """The same values with other strides."""
    if how == "rows apart":
        wide = torch.zeros(*array.shape[:-1], array.shape[-1] + 3, dtype=array.dtype)
        wide[..., :-3] = array
        return wide[..., :-3]
    if how == "two levels":
        return array.transpose(0, 1).contiguous().transpose(0, 1)
    return array.transpose(0, -1).contiguous().transpose(0, -1)  # columns apart


@pytest.mark.parametrize("how", ["rows apart", "two levels", "columns apart"])
@pytest.mark.parametrize("columns", [24, 8200])
def test_strides(how: str, columns: int) -> None:
    inputs = make_inputs(Case((2, 3), (columns,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    out = Grads(strided(torch.zeros_like(x), how), None, None)
    problem, arrays = Problem.backward(strided(dy, how), strided(x, how), mean, rstd, gamma, out=out)
    plan = triton_gpu.plan(problem, 1)
    assert bool(plan.steps.strides.copied) == (how == "columns apart")
    got = Grads(*execute(plan, arrays, out))
    assert got.dx is out.dx
    check_same_bits(tuple(got), tuple(backward(dy, x, mean, rstd, gamma)))
    result = forward(strided(x, how), gamma, tensor(inputs.beta))
    check_same_bits(tuple(result), tuple(forward(x, gamma, tensor(inputs.beta))))


def test_three_levels_are_copied() -> None:
    inputs = make_inputs(Case((2, 3, 4), (8,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    permuted = x.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    check_same_bits(tuple(backward(dy, permuted, mean, rstd, gamma)), tuple(backward(dy, x, mean, rstd, gamma)))


@pytest.mark.parametrize("columns", [24, 8200])
def test_in_place(columns: int) -> None:
    inputs = make_inputs(Case((5,), (columns,)), "bfloat16")
    expected = backward(*tensors(inputs))
    dy, x, mean, rstd, gamma = tensors(inputs)
    got = backward(dy, x, mean, rstd, gamma, out=Grads(dy, None, torch.empty(2 * columns, dtype=torch.float32)[::2]))
    check_same_bits(got.dx, expected.dx)
    check_same_bits(got.dgamma, expected.dgamma)
    check_same_bits(got.dbeta.to(torch.bfloat16), expected.dbeta)


# --- The door -------------------------------------------------------------------------------------------------------


def test_cpu_arrays_are_not_served_by_name() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(BackendUnavailable, match=r"triton_gpu serves \('cuda',\), got arrays on cpu"):
        lngrad.layer_norm(x, backend="triton_gpu")


def test_numpy_is_not_served() -> None:
    problem, _ = Problem.forward(make_inputs(Case((2,), (3,)), "float32").x, None, None)
    with pytest.raises(BackendUnavailable, match="takes torch tensors, got numpy arrays"):
        triton_gpu.plan(problem, 1)


def test_cpu_tensors_need_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    problem, _ = Problem.forward(torch.zeros(2, 3), None, None)
    with pytest.raises(BackendUnavailable, match="only under TRITON_INTERPRET=1"):
        triton_gpu.plan(problem, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [*SMALL, *LONG, Case((4000,), (768,)), Case((3000,), (16384,))], ids=str)
def test_on_a_device(case: Case, dtype: str) -> None:
    assert not kernels.INTERPRETED
    inputs = make_inputs(case, dtype)
    got = lngrad.layer_norm_backward(
        *(None if t is None else t.cuda() for t in tensors(inputs)), normalized_shape=inputs.normalized_shape
    )
    check_grads(Grads(*(t.cpu() for t in got)), inputs)
