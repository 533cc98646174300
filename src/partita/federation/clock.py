"""The server's clock for the silence of clients, which stands still while the server's process is suspended."""

import threading
import time
from collections.abc import Callable

__all__ = ["awake"]

_PAUSE = 10.0
"""Seconds between two readings beyond which the process was suspended: it reads the clock about once a second."""


def awake(clock: Callable[[], float] = time.monotonic) -> Callable[[], float]:
    """A clock that leaves out long gaps between readings, as while a machine sleeps.

    Otherwise every client would count as away, and every task as late, the moment the server goes on.
    """
    lock, last, left_out = threading.Lock(), clock(), 0.0

    def now() -> float:
        nonlocal last, left_out
        with lock:
            seen = clock()
            if seen - last > _PAUSE:
                left_out += seen - last
            last = seen
            return seen - left_out

    return now
