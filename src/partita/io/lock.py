"""Locks on files, which the system takes back from a process however it ends."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["held", "hold"]

try:
    import fcntl
except ImportError:  # Windows, which has msvcrt instead
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def hold(path: Path, wait: bool = True) -> Iterator[None]:
    """Locks a file exclusively; if another process has the lock, waits for it or raises BlockingIOError."""
    with path.open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        else:
            with _first_byte(file, wait):
                yield


@contextlib.contextmanager
def _first_byte(file: IO[bytes], wait: bool) -> Iterator[None]:
    """Holds a file on Windows by its first byte, which need not exist."""
    msvcrt: Any = importlib.import_module("msvcrt")
    locked = False
    while not locked:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            locked = True
        except OSError as error:
            if not wait:
                raise BlockingIOError(*error.args) from None
            # LK_LOCK gives up after ten seconds
    try:
        yield
    finally:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def held(path: Path) -> bool:
    """Whether another process has locked a file."""
    try:
        with hold(path, wait=False):
            return False
    except BlockingIOError:
        return True
