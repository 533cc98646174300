"""Classification: logistic regression of two classes, and softmax regression of more."""

from typing import Any, Self

import numpy as np
from jaxtyping import Float
from scipy import special
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import type_of_target

from partita.errors import DataError
from partita.estimators.base import TOLERANCE, Partitioned, gaussian_moments
from partita.expectations.predictors import normal_nodes
from partita.families import Family, FullGaussian
from partita.local.solvers import ModeFixedPoint, Newton
from partita.methods import sequential
from partita.models import LogisticRegression
from partita.models.classes import MOST_CLASSES, MultinomialRegression
from partita.stream import Stream

__all__ = ["PartitionedClassifier"]

_NEWTON = sequential(Newton(tolerance=TOLERANCE))
_FIXED_POINT = sequential(ModeFixedPoint(tolerance=TOLERANCE))
_NODES = 256
"""How many nodes a quadrature over the linear predictors of a row has at most."""
_PIECE = 1024
"""How many rows are predicted at once, so that memory does not grow with rows times nodes."""


class PartitionedClassifier(ClassifierMixin, Partitioned):
    """Bayesian logistic regression of two classes, or softmax regression of more, with full covariance.

    `prior_sd` is that of the difference of coefficients between any two classes, so that their order has no influence.

    Fitted, it has `classes_`, `coef_`, `intercept_`, `covariance_` and `stream_`, the posterior with a factor for
    every site and batch. Of two classes `coef_` has one row, for the second; of more a row for each, which sum to zero.
    `covariance_` is that of the first row's intercept and coefficients, then of the next row's.
    """

    _numeric = False

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One more batch, which is one more factor; `classes` are needed if the first batch has not all of them."""
        return self._partial_fit(X, y, classes, sample_weight)

    def decision_function(self, X: Any) -> Float[np.ndarray, "n ..."]:
        """The logarithm of the odds of the second of two classes; of more, the logarithm of each one's probability."""
        found = self._log_probabilities(X)
        return found if len(self.classes_) > 2 else found[:, 1] - found[:, 0]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n k"]:
        """The posterior probability of each class, over the posterior of the coefficients."""
        return np.exp(self._log_probabilities(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        found = self._log_probabilities(X)
        return self.classes_[np.argmax(found, axis=1)]

    def _log_probabilities(self, X: Any) -> Float[np.ndarray, "n k"]:
        """By quadrature over the linear predictors, some rows at a time."""
        mean, covariance = self._predictors(X)
        nodes, masses = normal_nodes(mean.shape[1], _NODES)
        pieces = (slice(start, start + _PIECE) for start in range(0, len(mean), _PIECE))
        return np.concatenate([_expected(mean[piece], covariance[piece], nodes, masses) for piece in pieces])

    def _begun(self) -> Stream:
        classes, sds = len(self.classes_), self._sds()
        between = (np.eye(classes - 1) + 1) / 2
        prior = FullGaussian.from_mean_covariance(np.zeros((classes - 1) * len(sds)), np.kron(between, np.diag(sds**2)))
        if classes == 2:
            return Stream(_NEWTON, LogisticRegression(), prior, draws=0)
        return Stream(_FIXED_POINT, MultinomialRegression(classes=classes), prior, draws=0)

    @property
    def _reported(self) -> Float[np.ndarray, "t p"]:
        """Coefficients less their mean over classes, that of the first being zero; of two classes the difference."""
        classes = len(self.classes_)
        return np.eye(1) if classes == 2 else np.eye(classes)[:, 1:] - 1 / classes

    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray, float]:
        return gaussian_moments(q)

    def _first_targets(self, y: np.ndarray, classes: Any, weight: np.ndarray) -> np.ndarray:
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if classes is None and kind not in ("binary", "multiclass"):
            raise DataError(f"Unknown label type: {kind}. Classes are labels: give one for each row.")
        found = np.unique(y[weight > 0]) if classes is None else np.unique(classes)
        if len(found) < 2:
            raise DataError("The rows have one class only: give rows of two or more.")
        if len(found) > MOST_CLASSES:
            raise DataError(f"There are {len(found)} classes, where at most {MOST_CLASSES} are possible: join some.")
        self.classes_ = found
        return self._targets(y, weight)

    def _targets(self, y: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        unknown = ~np.isin(y, self.classes_)
        if (wrong := unknown & (np.ones(len(y), bool) if weight is None else weight > 0)).any():
            raise DataError(f"The label {y[wrong][0]!r:.60} is none of the classes: give those of the first rows.")
        return np.searchsorted(self.classes_, np.where(unknown, self.classes_[0], y)).astype(float)


def _expected(
    mean: Float[np.ndarray, "n p"],
    covariance: Float[np.ndarray, "n p p"],
    nodes: Float[np.ndarray, "p s"],
    masses: Float[np.ndarray, " s"],
) -> Float[np.ndarray, "n k"]:
    """The logarithm of each class's expected probability, where the predictor of the first class is 0.

    Nodes lie along the axes of the covariance of all classes' predictors less their mean, whatever their order.
    """
    classes = mean.shape[1] + 1
    centred = (np.eye(classes) - 1 / classes)[:, 1:]
    values, vectors = np.linalg.eigh(centred @ covariance @ centred.T)
    f = (mean @ centred.T)[:, :, None] + (vectors * np.sqrt(np.maximum(values, 0))[:, None])[:, :, 1:] @ nodes
    return special.logsumexp(special.log_softmax(f, axis=1), axis=2, b=masses)
