"""Changes that an interrupt does not cut in two: they run where no signal's handler does, in a thread of their own."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable


def whole(change: Callable[[], None]) -> None:
    """Make a change, all of it; what a signal's handler raises meanwhile, such as KeyboardInterrupt, is raised after it.

    Python runs handlers of signals in the main thread, at any instruction. There the change gets another thread.

    Args:
        change: May be called a second time, and then changes nothing.

    Raises:
        BaseException: What the change raised; or what a handler raised: the change is made then.
    """
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        change()
        return
    done, outcome, interrupt = _thread.allocate_lock(), list[BaseException | None](), None
    done.acquire()

    def run() -> None:
        try:
            change()
            outcome.append(None)
        except BaseException as reason:
            outcome.append(reason)
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the system starts no more threads
        run()
    except BaseException as reason:  # a handler's: the thread runs
        interrupt = reason
    while not outcome:
        try:
            done.acquire(timeout=0.1)  # an interrupt may come when it has the lock
        except BaseException as reason:
            interrupt = reason
    if outcome[0] is not None:
        raise outcome[0]
    if interrupt is not None:
        raise interrupt
