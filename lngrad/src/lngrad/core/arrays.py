"""Arrays of other libraries: what they are, where they lie, and how to make more of their kind.

Nothing here imports a framework: a torch tensor in the caller's hands proves that torch is loaded already.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lngrad.core.memory import KEPT_FROM, allocated, block_maker
from lngrad.errors import DtypeError, ShapeError
from lngrad.support.addresses import address_of
from lngrad.support.dtypes import DTYPES, bytes_of, dtype_name, to_torch, torch_dtype

ALIGNED_BYTES = 1 << 14  # from here on a result begins on a cache line


class ArraySpec(NamedTuple):
    """The facts of an array, without its data. Strides are in bytes; device is "cpu" or "cuda:0".

    It can stand for an array that does not exist yet, where a call is described and not run.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    device: str
    kind: str  # "numpy" or "torch"


def _is_torch(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def as_array(name: str, array: Any) -> Any:
    """The array itself if it is NumPy's or torch's, or ArraySpec in its place; else a NumPy view of its memory.

    Args:
        name: The argument's name, for the error.
        array: Anything with `__array_interface__` or DLPack on the CPU.

    Raises:
        DtypeError: It is no array, or not on the CPU, or has a mask or units.
        ShapeError: It has elements, and no memory for them.
    """
    if type(array) is np.ndarray or type(array) is ArraySpec:
        return array
    if _is_torch(array):
        if array.is_nested:
            raise DtypeError(f"{name}: expected a dense tensor, got a nested one; lngrad.torch takes these")
        return array
    kind, jax = type(array).__name__, sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.core.Tracer):
        raise DtypeError(f"{name}: expected an array with memory, got a tracer of JAX; lngrad.jax takes these")
    for more in ("mask", "units", "unit"):
        if not callable(getattr(array, more, callable)):  # it would be lost in silence
            raise DtypeError(f"{name}: expected an array of numbers alone, got {kind} with a {more}")
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        if interface.get("mask") is not None:
            raise DtypeError(f"{name}: expected an array of numbers alone, got {kind} with a mask")
        try:
            view = np.asarray(array)
        except (TypeError, ValueError) as reason:  # NumPy's: an address of 0, among others
            raise ShapeError(f"{name}: its __array_interface__ can't be read: {reason}") from None
        return _view(name, view)
    if hasattr(array, "__dlpack__"):
        try:
            return _view(name, np.from_dlpack(array))
        except (BufferError, RuntimeError, TypeError) as reason:
            raise DtypeError(f"{name}: its DLPack memory can't be read on the CPU: {reason}") from None
    refuse_sizes(name, array)
    hint = "; pass its .to_numpy()" if hasattr(array, "to_numpy") else ""
    raise DtypeError(f"{name}: expected an array (NumPy, torch, __array_interface__ or DLPack), got {kind}{hint}")


def refuse_sizes(name: str, array: Any) -> None:
    """Refuse a shape in the place of gamma, where torch's functions have it."""
    sizes = array if isinstance(array, (tuple, list)) else (array,)
    if name == "gamma" and all(isinstance(size, (int, np.integer)) for size in sizes):
        raise DtypeError(f"gamma: expected an array, got {array}; did you mean normalized_shape=?")


def without_history(name: str, array: Any) -> Any:
    """An array as it is, a torch tensor without its negative bit: what is behind an address, nobody tells torch.

    Raises:
        DtypeError: The tensor requires grad, has a tangent, or is traced, and the results would not.
    """
    if not _is_torch(array):
        return array
    torch = sys.modules["torch"]
    if torch.jit.is_tracing():
        raise DtypeError(f"{name}: expected a tensor that is not traced; lngrad.torch's functions take these")
    needs_grad = torch.is_grad_enabled() and array.requires_grad
    if needs_grad or torch.autograd.forward_ad.unpack_dual(array).tangent is not None:
        got = "requires grad" if needs_grad else "has a tangent"
        raise DtypeError(
            f"{name}: expected a tensor without history, got one that {got}: lngrad.torch's functions keep it, "
            ".detach() leaves it out"
        )
    if not array.is_neg():
        return array
    if name.startswith("out."):
        raise DtypeError(f"{name}: expected a tensor to write to, got a view with the negative bit")
    return array.resolve_neg()


