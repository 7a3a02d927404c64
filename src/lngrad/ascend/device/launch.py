"""Run a kernel function on the simulated SoC: once a block, each block with a Unified Buffer of its own.

A kernel is a Python function that takes what a ``__global__ __aicore__`` function takes: one address an array, then
the workspace and the tiling where they are given. Blocks run one after the other; a kernel cannot wait for another
block, and two blocks that write the same global bytes are an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from lngrad.ascend import soc as socs
from lngrad.ascend.device.global_memory import GlobalAddress
from lngrad.ascend.device.unified_buffer import Block, UnifiedBuffer, current_block
from lngrad.ascend.faults import DeviceFault, OverlapFault, TilingError
from lngrad.ascend.tiling.structs import TilingStruct
from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import Array

__all__ = [
    "BlockReport",
    "CopyTiling",
    "GET_TILING_DATA",
    "GetBlockIdx",
    "GetBlockNum",
    "LaunchReport",
    "launch",
]

S = TypeVar("S", bound=TilingStruct)


@dataclass(frozen=True)
class BlockReport:
    """What one block did.

    Attributes:
        peak_ub_bytes: the highest byte of the Unified Buffer that was reserved or written.
        bytes_in: from global memory.
        bytes_out: to global memory.
        tile_apis: calls by name.
        instructions: vector and copy instructions by name, those inside the tile APIs included.
        api_instructions: how many of these each tile API issued.
    """

    block: int
    peak_ub_bytes: int
    bytes_in: int
    bytes_out: int
    tile_apis: dict[str, int]
    instructions: dict[str, int]
    api_instructions: dict[str, int]


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did, block by block."""

    kernel: str
    soc: str
    ub_bytes: int
    blocks: tuple[BlockReport, ...]

    def instructions(self) -> dict[str, int]:
        """Return the instructions of all blocks by name, most frequent first."""
        total: Counter[str] = Counter()
        for block in self.blocks:
            total.update(block.instructions)
        return dict(total.most_common())

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(asdict(self), indent=2)

    def table(self) -> str:
        """Return the report as a table of text, one line a block."""
        head = (
            "block",
            "peak UB bytes",
            "of UB",
            "bytes in",
            "bytes out",
            "instructions",
            "tile APIs: calls, instructions",
        )
        lines = [head]
        for block in self.blocks:
            calls = sorted(block.tile_apis.items())
            apis = "; ".join(f"{name}: {count}, {block.api_instructions[name]:,}" for name, count in calls) or "-"
            lines.append(
                (
                    str(block.block),
                    f"{block.peak_ub_bytes:,}",
                    f"{100 * block.peak_ub_bytes / self.ub_bytes:.1f} %",
                    f"{block.bytes_in:,}",
                    f"{block.bytes_out:,}",
                    f"{sum(block.instructions.values()):,}",
                    apis,
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([f"{self.kernel} on {self.soc}, {len(self.blocks)} blocks", *rows])

    __str__ = table


def launch(
    kernel: Callable[..., None],
    block_num: int,
    *arrays: Array,
    workspace: int | Array | None = None,
    tiling: bytes | TilingStruct | None = None,
    soc: str | socs.Soc | None = None,
) -> LaunchReport:
    """Run ``kernel`` on ``block_num`` blocks, in place on ``arrays``.

    Args:
        kernel: called once a block as ``kernel(address, …[, workspace][, tiling])``.
        block_num: blocks; more than the SoC has vector cores run in turns on a device.
        arrays: contiguous NumPy arrays; results are written into them.
        workspace: bytes of scratch in global memory, or an array of uint8; filled with 0xFF when allocated here.
        tiling: a struct or its bytes; the kernel reads it with CopyTiling or GET_TILING_DATA.
        soc: default: this thread's.

    Raises:
        DeviceFault: a kernel broke a rule; the text starts with the block.
        ShapeError, DtypeError: an array is not contiguous, or not an array.
    """
    target = socs.get(soc)
    if not 1 <= block_num <= 65535:
        raise ShapeError(f"block_num: expected 1 to 65535, got {block_num}")
    for index, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            raise DtypeError(f"arrays[{index}]: expected a NumPy array, got {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise ShapeError(f"arrays[{index}]: global memory must be contiguous, got strides {array.strides}")
    arguments: list[Any] = [GlobalAddress(array, f"arrays[{index}]") for index, array in enumerate(arrays)]
    if workspace is not None:
        memory = np.full(workspace, 0xFF, np.uint8) if isinstance(workspace, int) else workspace
        arguments.append(GlobalAddress(memory, "workspace"))
    if tiling is not None:
        arguments.append(tiling.to_bytes() if isinstance(tiling, TilingStruct) else bytes(tiling))
    writes: list[tuple[int, int, int, str]] = []
    reports = []
    for index in range(block_num):
        block = Block(index, block_num, UnifiedBuffer(target))
        _run(kernel, block, arguments)
        writes += [(start, stop, index, name) for start, stop, name in block.global_writes]
        tally = block.ub.tally
        reports.append(
            BlockReport(
                block.index,
                block.ub.peak,
                tally.bytes_in,
                tally.bytes_out,
                dict(tally.tile_apis),
                dict(tally.instructions.most_common()),
                dict(tally.api_instructions),
            )
        )
    _check_global_writes(writes)
    return LaunchReport(getattr(kernel, "__name__", "kernel"), target.name, target.ub_bytes, tuple(reports))


def _run(kernel: Callable[..., None], block: Block, arguments: list[Any]) -> None:
    token = current_block.set(block)
    try:
        kernel(*arguments)
        for pipe in block.pipes:
            pipe.check_leaks()
    except DeviceFault as fault:
        raise type(fault)(f"block {block.index}: {fault}") from fault
    finally:
        current_block.reset(token)


def _check_global_writes(writes: list[tuple[int, int, int, str]]) -> None:
    """Refuse that two blocks write the same bytes: on a device the later one wins, and which that is varies."""
    reach, owner = 0, -1
    for start, stop, index, name in sorted(writes):
        if start < reach and index != owner:
            raise OverlapFault(
                f"blocks {owner} and {index} both write the same {min(reach, stop) - start} bytes of {name}"
            )
        if stop > reach:
            reach, owner = stop, index


def GetBlockIdx() -> int:
    """Return the index of the running block. C prototype: ``int64_t GetBlockIdx()``."""
    return _running("GetBlockIdx").index


def GetBlockNum() -> int:
    """Return how many blocks were launched. C prototype: ``int64_t GetBlockNum()``."""
    return _running("GetBlockNum").count


def _running(api: str) -> Block:
    block = current_block.get()
    if block is None:
        raise DeviceFault(f"{api}: no kernel is running; launch() runs one")
    return block


def CopyTiling(kind: type[S], tiling: bytes) -> S:
    """Read the tiling of a kernel, as the samples' CopyTiling does word by word.

    CANN: the struct is returned, and a buffer that is too short is refused instead of read past its end.

    Raises:
        TilingError: the buffer is shorter than the struct.
    """
    if not isinstance(tiling, bytes):
        raise TilingError(f"CopyTiling: expected the bytes that the kernel was given, got {type(tiling).__name__}")
    return kind.from_bytes(tiling)


# The macro declares a variable in C++; what it reads, and what can go wrong, is the same.
GET_TILING_DATA = CopyTiling
