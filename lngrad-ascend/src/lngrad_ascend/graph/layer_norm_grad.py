"""The graph ops LayerNormGrad (from the variance) and LayerNormGradV3 (from rstd), run on any machine.

Both compute, with xhat = (x - mean)·rstd and means over the dimensions of gamma: pd_x = (dy·gamma - (mean(dy·gamma)
+ xhat·mean(dy·gamma·xhat)))·rstd, pd_gamma = Σ dy·xhat, pd_beta = Σ dy.

LayerNormGrad has rstd = 1/sqrt(variance + epsilon). Its older page says 1/(variance + epsilon): that is a typo, as
the header's comment, the kernel, the newer page and the tile API of the same name all take the root.

On a device LayerNormGrad is registered for Ascend 950, LayerNormGradV3 for Atlas A2, A3 and Ascend 950. Strict takes the
products that an op's page lists; compat takes every SoC of ``lngrad_ascend.soc``, with a warning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lngrad.api import layer_norm_backward
from lngrad.core.arrays import Output, as_array, empty, spec_of
from lngrad.core.problem import Grads, Problem
from lngrad.errors import BackendUnavailable, DtypeError, ShapeError
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import AnyArray, Array, Mask, Shape, Tensor
from lngrad_ascend import soc as socs
from lngrad_ascend.aclnn.checks import MAX_DIMS
from lngrad_ascend.device.numerics import round_half_away, rounds_half_away
from lngrad_ascend.faults import AscendWarning

UNKNOWN = -1  # a dimension
UNKNOWN_RANK = (-2,)

# dtypes of (dy and x, gamma, pd_gamma and pd_beta). pd_x has x's; variance or rstd, and mean, have float32.
DTYPE_ROWS = (
    ("float32", "float32", "float32"),
    ("float16", "float32", "float32"),
    ("float16", "float16", "float32"),
    ("bfloat16", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
)
BITS = {"float32": 32, "float16": 16, "bfloat16": 16}


DtypeLike: TypeAlias = object  # a dtype of NumPy, or one that prints its name: torch's; or the name


def differ(shape: Shape, other: Shape) -> bool:
    """Whether two shapes differ in what is known of them."""
    sizes = zip(shape, other, strict=False)
    return len(shape) != len(other) or any(UNKNOWN not in pair and pair[0] != pair[1] for pair in sizes)


def check_dims(name: str, shape: Shape, least: int = 1) -> None:
    """Raise ShapeError for more than 8 dimensions, or a known one below `least`."""
    if shape != UNKNOWN_RANK and any(size < least and size != UNKNOWN for size in shape):
        raise ShapeError(f"{name}: expected dimensions of at least 1, or -1 for an unknown one, got {shape}")
    if len(shape) > MAX_DIMS:
        raise ShapeError(f"{name}: expected at most {MAX_DIMS} dimensions, got {len(shape)}: {shape}")


def check_number(name: str, inputs: Sequence[str], arguments: Sequence[object]) -> None:
    """Raise TypeError unless there is an argument for each input of an op."""
    if len(arguments) != len(inputs):
        raise TypeError(f"{name}: expected {len(inputs)}, for {', '.join(inputs)}, got {len(arguments)}")


def check_mask(output_mask: object) -> Mask:
    """Return output_mask as three booleans. Raises ShapeError if they are not three, DtypeError if they are no booleans."""
    rule = "output_mask: expected 3 booleans for pd_x, pd_gamma, pd_beta"
    if isinstance(output_mask, str) or not isinstance(output_mask, (Sequence, np.ndarray)):
        raise DtypeError(f"{rule}, got {output_mask!r}")
    if len(output_mask) != 3:
        raise ShapeError(f"{rule}, got {len(output_mask)}")
    if not all(isinstance(flag, (int, np.bool_)) for flag in output_mask):
        raise DtypeError(f"{rule}, got {output_mask!r}")
    return tuple(map(bool, output_mask))


def dtype_name(dtype: DtypeLike) -> str:
    """float32 for "float32", numpy.float32, numpy.dtype("float32") and torch.float32."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")


