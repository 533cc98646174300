"""How many threads BLAS has while runs have threads of their own."""

import contextlib
import threading
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

__all__ = ["one_thread"]

_lock = threading.Lock()
_limit = contextlib.ExitStack()
"""Holds the limit as long as somebody needs it."""
_holders = 0


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limits BLAS to one thread, since its threads wait busily, which takes cores from those of runs.

    The limit is the process's. Of several runs at a time the first sets it and the last lifts it; if each put back what
    it had found, the first to end would lift it for all.
    """
    global _holders
    with _lock:
        if not _holders:
            _limit.enter_context(threadpool_limits(limits=1, user_api="blas"))
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                _limit.close()
