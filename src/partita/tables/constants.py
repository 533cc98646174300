"""Parameters beside the coefficients, such as a dispersion: their priors, and summaries on their own scale."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

__all__ = ["CUT_POINTS", "SCALARS", "Constant", "ConstantSummary", "Reporting"]

_NODES, _MASSES = np.polynomial.hermite_e.hermegauss(60)


class Constant(NamedTuple):
    """A constant of a model, which is Gaussian under q on a scale without bounds."""

    name: str
    scale: Callable[[np.ndarray], np.ndarray] = np.exp
    """From that scale to its own; it rises."""
    mean: float = 0.0
    sd: float = 3.0
    """Of its prior, on the scale without bounds."""
    in_units: bool = False
    """Whether it has the unit of the response."""


class ConstantSummary(NamedTuple):
    """A constant on its own scale."""

    name: str
    mean: float
    sd: float
    low: float
    high: float


class Reporting(NamedTuple):
    """How constants are reported on their own scale, given those without bounds."""

    moments: Callable[
        [Sequence[Constant], Float[np.ndarray, " c"], Float[np.ndarray, "c c"], float], Sequence[ConstantSummary]
    ]
    """Of a Gaussian mean and covariance, with intervals of this mass."""
    draws: Callable[[Sequence[Constant], Float[np.ndarray, "s c"]], Float[np.ndarray, "s c"]]
    """Of draws."""


def _scalars(
    constants: Sequence[Constant], mean: Float[np.ndarray, " c"], covariance: Float[np.ndarray, "c c"], mass: float
) -> list[ConstantSummary]:
    """Each by itself: mean and sd by quadrature; an interval's ends are those of its Gaussian, transformed."""
    reach = float(stats.norm.ppf((1 + mass) / 2))
    found = []
    for constant, centre, spread in zip(constants, mean, np.sqrt(np.diag(covariance)), strict=True):
        values, weights = constant.scale(centre + spread * _NODES), _MASSES / _MASSES.sum()
        average = float(weights @ values)
        sd = float(np.sqrt(weights @ (values - average) ** 2))
        low, high = constant.scale(np.array([centre - reach * spread, centre + reach * spread])).tolist()
        found.append(ConstantSummary(constant.name, average, sd, low, high))
    return found


def _cut_points(
    constants: Sequence[Constant], mean: Float[np.ndarray, " c"], covariance: Float[np.ndarray, "c c"], mass: float
) -> list[ConstantSummary]:
    """The cut points c_0, c_0 + exp(δ_1), …, given c_0 and the log increments δ.

    Their means and covariances are exact, those of a Gaussian and log-normals; intervals are mean ± a multiple of sd.
    """
    raised = np.exp(mean[1:] + np.diag(covariance)[1:] / 2)
    means, spread = np.concatenate([mean[:1], raised]), covariance.copy()
    spread[0, 1:] = spread[1:, 0] = covariance[0, 1:] * raised
    spread[1:, 1:] = np.outer(raised, raised) * np.expm1(covariance[1:, 1:])
    sums = np.tri(len(mean))
    centres, sds = sums @ means, np.sqrt(np.diag(sums @ spread @ sums.T))
    reach = float(stats.norm.ppf((1 + mass) / 2))
    return [
        ConstantSummary(constant.name, float(m), float(s), float(m - reach * s), float(m + reach * s))
        for constant, m, s in zip(constants, centres, sds, strict=True)
    ]


def _scaled(constants: Sequence[Constant], draws: Float[np.ndarray, "s c"]) -> Float[np.ndarray, "s c"]:
    return np.column_stack([constant.scale(column) for constant, column in zip(constants, draws.T, strict=True)])


def _raised(constants: Sequence[Constant], draws: Float[np.ndarray, "s c"]) -> Float[np.ndarray, "s c"]:
    return np.cumsum(np.column_stack([draws[:, :1], np.exp(draws[:, 1:])]), axis=1)


SCALARS = Reporting(_scalars, _scaled)
CUT_POINTS = Reporting(_cut_points, _raised)
