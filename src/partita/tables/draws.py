"""Draws of θ that all sites share, and what a site computes of its rows at them, some rows at a time."""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from partita.errors import SettingsError
from partita.families import Family
from partita.families.base import Theta
from partita.models import Model
from partita.numerics.compiled import Compiled
from partita.tables.fitted import SiteRows

__all__ = ["blocks", "draws_of", "log_densities"]

_BLOCK = 1024
"""How many rows are computed with at once, so that memory does not grow with a site."""


def draws_of(q: Family, count: int, seed: int) -> Theta:
    """Draws of θ: the same at every site, since they follow from q and a seed."""
    return q.sample(jax.random.key(seed), (count,))


def blocks(rows: SiteRows) -> Iterator[tuple[SiteRows, int]]:
    """A site's rows in pieces of one length, and how many of each are real: the others are the next, or the last again.

    Lengths are powers of two, so that sites share compiled programs. A row of the table is in one piece.
    """
    size = min(_BLOCK, 1 << (rows.size - 1).bit_length())
    ends = np.flatnonzero(np.diff(rows.whose, append=-1)) + 1
    start = 0
    while start < rows.size:
        stop = int(ends[np.searchsorted(ends, start + size, side="right") - 1])
        places = np.minimum(np.arange(start, start + size), rows.size - 1)
        piece = jax.tree.map(lambda leaf, places=places: np.asarray(leaf)[places], tuple(rows))
        yield SiteRows(*piece), stop - start
        start = stop


def log_densities(model: Model, rows: SiteRows, theta: Theta) -> Iterator[tuple[Float[np.ndarray, "n s"], np.ndarray]]:
    """log p(y_n | θ_s) of a site's rows of the table, per unit of the response, piece by piece, and their weights."""
    for piece, real in blocks(rows):
        found = np.asarray(_log_densities(model, theta, piece.data))[:real] - piece.log_units[:real, None]
        starts = np.flatnonzero(np.diff(piece.whose[:real], prepend=-1))
        yield np.add.reduceat(found, starts, axis=0), piece.weights[starts]


@Compiled
def _log_densities(model: Model, theta: Theta, data: PyTree) -> Float[Array, "n s"]:
    if not model.independent_rows:
        raise SettingsError(
            "Rows of a fit with effects of groups are not independent given its coefficients, so that none can be "
            "scored or left out by itself: compare fits by their free energies."
        )
    of_rows = jax.vmap(model.log_density, in_axes=(None, 0))
    return jax.vmap(lambda each: of_rows(each, data), out_axes=1)(theta)
