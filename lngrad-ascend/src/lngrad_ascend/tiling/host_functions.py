"""Host-side tiling of LayerNorm, in the form with variance ([B, S, H]) and the form with rstd ([A, R]), of
LayerNormGrad and of LayerNormGradBeta.

Sources: layernorm_tiling_impl.cpp, normalize_tiling_impl.cpp, layernorm_grad_tiling_impl.cpp and
layernorm_grad_beta_tiling_impl.cpp of CANN's asc-devkit. C++ tells the two forms of LayerNorm apart by overloading;
here ``isComputeRstd`` does: None selects the form with variance. Deviations are marked ``CANN:``.

The published functions keep every number in a uint32_t and check their arguments in helpers that log and return,
after which the caller computes on. Here a broken rule and a wrap-around raise; ``lenient=True`` gives upstream's
values, with one warning that says what upstream would not.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from lngrad_ascend import soc as socs
from lngrad_ascend.faults import AscendWarning, TilingError
from lngrad_ascend.tiling.structs import (
    UINT32_MAX,
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormSeparateTiling,
    LayerNormTiling,
    float_bits,
)

Result = TypeVar("Result")
FLOAT_BYTES, HALF_BYTES = 4, 2
BLOCK_BYTES = 32
FLOATS_PER_BLOCK = BLOCK_BYTES // FLOAT_BYTES
VECTOR_FLOATS, VECTOR_HALVES = 64, 128  # one vector register of 256 bytes
CHUNK_BUFFERS = ("tmpTensorBSH", "pdVarTensor", "pdMeanTensor", "x1Tensor", "x2Tensor", "x3Tensor")
REUSED_CHUNK_BUFFERS = ("x1Tensor", "x2Tensor")
HALF_CHUNK_BUFFERS = ("tmpTensor", "tmpTensor1", "tmpTensor2")


def align_up(value: int, unit: int) -> int:
    """Return the smallest multiple of ``unit`` that is not below ``value``."""
    return -(-value // unit) * unit


@dataclass
class Words:
    """The checks and the uint32 arithmetic of one call of a tiling function; lenient: go on as upstream, warn at `close`."""

    api: str
    lenient: bool
    _complaints: list[str] = field(default_factory=list)
    doubts: Sequence[str] = ()

    def rule(self, holds: bool, text: str) -> None:
        """Raise ``text`` if the rule does not hold, or note it when lenient."""
        if holds:
            return
        if not self.lenient:
            raise TilingError(f"{self.api}: {text}")
        self._complaints.append(text)

    def word(self, name: str, value: int) -> int:
        """Return ``value`` as a uint32_t; a value that does not fit is an error, or wraps when lenient."""
        if 0 <= value <= UINT32_MAX:
            return value
        self.rule(False, f"{name}: {value} does not fit a uint32_t (0 to {UINT32_MAX}) and would wrap silently")
        return value & UINT32_MAX

    def shape(self, srcShape: Sequence[int], typeSize: int) -> tuple[int, int, int, int]:
        """Check the arguments that most functions share. Returns B, S, the H of the memory and the H of the mathematics."""
        self.rule(typeSize in (2, 4), f"typeSize: expected 2 (half) or 4 (float), got {typeSize}")
        dims = tuple(int(size) for size in srcShape)
        self.rule(len(dims) == 4, f"srcShape: expected 4 sizes [B, S, storageHLength, originHLength], got {list(dims)}")
        if len(dims) < 4:
            # Upstream reads past the end of its vector here: there is no value to be lenient about.
            raise TilingError(f"{self.api}: srcShape: expected 4 sizes, got {list(dims)}")
        self.rule(all(size > 0 for size in dims), f"srcShape: every size must be above 0, got {list(dims)}")
        B, S, H, originH = (self.word(f"srcShape[{axis}]", size) for axis, size in enumerate(dims[:4]))
        self.rule(originH <= H, f"srcShape: originHLength must not exceed storageHLength {H}, got {originH}")
        return B, S, H, originH

    def divisible(self, H: int) -> None:
        """Refuse H = 0, by which upstream divides."""
        if H == 0:
            raise TilingError(f"{self.api}: hLength must not be 0, upstream divides by it")

    def close(self, result: Result) -> Result:
        """Return a result, and warn about what was let pass."""
        for label, texts in ((" (lenient)", self._complaints), ("", self.doubts)):
            if texts:
                # 3: the caller of the tiling function.
                warnings.warn(f"{self.api}{label}: " + "; ".join(texts), AscendWarning, stacklevel=3)
        return result


def doubts(soc: socs.Soc, dims: Sequence[int], type_size: int, stack_bytes: int, smallest: int) -> list[str]:
    """Return why the kernel refuses a call that its tiling function accepts, or is likely to be wrong."""
    H, originH = dims[2:]
    texts = {
        f"the API is not available on {soc.name} ({soc.product})": not soc.tile_api,
        f"the kernel refuses storageHLength {H}: {H * type_size} bytes are no whole blocks of {soc.block_bytes}":
            H * type_size % soc.block_bytes != 0,
        f"originHLength {originH} and storageHLength {H} differ, which the manual excludes from supported scenarios: "
        "findings B and C of docs/ascend-tile.md": originH < H,
        f"stackBufferSize {stack_bytes} is below the published minimum {smallest}": stack_bytes < smallest,
    }  # fmt: skip
    return [text for text, holds in texts.items() if holds]


def smallest_grad_buffer(B: int, S: int, H: int, type_size: int, reuse: bool, regbase: bool) -> int:
    """Return the published minimum of LayerNormGrad's temporary buffer, in bytes."""
    if regbase:  # two rows of floats, x1 and x2; with reuse they live in the inputs
        return 0 if reuse and type_size == FLOAT_BYTES else 2 * align_up(H, FLOATS_PER_BLOCK) * FLOAT_BYTES
    return len(chunk_buffers(type_size, reuse)) * min(B * S * H, H * H) * type_size


