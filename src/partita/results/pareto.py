"""Pareto smoothed importance sampling: weights whose largest are replaced by quantiles of a fitted tail.

Vehtari, Simpson, Gelman, Yao and Gabry (2024); the tail's fit is that of Zhang and Stephens (2009) with a weak prior on
its shape k. Where k is above 0.7 the weights have too heavy a tail to be trusted.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

__all__ = ["TOO_HEAVY", "smoothed"]

TOO_HEAVY = 0.7
"""The shape of the tail above which an importance-weighted mean is not to be trusted."""
_EQUAL = 1e-9
"""Log weights whose tail is no wider than this are equal but for rounding."""
_PRIOR_SHAPE, _PRIOR_WEIGHT, _PRIOR_SCALE = 0.5, 10, 3


def smoothed(log_ratios: Float[np.ndarray, "n s"]) -> tuple[Float[np.ndarray, "n s"], Float[np.ndarray, " n"]]:
    """Log weights that sum to one, and the shape k of their tail, for each row of log ratios of two densities.

    The shape is 0 where all weights are equal.
    """
    count = log_ratios.shape[1]
    size = int(min(count / 5, 3 * np.sqrt(count)))
    weights = log_ratios - log_ratios.max(axis=1, keepdims=True)
    shapes = np.zeros(len(weights))
    order = np.argsort(weights, axis=1)[:, count - size - 1 :]
    largest = np.take_along_axis(weights, order, axis=1)
    cutoff, tail = np.exp(largest[:, :1]), largest[:, 1:]
    varied = tail[:, -1] - largest[:, 0] > _EQUAL
    if varied.any():
        shape, scale = _tail(np.exp(tail[varied]) - cutoff[varied])
        shapes[varied] = shape
        tail[varied] = _quantiles(shape, scale, cutoff[varied], size)
        np.put_along_axis(weights, order[:, 1:], np.minimum(tail, 0.0), axis=1)
    return weights - logsumexp(weights, axis=1, keepdims=True), shapes


def _tail(excess: Float[np.ndarray, "n m"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Shape and scale of generalised Pareto distributions, of each row of sorted values above their threshold.

    The posterior mean of b = −shape/scale over a grid, whose profile likelihood has a closed form.
    """
    size = excess.shape[1]
    points = 30 + int(np.sqrt(size))
    quarter = excess[:, [int(size / 4 + 0.5) - 1]]
    steps = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    with np.errstate(divide="ignore", invalid="ignore"):
        grid = 1 / excess[:, [-1]] + steps / (_PRIOR_SCALE * quarter)
        shapes = np.stack([np.log1p(-grid[:, [place]] * excess).mean(axis=1) for place in range(points)], axis=1)
        profile = size * (np.log(-grid / shapes) - shapes - 1)
        weights = np.exp(profile - logsumexp(profile, axis=1, keepdims=True))
        weights[weights < 10 * np.finfo(float).eps] = 0.0
        place = np.sum(grid * weights, axis=1) / weights.sum(axis=1)
        shape = np.log1p(-place[:, None] * excess).mean(axis=1)
    scale = -shape / place
    return (size * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (size + _PRIOR_WEIGHT), scale


def _quantiles(
    shape: Float[np.ndarray, " n"], scale: Float[np.ndarray, " n"], cutoff: Float[np.ndarray, "n 1"], size: int
) -> Float[np.ndarray, "n m"]:
    """Logarithms of the expected order statistics of the tails."""
    survival = -np.log1p(-(np.arange(size) + 0.5) / size)
    shape, scale = shape[:, None], scale[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(np.abs(shape) < 1e-12, survival, np.expm1(shape * survival) / shape)
    return np.log(cutoff + scale * excess)
