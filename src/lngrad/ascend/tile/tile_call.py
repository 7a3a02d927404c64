"""One call of a tile API: what CANN's CPU-debug build checks, and what happens where operands share memory.

The manuals allow source and destination to share memory. Whether that changes the result depends on the order of the
instructions, on the chunks and on isReuseSource; instead of guessing, such a call runs a second time on separate
memory, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from lngrad.ascend.device.core import Core
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.running import warn_at_kernel
from lngrad.ascend.device.unified_buffer import State, TPosition
from lngrad.ascend.faults import AlignmentFault, BoundsFault, DeviceFault, OverlapFault, PositionFault
from lngrad.ascend.tiling.host_functions import align_up
from lngrad.errors import DtypeError
from lngrad.typing import Array

POSITIONS = (TPosition.VECIN, TPosition.VECOUT, TPosition.VECCALC)


def _check_position(api: str, name: str, tensor: LocalTensor) -> None:
    """Refuse a tensor that is not in the Unified Buffer for vectors."""
    if tensor.GetPosition() not in POSITIONS:
        names = ", ".join(p.value for p in POSITIONS)
        raise PositionFault(f"{api}: {name} must be at one of {names}, it is at {tensor.GetPosition().value}")


def _check_apart(api: str, one: tuple[str, LocalTensor, int], other: tuple[str, LocalTensor, int]) -> None:
    """Refuse two outputs, each (name, tensor, elements), that share memory."""
    if one[1][: one[2]].overlaps(other[1][: other[2]]):
        here, there = (
            f"{name} (bytes {tensor.start} to {tensor.start + count * tensor.dtype.itemsize})"
            for name, tensor, count in (one, other)
        )
        raise OverlapFault(f"{api}: {here} and {there} must not share memory")


def _check_temporary(api: str, given: LocalTensor | None, used: LocalTensor, stack_bytes: int) -> None:
    """Check the temporary buffer against the size that the tiling was made for."""
    if given is not None:
        _check_position(api, "sharedTmpBuffer", given)
        if given.dtype != np.uint8:
            raise DtypeError(f"{api}: sharedTmpBuffer must be uint8, got {given.dtype}")
    if used.GetSize() < stack_bytes:
        where = "sharedTmpBuffer" if given is not None else "the space that TPipe has left"
        raise BoundsFault(
            f"{api}: {where} has {used.GetSize()} bytes, the tiling was made for stackBufferSize {stack_bytes}"
        )


if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Tensors = TypeVar("Tensors", bound=DataclassInstance)
else:
    Tensors = TypeVar("Tensors")


@dataclass(frozen=True)
class Operand:
    """One tensor of a call.

    Attributes:
        name: The parameter's name in CANN.
        count: Elements that the tiling needs.
        output: Whether the call writes it.
        dtype: Its element type where that is not T.
    """

    name: str
    count: int
    output: bool = False
    dtype: type[np.generic] | None = None


class TileCall(Generic[Tensors]):
    """One call of a tile API.

    Args:
        api: Name of the API.
        tensors: The tensors of the call, a dataclass of LocalTensor.
        operands: What is known about each, by field name of ``tensors``; the first gives T.
    """

    def __init__(self, api: str, tensors: Tensors, operands: dict[str, Operand]) -> None:
        self.api = api
        self.tensors = tensors
        self.operands = operands
        self.first: LocalTensor = getattr(tensors, next(iter(operands)))
        self.soc = self.first.core.soc

    def check(self, H: int, isReuseSource: bool, shared: LocalTensor | None, stack_bytes: int) -> None:
        """Check everything that all tile APIs ask of their arguments.

        Args:
            H: Elements of the last axis in memory.
            isReuseSource: As the kernel passed it.
            shared: The temporary buffer that the kernel passed, or None.
            stack_bytes: The temporary buffer that the tiling was made for.

        Raises:
            DeviceFault, DtypeError: A rule is broken.
        """
        api, first, soc = self.api, self.first, self.soc
        if not soc.tile_api:
            raise DeviceFault(f"{api}: not available on {soc.name} ({soc.product}), see the manual's product table")
        if first.dtype not in (np.float16, np.float32):
            raise DtypeError(f"{api}: T must be half or float, got {first.dtype}")
        if isReuseSource and first.dtype == np.float16:
            raise DtypeError(f"{api}: isReuseSource=true takes float only, T is half")
        first_name = next(iter(self.operands.values())).name
        for field, operand in self.operands.items():
            tensor: LocalTensor = getattr(self.tensors, field)
            _check_position(api, operand.name, tensor)
            if tensor.GetSize() < operand.count:
                raise BoundsFault(
                    f"{api}: {operand.name} needs {operand.count} elements for this tiling, it has {tensor.GetSize()}"
                )
            if operand.dtype is None and tensor.dtype != first.dtype:
                raise DtypeError(f"{api}: {operand.name} must be {first.dtype} like {first_name}, got {tensor.dtype}")
            if operand.dtype is not None and tensor.dtype != operand.dtype:
                expected = np.dtype(operand.dtype)
                raise DtypeError(f"{api}: {operand.name} must be {expected} in this form, got {tensor.dtype}")
        size, block = first.dtype.itemsize, soc.block_bytes
        if H * size % block:
            raise AlignmentFault(
                f"{api}: the last axis must fill blocks of {block} bytes, H is {H} of {size} bytes = {H * size}; pad it "
                "and give storageHLength and originHLength to the tiling"
            )
        outputs = [(getattr(self.tensors, field), o) for field, o in self.operands.items() if o.output]
        for index, (one, here) in enumerate(outputs):
            for other, there in outputs[index + 1 :]:
                _check_apart(self.api, (here.name, one, here.count), (there.name, other, there.count))
        used: LocalTensor = self.tensors.temp  # type: ignore[attr-defined]  # every API has one
        _check_temporary(self.api, shared, used, stack_bytes)

    def run(self, compute: Callable[[Tensors], None]) -> None:
        """Run ``compute`` on the tensors; warn where shared memory changes what it gives."""
        separate = self._copied_apart()
        with np.errstate(all="ignore"):  # infinities and NaN are results on the device, not events
            if separate is not None:
                compute(separate)
            with self.first.core.tile_api(self.api):
                compute(self.tensors)
        if separate is not None:
            self._compare(separate)

    def mark_overwritten(self, field: str, count: int, text: str) -> None:
        """Warn with ``text`` when somebody reads the first ``count`` elements of an input from now on.

        An input that shares memory with an output is left out: it is a result now, and whether a right one was
        compared.
        """
        tensor: LocalTensor = getattr(self.tensors, field)
        outputs = (getattr(self.tensors, name) for name, operand in self.operands.items() if operand.output)
        if not any(tensor.overlaps(output) for output in outputs):
            tensor.mark_stale(count, text)

    def _copied_apart(self) -> Tensors | None:
        """Return the tensors copied to memory of their own, or None where no output shares any."""
        named: dict[str, LocalTensor] = {f.name: getattr(self.tensors, f.name) for f in fields(self.tensors)}
        shares = any(
            named[out][: operand.count].overlaps(tensor)
            for out, operand in self.operands.items()
            if operand.output
            for name, tensor in named.items()
            if name != out
        )
        if not shares:
            return None
        size = sum(align_up(tensor.nbytes, self.soc.block_bytes) for tensor in named.values())
        scratch = Core(self.soc, size=size)
        return replace(self.tensors, **{name: _copy(tensor, scratch) for name, tensor in named.items()})

    def _compare(self, separate: Tensors) -> None:
        for field, operand in self.operands.items():
            if not operand.output:
                continue
            got, expected = (_bits(getattr(tensors, field), operand.count) for tensors in (self.tensors, separate))
            wrong = int(np.count_nonzero(got != expected))
            if wrong:
                warn_at_kernel(
                    f"{self.api}: operands share memory in a way that changes the result: {wrong} of {operand.count} "
                    f"elements of {operand.name} differ from what separate memory gives"
                )


def _copy(tensor: LocalTensor, scratch: Core) -> LocalTensor:
    place = scratch.ub.allocate(tensor.allocation.name, tensor.GetPosition(), tensor.nbytes, State.BUFFER)
    scratch.ub.new_handle(place)
    tensor.ub.copy_to(tensor.start, tensor.end, scratch.ub, place.start)
    return LocalTensor(scratch, place, tensor.dtype, place.start, tensor.nbytes)


def _bits(tensor: LocalTensor, count: int) -> Array:
    unsigned = np.dtype(f"u{tensor.dtype.itemsize}")
    stop = tensor.start + count * tensor.dtype.itemsize
    return tensor.ub.data[tensor.start : stop].view(unsigned)
