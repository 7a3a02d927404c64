"""Memory for large results, used again once nobody holds it.

glibc gives large freed blocks back to the system, and the next result's fresh pages cost more than the arithmetic. So
storages are remembered here, and one that nobody else refers to any more serves the next result of its size: as torch's
own caching allocator does for CUDA, with torch's own storages, which can be resized like any other. A weak pointer of
`torch.multiprocessing` holds none of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from lngrad.core import memory
from lngrad.core.memory import advise_huge
from lngrad.support.locks import fork_safe_lock

KEPT_FROM = 1 << 19  # bytes; smaller blocks stay with glibc, which keeps them
KEPT_BYTES = 1 << 29  # of all remembered storages together, in use or not
KEPT_STORAGES = 64  # each is looked at for every result

_uses = torch._C._storage_Use_Count
_storages: list[Any] = []  # the one that was handed out last at the end
# Re-entrant: a __del__ that the garbage collector runs here, or a signal handler, may normalize something too. It finds the
# list in the middle of a change, and leaves it alone.
_lock = fork_safe_lock()
_changing = False  # the list, by the thread that has the lock


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialised contiguous CPU tensor."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not KEPT_FROM <= nbytes <= KEPT_BYTES:
        tensor = _allocated(lambda: torch.empty(shape, dtype=dtype, device="cpu"))
        advise_huge(tensor.data_ptr(), nbytes)
        return tensor
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    return tensor.set_(_storage(nbytes), 0, shape, strides[::-1])  # a view would cost twice as much


def empty_cache() -> None:
    """Give back what nobody uses of the memory that is kept for large results."""
    global _storages
    _storages = []  # whoever is changing the old list goes on with it, and then it is gone


def _allocated(allocate: Callable[[], Any]) -> Any:
    """What a function allocates; where the system has no more memory, what both pools keep is given back first."""
    try:
        return allocate()
    except RuntimeError:  # torch's, for want of memory
        empty_cache()
        memory.empty_cache()
        return allocate()


def _storage(nbytes: int) -> Any:
    global _changing
    with _lock:
        if _changing:
            return _new(nbytes)
        try:
            _changing = True
            return _taken(_storages, nbytes)
        finally:
            _changing = False


def _new(nbytes: int) -> Any:
    storage = _allocated(lambda: torch.UntypedStorage(nbytes, device="cpu"))
    advise_huge(storage.data_ptr(), nbytes)
    return storage


def _taken(storages: list[Any], nbytes: int) -> Any:
    """A storage that nobody else refers to, now the last that was handed out."""
    for at in range(len(storages)):
        # Neither a tensor nor a variable refers to it, and no other process may read it because it was shared.
        if storages[at].nbytes() == nbytes and _references(storages, at) == _ALONE and not storages[at].is_shared():
            if not storages[at].resizable():  # since an array of NumPy's, which is gone too, was a view of it
                del storages[at]
                break
            storages.append(storages.pop(at))
            return storages[-1]
    storage = _new(nbytes)
    storages.append(storage)
    kept = 0
    for at in reversed(range(len(storages))):
        kept += storages[at].nbytes()
        if kept > KEPT_BYTES or len(storages) - at > KEPT_STORAGES:
            del storages[: at + 1]  # handed out longest ago; whoever uses them keeps them
            break
    return storage


def _references(storages: list[Any], at: int) -> tuple[int, int]:
    """How often Python and torch refer to a storage. A Python release may count its own hold on a variable or not."""
    storage = storages[at]
    return sys.getrefcount(storage), _uses(storage._cdata)


_ALONE = _references([torch.UntypedStorage(1, device="cpu")], 0)  # of a storage that the list alone refers to
