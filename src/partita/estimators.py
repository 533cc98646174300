"""Estimators for scikit-learn: sites are factors of one posterior, and so is every further batch.

Rows and columns are padded to few sizes, with rows of weight 0 and columns of zeros whose coefficients keep their
prior, so that a fit of another size seldom compiles anything.
"""

import abc
import dataclasses
import math
import warnings
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Float

from partita.data.shard import federate
from partita.data.table import Table
from partita.errors import DataError, MissingExtraError
from partita.families import Family, FullGaussian, NormalGamma
from partita.inputs import check_finite_number, check_whole
from partita.local.solvers import Conjugate, Newton
from partita.methods import sequential
from partita.models import LogisticRegression, PoissonRegression, UnknownNoiseRegression
from partita.models.base import check_values
from partita.models.glm import GeneralisedLinear
from partita.server.monitor import Monitor
from partita.server.run import run
from partita.server.stopping import Status
from partita.stream import Stream

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.multiclass import type_of_target
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingExtraError("scikit-learn", "data") from error

__all__ = ["PartitionedClassifier", "PartitionedPoissonRegressor", "PartitionedRegressor"]

_ROWS = (512, 4096)
"""The lengths to which few rows are padded; with more of them, computing takes longer than compiling."""
_COLUMNS = 16
"""The least number of columns, which is doubled as often as is needed."""
_TOLERANCE = 1e-12
"""In nats of KL: predictions do not depend on how rows are divided, to nine digits."""
_NEWTON = sequential(Newton(tolerance=_TOLERANCE))
_CONJUGATE = sequential(Conjugate())
_QUIET = Monitor(every=0, progress=False)


