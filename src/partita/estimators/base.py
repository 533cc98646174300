"""What estimators for scikit-learn share: sites are factors of one posterior, and so is every further batch.

Rows and columns are padded to few sizes, with rows of weight 0 and columns of zeros whose coefficients keep their
prior, so that a fit of another size seldom compiles anything.
"""

import abc
import dataclasses
import math
import warnings
from typing import Any, Self

import numpy as np
from jax import enable_x64
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from partita.data.shard import federate
from partita.data.table import Table
from partita.errors import DataError
from partita.families import Family, FullGaussian
from partita.inputs import check_finite_number, check_whole
from partita.numerics.arrays import jax_array
from partita.server.monitor import Monitor
from partita.server.run import run
from partita.stream import Stream

__all__ = ["TOLERANCE", "Partitioned", "gaussian_moments", "positive"]

TOLERANCE = 1e-12
"""In nats of KL: predictions do not depend on how rows are divided, to nine digits."""
_ROWS = (512, 4096)
"""The lengths to which few rows are padded; with more of them, computing takes longer than compiling."""
_COLUMNS = 16
"""The least number of columns, which is doubled as often as is needed."""
_INTERCEPT_SD = 10.0
_QUIET = Monitor(every=0, progress=False)


class Partitioned(BaseEstimator, abc.ABC):
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
            result = run(*given, parts, rounds=self.rounds, tolerance=TOLERANCE, monitor=_QUIET)
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
            self._keep(stream.add(table, weights=weights, rounds=self.rounds, tolerance=TOLERANCE))
        return self

    def _predictors(self, X: Any) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, "n p p"]]:
        """Posterior mean and covariance of the linear predictors of every row, given unit noise."""
        check_is_fitted(self)
        X = self._standardised(validate_data(self, X, reset=False, dtype=float))
        return X @ self._mean.T, np.einsum("nd,pdqe,ne->npq", X, self._spread, X, optimize=True)

    @abc.abstractmethod
    def _begun(self) -> Stream:
        """The stream before the first rows."""

    @abc.abstractmethod
    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray, float]:
        """Mean and covariance of the coefficients of standardised columns, the latter over the noise variance."""

    @property
    def _reported(self) -> Float[np.ndarray, "t p"]:
        """What is reported, as weighted sums of the linear predictors, one unless there are classes."""
        return np.eye(1)

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
        self._unit = positive(np.sqrt(np.average((X - self._centre) ** 2, axis=0, weights=weight)), self._centre)

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
        return Table(jax_array(wide), jax_array(tall)), np.concatenate([weight, np.zeros(rows - len(weight))])

    def _sds(self) -> np.ndarray:
        """Of the prior; those of the columns of zeros are 1."""
        sds = np.ones(_columns(self.n_features_in_ + 1))
        sds[: self.n_features_in_ + 1] = self.prior_sd
        sds[0] = max(_INTERCEPT_SD, self.prior_sd)
        return sds

    def _keep(self, stream: Stream) -> None:
        """Sets what a fit is known by; coefficients have a row for each thing that is reported."""
        if stream.result is not None and not stream.result.status.arrived:
            warnings.warn(f"The fit has not converged. {stream.result.message}", ConvergenceWarning, stacklevel=3)
        self.stream_ = dataclasses.replace(stream, result=None)
        size, reported = self.n_features_in_ + 1, self._reported
        assert stream.state is not None
        mean, spread, self._noise = self._coefficients(stream.state.posterior)
        block = (reported.shape[1], _columns(size))
        self._mean = mean.reshape(block)[:, :size]
        self._spread = spread.reshape(*block, *block)[:, :size, :, :size]
        turn = np.diag(1 / np.concatenate([[1.0], self._unit]))
        turn[0, 1:] = -self._centre / self._unit
        scale, shift = self._response_scale()
        own = scale * reported @ self._mean @ turn.T
        self.intercept_, self.coef_ = own[:, 0] + shift, own[:, 1:]
        each = np.kron(reported, scale * turn)
        self.covariance_ = self._noise * each @ self._spread.reshape(each.shape[1], -1) @ each.T

    def _response_scale(self) -> tuple[float, float]:
        """The sd and the mean by which responses were standardised."""
        return 1.0, 0.0


def gaussian_moments(q: Family) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and covariance of coefficients that have no noise."""
    assert isinstance(q, FullGaussian)
    with enable_x64(True):
        return np.asarray(q.mean), np.asarray(q.covariance), 1.0


def positive(spread: np.ndarray, around: Any) -> np.ndarray:
    """Standard deviations; 1 where what is there is rounding."""
    return np.where(spread > 1e-12 * (1 + np.abs(around)), spread, 1.0)


def _columns(size: int) -> int:
    """To how many columns so many are padded."""
    return _COLUMNS << max(0, math.ceil(math.log2(size / _COLUMNS)))


def _texts(sites: Any, rows: int) -> np.ndarray:
    """The name of each row's site."""
    names = np.asarray(sites)
    if names.shape != (rows,):
        raise DataError(f"The sites have the shape {names.shape}: give one name for each of {rows} rows.")
    return names.astype(str)