EPSILON, EPSILON_FLOAT32 = 1e-5, 1e-12  # constants of the op's tiling: no attribute
ALL = (True, True, True)

Known: TypeAlias = "Array | Tensor"  # an argument as the core takes it


class PdOutputs(NamedTuple):
    """Results of a graph op, or their shapes or dtypes: pd_x like x; pd_gamma, pd_beta like gamma. None: masked off."""

    pd_x: Any
    pd_gamma: Any
    pd_beta: Any


class GraphOp:
    """The part that both ops share; they differ in their third input.

    Attributes:
        name: Of the op.
        inputs: Names of its tensors, in order.
        attributes: Names of what else it takes, in the order of the torch op.
        products: Beginnings of the names of the products that its page lists.
        newest_products: Those that the newest page lists besides.
    """

    name: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]
    products: tuple[str, ...]
    newest_products: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{__name__}.{self.name}"

    def infer_shape(self, *shapes: Sequence[int], output_mask: Sequence[bool] = ALL) -> PdOutputs:
        """Shapes of the outputs, before there is data: dy's, and gamma's twice. The newest ops take empty inputs on Ascend 950.

        Args:
            shapes: Of dy, x, variance or rstd, mean, gamma. A dimension of -1 is unknown, (-2,) is an unknown rank.
            output_mask: Which outputs are wanted; the others are None.

        Raises:
            ShapeError: What is known breaks a rule.
        """
        check_number(self.name, self.inputs, shapes)
        target = socs.current()
        takes_empty = target.documents == "master" and target.soc.regbase  # whose tiling alone has a template for them
        dy, x, statistic, mean, gamma = sizes = [tuple(shape) for shape in shapes]
        for name, shape in zip(self.inputs, sizes, strict=True):
            least = 1 if name in ("dy", "x") and not takes_empty else 0
            check_dims(name, shape, least)
        for name, shape, other_name, other in (("x", x, "dy", dy), ("mean", mean, self.inputs[2], statistic)):
            if UNKNOWN_RANK not in (shape, other) and differ(shape, other):
                raise ShapeError(f"{name}: expected the shape of {other_name}, {other}, got {shape}")
        if UNKNOWN_RANK in (dy, gamma):
            return _masked((dy, gamma, gamma), output_mask)
        if not gamma:
            raise ShapeError("gamma: expected at least 1 dimension, got ()")
        if len(gamma) > len(dy):
            raise ShapeError(f"gamma: expected at most the {len(dy)} dimensions of dy {dy}, got {len(gamma)}: {gamma}")
        rows, last = dy[: len(dy) - len(gamma)], dy[len(dy) - len(gamma) :]
        if differ(gamma, last):
            raise ShapeError(f"gamma: expected the last dimensions of dy, {last}, got {gamma}")
        for name, shape in ((self.inputs[2], statistic), ("mean", mean)):
            count, wanted = math.prod(shape), math.prod(rows)
            if shape != UNKNOWN_RANK and UNKNOWN not in shape + rows and count != wanted:
                raise ShapeError(f"{name}: expected {wanted} elements, one per row of dy {rows}, got {count}: {shape}")
        return _masked((dy, gamma, gamma), output_mask)

    def infer_dtype(
        self, *dtypes: DtypeLike, pd_gamma_dtype: DtypeLike | None = None, output_mask: Sequence[bool] = ALL
    ) -> PdOutputs:
        """Names of the outputs' dtypes, before there is data.

        The page takes 16-bit statistics of a 16-bit x, the published code (compat mode) float32 alone.

        Args:
            dtypes: Of dy, x, variance or rstd, mean, gamma: names, or dtypes of NumPy or torch.
            pd_gamma_dtype: float32 or gamma's dtype; None for gamma's.
            output_mask: Which outputs are wanted; the others are None.

        Raises:
            DtypeError: They are no row of the op's table.
        """
        check_number(self.name, self.inputs, dtypes)
        dy, x, statistic, mean, gamma = map(dtype_name, dtypes)
        if dy not in BITS:
            raise DtypeError(f"dy: expected float32, float16 or bfloat16, got {dy}")
        if x != dy:
            raise DtypeError(f"x: expected the dtype of dy, {dy}, got {x}")
        for name, dtype in ((self.inputs[2], statistic), ("mean", mean)):
            if socs.current().mode != "strict" and dtype != "float32":
                raise DtypeError(f"{name}: expected float32 in compat mode, got {dtype}")
            if BITS.get(dtype, 0) < BITS[x]:
                allowed = "float32" if x == "float32" else "float32, float16 or bfloat16"
                raise DtypeError(f"{name}: expected {allowed} for an x in {x}, got {dtype}")
        if mean != statistic:
            raise DtypeError(f"mean: expected the dtype of {self.inputs[2]}, {statistic}, got {mean}")
        if gamma not in {row[1] for row in DTYPE_ROWS if row[0] == x}:
            raise DtypeError(f"gamma: expected float32 or the dtype of dy, {dy}, got {gamma}")
        parameter = gamma if pd_gamma_dtype is None else dtype_name(pd_gamma_dtype)
        if (x, gamma, parameter) not in DTYPE_ROWS:
            raise DtypeError(f"pd_gamma_dtype: expected float32 or the dtype of gamma, {gamma}, got {parameter}")
        return _masked((x, parameter, parameter), output_mask)

    def outputs(
        self, *arrays: AnyArray, output_mask: Sequence[bool] = ALL, pd_gamma_dtype: DtypeLike | None = None
    ) -> PdOutputs:
        """Shape and dtype of each output, from the facts of the inputs alone: for fake kernels. Arguments: as of the call."""
        (dy, x, _, mean, gamma), mask, parameter = self._checked(arrays, output_mask, pd_gamma_dtype)
        statistics = _float32(mean)
        problem, _ = Problem.backward(dy, x, statistics, statistics, gamma, tuple(gamma.shape), mask)
        pd_x, *pd_parameters = problem.outputs()
        return PdOutputs(pd_x, *(output and Output.of(output.shape, parameter) for output in pd_parameters))

    def _run(
        self,
        arguments: Sequence[AnyArray],
        rstd_of: Callable[[Known, str], Known],
        output_mask: Sequence[bool],
        pd_gamma_dtype: DtypeLike | None,
    ) -> PdOutputs:
        """Compute; `rstd_of` makes rstd of the third input and x's dtype."""
        (dy, x, statistic, mean, gamma), mask, parameter = self._checked(arguments, output_mask, pd_gamma_dtype)
        facts = spec_of("x", x)
        rstd = rstd_of(statistic, facts.dtype)
        if rounds_half_away(socs.current()) and "bfloat16" in (facts.dtype, parameter):
            return _run_half_away((dy, x, mean, rstd, gamma), mask, facts.kind, (facts.dtype, parameter))
        out = None
        if parameter != spec_of("gamma", gamma).dtype:
            output = Output.of(tuple(gamma.shape), parameter)
            out = Grads(None, *(empty(facts.kind, output) if wanted else None for wanted in mask[1:]))
        return PdOutputs(*layer_norm_backward(dy, x, _float32(mean), rstd, gamma, output_mask=mask, out=out))

    def _checked(
        self, arguments: Sequence[AnyArray], output_mask: Sequence[bool], pd_gamma_dtype: DtypeLike | None
    ) -> tuple[tuple[Known, ...], Mask, str]:
        """The arrays, the mask, and the dtype of pd_gamma and pd_beta."""
        check_number(self.name, self.inputs, arguments)
        self._check_product()
        arrays = tuple(as_array(name, array) for name, array in zip(self.inputs, arguments, strict=True))
        mask, facts = check_mask(output_mask), [spec_of(*pair) for pair in zip(self.inputs, arrays, strict=True)]
        _, parameter, _ = self.infer_dtype(*(spec.dtype for spec in facts), pd_gamma_dtype=pd_gamma_dtype)
        self.infer_shape(*(spec.shape for spec in facts))
        return arrays, mask, parameter

    def _check_product(self) -> None:
        target = socs.current()
        listed = self.products + (self.newest_products if target.documents == "master" else ())
        if not target.soc.product.startswith(listed):
            got = f"{target.soc.name} ({target.soc.product})"
            text = f"{self.name}: expected a product of its page, {', '.join(listed)}, got {got}"
            if target.mode == "strict":
                raise BackendUnavailable(f"{text}; soc.use chooses one, and with mode='compat' every SoC runs it")
            warnings.warn(f"{text}; compat runs it", AscendWarning, stacklevel=1)  # Python gives it once


