"""The one collective that lngrad calls: every rank's block to every rank. Sums are then taken locally, in rank order.

An all-reduce would leave the order of a sum to the transport. A gather moves bits only, so all ranks add the same numbers
in the same order and get the same bits, run after run. docs/distributed.md says what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed

from lngrad.errors import BackendUnavailable, PeerError


def all_gather(block: Any, group: Any, what: str) -> Any:
    """The blocks of all ranks of a group, in rank order.

    Args:
        block: The same shape and dtype on every rank.
        group: A process group; None is the default one.
        what: The name of what is gathered, for the error.

    Returns:
        (P, *block.shape), the same bits on every rank.

    Raises:
        PeerError: A peer failed, or did not come before the group's timeout.
        BackendUnavailable: It is being traced by torch.compile.
    """
    size = torch.distributed.get_world_size(group)
    if size == 1:
        return block.unsqueeze(0)
    if torch.compiler.is_compiling():
        raise BackendUnavailable(
            "torch.compile: rows cut among processes are computed in eager code only; put torch.compiler.disable on the "
            "layer normalization, or cut its input by rows"
        )
    blocks = block.new_empty((size * block.numel(),))
    with peers(f"all_gather of {what}", size):
        torch.distributed.all_gather_single(blocks, block.reshape(-1), group=group)
    return blocks.reshape(size, *block.shape)


@contextmanager
def peers(collective: str, size: int) -> Iterator[None]:
    """Turn what a collective raises when a peer is gone, or never comes, into one clear error."""
    start = time.monotonic()
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:  # torch.distributed.DistError is one too
        waited = time.monotonic() - start
        first = str(reason).strip().partition("\n")[0]
        raise PeerError(
            f"{collective}: expected all {size} processes of the group, got no answer from one of them within "
            f"{waited:.1f} s (the group's timeout is given to init_process_group or new_group): {first}"
        ) from reason
