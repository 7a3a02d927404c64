"""The tiling lint: what a kernel would touch of the temporary buffer it is given, and whether that buffer is enough.

The published tiling of LayerNormGrad divides the temporary buffer into chunk buffers and then rounds the rows of a
chunk up, so that the chunk buffers can reach past the end (docs/ascend-tile.md, finding A). The kernel compares
only the two sizes, not the positions: on a device the neighbours in the Unified Buffer are overwritten without a
word. The lint is arithmetic on the published formulas; nothing here was run on a device.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from lngrad_ascend import soc as socs
from lngrad_ascend.faults import TilingError
from lngrad_ascend.tiling import host_functions as host
from lngrad_ascend.tiling.host_functions import FLOAT_BYTES, align_up, chunk_buffers, rows_per_block
from lngrad_ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling, LayerNormTiling, TilingStruct

Verdict = Literal["ok", "reserve", "overrun", "assert", "unfit"]
APIS: dict[str, tuple[Callable[..., tuple[int, int]], Callable[..., TilingStruct]]] = {
    "LayerNorm": (host.GetLayerNormMaxMinTmpSize, host.GetLayerNormNDTilingInfo),
    "LayerNormGrad": (host.GetLayerNormGradMaxMinTmpSize, host.GetLayerNormGradNDTilingInfo),
    "LayerNormGradBeta": (host.GetLayerNormGradBetaMaxMinTmpSize, host.GetLayerNormGradBetaNDTilingInfo),
}
TYPE_SIZES = {"half": 2, "float16": 2, "float": 4, "float32": 4}


@dataclass(frozen=True)
class Buffer:
    """A part of the temporary buffer, in bytes: its start, what the tiling reserves, what a kernel touches."""

    name: str
    start: int
    reserved: int
    touched: int


def _buffer(name: str, start: int, reserved: int, touched: int | None = None) -> Buffer:
    """A part from its place and sizes in floats; all that is reserved is touched where nothing else is said."""
    return Buffer(
        name, *(FLOAT_BYTES * floats for floats in (start, reserved, reserved if touched is None else touched))
    )


@dataclass(frozen=True)
class TilingReport:
    """The outcome of ``lint``.

    Attributes:
        verdict: "ok"; "reserve": the struct reserves past the end, but this shape does not reach there; "overrun":
            the kernel writes past the end; "assert": the tiling function refuses the size; "unfit": the buffer would do,
            but ``doubts`` say why the kernel refuses the call, or is likely to be wrong.
        overrun_bytes: By how much the kernel passes the end.
        safe_bytes: The smallest temporary buffer, not below the published minimum, with which this call stays inside it.
        operand_bytes: Unified Buffer that the tensors of the call take beside the temporary buffer.
        fits_ub: Whether the operands and the safe temporary buffer fit the SoC's Unified Buffer together.
        tiling: The struct, or None after "assert".
    """

    api: str
    soc: str
    shape: tuple[int, ...]
    dtype: str
    reuse_source: bool
    max_bytes: int
    min_bytes: int
    stack_bytes: int
    verdict: Verdict
    reserved_bytes: int
    touched_bytes: int
    overrun_bytes: int
    safe_bytes: int
    operand_bytes: int
    ub_bytes: int
    fits_ub: bool
    buffers: tuple[Buffer, ...]
    tiling: TilingStruct | None
    doubts: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(asdict(self), indent=2)


def lint(
    api: str,
    shape: Sequence[int],
    dtype: str = "float",
    soc: socs.SocLike = None,
    stack: str | int = "min",
    reuse_source: bool = False,
) -> TilingReport:
    """Say whether a temporary buffer suffices for one call of a tile API, and what would be safe.

    Args:
        api: "LayerNorm" (the form with variance), "LayerNormGrad" or "LayerNormGradBeta".
        shape: [B, S, H], or [B, S, storageHLength, originHLength].
        dtype: "half" or "float" ("float16", "float32").
        soc: Default: this thread's.
        stack: "min" or "max" (what the MaxMinTmpSize function says), or bytes.
        reuse_source: isReuseSource.

    Raises:
        TilingError: An unknown api, dtype or stack, or what the tiling functions raise for the shape.
    """
    if api not in APIS:
        raise TilingError(f"api: expected one of {', '.join(APIS)}, got {api!r}")
    if dtype not in TYPE_SIZES:
        raise TilingError(f"dtype: expected one of {', '.join(TYPE_SIZES)}, got {dtype!r}")
    if len(shape) not in (3, 4):
        raise TilingError(f"shape: expected [B, S, H] or [B, S, storageHLength, originHLength], got {list(shape)}")
    type_size = TYPE_SIZES[dtype]
    if reuse_source and type_size == 2:
        raise TilingError("reuse_source: half does not take isReuseSource=true")
    target = socs.get(soc)
    dims = (*shape, shape[-1]) if len(shape) == 3 else tuple(shape)
    call = _Call(api, dims, type_size, reuse_source, target)
    largest, smallest = call.sizes()
    size = str({"min": smallest, "max": largest}.get(str(stack), stack))
    if not size.isdecimal():
        raise TilingError(f"stack: expected 'min', 'max' or a number of bytes, got {stack!r}")
    stack_bytes = int(size)
    tiling = call.tiling(stack_bytes)
    buffers = call.buffers(tiling)
    reserved = max((b.start + b.reserved for b in buffers), default=0)
    touched = _reached(buffers)
    verdict: Verdict = "overrun" if touched > stack_bytes else "reserve" if reserved > stack_bytes else "ok"
    texts = host.doubts(target, dims, type_size, stack_bytes, smallest)
    if texts and verdict in ("ok", "reserve"):
        verdict = "unfit"
    safe, operands = call.safe_bytes(), call.operand_bytes()
    if safe < smallest:  # other chunks, which may reach further
        safe = max(smallest, _reached(call.buffers(call.tiling(smallest))))
    return TilingReport(
        api=api,
        soc=target.name,
        shape=dims,
        dtype="half" if type_size == 2 else "float",
        reuse_source=reuse_source,
        max_bytes=largest,
        min_bytes=smallest,
        stack_bytes=stack_bytes,
        verdict="assert" if tiling is None else verdict,
        reserved_bytes=reserved,
        touched_bytes=touched,
        overrun_bytes=max(0, touched - stack_bytes),
        safe_bytes=safe,
        operand_bytes=operands,
        ub_bytes=target.ub_bytes,
        fits_ub=operands + align_up(safe, target.block_bytes) <= target.ub_bytes,
        buffers=buffers,
        tiling=tiling,
        doubts=tuple(texts),
    )


def _reached(buffers: Sequence[Buffer]) -> int:
    return max((b.start + b.touched for b in buffers), default=0)


def safe_stack_bytes(
    api: str, shape: Sequence[int], type_size: int, reuse_source: bool, soc: socs.SocLike = None
) -> int:
    """Return the smallest temporary buffer, in bytes, with which a call stays inside it.

    Args:
        api, reuse_source, soc: As for lint.
        shape: [B, S, storageHLength, originHLength].
        type_size: 2 or 4.
    """
    return _Call(api, tuple(shape), type_size, reuse_source, socs.get(soc)).safe_bytes()


@dataclass(frozen=True)
class _Call:
    """A call of a tile API: everything that its temporary buffer depends on."""

    api: str
    dims: tuple[int, ...]
    type_size: int
    reuse: bool
    soc: socs.Soc

    def sizes(self) -> tuple[int, int]:
        """Return the published (max, min)."""
        return APIS[self.api][0](self.dims, self.type_size, self.reuse, soc=self.soc)

    def tiling(self, stack_bytes: int) -> TilingStruct | None:
        """Return the struct for a temporary buffer, or None where the tiling function refuses the size."""
        if stack_bytes < self._refused_below():
            return None
        quiet = {} if self.api == "LayerNorm" else {"quiet": True}
        return APIS[self.api][1](self.dims, stack_bytes, self.type_size, self.reuse, soc=self.soc, **quiet)

    def _refused_below(self) -> int:
        """Return the smallest size in bytes for which the tiling function fills the struct: one row a chunk."""
        B, S, H, _ = self.dims
        if self.api == "LayerNormGrad":
            return 0 if self.soc.regbase else len(chunk_buffers(self.type_size, self.reuse)) * H * FLOAT_BYTES
        if self.api == "LayerNormGradBeta":
            return (4 if self.type_size == 2 else 2) * H * FLOAT_BYTES
        statistics = 2 * align_up(B * S, 8) if self.type_size == 2 else 0
        return ((2 if self.reuse else 3) * H + statistics) * FLOAT_BYTES

    def buffers(self, tiling: TilingStruct | None) -> tuple[Buffer, ...]:
        """Return the parts of the temporary buffer that the kernel uses, in the order of their positions."""
        B, S, H, _ = self.dims
        if isinstance(tiling, LayerNormGradTiling):
            if self.soc.regbase:
                return () if self.reuse else (_buffer("x1", 0, H), _buffer("x2", align_up(H, 8), H))
            chunk, names = tiling.oneCalSize, chunk_buffers(self.type_size, self.reuse)
            return tuple(_buffer(name, getattr(tiling, f"{name}Pos"), chunk, min(chunk, B * S * H)) for name in names)
        if self.soc.regbase:
            return ()  # registers
        if isinstance(tiling, LayerNormGradBetaTiling):
            products = _buffer("resForGammaTmp", tiling.resForGammaTmpTensorPos, tiling.oneCalSize)
            if self.type_size == 4:  # with reuse the products lie in resForGamma
                return () if self.reuse else (products,)
            return (
                _buffer("gammaTemp", 0, H),
                _buffer("betaTemp", tiling.betaTempTensorPos, H),
                _buffer("inputDyTmp", tiling.inputDyTmpTensorPos, tiling.oneCalSize),
                products,
            )
        if isinstance(tiling, LayerNormTiling):
            rows, chunk = tiling.meanTmpTensorSize, tiling.oneTmpSize
            starts = (tiling.firstTmpStartPos, tiling.secondTmpStartPos, tiling.thirdTmpStartPos)
            names = ("tempTensorB", "tempTensorC") if self.reuse else ("tempTensorA", "tempTensorB", "tempTensorC")
            chunks = tuple(_buffer(name, start, chunk) for name, start in zip(names, starts, strict=False))
            statistics = () if self.type_size == 4 else (_buffer("mean", 0, rows), _buffer("variance", rows, rows))
            return (*statistics, *chunks)
        return ()

    def safe_bytes(self) -> int:
        """Return the smallest size with which the kernel stays inside its temporary buffer."""
        B, S, H, _ = self.dims
        if self.api != "LayerNormGrad":
            return self._refused_below()
        if self.soc.regbase:
            return self.sizes()[1]
        # Any size that gives one row is rounded up to a block of rows; the last buffer is filled as
        # far as the shape goes, the ones before it must have room for the whole chunk.
        chunk = rows_per_block(self.type_size) * H
        floats = (len(chunk_buffers(self.type_size, self.reuse)) - 1) * chunk + min(chunk, B * S * H)
        return max(floats * FLOAT_BYTES, self._refused_below())

    def operand_bytes(self) -> int:
        """Return what the tensors of the call take, each rounded up to blocks."""
        B, S, H, _ = self.dims
        matrix, rows, row = (align_up(n * self.type_size, self.soc.block_bytes) for n in (B * S * H, B * S, H))
        if self.api == "LayerNorm":
            return 2 * matrix + 2 * rows + 2 * row  # x, y; mean, variance; gamma, beta
        if self.api == "LayerNormGrad":
            return 4 * matrix + 2 * rows + row  # dy, x, pd_x, resForGamma; mean, variance; gamma
        return 2 * matrix + 2 * row  # dy, resForGamma; pd_gamma, pd_beta


@dataclass(frozen=True)
class SweepRow:
    """The counts of shapes by verdict, for one dtype, reuse and stack."""

    dtype: str
    reuse_source: bool
    stack: str
    ok: int
    reserve: int
    overrun: int
    refused: int


def sweep(soc: socs.SocLike = "Ascend910B1") -> tuple[SweepRow, ...]:
    """Lint LayerNormGrad with its own minimum and maximum: H in steps of 32 bytes up to 1024 elements, 1 to 256 rows."""
    rows = []
    for dtype, reuse in (("half", False), ("float", False), ("float", True)):
        step = 32 // TYPE_SIZES[dtype]
        shapes = [(1, S, H) for H in range(step, 1024 + 1, step) for S in (1, 2, 4, 7, 8, 16, 32, 64, 100, 128, 256)]
        for stack in ("min", "max"):
            verdicts = [lint("LayerNormGrad", shape, dtype, soc, stack, reuse).verdict for shape in shapes]
            counts = Counter("refused" if verdict in ("assert", "unfit") else verdict for verdict in verdicts)
            rows.append(
                SweepRow(dtype, reuse, stack, counts["ok"], counts["reserve"], counts["overrun"], counts["refused"])
            )
    return tuple(rows)