class _LayerNormGrad(GraphOp):
    name = "LayerNormGrad"
    inputs = ("dy", "x", "variance", "mean", "gamma")
    attributes = ("output_mask", "epsilon", "pd_gamma_dtype")
    products = ("Ascend 950",)
    newest_products = ("Atlas A2", "Atlas A3")

    def __call__(
        self,
        dy: AnyArray,
        x: AnyArray,
        variance: AnyArray,
        mean: AnyArray,
        gamma: AnyArray,
        *,
        output_mask: Sequence[bool] = ALL,
        epsilon: float | None = None,
        pd_gamma_dtype: DtypeLike | None = None,
    ) -> PdOutputs:
        """Gradients of layer normalization from the forward's input, mean and biased variance.

        rstd = 1/sqrt(variance + epsilon), with the root that the op's older page forgets.

        Args:
            dy, x: (A1, …, Ai, R1, …, Rj), no dimension empty (but see ``soc.use("Ascend950", cann="master")``), the same dtype:
                float32, float16 or bfloat16.
            variance, mean: The same shape, one element per row, the same dtype: float32, or 16 bits for a 16-bit x.
            gamma: (R1, …, Rj) in float32 or dy's dtype.
            output_mask: Which of pd_x, pd_gamma, pd_beta are wanted; the others are None. CANN: the older page has
                this attribute, the registered op does not.
            epsilon: None for the constant of the op's tiling: 1e-12 for float32, else 1e-5. CANN: no attribute.
            pd_gamma_dtype: float32, or gamma's dtype; None for gamma's.

        Returns:
            pd_x in x's dtype; pd_gamma, pd_beta (R1, …, Rj). Arrays of x's kind.

        Raises:
            ShapeError, DtypeError: An argument breaks a rule.
            BackendUnavailable: Strict: the op's page does not list the thread's product.

        IR: ``REG_OP(LayerNormGrad).INPUT(dy).INPUT(x).INPUT(variance).INPUT(mean).INPUT(gamma).OUTPUT(pd_x)
        .OUTPUT(pd_gamma).OUTPUT(pd_beta)``
        """

        def rstd_of(variance: Known, dtype: str) -> Known:
            constant = EPSILON_FLOAT32 if dtype == "float32" else EPSILON
            return _rstd(variance, constant if epsilon is None else epsilon)

        return self._run((dy, x, variance, mean, gamma), rstd_of, output_mask, pd_gamma_dtype)


