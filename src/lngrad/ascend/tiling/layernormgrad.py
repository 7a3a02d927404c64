"""Host-side tiling of LayerNormGrad and LayerNormGradBeta.

Sources: layernorm_grad_tiling_impl.cpp and layernorm_grad_beta_tiling_impl.cpp of CANN's
asc-devkit. Deviations are marked ``CANN:``; in all functions: broken rules and uint32 wrap-around
raise, ``lenient=True`` restores upstream.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lngrad.ascend import soc as socs
from lngrad.ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling, float_bits
from lngrad.ascend.tiling.words import Words, align_up

FLOAT_BYTES = 4
HALF_BYTES = 2
CHUNK_BUFFERS = ("tmpTensorBSH", "pdVarTensor", "pdMeanTensor", "x1Tensor", "x2Tensor", "x3Tensor")
REUSED_CHUNK_BUFFERS = ("x1Tensor", "x2Tensor")
HALF_CHUNK_BUFFERS = ("tmpTensor", "tmpTensor1", "tmpTensor2")


def chunk_buffers(typeSize: int, isReuseSource: bool) -> tuple[str, ...]:
    """Return the chunk buffers of LayerNormGrad in the order in which they lie (not on 3510).

    The names are those of the struct's fields without ``Pos`` and ``Size``. With isReuseSource, x1
    and x2 lie in inputDy and inputX; half, which does not take it, has three more for its casts.
    """
    if typeSize == HALF_BYTES:
        return (*CHUNK_BUFFERS, *HALF_CHUNK_BUFFERS)
    return tuple(name for name in CHUNK_BUFFERS if not (isReuseSource and name in REUSED_CHUNK_BUFFERS))


def rows_per_block(typeSize: int) -> int:
    """Return the multiple to which the rows of a chunk are rounded up, so that chunks of B·S start
    aligned."""
    return 16 if typeSize == HALF_BYTES else 8


def GetLayerNormGradMaxMinTmpSize(
    srcShape: Sequence[int],
    typeSize: int,
    isReuseSource: bool,
    *,
    soc: str | socs.Soc | None = None,
    lenient: bool = False,
) -> tuple[int, int]:
    """Return the largest and the smallest temporary buffer of LayerNormGrad, in bytes.

    C prototype::

        void GetLayerNormGradMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, uint32_t& maxValue, uint32_t& minValue)

    CANN: the two results are returned instead of written through references. On 2002 and 2201 the
    minimum is often too small (docs/ascend-tile.md, finding A); it is returned as published, and
    ``lint`` says what is safe.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        typeSize: Bytes of an element: 2 (half) or 4 (float).
        isReuseSource: As the kernel will be called.
        soc: Whose architecture; default: this thread's.
        lenient: Upstream's values where a rule is broken, with a warning.

    Raises:
        TilingError: A broken rule, or a number that does not fit a uint32_t.
    """
    words = Words("GetLayerNormGradMaxMinTmpSize", lenient)
    B, S, H, _ = words.shape(srcShape, typeSize)
    if socs.get(soc).regbase:
        # Two rows of floats, x1 and x2; with reuse they live in the inputs.
        reuses = isReuseSource and typeSize == FLOAT_BYTES
        need = 0 if reuses else words.word("maxValue", 2 * align_up(H, 8) * FLOAT_BYTES)
        words.close()
        return need, need
    count = words.word("B*S*H", B * S * H)
    square = words.word("H*H", H * H)
    buffers = len(chunk_buffers(typeSize, isReuseSource))
    largest = words.word("maxValue", buffers * max(count, square) * typeSize)
    smallest = words.word("minValue", buffers * min(count, square) * typeSize)
    words.close()
    return largest, smallest


def GetLayerNormGradNDTilingInfo(
    srcShape: Sequence[int],
    stackBufferSize: int,
    typeSize: int,
    isReuseSource: bool,
    *,
    soc: str | socs.Soc | None = None,
    lenient: bool = False,
) -> LayerNormGradTiling:
    """Return the tiling of LayerNormGrad for a temporary buffer of ``stackBufferSize`` bytes.

    C prototype::

        void GetLayerNormGradNDTilingInfo(const TensorShape srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, optiling::LayerNormGradTiling& tiling)

    CANN: the struct is returned. ``stackBufferSize`` is in bytes as in the code; the manual's page
    says elements. With too small a buffer upstream logs and leaves the struct zero, which
    ``lenient`` reproduces.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        stackBufferSize: Bytes of the temporary buffer.
        typeSize: Bytes of an element: 2 (half) or 4 (float).
        isReuseSource: As the kernel will be called.
        soc: Whose architecture; default: this thread's.
        lenient: Upstream's values where a rule is broken, with a warning.

    Raises:
        TilingError: A broken rule, a buffer below one row, or a number that does not fit a
            uint32_t.
    """
    words = Words("GetLayerNormGradNDTilingInfo", lenient)
    B, S, H, originH = words.shape(srcShape, typeSize)
    words.divisible(H)
    count = words.word("B*S*H", B * S * H)
    stack_bytes = words.word("stackBufferSize", stackBufferSize)
    rows, one = 1, 1  # 3510 goes row by row and reads neither
    if not socs.get(soc).regbase:
        buffers = len(chunk_buffers(typeSize, isReuseSource))
        rows = stack_bytes // FLOAT_BYTES // buffers // H
        words.rule(
            rows > 0,
            f"stackBufferSize: one row takes {buffers} * {H} floats = {buffers * H * FLOAT_BYTES} bytes, "
            f"got {stack_bytes}",
        )
        if rows == 0:
            words.close()
            return LayerNormGradTiling()
        # Rounded up after the buffer was divided: this is finding A.
        rows = align_up(rows, rows_per_block(typeSize))
        one = words.word("oneCalSize", rows * H)
    tiling = LayerNormGradTiling(
        stackBufferSize=stack_bytes,
        bLength=B,
        sLength=S,
        hLength=H,
        originalHLength=originH,
        oneCalSize=one,
        nohCalSize=rows,
        loopNum=count // one,
        tailSize=count % one,
        nohTailSize=count % one // H,
        lastDimValueBack=float_bits(float(np.float32(1) / np.float32(originH))),
        lastDimValueBackMulTwo=float_bits(float(np.float32(2) / np.float32(originH))),
    )
    _place_chunk_buffers(tiling, words, one, typeSize, isReuseSource)
    words.close()
    return tiling


def _place_chunk_buffers(
    tiling: LayerNormGradTiling, words: Words, one: int, typeSize: int, isReuseSource: bool
) -> None:
    """Fill in the …Pos fields, one chunk buffer after the other, and every …Size with ``one``."""
    for index, name in enumerate(chunk_buffers(typeSize, isReuseSource)):
        setattr(tiling, f"{name}Pos", words.word(f"{name}Pos", index * one))
    for name in (field for field in vars(tiling) if field.endswith("Pos")):
        setattr(tiling, name.removesuffix("Pos") + "Size", one)


def GetLayerNormGradBetaMaxMinTmpSize(
    srcShape: Sequence[int],
    typeSize: int,
    isReuseSource: bool,
    *,
    soc: str | socs.Soc | None = None,
    lenient: bool = False,
) -> tuple[int, int]:
    """Return the largest and the smallest temporary buffer of LayerNormGradBeta, in bytes.

    C prototype::

        void GetLayerNormGradBetaMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, uint32_t& maxValue, uint32_t& minValue)

    CANN: the two results are returned. As upstream, neither ``isReuseSource`` nor the architecture
    changes them.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        typeSize: Bytes of an element: 2 (half) or 4 (float).
        isReuseSource: Ignored.
        soc: Checked to exist, else ignored.
        lenient: Upstream's values where a rule is broken, with a warning.

    Raises:
        TilingError: A broken rule, or a number that does not fit a uint32_t.
    """
    socs.get(soc)
    words = Words("GetLayerNormGradBetaMaxMinTmpSize", lenient)
    B, S, H, _ = words.shape(srcShape, typeSize)
    buffers = 4 if typeSize == HALF_BYTES else 2
    largest = words.word("maxValue", buffers * B * S * H * FLOAT_BYTES)
    smallest = words.word("minValue", buffers * H * FLOAT_BYTES)
    words.close()
    return largest, smallest


def GetLayerNormGradBetaNDTilingInfo(
    srcShape: Sequence[int],
    stackBufferSize: int,
    typeSize: int,
    isReuseSource: bool,
    *,
    soc: str | socs.Soc | None = None,
    lenient: bool = False,
) -> LayerNormGradBetaTiling:
    """Return the tiling of LayerNormGradBeta for a temporary buffer of ``stackBufferSize`` bytes.

    C prototype::

        void GetLayerNormGradBetaNDTilingInfo(const TensorShape srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, optiling::LayerNormGradBetaTiling& tiling)

    CANN: the struct is returned; its ``stackBufferSize`` counts floats, as upstream. With too small
    a buffer upstream logs and leaves the struct zero, which ``lenient`` reproduces.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        stackBufferSize: Bytes of the temporary buffer.
        typeSize: Bytes of an element: 2 (half) or 4 (float).
        isReuseSource: Ignored, as upstream.
        soc: Checked to exist, else ignored.
        lenient: Upstream's values where a rule is broken, with a warning.

    Raises:
        TilingError: A broken rule, too small a buffer, or a number that does not fit a uint32_t.
    """
    socs.get(soc)
    words = Words("GetLayerNormGradBetaNDTilingInfo", lenient)
    B, S, H, originH = words.shape(srcShape, typeSize)
    words.divisible(H)
    half = typeSize == HALF_BYTES
    count = words.word("B*S*H", B * S * H)
    stack = words.word("stackBufferSize", stackBufferSize) // FLOAT_BYTES
    buffers = 2 if half else 1
    # Half keeps its two accumulators of H floats in front of the two chunk buffers.
    one = (stack - 2 * H) // buffers // H * H if half else stack // H * H
    enough = stack >= 2 * H and one > 0
    words.rule(
        enough,
        f"stackBufferSize: at least {4 if half else 2} * {H} floats = {(4 if half else 2) * H * FLOAT_BYTES} bytes "
        f"are needed, got {stackBufferSize}",
    )
    if not enough:
        words.close()
        return LayerNormGradBetaTiling()
    one = min(one, count)
    tail = count % one
    tiling = LayerNormGradBetaTiling(
        stackBufferSize=stack,
        bLength=B,
        sLength=S,
        hLength=H,
        originalHLength=originH,
        bshLength=count,
        bsLength=words.word("B*S", B * S),
        oneCalSize=one,
        numberOfTmpBuf=buffers,
        loopRound=count // one,
        inputTailSize=tail,
        inputTailPos=count - tail,
        bsTailSize=tail // H,
        bshCurLength=one,
        bsCurLength=one // H,
        betaTempTensorPos=H if half else 0,
        inputDyTmpTensorPos=2 * H if half else 0,
        resForGammaTmpTensorPos=2 * H + one if half else 0,
    )
    words.close()
    return tiling
