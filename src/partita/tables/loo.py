"""How good q is, and how well a fit predicts rows that it has not seen: Pareto smoothed importance sampling.

Sites share draws of θ from q. Each sends the log density of its rows at every draw, summed; with prior and q these give
the importance ratios of the joint density to q. Given those, each site leaves out its rows one at a time, and sends
sums over them. No row leaves its site.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from jax import enable_x64
from jaxtyping import Float
from scipy.special import logsumexp

from partita.families.base import Theta
from partita.inputs import check_seed, check_whole
from partita.models import Model
from partita.results.pareto import TOO_HEAVY, smoothed
from partita.tables.coefficients import Grid, short, text_table
from partita.tables.draws import draws_of, log_densities
from partita.tables.fitted import FEW, Fitted, SiteRows, at_sites, rows_of

__all__ = ["Loo", "SiteLoo", "joint_ratios", "left_out", "loo_of", "pointwise", "spread", "summed"]

_NEARLY_EVEN = 0.95


@dataclasses.dataclass(frozen=True)
class SiteLoo:
    """What a site sends."""

    rows: int
    elpd: float
    """Σ_n log p(y_n | all rows but n)."""
    squares: float
    """The sum of their squares."""
    fitted: float
    """Σ_n log p(y_n | all rows)."""
    heavy: int
    """For how many rows the weights have a tail with k above 0.7."""
    shape: float
    """The largest k."""


@dataclasses.dataclass(frozen=True)
class Loo:
    """Leave-one-out cross-validation of a fit; print it, or ask for its numbers."""

    sites: Mapping[str, SiteLoo]
    shape: float
    """k of the weights that turn q into the exact posterior; see `trusted`."""
    efficiency: float
    """The share of draws that these weights are worth, 1 where q is exact."""
    evidence: float
    """log p(y) by the same weights, in the units of the response."""
    free_energy: float
    """The lower bound of it that was maximised."""
    draws: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(site.rows for site in self.sites.values())

    @property
    def elpd(self) -> float:
        """The expected log density of rows that the fit has not seen, summed over as many as there are."""
        return sum(site.elpd for site in self.sites.values())

    @property
    def se(self) -> float:
        """The standard error of `elpd`, from how rows vary."""
        return spread(self.rows, self.elpd, sum(site.squares for site in self.sites.values()))

    @property
    def effective(self) -> float:
        """The effective number of parameters: how much better rows are predicted that were seen."""
        return sum(site.fitted for site in self.sites.values()) - self.elpd

    @property
    def trusted(self) -> bool:
        """Whether q is near enough to the posterior: k at most 0.7, or weights so even that their tail hardly counts.

        k is the shape of the weights' tail whatever their size, and may be large where all are nearly equal.
        """
        return self.shape <= TOO_HEAVY or self.efficiency >= _NEARLY_EVEN

    @property
    def heavy(self) -> int:
        """For how many rows the estimate is not to be trusted."""
        return sum(site.heavy for site in self.sites.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know."""
        judged = "good" if self.trusted else "not to be trusted"
        return (
            f"Leave-one-out: elpd {self.elpd:.1f} ± {self.se:.1f}, {self.effective:.1f} effective parameters.",
            f"q is {judged}: k against the joint density {self.shape:.2f}, its draws worth {self.efficiency:.1%}.",
            f"Log evidence {self.evidence:.2f}, of which the free energy {self.free_energy:.2f} is a lower bound.",
            f"{self.heavy} of {self.rows} rows have k above {TOO_HEAVY}, by {self.draws} draws.",
        )

    def grid(self) -> Grid:
        """Its numbers as a table."""
        rows = [
            (
                name,
                str(site.rows),
                f"{site.elpd:.1f}",
                short(site.elpd / site.rows),
                f"{site.shape:.2f}",
                str(site.heavy),
            )
            if site.rows >= FEW
            else (name, f"< {FEW}", *[""] * 4)
            for name, site in self.sites.items()
        ]
        return ("", "rows", "elpd", "elpd a row", "largest k", f"rows with k > {TOO_HEAVY}"), rows

    def __repr__(self) -> str:
        return text_table("Leave-one-out cross-validation, in nats", *self.grid(), self.notes)


