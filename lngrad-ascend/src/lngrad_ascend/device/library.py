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
    """A call.

    Attributes:
        tensors: By the names of `LIBRARY`.
        n, real: Its whole numbers and its real number, in the order of C++. Those of most functions begin with rows,
            columns of the memory, and columns that count (oriSrcK).
    """

    api: str
    tensors: dict[str, LocalTensor]
    n: tuple[int, ...]
    real: float

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns of the memory, and columns that count."""
        rows, columns, real = self.n[:3]
        if rows <= 0 or columns <= 0 or not 0 < real <= columns:
            raise BoundsFault(f"{self.api}: expected rows and columns above 0 and oriSrcK up to srcK, got {self.n[:3]}")
        return rows, columns, real

    def read(self, name: str, rows: int | None = None, columns: int = 0) -> Any:
        """Return the first elements of a tensor as a matrix of float64; default: of the call's rows and columns."""
        if rows is None:
            rows, columns, _ = self.shape()
        values = self.tensors[name].read(self.api, name, rows * columns)
        return values.astype(np.float64).reshape(rows, columns)

    def write(self, name: str, values: Array) -> None:
        """Write a matrix to a tensor, rounded to its type."""
        target = self.tensors[name].write(self.api, name, values.size)
        with np.errstate(all="ignore"):
            target[...] = values.reshape(-1).astype(target.dtype)

    def statistic(self, name: str) -> Any:
        """Return a number a row, of which a tensor has a block each."""
        return self.read(name, self.shape()[0], self.width(name))[:, :1]

    def write_statistic(self, name: str, values: Array) -> None:
        """Fill each row's block with its number."""
        self.write(name, np.repeat(values.reshape(-1, 1), self.width(name), axis=1))

    def width(self, name: str) -> int:
        """Return the elements of a tensor in a block."""
        return BLOCK_BYTES // self.tensors[name].dtype.itemsize

    def take(self, name: str, count: int) -> tuple[Array, Array]:
        """Copy the first elements of a tensor, and for each byte why it has no value."""
        return self.tensors[name].take(self.api, name, count)

    def put(self, name: str, values: Any, origins: Any) -> None:
        """Write elements of which some bytes have no value."""
        self.tensors[name].put(self.api, name, values, origins)


def _parts(c: LibraryCall) -> tuple[Any, Any, Any]:
    """Return src with -inf behind the columns that count, the largest of each row, and e ** (src - largest)."""
    x = c.read("src")
    x[:, c.n[2] :] = -np.inf
    largest = x.max(axis=1, keepdims=True)
    return x, largest, np.exp(x - largest)


def _softmax(c: LibraryCall) -> None:
    if "src" not in c.tensors:  # a call with dst and src alone
        c = c._replace(tensors=dict(zip(("dst", "src"), c.tensors.values(), strict=True)))
    _, largest, e = _parts(c)
    total = e.sum(axis=1, keepdims=True)
    c.write("dst", e / total)
    if "sum" in c.tensors:
        _write_sums(c, total, largest)


def _write_sums(c: LibraryCall, total: Any, largest: Any) -> None:
    c.write_statistic("sum", total)
    c.write_statistic("max", largest)


def _simple_softmax(c: LibraryCall) -> None:
    total, largest = c.statistic("inSum"), c.statistic("inMax")
    c.write("dst", np.exp(c.read("src") - largest) / total)


def _log_softmax(c: LibraryCall) -> None:
    """The decimal logarithm of the softmax, as the page and its example have it."""
    x, largest, e = _parts(c)
    total = e.sum(axis=1, keepdims=True)
    c.write("dst", (x - largest - np.log(total)) / np.log(10))
    _write_sums(c, total, largest)


def _softmax_grad(c: LibraryCall) -> None:
    """src is the softmax. n[3]: only the sum of grad * src of each row."""
    grad, y = c.read("grad"), c.read("src")
    inner = (grad * y)[:, : c.n[2]].sum(axis=1, keepdims=True)
    if c.n[3]:
        c.write_statistic("dst", inner)
    else:
        c.write("dst", (grad - inner) * y)


def _softmax_flash_v2(c: LibraryCall) -> None:
    """n[3]: whether it goes on from inSum and inMax."""
    x, largest, e = _parts(c)
    total = np.zeros_like(largest)
    if c.n[3]:
        before = c.statistic("inMax")
        largest = np.maximum(largest, before)
        scale = np.exp(before - largest)
        e, total = np.exp(x - largest), scale * c.statistic("inSum")
        c.write_statistic("expMax", scale)
    c.write("dst", e)
    _write_sums(c, total + e.sum(axis=1, keepdims=True), largest)