def have_history(tensors: Sequence[Any]) -> bool:
    """Whether without_history might not give back each of the tensors, or None, as it is."""
    torch = sys.modules["torch"]
    if torch.autograd.forward_ad._current_level >= 0 or torch.jit.is_tracing():
        return True
    grad = torch.is_grad_enabled()
    return any(
        tensor is not None and ((grad and tensor.requires_grad) or tensor.is_neg() or tensor.is_nested)
        for tensor in tensors
    )


def note_writes(arrays: Iterable[Any]) -> None:
    """Tell autograd, which may have saved them, of tensors that were written."""
    for array in arrays:
        if _is_torch(array) and not array.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(array)


def _view(name: str, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A view of foreign memory. Where its address is 0, NumPy would allocate memory of its own, with anything in it."""
    if view.flags.owndata and view.size and view.ndim:  # a NumPy scalar becomes an array of its own too
        raise ShapeError(f"{name}: expected {view.nbytes} bytes of memory, got an array at address 0")
    return view


def key_of(array: Any) -> Hashable:
    """The key of an array's facts: equal keys have equal facts. Cheap, since every call makes five of them."""
    if array is None:
        return None
    if type(array) is not np.ndarray and _is_torch(array):
        return key_of_tensor(array)
    return array.shape, array.strides, array.dtype


def key_of_tensor(tensor: Any) -> Hashable:
    """key_of of what is known to be torch's."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.layout


def spec_of(name: str, array: Any) -> ArraySpec:
    """The facts of a NumPy array or torch tensor, or ArraySpec that stand for one.

    Raises:
        DtypeError: The dtype is none of float16, bfloat16, float32, float64 in native byte order, or the tensor is sparse.
    """
    dtype = (array.dtype if array.dtype in DTYPES else None) if type(array) is ArraySpec else dtype_name(array.dtype)
    of_torch = type(array) is not np.ndarray and _is_torch(array)
    if of_torch and str(array.layout) != "torch.strided":
        raise DtypeError(f"{name}: expected a dense tensor, got layout {array.layout}")
    if dtype is None:
        *first, last = DTYPES
        got = str(array.dtype).removeprefix("torch.")
        raise DtypeError(f"{name}: expected {', '.join(first)} or {last}, got {got}")
    if of_torch:
        strides = tuple(step * array.element_size() for step in array.stride())
        return ArraySpec(tuple(array.shape), dtype, strides, str(array.device), "torch")
    return array if type(array) is ArraySpec else ArraySpec(array.shape, dtype, array.strides, "cpu", "numpy")


def addresses_of_tensors(tensors: Iterable[Any], spans: Sequence[int]) -> list[int] | None:
    """The address of each tensor's first element, 0 for None; None if require_memory might refuse one: 0.4 µs a tensor.

    Args:
        tensors: No fake ones.
        spans: Of each, bytes from its first element to behind its last, 0 for one without elements.
    """
    addresses = []
    try:
        for tensor, span in zip(tensors, spans):  # noqa: B905  # strict takes 0.1 µs
            if tensor is None:
                addresses.append(0)
                continue
            address = tensor.data_ptr()
            if span:
                first = tensor.storage_offset()
                needed = span + first * tensor.element_size() if first else span
                if not address or tensor.untyped_storage().nbytes() < needed:
                    return None
            addresses.append(address)
    except (RuntimeError, NotImplementedError, AttributeError):  # no memory, or no tensor
        return None
    return addresses


# Unsigned integers of an element's size: NumPy's interface has no name for bfloat16; NumPy 2.1.0 crashes on raw bytes (|V2).
_UNSIGNED = {name: np.dtype(f"u{dtype.itemsize}").str for name, dtype in DTYPES.items()}


class _ArrayInterface:
    """Memory as NumPy's array interface describes it."""

    def __init__(self, address: int, facts: ArraySpec, writable: bool):
        self.__array_interface__ = {
            "version": 3,
            "shape": facts.shape,
            "strides": facts.strides,
            "typestr": _UNSIGNED[facts.dtype],
            "data": (address, not writable),
        }


def array_at(address: int, facts: ArraySpec, *, writable: bool = True) -> np.ndarray[Any, Any]:
    """A NumPy array on memory that somebody else keeps. Of another device's memory only addresses and strides can be used."""
    return np.asarray(_ArrayInterface(address, facts, writable)).view(DTYPES[facts.dtype])


def require_memory(name: str, array: Any) -> None:
    """Refuse an array whose elements do not all lie in memory: reading it would end the process.

    A torch tensor keeps its shape when its storage is freed or made smaller (`untyped_storage().resize_(0)`, as FSDP does),
    and some tensors never have memory: meta and fake ones, zero tensors, and those inside a transform of torch.func.

    Args:
        name: The argument's name, for the error.
        array: A NumPy array or a torch tensor; nothing is known of any other.

    Raises:
        ShapeError: The memory is freed, or too short for the shape and strides.
        DtypeError: The tensor is of a kind that has none.
    """
    if isinstance(array, np.ndarray):
        if not address_of(array) and array.size:
            raise ShapeError(f"{name}: expected {array.nbytes} bytes of memory, got an array at address 0")
        return
    if not _is_torch(array):
        return
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(array, fake.FakeTensor):
        raise DtypeError(f"{name}: expected a tensor with memory, got a fake one")
    size = array.element_size()
    span = spanned(array.shape, [step * size for step in array.stride()], size)
    needed = array.storage_offset() * size + span
    try:
        address, nbytes = array.data_ptr(), array.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        address, nbytes = 0, needed
    if span and not address and nbytes >= needed:
        raise DtypeError(
            f"{name}: expected a tensor with memory, got one without, such as torch.func's transforms hand on; "
            "lngrad.torch.layer_norm takes these"
        )
    if span and (not address or nbytes < needed):
        raise ShapeError(f"{name}: expected {needed} bytes of storage, got {nbytes if address else 0}")


def spanned(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes from an array's first element to behind its last, 0 for one without elements; its strides are in bytes too."""
    if 0 in shape:
        return 0
    return itemsize + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def shares_places(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether two elements of an array have bytes in common; its strides are in bytes. NumPy may give an empty array any."""
    if 0 in shape:
        return False
    reach, apart = itemsize, True  # bytes that the dimensions so far span, by the length of their steps
    for step, size in sorted((abs(step), size) for size, step in zip(shape, strides, strict=True) if size > 1):
        apart = apart and step >= reach
        reach += (size - 1) * step
    if apart:
        return False
    places = np.zeros(1, np.int64)  # of dimensions that lie within each other
    for size, step in zip(shape, strides, strict=True):
        places = (places[:, None] + np.arange(size) * step).ravel()
    return bool((np.diff(np.sort(places)) < itemsize).any())


def merged(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Dimensions as (size, the step of each array), outermost first.

    Those of size 1 are left out, and those that all arrays walk as one are merged.
    """
    dims: list[tuple[int, tuple[int, ...]]] = []
    for size, *steps in reversed([dim for dim in zip(shape, *strides, strict=True) if dim[0] != 1]):
        if dims and tuple(steps) == tuple(dims[0][0] * inner for inner in dims[0][1]):
            dims[0] = size * dims[0][0], dims[0][1]
        else:
            dims.insert(0, (size, tuple(steps)))
    return dims


class Output(NamedTuple):
    """Shape, dtype and size of a result, known before it exists."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    @staticmethod
    def of(shape: tuple[int, ...], dtype: str) -> Output:
        return Output(shape, dtype, math.prod(shape) * bytes_of(dtype))


def empty(kind: str, output: Output, device: str = "cpu") -> Any:
    """Uninitialised memory as a NumPy array or torch tensor.

    On another device than the CPU torch allocates. On the CPU, all but small ones begin on a cache line, since stores across
    two lines are slow; large ones come from a pool (memory.py), for torch too.
    """
    if kind == "numpy":
        return maker(output)()
    if device != "cpu" or output.nbytes < KEPT_FROM:
        return sys.modules["torch"].empty(output.shape, dtype=torch_dtype(output.dtype), device=device)
    return to_torch(maker(output)())


def maker(output: Output) -> Callable[[], np.ndarray[Any, Any]]:
    """A function that makes NumPy arrays for a result; what follows from its shape and dtype is decided."""
    shape, name, nbytes = output
    dtype = DTYPES[name]
    if nbytes < ALIGNED_BYTES:
        return partial(np.empty, shape, dtype)
    return block_maker(shape, dtype)


def scratch(nbytes: int, device: str = "cpu") -> Any:
    """Uninitialised bytes on a device, for a workspace."""
    if device == "cpu":
        return allocated(nbytes)
    torch = sys.modules["torch"]
    return torch.empty(nbytes, dtype=torch.uint8, device=device)
