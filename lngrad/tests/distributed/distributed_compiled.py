"""What is checked of torch.compile over DistributedDataParallel, in a world of 2 processes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "torch_api"))

from compiled_models import OURS, WAYS, batch, check_near, expected, gradients, loss_of, of
from torch._inductor.utils import run_and_get_code
from torch.nn.parallel import DistributedDataParallel


def a_training_step(way: str) -> None:
    """Half of the rows a process: gradients are those of the whole batch, in one process and eager code."""
    model, context = of(way)
    words = batch(4)
    with context, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit")  # torch's own, where it imports Inductor
        compiled = torch.compile(DistributedDataParallel(model))
        loss, code = run_and_get_code(loss_of, compiled, words.chunk(2)[dist.get_rank()])
        loss.backward()
    assert all(any(name in text for text in code) for name in OURS)
    check_near(gradients(model), expected(words))


CHECKS: dict[int, dict[str, Callable[[], None]]] = {2: {way: partial(a_training_step, way) for way in WAYS}}
