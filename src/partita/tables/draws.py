"""Draws of θ that all sites share, and what a site computes of its rows at them, some rows at a time."""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from partita.families import Family
from partita.families.base import Theta
from partita.models import Model
from partita.numerics.compiled import Compiled
from partita.tables.fitted import Rows

__all__ = ["blocks", "draws_of", "log_densities"]

_BLOCK = 1024
"""How many rows are computed with at once, so that memory does not grow with a site."""


def draws_of(q: Family, count: int, seed: int) -> Theta:
    """Draws of θ: the same at every site, since they follow from q and a seed."""
    return q.sample(jax.random.key(seed), (count,))


def blocks(rows: Rows) -> Iterator[tuple[Rows, int]]:
    """A site's rows in pieces of one length, the last filled up with its last row, and how many are real.

    Lengths are powers of two, so that sites share compiled programs.
    """
    size = min(_BLOCK, 1 << (rows.size - 1).bit_length())
    for start in range(0, rows.size, size):
        places = np.minimum(np.arange(start, start + size), rows.size - 1)
        piece = jax.tree.map(lambda leaf, places=places: np.asarray(leaf)[places], tuple(rows))
        yield Rows(*piece), min(size, rows.size - start)


def log_densities(model: Model, rows: Rows, theta: Theta) -> Iterator[tuple[Float[np.ndarray, "n s"], np.ndarray]]:
    """log p(y_n | θ_s) of a site's rows, piece by piece, and the rows' weights."""
    for piece, real in blocks(rows):
        yield np.asarray(_log_densities(model, theta, piece.data))[:real], piece.weights[:real]


@Compiled
def _log_densities(model: Model, theta: Theta, data: PyTree) -> Float[Array, "n s"]:
    of_rows = jax.vmap(model.log_density, in_axes=(None, 0))
    return jax.vmap(lambda each: of_rows(each, data), out_axes=1)(theta)
