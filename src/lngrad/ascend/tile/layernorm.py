"""The forward tile API, LayerNorm, in its two forms: with variance and with rstd.

Its variance is what LayerNormGrad takes; there is no tile API that takes rstd. The door checks as the ones in
``normalization`` do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lngrad.ascend.device.local_tensor import LocalTensor, pop_stack_buffer
from lngrad.ascend.faults import TilingError
from lngrad.ascend.tile import checks
from lngrad.ascend.tile.layernorm_forward import (
    ForwardTensors,
    rstd_form,
    variance_form_3510,
    variance_form_common,
)
from lngrad.ascend.tiling.structs import LayerNormSeparateTiling, LayerNormTiling

__all__ = ["LayerNorm", "LayerNormConfig", "LayerNormPara"]


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


@np.errstate(all="ignore")
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
    *,
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
        outputVariance: biased variance, [B, S] in T; in the rstd form rstd, [A] in float. Output.
        inputX: [B, S, H] or [A, rLengthWithPadding].
        gamma: [H] or [rLength], scale.
        beta: [H] or [rLength], shift.
        epsilon: added to the variance; rounded to T first in the variance form.
        tiling: of GetLayerNormNDTilingInfo.
        para: the sizes, in the rstd form.
        sharedTmpBuffer: uint8 temporary space; None takes what TPipe has left.
        isReuseSource: float, variance form, not on 3510: inputX serves as scratch.
        config: switches of the rstd form; isOutputRstd=False (950 only) returns the variance.
        exact_padding: variance form with originHLength < storageHLength: leave the padding out. As published the
            padding enters the variance (and on 3510 the mean): AscendWarning.

    Raises:
        DeviceFault, DtypeError, TilingError: a rule is broken.
    """
    t = ForwardTensors(
        y=output,
        mean=outputMean,
        spread=outputVariance,
        x=inputX,
        gamma=gamma,
        beta=beta,
        temp=pop_stack_buffer(output.ub) if sharedTmpBuffer is None else sharedTmpBuffer,
    )
    checks.tile_api("LayerNorm", output.ub.soc)
    checks.element_type("LayerNorm", output, isReuseSource)
    with output.ub.tally.within("LayerNorm"):
        if isinstance(tiling, LayerNormTiling):
            _variance_form(t, epsilon, tiling, sharedTmpBuffer, isReuseSource, exact_padding)
        else:
            _rstd_form(t, epsilon, tiling, para, sharedTmpBuffer, config or LayerNormConfig())


def _variance_form(
    t: ForwardTensors,
    epsilon: float,
    tiling: LayerNormTiling,
    shared: LocalTensor | None,
    reuse: bool,
    exact: bool,
) -> None:
    rows, H = tiling.bLength * tiling.sLength, tiling.hLength
    given = [
        ("output", t.y, rows * H),
        ("outputMean", t.mean, rows),
        ("outputVariance", t.spread, rows),
        ("inputX", t.x, rows * H),
        ("gamma", t.gamma, H),
        ("beta", t.beta, H),
    ]
    checks.tensors("LayerNorm", t.y, given)
    checks.whole_blocks("LayerNorm", t.y, H)
    checks.outputs_apart("LayerNorm", t.mean, t.spread, rows, ("outputMean", "outputVariance"))
    regbase = t.y.ub.soc.regbase
    if not regbase:
        checks.temporary("LayerNorm", shared, t.temp, tiling.tmpBufSize * 4)
    if tiling.originalHLength < H and not exact:
        checks.warn(
            f"LayerNorm: {H - tiling.originalHLength} padded columns of {H} enter the "
            + ("mean and the variance" if regbase else "variance as (0 - mean)²")
            + ". exact_padding=True leaves them out",
            inner=1,
        )
    eps = float(t.y.dtype.type(epsilon))
    if regbase:
        variance_form_3510(t, eps, tiling, exact)
    else:
        variance_form_common(t, eps, tiling, reuse, exact)
        if reuse:
            text = "inputX was overwritten by LayerNorm with isReuseSource=true and is read again"
            t.x.mark_stale(rows * H, text)


def _rstd_form(
    t: ForwardTensors,
    epsilon: float,
    tiling: LayerNormSeparateTiling,
    para: LayerNormPara | None,
    shared: LocalTensor | None,
    config: LayerNormConfig,
) -> None:
    if para is None:
        raise TilingError("LayerNorm: the rstd form needs para, got None")
    A, R, row = para.aLength, para.rLength, para.rLengthWithPadding
    if tiling.rLength != R or 0 < tiling.aLength < A:
        raise TilingError(
            f"LayerNorm: para [{A}, {R}] does not fit the tiling, made for [{tiling.aLength}, {tiling.rLength}]"
        )
    if config.isOnlyOutput:
        raise TilingError("LayerNorm: isOnlyOutput=true is not supported, by upstream neither")
    regbase = t.y.ub.soc.regbase
    if not config.isOutputRstd and not regbase:
        raise TilingError(f"LayerNorm: isOutputRstd=false needs a SoC of architecture 3510, not {t.y.ub.soc.name}")
    checks.tensors("LayerNorm", t.y, [("output", t.y, A * row), ("inputX", t.x, A * row)])
    checks.tensors("LayerNorm", t.mean, [("outputMean", t.mean, A), ("outputRstd", t.spread, A)])
    checks.rstd_types("LayerNorm", t.y, t.mean, t.gamma, t.beta)
    checks.whole_blocks("LayerNorm", t.y, row)
    checks.temporary("LayerNorm", shared, t.temp, 0 if regbase else tiling.tmpBufSize * 4)
    rstd_form(t, epsilon, A, R, row, tiling, not config.isNoGamma, not config.isNoBeta, config.isOutputRstd)
