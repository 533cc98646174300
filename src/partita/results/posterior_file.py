"""A posterior to and from disk: natural parameters, with what describes them."""

import os
from typing import Any

import jax
import numpy as np

from partita.errors import DamagedFileError
from partita.families import Family
from partita.families.description import describe, template
from partita.io.archive import read, understood, write
from partita.io.wire import flatten, unflatten

__all__ = ["load_posterior", "save_posterior"]


def save_posterior(path: str | os.PathLike[str], q: Family, about: dict[str, Any]) -> None:
    """Writes the natural parameters of a posterior, its family, and metadata."""
    write(path, flatten(q), about | {"family": describe(q)})


def load_posterior(path: str | os.PathLike[str], like: Family | None = None) -> tuple[Family, dict[str, Any]]:
    """The posterior saved at `path`, and its metadata; `like` is a member whose shapes it must have, if given."""
    arrays, about = read(path)
    with understood(path):
        return _posterior(path, arrays, about, like)


def _posterior(
    path: str | os.PathLike[str], arrays: dict[str, np.ndarray], about: dict[str, Any], like: Family | None
) -> tuple[Family, dict[str, Any]]:
    description = about.pop("family", {})
    if like is None:
        if any(jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype for array in arrays.values()):
            raise DamagedFileError(
                f'{path} is in double precision, and JAX is not: jax.config.update("jax_enable_x64", True).'
            )
        like = template(description)
        if not isinstance(like, Family):
            raise DamagedFileError(f"{path} describes no family: it is not a posterior.")
    return unflatten(arrays, like, str(path)), about
