"""A call of a tile API: the checks of CANN's CPU-debug build, and operands that share memory.

The manuals allow source and destination to share memory. Whether that changes the result depends on the order of the
instructions, on the chunks and on isReuseSource; instead of guessing, such a call runs a second time on separate
memory, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from itertools import combinations, product
from numbers import Real
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from lngrad.errors import DtypeError
from lngrad.typing import Array
from lngrad_ascend import soc as socs
from lngrad_ascend.device.core import Core
from lngrad_ascend.device.descriptors import check_place
from lngrad_ascend.device.local_tensor import LocalTensor, pop_stack_buffer
from lngrad_ascend.device.unified_buffer import State, TPosition
from lngrad_ascend.faults import AlignmentFault, BoundsFault, DeviceFault, OverlapFault, PositionFault, TilingError
from lngrad_ascend.tiling.host_functions import align_up
from lngrad_ascend.tiling.structs import TilingStruct

POSITIONS = (TPosition.VECIN, TPosition.VECOUT, TPosition.VECCALC)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Tensors = TypeVar("Tensors", bound=DataclassInstance)
else:
    Tensors = TypeVar("Tensors")


class Operand(NamedTuple):
    """A tensor of a call: the parameter's name in CANN, the tensor, and the elements that the tiling needs."""

    name: str
    tensor: LocalTensor
    needed: int

    def window(self) -> LocalTensor:
        """Return the elements that count."""
        return self.tensor[: self.needed]

    def describe(self) -> str:
        """Return the name and the bytes, for texts."""
        start = self.tensor.start
        return f"{self.name} (bytes {start} to {start + self.needed * self.tensor.dtype.itemsize})"


def _check_position(api: str, name: str, tensor: LocalTensor) -> None:
    """Refuse a tensor that is not in the Unified Buffer for vectors."""
    if tensor.GetPosition() not in POSITIONS:
        names = ", ".join(p.value for p in POSITIONS)
        raise PositionFault(f"{api}: {name} must be at one of {names}, it is at {tensor.GetPosition().value}")


