"""What is read from files, and is read again when they have changed."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from partita.errors import InputError

__all__ = ["Watched"]

_LOG = logging.getLogger("partita")
_LOOK = 1.0
"""Seconds between two looks at the files."""

T = TypeVar("T")


class Watched(Generic[T]):
    """A value that follows from files. Where they cannot be read any more it stays as it was, and that is logged."""

    def __init__(self, read: Callable[[], T], paths: Sequence[Path]) -> None:
        """Raises what `read` does, here alone."""
        self._read, self._paths = read, paths
        self._seen, self._looked = self._state(), time.monotonic()
        self._value = read()

    def __call__(self) -> T:
        """The value of the files as they are, or were within the last second."""
        if time.monotonic() >= self._looked + _LOOK:
            self._looked, state = time.monotonic(), self._state()
            if state != self._seen:
                try:
                    self._value = self._read()
                except (InputError, OSError) as error:
                    _LOG.warning("%s The server goes on with what it had.", error)
                self._seen = state
        return self._value

    def _state(self) -> list[tuple[int, ...] | None]:
        """What changes when a file is written, replaced or removed."""
        return [_about(path) for path in self._paths]


def _about(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
