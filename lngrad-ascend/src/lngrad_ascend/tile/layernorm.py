"""The forward tile API, LayerNorm, in its two forms: with variance, chunk by chunk, and with rstd.

Its variance is what LayerNormGrad takes; there is no tile API that takes rstd. The orders of operations are those of
layernorm_common_basic_impl.h and layernorm_variance_impl.h (variance form) and of layernorm_common_impl.h,
layernorm_3510_impl.h and normalize_*_impl.h (rstd form); docs/ascend-tile.md, "The numbers", has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lngrad.errors import DtypeError
from lngrad.typing import Array
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.numerics import REPEAT_BYTES, REPEAT_FLOATS, lane_sums, pairwise_sum
from lngrad_ascend.device.vector import Adds, Cast, Duplicate, Mul, Muls, Sqrt, Sub
from lngrad_ascend.faults import BoundsFault, TilingError
from lngrad_ascend.tile.layernormgrad_kernels import (
    FLOAT,
    NONE,
    add_to_rows,
    clear_columns,
    count_instructions,
    multiply_rows,
    reciprocal,
)
from lngrad_ascend.tile.tile_call import TileCall, check_kinds
from lngrad_ascend.tiling.structs import LayerNormSeparateTiling, LayerNormTiling

API = "LayerNorm"


@dataclass(frozen=True)
class ForwardTensors:
    """The tensors of one LayerNorm call, which have been checked; ``spread`` is the variance, or rstd in the rstd form.

    x, y (B·S, H), or (A, row) of which R columns count; mean, spread a row's each; gamma, beta (H,) or (R,); temp bytes.
    """

    y: LocalTensor
    mean: LocalTensor
    spread: LocalTensor
    x: LocalTensor
    gamma: LocalTensor
    beta: LocalTensor
    temp: LocalTensor


@dataclass(frozen=True)
class LayerNormPara:
    """The sizes of the rstd form of LayerNorm: A rows of R elements, in memory rLengthWithPadding apart."""

    aLength: int
    rLength: int
    rLengthWithPadding: int


@dataclass(frozen=True)
class LayerNormConfig:
    """The compile-time switches of the rstd form of LayerNorm."""

    isNoBeta: bool = False
    isNoGamma: bool = False
    isOnlyOutput: bool = False
    isOutputRstd: bool = True


def variance_form_common(t: ForwardTensors, epsilon: float, tiling: LayerNormTiling, reuse: bool, exact: bool) -> None:
    """Compute y, mean and variance on 2002 and 2201, in float; ``exact`` leaves out padded columns."""
    stack = t.temp.ReinterpretCast(FLOAT)
    half = t.y.dtype != FLOAT
    starts = [tiling.firstTmpStartPos, tiling.secondTmpStartPos, tiling.thirdTmpStartPos]
    used = starts[1] if reuse else starts[2]
    if used + tiling.oneTmpSize > stack.GetSize():
        raise BoundsFault(
            f"{API}: the tiling uses the temporary buffer up to float {used + tiling.oneTmpSize}, it has "
            f"{stack.GetSize()}"
        )
    # With reuse the first scratch is x itself, from its start for every chunk, as published.
    scratch = [t.x, stack[starts[0] :], stack[starts[1] :]] if reuse else [stack[s:] for s in starts]
    means = stack[tiling.meanTmpTensorPos :] if half else t.mean
    variances = stack[tiling.varianceTmpTensorPos :] if half else t.spread
    M = tiling.meanVarSize
    a, b, c = scratch
    H, inverse_H = tiling.hLength, tiling.lastDimValueBack
    for first in range(0, M, tiling.meanVarRoundSize):
        rows = min(tiling.meanVarRoundSize, M - first)
        n, x, y = rows * H, t.x[first * H :], t.y[first * H :]
        if half:
            Cast(a, x, NONE, n)
            x = a
        Muls(c, x, inverse_H, n)
        _fold(means[first:], c, rows, H)
        _spread(c, means[first:], rows, H)
        Sub(b, x, c, n)
        if exact:
            clear_columns(b, rows, H, tiling.originalHLength)
        Mul(c, b, b, n)
        Muls(a, c, inverse_H, n)
        _fold(variances[first:], a, rows, H)

        _spread(a, variances[first:], rows, H)
        Adds(c, a, epsilon, n)
        Sqrt(a, c, n)
        reciprocal(a, c, a, n)
        Mul(c, a, b, n)
        if half:
            Cast(a, t.gamma, NONE, H)
            multiply_rows(b, c, a, rows, H)
            Cast(c, t.beta, NONE, H)
            add_to_rows(a, b, c, rows, H)
            Cast(y, a, NONE, n)
        else:
            multiply_rows(a, c, t.gamma, rows, H)
            add_to_rows(y, a, t.beta, rows, H)
    if half:
        Cast(t.mean, means, NONE, M)
        Cast(t.spread, variances, NONE, M)


def _fold(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """dst[i] = sum of row i: the 64-float pieces of a row are added lane by lane, then the lanes pairwise."""
    values = src.read("WholeReduceSum", "src", rows * H).reshape(rows, H)
    adds = (H > 2 * REPEAT_FLOATS - 1) + (H > REPEAT_FLOATS and H % 64 > 0)
    dst.core.looped("Add", rows * adds, H * 4)
    dst.core.looped("WholeReduceSum", 2 * -(-rows // 255), min(rows, 255) * REPEAT_BYTES)
    dst.write("WholeReduceSum", "dst", rows, aligned=False)[:] = lane_sums(values)


def _spread(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """Fill row i of dst with src[i] (published as Select with an empty mask)."""
    values = src.read("Select", "src", rows, aligned=False)
    dst.core.looped("Select", rows, H * 4)
    dst.write("Select", "dst", rows * H).reshape(rows, H)[:] = values[:, None]


def variance_form_3510(t: ForwardTensors, epsilon: float, tiling: LayerNormTiling, exact: bool) -> None:
    """Compute y, mean and variance on 3510, in float. As published H counts the padding, unless ``exact``."""
    M, H = tiling.bLength * tiling.sLength, tiling.hLength
    width = tiling.originalHLength if exact else H
    x = _load(t.x, "inputX", M * H).reshape(M, H)
    gamma, beta = _load(t.gamma, "gamma", H), _load(t.beta, "beta", H)
    divisor = np.float32(width)
    mean = lane_sums(x[:, :width] / divisor)[:, None]
    centred = x - mean
    centred[:, width:] = 0
    variance = lane_sums((centred * centred)[:, :width] / divisor)[:, None]
    y = centred / np.sqrt(variance + np.float32(epsilon)) * gamma + beta
    t.mean.write(API, "outputMean", M)[:] = mean[:, 0]
    t.spread.write(API, "outputVariance", M)[:] = variance[:, 0]
    t.y.write(API, "output", M * H).reshape(M, H)[:] = y
    count_instructions(t.y, M * -(-H // REPEAT_FLOATS), {"Div": 3, "Sub": 2, "Mul": 2, "Add": 3})


def rstd_form(
    t: ForwardTensors, epsilon: float, para: LayerNormPara, tiling: LayerNormSeparateTiling, config: LayerNormConfig
) -> None:
    """Compute y, mean and rstd (or variance, on 3510) in float.

    CANN: the padding of y is set to 0, a device leaves anything there; the intermediates are computed at once instead of
    in chunks, which does not change a bit; on 3510 the fused multiply-adds of the mean are not simulated.
    """
    A, R, row = para.aLength, para.rLength, para.rLengthWithPadding
    x = _load(t.x, "inputX", A * row).reshape(A, row)[:, :R]
    regbase = t.x.core.soc.regbase
    rstd: Array
    if regbase:
        mean = _folded_mean(x, tiling)
        centred = x - mean[:, None]
        variance = _folded_mean(centred * centred, tiling)
        # The published Newton steps end at the correctly rounded value but for rare cases.
        rstd = (1 / np.sqrt((variance + np.float32(epsilon)).astype(np.float64))).astype(FLOAT)
    else:
        floats, end = t.temp.GetSize() // 4, tiling.secondTmpStartPos + tiling.oneTmpSize
        if end > floats:
            raise BoundsFault(f"{API}: the tiling uses the temporary buffer up to float {end}, it has {floats}")
        # Written so that the report's peak and the poison of the buffer are a device's.
        Duplicate(t.temp.ReinterpretCast(FLOAT), 0.0, end)
        inverse_R = np.float32(tiling.rValueBack)
        mean = lane_sums(_padded(x * inverse_R, row))
        centred = x - mean[:, None]
        variance = lane_sums(_padded((centred * centred) * inverse_R, row))
        rstd = np.float32(1) / np.sqrt(variance + np.float32(epsilon))
    y: Array = centred * rstd[:, None]
    gamma = _load(t.gamma, "gamma", R) if not config.isNoGamma else None
    beta = _load(t.beta, "beta", R) if not config.isNoBeta else None
    if regbase and gamma is not None and beta is not None:
        fused = y.astype(np.float64) * gamma + beta  # one rounding: FusedMulDstAdd
        y = fused.astype(FLOAT)
    else:
        y = y if gamma is None else y * gamma
        y = y if beta is None else y + beta
    t.mean.write(API, "outputMean", A)[:] = mean
    t.spread.write(API, "outputRstd", A)[:] = rstd if config.isOutputRstd else variance
    t.y.write(API, "output", A * row).reshape(A, row)[:] = _padded(y, row)
    count_instructions(t.y, A * -(-R // REPEAT_FLOATS), {"Muls": 2, "Sub": 2, "Mul": 3, "Add": 3})


def _folded_mean(x: Array, tiling: LayerNormSeparateTiling) -> Array:
    """Return the mean of each row the way of 3510: scale, add what is behind the head to the head, halve."""
    head, scale = tiling.rHeadLength, np.float32(tiling.k2Rec)
    scaled = x * scale
    folded = scaled[:, :head].copy()
    rest = scaled[:, head:]
    folded[:, : rest.shape[1]] += rest
    if folded.shape[1] > REPEAT_FLOATS:
        pairs = folded.reshape(len(x), -1, 2, REPEAT_FLOATS)
        folded = pairwise_sum(pairs[:, :, 0] + pairs[:, :, 1])
    return pairwise_sum(folded) * np.float32(tiling.k2RRec)


def _load(tensor: LocalTensor, role: str, count: int) -> Array:
    return tensor.read(API, role, count).astype(FLOAT)


def _padded(matrix: Array, row: int) -> Array:
    """Append columns of 0 up to ``row``: (A, R) to (A, row)."""
    return np.pad(matrix, ((0, 0), (0, row - matrix.shape[1])))


def LayerNorm(
    output: LocalTensor,
    outputMean: LocalTensor,
    outputVariance: LocalTensor,
    inputX: LocalTensor,
    gamma: LocalTensor,
    beta: LocalTensor,
    epsilon: float,
    tiling: LayerNormTiling | LayerNormSeparateTiling,
    para: LayerNormPara | None = None,
    *more: object,
    sharedTmpBuffer: LocalTensor | None = None,
    isReuseSource: bool = False,
    config: LayerNormConfig | None = None,
    exact_padding: bool = False,
) -> None:
    """Normalize rows: the form with variance (LayerNormTiling), or with rstd (LayerNormSeparateTiling).

    C prototypes::

        template <typename T, bool isReuseSource = false>
        void LayerNorm(const LocalTensor<T>& output, const LocalTensor<T>& outputMean,
            const LocalTensor<T>& outputVariance, const LocalTensor<T>& inputX, const LocalTensor<T>& gamma,
            const LocalTensor<T>& beta, [const LocalTensor<uint8_t>& sharedTmpBuffer,] const T epsilon,
            LayerNormTiling& tiling)
        template <typename U, typename T, bool isReuseSource = false, const LayerNormConfig& config = LNCFG_NORM>
        void LayerNorm(const LocalTensor<T>& output, const LocalTensor<float>& outputMean,
            const LocalTensor<float>& outputRstd, const LocalTensor<T>& inputX, const LocalTensor<U>& gamma,
            const LocalTensor<U>& beta, const float epsilon, [const LocalTensor<uint8_t>& sharedTmpBuffer,]
            const LayerNormPara& para, const LayerNormSeparateTiling& tiling)

    CANN: types come from the tensors; the tiling's type selects the form; ``exact_padding`` is new; bfloat16, which
    950 takes in the rstd form, is refused.

    Args:
        output: [B, S, H] or [A, rLengthWithPadding]. Output.
        outputMean: [B, S] in T, or [A] in float. Output.
        outputVariance: Biased variance, [B, S] in T; in the rstd form rstd, [A] in float. Output.
        inputX: [B, S, H] or [A, rLengthWithPadding].
        gamma: [H] or [rLength], scale.
        beta: [H] or [rLength], shift.
        epsilon: Added to the variance; rounded to T first in the variance form.
        tiling: Of GetLayerNormNDTilingInfo.
        para: The sizes, in the rstd form.
        sharedTmpBuffer: uint8 temporary space; None takes what TPipe has left.
        isReuseSource: Float, variance form, not on 3510: inputX serves as scratch.
        config: Switches of the rstd form; isOutputRstd=False (950 only) returns the variance.
        exact_padding: Variance form with originHLength < storageHLength: leave the padding out. As published the
            padding enters the variance (and on 3510 the mean): AscendWarning.

    Raises:
        DeviceFault, DtypeError, TilingError: A rule is broken.
    """
    tensors = (output, outputMean, outputVariance, inputX, gamma, beta)
    roles = ("output", "outputMean", "outputVariance", "inputX", "gamma", "beta")
    check_kinds(
        API, dict(zip(roles, tensors, strict=True)), epsilon, tiling, more, LayerNormTiling, LayerNormSeparateTiling
    )
    if isinstance(tiling, LayerNormTiling):
        _call_with_variance(tensors, epsilon, tiling, sharedTmpBuffer, isReuseSource, exact_padding)
    else:
        _call_with_rstd(tensors, epsilon, tiling, para, sharedTmpBuffer, isReuseSource, config or LayerNormConfig())


Six = tuple[LocalTensor, LocalTensor, LocalTensor, LocalTensor, LocalTensor, LocalTensor]


def _call_with_variance(
    tensors: Six, epsilon: float, tiling: LayerNormTiling, shared: LocalTensor | None, reuse: bool, exact: bool
) -> None:
    soc, rows, H = tensors[0].core.soc, tiling.bLength * tiling.sLength, tiling.hLength
    roles = ("output", "outputMean", "outputVariance", "inputX", "gamma", "beta")
    sizes = (rows * H, rows, rows, rows * H, H, H)
    operands = dict(zip(roles, zip(tensors, sizes, strict=True), strict=True))
    call = TileCall(API, ForwardTensors, operands, 3, shared)
    call.check(H, reuse, 0 if soc.regbase else tiling.tmpBufSize * 4, scratch=("inputX",))
    if tiling.originalHLength < H and not exact:
        call.warn(
            f"{H - tiling.originalHLength} padded columns of {H} enter the "
            + ("mean and the variance" if soc.regbase else "variance as (0 - mean)²")
            + ". exact_padding=True leaves them out"
        )
    eps = float(tensors[0].dtype.type(epsilon))
    if soc.regbase:
        call.run(lambda t: variance_form_3510(t, eps, tiling, exact))
        return
    call.run(lambda t: variance_form_common(t, eps, tiling, reuse, exact))
    if reuse:
        text = "inputX was overwritten by LayerNorm with isReuseSource=true and is read again"
        call.mark_overwritten("inputX", rows * H, text)


def _call_with_rstd(
    tensors: Six,
    epsilon: float,
    tiling: LayerNormSeparateTiling,
    para: LayerNormPara | None,
    shared: LocalTensor | None,
    reuse: bool,
    config: LayerNormConfig,
) -> None:
    output, mean, rstd, x, gamma, beta = tensors
    soc, T = output.core.soc, output.dtype
    if para is None:
        raise TilingError("LayerNorm: the rstd form needs para, got None")
    A, R, row = para.aLength, para.rLength, para.rLengthWithPadding
    if tiling.rLength != R or 0 < tiling.aLength < A:
        raise TilingError(
            f"LayerNorm: para [{A}, {R}] does not fit the tiling, made for [{tiling.aLength}, {tiling.rLength}]"
        )
    if config.isOnlyOutput:
        raise TilingError("LayerNorm: isOnlyOutput=true is not supported, by upstream neither")
    if not config.isOutputRstd and not soc.regbase:
        raise TilingError(f"LayerNorm: isOutputRstd=false needs a SoC of architecture 3510, not {soc.name}")
    operands = {
        "output": (output, A * row), "outputMean": (mean, A), "outputRstd": (rstd, A), "inputX": (x, A * row),
    }  # fmt: skip
    call = TileCall(
        API, lambda y, mean, rstd, x, temp: ForwardTensors(y, mean, rstd, x, gamma, beta, temp), operands, 3, shared
    )
    call.check(row, reuse, 0 if soc.regbase else tiling.tmpBufSize * 4, wide=("outputMean", "outputRstd"))
    if gamma.dtype != beta.dtype or gamma.dtype not in (T, FLOAT):
        raise DtypeError(
            f"LayerNorm: gamma and beta must both be {T} or both float, got {gamma.dtype} and {beta.dtype}"
        )
    call.run(lambda t: rstd_form(t, epsilon, para, tiling, config))
