"""Library functions on rows: SoftMax and what belongs to it, sums along an axis, quantization, choices by bytes.

Each reads its tensors, computes in float64 and rounds once: ``LIBRARY``, one row a function of C++. A device computes
in steps of its own, so that its last bits differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lngrad.errors import DtypeError
from lngrad.typing import Array, Dtype
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.pipes import V
from lngrad_ascend.device.unified_buffer import MAX_ORIGINS
from lngrad_ascend.faults import BoundsFault, DeviceFault

BLOCK_BYTES = 32


class LibraryCall(NamedTuple):
    """One call: its name, tensors, whole numbers and real numbers, in the order of C++."""

    api: str
    tensors: Sequence[LocalTensor]
    n: tuple[int, ...]
    real: float

    def rows(self, index: int, rows: int, columns: int, role: str) -> Any:
        """The first elements of a tensor as a matrix of float64."""
        values = self.tensors[index].read(self.api, role, rows * columns)
        return values.astype(np.float64).reshape(rows, columns)

    def write(self, index: int, values: Array, role: str) -> None:
        """Write a matrix to a tensor, rounded to its type."""
        target = self.tensors[index].write(self.api, role, values.size)
        with np.errstate(all="ignore"):
            target[...] = values.reshape(-1).astype(target.dtype)

    def statistic(self, index: int, rows: int, role: str) -> Any:
        """One number a row, of which a tensor has a block each."""
        return self.rows(index, rows, self.width(index), role)[:, :1]

    def write_statistic(self, index: int, values: Array, role: str) -> None:
        """Fill each row's block with its number."""
        self.write(index, np.repeat(values.reshape(-1, 1), self.width(index), axis=1), role)

    def width(self, index: int) -> int:
        """How many elements of a tensor a block has."""
        return BLOCK_BYTES // self.tensors[index].dtype.itemsize


def _shape(c: LibraryCall) -> tuple[int, int, int]:
    """Rows, columns of the memory, and columns that count (oriSrcK)."""
    rows, columns, real = c.n[:3]
    if rows <= 0 or columns <= 0 or not 0 < real <= columns:
        raise BoundsFault(f"{c.api}: expected rows and columns above 0 and oriSrcK up to srcK, got {c.n[:3]}")
    return rows, columns, real


def _parts(c: LibraryCall, src: int) -> tuple[Any, Any, Any]:
    """The source with -inf behind the columns that count, the largest of each row, and e ** (src - it)."""
    rows, columns, real = _shape(c)
    x = c.rows(src, rows, columns, "src")
    x[:, real:] = -np.inf
    largest = x.max(axis=1, keepdims=True)
    return x, largest, np.exp(x - largest)


def _softmax(c: LibraryCall) -> None:
    """Tensors: dst, sum, max, src; or dst, src."""
    _, largest, e = _parts(c, len(c.tensors) - 1)
    total = e.sum(axis=1, keepdims=True)
    c.write(0, e / total, "dst")
    if len(c.tensors) == 4:
        _write_sums(c, total, largest)


def _write_sums(c: LibraryCall, total: Any, largest: Any) -> None:
    c.write_statistic(1, total, "sum")
    c.write_statistic(2, largest, "max")


def _simple_softmax(c: LibraryCall) -> None:
    """Tensors: dst, sum and max that are read, src."""
    rows, columns, _ = _shape(c)
    total, largest = c.statistic(1, rows, "inSum"), c.statistic(2, rows, "inMax")
    c.write(0, np.exp(c.rows(3, rows, columns, "src") - largest) / total, "dst")


def _log_softmax(c: LibraryCall) -> None:
    """The decimal logarithm of the softmax, as the page and its example have it."""
    x, largest, e = _parts(c, 3)
    total = e.sum(axis=1, keepdims=True)
    c.write(0, (x - largest - np.log(total)) / np.log(10), "dst")
    _write_sums(c, total, largest)


