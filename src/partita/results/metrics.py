"""Metrics of posteriors and of predicted probabilities (an (n, classes) matrix, or class 1's probabilities)."""

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int, Real

from partita.errors import SettingsError
from partita.families import Family, MeanFieldGaussian
from partita.families.capabilities import IndependentGaussian
from partita.inputs import check_number, check_whole, real_array
from partita.numerics.compiled import Compiled

__all__ = [
    "Probabilities",
    "brier",
    "calibration_error",
    "error",
    "negative_log_likelihood",
    "pruned",
    "root_mean_squared_error",
]

Probabilities = Float[ArrayLike, "n c"] | Float[ArrayLike, " n"]


def error(probabilities: Probabilities, y: Real[ArrayLike, " n"]) -> float:
    """The classification error rate."""
    p, y = _checked(probabilities, y)
    return float(np.mean(p.argmax(axis=1) != y))


def negative_log_likelihood(probabilities: Probabilities, y: Real[ArrayLike, " n"]) -> float:
    """The mean of −log p(label); infinite if a label has probability 0."""
    p, y = _checked(probabilities, y)
    with np.errstate(divide="ignore"):
        return float(-np.mean(np.log(p[np.arange(len(y)), y])))


def brier(probabilities: Probabilities, y: Real[ArrayLike, " n"]) -> float:
    """The mean squared distance between the probabilities and the label's indicator, summed over classes."""
    p, y = _checked(probabilities, y)
    return float(np.mean(np.sum((p - np.eye(p.shape[1])[y]) ** 2, axis=1)))


def calibration_error(probabilities: Probabilities, y: Real[ArrayLike, " n"], bins: int = 15) -> float:
    """The expected calibration error: |accuracy − confidence| in equal bins of confidence, weighted by their rows."""
    p, y = _checked(probabilities, y)
    check_whole("number of bins", bins)
    confidence = p.max(axis=1)
    correct = p.argmax(axis=1) == y
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(index, correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(y))


def root_mean_squared_error(predictions: Float[ArrayLike, " n"], y: Real[ArrayLike, " n"]) -> float:
    """The root of the mean squared difference, for a real response."""
    found, true = real_array("predictions", predictions), real_array("responses", y)
    if found.ndim != 1 or found.shape != true.shape or not len(found):
        raise SettingsError(f"There are {_rows(found)} predictions and {_rows(true)} responses: give as many of both.")
    if not (np.isfinite(found).all() and np.isfinite(true).all()):
        raise SettingsError("A prediction or a response is not finite: drop or impute it.")
    return float(np.sqrt(np.mean((found - true) ** 2)))


def pruned(q: Family, prior: Family, threshold: float = 0.1) -> int:
    """The number of pruned parameters, for which KL(q(θ_i) ‖ p(θ_i)) is below the threshold.

    As in `sec:experiments:fmnist`; for mean-field Gaussians.
    """
    check_number("threshold", threshold)
    members = []
    for member in (q, prior):
        if not isinstance(member, IndependentGaussian):
            raise SettingsError(
                "Pruned parameters are defined for independent Gaussians, as MeanFieldGaussian, "
                f"not for {type(member).__name__}."
            )
        members.append(MeanFieldGaussian(ravel_pytree(member.precision_mean)[0], ravel_pytree(member.precision)[0]))
    if len(members[0].precision) != len(members[1].precision):
        raise SettingsError("The posterior and the prior have different numbers of parameters: give those of one run.")
    return int((np.asarray(_divergences(*members)) < threshold).sum())


@Compiled
def _divergences(q: MeanFieldGaussian, prior: MeanFieldGaussian) -> Float[Array, " d"]:
    """KL of each parameter."""
    return jax.vmap(MeanFieldGaussian.kl)(q, prior)


def _checked(
    probabilities: Probabilities, y: Real[ArrayLike, " n"]
) -> tuple[Float[np.ndarray, "n c"], Int[np.ndarray, " n"]]:
    p, labels = real_array("probabilities", probabilities).astype(float), real_array("labels", y)
    p = np.stack([1 - p, p], axis=1) if p.ndim == 1 else p
    if p.ndim != 2 or labels.shape != p.shape[:1] or not p.size:
        raise SettingsError(
            f"There are {_rows(p)} rows of probabilities and {_rows(labels)} labels: give one label per row."
        )
    if not ((p >= 0) & (p <= 1)).all():
        raise SettingsError("The probabilities must be from 0 to 1: give what predict_proba returns.")
    allowed = np.isin(labels, np.arange(p.shape[1]))
    if not allowed.all():
        row = int(np.argmin(allowed))
        raise SettingsError(f"Row {row} has the label {labels[row]:g}: labels are 0 to {p.shape[1] - 1}.")
    return p, labels.astype(int)


def _rows(array: np.ndarray) -> str:
    """How many rows an array has, in words where it is of another kind."""
    return str(len(array)) if array.ndim in (1, 2) else f"an array of shape {array.shape} for"