def _adjust_softmax(c: LibraryCall) -> int:
    """n[3]: the bits of a float; rows whose max has them become ``real``."""
    rows, *_ = c.shape()
    width = c.width("max")
    marked = c.tensors["max"].read(c.api, "max", rows * width)[::width].copy()
    chosen = marked.view(f"u{marked.dtype.itemsize}") == c.n[3]
    if chosen.any():
        y = c.read("softMaxRes")
        y[chosen] = c.real
        c.write("softMaxRes", y)
    return int(chosen.any())


def _reduce(function: Callable[..., Any]) -> Callable[[LibraryCall], None]:
    """n[3]: 0: along the first axis. A result has no value where one that it is of has none, as in padding of rows."""

    def along(c: LibraryCall) -> None:
        rows, columns, real = c.shape()
        values, origins = c.take("src", rows * columns)
        axis, last = (0, columns) if c.n[3:] == (0,) else (1, real)
        values, unknown = (
            array.reshape(rows, columns)[:, :last] for array in (values, origins.max(axis=1) % MAX_ORIGINS)
        )
        dtype = c.tensors["dst"].dtype
        with np.errstate(all="ignore"):
            results = function(values.astype(np.float64), axis=axis).astype(dtype)
        c.put("dst", results, np.repeat(unknown.max(axis=axis), dtype.itemsize))

    return along


def _cumsum(c: LibraryCall) -> None:
    """n[3]: along the last axis; n[4]: whether lastRow is written."""
    sums = np.cumsum(c.read("src"), axis=1 if c.n[3] else 0)
    c.write("dst", sums)
    if c.n[4]:
        c.write("lastRow", sums[-1])


def _elementwise(function: Callable[..., Any], sources: int) -> Callable[[LibraryCall], None]:
    """A function of the elements of one or more sources. n: the count."""

    def compute(c: LibraryCall) -> None:
        results = function(*(c.read(f"src{i}", 1, c.n[0]) for i in range(sources)))
        c.write("dst", results.astype(np.float64))

    return compute


def _arange(c: LibraryCall) -> None:
    """n: the first value's and the difference's doubles by their bits, then the count."""
    first, step = np.array(c.n[:2], np.int64).view(np.float64)
    c.write("dst", first + step * np.arange(c.n[2]))


def _quantize(c: LibraryCall) -> None:
    """dst of int8; real: the scale; n: the offset's double by its bits, the count. Each step in half, as its page has it."""
    with np.errstate(over="ignore", invalid="ignore"):
        src = c.read("src", 1, c.n[1]).astype(np.float16)
        scaled = np.rint(src * np.float16(c.real) + np.float16(_double(c.n[0])))
    c.write("dst", np.clip(scaled, -128, 127))


