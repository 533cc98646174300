"""Arrays and JSON in one .npz file with a checksum, written atomically, without pickle.

The checksum of all other bytes is the comment at the end of the archive, which NumPy leaves alone.
"""

import contextlib
import io
import json
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from partita.errors import DamagedFileError, InputError
from partita.io import atomic
from partita.io.checksum import SIZE, checksum, checksum_of_file

__all__ = ["fill", "read", "understood", "write"]

_PLAIN = "fiubU"
"""Kinds of arrays that a file may hold: numbers and texts, no objects."""


def write(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes arrays and JSON metadata to one .npz atomically."""
    atomic.write(path, lambda file: fill(file, {"about": np.array(json.dumps(about)), **arrays}))


def fill(file: IO[bytes], contents: dict[str, Any]) -> None:
    """Writes an .npz and its checksum."""
    np.savez(file, **contents)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = bytes(SIZE)
    file.seek(-SIZE, os.SEEK_END)
    file.truncate()
    found = checksum_of_file(file)
    file.seek(0, os.SEEK_END)
    file.write(found)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and JSON of a file that `write` wrote; anything else raises a `DamagedFileError`."""
    with understood(path):
        data = Path(path).read_bytes()
        if checksum(memoryview(data)[:-SIZE]) != data[-SIZE:]:
            raise ValueError("its checksum is another one")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            arrays = {part.filename.removesuffix(".npy"): _array(archive, part) for part in archive.infolist()}
        about = json.loads(str(arrays.pop("about")))
        if not isinstance(about, dict):
            raise ValueError("it has no table of contents")
        return arrays, about


@contextlib.contextmanager
def understood(path: str | os.PathLike[str], kind: str = "file") -> Iterator[None]:
    """Raises a `DamagedFileError` where what a file holds cannot be understood.

    Bytes from anywhere make zipfile, NumPy, JSON and what is built from them raise any kind of error.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise DamagedFileError(f"There is no file {path}.") from None
    except Exception as error:
        why = str(error) if type(error) is ValueError else repr(error)
        raise DamagedFileError(
            f"{path} is not a partita {kind}, or it is corrupt ({why:.200}): use a copy of it, or another {kind}."
        ) from None


def _array(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> np.ndarray:
    """An array of an archive, of the size that its bytes have and not of the one that it claims."""
    if part.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{part.filename} is compressed")
    data = archive.read(part)
    header = io.BytesIO(data)
    np.lib.format.read_magic(header)
    shape, fortran, kind = np.lib.format.read_array_header_1_0(header)
    body = memoryview(data)[header.tell() :]
    if kind.kind not in _PLAIN or math.prod(shape) * kind.itemsize != len(body):
        raise ValueError(f"{part.filename} claims to be {kind}{list(shape)}")
    flat = np.frombuffer(body, kind) if len(body) else np.empty(0, kind)
    return flat.reshape(shape, order="F" if fortran else "C")
