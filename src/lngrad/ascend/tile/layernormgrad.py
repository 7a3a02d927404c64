"""The backward tile APIs, LayerNormGrad and LayerNormGradBeta, on LocalTensor.

Each door checks what the CPU-debug build of CANN checks, takes its temporary space from the framework where none is
given, and runs the code of the SoC's architecture. The rules about memory are enforced below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lngrad.ascend.device.local_tensor import LocalTensor, pop_stack_buffer
from lngrad.ascend.tile import checks
from lngrad.ascend.tile.checks import DataFormat
from lngrad.ascend.tile.layernormgrad_3510 import beta_3510, grad_3510
from lngrad.ascend.tile.layernormgrad_common import (
    BetaTensors,
    GradTensors,
    beta_common,
    grad_common,
    stack_bytes_touched,
)
from lngrad.ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling

__all__ = [
    "DataFormat",
    "LayerNormGrad",
    "LayerNormGradBeta",
    "LayerNormGradShapeInfo",
]


@dataclass(frozen=True)
class LayerNormGradShapeInfo:
    """The data format of all tensors of the call; ND is the only one."""

    dataFormat: DataFormat = DataFormat.ND


@np.errstate(all="ignore")
def LayerNormGrad(
    outputPdX: LocalTensor,
    resForGamma: LocalTensor,
    inputDy: LocalTensor,
    inputX: LocalTensor,
    inputVariance: LocalTensor,
    inputMean: LocalTensor,
    inputGamma: LocalTensor,
    epsilon: float,
    tiling: LayerNormGradTiling,
    shapeInfo: LayerNormGradShapeInfo | None = None,
    *,
    sharedTmpBuffer: LocalTensor | None = None,
    isReuseSource: bool = False,
    exact_padding: bool = False,
) -> None:
    """Compute the gradient of x, and the normalized x that LayerNormGradBeta takes.

    C prototypes::

        template <typename T, bool isReuseSource = false>
        void LayerNormGrad(const LocalTensor<T>& outputPdX, const LocalTensor<T>& resForGamma,
            const LocalTensor<T>& inputDy, const LocalTensor<T>& inputX, const LocalTensor<T>& inputVariance,
            const LocalTensor<T>& inputMean, const LocalTensor<T>& inputGamma,
            [LocalTensor<uint8_t>& sharedTmpBuffer,] T epsilon, LayerNormGradTiling& tiling,
            const LayerNormGradShapeInfo& shapeInfo = {})

    CANN: T comes from the tensors; ``sharedTmpBuffer`` and ``isReuseSource`` are keywords; ``exact_padding`` is new.

    Args:
        outputPdX: [B, S, H], the gradient of x. Output.
        resForGamma: [B, S, H], (x - mean) * rstd. Output.
        inputDy: [B, S, H], gradient of the forward's output.
        inputX: [B, S, H], the forward's input.
        inputVariance: [B, S], biased variance of the rows. Before the mean, as in C++.
        inputMean: [B, S], mean of the rows.
        inputGamma: [H], scale.
        epsilon: added to the variance; rounded to T first, so that 1e-12 is 0 for half.
        tiling: of GetLayerNormGradNDTilingInfo for this shape, T, temporary buffer and isReuseSource.
        shapeInfo: ND.
        sharedTmpBuffer: uint8 temporary space; None takes what TPipe has left.
        isReuseSource: float only: inputDy and inputX serve as scratch. The manual speaks of inputX; the published code
            overwrites both, the whole of them on 2002 and 2201, their first rows on 3510. Who reads them afterwards
            gets an AscendWarning.
        exact_padding: where originHLength < storageHLength, leave the padding out of all sums and write 0 to it.
            As published the padding enters the mean's gradient, which is wrong unless the mean is 0: AscendWarning.

    Raises:
        DeviceFault, DtypeError, TilingError: a rule is broken.
    """
    api = "LayerNormGrad"
    t = GradTensors(
        dx=outputPdX,
        xhat=resForGamma,
        dy=inputDy,
        x=inputX,
        variance=inputVariance,
        mean=inputMean,
        gamma=inputGamma,
        temp=pop_stack_buffer(outputPdX.ub) if sharedTmpBuffer is None else sharedTmpBuffer,
    )
    rows, H = tiling.bLength * tiling.sLength, tiling.hLength
    checks.tile_api(api, outputPdX.ub.soc)
    checks.data_format(api, shapeInfo.dataFormat if shapeInfo else DataFormat.ND)
    checks.element_type(api, outputPdX, isReuseSource)
    matrix, narrow = rows * H, rows
    checks.tensors(
        api,
        outputPdX,
        [
            ("outputPdX", outputPdX, matrix),
            ("resForGamma", resForGamma, matrix),
            ("inputDy", inputDy, matrix),
            ("inputX", inputX, matrix),
            ("inputVariance", inputVariance, narrow),
            ("inputMean", inputMean, narrow),
            ("inputGamma", inputGamma, H),
        ],
    )
    checks.whole_blocks(api, outputPdX, H)
    checks.outputs_apart(api, outputPdX, resForGamma, matrix, ("outputPdX", "resForGamma"))
    checks.temporary(api, sharedTmpBuffer, t.temp, tiling.stackBufferSize)
    touched = 0 if outputPdX.ub.soc.regbase else stack_bytes_touched(tiling)
    if tiling.stackBufferSize < touched <= t.temp.GetSize():
        checks.warn(
            f"{api}: the tiling was made for a temporary buffer of {tiling.stackBufferSize} bytes, but reaches byte "
            f"{touched} of it; this call is right only because the buffer happens to have {t.temp.GetSize()}"
        )
    if tiling.originalHLength < H and not exact_padding and inputMean.read(api, "inputMean", rows).any():
        checks.warn(
            f"{api}: {H - tiling.originalHLength} padded columns of {H} enter the gradient of the mean as "
            "-2 * (0 - mean), and the mean is not 0: outputPdX is wrong. exact_padding=True leaves them out"
        )
    eps = float(outputPdX.dtype.type(epsilon))
    outputs = {"dx": ("outputPdX", matrix), "xhat": ("resForGamma", matrix)}
    separate = checks.apart(t, {field: count for field, (_, count) in outputs.items()})
    run = grad_3510 if outputPdX.ub.soc.regbase else grad_common
    if separate is not None:
        run(separate, eps, tiling, isReuseSource, exact_padding)
    with outputPdX.ub.tally.within(api):
        run(t, eps, tiling, isReuseSource, exact_padding)
    checks.warn_where_different(api, t, separate, outputs)
    if isReuseSource:
        count = H if outputPdX.ub.soc.regbase else matrix
        for name, tensor in (("inputDy", inputDy), ("inputX", inputX)):
            if tensor.overlaps(outputPdX) or tensor.overlaps(resForGamma):
                continue  # it is an output now, and whether a right one was compared above
            tensor.mark_stale(
                count,
                f"{name} was overwritten by LayerNormGrad with isReuseSource=true and is read again: it holds "
                "intermediates now (the manual speaks of inputX only, the published code overwrites both)",
            )


@np.errstate(all="ignore")
def LayerNormGradBeta(
    outputPdGamma: LocalTensor,
    outputPdBeta: LocalTensor,
    resForGamma: LocalTensor,
    inputDy: LocalTensor,
    tiling: LayerNormGradBetaTiling,
    *,
    sharedTmpBuffer: LocalTensor | None = None,
    isReuseSource: bool = False,
    exact_padding: bool = False,
) -> None:
    """Compute the gradients of gamma and beta: sums over B and S.

    C prototypes::

        template <typename T, bool isReuseSource = false>
        void LayerNormGradBeta(const LocalTensor<T>& outputPdGamma, const LocalTensor<T>& outputPdBeta,
            const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy,
            [const LocalTensor<uint8_t>& sharedTmpBuffer,] LayerNormGradBetaTiling& tiling)

    CANN: T comes from the tensors; ``sharedTmpBuffer`` and ``isReuseSource`` are keywords; ``exact_padding`` is new.

    Args:
        outputPdGamma: [H], sum of inputDy * resForGamma. Output.
        outputPdBeta: [H], sum of inputDy. Output.
        resForGamma: [B, S, H], of LayerNormGrad.
        inputDy: [B, S, H], gradient of the forward's output.
        tiling: of GetLayerNormGradBetaNDTilingInfo for this shape, T and temporary buffer.
        sharedTmpBuffer: uint8 temporary space; None takes what TPipe has left.
        isReuseSource: float only. The manual says that inputDy may be overwritten; the published code of 2002 and 2201
            overwrites resForGamma instead. Who reads either afterwards gets an AscendWarning. Ignored on 3510.
        exact_padding: where originHLength < storageHLength, add up columns that are storageHLength apart, and write 0
            to the padding. As published 2002 and 2201 take originHLength for the distance, which is wrong:
            AscendWarning.

    Raises:
        DeviceFault, DtypeError, TilingError: a rule is broken.
    """
    api = "LayerNormGradBeta"
    t = BetaTensors(
        dgamma=outputPdGamma,
        dbeta=outputPdBeta,
        xhat=resForGamma,
        dy=inputDy,
        temp=pop_stack_buffer(outputPdGamma.ub) if sharedTmpBuffer is None else sharedTmpBuffer,
    )
    soc, H, matrix = outputPdGamma.ub.soc, tiling.hLength, tiling.bshLength
    checks.tile_api(api, soc)
    checks.element_type(api, outputPdGamma, isReuseSource)
    given = [
        ("outputPdGamma", outputPdGamma, H),
        ("outputPdBeta", outputPdBeta, H),
        ("resForGamma", resForGamma, matrix),
        ("inputDy", inputDy, matrix),
    ]
    checks.tensors(api, outputPdGamma, given)
    checks.whole_blocks(api, outputPdGamma, H)
    checks.outputs_apart(api, outputPdGamma, outputPdBeta, H, ("outputPdGamma", "outputPdBeta"))
    checks.temporary(api, sharedTmpBuffer, t.temp, tiling.stackBufferSize * 4)
    checks.beta_positions(api, tiling)
    # A chunk of one row has no distance of rows to get wrong.
    if tiling.originalHLength < H and not exact_padding and not soc.regbase and tiling.bsCurLength > 1:
        checks.warn(
            f"{api}: takes originHLength {tiling.originalHLength} for the distance of rows, which are {H} apart: "
            "outputPdGamma and outputPdBeta are wrong. exact_padding=True takes storageHLength"
        )
    outputs = {"dgamma": ("outputPdGamma", H), "dbeta": ("outputPdBeta", H)}
    separate = checks.apart(t, {field: count for field, (_, count) in outputs.items()})
    if separate is not None:
        _beta(separate, tiling, isReuseSource, exact_padding)
    with outputPdGamma.ub.tally.within(api):
        _beta(t, tiling, isReuseSource, exact_padding)
    checks.warn_where_different(api, t, separate, outputs)
    if isReuseSource and not soc.regbase:
        for name, tensor, why in (
            ("resForGamma", resForGamma, "the published code overwrites it"),
            ("inputDy", inputDy, "the manual allows it to be overwritten"),
        ):
            text = f"{name} is read after LayerNormGradBeta with isReuseSource=true: {why}"
            tensor.mark_stale(matrix, text)


def _beta(t: BetaTensors, tiling: LayerNormGradBetaTiling, reuse: bool, exact: bool) -> None:
    if t.dgamma.ub.soc.regbase:
        beta_3510(t, tiling)
    else:
        beta_common(t, tiling, reuse, exact)
