"""A fit whose missing values were drawn several times at the sites: the fits of all draws, by Rubin's rules."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
from jax import enable_x64
from jaxtyping import Float

from partita.families import Family, FullGaussian
from partita.tables.contrast import Effect, contrast_of
from partita.tables.estimates import Estimates
from partita.tables.export import fit_to_csv
from partita.tables.fit import Fit
from partita.tables.forest import draw_forest, saved
from partita.tables.imputation import Combined, combined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ImputedFit"]


@dataclasses.dataclass(frozen=True, repr=False)
class ImputedFit(Estimates):
    """A fit of several draws of the missing values.

    Its posterior has the mean of the draws' means, and their mean covariance plus (1 + 1/m) times the covariance
    between them. What else a fit tells, such as checks, each of `imputations` tells by itself.
    """

    imputations: tuple[Fit, ...]
    """The fits, one for each draw."""
    missing: Mapping[str, int]
    """In how many rows each column was missing."""

    @classmethod
    def of(cls, fits: tuple[Fit, ...], missing: Mapping[str, int]) -> Self:
        """The fits of all draws together."""
        first = fits[0]
        return cls(first.spec, first.sites, first.partition, first.result, fits, missing)

    @property
    def q(self) -> Family:
        together = self._together
        with enable_x64(True):
            return FullGaussian.from_mean_covariance(together.mean, together.covariance)

    @functools.cached_property
    def _together(self) -> Combined:
        return _combined([fit.vector(fit.q) for fit in self.imputations])

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.missing:
            return super().notes
        counts = ", ".join(f"{name} in {rows} rows" for name, rows in self.missing.items())
        share = float(np.max(np.diag(self._together.between) / np.diag(self._together.covariance)))
        drawn = f"Missing values ({counts}) were drawn {len(self.imputations)} times at the sites; "
        uncertain = f"they make up at most {share:.0%} of a coefficient's variance."
        return (*super().notes, drawn + uncertain)

    def by_site(self, name: str) -> dict[str, dict[str, tuple[float, float]]]:
        found = [fit.by_site(name) for fit in self.imputations]
        pooled: dict[str, dict[str, tuple[float, float]]] = {}
        for site in found[0]:
            labels = [label for label in found[0][site] if all(label in each[site] for each in found)]
            pooled[site] = {label: _scalar([each[site][label] for each in found]) for label in labels}
        return pooled

    def without(self, site: str) -> Self:
        """The same without one site."""
        return self.of(tuple(fit.without(site) for fit in self.imputations), self.missing)

    def forest(self, name: str, path: str | os.PathLike[str] | None = None, mass: float = 0.95) -> "Figure":
        """As `Fit.forest`."""
        return saved(draw_forest(self, name, mass), path)

    def contrast(self, what: Mapping[str, float] | str, mass: float = 0.95) -> Effect:
        """As `Fit.contrast`."""
        return contrast_of(self, what, mass)

    def to_csv(self, path: str | os.PathLike[str], mass: float = 0.95) -> None:
        """As `Fit.to_csv`."""
        fit_to_csv(self, path, mass)


def _combined(moments: list[tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]]) -> Combined:
    means, covariances = (np.array(column) for column in zip(*moments, strict=True))
    return combined(means, covariances)


def _scalar(moments: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean and sd of one number."""
    found = _combined([(np.array([mean]), np.array([[sd**2]])) for mean, sd in moments])
    return float(found.mean[0]), float(np.sqrt(found.covariance[0, 0]))
