"""What results are made from: the parts of a fit that forests, checks, comparisons, exports and reports ask for."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import jax
import numpy as np
from jax import enable_x64
from jaxtyping import Float, Int, PyTree

from partita.data.shard import Partition
from partita.families import Family
from partita.models import Model
from partita.server.run import Result
from partita.tables.coefficients import Coefficient
from partita.tables.design import Design
from partita.tables.likelihoods import Likelihood
from partita.tables.reading import Site
from partita.tables.response import Response
from partita.tables.spec import Spec
from partita.tables.units import Units

__all__ = ["FEW", "Fitted", "SiteRows", "at_sites", "few", "rows_at", "rows_of"]

FEW = 5
"""A cell with fewer rows than this does not leave its site."""


class SiteRows(NamedTuple):
    """The rows of one site, as the model takes them; a row of the table may be several."""

    data: PyTree[np.ndarray]
    weights: Float[np.ndarray, " n"]
    whose: Int[np.ndarray, " n"]
    """For each of them the row of the table; it rises."""
    log_units: Float[np.ndarray, " n"]
    """What is taken from a log density for that per unit of the response as it was given."""

    @property
    def size(self) -> int:
        """The number of rows of the design."""
        return len(self.weights)


class Fitted(Protocol):
    """A fit, as its results see it."""

    @property
    def spec(self) -> Spec: ...
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
    def units(self) -> Units: ...
    @property
    def sites(self) -> tuple[Site, ...]: ...
    @property
    def partition(self) -> Partition: ...
    @property
    def result(self) -> Result: ...
    @property
    def q(self) -> Family: ...
    @property
    def free_energy(self) -> float: ...
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
    def in_own_units(
        self, draws: Float[np.ndarray, "s d"]
    ) -> tuple[Float[np.ndarray, "s k"], Float[np.ndarray, "s c"]]: ...
    def with_rows(self) -> Self: ...


def rows_at(spec: Spec, site: Site) -> SiteRows:
    """A site's rows."""
    split, whose = spec.agreement.rows.split(site)
    with enable_x64(True):
        data = jax.tree.map(np.asarray, spec.design_table(split))
    return SiteRows(data, spec.weights(site), whose, spec.agreement.rows.log_units(split, spec.response))


def rows_of(fit: Fitted) -> dict[str, SiteRows]:
    """Every site's rows, for what the site itself computes; an `InputError` where they are not to be had."""
    return {site.name: rows_at(fit.spec, site) for site in fit.with_rows().sites}


def at_sites(fit: Fitted, rows: Mapping[str, SiteRows], question: Callable[[Model, SiteRows], Any]) -> dict[str, Any]:
    """What every site answers to a question about its rows; nothing but the answers leaves it.

    The model has the hyperparameters that were learned.
    """
    return {name: question(fit.result.posterior.model, own) for name, own in rows.items()}


def few(count: float, rows: float) -> bool:
    """Whether some of the rows, or all the others, are so few that their number would point at them."""
    return 0 < count < FEW or 0 < rows - count < FEW
