"""Locks on files, which the system takes back from a process however it ends (on Windows there are none)."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def hold(path: Path, wait: bool = True) -> Iterator[None]:
    """Holds a file alone; where another process has it, waits for it or raises BlockingIOError."""
    with path.open("ab") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def held(path: Path) -> bool:
    """Whether another process holds a file."""
    try:
        with hold(path, wait=False):
            return False
    except BlockingIOError:
        return True