def _dropout(c: LibraryCall) -> None:
    """real: keepProb; n: rows, columns of src, columns of mask, whether mask has bits."""
    rows, columns, mask_columns, bits = c.n
    if not 0 < c.real < 1:
        raise DeviceFault(f"{c.api}: keepProb must be above 0 and below 1, got {c.real}")
    nbytes = rows * (-(-mask_columns // 8) if bits else mask_columns)
    mask: Any = c.tensors["mask"].read(c.api, "mask", nbytes).view(np.uint8).reshape(rows, -1)
    chosen = np.unpackbits(mask, axis=1, bitorder="little") if bits else mask != 0
    c.write("dst", c.read("src", rows, columns) / c.real * chosen[:, :columns])


def _select_bytes(c: LibraryCall) -> None:
    """real: the scalar; n: rows, columns of src, of mask, whether a mask byte chooses src.

    Padding that DataCopyPad has not written chooses nothing that counts: such elements have no value.
    """
    rows, columns, mask_columns, source_first = c.n
    dtype, read = c.tensors["dst"].dtype, []
    for name, width in (("src", columns), ("mask", mask_columns)):
        values, origins = c.take(name, rows * width)
        read += [array.reshape(rows, width)[:, :columns] for array in (values, origins.max(axis=1) % MAX_ORIGINS)]
    src, unknown, mask, undecided = read
    scalar = (mask != 0) == bool(source_first)
    holes = np.repeat(np.maximum(undecided, np.where(scalar, 0, unknown)), dtype.itemsize)
    c.put("dst", np.where(scalar, c.real, src.astype(np.float64)).astype(dtype).reshape(-1), holes)


def _clamp(c: LibraryCall) -> None:
    """min and max are tensors where n[1] and n[2] say so; else their doubles by their bits."""
    count, are_tensors, bits = c.n[0], dict(zip(("min", "max"), c.n[1:3], strict=True)), c.n[3:5]
    names = ("dst", "src", *(name for name, is_tensor in are_tensors.items() if is_tensor))
    c = c._replace(tensors=dict(zip(names, c.tensors.values(), strict=True)))
    least, most = (
        c.read(name, 1, count) if is_tensor else _double(number)
        for (name, is_tensor), number in zip(are_tensors.items(), bits, strict=True)
    )
    c.write("dst", np.minimum(np.maximum(c.read("src", 1, count), least), most))


def _double(bits: int) -> float:
    return float(np.array([bits], np.int64).view(np.float64)[0])


def _gather_blocks(c: LibraryCall) -> None:
    """Offsets are in bytes of blocks; n: repeats, dst's block and repeat stride in blocks."""
    repeats, block, repeat = c.n
    dst, src, offsets = c.tensors.values()
    places = offsets.read(c.api, "offset", 8 * repeats).astype(np.int64)
    end = int(places.max(initial=0)) + BLOCK_BYTES
    if (places % BLOCK_BYTES).any() or end > src.nbytes:
        raise BoundsFault(
            f"{c.api}: offsets must be whole blocks of src, which has {src.nbytes} bytes, one reaches {end}"
        )
    width = c.width("src0")
    values, origins = (
        array.reshape(-1, width, *array.shape[1:]) for array in c.take("src0", end // src.dtype.itemsize)
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
    values, origins = c.take("src", int(np.prod(shape)))
    order = np.arange(values.size).reshape(shape).transpose(axes).reshape(-1)
    c.put("dst", values[order], origins[order])


def _pairs(c: LibraryCall, name: str, start: int, count: int) -> tuple[Any, Any]:
    """Return ``count`` pairs of a sorted list from the ``start``th on, 8 bytes each: the score below, its number above; and
    the origins of their bytes."""
    tensor = c.tensors[name]
    width = 8 // tensor.dtype.itemsize
    values, origins = tensor[start * width :].take(c.api, name, count * width, aligned=False)
    return values.view(np.uint64), origins.reshape(count, 8)


def _sorted(pairs: Any, origins: Any, dtype: Dtype) -> tuple[Any, Any]:
    """Return the order of pairs by falling score along the last axis, NaN first, of equal ones the first; and the origins
    of their bytes in it. A score without a value may have any place, and with it every other one."""
    scores = pairs.view(dtype).reshape(*pairs.shape, -1)[..., 0].astype(np.float64)
    order = np.lexsort((-scores, ~np.isnan(scores)))
    unknown = origins[..., : dtype.itemsize].max(axis=(-2, -1), keepdims=True, initial=0) % MAX_ORIGINS
    return order, np.maximum(np.take_along_axis(origins, order[..., None], -2), unknown)


def _sort(c: LibraryCall) -> None:
    """src0: scores, src1: numbers; n: repeats of 32, how many are sorted together."""
    count, dtype = 32 * c.n[0], c.tensors["src0"].dtype
    if count == 0:
        return
    pairs, origins = np.zeros(count, np.uint64), np.zeros((count, 8), np.uint16)
    pairs.view(dtype).reshape(count, -1)[:, 0], origins[:, : dtype.itemsize] = c.take("src0", count)
    pairs.view(np.uint32)[1::2], origins[:, 4:] = c.take("src1", count)
    groups = pairs.reshape(-1, max(c.n[1], 1))
    order, origins = _sorted(groups, origins.reshape(*groups.shape, 8), dtype)
    every = np.take_along_axis(groups, order, axis=1).reshape(-1)
    c.put("dst", every.view(dtype), origins)


def _merge_sorted(c: LibraryCall) -> int:
    """n: the lengths of the lists, whether it stops where one is exhausted, which take part, repeats.

    Returns how many were taken of each in the last repeat, 16 bits each.
    """
    lengths, (stops, bits, repeats) = c.n[:4], c.n[4:]
    taking = [number for number in range(4) if bits >> number & 1]
    if bits not in (3, 7, 15) or (repeats > 1 and (stops or bits != 15 or len(set(lengths)) > 1)):
        raise DeviceFault(
            f"{c.api}: validBit must be 3, 7 or 15, and repeats take four lists of one length without suspension, got "
            f"validBit {bits}, {repeats} repeats of {lengths} and suspension {bool(stops)}"
        )
    dst = c.tensors["dst"]
    taken, start, dtype = np.zeros(4, np.int64), 0, dst.dtype
    for repeat in range(repeats):
        lists = [_pairs(c, f"src{number + 1}", repeat * sum(lengths), lengths[number]) for number in taking]
        of = np.repeat(taking, [pairs.size for pairs, _ in lists])
        pairs, origins = (np.concatenate(part) for part in zip(*lists, strict=True))
        order, origins = _sorted(pairs, origins, dtype)
        if stops:
            if origins[:, : dtype.itemsize].any():  # how many are taken is read as a number
                for number in taking:
                    name, count = f"src{number + 1}", lengths[number] * 8 // dtype.itemsize
                    c.tensors[name].read(c.api, name, count, aligned=False)
            ends = [int(np.flatnonzero(of[order] == number)[-1]) + 1 for number in taking if lengths[number]]
            order = order[: min(ends, default=0)]
        taken, every = np.bincount(of[order], minlength=4), pairs[order].view(dtype)
        dst[start:].put(c.api, "dst", every, origins[: order.size], aligned=False)
        start += every.size
    return int((taken << np.arange(0, 64, 16)).sum())


def _extract(c: LibraryCall) -> None:
    """n: repeats of 32."""
    pairs, origins = _pairs(c, "sorted", 0, 32 * c.n[0])
    dtype = c.tensors["dstValue"].dtype
    c.put("dstValue", pairs.view(dtype)[:: 8 // dtype.itemsize], origins[:, : dtype.itemsize])
    c.put("dstIndex", pairs.view(np.uint32)[1::2], origins[:, 4:])


def _top_k(c: LibraryCall) -> None:
    """finish: which rows are no rows; n: rows, columns of the memory, columns that count, k, whether numbers and such rows
    are given, whether results lie without gaps (columns: 32), falling."""
    if (dtype := c.tensors["dstValue"].dtype) not in (np.float16, np.float32):
        raise DtypeError(f"{c.api}: expected half or float, got {dtype}")
    rows, columns, real, k, numbered, finished, small, falling = c.n
    if columns % 32 or columns > (32 if small else 4096) or not 1 <= k <= real <= columns:
        raise BoundsFault(
            f"{c.api}: expected k up to n, and inner of whole 32 elements, {'32' if small else 'at most 4096'}, got {k}, "
            f"{real} and {columns}"
        )
    x = c.read("src", rows, columns)
    order = np.lexsort((-x if falling else x, ~np.isnan(x)))[:, :k]  # NaN first, of equal ones the first
    numbers: Any = np.arange(columns)
    if numbered:
        numbers = c.read("srcIndex", rows if small else 1, columns)
    chosen = np.take_along_axis(np.broadcast_to(numbers, x.shape), order, 1).astype(np.float64)
    if finished:
        chosen[c.read("finish", 1, rows)[0] != 0] = real
    for name, values in (("dstValue", np.take_along_axis(x, order, 1)), ("dstIndex", chosen)):
        gap = 0 if small else -k % c.width(name)
        c.write(name, np.pad(values, ((0, 0), (0, gap))))


def _shuffle(order: Callable[[Array], Array]) -> Callable[[LibraryCall], None]:
    """The n[0] elements of each source in another order."""

    def shuffle(c: LibraryCall) -> None:
        if c.n[0] % 2:
            raise BoundsFault(f"{c.api}: count must be even, got {c.n[0]}")
        parts = zip(*(c.take(name, c.n[0]) for name in ("src0", "src1")), strict=True)
        values, origins = (np.concatenate(part) for part in parts)
        for name, taken in zip(("dst0", "dst1"), np.split(order(np.arange(values.size)), 2), strict=True):
            c.put(name, values[taken], origins[taken])

    return shuffle


def _dequantize(c: LibraryCall) -> None:
    """src of int32, the scales, unless n[3]: then ``real``; n: rows, columns, columns that are computed."""
    rows, columns, count, scalar = c.n
    if not 0 < count <= columns or columns * 4 % BLOCK_BYTES:
        raise BoundsFault(f"{c.api}: n must be whole blocks of int32 and calCount up to n, got {columns} and {count}")
    scale = c.real if scalar else c.read("deqScale", 1, count)
    dst, unit = c.tensors["dst"], c.width("dst")
    values = c.read("src", rows, columns)[:, :count] * scale
    for row in range(rows):  # what is behind calCount stays as it is
        c._replace(tensors={"dst": dst[row * (-(-columns // unit) * unit) :]}).write("dst", values[row])


def _antiquantize(c: LibraryCall) -> None:
    """Offsets and scales [groups, n] of src [k, n], or none, and their doubles by their bits.

    n: rows of src, columns, groups of rows; without tensors: the count, and both numbers. Each step in half where dst is in
    half, as its page has it.
    """
    kind: Any = np.float16 if c.tensors["dst"].dtype == np.float16 else np.float64
    if "scale" not in c.tensors:
        count, *numbers = c.n
        rows, columns, (offset, scale) = 1, count, (kind(_double(number)) for number in numbers)
    else:
        rows, columns, groups = c.n
        if groups < 1 or rows % groups:
            raise BoundsFault(f"{c.api}: expected groups of rows, got {rows} rows and {groups} of offset")
        offset, scale = (
            np.repeat(c.read(name, groups, columns).astype(kind), rows // groups, axis=0)
            for name in ("offset", "scale")
        )
    c.write("dst", (c.read("src", rows, columns).astype(kind) + offset) * scale)


def _rms_norm(c: LibraryCall) -> None:
    """real: epsilon."""
    x, real = c.read("src"), c.n[2]
    gamma = c.read("gamma", 1, c.n[1])
    c.write("dst", x / np.sqrt((x[:, :real] ** 2).sum(axis=1, keepdims=True) / real + c.real) * gamma)


def _welford_update(c: LibraryCall) -> None:
    """real: 1 / count; n: columns, those that are computed, whether the others are copied (isInplace). In float32, each
    step rounded, as CANN's own steps are."""
    columns, count, inplace = c.n
    if not 0 < count <= columns or columns * c.tensors["inputX"].dtype.itemsize % BLOCK_BYTES:
        raise BoundsFault(
            f"{c.api}: abLength must be whole blocks, abComputeLength up to it, got {columns} and {count}"
        )
    kept = columns if inplace else count
    mean, squares, x = (
        c.read(name, 1, wanted).astype(np.float32)
        for name, wanted in (("inputMean", kept), ("inputVariance", kept), ("inputX", count))
    )
    step = x - mean[:, :count]
    mean[:, :count] += step * np.float32(c.real)
    squares[:, :count] += step * (x - mean[:, :count])
    c.write("outputMean", mean)
    c.write("outputVariance", squares)


def _welford_finalize(c: LibraryCall) -> None:
    """Mean and variance, from those of each column, and counts or none.

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
    means, variances = c.read("inputMean", 1, columns), c.read("inputVariance", 1, columns)
    counts: Any = np.full((1, columns), float(rows))
    weights: Any = 1.0
    if "counts" in c.tensors:
        weights = counts = c.read("counts", 1, columns)
        mean_factor = factor
    elif tail and tails:
        weights = counts = np.repeat([[head, tail]], [heads, tails], axis=1).astype(np.float64)
        mean_factor = factor
    mean = (means * weights).sum() * mean_factor
    variance = (variances + counts * (means - mean) ** 2).sum() * variance_factor
    c.write("outputMean", np.append(mean, np.zeros(7)))
    c.write("outputVariance", np.append(variance, np.zeros(7)))


def _normalize(c: LibraryCall) -> None:
    """real: epsilon; n[3], n[4]: without gamma, without beta."""
    rows, _, real = c.shape()
    mean, variance = (c.read(name, 1, rows).T for name in ("inputMean", "inputVariance"))
    rstd = 1 / np.sqrt(variance + c.real)
    y = (c.read("inputX") - mean) * rstd
    if not c.n[3]:
        y[:, :real] *= c.read("gamma", 1, real)
    if not c.n[4]:
        y[:, :real] += c.read("beta", 1, real)
    c.write("output", y)
    c.write("outputRstd", rstd)


def _deep_norm(c: LibraryCall) -> None:
    """real: epsilon; n[3]: alpha's double by its bits. CANN: the page calls the third rstd; its code and its example have
    the variance there."""
    total = c.read("srcLocal") * _double(c.n[3]) + c.read("gxLocal")
    real = c.n[2]
    mean = total[:, :real].mean(axis=1, keepdims=True)
    variance = ((total[:, :real] - mean) ** 2).mean(axis=1, keepdims=True)
    beta, gamma = (c.read(name, 1, c.n[1]) for name in ("betaLocal", "gammaLocal"))
    c.write("dstLocal", (total - mean) / np.sqrt(variance + c.real) * gamma + beta)
    c.write("meanLocal", mean)
    c.write("rstdLocal", variance)


_ONLY_950 = (
    "Clamp", "DeInterleave", "Fma", "Interleave", "IsFinite", "IsInf", "IsNan", "LogicalAnd", "LogicalOr", "LogicalXor",
    "LogicalNot",
)  # fmt: skip

# Each function, and the names of its tensors in the order of C++; those at the end may be left out.
LIBRARY: dict[str, tuple[Callable[[LibraryCall], int | None], str]] = {
    "SoftMax": (_softmax, "dst sum max src"),
    "SimpleSoftMax": (_simple_softmax, "dst inSum inMax src"),
    "LogSoftMax": (_log_softmax, "dst sum max src"),
    "SoftmaxGrad": (_softmax_grad, "dst grad src"),
    "SoftmaxFlashV2": (_softmax_flash_v2, "dst sum max src expMax inSum inMax"),
    "AdjustSoftMaxRes": (_adjust_softmax, "softMaxRes max"),
    "Sum": (_reduce(np.sum), "dst src"),
    "Mean": (_reduce(np.mean), "dst src"),
    **{
        f"Reduce{name}": (_reduce(getattr(np, name.lower())), "dst src")
        for name in ("Sum", "Max", "Min", "Prod", "Mean")
    },
    "CumSum": (_cumsum, "dst lastRow src"),
    "Fma": (_elementwise(lambda src0, src1, src2: src0 * src1 + src2, 3), "dst src0 src1 src2"),
    "Arange": (_arange, "dst"),
    "AscendQuant": (_quantize, "dst src"),
    "DropOut": (_dropout, "dst src mask"),
    "Select": (_select_bytes, "dst src mask"),
    "Clamp": (_clamp, "dst src min max"),
    **{
        f"Is{name}": (_elementwise(getattr(np, f"is{name.lower()}"), 1), "dst src0")
        for name in ("Finite", "Inf", "Nan")
    },
    **{
        f"Logical{name}": (_elementwise(getattr(np, f"logical_{name.lower()}"), 2), "dst src0 src1")
        for name in ("And", "Or", "Xor")
    },
    "LogicalNot": (_elementwise(np.logical_not, 1), "dst src0"),
    "TopK": (_top_k, "dstValue dstIndex src srcIndex finish"),
    "Sort32": (_sort, "dst src0 src1"),
    "MrgSort": (_merge_sorted, "dst src1 src2 src3 src4"),
    "Extract": (_extract, "dstValue dstIndex sorted"),
    # src0[0], src1[0], src0[1], …
    "Interleave": (_shuffle(lambda both: both.reshape(2, -1).T.reshape(-1)), "dst0 dst1 src0 src1"),
    # Those of even places, then those of odd ones.
    "DeInterleave": (_shuffle(lambda both: both.reshape(-1, 2).T.reshape(-1)), "dst0 dst1 src0 src1"),
    "AscendDequant": (_dequantize, "dst src deqScale"),
    "AscendAntiQuant": (_antiquantize, "dst src offset scale"),
    "RmsNorm": (_rms_norm, "dst src gamma"),
    "WelfordUpdate": (_welford_update, "outputMean outputVariance inputMean inputVariance inputX"),
    "WelfordFinalize": (_welford_finalize, "outputMean outputVariance inputMean inputVariance counts"),
    "Normalize": (_normalize, "output outputRstd inputMean inputVariance inputX gamma beta"),
    "DeepNorm": (_deep_norm, "dstLocal meanLocal rstdLocal srcLocal gxLocal betaLocal gammaLocal"),
    "Gatherb": (_gather_blocks, "dst src0 offset"),
    "Transpose": (_transpose, "dst src"),
}


def call_library(api: str, tensors: Sequence[LocalTensor], n: tuple[int, ...], real: float) -> int:
    """Run a function of the table. Returns what it returns, 0 for nothing.

    Raises:
        DeviceFault: There is no such function, or a rule is broken.
    """
    if api not in LIBRARY:
        raise DeviceFault(f"{api}: this library function is not simulated")
    core, (function, names) = tensors[0].core, LIBRARY[api]
    if api in _ONLY_950 and core.soc.arch != 3510:
        raise DeviceFault(f"{api}: only 950 has it, this is {core.soc.name}")
    with core.tile_api(api):
        result = function(LibraryCall(api, dict(zip(names.split(), tensors, strict=False)), n, real))
    core.record(api, V, core.site or ("", 0))
    return result or 0