class _LayerNormGradV3(GraphOp):
    name = "LayerNormGradV3"
    inputs = ("dy", "x", "rstd", "mean", "gamma")
    attributes = ("output_mask", "pd_gamma_dtype")
    products = ("Ascend 950", "Atlas A2", "Atlas A3", "Atlas 350")

    def __call__(
        self,
        dy: AnyArray,
        x: AnyArray,
        rstd: AnyArray,
        mean: AnyArray,
        gamma: AnyArray,
        *,
        output_mask: Sequence[bool] = ALL,
        pd_gamma_dtype: DtypeLike | None = None,
    ) -> PdOutputs:
        """Gradients of layer normalization from the forward's input, mean and rstd.

        Args:
            rstd: 1/sqrt(variance + eps) of the forward; shape and dtype as mean.
            dy, x, mean, gamma, output_mask, pd_gamma_dtype: As for LayerNormGrad. CANN: outside Ascend 950 all
                outputs must be wanted; there an output that is masked off has meaningless data, here it is None.

        Returns, Raises: As LayerNormGrad.

        IR: ``REG_OP(LayerNormGradV3).INPUT(dy).INPUT(x).INPUT(rstd).INPUT(mean).INPUT(gamma).OUTPUT(pd_x)
        .OUTPUT(pd_gamma).OUTPUT(pd_beta).ATTR(output_mask, ListBool, {true, true, true})``
        """
        return self._run((dy, x, rstd, mean, gamma), lambda rstd, dtype: _float32(rstd), output_mask, pd_gamma_dtype)


