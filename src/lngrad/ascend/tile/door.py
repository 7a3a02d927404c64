"""What the doors of the tile APIs have in common: check, copy apart, run, compare, mark what was
overwritten.

The manuals allow source and destination to share memory. Whether that changes the result depends
on the order of the instructions, on the chunks and on isReuseSource; instead of guessing, a door
runs such a call a second time on separate memory and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from lngrad.ascend.device.core import Core
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.source import warn_at_kernel
from lngrad.ascend.device.unified_buffer import State
from lngrad.ascend.tile import checks
from lngrad.ascend.tiling.host_functions import align_up
from lngrad.typing import Array

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


class Door(Generic[Tensors]):
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
        checks.tile_api(self.api, self.soc)
        checks.element_type(self.api, self.first, isReuseSource)
        first_name = next(iter(self.operands.values())).name
        for field, operand in self.operands.items():
            tensor: LocalTensor = getattr(self.tensors, field)
            checks.tensor(self.api, operand.name, tensor, operand.count)
            if operand.dtype is None:
                checks.same_type(self.api, operand.name, tensor, first_name, self.first)
            else:
                checks.fixed_type(self.api, operand.name, tensor, np.dtype(operand.dtype))
        checks.whole_blocks(self.api, self.first, H)
        outputs = [(getattr(self.tensors, field), o) for field, o in self.operands.items() if o.output]
        for index, (one, here) in enumerate(outputs):
            for other, there in outputs[index + 1 :]:
                checks.outputs_apart(self.api, (here.name, one, here.count), (there.name, other, there.count))
        used: LocalTensor = self.tensors.temp  # type: ignore[attr-defined]  # every API has one
        checks.temporary(self.api, shared, used, stack_bytes)

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
        """Warn with ``text`` when somebody reads the first ``count`` elements of an input from now
        on.

        An input that shares memory with an output is left out: it is a result now, and whether a
        right one was compared.
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
