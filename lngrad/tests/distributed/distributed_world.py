"""A world of processes, as its checks see it: the list of checks, tensors on a mesh, comparisons."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import lngrad
from lngrad.support.addresses import as_numpy
from lngrad.testing import check_same_bits, error_share

CHECKS: dict[int, dict[str, Callable[[], None]]] = {2: {}, 3: {}, 4: {}, 8: {}}
torch.set_num_threads(1)
lngrad.set_num_threads(1)
R = Replicate()


def check(*sizes: int) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        for size in sizes:
            CHECKS[size][function.__name__] = function
        return function

    return register


def mesh(*shape: int) -> Any:
    return init_device_mesh("cpu", shape or (dist.get_world_size(),), mesh_dim_names=("a", "b")[: len(shape) or 1])


def tensor(array: Any) -> Any:
    if array is not None and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return None if array is None else torch.from_numpy(array.copy())


def placed(array: Any, on: Any, placements: Any) -> Any:
    return None if array is None else distribute_tensor(tensor(array), on, placements)


def whole(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().full_tensor()


def same_everywhere(tensor: Any) -> None:
    """That all ranks hold the same bits."""
    mine = torch.from_numpy(np.ascontiguousarray(as_numpy(tensor)).view(np.uint8).copy())
    all_of_them = mine.new_empty((dist.get_world_size() * mine.numel(),))
    dist.all_gather_single(all_of_them, mine.reshape(-1))
    for other in all_of_them.reshape(dist.get_world_size(), -1):
        check_same_bits(other, mine.reshape(-1))


def all_reduce_columns() -> Any:
    return importlib.import_module("lngrad.distributed").all_reduce_columns  # not before the first DTensor has come


def near(got: Any, expected: Any) -> None:
    """That a float64 result, seen in float32, is another one up to float32's tolerance."""
    expected = as_numpy(expected)
    share = error_share(got.detach().float().numpy(), expected, np.abs(expected), "float32")
    assert share.max() <= 1, share.max()


def refuses(error: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=text):
        call()