def _softmax_grad(c: LibraryCall) -> None:
    """Tensors: dst, grad, src, which is the softmax. n[3]: only the sum of grad * src of each row."""
    rows, columns, real = _shape(c)
    grad, y = c.rows(1, rows, columns, "grad"), c.rows(2, rows, columns, "src")
    inner = (grad * y)[:, :real].sum(axis=1, keepdims=True)
    if c.n[3]:
        c.write_statistic(0, inner, "dst")
    else:
        c.write(0, (grad - inner) * y, "dst")


def _softmax_flash_v2(c: LibraryCall) -> None:
    """Tensors: dst, sum, max, src, expMax, inSum, inMax. n[3]: whether it goes on from inSum and inMax."""
    rows, *_ = _shape(c)
    x, largest, e = _parts(c, 3)
    total = np.zeros((rows, 1))
    if c.n[3]:
        before = c.statistic(6, rows, "inMax")
        largest = np.maximum(largest, before)
        scale = np.exp(before - largest)
        e, total = np.exp(x - largest), scale * c.statistic(5, rows, "inSum")
        c.write_statistic(4, scale, "expMax")
    c.write(0, e, "dst")
    _write_sums(c, total + e.sum(axis=1, keepdims=True), largest)


def _adjust_softmax(c: LibraryCall) -> int:
    """Tensors: the softmax, max. n[3]: the bits of a float; rows whose max has them become ``real``."""
    rows, columns, _ = _shape(c)
    width = BLOCK_BYTES // c.tensors[1].dtype.itemsize
    marked = c.tensors[1].read(c.api, "max", rows * width)[::width].copy()
    chosen = marked.view(f"u{marked.dtype.itemsize}") == c.n[3]
    if chosen.any():
        y = c.rows(0, rows, columns, "softMaxRes")
        y[chosen] = c.real
        c.write(0, y, "softMaxRes")
    return int(chosen.any())


def _reduce(function: Callable[..., Any]) -> Callable[[LibraryCall], None]:
    """Tensors: dst, src; n: rows, columns of the memory, columns that count; n[3]: 0: along the first axis."""

    def along(c: LibraryCall) -> None:
        rows, columns, real = _shape(c)
        values = c.rows(1, rows, columns, "src")
        c.write(0, function(values, axis=0) if c.n[3:] == (0,) else function(values[:, :real], axis=1), "dst")

    return along


def _cumsum(c: LibraryCall) -> None:
    """Tensors: dst, lastRow, src; n[3]: along the last axis; n[4]: whether lastRow is written."""
    rows, columns, _ = _shape(c)
    sums = np.cumsum(c.rows(2, rows, columns, "src"), axis=1 if c.n[3] else 0)
    c.write(0, sums, "dst")
    if c.n[4]:
        c.write(1, sums[-1], "lastRow")


def _fma(c: LibraryCall) -> None:
    src0, src1, src2 = (c.rows(index, 1, c.n[0], f"src{index - 1}") for index in (1, 2, 3))
    c.write(0, src0 * src1 + src2, "dst")


def _arange(c: LibraryCall) -> None:
    """n: the first value's and the difference's doubles by their bits, then the count."""
    first, step = np.array(c.n[:2], np.int64).view(np.float64)
    c.write(0, first + step * np.arange(c.n[2]), "dst")