def check_kinds(
    api: str, tensors: Mapping[str, object], epsilon: object, tiling: object, more: object, *kinds: type[TilingStruct]
) -> None:
    """Refuse a product without the API, then arguments in each other's places, or ``more`` than the API has.

    Raises:
        DeviceFault, DtypeError, TilingError: As said.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, LocalTensor):
            raise DtypeError(f"{api}: {name} must be a LocalTensor, got {type(tensor).__name__}")
        if not tensor.core.soc.tile_api:
            soc = tensor.core.soc
            raise DeviceFault(f"{api}: not available on {soc.name} ({soc.product}), see the manual's product table")
    if not isinstance(epsilon, Real):
        raise DtypeError(f"{api}: epsilon must be a number, got {type(epsilon).__name__}; sharedTmpBuffer is a keyword")
    if not isinstance(tiling, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TilingError(f"{api}: tiling must be a {names}, got {type(tiling).__name__}; sharedTmpBuffer is a keyword")
    if more:
        raise DtypeError(f"{api}: expected no argument behind the last of its signature, got {more!r}")


class TileCall(Generic[Tensors]):
    """A call of a tile API.

    Args:
        api: Name of the API.
        kind: The dataclass of the tensors: those of ``operands`` in their order, then the temporary buffer.
        operands: (tensor, elements that the tiling needs) by the parameter's name in CANN; the first gives T.
        outputs: How many of them, from the first on, the call writes.
        shared: The temporary buffer that the kernel passed; None takes what TPipe has left.
    """

    def __init__(
        self,
        api: str,
        kind: Callable[..., Tensors],
        operands: dict[str, tuple[LocalTensor, int]],
        outputs: int,
        shared: LocalTensor | None,
    ) -> None:
        self.api = api
        self.operands = [Operand(name, *operand) for name, operand in operands.items()]
        self.outputs = self.operands[:outputs]
        self.first = self.operands[0].tensor
        self.soc = self.first.core.soc
        self.shared = shared
        self.temp = pop_stack_buffer(self.first.core) if shared is None else shared
        self.tensors = kind(*(operand.tensor for operand in self.operands), self.temp)

    def check(
        self, H: int, isReuseSource: bool, stack_bytes: int, wide: Iterable[str] = (), *, scratch: Iterable[str] = (),
        touched: int = 0,
    ) -> None:  # fmt: skip
        """Check everything that all tile APIs ask of their arguments. Raises DeviceFault or DtypeError.

        Args:
            H: Elements of the last axis in memory.
            stack_bytes: The temporary buffer that the tiling was made for.
            wide: Names of the operands that are float whatever T is.
            scratch: Names of the inputs that isReuseSource overwrites, on the product that overwrites most.
            touched: How far into the temporary buffer the kernel reaches, where that is more.
        """
        api, dtype = self.api, self.first.dtype
        if dtype not in (np.float16, np.float32):
            raise DtypeError(f"{api}: T must be half or float, got {dtype}")
        if isReuseSource and dtype == np.float16:
            raise DtypeError(f"{api}: isReuseSource=true takes float only, T is half")
        for name, tensor, count in self.operands:
            _check_position(api, name, tensor)
            check_place(
                api, f"{name} ({tensor.describe()})", tensor.start, tensor.start, tensor.end, self.soc.block_bytes
            )
            if tensor.GetSize() < count:
                raise BoundsFault(f"{api}: {name} needs {count} elements for this tiling, it has {tensor.GetSize()}")
            if name in wide:
                if tensor.dtype != np.float32:
                    raise DtypeError(f"{api}: {name} must be float32 in this form, got {tensor.dtype}")
            elif tensor.dtype != dtype:
                raise DtypeError(f"{api}: {name} must be {dtype} like {self.operands[0].name}, got {tensor.dtype}")
        size, block = dtype.itemsize, self.soc.block_bytes
        if H * size % block:
            raise AlignmentFault(
                f"{api}: the last axis must fill blocks of {block} bytes, H is {H} of {size} bytes = {H * size}; pad it "
                "(findings B and C of docs/ascend-tile.md say with what) and give storageHLength and originHLength to the "
                "tiling"
            )
        for output, other in combinations(self.outputs, 2):
            if output.window().overlaps(other.window()):
                raise OverlapFault(f"{api}: {output.describe()} and {other.describe()} must not share memory")
        where = "the space that TPipe has left"
        if self.shared is not None:
            where = "sharedTmpBuffer"
            _check_position(api, where, self.shared)
            if self.shared.dtype != np.uint8:
                raise DtypeError(f"{api}: sharedTmpBuffer must be uint8, got {self.shared.dtype}")
            place = self.shared.start, self.shared.start, self.shared.end
            check_place(api, f"{where} ({self.shared.describe()})", *place, block)
        if self.temp.GetSize() < stack_bytes:
            raise BoundsFault(
                f"{api}: {where} has {self.temp.GetSize()} bytes, the tiling was made for stackBufferSize {stack_bytes}"
            )
        self._check_apart(scratch if isReuseSource else (), where, max(stack_bytes, touched))

    def _check_apart(self, scratch: Iterable[str], where: str, reach: int) -> None:
        """Refuse scratch that shares memory with an input: inputs by name, and the first bytes of the temporary buffer."""
        api, inputs = self.api, self.operands[len(self.outputs) :]
        written = [operand for operand in inputs if operand.name in scratch]
        if reach:
            written.append(Operand(where, self.temp, min(reach, self.temp.nbytes)))
        for taken, other in product(written, inputs):
            if taken.name != other.name and taken.window().overlaps(other.window()):
                raise OverlapFault(
                    f"{api}: {taken.describe()} and {other.describe()} must not share memory: the first is written "
                    "before the second has been read"
                )

    def check_padding(self, names: Iterable[str], H: int, originH: int, spreads: bool) -> dict[str, Array]:
        """Return the padded columns of inputs, in float; remark those that are not 0, as the manual asks.

        Raises:
            DeviceFault: They have NaN or infinity, and the padding ``spreads`` into results.
        """
        padding = {}
        for name, tensor, count in self.operands:
            if name in names:
                values = tensor.read(self.api, name, count).reshape(-1, H)[:, originH:].astype(np.float32)
                padding[name] = values
                if spreads and not np.isfinite(values).all():
                    raise DeviceFault(
                        f"{self.api}: the padding of {name}, columns {originH} to {H} of each row, has NaN or infinity, "
                        f"which reaches {self.outputs[0].name}; the manual asks for 0"
                    )
                if values.any():
                    self.first.core.remark(f"{self.api}: the padding of {name} is not 0, as the manual asks")
        return padding

    def warn(self, text: str) -> None:
        """Warn of what is likely to be wrong, at the call's line."""
        self.first.core.warn(f"{self.api}: {text}")

    def remark(self, texts: Mapping[str, bool]) -> None:
        """Remark the texts that hold, and a product that only the newest page of the API lists, if older ones are chosen."""
        documents = socs.current().documents
        product = f"the page of CANN {documents} lists Atlas A2 and A3, {self.soc.product} is on the newest one only"
        for text, holds in {**texts, product: documents != "master" and self.soc.arch != 2201}.items():
            if holds:
                self.first.core.remark(f"{self.api}: {text}")

    def run(self, compute: Callable[[Tensors], None]) -> None:
        """Run ``compute`` on the tensors; warn where shared memory changes what it gives."""
        separate = self._copied_apart()
        with np.errstate(all="ignore"):  # infinities and NaN are results on the device, not events
            if separate is not None:
                compute(separate)
            with self.first.core.tile_api(self.api):
                compute(self.tensors)
        if separate is None:
            return
        for (name, tensor, count), field in zip(self.outputs, fields(separate), strict=False):
            wrong = int(np.count_nonzero(_bits(tensor, count) != _bits(getattr(separate, field.name), count)))
            if wrong:
                self.warn(
                    f"operands share memory in a way that changes the result: {wrong} of {count} "
                    f"elements of {name} differ from what separate memory gives"
                )

    def mark_overwritten(self, name: str, count: int, text: str) -> None:
        """Warn when somebody reads the first elements of an input from now on, unless it is a result now, too."""
        tensor = next(operand.tensor for operand in self.operands if operand.name == name)
        if not any(tensor.overlaps(output.tensor) for output in self.outputs):
            tensor.mark_stale(count, text)

    def _copied_apart(self) -> Tensors | None:
        """Return the tensors copied to memory of their own, or None where no output shares any."""
        named: dict[str, LocalTensor] = {f.name: getattr(self.tensors, f.name) for f in fields(self.tensors)}
        tensors = list(named.values())
        shares = any(
            output.window().overlaps(tensor)
            for index, output in enumerate(self.outputs)
            for tensor in tensors[:index] + tensors[index + 1 :]
        )
        if not shares:
            return None
        scratch = Core(self.soc, size=sum(align_up(tensor.nbytes, self.soc.block_bytes) for tensor in tensors))
        return replace(self.tensors, **{name: _copy(tensor, scratch) for name, tensor in named.items()})


def _copy(tensor: LocalTensor, scratch: Core) -> LocalTensor:
    place = scratch.ub.allocate(tensor.allocation.name, tensor.GetPosition(), tensor.nbytes, State.BUFFER)
    scratch.ub.new_handle(place)
    tensor.core.ub.copy_to(tensor.start, tensor.end, scratch.ub, place.start)
    return LocalTensor(scratch, place, tensor.dtype, place.start, tensor.nbytes)


def _bits(tensor: LocalTensor, count: int) -> Array:
    unsigned = np.dtype(f"u{tensor.dtype.itemsize}")
    stop = tensor.start + count * tensor.dtype.itemsize
    return tensor.core.ub.data[tensor.start : stop].view(unsigned)