def GetLayerNormMaxMinTmpSize(
    srcShape: Sequence[int],
    typeSize: int,
    isReuseSource: bool,
    isComputeRstd: bool | None = None,
    isOnlyOutput: bool = False,
    *,
    soc: socs.SocLike = None,
    lenient: bool = False,
) -> tuple[int, int]:
    """Return the largest and the smallest temporary buffer of LayerNorm, in bytes.

    C prototypes::

        void GetLayerNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, uint32_t& maxValue, uint32_t& minValue)
        void GetLayerNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, const bool isComputeRstd, const bool isOnlyOutput,
            uint32_t& maxValue, uint32_t& minValue)

    CANN: the two results are returned. For the rstd form upstream then checks srcShape for four sizes although its
    manual says [A, R] (and only logs the outcome); here the rule is the manual's.

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
        A, R = _matrix_shape(words, srcShape, typeSize)
        return words.close(_rstd_tmp_sizes(words, A, R, typeSize, isComputeRstd, socs.get(soc).regbase))
    socs.get(soc)
    B, S, H, _ = words.shape(srcShape, typeSize)
    buffers = 2 if isReuseSource and typeSize == FLOAT_BYTES else 3
    statistics_bytes = 2 * align_up(B * S * FLOAT_BYTES, BLOCK_BYTES)
    largest = words.word("maxValue", buffers * align_up(B * S * H * FLOAT_BYTES, BLOCK_BYTES) + statistics_bytes)
    smallest = words.word("minValue", buffers * align_up(H * FLOAT_BYTES, BLOCK_BYTES) + statistics_bytes)
    return words.close((largest, smallest))


def _rstd_tmp_sizes(words: Words, A: int, R: int, typeSize: int, isComputeRstd: bool, regbase: bool) -> tuple[int, int]:
    if regbase:
        partials = align_up(-(-R // VECTOR_FLOATS), VECTOR_HALVES)
        return (words.word("maxValue", (partials + (1 if isComputeRstd else 2) * A) * FLOAT_BYTES),) * 2
    row_bytes = align_up(R, BLOCK_BYTES // typeSize) * FLOAT_BYTES
    variance_bytes = align_up(A * FLOAT_BYTES, BLOCK_BYTES)
    # The temporary buffer is used twice: for the statistics, then for Normalize.
    normalize_max = 2 * row_bytes + 2 * align_up(A, 8) * row_bytes
    normalize_min = max(variance_bytes, (2 if typeSize == FLOAT_BYTES else 4) * row_bytes)
    largest = words.word("maxValue", max(2 * A * row_bytes, normalize_max) + variance_bytes)
    smallest = words.word("minValue", max(2 * row_bytes, normalize_min) + variance_bytes)
    return largest, smallest


def _matrix_shape(words: Words, srcShape: Sequence[int], typeSize: int) -> tuple[int, int]:
    words.rule(typeSize in (2, 4), f"typeSize: expected 2 (half) or 4 (float), got {typeSize}")
    dims = [int(size) for size in srcShape]
    words.rule(
        len(dims) == 2 and all(size > 0 for size in dims), f"srcShape: expected 2 sizes above 0, [A, R], got {dims}"
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
    soc: socs.SocLike = None,
    lenient: bool = False,
) -> LayerNormTiling | LayerNormSeparateTiling:
    """Return the tiling of LayerNorm for a temporary buffer of ``stackBufferSize`` bytes.

    C prototypes::

        void GetLayerNormNDTilingInfo(const TensorShape& srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, optiling::LayerNormTiling& tiling)
        void GetLayerNormNDTilingInfo(const TensorShape& srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, const bool isComputeRstd,
            optiling::LayerNormSeparateTiling& tiling)

    CANN: the struct is returned. With too small a buffer upstream leaves the struct as it was, without a word;
    ``lenient`` returns it zero.

    Args:
        srcShape: [B, S, storageHLength, originHLength], or [A, R] for the rstd form.
        stackBufferSize: Bytes of the temporary buffer.
        typeSize, isReuseSource, isComputeRstd, soc, lenient: As for GetLayerNormMaxMinTmpSize, and so are the errors; too
            small a buffer is one.

    Returns:
        LayerNormTiling for the form with variance, LayerNormSeparateTiling for the form with rstd.
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
    return words.close(tiling)


