"""Expectations as sums over points that q has itself."""

import jax
from jaxtyping import Array, Key, PyTree

from partita.errors import SettingsError
from partita.expectations.base import Expectation
from partita.expectations.capabilities import Density, Rows
from partita.families import Family
from partita.families.capabilities import Pointed

__all__ = ["Points"]


class Points(Expectation):
    """The sum over points of q with their masses, for posteriors of any form: any model.

    The points follow q as it moves, and are made of the same noise at every visit. So the free energy is a smooth
    function of q, which is near the expectation as far as the points are: `AnyForm.of` says how many there are.
    """

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        if not isinstance(q, Pointed):
            raise SettingsError(f"A {type(q).__name__} has no points of its own: use MonteCarlo.")
        each_row = jax.vmap(model.log_density, in_axes=(None, 0))
        theta, masses = q.points()
        return masses @ jax.vmap(lambda one: each_row(one, data))(theta)
