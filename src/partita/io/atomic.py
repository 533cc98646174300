"""Atomic file writes."""

import contextlib
import csv
import functools
import io
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from partita.errors import DiskError

__all__ = ["write", "write_bytes", "write_csv", "write_text"]


def write(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], object], mode: int = 0o666) -> None:
    """Writes a temporary file with `fill`, syncs it, and renames it to `path`.

    The file is created with permissions `mode` (less the umask), so it is never readable more widely. A full disk
    raises a `DiskError`, and the file that was there before stays.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "x+b", opener=functools.partial(os.open, mode=mode)) as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DiskError(path, error.strerror or error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> None:
    """Writes some bytes."""
    write(path, lambda file: file.write(data), mode)


def write_text(path: str | os.PathLike[str], text: str, mode: int = 0o666) -> None:
    """Writes a text."""
    write_bytes(path, text.encode(), mode)


def write_csv(path: str | os.PathLike[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Writes a table with a header, the names in its first row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
