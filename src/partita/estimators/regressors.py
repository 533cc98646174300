"""Regression: linear with unknown noise, and Poisson."""

import abc
from typing import Any, Self

import numpy as np
from jax import enable_x64
from sklearn.base import RegressorMixin

from partita.data.table import Table
from partita.errors import DataError
from partita.estimators.base import TOLERANCE, Partitioned, gaussian_moments, positive
from partita.families import Family, FullGaussian, NormalGamma
from partita.local.solvers import Conjugate, Newton
from partita.methods import sequential
from partita.models import PoissonRegression, UnknownNoiseRegression
from partita.models.base import check_values
from partita.models.glm import GeneralisedLinear
from partita.stream import Stream

__all__ = ["PartitionedPoissonRegressor", "PartitionedRegressor"]

_NEWTON = sequential(Newton(tolerance=TOLERANCE))
_CONJUGATE = sequential(Conjugate())
_SHAPE, _RATE = 1.0, 1e-3
"""Of the noise's precision: weak, in units of the response's variance."""


class _Regressor(RegressorMixin, Partitioned):
    """Regressors, whose predictions have a standard deviation."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One more batch, which is one more factor."""
        return self._partial_fit(X, y, None, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The posterior mean of the response; with `return_std` also the sd of a new response."""
        mean, covariance = self._predictors(X)
        mean, sd = self._moments(mean[:, 0], covariance[:, 0, 0])
        return (mean, sd) if return_std else mean

    def _keep(self, stream: Stream) -> None:
        super()._keep(stream)
        self.intercept_, self.coef_ = self.intercept_[0], self.coef_[0]

    @abc.abstractmethod
    def _moments(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of responses, given those of their linear predictors."""


class PartitionedRegressor(_Regressor):
    """Bayesian linear regression with unknown noise, by its conjugate posterior, which is exact.

    Of any division into sites and batches the posterior is the same. The prior sd is in units of the noise's sd.
    Fitted, it has `coef_`, `intercept_`, `covariance_` (of the intercept, then the coefficients), `noise_` (the root of
    the noise's mean variance) and `stream_`, the posterior with a factor for every site and batch.
    """

    def __init__(self, prior_sd: float = 10.0, rounds: int = 100) -> None:
        super().__init__(prior_sd, rounds)

    def _begun(self) -> Stream:
        size = len(self._sds())
        prior = NormalGamma.from_parameters(np.zeros(size), np.diag(self._sds() ** 2), _SHAPE, _RATE)
        return Stream(_CONJUGATE, UnknownNoiseRegression(), prior, draws=0)

    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray, float]:
        assert isinstance(q, NormalGamma)
        with enable_x64(True):
            gamma = q.gamma
            noise = float(gamma.rate / (gamma.shape - 1)) if float(gamma.shape) > 1 else np.inf
            return *gaussian_moments(q.gaussian)[:2], noise

    def _keep(self, stream: Stream) -> None:
        super()._keep(stream)
        self.noise_ = float(self._spread_of_y * np.sqrt(self._noise))

    def _moments(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (
            self._middle_of_y + self._spread_of_y * mean,
            self._spread_of_y * np.sqrt(self._noise * (1 + variance)),
        )

    def _first_targets(self, y: np.ndarray, classes: Any, weight: np.ndarray) -> np.ndarray:
        self._middle_of_y = float(np.average(y, weights=weight))
        spread = np.sqrt(np.average((y - self._middle_of_y) ** 2, weights=weight))
        self._spread_of_y = float(positive(spread, self._middle_of_y))
        return self._targets(y)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return (np.asarray(y, float) - self._middle_of_y) / self._spread_of_y

    def _response_scale(self) -> tuple[float, float]:
        return self._spread_of_y, self._middle_of_y


class PartitionedPoissonRegressor(_Regressor):
    """Bayesian Poisson regression with the log link and full covariance.

    Responses are counts, or rates, which are counts by exposure, with the exposures as sample weights. Fitted, it has
    `coef_`, `intercept_`, `covariance_` (of the intercept, then the coefficients) and `stream_`, the posterior with a
    factor for every site and batch.
    """

    def _begun(self) -> Stream:
        prior = FullGaussian.from_mean_covariance(np.zeros(len(self._sds())), np.diag(self._sds() ** 2))
        return Stream(_NEWTON, _Rates(), prior, draws=0)

    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray, float]:
        return gaussian_moments(q)

    def _moments(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rate = np.exp(mean + variance / 2)
        return rate, np.sqrt(rate + np.expm1(variance) * rate**2)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        y = np.asarray(y, float)
        if (y < 0).any():
            raise DataError("Some responses are negative: give counts, or rates from 0 up.")
        return y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class _Rates(PoissonRegression):
    """A Poisson likelihood whose responses may be rates: weighted by exposure, they have the counts' likelihood."""

    def check(self, data: Table) -> None:
        GeneralisedLinear.check(self, data)
        check_values(np.asarray(data.y), np.asarray(data.y) >= 0, "rates are from 0 up")
