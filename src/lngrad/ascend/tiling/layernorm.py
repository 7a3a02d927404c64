"""Host-side tiling of the forward LayerNorm: the form with variance ([B, S, H]) and the form with
rstd ([A, R]).

Sources: layernorm_tiling_impl.cpp and normalize_tiling_impl.cpp of CANN's asc-devkit. C++ tells the
two forms apart by overloading; here ``isComputeRstd`` does: None selects the form with variance.
Deviations are marked ``CANN:``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lngrad.ascend import soc as socs
from lngrad.ascend.tiling.structs import LayerNormSeparateTiling, LayerNormTiling
from lngrad.ascend.tiling.words import Words, align_up

FLOAT_BYTES = 4
BLOCK_BYTES = 32
FLOATS_PER_BLOCK = BLOCK_BYTES // FLOAT_BYTES
VECTOR_FLOATS, VECTOR_HALVES = 64, 128  # one vector register of 256 bytes


def GetLayerNormMaxMinTmpSize(
    srcShape: Sequence[int],
    typeSize: int,
    isReuseSource: bool,
    isComputeRstd: bool | None = None,
    isOnlyOutput: bool = False,
    *,
    soc: str | socs.Soc | None = None,
    lenient: bool = False,
) -> tuple[int, int]:
    """Return the largest and the smallest temporary buffer of LayerNorm, in bytes.

    C prototypes::

        void GetLayerNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, uint32_t& maxValue, uint32_t& minValue)
        void GetLayerNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, const bool isComputeRstd, const bool isOnlyOutput,
            uint32_t& maxValue, uint32_t& minValue)

    CANN: the two results are returned. For the rstd form upstream then checks srcShape for four
    sizes although its manual says [A, R] (and only logs the outcome); here the rule is the
    manual's.

    Args:
        srcShape: [B, S, storageHLength, originHLength], or [A, R] for the rstd form.
        typeSize: Bytes of an element: 2 (half) or 4 (float).
        isReuseSource: As the kernel will be called.
        isComputeRstd: None for the form with variance; else the form with rstd.
        isOnlyOutput: Only False is supported, by upstream as well.
        soc: Whose architecture; default: this thread's.
        lenient: Upstream's values where a rule is broken, with a warning.

    Raises:
        TilingError: A broken rule, or a number that does not fit a uint32_t.
    """
    words = Words("GetLayerNormMaxMinTmpSize", lenient)
    if isComputeRstd is not None:
        words.rule(not isOnlyOutput, "isOnlyOutput: only False is supported")
        sizes = _rstd_tmp_sizes(words, srcShape, typeSize, isComputeRstd, socs.get(soc))
        words.close()
        return sizes
    socs.get(soc)
    B, S, H, _ = words.shape(srcShape, typeSize)
    buffers = 2 if isReuseSource and typeSize == FLOAT_BYTES else 3
    statistics_bytes = 2 * align_up(B * S * FLOAT_BYTES, BLOCK_BYTES)
    largest = words.word("maxValue", buffers * align_up(B * S * H * FLOAT_BYTES, BLOCK_BYTES) + statistics_bytes)
    smallest = words.word("minValue", buffers * align_up(H * FLOAT_BYTES, BLOCK_BYTES) + statistics_bytes)
    words.close()
    return largest, smallest


def _rstd_tmp_sizes(
    words: Words, srcShape: Sequence[int], typeSize: int, isComputeRstd: bool, soc: socs.Soc
) -> tuple[int, int]:
    A, R = _matrix_shape(words, srcShape, typeSize)
    if soc.regbase:
        partials = align_up(-(-R // VECTOR_FLOATS), VECTOR_HALVES)
        floats = partials + A + (0 if isComputeRstd else A)
        size = words.word("maxValue", floats * FLOAT_BYTES)
        return size, size
    row_bytes = align_up(R, BLOCK_BYTES // typeSize) * FLOAT_BYTES
    variance_bytes = align_up(A * FLOAT_BYTES, BLOCK_BYTES)
    # The temporary buffer is used twice: for the statistics, then for Normalize, which is asked
    # what it needs.
    normalize_max = 2 * row_bytes + 2 * align_up(A, 8) * row_bytes
    normalize_min = max(variance_bytes, (2 if typeSize == FLOAT_BYTES else 4) * row_bytes)
    largest = words.word("maxValue", max(2 * A * row_bytes, normalize_max) + variance_bytes)
    smallest = words.word("minValue", max(2 * row_bytes, normalize_min) + variance_bytes)
    return largest, smallest


def _matrix_shape(words: Words, srcShape: Sequence[int], typeSize: int) -> tuple[int, int]:
    words.rule(typeSize in (2, 4), f"typeSize: expected 2 (half) or 4 (float), got {typeSize}")
    dims = [int(size) for size in srcShape]
    words.rule(
        len(dims) == 2 and all(size > 0 for size in dims),
        f"srcShape: expected 2 sizes above 0, [A, R], got {dims}",
    )
    words.divisible(dims[-1])
    return words.word("srcShape[0]", dims[0]), words.word("srcShape[1]", dims[-1])


def GetLayerNormNDTilingInfo(
    srcShape: Sequence[int],
    stackBufferSize: int,
    typeSize: int,
    isReuseSource: bool,
    isComputeRstd: bool | None = None,
    *,
    soc: str | socs.Soc | None = None,
    lenient: bool = False,
) -> LayerNormTiling | LayerNormSeparateTiling:
    """Return the tiling of LayerNorm for a temporary buffer of ``stackBufferSize`` bytes.

    C prototypes::

        void GetLayerNormNDTilingInfo(const TensorShape& srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, optiling::LayerNormTiling& tiling)
        void GetLayerNormNDTilingInfo(const TensorShape& srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, const bool isComputeRstd,
            optiling::LayerNormSeparateTiling& tiling)

    CANN: the struct is returned. With too small a buffer upstream leaves the struct as it was,
    without a word; ``lenient`` returns it zero.

    Args:
        srcShape: [B, S, storageHLength, originHLength], or [A, R] for the rstd form.
        stackBufferSize: Bytes of the temporary buffer.
        typeSize: Bytes of an element: 2 (half) or 4 (float).
        isReuseSource: As the kernel will be called.
        isComputeRstd: None for the form with variance; else the form with rstd.
        soc: Whose architecture; default: this thread's.
        lenient: Upstream's values where a rule is broken, with a warning.

    Returns:
        LayerNormTiling for the form with variance, LayerNormSeparateTiling for the form with rstd.

    Raises:
        TilingError: A broken rule, too small a buffer, or a number that does not fit a uint32_t.
    """
    words = Words("GetLayerNormNDTilingInfo", lenient)
    stack = words.word("stackBufferSize", stackBufferSize) // FLOAT_BYTES
    tiling: LayerNormTiling | LayerNormSeparateTiling
    if isComputeRstd is None:
        socs.get(soc)
        tiling = _variance_tiling(words, srcShape, stack, typeSize, isReuseSource)
    elif socs.get(soc).regbase:
        tiling = _folded_rstd_tiling(*_matrix_shape(words, srcShape, typeSize))
    else:
        tiling = _rstd_tiling(words, *_matrix_shape(words, srcShape, typeSize), stack, typeSize)
    words.close()
    return tiling


def _chunk(words: Words, stack: int, statistics: int, buffers: int, row: int, count: int) -> int:
    """Return the elements of a chunk: whole rows, at most everything; 0 if not one row fits."""
    one = words.word("stackBufferSize - statistics", stack - statistics) // buffers // row * row
    words.rule(
        one > 0,
        f"stackBufferSize: at least {buffers} * {row} + {statistics} floats = "
        f"{(buffers * row + statistics) * FLOAT_BYTES} bytes are needed, got {stack * FLOAT_BYTES}",
    )
    return min(one, count)


def _variance_tiling(
    words: Words, srcShape: Sequence[int], stack: int, typeSize: int, isReuseSource: bool
) -> LayerNormTiling:
    B, S, H, originH = words.shape(srcShape, typeSize)
    words.divisible(H)
    count = words.word("B*S*H", B * S * H)
    rows = words.word("B*S", B * S)
    buffers = 2 if isReuseSource and typeSize == FLOAT_BYTES else 3
    rows_padded = align_up(rows, FLOATS_PER_BLOCK)
    # Float keeps its statistics in the outputs; only half needs float copies of them.
    statistics = 0 if typeSize == FLOAT_BYTES else 2 * rows_padded
    one = _chunk(words, stack, statistics, buffers, H, count)
    if one == 0:
        return LayerNormTiling()
    tail = count % one
    return LayerNormTiling(
        bLength=B,
        sLength=S,
        hLength=H,
        originalHLength=originH,
        inputXSize=count,
        meanVarSize=rows,
        numberOfTmpBuf=buffers,
        meanTmpTensorSize=rows_padded,
        varianceTmpTensorPos=rows_padded,
        varianceTmpTensorSize=rows_padded,
        tmpBufSize=stack,
        oneTmpSize=one,
        firstTmpStartPos=statistics,
        secondTmpStartPos=statistics + one,
        thirdTmpStartPos=statistics + 2 * one,
        loopRound=count // one,
        inputRoundSize=one,
        inputTailSize=tail,
        inputTailPos=count - tail,
        meanVarRoundSize=one // H,
        meanVarTailSize=tail // H,
        meanVarTailPos=rows - tail // H,
        bshCurLength=one,
        bsCurLength=one // H,
        lastDimValueBack=float(np.float32(1) / np.float32(originH)),
    )


def _rstd_tiling(words: Words, A: int, R: int, stack: int, typeSize: int) -> LayerNormSeparateTiling:
    row = align_up(R, BLOCK_BYTES // typeSize)
    count = words.word("A*R", A * row)
    variance = align_up(A, FLOATS_PER_BLOCK)
    one = _chunk(words, stack, variance, 2, row, count)
    if one == 0:
        return LayerNormSeparateTiling()
    tail = count % one
    return LayerNormSeparateTiling(
        aLength=A,
        rLength=R,
        inputXSize=count,
        meanVarSize=A,
        numberOfTmpBuf=2,
        varianceTmpTensorSize=variance,
        tmpBufSize=stack,
        oneTmpSize=one,
        firstTmpStartPos=variance,
        secondTmpStartPos=variance + one,
        loopRound=count // one,
        inputRoundSize=one,
        inputTailSize=tail,
        inputTailPos=count - tail,
        meanVarRoundSize=one // row,
        meanVarTailSize=tail // row,
        meanVarTailPos=A - tail // row,
        arCurLength=one,
        aCurLength=one // row,
        rValueBack=float(np.float32(1) / np.float32(R)),
    )


def _folded_rstd_tiling(A: int, R: int) -> LayerNormSeparateTiling:
    """Return the 3510 tiling: a power of two near R, by which every element is scaled before the
    sum.

    CANN: upstream leaves aLength untouched on this architecture; it is filled in here, the kernel
    takes A from LayerNormPara either way.
    """
    folds = max(0, (R // VECTOR_FLOATS).bit_length() - 1)
    head = VECTOR_FLOATS << folds
    exponent = 6 + folds
    scale = 2**exponent if 2**exponent >= R else 2 ** (exponent + 1)
    return LayerNormSeparateTiling(
        aLength=A,
        rLength=R,
        rHeadLength=head,
        oneTmpSize=exponent,
        k2Rec=float(np.float32(1) / np.float32(scale)),
        k2RRec=float(np.float32(scale) / np.float32(R)),
    )
