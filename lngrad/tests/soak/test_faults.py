"""Faults around calls: each is injected, and each finds what is wrong with it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from importlib.util import find_spec
from random import Random

import numpy as np
import pytest

import lngrad
from soak import Call, Violation, draw, run
from soak import faults as injected
from soak.faults import FAULTS

pytestmark = pytest.mark.skipif(not FAULTS, reason="no fork on this system")
QUICK = tuple(fault for fault in FAULTS if fault != "fork while compiling")
ENTERED = {
    "other mode": ("numba_cpu",),
    "resized storages": ("torch", "override"),
    "interrupted kernel": ("aclnn",),
}  # all others by both of NumPy's ways


@pytest.mark.parametrize("fault", [*QUICK, pytest.param("fork while compiling", marks=pytest.mark.slow)])
def test_a_call_survives_each_fault(fault):
    outcomes, entered = Counter(), ENTERED.get(fault, ("numba_cpu", "numpy_cpu"))
    if "torch" in entered:
        pytest.importorskip("torch")
    if "aclnn" in entered and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    for lead, entry_point in zip(((700,), (3, 4)), entered, strict=False):
        run(Call(lead=lead, normalized=(300,), entry_point=entry_point, fault=fault), outcomes)
    assert sum(outcomes.values()) == 2 * len(entered)  # forward and backward
    assert set(outcomes) <= {f"{fault}: {injected.SAME}", f"{fault}: {injected.REFUSED}"}


def test_every_fault_is_drawn():
    calls = [draw(Random(seed), ("numba_cpu", "numpy_cpu", "torch")) for seed in range(3000)]
    kernels = {draw(Random(seed), ("aclnn",)).fault for seed in range(1000)} & {"interrupted kernel"}
    drawn = Counter(call.fault for call in calls)
    assert set(QUICK) <= set(drawn) | kernels | (set() if find_spec("torch") else {"resized storages"})
    assert 10 < sum(drawn.values()) - drawn[""] < 100
    assert {draw(Random(seed), ("jax",)).fault for seed in range(300)} == {"", "interrupt"}


def _inside_itself():
    """A backward that is wrong where it is called inside itself."""
    right, depth = lngrad.layer_norm_backward, 0

    def backward(*arguments, **options):
        nonlocal depth
        depth += 1
        _ = [[k] for k in range(100)]  # the garbage collector may come, and then signals
        time.sleep(5e-3 if depth == 1 else 0)
        grads = right(*arguments, **options)
        if depth > 1:
            grads.dx[...] = 0
        depth -= 1
        return grads

    return backward


def _in_a_child(do):
    right, parent = lngrad.layer_norm_backward, os.getpid()

    def backward(*arguments, **options):
        if os.getpid() != parent:
            do()
        return right(*arguments, **options)

    return backward


def _without_threads():
    threading.Thread(target=int).start()
    raise AssertionError("a thread started")


def _in_the_mode_of_the_caller():
    right = lngrad.layer_norm_backward

    def backward(*arguments, **options):
        grads = right(*arguments, **options)
        grads.dx[...] = grads.dx / np.float32(3) * np.float32(3)
        return grads

    return backward


def _broken_by_an_interrupt():
    right, broken = lngrad.layer_norm_backward, False

    def backward(*arguments, **options):
        nonlocal broken
        try:
            grads = right(*arguments, **options)
            time.sleep(5e-3)
        except KeyboardInterrupt:
            broken = True
            raise
        if broken:
            grads.dx[...] = 0
        return grads

    return backward


PLANTED = {
    ("interrupt", "other bits after an interrupt"): _broken_by_an_interrupt,
    ("other mode", "other bits"): _in_the_mode_of_the_caller,
    ("finalizer", "other bits in a finalizer"): _inside_itself,
    ("signal handler", "other bits in a signal handler"): _inside_itself,
    ("fork", "hung"): lambda: _in_a_child(lambda: time.sleep(60)),
    ("fork", f"died: {int(signal.SIGKILL)}"): lambda: _in_a_child(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    ("no threads", "RuntimeError: can't start new thread"): lambda: _in_a_child(_without_threads),
    ("no memory", "MemoryError"): lambda: _in_a_child(lambda: bytearray(1 << 60)),
}


@pytest.mark.parametrize(("fault", "outcome"), PLANTED, ids=lambda item: item)
def test_a_planted_mistake_is_found(fault, outcome, monkeypatch):
    monkeypatch.setattr(lngrad, "layer_norm_backward", PLANTED[fault, outcome]())
    monkeypatch.setattr(injected, "LIMIT_S", 1.0)
    monkeypatch.setattr(injected, "_INTERRUPTS", 50)  # a machine with other load has late timers
    with pytest.raises(Violation, match=f"^{fault}: {outcome}"):
        run(Call(lead=(64,), normalized=(32,), fault=fault))


def test_a_storage_that_was_looked_at_is_not_resized_by_chance(monkeypatch):
    """Without the pool's look at it, torch refuses."""
    pytest.importorskip("torch")
    from lngrad.torch import memory

    monkeypatch.setattr(memory, "_taken", lambda storages, nbytes: storages.append(looked_at(nbytes)) or storages[-1])

    def looked_at(nbytes):
        import torch

        tensor = torch.empty(nbytes, dtype=torch.uint8)
        tensor.numpy()
        return tensor.untyped_storage()

    with pytest.raises(Violation, match="not resizable"):
        run(Call(seed=2, entry_point="torch", fault="resized storages"))
