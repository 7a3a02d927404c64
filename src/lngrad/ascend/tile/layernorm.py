"""The forward tile API, LayerNorm, in its two forms: with variance and with rstd.

Its variance is what LayerNormGrad takes; there is no tile API that takes rstd.
"""

from __future__ import annotations

import numpy as np

from lngrad.ascend.device.local_tensor import LocalTensor, pop_stack_buffer
from lngrad.ascend.device.source import warn_at_kernel
from lngrad.ascend.tile import checks
from lngrad.ascend.tile.door import Door, Operand
from lngrad.ascend.tile.layernorm_forward import (
    ForwardTensors,
    LayerNormConfig,
    LayerNormPara,
    RstdForm,
    rstd_form,
    variance_form_3510,
    variance_form_common,
)
from lngrad.ascend.tiling.structs import LayerNormSeparateTiling, LayerNormTiling


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
    """Normalize rows: the form with variance (LayerNormTiling), or with rstd
    (LayerNormSeparateTiling).

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

    CANN: types come from the tensors; the tiling's type selects the form; ``exact_padding`` is new;
    bfloat16, which 950 takes in the rstd form, is refused.

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
        exact_padding: Variance form with originHLength < storageHLength: leave the padding out. As
            published the padding enters the variance (and on 3510 the mean): AscendWarning.

    Raises:
        DeviceFault, DtypeError, TilingError: A rule is broken.
    """
    t = ForwardTensors(
        y=output,
        mean=outputMean,
        spread=outputVariance,
        x=inputX,
        gamma=gamma,
        beta=beta,
        temp=pop_stack_buffer(output.core) if sharedTmpBuffer is None else sharedTmpBuffer,
    )
    if isinstance(tiling, LayerNormTiling):
        _variance_form(t, epsilon, tiling, sharedTmpBuffer, isReuseSource, exact_padding)
    else:
        form = RstdForm.of(para, tiling, config or LayerNormConfig(), output.core.soc)
        _rstd_form(t, epsilon, form, sharedTmpBuffer, isReuseSource)


def _variance_form(
    t: ForwardTensors,
    epsilon: float,
    tiling: LayerNormTiling,
    shared: LocalTensor | None,
    reuse: bool,
    exact: bool,
) -> None:
    rows, H, regbase = tiling.bLength * tiling.sLength, tiling.hLength, t.y.core.soc.regbase
    door = Door(
        "LayerNorm",
        t,
        {
            "y": Operand("output", rows * H, output=True),
            "mean": Operand("outputMean", rows, output=True),
            "spread": Operand("outputVariance", rows, output=True),
            "x": Operand("inputX", rows * H),
            "gamma": Operand("gamma", H),
            "beta": Operand("beta", H),
        },
    )
    door.check(H, reuse, shared, 0 if regbase else tiling.tmpBufSize * 4)
    if tiling.originalHLength < H and not exact:
        warn_at_kernel(
            f"LayerNorm: {H - tiling.originalHLength} padded columns of {H} enter the "
            + ("mean and the variance" if regbase else "variance as (0 - mean)²")
            + ". exact_padding=True leaves them out"
        )
    eps = float(t.y.dtype.type(epsilon))
    if regbase:
        door.run(lambda tensors: variance_form_3510(tensors, eps, tiling, exact))
    else:
        door.run(lambda tensors: variance_form_common(tensors, eps, tiling, reuse, exact))
        if reuse:
            text = "inputX was overwritten by LayerNorm with isReuseSource=true and is read again"
            door.mark_overwritten("x", rows * H, text)


def _rstd_form(t: ForwardTensors, epsilon: float, form: RstdForm, shared: LocalTensor | None, reuse: bool) -> None:
    A, row, tiling = form.A, form.row, form.tiling
    door = Door(
        "LayerNorm",
        t,
        {
            "y": Operand("output", A * row, output=True),
            "mean": Operand("outputMean", A, output=True, dtype=np.float32),
            "spread": Operand("outputRstd", A, output=True, dtype=np.float32),
            "x": Operand("inputX", A * row),
        },
    )
    door.check(row, reuse, shared, 0 if t.y.core.soc.regbase else tiling.tmpBufSize * 4)
    checks.rstd_scale_types("LayerNorm", t.y, t.gamma, t.beta)
    door.run(lambda tensors: rstd_form(tensors, epsilon, form))
