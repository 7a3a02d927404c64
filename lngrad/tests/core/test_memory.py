"""Memory of large NumPy results: used again when the last view is gone, bounded, and given back."""

from __future__ import annotations

import gc
import signal
import sys
import threading

import numpy as np
import pytest

import lngrad
from lngrad.core import memory
from lngrad.core.arrays import Output, empty
from lngrad.support.addresses import address_of

LARGE = Output.of((1 << 21,), "float32")
QUEUED = Output.of((1 << 18,), "float32")


@pytest.fixture(autouse=True)
def _an_empty_pool():
    lngrad.empty_cache()
    yield
    lngrad.empty_cache()


def test_memory_comes_back_when_the_last_view_is_gone():
    array = empty("numpy", LARGE)
    view, address = array[5:9], address_of(array)
    del array
    gc.collect()
    assert address_of(empty("numpy", LARGE)) != address
    view[...] = 3
    del view
    gc.collect()
    addresses = [address_of(array) for array in (empty("numpy", LARGE), empty("numpy", LARGE))]
    assert address in addresses


def test_results_in_use_never_share_memory():
    arrays = [empty("numpy", LARGE) for _ in range(5)]
    del arrays[::2]
    arrays += [empty("numpy", LARGE) for _ in range(5)]
    for number, array in enumerate(arrays):
        array[...] = number
    assert [float(array.max()) for array in arrays] == list(range(len(arrays)))
    assert [float(array.min()) for array in arrays] == list(range(len(arrays)))


def test_a_result_that_outlives_the_pool_keeps_its_memory():
    array = empty("numpy", LARGE)
    array[...] = 7
    lngrad.empty_cache()
    empty("numpy", LARGE)[...] = 8
    assert (array == 7).all()


def test_the_pool_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "KEPT_BYTES", 2 * LARGE.nbytes)
    arrays = [empty("numpy", LARGE) for _ in range(4)]
    arrays.clear()
    gc.collect()
    assert memory.idle_bytes() == 2 * LARGE.nbytes
    lngrad.empty_cache()
    assert memory.idle_bytes() == 0
    assert not memory._idle


@pytest.mark.parametrize("output", [LARGE, QUEUED])
def test_interrupts_do_not_keep_the_pool_from_working(output, monkeypatch):
    """What is kept is what is there, and the next results come from it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda reason: None)
    make = memory.block_maker(output.shape, np.dtype(output.dtype))
    interrupts = 0

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(3000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-6 + turn % 50 * 1e-6)
                array = make()
                del array
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 10
    gc.collect()
    assert memory.idle_bytes() + memory.queued_bytes(is_large=True) <= memory.QUEUE_BLOCKS * output.nbytes
    assert len({address_of(make()) for _ in range(2 * memory.QUEUE_BLOCKS)}) <= memory.QUEUE_BLOCKS


def test_sizes_that_nobody_uses_go_first(monkeypatch):
    other = Output.of((LARGE.shape[0] + 1,), "float32")
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 * LARGE.nbytes)
    arrays = [empty("numpy", LARGE), empty("numpy", LARGE)]
    arrays.clear()
    pair = [empty("numpy", other), empty("numpy", other)]
    pair.clear()
    gc.collect()
    assert {size: len(blocks) for size, blocks in memory._idle.items()} == {other.nbytes: 2}
    assert memory.idle_bytes() == 2 * other.nbytes


def test_where_memory_is_short_the_pool_is_given_back_first(monkeypatch):
    allocate = np.empty
    empty("numpy", LARGE)
    gc.collect()
    assert memory._idle

    def scarce(*arguments):
        if memory._idle:
            raise MemoryError
        return allocate(*arguments)

    monkeypatch.setattr(np, "empty", scarce)
    array = memory.pooled_bytes(2 * LARGE.nbytes)
    assert array.nbytes == 2 * LARGE.nbytes
    assert memory.idle_bytes() == 0
    monkeypatch.undo()
    with pytest.raises(MemoryError):
        memory.pooled_bytes(1 << 60)


@pytest.mark.parametrize("full", ["of one kind", "of all"])
def test_what_finds_no_place_in_a_queue_comes_from_the_pool(full, monkeypatch):
    limits = {"of one kind": ("QUEUE_BLOCKS", 2), "of all": ("QUEUED_BYTES", 2 * QUEUED.nbytes)}
    monkeypatch.setattr(memory, *limits[full])
    arrays = [empty("numpy", QUEUED) for _ in range(3)]
    addresses = set(map(address_of, arrays))
    for number, array in enumerate(arrays):
        array[...] = number
    assert [float(array.min()) for array in arrays] == [0, 1, 2]
    arrays.clear()
    del array
    gc.collect()
    assert memory.idle_bytes() == QUEUED.nbytes
    assert memory.queued_bytes(is_large=True) == 2 * QUEUED.nbytes
    assert {address_of(array) for array in [empty("numpy", QUEUED) for _ in range(3)]} == addresses
    lngrad.empty_cache()
    assert memory.queued_bytes(is_large=True) == 0
    assert memory.idle_bytes() == 0


def test_every_block_begins_on_a_cache_line():
    for elements in (1 << 12, 1 << 14, 1 << 18, (1 << 18) + 3, 1 << 21):
        array = empty("numpy", Output.of((elements,), "float32"))
        assert address_of(array) % memory.LINE == 0
        assert array.flags.writeable
        assert array.flags.c_contiguous


@pytest.mark.parametrize("output", [QUEUED, LARGE])
def test_threads_may_share_blocks(output):
    wrong = []

    def work(number):
        for _ in range(200):
            array = empty("numpy", output)
            array[::4096] = number
            if (array[::4096] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_uses_it_again():
    x = np.ones((1024, 256), np.float32)
    address = address_of(lngrad.layer_norm(x).y)
    gc.collect()
    assert address_of(lngrad.layer_norm(x).y) == address