LayerNormGrad = _LayerNormGrad()
LayerNormGradV3 = _LayerNormGradV3()


def _masked(outputs: tuple[Any, Any, Any], output_mask: Sequence[bool]) -> PdOutputs:
    mask = check_mask(output_mask)
    return PdOutputs(*(output if wanted else None for output, wanted in zip(outputs, mask, strict=True)))


def _float32(array: Known) -> Known:
    """Statistics in float32: exact, as none is wider."""
    return array.astype(np.float32, copy=False) if isinstance(array, np.ndarray) else array.float()


def _rstd(variance: Known, epsilon: float) -> Known:
    """1/sqrt(variance + epsilon), in float64 and rounded once."""
    if not isinstance(variance, np.ndarray):
        return (variance.double() + epsilon).rsqrt().float()
    with np.errstate(divide="ignore", invalid="ignore"):  # a variance of -epsilon, or below: infinity, or NaN
        return (1 / np.sqrt(variance.astype(np.float64)[None] + epsilon)).astype(np.float32)[0]


def _run_half_away(inputs: tuple[Known, ...], mask: Mask, kind: str, dtypes: tuple[str, str]) -> PdOutputs:
    """Compute from dy, x, mean, rstd, gamma as Atlas A2 rounds: in float32, then to `dtypes`, bfloat16 half away from zero."""
    grads = layer_norm_backward(*(as_numpy(array).astype(np.float32) for array in inputs), output_mask=mask)
    results: list[Known | None] = [None, None, None]
    for place, (result, dtype) in enumerate(zip(grads, (dtypes[0], dtypes[1], dtypes[1]), strict=True)):
        if result is not None:
            if dtype == "bfloat16":
                round_half_away(result)
            results[place] = output = empty(kind, Output.of(result.shape, dtype))
            as_numpy(output)[...] = result.astype(numpy_dtype(dtype))
    return PdOutputs(*results)


class Strategy(NamedTuple):
    """A template's name, and the tiling key that selects it in the kernel."""

    template: str
    tiling_key: int


# The register-based architecture, 3510: limits of rows M and of normalized elements N, all exclusive.
BLOCK_BYTES = 32
TRANSPOSE_ROWS = 256  # N no longer than a block. That it fits the Unified Buffer is taken for granted: rows are short
GRAD_BIG_M = (2048, 1024)  # M above, N below
V3_BIG_M = (4096, 512)
V3_SUMS_CORES, V3_SUMS_BIG_M = 56, ((1792, 512), (8192, 1024))  # where pd_gamma or pd_beta is wanted
BIG_N_ROWS, BIG_N_COLUMNS = 512, 8192

# Atlas A2 and A3, LayerNormGradV3: key = template·100 + deterministic (always 1)·10 + dtype.
SINGLE_READ_COLUMNS, TRANSPOSE_COLUMNS, SHORT_COLUMNS = (768, 12176), 64, 768
TEMPLATES = {"SINGLE_READ": 1, "WORKSPACE": 2, "TRANSPOSE": 3, "COMMON": 4}
DTYPE_KEYS = {
    ("float32", "float32"): 1,
    ("float16", "float16"): 2,
    ("float16", "float32"): 3,
    ("bfloat16", "bfloat16"): 4,
    ("bfloat16", "float32"): 5,
}

