"""Signal handlers and finalizers call in anywhere, also where a lock is taken: nothing waits for itself, and all is right.

A lock that is not re-entrant waits for ever, and signals do not end that: the time limit ends the process.
"""

from __future__ import annotations

import pytest

import lngrad
from at_every_line import at_every_line
from lngrad.core import memory
from lngrad.cpu import entries, workers
from lngrad.testing import Case, check_same_bits, make_inputs

pytestmark = pytest.mark.timeout(120, method="thread")


def gradients(inputs):
    return tuple(lngrad.layer_norm_backward(*inputs.arguments))


@pytest.mark.usefixtures("threads")
def test_a_call_inside_the_workers(monkeypatch):
    outer, inner = (make_inputs(Case((rows,), (384,)), "float32", seed=rows) for rows in (600, 500))
    lngrad.set_num_threads(3)
    expected, beside = gradients(outer), gradients(inner)
    pool = workers._Workers()
    monkeypatch.setattr(workers, "_workers", pool)
    calls = []

    def inside():
        if everywhere or pool._starting.locked():  # else the first of them would start all workers
            check_same_bits(gradients(inner), beside)
            calls.append(1)

    everywhere = False
    with at_every_line(workers, inside):
        check_same_bits(gradients(outer), expected)
        everywhere = True
        check_same_bits(gradients(outer), expected)
    assert len(calls) > 30
    assert [worker._number for worker in pool._all] == [0, 1]  # no slot has two


def test_a_call_inside_the_loading_of_kernels(monkeypatch):
    monkeypatch.setattr(entries, "_addresses", {})
    beside = make_inputs(Case((5,), (33,)), "float64", seed=1)
    with at_every_line(entries, lambda: entries.kernel_address("rows", "float64", "float64")) as lines:
        entries.kernel_address("rows", "float32", "float32")
    assert len(lines) > 15
    assert len(set(entries._addresses.values())) == 2
    gradients(beside)


def test_a_result_inside_a_result_of_numpy(monkeypatch):
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 << 20)
    held = []

    def inside():
        held.append(memory.pooled_bytes(1 << 20))
        if len(held) % 3 == 0:
            memory.empty_cache()

    with at_every_line(memory, inside) as lines:
        for _ in range(4):
            held.append(memory.pooled_bytes(1 << 20))
        del held[: len(held) // 2]
        held.append(memory.pooled_bytes(1 << 20))
    assert len(lines) > 15
    addresses = [block.ctypes.data for block in held]
    assert len(set(addresses)) == len(addresses) > 20


def test_override_inside_override():
    torch = pytest.importorskip("torch")
    import lngrad.torch
    from lngrad.torch import aten

    x, w = torch.randn(9, 33), torch.randn(33)
    norm = torch.nn.functional.layer_norm
    with lngrad.torch.override():
        expected = norm(x, (33,), w)

    def inside():
        with lngrad.torch.override():
            torch.testing.assert_close(norm(x, (33,), w), expected)  # aten's or ours: between two lines

    with at_every_line(aten, inside) as lines:
        with lngrad.torch.override():
            check_same_bits(norm(x, (33,), w), expected)
            norm(x[:0], (33,), w)  # aten's own kernel, which has not become ours
        assert not aten._users
    assert len(lines) > 25
    assert not aten._libraries
    with pytest.raises(RuntimeError, match=r"disable: expected an enable\(\) before it"):
        lngrad.torch.disable()
