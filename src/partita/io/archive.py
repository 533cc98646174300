"""Arrays and JSON in one file, written atomically, without pickle."""

import json
import os
import zipfile
from typing import Any

import numpy as np

from partita.errors import DamagedFileError
from partita.families import Family
from partita.io import atomic
from partita.io.wire import flatten, unflatten


def save_posterior(path: str | os.PathLike[str], q: Family, about: dict[str, Any]) -> None:
    """Writes the natural parameters of a posterior, with whatever should be known about them."""
    write(path, flatten(q), about)


def load_posterior(path: str | os.PathLike[str], like: Family) -> tuple[Family, dict[str, Any]]:
    """The posterior saved at `path`, which must have the natural parameters of `like`, and what was said about it."""
    arrays, about = read(path)
    return unflatten(arrays, like, str(path)), about


def write(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Arrays and JSON in one .npz, put in place by a rename once it is on disk."""
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
        raise DamagedFileError(f"{path} is not a file of partita's, or is damaged: {error}.") from None