REGISTERED = {"LayerNormGrad": "Ascend950", "LayerNormGradV3": "Ascend910B, Ascend910_93, Ascend950 and Ascend350"}


def strategy(
    op: GraphOp | str,
    shape: Sequence[int],
    dtype: DtypeLike,
    soc: socs.SocLike = None,
    *,
    gamma_dtype: DtypeLike | None = None,
    normalized: int = 1,
    output_mask: Sequence[bool] = ALL,
) -> Strategy:
    """Return which template and tiling key CANN would choose.

    Args:
        op: LayerNormGrad or LayerNormGradV3, or the name of one.
        shape: Of x; on the register-based architecture dimensions may be empty.
        dtype: Of x: float32, float16 or bfloat16.
        soc: A SoC's name or row; None for this thread's.
        gamma_dtype: float32 or x's; None for x's.
        normalized: How many last dimensions of shape gamma has.
        output_mask: Which outputs are wanted.

    Raises:
        BackendUnavailable: The op is not registered for the SoC.
        ShapeError, DtypeError: The shape has too few or empty dimensions; the dtypes are no row of the op's table.
    """
    name = op if isinstance(op, str) else getattr(op, "name", op)
    if name not in REGISTERED:
        raise BackendUnavailable(f"op: expected LayerNormGrad or LayerNormGradV3, got {name!r}")
    sizes, row, mask = tuple(shape), socs.get(soc), check_mask(output_mask)
    if not 1 <= normalized <= len(sizes) or any(size < (0 if row.regbase else 1) for size in sizes):
        raise ShapeError(f"shape: expected at least {normalized} dimensions, none of them empty, got {sizes}")
    dtypes = dtype_name(dtype), dtype_name(dtype if gamma_dtype is None else gamma_dtype)
    if dtypes not in {dtype_row[:2] for dtype_row in DTYPE_ROWS}:
        raise DtypeError(f"dtype, gamma_dtype: expected a row of the op's table, got {dtypes[0]} with {dtypes[1]}")
    M, N = math.prod(sizes[:-normalized]), math.prod(sizes[-normalized:])
    row_bytes = N * (4 if dtypes[0] == "float32" else 2)
    if row.regbase and (name == "LayerNormGradV3" or row.name == "Ascend950"):
        return _regbase(name, M, N, row_bytes, any(mask[1:]) and row.vector_cores >= V3_SUMS_CORES)
    if row.arch == 2201 and name == "LayerNormGradV3":
        return _atlas_a2(N, row_bytes, dtypes)
    raise BackendUnavailable(f"op: {name} is registered for {REGISTERED[name]} only, got {row.name}")


def _regbase(name: str, M: int, N: int, row_bytes: int, sums_on_many_cores: bool) -> Strategy:
    if M == 0 or N == 0:
        return Strategy("EMPTY_REGBASE", 900)
    if row_bytes <= BLOCK_BYTES and M > TRANSPOSE_ROWS:
        return Strategy("TRANSPOSE_REGBASE", 800)
    limits = [GRAD_BIG_M] if name == "LayerNormGrad" else [V3_BIG_M, *(V3_SUMS_BIG_M if sums_on_many_cores else ())]
    if any(rows < M and columns > N for rows, columns in limits):
        return Strategy("GROUPED_REDUCE_BIG_M", 600)
    if M < BIG_N_ROWS and N > BIG_N_COLUMNS:
        return Strategy("GROUPED_REDUCE_BIG_N", 700)
    return Strategy("RECOMPUTE", 500)


def _atlas_a2(N: int, row_bytes: int, dtypes: tuple[str, str]) -> Strategy:
    least, most = SINGLE_READ_COLUMNS
    if least <= N <= most:
        template = "SINGLE_READ"
    elif N <= TRANSPOSE_COLUMNS and row_bytes % BLOCK_BYTES:
        template = "TRANSPOSE"
    else:
        template = "COMMON" if N <= SHORT_COLUMNS else "WORKSPACE"
    return Strategy(template, 100 * TEMPLATES[template] + 10 + DTYPE_KEYS[dtypes])
