"""Arrays and JSON in one file, written atomically, without pickle."""

import json
import os
import zipfile
from typing import Any

import numpy as np

from partita.errors import DamagedFileError
from partita.io import atomic

__all__ = ["read", "write"]


def write(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes arrays and JSON metadata to one .npz atomically."""
    contents: dict[str, Any] = {"about": np.array(json.dumps(about)), **arrays}
    atomic.write(path, lambda file: np.savez(file, **contents))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and JSON of a file that `write` wrote."""
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return arrays, json.loads(str(arrays.pop("about")))
    except FileNotFoundError:
        raise DamagedFileError(f"There is no file {path}.") from None
    except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise DamagedFileError(f"{path} is not a partita file, or it is corrupt: {error}.") from None
