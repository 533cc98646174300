"""Files and folders that only their owner may read."""

import contextlib
import os
from pathlib import Path

__all__ = ["close_to_others", "folder", "tighten"]

_FOLDER, _FILE, _OWNER_ONLY = 0o700, 0o600, 0o077


def close_to_others() -> None:
    """Everything that this process, and those it starts, write from now on is its owner's alone."""
    os.umask(_OWNER_ONLY)


def folder(path: Path) -> Path:
    """Makes a folder that only its owner may enter, or makes one so that is there."""
    path.mkdir(parents=True, exist_ok=True)
    _set(path, _FOLDER)
    return path


def tighten(path: Path) -> None:
    """Does so with a folder and all that it holds; what belongs to others, and links, stay as they are."""
    for place, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not (Path(place) / name).is_symlink()]
        _set(Path(place), _FOLDER)
        for name in files:
            _set(Path(place) / name, _FILE)


def _set(path: Path, mode: int) -> None:
    with contextlib.suppress(OSError):
        if not path.is_symlink() and path.stat().st_mode & _OWNER_ONLY:
            path.chmod(mode)
