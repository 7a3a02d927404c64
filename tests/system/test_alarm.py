"""Alarms: rung before or after the sleeper lies down, they wake it once."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest

from lngrad.system import alarm
from lngrad.system.alarm import Alarm


def _sleeping(one: Alarm) -> tuple[Callable[[], object], Callable[[], object]]:
    """What sleeps, and what rings."""
    if not one.wait:
        return one.sleep, one.ring
    wait, post = (ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(address) for address in (one.wait, one.post))

    def sleep() -> None:
        while wait(one.address) != 0:
            pass

    return sleep, lambda: post(one.address)


@pytest.mark.parametrize("native", [True, False])
def test_a_sleeper_wakes_once_a_ring(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(alarm, "_library", lambda: None)
    one = Alarm()
    if native and not one.wait:
        pytest.skip("this system has no semaphores of its own")
    assert bool(one.wait) == native
    (sleep, ring), woken = _sleeping(one), threading.Semaphore(0)

    def live() -> None:
        for _ in range(2):
            sleep()
            woken.release()

    ring()  # before anybody sleeps
    sleeper = threading.Thread(target=live)
    sleeper.start()
    assert woken.acquire(timeout=60)
    assert not woken.acquire(timeout=0.05)  # and once only
    ring()
    assert woken.acquire(timeout=60)
    sleeper.join(60)
    assert not sleeper.is_alive()


def test_a_library_without_semaphores_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        sem_init = staticmethod(lambda *arguments: -1)
        sem_wait = sem_post = None

    monkeypatch.setattr(alarm, "_library", Bare)
    one = Alarm()
    assert (one.wait, one.post) == (0, 0)
