"""The server's clock for how long clients are silent: it does not run while the process itself is stopped."""

import threading
import time
from collections.abc import Callable

__all__ = ["awake"]

_PAUSE = 10.0
"""Seconds between two looks at the clock after which the process has been stopped: it looks about once a second."""


def awake(clock: Callable[[], float] = time.monotonic) -> Callable[[], float]:
    """A clock that leaves out when nobody looks at it for long, as while a machine sleeps.

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
