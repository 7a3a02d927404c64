"""Turns: who is timed when, and that nobody's threads still work when a turn begins."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from lngrad.bench.measure import Timing, TurnClock, interleave, rest


def test_every_contestant_has_a_turn_in_every_round_in_its_context():
    events = []

    @contextmanager
    def inside():
        events.append("enter")
        yield
        events.append("leave")

    def clock(name, call):
        return float(call())

    calls = {"a": lambda: events.append("a") or 1.0, "b": lambda: events.append("b") or 2.0}
    timings = interleave(calls, 15, clock, {"b": inside})
    rounds = [events[start : start + 4] for start in range(0, 60, 4)]
    one_after_the_other = ["a", "enter", "b", "leave"], ["enter", "b", "leave", "a"]
    assert all(events in one_after_the_other for events in rounds)
    assert all(order in rounds for order in one_after_the_other)  # or one would always come after the same one
    assert timings == {"a": Timing(15, 1.0, 1.0, 1.0), "b": Timing(15, 2.0, 2.0, 2.0)}


def test_a_turn_runs_once_untimed_and_then_fills_its_time():
    calls = []

    def call():
        calls.append(time.perf_counter())
        time.sleep(0.001)

    clock = TurnClock(turn=0.005)
    first = clock("call", call)
    measured = len(calls)
    assert measured >= 2
    assert first >= 0.001
    clock("call", call)
    assert len(calls) - measured <= measured  # what one call takes is measured in the first turn alone


def test_a_rest_ends_when_the_threads_of_this_process_do():
    """As OpenMP's threads do, which wait actively."""
    end = time.perf_counter() + 0.05

    def spin():
        while time.perf_counter() < end:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    rest()
    assert time.perf_counter() >= end
    thread.join()
