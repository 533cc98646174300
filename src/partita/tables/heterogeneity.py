"""Heterogeneity between sites in nats, from the factors that the server holds."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import enable_x64
from jaxtyping import Float
from scipy import stats

from partita.tables.coefficients import Grid, short, text_table
from partita.tables.fitted import Fitted

__all__ = ["Heterogeneity", "SiteHeterogeneity", "compared", "distance", "heterogeneity_of"]

_UNINFORMATIVE = 1e-8
"""A direction in which rows tell less than this, relative to what the others tell, is not compared."""

_Moments = tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]


class _Distance(NamedTuple):
    """Half the squared distance between what rows say and what others predict of it, in their joint uncertainty."""

    nats: float
    directions: int
    """The number of directions that the rows tell of; `nats` is half of it on average where nothing differs."""

    @property
    def p(self) -> float | None:
        """The probability of so many nats or more where nothing differs, None of no direction."""
        return _tail(self.nats, self.directions)


@dataclasses.dataclass(frozen=True)
class SiteHeterogeneity:
    """How far one site lies from the others."""

    name: str
    nats: float | None
    """Half the squared distance between what the site says and what the others predict of it; None if they say
    nothing proper."""
    expected: float
    """What `nats` is on average where sites agree: half the number of directions that the site tells of."""
    directions: int
    p: float | None
    """The probability of so many nats or more where sites agree."""
    kl: float | None
    """KL(site alone ‖ all others), both with the prior; None where one of them is improper."""
    moved: float | None
    """KL(all ‖ all others): how far the site moves the posterior."""


@dataclasses.dataclass(frozen=True)
class Heterogeneity:
    """How far sites lie from each other; print it, or ask for its rows."""

    sites: tuple[SiteHeterogeneity, ...]
    nats: float | None
    """Of all sites together: half of Cochran's Q for all coefficients at once."""
    expected: float
    p: float | None

    def grid(self) -> Grid:
        """Its numbers as a table."""
        rows = [
            (each.name, *map(_cell, (each.nats, each.expected, each.p, each.kl, each.moved))) for each in self.sites
        ]
        if self.nats is not None:
            rows.append(("all together", _cell(self.nats), _cell(self.expected), _cell(self.p), "", ""))
        return ("", "nats", "if they agree", "p", "KL to the others", "moves all by"), rows

    def __repr__(self) -> str:
        return text_table("Heterogeneity between sites, in nats", *self.grid(), [])


def heterogeneity_of(fit: Fitted) -> Heterogeneity:
    """Compares each site with the others; see `Fit.heterogeneity`."""
    with enable_x64(True):
        members, whole = fit.leaving_out(), fit.vector(fit.result.state.posterior)
        others = {name: fit.vector(q) for name, q in members.items() if bool(q.is_proper())}
        state = fit.result.state
        start = fit.vector(state.prior_in_family if state.prior_in_family.is_proper() else state.current_prior)
    return compared(list(members), whole, others, start)


def compared(names: Sequence[str], whole: _Moments, others: Mapping[str, _Moments], start: _Moments) -> Heterogeneity:
    """The same from mean and covariance of all, of all but each site where that is proper, and of the prior."""
    found = [_site(name, whole, others.get(name), start) for name in names]
    nats, directions = _together(whole, others, start) if len(others) == len(found) > 1 else (None, 0)
    return Heterogeneity(tuple(found), nats, directions / 2, _tail(nats, directions))


def _site(name: str, whole: _Moments, others: _Moments | None, start: _Moments) -> SiteHeterogeneity:
    if others is None:
        return SiteHeterogeneity(name, None, 0.0, 0, None, None, None)
    found = distance(whole, others)
    divergences = _alone(whole, others, start), _kl(whole, others)
    return SiteHeterogeneity(name, found.nats, found.directions / 2, found.directions, found.p, *divergences)


def distance(whole: _Moments, others: _Moments) -> _Distance:
    """How far some rows lie from others, whose precision Λ and precision times mean h follow from all and the others.

    Given θ, h is N(Λθ, Λ), and θ is what the others say, N(m, V); so h − Λm is N(0, Λ + ΛVΛ), which is diagonal in
    the axes that make V one and Λ diagonal.
    """
    (m, cov), (m0, cov0) = whole, others
    root = np.linalg.cholesky(cov0)
    precision = np.linalg.inv(cov)
    information, axes = np.linalg.eigh(root.T @ precision @ root - np.eye(len(m)))
    apart = axes.T @ root.T @ precision @ (m - m0)
    used = information > _UNINFORMATIVE
    return _Distance(
        float(np.sum(apart[used] ** 2 / (information[used] * (1 + information[used])))) / 2, int(used.sum())
    )


def _together(whole: _Moments, others: Mapping[str, _Moments], start: _Moments) -> tuple[float, int]:
    """Half of Q = Σ_k (m_k − m)ᵀ Λ_k (m_k − m), m the mean of all sites without the prior, and its degrees of freedom.

    In the axes of all sites' precision, where a site without information about a direction has no part in it.
    """
    total = np.linalg.inv(whole[1])
    shift = total @ whole[0]
    sites = [(total - np.linalg.inv(cov), shift - np.linalg.solve(cov, mean)) for mean, cov in others.values()]
    inverse = np.linalg.inv(start[1])
    everybody = (total - inverse, shift - inverse @ start[0])
    parts = [_quadratic(*site, whole[1]) for site in sites]
    size, rank = _quadratic(*everybody, whole[1])
    return (sum(part for part, _ in parts) - size) / 2, sum(count for _, count in parts) - rank


def _quadratic(precision: np.ndarray, shift: np.ndarray, unit: np.ndarray) -> tuple[float, int]:
    """hᵀ Λ⁻¹ h over the directions about which Λ is informative, in the units of a covariance, and their number."""
    root = np.linalg.cholesky(unit)
    information, axes = np.linalg.eigh(root.T @ precision @ root)
    used = information > _UNINFORMATIVE
    return float(np.sum((axes.T @ root.T @ shift)[used] ** 2 / information[used])), int(used.sum())


def _alone(whole: _Moments, others: _Moments, start: _Moments) -> float | None:
    """KL(site alone ‖ all others), where the site's factor times the prior is proper."""
    precision = np.linalg.inv(whole[1]) - np.linalg.inv(others[1]) + np.linalg.inv(start[1])
    shift = np.linalg.solve(*whole[::-1]) - np.linalg.solve(*others[::-1]) + np.linalg.solve(*start[::-1])
    if np.linalg.eigvalsh(precision).min() <= 0:
        return None
    covariance = np.linalg.inv(precision)
    return _kl((covariance @ shift, covariance), others)


def _kl(first: _Moments, second: _Moments) -> float:
    """KL between two Gaussians."""
    (m1, v1), (m2, v2) = first, second
    ratio = np.linalg.solve(v2, v1)
    gap = m1 - m2
    return float(np.trace(ratio) - len(m1) + gap @ np.linalg.solve(v2, gap) - np.linalg.slogdet(ratio)[1]) / 2


def _tail(nats: float | None, directions: int) -> float | None:
    return None if nats is None or not directions else float(stats.chi2.sf(2 * nats, directions))


def _cell(number: float | None) -> str:
    return "improper" if number is None else short(number)
