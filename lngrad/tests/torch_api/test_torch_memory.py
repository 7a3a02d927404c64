"""Memory of large results: used again when nobody holds it, and by no means before."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing
from at_every_line import at_every_line  # noqa: E402
from lngrad.torch import memory  # noqa: E402

SHAPE = (512, 384)  # 768 KiB in float32


@pytest.fixture(autouse=True)
def nothing_kept():
    lngrad_torch.empty_cache()
    yield
    lngrad_torch.empty_cache()


def large():
    return memory.empty(SHAPE, torch.float32)


def test_memory_is_used_again_once_nobody_holds_it():
    tensor = large()
    address = tensor.data_ptr()
    del tensor
    again = large()
    assert again.data_ptr() == address
    assert again.shape == SHAPE
    assert again.is_contiguous()


def test_memory_that_numpy_looked_at_is_not_used_again():
    """torch lets nobody resize such a storage, and the next result would be it."""
    tensor = large()
    tensor.numpy()
    del tensor
    again = large()
    again.resize_(2 * SHAPE[0], SHAPE[1])
    again.untyped_storage().resize_(0)
    assert again.untyped_storage().nbytes() == 0
    assert all(storage.resizable() for storage in memory._storages)


HOLDERS = {
    "a view": lambda tensor: tensor[3:, 5:],
    "a NumPy array": lambda tensor: tensor.numpy(),
    "a variable that is the storage": lambda tensor: tensor.untyped_storage(),
    "a typed storage": lambda tensor: tensor.storage(),
    "a detached alias": lambda tensor: tensor.detach(),
    "a capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_holds_is_left_alone(holder):
    tensor = large()
    address = tensor.data_ptr()
    held = HOLDERS[holder](tensor)
    del tensor
    others = {large().data_ptr() for _ in range(3)}
    del held
    assert address not in others


def test_memory_that_a_graph_saved_is_left_alone():
    weight = torch.tensor(1.0, requires_grad=True)
    loss = (large().fill_(3.0) * weight).sum()
    for _ in range(3):
        large().fill_(7.0)
    loss.backward()
    assert weight.grad.item() == 3.0 * 512 * 384


def test_memory_that_another_process_may_read_is_not_used_again():
    tensor = large().share_memory_()
    address = tensor.data_ptr()
    del tensor
    assert large().data_ptr() != address


def test_resized_storage_serves_its_new_size_alone():
    tensor = large()
    tensor.resize_(1024, 768).fill_(1.0)
    del tensor
    assert large().untyped_storage().nbytes() == 512 * 384 * 4


def test_no_more_is_kept_than_agreed(monkeypatch):
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 * 512 * 384 * 4)
    held = [large() for _ in range(5)]
    assert len(memory._storages) == 3
    addresses = [tensor.data_ptr() for tensor in held]
    assert len(set(addresses)) == 5
    del held
    assert {large().data_ptr() for _ in range(1)} <= set(addresses[2:])


SHORT = """
import resource
from pathlib import Path
import torch, lngrad, lngrad.torch
columns = 1 << 18
x = torch.ones(78, columns)
with torch.no_grad(), lngrad.torch.override():
    layer_norm = torch.nn.functional.layer_norm
    layer_norm(x[:1], (columns,))
    for rows in range(10, 50, 8):
        layer_norm(x[:rows], (columns,))
        lngrad.layer_norm(x[:rows].numpy())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (50 << 20), resource.RLIM_INFINITY))
    print(tuple(layer_norm(x, (columns,)).shape))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_where_memory_is_short_the_pools_are_given_back_first():
    result = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "(78, 262144)\n", result.stderr


def test_small_results_are_left_to_the_allocator():
    memory.empty((4, 4), torch.float32)
    assert memory._storages == []


def test_results_of_a_model_stay_as_they_are_while_more_are_made():
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(SHAPE, generator=generator) for _ in range(4)]
    results = [lngrad_torch.layer_norm(x, SHAPE[-1:]) for x in inputs]
    kept = copy.deepcopy(results)
    for _ in range(3):
        for x in inputs:
            lngrad_torch.layer_norm(x, SHAPE[-1:])
    for result, copied in zip(results, kept, strict=True):
        torch.testing.assert_close(result, copied, rtol=0, atol=0)


def test_threads_do_not_get_the_same_memory():
    wrong = []

    def work(number):
        for _ in range(200):
            tensor = large().fill_(number)
            if not torch.all(tensor == number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.timeout(60, method="thread")  # a lock that is not re-entrant waits for ever, and signals do not end that
@pytest.mark.parametrize("clear", [False, True])
def test_a_result_inside_a_result(monkeypatch, clear):
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 * 512 * 384 * 4)
    held = [large(), large()]

    def inside():
        held.append(large())
        if clear:
            lngrad_torch.empty_cache()

    with at_every_line(memory, inside) as lines:
        for _ in range(2):
            del held[:]
            held += [large() for _ in range(3)]
            held.append(large())
    assert len(lines) > 15
    addresses = [tensor.data_ptr() for tensor in held]
    assert len(set(addresses)) == len(addresses) > 20
    assert not memory._changing


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("rows", [pytest.param(8, marks=pytest.mark.slow), 4096])
def test_a_call_at_the_interpreters_end_does_not_crash(native, rows):
    """By a global's __del__, after torch has let go of Python's kernels: a crash would hide the program's exit code."""
    program = f"""
import sys, torch, lngrad.torch
class Last:
    def __del__(self):
        lngrad.torch.layer_norm(torch.ones({rows}, 256), (256,))
last = Last()
lngrad.torch.layer_norm(torch.ones({rows}, 256), (256,))
sys.exit(7)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LNGRAD_TORCH_NATIVE": native},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 7, result.stderr