def spread(rows: int, total: float, squares: float) -> float:
    """The standard error of a sum over rows, given the sum of squares."""
    return float(np.sqrt(max(0.0, squares - total**2 / rows)))


def loo_of(fit: Fitted, draws: int = 1000, seed: int = 0) -> Loo:
    """Leaves out rows one at a time; see `Fit.loo`."""
    rows = rows_of(fit)
    with enable_x64(True):
        theta, ratios = joint_ratios(fit, rows, draws, seed)
        sites = at_sites(fit, rows, lambda model, own: left_out(model, own, theta, ratios)[0])
        return summed(fit, rows, sites, ratios)


def summed(
    fit: Fitted, rows: Mapping[str, SiteRows], sites: Mapping[str, SiteLoo], ratios: Float[np.ndarray, " s"]
) -> Loo:
    """What sites have sent, together; densities are per unit of the response as it was given."""
    units: dict[str, float] = at_sites(fit, rows, lambda model, own: float(own.weights @ own.log_units))
    evidence = float(logsumexp(ratios)) - np.log(len(ratios))
    (weights_of_q,), (shape,) = smoothed(ratios[None])
    efficiency = float(np.exp(-logsumexp(2 * weights_of_q))) / len(ratios)
    return Loo(sites, float(shape), efficiency, evidence, fit.free_energy - sum(units.values()), len(ratios))


def joint_ratios(
    fit: Fitted, rows: Mapping[str, SiteRows], draws: int, seed: int
) -> tuple[Theta, Float[np.ndarray, " s"]]:
    """Draws of θ from q, and log p(y, θ) − log q(θ) at each; every site sends a number a draw."""
    check_whole("number of draws", draws, least=50)
    check_seed(seed)
    q = fit.result.posterior.q
    theta = draws_of(q, draws, seed)
    totals = at_sites(fit, rows, lambda model, own: _totals(model, own, theta))
    ends = [np.asarray(jax.vmap(member.log_prob)(theta)) for member in (fit.spec.prior(), q)]
    return theta, sum(totals.values()) + ends[0] - ends[1]


def pointwise(
    model: Model, rows: SiteRows, theta: Theta, ratios: Float[np.ndarray, " s"]
) -> Iterator[tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]]:
    """Of a site's rows of the table, piece by piece: log p(y_n | all but n), log p(y_n | all), and k.

    A row with weight w counts w times, and is left out as a whole.
    """
    for found, weights in log_densities(model, rows, theta):
        density = weights[:, None] * found
        without, shapes = smoothed(ratios - density)
        yield logsumexp(density + without, axis=1), logsumexp(density, axis=1) - np.log(len(ratios)), shapes


def _totals(model: Model, rows: SiteRows, theta: Theta) -> Float[np.ndarray, " s"]:
    """A site's log-likelihood at each draw."""
    return np.sum([weights @ found for found, weights in log_densities(model, rows, theta)], axis=0)


def left_out(
    model: Model, rows: SiteRows, theta: Theta, ratios: Float[np.ndarray, " s"]
) -> tuple[SiteLoo, Float[np.ndarray, " n"]]:
    """What a site sends of its rows, and the number of each row of the table, which stays there."""
    elpd, seen, shapes = (np.concatenate(part) for part in zip(*pointwise(model, rows, theta, ratios), strict=True))
    sums = SiteLoo(
        len(elpd),
        float(elpd.sum()),
        float(np.sum(elpd**2)),
        float(seen.sum()),
        int(np.sum(shapes > TOO_HEAVY)),
        float(shapes.max()),
    )
    return sums, elpd