def _chunk(words: Words, stack: int, statistics: int, buffers: int, row: int, count: int) -> int:
    """Return the elements of a chunk: whole rows, at most everything; 0 if not one row fits."""
    chunk = words.word("stackBufferSize - statistics", stack - statistics) // buffers // row * row
    words.rule(
        chunk > 0,
        f"stackBufferSize: at least {buffers} * {row} + {statistics} floats = "
        f"{(buffers * row + statistics) * FLOAT_BYTES} bytes are needed, got {stack * FLOAT_BYTES}",
    )
    return min(chunk, count)


def _chunks(stack: int, chunk: int, rows: int, row: int) -> dict[str, int]:
    """The fields of both forms that say how rows are cut into chunks of `one` elements."""
    tail = rows * row % chunk
    return {
        "inputXSize": rows * row, "meanVarSize": rows, "tmpBufSize": stack, "oneTmpSize": chunk,
        "loopRound": rows * row // chunk, "inputRoundSize": chunk, "inputTailSize": tail, "inputTailPos": rows * row - tail,
        "meanVarRoundSize": chunk // row, "meanVarTailSize": tail // row, "meanVarTailPos": rows - tail // row,
    }  # fmt: skip


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
    chunk = _chunk(words, stack, statistics, buffers, H, count)
    if chunk == 0:
        return LayerNormTiling()
    return LayerNormTiling(
        bLength=B,
        sLength=S,
        hLength=H,
        originalHLength=originH,
        numberOfTmpBuf=buffers,
        meanTmpTensorSize=rows_padded,
        varianceTmpTensorPos=rows_padded,
        varianceTmpTensorSize=rows_padded,
        firstTmpStartPos=statistics,
        secondTmpStartPos=statistics + chunk,
        thirdTmpStartPos=statistics + 2 * chunk,
        **_chunks(stack, chunk, rows, H),
        bshCurLength=chunk,
        bsCurLength=chunk // H,
        lastDimValueBack=float(np.float32(1) / np.float32(originH)),
    )


