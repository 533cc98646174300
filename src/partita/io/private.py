"""Files and folders that only their owner may read."""

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

__all__ = ["close_to_others", "folder", "tighten"]

_OTHERS = 0o077


def close_to_others() -> None:
    """Everything that this process, and those it starts, write from now on is its owner's alone."""
    os.umask(_OTHERS)


def folder(path: Path) -> Path:
    """Makes a folder that only its owner may enter, or makes one so that is there."""
    path.mkdir(parents=True, exist_ok=True)
    _set(path)
    return path


def tighten(path: Path, patterns: Sequence[str] = ("*",)) -> None:
    """Does so with a folder and what in it has such names; what belongs to others, and links, stay as they are."""
    _set(path)
    for found in [found for pattern in patterns for found in path.glob(pattern)]:
        _set(found)
        if found.is_dir() and not found.is_symlink():
            tighten(found)


def _set(path: Path) -> None:
    """Takes away what others may, and leaves the owner what it may."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if not path.is_symlink() and mode & _OTHERS:
            path.chmod(mode & ~_OTHERS)
