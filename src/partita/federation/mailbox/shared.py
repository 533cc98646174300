"""Files in a folder that others may write to: bounded, whole or not there, and never beyond the folder."""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from partita.errors import DamagedFileError, FederationError

__all__ = ["Found", "Shared"]

_LETTER = re.compile(r"[0-9a-f]{32}\.letter")
"""Names of letters; files with other names are not looked at."""
_LOOKED_AT = 1000
"""The most files of a folder that are looked at at once."""
_FOLDER, _FILE = 0o777, 0o644
"""Whoever may use the mount may leave letters, which are sealed."""
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Found(NamedTuple):
    """A file as it is at present; whether it has been written again shows."""

    written: int
    """When, in nanoseconds."""
    name: str
    size: int


class Shared:
    """A mounted folder with a folder in it for each client and direction. Links are not followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if os.open not in os.supports_dir_fd:
            raise FederationError("This system cannot share a folder safely: use an address with a port instead.")

    def check(self) -> None:
        """Raises an `InputError` unless the folder is there."""
        with self._opened(()):
            return

    def write(self, places: tuple[str, ...], name: str, data: bytes) -> None:
        """Puts a file in its place at once; whoever reads it finds all of it."""
        temporary = f".{secrets.token_hex(8)}"
        with self._opened(places, make=True) as there:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
                with os.fdopen(os.open(temporary, flags, _FILE, dir_fd=there), "wb") as file:
                    os.fchmod(file.fileno(), _FILE)
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=there, dst_dir_fd=there)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=there)
                raise self._unusable(error) from None

    def read(
        self, places: tuple[str, ...], name: str, largest: int, check: Callable[[IO[bytes]], object] = lambda file: None
    ) -> bytes | None:
        """A file of at most so many bytes, or None where there is none; an `InputError` if it is anything else.

        It is in memory only when `check` has raised nothing, which is given the file.
        """
        with self._opened(places) as there:
            if there is None:
                return None
            try:
                file = os.open(name, _READ, dir_fd=there)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise DamagedFileError(f"{name} is no letter ({error.strerror}).") from None
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_size > largest:
                os.close(file)
                raise DamagedFileError(f"{name} is no letter, or has more than {largest:,} bytes.")
            with os.fdopen(file, "rb") as opened:
                check(opened)
                opened.seek(0)
                data = opened.read(largest + 1)
        if len(data) > largest:
            raise DamagedFileError(f"{name} has more than {largest:,} bytes.")
        return data

    def exists(self, places: tuple[str, ...], name: str) -> bool:
        """Whether there is a file of this name."""
        with self._opened(places) as there:
            if there is None:
                return False
            try:
                os.stat(name, dir_fd=there, follow_symlinks=False)
            except OSError:
                return False
            return True

    def letters(self, places: tuple[str, ...]) -> list[Found]:
        """The letters that are there, the oldest first."""
        found = list[Found]()
        with self._opened(places) as there:
            if there is None:
                return []
            with os.scandir(there) as entries:
                for _, entry in zip(range(_LOOKED_AT), entries, strict=False):
                    if _LETTER.fullmatch(entry.name):
                        with contextlib.suppress(OSError):
                            about = entry.stat(follow_symlinks=False)
                            found.append(Found(about.st_mtime_ns, entry.name, about.st_size))
        return sorted(found)

    def remove(self, places: tuple[str, ...], name: str) -> None:
        """Removes a file, if it is there and may be."""
        with self._opened(places) as there, contextlib.suppress(OSError):
            if there is not None:
                os.unlink(name, dir_fd=there)

    @contextlib.contextmanager
    def _opened(self, places: tuple[str, ...], make: bool = False) -> Iterator[int | None]:
        """The folder at these places below the root, or None where there is none."""
        with contextlib.ExitStack() as stack:
            try:
                there = os.open(self.root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
                stack.callback(os.close, there)
                for place in places:
                    made = make and _made(place, there)
                    there = os.open(place, os.O_RDONLY | _DIRECTORY, dir_fd=there)
                    stack.callback(os.close, there)
                    if made:  # by what was opened: under its name somebody may have put a link meanwhile
                        os.fchmod(there, _FOLDER)
            except FileNotFoundError as error:
                if make or not self.root.is_dir():
                    raise self._unusable(error) from None
                yield None
                return
            except OSError as error:
                raise self._unusable(error) from None
            try:
                yield there
            except OSError as error:  # a mount that has gone meanwhile
                raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> FederationError:
        reason = "a link or a file is where a folder should be" if error.errno in _LINKED else error.strerror
        return FederationError(f"The folder {self.root} cannot be used ({reason}): mount it, or correct server.address")


def _made(place: str, there: int) -> bool:
    """Makes a folder in another, unless it is there; whether it was made."""
    try:
        os.mkdir(place, dir_fd=there)
    except FileExistsError:
        return False
    return True


_LINKED = (errno.ELOOP, errno.ENOTDIR)