class _Partitioned(BaseEstimator, abc.ABC):
    """What all estimators share: columns are standardised as the first rows are, and each site has a factor.

    Coefficients of standardised columns are normal(0, prior_sd) before rows are seen, the intercept normal(0, 10).
    """

    def __init__(self, prior_sd: float = 2.5, rounds: int = 100) -> None:
        self.prior_sd = prior_sd
        self.rounds = rounds

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Self:
        """Fits all rows.

        Args:
            X: a matrix or data frame of numbers, a row for each response.
            y: the responses.
            sites: whose each row is; without it all rows are one site.
            sample_weight: weights of rows.

        Returns:
            The estimator.

        """
        self._check_settings()
        X, y, weight = self._validated(X, y, sample_weight, first=True)
        y = self._first_targets(y, None, weight)
        self._scale(X, weight)
        names = np.full(len(X), "all rows") if sites is None else _texts(sites, len(X))
        groups = [names == name for name in dict.fromkeys(names.tolist())]
        with enable_x64(True):
            stream = self._begun()
            tables, weights = zip(*(self._table(X[mine], y[mine], weight[mine]) for mine in groups), strict=True)
            parts = federate(tables, weights=weights, names=[str(names[mine][0]) for mine in groups], buckets=1)
            given = (stream.method, stream.model, stream.prior)
            result = run(*given, parts, rounds=self.rounds, tolerance=_TOLERANCE, monitor=_QUIET)
            self._keep(Stream.of(*given, result, parts))
        return self

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        """One more batch, which is one more factor; the first one says how columns are standardised."""
        self._check_settings()
        first = not hasattr(self, "stream_")
        X, y, weight = self._validated(X, y, sample_weight, first)
        y = self._first_targets(y, classes, weight) if first else self._targets(y)
        if first:
            self._scale(X, weight)
        with enable_x64(True):
            stream = self._begun() if first else self.stream_
            table, weights = self._table(X, y, weight)
            self._keep(stream.add(table, weights=weights, rounds=self.rounds, tolerance=_TOLERANCE))
        return self

    def _predictor(self, X: Any) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Posterior mean and variance of the linear predictor of every row, given unit noise."""
        check_is_fitted(self)
        X = self._standardised(validate_data(self, X, reset=False, dtype=float))
        return X @ self._mean, np.einsum("nd,de,ne->n", X, self._spread, X)

    @abc.abstractmethod
    def _begun(self) -> Stream:
        """The stream before the first rows."""

    @abc.abstractmethod
    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray, float]:
        """Mean and covariance of the coefficients of standardised columns, the latter over the noise variance."""

    def _first_targets(self, y: np.ndarray, classes: Any, weight: np.ndarray) -> np.ndarray:
        """Responses as numbers, with what is learned of them from the first rows."""
        return self._targets(y)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y, float)

    def _check_settings(self) -> None:
        check_finite_number("prior sd, prior_sd,", self.prior_sd, above=0)
        check_whole("number of rounds", self.rounds)

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, first: bool
    ) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, " n"]]:
        X, y = validate_data(self, X, y, reset=first, dtype=float, y_numeric=self._numeric)
        if sample_weight is None:
            return X, y, np.ones(len(X))
        weight = check_array(sample_weight, ensure_2d=False, dtype=float, input_name="sample_weight")
        if weight.shape != (len(X),) or (weight < 0).any():
            raise DataError(f"The sample weights must be {len(X)} numbers from 0 up, one for each row.")
        if not weight.any():
            raise DataError("Sample weights must contain at least one non-zero number: all are zero.")
        return X, y, weight

    _numeric = True
    """Whether responses are numbers."""

    def _scale(self, X: np.ndarray, weight: np.ndarray) -> None:
        self._centre = np.average(X, axis=0, weights=weight)
        self._unit = _positive(np.sqrt(np.average((X - self._centre) ** 2, axis=0, weights=weight)), self._centre)

    def _standardised(self, X: np.ndarray) -> Float[np.ndarray, "n d"]:
        """With a column of ones before."""
        return np.column_stack([np.ones(len(X)), (X - self._centre) / self._unit])

    def _table(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[Table, np.ndarray]:
        """Rows as the model has them, padded."""
        x = self._standardised(X)
        rows = next((most for most in _ROWS if most >= len(x)), len(x))
        wide = np.zeros((rows, _columns(x.shape[1])))
        wide[: len(x), : x.shape[1]] = x
        tall = np.concatenate([y, np.full(rows - len(y), y[0])])
        return Table(jnp.asarray(wide), jnp.asarray(tall)), np.concatenate([weight, np.zeros(rows - len(weight))])

    def _sds(self) -> np.ndarray:
        """Of the prior; those of the columns of zeros are 1."""
        sds = np.ones(_columns(self.n_features_in_ + 1))
        sds[: self.n_features_in_ + 1] = self.prior_sd
        sds[0] = max(_INTERCEPT_SD, self.prior_sd)
        return sds

    def _keep(self, stream: Stream) -> None:
        """Sets what a fit is known by."""
        if stream.result is not None and stream.result.status is not Status.CONVERGED:
            warnings.warn(f"The fit has not converged. {stream.result.message}", ConvergenceWarning, stacklevel=3)
        self.stream_ = dataclasses.replace(stream, result=None)
        size = self.n_features_in_ + 1
        assert stream.state is not None
        mean, spread, noise = self._coefficients(stream.state.posterior)
        self._mean, self._spread, self._noise = mean[:size], spread[:size, :size], noise
        turn = np.diag(1 / np.concatenate([[1.0], self._unit]))
        turn[0, 1:] = -self._centre / self._unit
        scale, shift = self._response_scale()
        own = scale * turn @ self._mean
        self.intercept_, self.coef_ = own[0] + shift, own[1:]
        self.covariance_ = scale**2 * noise * turn @ self._spread @ turn.T

    def _response_scale(self) -> tuple[float, float]:
        """The sd and the mean by which responses were standardised."""
        return 1.0, 0.0


class PartitionedClassifier(ClassifierMixin, _Partitioned):
    """Bayesian logistic regression of two classes with full covariance.

    Fitted, it has `classes_`, `coef_`, `intercept_`, `covariance_` (of the intercept, then the coefficients) and
    `stream_`, the posterior with a factor for every site and batch.
    """

    _numeric = False

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One more batch, which is one more factor; `classes` are needed if the first batch has not both of them."""
        return self._partial_fit(X, y, classes, sample_weight)

    def decision_function(self, X: Any) -> Float[np.ndarray, " n"]:
        """The predictor whose logistic function is the probability of the second class."""
        mean, variance = self._predictor(X)
        return mean / np.sqrt(1 + np.pi * variance / 8)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n 2"]:
        """The posterior probability of each class, by the probit approximation."""
        found = 1 / (1 + np.exp(-self.decision_function(X)))
        return np.column_stack([1 - found, found])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class."""
        second = self.decision_function(X) > 0
        return self.classes_[second.astype(int)]

    def _begun(self) -> Stream:
        prior = FullGaussian.from_mean_covariance(np.zeros(len(self._sds())), np.diag(self._sds() ** 2))
        return Stream(_NEWTON, LogisticRegression(), prior, draws=0)

    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray, float]:
        return _gaussian(q)

    def _keep(self, stream: Stream) -> None:
        super()._keep(stream)
        self.coef_, self.intercept_ = self.coef_[None], np.array([self.intercept_])

    def _first_targets(self, y: np.ndarray, classes: Any, weight: np.ndarray) -> np.ndarray:
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if classes is None and kind not in ("binary", "multiclass"):
            raise DataError(f"Unknown label type: {kind}. Only binary classification is supported: give two labels.")
        found = np.unique(y[weight > 0]) if classes is None else np.unique(classes)
        if len(found) > 2:
            raise DataError(f"Only binary classification is supported. The type of the target is {kind}.")
        if len(found) < 2:
            raise DataError("The rows have one class only: give rows of both classes.")
        self.classes_ = found
        return self._targets(y, weight)

    def _targets(self, y: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        unknown = ~np.isin(y, self.classes_) & (np.ones(len(y), bool) if weight is None else weight > 0)
        if unknown.any():
            raise DataError(f"The label {y[unknown][0]!r:.60} is none of the classes: give those of the first rows.")
        return (np.asarray(y) == self.classes_[1]).astype(float)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class _Regressor(RegressorMixin, _Partitioned):
    """Regressors, whose predictions have a standard deviation."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One more batch, which is one more factor."""
        return self._partial_fit(X, y, None, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The posterior mean of the response; with `return_std` also the sd of a new response."""
        mean, sd = self._moments(*self._predictor(X))
        return (mean, sd) if return_std else mean

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
            return *_gaussian(q.gaussian)[:2], noise

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
        self._spread_of_y = float(_positive(spread, self._middle_of_y))
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
        return _gaussian(q)

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


_INTERCEPT_SD = 10.0
_SHAPE, _RATE = 1.0, 1e-3
"""Of the noise's precision: weak, in units of the response's variance."""


def _gaussian(q: Family) -> tuple[np.ndarray, np.ndarray, float]:
    assert isinstance(q, FullGaussian)
    with enable_x64(True):
        return np.asarray(q.mean), np.asarray(q.covariance), 1.0


def _columns(size: int) -> int:
    """To how many columns so many are padded."""
    return _COLUMNS << max(0, math.ceil(math.log2(size / _COLUMNS)))


def _positive(spread: np.ndarray, around: Any) -> np.ndarray:
    """Standard deviations; 1 where what is there is rounding."""
    return np.where(spread > 1e-12 * (1 + np.abs(around)), spread, 1.0)


def _texts(sites: Any, rows: int) -> np.ndarray:
    """The name of each row's site."""
    names = np.asarray(sites)
    if names.shape != (rows,):
        raise DataError(f"The sites have the shape {names.shape}: give one name for each of {rows} rows.")
    return names.astype(str)