def _quantize(c: LibraryCall) -> None:
    """Tensors: dst of int8, src; real: the scale; n: the offset's double by its bits, the count. Each step in half, as its
    page has it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        src = c.rows(1, 1, c.n[1], "src").astype(np.float16)
        scaled = np.rint(src * np.float16(c.real) + np.float16(_double(c.n[0])))
    c.write(0, np.clip(scaled, -128, 127), "dst")


def _dropout(c: LibraryCall) -> None:
    """Tensors: dst, src, mask; real: keepProb; n: rows, columns of src, columns of mask, whether mask has bits."""
    rows, columns, mask_columns, bits = c.n
    if not 0 < c.real < 1:
        raise DeviceFault(f"{c.api}: keepProb must be above 0 and below 1, got {c.real}")
    nbytes = rows * (-(-mask_columns // 8) if bits else mask_columns)
    mask: Any = c.tensors[2].read(c.api, "mask", nbytes).view(np.uint8).reshape(rows, -1)
    chosen = np.unpackbits(mask, axis=1, bitorder="little") if bits else mask != 0
    c.write(0, c.rows(1, rows, columns, "src") / c.real * chosen[:, :columns], "dst")


def _select_bytes(c: LibraryCall) -> None:
    """Tensors: dst, src, mask; real: the scalar; n: rows, columns of src, of mask, whether a mask byte chooses src.

    Padding that DataCopyPad has not written chooses nothing that counts: such elements have no value.
    """
    rows, columns, mask_columns, source_first = c.n
    dst, read = c.tensors[0], []
    for tensor, role, width in ((c.tensors[1], "src", columns), (c.tensors[2], "mask", mask_columns)):
        values, origins = tensor.take(c.api, role, rows * width)
        read += [array.reshape(rows, width)[:, :columns] for array in (values, origins.max(axis=1) % MAX_ORIGINS)]
    src, unknown, mask, undecided = read
    scalar = (mask != 0) == bool(source_first)
    holes = np.repeat(np.maximum(undecided, np.where(scalar, 0, unknown)), dst.dtype.itemsize)
    dst.put(c.api, "dst", np.where(scalar, c.real, src.astype(np.float64)).astype(dst.dtype).reshape(-1), holes)


def _clamp(c: LibraryCall) -> None:
    """Tensors: dst, src, then min and max, where n[1] and n[2] say so; else their doubles by their bits."""
    are_tensors, rest, limits = c.n[1:3], iter(range(2, len(c.tensors))), []
    for is_tensor, bits, role in zip(are_tensors, c.n[3:5], ("min", "max"), strict=True):
        limits.append(c.rows(next(rest), 1, c.n[0], role) if is_tensor else _double(bits))
    c.write(0, np.minimum(np.maximum(c.rows(1, 1, c.n[0], "src"), limits[0]), limits[1]), "dst")


def _test(function: Callable[..., Any], sources: int) -> Callable[[LibraryCall], None]:
    """1 or 0 for each element, of one source or two."""

    def test(c: LibraryCall) -> None:
        c.write(0, function(*(c.rows(1 + i, 1, c.n[0], f"src{i}") for i in range(sources))).astype(np.float64), "dst")

    return test


def _double(bits: int) -> float:
    return float(np.array([bits], np.int64).view(np.float64)[0])


def _gather_blocks(c: LibraryCall) -> None:
    """Tensors: dst, src, offsets in bytes of blocks; n: repeats, dst's block and repeat stride in blocks."""
    repeats, block, repeat = c.n
    dst, src, offsets = c.tensors
    places = offsets.read(c.api, "offset", 8 * repeats).astype(np.int64)
    end = int(places.max(initial=0)) + BLOCK_BYTES
    if (places % BLOCK_BYTES).any() or end > src.nbytes:
        raise BoundsFault(
            f"{c.api}: offsets must be whole blocks of src, which has {src.nbytes} bytes, one reaches {end}"
        )
    width = c.width(1)
    values, origins = (
        array.reshape(-1, width, *array.shape[1:]) for array in src.take(c.api, "src0", end // src.dtype.itemsize)
    )
    for number, place in enumerate(places // BLOCK_BYTES):
        at = (number // 8 * repeat + number % 8 * (block or 1)) * width
        dst[at:].put(c.api, "dst", values[place], origins[place])


def _transpose(c: LibraryCall) -> None:
    """n: the sizes N, C, H and W, and TransposeType's number: NCHW to NHWC (11) or back (12)."""
    n, channels, height, width, kind = c.n
    if kind not in (11, 12):
        raise DeviceFault(f"{c.api}: TRANSPOSE_NCHW2NHWC and TRANSPOSE_NHWC2NCHW are simulated, got number {kind}")
    shape, axes = (
        ((n, channels, height, width), (0, 2, 3, 1)) if kind == 11 else ((n, height, width, channels), (0, 3, 1, 2))
    )
    values, origins = c.tensors[1].take(c.api, "src", int(np.prod(shape)))
    order = np.arange(values.size).reshape(shape).transpose(axes).reshape(-1)
    c.tensors[0].put(c.api, "dst", values[order], origins[order])


def _pairs(c: LibraryCall, index: int, start: int, count: int, role: str) -> tuple[Any, Any]:
    """``count`` pairs of a sorted list from the ``start``th on, 8 bytes each: the score below, its number above; and the
    origins of their bytes."""
    tensor = c.tensors[index]
    width = 8 // tensor.dtype.itemsize
    values, origins = tensor[start * width :].take(c.api, role, count * width, aligned=False)
    return values.view(np.uint64), origins.reshape(count, 8)


def _sorted(pairs: Any, origins: Any, dtype: Dtype) -> tuple[Any, Any]:
    """The order of pairs by falling score along the last axis, NaN first, of equal ones the first; and the origins of their
    bytes in it. A score without a value may have any place, and with it every other one."""
    scores = pairs.view(dtype).reshape(*pairs.shape, -1)[..., 0].astype(np.float64)
    order = np.lexsort((-scores, ~np.isnan(scores)))
    unknown = origins[..., : dtype.itemsize].max(axis=(-2, -1), keepdims=True, initial=0) % MAX_ORIGINS
    return order, np.maximum(np.take_along_axis(origins, order[..., None], -2), unknown)


def _sort(c: LibraryCall) -> None:
    """Tensors: dst, scores, numbers; n: repeats of 32, how many are sorted together."""
    count, dtype = 32 * c.n[0], c.tensors[1].dtype
    if count == 0:
        return
    pairs, origins = np.zeros(count, np.uint64), np.zeros((count, 8), np.uint16)
    pairs.view(dtype).reshape(count, -1)[:, 0], origins[:, : dtype.itemsize] = c.tensors[1].take(c.api, "src0", count)
    pairs.view(np.uint32)[1::2], origins[:, 4:] = c.tensors[2].take(c.api, "src1", count)
    groups = pairs.reshape(-1, max(c.n[1], 1))
    order, origins = _sorted(groups, origins.reshape(*groups.shape, 8), dtype)
    every = np.take_along_axis(groups, order, axis=1).reshape(-1)
    c.tensors[0].put(c.api, "dst", every.view(dtype), origins)


def _merge_sorted(c: LibraryCall) -> int:
    """Tensors: dst, four lists; n: their lengths, whether it stops where one is exhausted, which take part, repeats.

    Returns how many were taken of each in the last repeat, 16 bits each.
    """
    lengths, (stops, bits, repeats) = c.n[:4], c.n[4:]
    taking = [number for number in range(4) if bits >> number & 1]
    if bits not in (3, 7, 15) or (repeats > 1 and (stops or bits != 15 or len(set(lengths)) > 1)):
        raise DeviceFault(
            f"{c.api}: validBit must be 3, 7 or 15, and repeats take four lists of one length without suspension, got "
            f"validBit {bits}, {repeats} repeats of {lengths} and suspension {bool(stops)}"
        )
    taken, start, dtype = np.zeros(4, np.int64), 0, c.tensors[0].dtype
    for repeat in range(repeats):
        lists = [_pairs(c, 1 + number, repeat * sum(lengths), lengths[number], f"src{number + 1}") for number in taking]
        of = np.repeat(taking, [pairs.size for pairs, _ in lists])
        pairs, origins = (np.concatenate(part) for part in zip(*lists, strict=True))
        order, origins = _sorted(pairs, origins, dtype)
        if stops:
            if origins[:, : dtype.itemsize].any():  # how many are taken is read as a number
                for number in taking:
                    c.tensors[1 + number].read(
                        c.api, f"src{number + 1}", lengths[number] * 8 // dtype.itemsize, aligned=False
                    )
            ends = [int(np.flatnonzero(of[order] == number)[-1]) + 1 for number in taking if lengths[number]]
            order = order[: min(ends, default=0)]
        taken, every = np.bincount(of[order], minlength=4), pairs[order].view(dtype)
        c.tensors[0][start:].put(c.api, "dst", every, origins[: order.size], aligned=False)
        start += every.size
    return int((taken << np.arange(0, 64, 16)).sum())


def _extract(c: LibraryCall) -> None:
    """Tensors: scores, numbers, the sorted pairs; n: repeats of 32."""
    pairs, origins = _pairs(c, 2, 0, 32 * c.n[0], "sorted")
    dtype = c.tensors[0].dtype
    scores = pairs.view(dtype)[:: 8 // dtype.itemsize]
    c.tensors[0].put(c.api, "dstValue", scores, origins[:, : dtype.itemsize])
    c.tensors[1].put(c.api, "dstIndex", pairs.view(np.uint32)[1::2], origins[:, 4:])


def _top_k(c: LibraryCall) -> None:
    """Tensors: dst's values and numbers, src, its numbers, which rows are no rows; n: rows, columns of the memory, columns
    that count, k, whether numbers and such rows are given, whether results lie without gaps (columns: 32), falling."""
    if c.tensors[0].dtype not in (np.float16, np.float32):
        raise DtypeError(f"{c.api}: expected half or float, got {c.tensors[0].dtype}")
    rows, columns, real, k, numbered, finished, small, falling = c.n
    if columns % 32 or columns > (32 if small else 4096) or not 1 <= k <= real <= columns:
        raise BoundsFault(
            f"{c.api}: expected k up to n, and inner of whole 32 elements, {'32' if small else 'at most 4096'}, got {k}, "
            f"{real} and {columns}"
        )
    x = c.rows(2, rows, columns, "src")
    order = np.lexsort((-x if falling else x, ~np.isnan(x)))[:, :k]  # NaN first, of equal ones the first
    numbers = np.broadcast_to(np.arange(columns), x.shape)
    if numbered:
        numbers = np.broadcast_to(c.rows(3, rows if small else 1, columns, "srcIndex"), x.shape)
    chosen = np.take_along_axis(numbers, order, 1).astype(np.float64)
    if finished:
        chosen[c.rows(4, 1, rows, "finish")[0] != 0] = real
    for index, (values, role) in enumerate(((np.take_along_axis(x, order, 1), "dstValue"), (chosen, "dstIndex"))):
        gap = 0 if small else -k % c.width(index)
        c.write(index, np.pad(values, ((0, 0), (0, gap))), role)


def _shuffle(order: Callable[[Array], Array]) -> Callable[[LibraryCall], None]:
    """Tensors: two of dst, two of src, of n[0] elements each: those of both src in another order."""

    def shuffle(c: LibraryCall) -> None:
        if c.n[0] % 2:
            raise BoundsFault(f"{c.api}: count must be even, got {c.n[0]}")
        parts = zip(*(c.tensors[2 + i].take(c.api, f"src{i}", c.n[0]) for i in range(2)), strict=True)
        values, origins = (np.concatenate(part) for part in parts)
        for place, taken in enumerate(np.split(order(np.arange(values.size)), 2)):
            c.tensors[place].put(c.api, f"dst{place}", values[taken], origins[taken])

    return shuffle


def _dequantize(c: LibraryCall) -> None:
    """Tensors: dst, src of int32, the scales, unless n[3]: then ``real``; n: rows, columns, columns that are computed."""
    rows, columns, count, scalar = c.n
    if not 0 < count <= columns or columns * 4 % BLOCK_BYTES:
        raise BoundsFault(f"{c.api}: n must be whole blocks of int32 and calCount up to n, got {columns} and {count}")
    scale = c.real if scalar else c.rows(2, 1, count, "deqScale")
    unit = BLOCK_BYTES // c.tensors[0].dtype.itemsize
    values = c.rows(1, rows, columns, "src")[:, :count] * scale
    for row in range(rows):  # what is behind calCount stays as it is
        LibraryCall(c.api, [c.tensors[0][row * (-(-columns // unit) * unit) :]], (), 0.0).write(0, values[row], "dst")


def _antiquantize(c: LibraryCall) -> None:
    """Tensors: dst, src, then offsets and scales [groups, n] of src [k, n], or none, and their doubles by their bits.

    n: rows of src, columns, groups of rows; without tensors: the count, and both numbers. Each step in half where dst is in
    half, as its page has it.
    """
    kind = np.float16 if c.tensors[0].dtype == np.float16 else np.float64
    if len(c.tensors) == 2:
        src = c.rows(1, 1, c.n[0], "src").astype(kind)
        c.write(0, (src + kind(_double(c.n[1]))) * kind(_double(c.n[2])), "dst")
        return
    rows, columns, groups = c.n
    if groups < 1 or rows % groups:
        raise BoundsFault(f"{c.api}: expected groups of rows, got {rows} rows and {groups} of offset")
    offset, scale = (
        np.repeat(c.rows(i, groups, columns, role).astype(kind), rows // groups, axis=0)
        for i, role in ((2, "offset"), (3, "scale"))
    )
    c.write(0, (c.rows(1, rows, columns, "src").astype(kind) + offset) * scale, "dst")


def _rms_norm(c: LibraryCall) -> None:
    """Tensors: dst, src, gamma; real: epsilon; n: rows, columns of the memory, columns that count."""
    rows, columns, real = _shape(c)
    x, gamma = c.rows(1, rows, columns, "src"), c.rows(2, 1, columns, "gamma")
    c.write(0, x / np.sqrt((x[:, :real] ** 2).sum(axis=1, keepdims=True) / real + c.real) * gamma, "dst")


def _welford_update(c: LibraryCall) -> None:
    """Tensors: the new mean and sum of squares, those of before, x; real: 1 / count; n: columns, those that are computed,
    whether the others are copied (isInplace). In float32, each step rounded, as CANN's own steps are."""
    columns, count, inplace = c.n
    if not 0 < count <= columns or columns * c.tensors[4].dtype.itemsize % BLOCK_BYTES:
        raise BoundsFault(
            f"{c.api}: abLength must be whole blocks, abComputeLength up to it, got {columns} and {count}"
        )
    kept = columns if inplace else count
    mean, squares, x = (
        c.rows(place, 1, wanted, role).astype(np.float32)
        for place, wanted, role in ((2, kept, "inputMean"), (3, kept, "inputVariance"), (4, count, "inputX"))
    )
    step = x - mean[:, :count]
    mean[:, :count] += step * np.float32(c.real)
    squares[:, :count] += step * (x - mean[:, :count])
    c.write(0, mean, "outputMean")
    c.write(1, squares, "outputVariance")


def _welford_finalize(c: LibraryCall) -> None:
    """Tensors: mean, variance, those of each column, and counts or none.

    n: rnLength, abLength, then the count and the number of the first columns and of the last, and the doubles of abRec
    and of the variance's factor by their bits. The results have 7 zeros behind them.
    """
    rows, columns, head, heads, tail, tails = c.n[:6]
    mean_factor, factor, variance_factor = map(_double, c.n[6:9])
    if columns * 4 % BLOCK_BYTES or heads + tails != columns:
        raise BoundsFault(
            f"{c.api}: abLength must be whole blocks, headCountLength and tailCountLength together, got {columns}, {heads} "
            f"and {tails}"
        )
    means, variances = c.rows(2, 1, columns, "inputMean"), c.rows(3, 1, columns, "inputVariance")
    if len(c.tensors) == 5:
        counts, mean_factor = c.rows(4, 1, columns, "counts"), factor
    elif tail and tails:
        counts, mean_factor = np.repeat([[head, tail]], [heads, tails], axis=1).astype(np.float64), factor
    else:
        counts = np.full((1, columns), float(rows))
    weights = counts if len(c.tensors) == 5 or (tail and tails) else 1.0
    mean = (means * weights).sum() * mean_factor
    variance = (variances + counts * (means - mean) ** 2).sum() * variance_factor
    c.write(0, np.append(mean, np.zeros(7)), "outputMean")
    c.write(1, np.append(variance, np.zeros(7)), "outputVariance")


def _normalize(c: LibraryCall) -> None:
    """Tensors: y, rstd, mean, variance, x, then gamma and beta unless n[3] and n[4]; real: epsilon; n: rows, columns of the
    memory, columns that count."""
    rows, columns, real = _shape(c)
    mean, variance = (c.rows(2 + i, 1, rows, role).T for i, role in enumerate(("inputMean", "inputVariance")))
    rstd = 1 / np.sqrt(variance + c.real)
    y = (c.rows(4, rows, columns, "inputX") - mean) * rstd
    if not c.n[3]:
        y[:, :real] *= c.rows(5, 1, real, "gamma")
    if not c.n[4]:
        y[:, :real] += c.rows(6, 1, real, "beta")
    c.write(0, y, "output")
    c.write(1, rstd, "outputRstd")


def _deep_norm(c: LibraryCall) -> None:
    """Tensors: y, mean, variance, x, gx, beta, gamma; real: epsilon; n: rows, columns of the memory, columns that count,
    alpha's double by its bits. CANN: the page calls the third rstd; its code and its example have the variance there."""
    rows, columns, real = _shape(c)
    total = c.rows(3, rows, columns, "srcLocal") * _double(c.n[3]) + c.rows(4, rows, columns, "gxLocal")
    mean = total[:, :real].mean(axis=1, keepdims=True)
    variance = ((total[:, :real] - mean) ** 2).mean(axis=1, keepdims=True)
    beta, gamma = c.rows(5, 1, columns, "betaLocal"), c.rows(6, 1, columns, "gammaLocal")
    c.write(0, (total - mean) / np.sqrt(variance + c.real) * gamma + beta, "dstLocal")
    c.write(1, mean, "meanLocal")
    c.write(2, variance, "rstdLocal")


_ONLY_950 = (
    "Clamp", "DeInterleave", "Fma", "Interleave", "IsFinite", "IsInf", "IsNan", "LogicalAnd", "LogicalOr", "LogicalXor",
    "LogicalNot",
)  # fmt: skip

LIBRARY: dict[str, Callable[[LibraryCall], int | None]] = {
    "SoftMax": _softmax,
    "SimpleSoftMax": _simple_softmax,
    "LogSoftMax": _log_softmax,
    "SoftmaxGrad": _softmax_grad,
    "SoftmaxFlashV2": _softmax_flash_v2,
    "AdjustSoftMaxRes": _adjust_softmax,
    "Sum": _reduce(np.sum),
    "Mean": _reduce(np.mean),
    **{f"Reduce{name}": _reduce(getattr(np, name.lower())) for name in ("Sum", "Max", "Min", "Prod", "Mean")},
    "CumSum": _cumsum,
    "Fma": _fma,
    "Arange": _arange,
    "AscendQuant": _quantize,
    "DropOut": _dropout,
    "Select": _select_bytes,
    "Clamp": _clamp,
    **{f"Is{name}": _test(getattr(np, f"is{name.lower()}"), 1) for name in ("Finite", "Inf", "Nan")},
    **{f"Logical{name}": _test(getattr(np, f"logical_{name.lower()}"), 2) for name in ("And", "Or", "Xor")},
    "LogicalNot": _test(np.logical_not, 1),
    "TopK": _top_k,
    "Sort32": _sort,
    "MrgSort": _merge_sorted,
    "Extract": _extract,
    "Interleave": _shuffle(lambda both: both.reshape(2, -1).T.reshape(-1)),  # src0[0], src1[0], src0[1], …
    "DeInterleave": _shuffle(lambda both: both.reshape(-1, 2).T.reshape(-1)),  # of even places, then of odd ones
    "AscendDequant": _dequantize,
    "AscendAntiQuant": _antiquantize,
    "RmsNorm": _rms_norm,
    "WelfordUpdate": _welford_update,
    "WelfordFinalize": _welford_finalize,
    "Normalize": _normalize,
    "DeepNorm": _deep_norm,
    "Gatherb": _gather_blocks,
    "Transpose": _transpose,
}


def call_library(api: str, tensors: Sequence[LocalTensor], n: tuple[int, ...], real: float) -> int:
    """Run a function of the table. Returns what it returns, 0 for nothing.

    Raises:
        DeviceFault: There is no such function, or a rule is broken.
    """
    if api not in LIBRARY:
        raise DeviceFault(f"{api}: this library function is not simulated")
    core = tensors[0].core
    if api in _ONLY_950 and core.soc.arch != 3510:
        raise DeviceFault(f"{api}: only 950 has it, this is {core.soc.name}")
    with core.tile_api(api):
        found = LIBRARY[api](LibraryCall(api, tensors, n, real))
    core.record(api, V, core.site or ("", 0))
    return found or 0
