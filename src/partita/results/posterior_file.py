"""A posterior to and from disk: natural parameters, with what describes them."""

import os
from typing import Any

import jax

from partita.errors import DamagedFileError
from partita.families import Family
from partita.families.description import describe, template
from partita.io.archive import read, write
from partita.io.wire import flatten, unflatten


def save_posterior(path: str | os.PathLike[str], q: Family, about: dict[str, Any]) -> None:
    """Writes the natural parameters of a posterior, its family, and metadata."""
    write(path, flatten(q), about | {"family": describe(q)})


def load_posterior(path: str | os.PathLike[str], like: Family | None = None) -> tuple[Family, dict[str, Any]]:
    """The posterior saved at `path`, and its metadata; `like` is a member whose shapes it must have, if given."""
    arrays, about = read(path)
    description = about.pop("family", {})
    if like is None:
        like = template(description)
        if not isinstance(like, Family) or any(leaf.dtype != _dtype(leaf, arrays) for leaf in jax.tree.leaves(like)):
            raise DamagedFileError(
                f'{path} holds no posterior in JAX\'s present precision: jax.config.update("jax_enable_x64", True).'
            )
    return unflatten(arrays, like, str(path)), about


def _dtype(leaf: Any, arrays: dict[str, Any]) -> Any:
    """The type that a leaf has in the file, where all have one."""
    return next((array.dtype for array in arrays.values()), leaf.dtype)
