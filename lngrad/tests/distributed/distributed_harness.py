"""Worlds of forked gloo processes that run named checks: one import of torch for all of them.

`results(module)` starts a fresh interpreter (this file as a program). It imports what the checks need, forks the ranks of all
worlds, which run at the same time, waits for them no longer than a deadline, and kills those that are left. Each rank writes
what became of each check.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from functools import cache
from pathlib import Path

from lngrad.cpu.entries import kernel_address, kernels

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

DEADLINE_S = 250  # of all worlds
TIMEOUT_S = 30  # of a collective


@cache
def results(module: str) -> dict[tuple[int, str], list[str]]:
    """For each size of a world and each check of a module that wants it: what the ranks said, "" for success."""
    checks = importlib.import_module(module).CHECKS
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, __file__, module, folder]
        done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S + 300)
        outcomes = {}
        for size in checks:
            paths = [Path(folder) / str(size) / f"{rank}.json" for rank in range(size)]
            outcomes[size] = [json.loads(path.read_text()) if path.exists() else {} for path in paths]
    lost = f"the rank ended before this check did\n{done.stdout}\n{done.stderr}"
    return {(size, name): [rank.get(name, lost) for rank in outcomes[size]] for size in checks for name in checks[size]}


def _rank(module: str, rank: int, size: int, folder: Path) -> None:
    import torch.distributed

    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    warnings.simplefilter("error")
    outcomes = {}
    for name, check in importlib.import_module(module).CHECKS[size].items():
        try:
            check()
            outcomes[name] = ""
        except BaseException:
            outcomes[name] = f"rank {rank}: {traceback.format_exc()}"
        path = folder / f"{rank}.json"
        path.with_suffix(".new").write_text(json.dumps(outcomes))
        path.with_suffix(".new").replace(path)


def _main(module: str, folder: Path) -> None:
    checks = importlib.import_module(module).CHECKS
    importlib.import_module("torch._dynamo.backends.debugging")  # two seconds that each rank would take for itself
    for kernel in kernels():  # once for all ranks
        kernel_address(*kernel)
    children = {}
    for world, rank in [(size, rank) for size in checks for rank in range(size)]:
        (folder / str(world)).mkdir(exist_ok=True)
        child = os.fork()
        if child == 0:
            try:
                _rank(module, rank, world, folder / str(world))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)  # no teardown: a peer may be gone, and waiting for it is what is being tested
        children[child] = world, rank
    deadline = time.monotonic() + DEADLINE_S
    while children and time.monotonic() < deadline:
        child, _ = os.waitpid(-1, os.WNOHANG)
        children.pop(child, None)
        time.sleep(0.05)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