def _rstd_tiling(words: Words, A: int, R: int, stack: int, typeSize: int) -> LayerNormSeparateTiling:
    row = align_up(R, BLOCK_BYTES // typeSize)
    count = words.word("A*R", A * row)
    variance = align_up(A, FLOATS_PER_BLOCK)
    chunk = _chunk(words, stack, variance, 2, row, count)
    if chunk == 0:
        return LayerNormSeparateTiling()
    return LayerNormSeparateTiling(
        aLength=A,
        rLength=R,
        numberOfTmpBuf=2,
        varianceTmpTensorSize=variance,
        firstTmpStartPos=variance,
        secondTmpStartPos=variance + chunk,
        **_chunks(stack, chunk, A, row),
        arCurLength=chunk,
        aCurLength=chunk // row,
        rValueBack=float(np.float32(1) / np.float32(R)),
    )


def _folded_rstd_tiling(A: int, R: int) -> LayerNormSeparateTiling:
    """Return the 3510 tiling: a power of two near R, by which every element is scaled before the sum.

    CANN: upstream leaves aLength untouched on this architecture; it is filled in here, the kernel takes A from
    LayerNormPara either way.
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


def chunk_buffers(typeSize: int, isReuseSource: bool) -> tuple[str, ...]:
    """Return the chunk buffers of LayerNormGrad in the order in which they lie (not on 3510).

    The names are those of the struct's fields without ``Pos`` and ``Size``. With isReuseSource, x1 and x2 lie in
    inputDy and inputX; half, which does not take it, has three more for its casts.
    """
    if typeSize == HALF_BYTES:
        return (*CHUNK_BUFFERS, *HALF_CHUNK_BUFFERS)
    return tuple(name for name in CHUNK_BUFFERS if not (isReuseSource and name in REUSED_CHUNK_BUFFERS))


def rows_per_block(typeSize: int) -> int:
    """Return the multiple to which the rows of a chunk are rounded up, so that chunks of B·S start aligned."""
    return 16 if typeSize == HALF_BYTES else 8


def GetLayerNormGradMaxMinTmpSize(
    srcShape: Sequence[int], typeSize: int, isReuseSource: bool, *, soc: socs.SocLike = None, lenient: bool = False
) -> tuple[int, int]:
    """Return the largest and the smallest temporary buffer of LayerNormGrad, in bytes.

    C prototype::

        void GetLayerNormGradMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, uint32_t& maxValue, uint32_t& minValue)

    CANN: the two results are returned instead of written through references. On 2002 and 2201 the minimum is often
    too small (docs/ascend-tile.md, finding A); it is returned as published, and ``lint`` says what is safe.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        typeSize, isReuseSource, soc, lenient: As for GetLayerNormMaxMinTmpSize, and so are the errors.
    """
    words = Words("GetLayerNormGradMaxMinTmpSize", lenient)
    B, S, H, _ = words.shape(srcShape, typeSize)
    regbase = socs.get(soc).regbase
    if regbase:
        need = words.word("maxValue", smallest_grad_buffer(B, S, H, typeSize, isReuseSource, regbase))
        return words.close((need, need))
    count = words.word("B*S*H", B * S * H)
    square = words.word("H*H", H * H)
    buffers = len(chunk_buffers(typeSize, isReuseSource))
    largest = words.word("maxValue", buffers * max(count, square) * typeSize)
    smallest = words.word("minValue", buffers * min(count, square) * typeSize)
    return words.close((largest, smallest))


def GetLayerNormGradNDTilingInfo(
    srcShape: Sequence[int],
    stackBufferSize: int,
    typeSize: int,
    isReuseSource: bool,
    *,
    soc: socs.SocLike = None,
    lenient: bool = False,
    quiet: bool = False,
) -> LayerNormGradTiling:
    """Return the tiling of LayerNormGrad for a temporary buffer of ``stackBufferSize`` bytes.

    C prototype::

        void GetLayerNormGradNDTilingInfo(const TensorShape srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, optiling::LayerNormGradTiling& tiling)

    CANN: the struct is returned. ``stackBufferSize`` is in bytes as in the code; the manual's page says elements.
    With too small a buffer upstream logs and leaves the struct zero, which ``lenient`` reproduces.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        stackBufferSize: Bytes of the temporary buffer.
        typeSize, isReuseSource, soc, lenient: As for GetLayerNormMaxMinTmpSize, and so are the errors; a buffer below one
            row is one.
        quiet: Without the warning of what the kernel refuses, or is likely to compute wrongly.
    """
    words = Words("GetLayerNormGradNDTilingInfo", lenient)
    B, S, H, originH = words.shape(srcShape, typeSize)
    words.divisible(H)
    count = words.word("B*S*H", B * S * H)
    stack_bytes = words.word("stackBufferSize", stackBufferSize)
    rows, chunk = 1, 1  # 3510 goes row by row and reads neither
    if not socs.get(soc).regbase:
        buffers = len(chunk_buffers(typeSize, isReuseSource))
        rows = stack_bytes // FLOAT_BYTES // buffers // H
        words.rule(
            rows > 0,
            f"stackBufferSize: one row takes {buffers} * {H} floats = {buffers * H * FLOAT_BYTES} bytes, "
            f"got {stack_bytes}",
        )
        if rows == 0:
            return words.close(LayerNormGradTiling())
        # Rounded up after the buffer was divided: this is finding A.
        rows = align_up(rows, rows_per_block(typeSize))
        chunk = words.word("oneCalSize", rows * H)
    tiling = LayerNormGradTiling(
        stackBufferSize=stack_bytes,
        bLength=B,
        sLength=S,
        hLength=H,
        originalHLength=originH,
        oneCalSize=chunk,
        nohCalSize=rows,
        loopNum=count // chunk,
        tailSize=count % chunk,
        nohTailSize=count % chunk // H,
        lastDimValueBack=float_bits(float(np.float32(1) / np.float32(originH))),
        lastDimValueBackMulTwo=float_bits(float(np.float32(2) / np.float32(originH))),
    )
    for index, name in enumerate(chunk_buffers(typeSize, isReuseSource)):
        setattr(tiling, f"{name}Pos", words.word(f"{name}Pos", index * chunk))
    for name in CHUNK_BUFFERS + HALF_CHUNK_BUFFERS:
        setattr(tiling, f"{name}Size", chunk)
    if not quiet:
        target = socs.get(soc)
        smallest = smallest_grad_buffer(B, S, H, typeSize, isReuseSource, target.regbase)
        words.doubts = doubts(target, (B, S, H, originH), typeSize, stack_bytes, smallest)
    return words.close(tiling)


def GetLayerNormGradBetaMaxMinTmpSize(
    srcShape: Sequence[int], typeSize: int, isReuseSource: bool, *, soc: socs.SocLike = None, lenient: bool = False
) -> tuple[int, int]:
    """Return the largest and the smallest temporary buffer of LayerNormGradBeta, in bytes.

    C prototype::

        void GetLayerNormGradBetaMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize,
            const bool isReuseSource, uint32_t& maxValue, uint32_t& minValue)

    CANN: the two results are returned. As upstream, neither ``isReuseSource`` nor the architecture changes them.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        typeSize, lenient: As for GetLayerNormMaxMinTmpSize, and so are the errors.
        isReuseSource, soc: Ignored, but soc must exist.
    """
    socs.get(soc)
    words = Words("GetLayerNormGradBetaMaxMinTmpSize", lenient)
    B, S, H, _ = words.shape(srcShape, typeSize)
    buffers = 4 if typeSize == HALF_BYTES else 2
    largest = words.word("maxValue", buffers * B * S * H * FLOAT_BYTES)
    smallest = words.word("minValue", buffers * H * FLOAT_BYTES)
    return words.close((largest, smallest))


def GetLayerNormGradBetaNDTilingInfo(
    srcShape: Sequence[int],
    stackBufferSize: int,
    typeSize: int,
    isReuseSource: bool,
    *,
    soc: socs.SocLike = None,
    lenient: bool = False,
    quiet: bool = False,
) -> LayerNormGradBetaTiling:
    """Return the tiling of LayerNormGradBeta for a temporary buffer of ``stackBufferSize`` bytes.

    C prototype::

        void GetLayerNormGradBetaNDTilingInfo(const TensorShape srcShape, const uint32_t stackBufferSize,
            const uint32_t typeSize, const bool isReuseSource, optiling::LayerNormGradBetaTiling& tiling)

    CANN: the struct is returned; its ``stackBufferSize`` counts floats, as upstream. With too small a buffer
    upstream logs and leaves the struct zero, which ``lenient`` reproduces.

    Args:
        srcShape: [B, S, storageHLength, originHLength].
        stackBufferSize: Bytes of the temporary buffer.
        typeSize, lenient: As for GetLayerNormMaxMinTmpSize, and so are the errors; too small a buffer is one.
        isReuseSource, soc: Ignored, as upstream, but soc must exist.
        quiet: Without the warning of what the kernel refuses, or is likely to compute wrongly.
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
    chunk = (stack - 2 * H) // buffers // H * H if half else stack // H * H
    enough = stack >= 2 * H and chunk > 0
    words.rule(
        enough,
        f"stackBufferSize: at least {4 if half else 2} * {H} floats = {(4 if half else 2) * H * FLOAT_BYTES} bytes "
        f"are needed, got {stackBufferSize}",
    )
    if not enough:
        return words.close(LayerNormGradBetaTiling())
    chunk = min(chunk, count)
    tail = count % chunk
    tiling = LayerNormGradBetaTiling(
        stackBufferSize=stack,
        bLength=B,
        sLength=S,
        hLength=H,
        originalHLength=originH,
        bshLength=count,
        bsLength=words.word("B*S", B * S),
        oneCalSize=chunk,
        numberOfTmpBuf=buffers,
        loopRound=count // chunk,
        inputTailSize=tail,
        inputTailPos=count - tail,
        bsTailSize=tail // H,
        bshCurLength=chunk,
        bsCurLength=chunk // H,
        betaTempTensorPos=H if half else 0,
        inputDyTmpTensorPos=2 * H if half else 0,
        resForGammaTmpTensorPos=2 * H + chunk if half else 0,
    )
    if not quiet:  # a buffer below the minimum was refused above
        words.doubts = doubts(socs.get(soc), (B, S, H, originH), typeSize, stackBufferSize, 0)
    return words.close(tiling)
