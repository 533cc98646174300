"""What results are made from: the parts of a fit that forests, checks, comparisons, exports and reports ask for."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from partita.data.shard import Partition
from partita.errors import DataError
from partita.families import Family
from partita.models import Model
from partita.server.run import Result
from partita.tables.coefficients import Coefficient
from partita.tables.design import Design
from partita.tables.likelihoods import Likelihood
from partita.tables.reading import Site
from partita.tables.response import Response

__all__ = ["FEW", "Fitted", "Rows", "at_sites", "check_rows", "few", "rows_of"]

FEW = 5
"""A cell with fewer rows than this does not leave its site."""


class Rows(NamedTuple):
    """The rows of one site, as the model takes them."""

    data: PyTree[np.ndarray]
    weights: Float[np.ndarray, " n"]

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.weights)


class Fitted(Protocol):
    """A fit, as its results see it."""

    @property
    def formula(self) -> str: ...
    @property
    def design(self) -> Design: ...
    @property
    def response(self) -> Response: ...
    @property
    def family(self) -> str: ...
    @property
    def likelihood(self) -> Likelihood: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def sites(self) -> tuple[Site, ...]: ...
    @property
    def partition(self) -> Partition: ...
    @property
    def result(self) -> Result: ...
    @property
    def prior(self) -> Family: ...
    @property
    def mean(self) -> Float[np.ndarray, " d"]: ...
    @property
    def covariance(self) -> Float[np.ndarray, "d d"]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def joint(self) -> tuple[tuple[str, ...], Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]: ...
    def coefficients(self, mass: float = 0.95) -> list[Coefficient]: ...
    def by_site(self, name: str) -> dict[str, dict[str, tuple[float, float]]]: ...
    def leaving_out(self) -> dict[str, Family]: ...
    def vector(self, q: Family) -> tuple[np.ndarray, np.ndarray]: ...
    def in_own_units(self, draws: Float[np.ndarray, "s d"]) -> Float[np.ndarray, "s d"]: ...
    def table_of(self, site: Site) -> PyTree[Array]: ...


def check_rows(fit: Fitted) -> None:
    """Raises where the rows of a site are not at hand, as in a fit that was loaded or made by a federation."""
    if away := [site.name for site in fit.sites if site.name not in fit.partition.names]:
        raise DataError(
            f"The rows of {away[0]} are not at hand, and this is computed from all rows: revisited() reads those of a "
            "loaded fit from their files; those of a federation stay with its clients."
        )


def rows_of(fit: Fitted) -> dict[str, Rows]:
    """Every site's rows, for what the site itself computes."""
    check_rows(fit)
    parts = zip(fit.partition.names, fit.partition.shards, fit.partition.sizes, strict=True)
    return {
        name: Rows(*jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], (shard.data, shard.weights)))
        for name, shard, size in parts
    }


def at_sites(fit: Fitted, question: Callable[[Model, Rows], Any]) -> dict[str, Any]:
    """What every site answers to a question about its rows; nothing but the answers leaves it.

    The model has the hyperparameters that were learned.
    """
    return {name: question(fit.result.posterior.model, rows) for name, rows in rows_of(fit).items()}


def few(count: float, rows: float) -> bool:
    """Whether some of the rows, or all the others, are so few that their number would point at them."""
    return 0 < count < FEW or 0 < rows - count < FEW
