"""The backward tile APIs, LayerNormGrad and LayerNormGradBeta, on LocalTensor.

Each checks what the CPU-debug build of CANN checks, takes its temporary space from the framework where none is given,
and runs the code of the SoC's architecture. The rules about memory are enforced below it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from lngrad.errors import DtypeError
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.faults import DeviceFault, TilingError
from lngrad_ascend.tile.layernormgrad_kernels import (
    BetaTensors,
    GradTensors,
    beta_3510,
    beta_common,
    grad_3510,
    grad_common,
    stack_bytes_touched,
)
from lngrad_ascend.tile.tile_call import TileCall, check_kinds
from lngrad_ascend.tiling.host_functions import CHUNK_BUFFERS, HALF_CHUNK_BUFFERS, chunk_buffers, smallest_grad_buffer
from lngrad_ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling


class DataFormat(enum.Enum):
    """The layout of a tensor. The tile APIs take ND only."""

    ND = 0
    NZ = 1
    NCHW = 2
    NC1HWC0 = 3
    NHWC = 4
    NCDHW = 5
    NDC1HWC0 = 6
    FRACTAL_Z_3D = 7


@dataclass(frozen=True)
class LayerNormGradShapeInfo:
    """The data format of all tensors of the call; ND is the only one."""

    dataFormat: DataFormat = DataFormat.ND


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
    *more: object,
    sharedTmpBuffer: LocalTensor | None = None,
    isReuseSource: bool = False,
    exact_padding: bool = False,
    quiet: bool = False,
) -> None:
    """Compute the gradient of x, and the normalized x that LayerNormGradBeta takes.

    C prototypes::

        template <typename T, bool isReuseSource = false>
        void LayerNormGrad(const LocalTensor<T>& outputPdX, const LocalTensor<T>& resForGamma,
            const LocalTensor<T>& inputDy, const LocalTensor<T>& inputX, const LocalTensor<T>& inputVariance,
            const LocalTensor<T>& inputMean, const LocalTensor<T>& inputGamma,
            [LocalTensor<uint8_t>& sharedTmpBuffer,] T epsilon, LayerNormGradTiling& tiling,
            const LayerNormGradShapeInfo& shapeInfo = {})

    CANN: T comes from the tensors; ``sharedTmpBuffer`` and ``isReuseSource`` are keywords; ``exact_padding`` and ``quiet`` are
    new.

    Args:
        outputPdX: [B, S, H], the gradient of x. Output.
        resForGamma: [B, S, H], (x - mean) * rstd. Output.
        inputDy: [B, S, H], gradient of the forward's output.
        inputX: [B, S, H], the forward's input.
        inputVariance: [B, S], biased variance of the rows. Before the mean, as in C++.
        inputMean: [B, S], mean of the rows.
        inputGamma: [H], scale.
        epsilon: Added to the variance; rounded to T first, so that 1e-12 is 0 for half.
        tiling: Of GetLayerNormGradNDTilingInfo for this shape, T, temporary buffer and isReuseSource.
        shapeInfo: ND.
        sharedTmpBuffer: uint8 temporary space; None takes what TPipe has left.
        isReuseSource: Float only: inputDy and inputX serve as scratch. The manual speaks of inputX; the published
            code overwrites both, the whole of them on 2002 and 2201, their first rows on 3510. Who reads them
            afterwards gets an AscendWarning.
        exact_padding: Where originHLength < storageHLength, leave the padding out of all sums and write 0 to it. As
            published the padding enters the mean's gradient, which is wrong unless the mean is 0: AscendWarning.
        quiet: Without the AscendWarning of a temporary buffer below the published minimum.

    Raises:
        DeviceFault, DtypeError, TilingError: A rule is broken.
    """
    tensors = {
        "outputPdX": outputPdX, "resForGamma": resForGamma, "inputDy": inputDy, "inputX": inputX,
        "inputVariance": inputVariance, "inputMean": inputMean, "inputGamma": inputGamma,
    }  # fmt: skip
    check_kinds("LayerNormGrad", tensors, epsilon, tiling, more, LayerNormGradTiling)
    rows, H = tiling.bLength * tiling.sLength, tiling.hLength
    matrix, regbase = rows * H, outputPdX.core.soc.regbase
    sizes = {"inputVariance": rows, "inputMean": rows, "inputGamma": H}
    operands = {name: (tensor, sizes.get(name, matrix)) for name, tensor in tensors.items()}
    call = TileCall("LayerNormGrad", GradTensors, operands, 2, sharedTmpBuffer)
    # A braced initializer of C++, ``{DataFormat::ND}``, is a set or a tuple in Python: it is named.
    layout = DataFormat.ND if shapeInfo is None else getattr(shapeInfo, "dataFormat", None)
    if not isinstance(layout, DataFormat):
        raise DtypeError(f"{call.api}: shapeInfo must be a LayerNormGradShapeInfo(DataFormat.ND), got {shapeInfo!r}")
    if layout is not DataFormat.ND:
        raise DeviceFault(f"{call.api}: dataFormat must be ND, got {layout.name}")
    for name in ("bLength", "sLength", "hLength", *(() if regbase else ("nohCalSize",))):
        if getattr(tiling, name) < 1:
            raise TilingError(
                f"{call.api}: {name} must be above 0, got {getattr(tiling, name)}; the tiling was never filled"
            )
    room, touched = call.temp.GetSize(), 0 if regbase else stack_bytes_touched(tiling)
    call.check(H, isReuseSource, tiling.stackBufferSize, scratch=("inputDy", "inputX"), touched=touched)
    size = outputPdX.dtype.itemsize
    _check_made_for(tiling, size, isReuseSource)
    least = smallest_grad_buffer(tiling.bLength, tiling.sLength, H, size, isReuseSource, regbase)
    narrow = f"the manual asks S of inputVariance and inputMean to fill 32 bytes, S is {tiling.sLength} of {size} bytes"
    call.remark({narrow: tiling.sLength * size % call.soc.block_bytes != 0})
    if tiling.stackBufferSize < least and not quiet:
        call.warn(f"the tiling was made for {tiling.stackBufferSize} bytes, the published minimum is {least}")
    if tiling.stackBufferSize < touched <= room:  # the chunks pass the buffer that the tiling was made for
        call.warn(
            f"the tiling was made for a temporary buffer of {tiling.stackBufferSize} bytes, but reaches "
            f"byte {touched} of it; this call is right only because the buffer happens to have {room}"
        )
    if tiling.originalHLength < H and not exact_padding:
        padding = call.check_padding(("inputDy", "inputX", "inputGamma"), H, tiling.originalHLength, True)
        mean = inputMean.read(call.api, "inputMean", rows).astype(np.float32)[:, None]
        if (padding["inputX"] - mean).any() or (padding["inputDy"] * padding["inputGamma"]).any():
            call.warn(
                f"{H - tiling.originalHLength} padded columns of {H} enter the gradient of the mean as "
                "-2 * (x - mean), and x is not the mean there, or dy * gamma not 0: outputPdX is wrong. Fill the padding of "
                "inputX with the row's mean, of inputDy with 0; in Python, exact_padding=True leaves it out"
            )
    eps = float(outputPdX.dtype.type(epsilon))
    run = grad_3510 if regbase else grad_common
    call.run(lambda tensors: run(tensors, eps, tiling, isReuseSource, exact_padding))
    if isReuseSource:
        for name in ("inputDy", "inputX"):
            call.mark_overwritten(
                name,
                H if regbase else matrix,
                f"{name} was overwritten by LayerNormGrad with isReuseSource=true and is read again: it contains "
                "intermediates now (the manual speaks of inputX only, the published code overwrites both)",
            )


def _check_made_for(tiling: LayerNormGradTiling, type_size: int, reuse: bool) -> None:
    """Refuse a tiling whose positions are those of another typeSize or isReuseSource."""
    kinds = {(2, False): "half", (4, False): "float", (4, True): "float with isReuseSource=true"}
    places = {name: getattr(tiling, f"{name}Pos") for name in CHUNK_BUFFERS + HALF_CHUNK_BUFFERS}

    def fits(kind: tuple[int, bool]) -> bool:
        expected = {name: index * tiling.oneCalSize for index, name in enumerate(chunk_buffers(*kind))}
        return places == dict.fromkeys(places, 0) | expected

    made_for = [*filter(fits, kinds)]
    if made_for and (type_size, reuse) not in made_for:
        raise TilingError(
            f"LayerNormGrad: the tiling was made for {kinds[made_for[0]]}, by its x1TensorPos {tiling.x1TensorPos} and "
            f"tmpTensorPos {tiling.tmpTensorPos}; the call is {kinds[type_size, reuse]}"
        )


def LayerNormGradBeta(
    outputPdGamma: LocalTensor,
    outputPdBeta: LocalTensor,
    resForGamma: LocalTensor,
    inputDy: LocalTensor,
    tiling: LayerNormGradBetaTiling,
    *more: object,
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
        resForGamma, inputDy, sharedTmpBuffer: As of LayerNormGrad.
        tiling: Of GetLayerNormGradBetaNDTilingInfo for this shape, T and temporary buffer.
        isReuseSource: Float only. The manual says that inputDy may be overwritten; the published code of 2002 and
            2201 overwrites resForGamma instead. Who reads either afterwards gets an AscendWarning; on
            3510, where nothing is overwritten, who reads inputDy.
        exact_padding: Where originHLength < storageHLength, add up columns that are storageHLength apart, and write 0
            to the padding. As published 2002 and 2201 take originHLength for the distance, which is wrong:
            AscendWarning.

    Raises:
        DeviceFault, DtypeError, TilingError: A rule is broken.
    """
    tensors = {
        "outputPdGamma": outputPdGamma, "outputPdBeta": outputPdBeta, "resForGamma": resForGamma, "inputDy": inputDy,
    }  # fmt: skip
    check_kinds("LayerNormGradBeta", tensors, 0, tiling, more, LayerNormGradBetaTiling)
    H, matrix, regbase = tiling.hLength, tiling.bshLength, outputPdGamma.core.soc.regbase
    operands = {name: (tensor, H if name.startswith("output") else matrix) for name, tensor in tensors.items()}
    call = TileCall("LayerNormGradBeta", BetaTensors, operands, 2, sharedTmpBuffer)
    call.check(H, isReuseSource, tiling.stackBufferSize * 4, scratch=("resForGamma", "inputDy"))
    call.remark({})
    if tiling.oneCalSize < 1:
        raise TilingError(
            f"{call.api}: oneCalSize must be above 0, got {tiling.oneCalSize}; the tiling was never filled"
        )
    end = tiling.resForGammaTmpTensorPos + tiling.oneCalSize
    if end > tiling.stackBufferSize:
        raise TilingError(
            f"{call.api}: the buffers end at float {end}, stackBufferSize is {tiling.stackBufferSize} floats"
        )
    made_for, T = (
        ("float", "half")[bool(flag)] for flag in (tiling.betaTempTensorPos, outputPdGamma.dtype == np.float16)
    )
    if made_for != T:
        raise TilingError(
            f"{call.api}: the tiling was made for {made_for}, by its betaTempTensorPos {tiling.betaTempTensorPos}; the call "
            f"is {T}"
        )
    if tiling.originalHLength < H and not exact_padding:
        # A chunk of one row has no distance of rows to get wrong.
        mixes = not regbase and tiling.bsCurLength > 1
        call.check_padding(("resForGamma", "inputDy"), H, tiling.originalHLength, mixes)
        if mixes:
            call.warn(
                f"takes originHLength {tiling.originalHLength} for the distance of rows, which are {H} apart: "
                "outputPdGamma and outputPdBeta are wrong. Give this tiling storageHLength as originHLength; in Python, "
                "exact_padding=True takes it"
            )
    if regbase:
        call.run(lambda tensors: beta_3510(tensors, tiling))
    else:
        call.run(lambda tensors: beta_common(tensors, tiling, isReuseSource, exact_padding))
    if isReuseSource:
        reasons = {"inputDy": "the manual allows it to be overwritten"}
        if not regbase:
            reasons["resForGamma"] = "the published code overwrites it"
        for name, why in reasons.items():
            text = f"{name} is read after LayerNormGradBeta with isReuseSource=true: {why}"
            call.mark_overwritten(name, matrix, text)
