"""The log-normal family: positive numbers whose logarithms are Gaussian."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from partita.families.base import Theta, positive
from partita.families.gaussian import Gaussian, MeanFieldGaussian
from partita.families.transformed import Transformed

__all__ = ["LogNormal"]


class LogNormal(Transformed):
    """θ = exp(u) with u Gaussian, mean-field or of full covariance: `LogNormal.of(gaussian)`.

    |dθ/du| = exp(u) has a `precision_mean` of 1; standard parameters are mean and variance of log θ.
    """

    kind: ClassVar[type] = Gaussian
    natural: Gaussian

    @classmethod
    def from_median_sd(cls, median: Theta, log_sd: Theta) -> Self:
        """Independent log-normals with this median and this standard deviation of the logarithm."""
        median = jax.tree.map(lambda leaf: positive(leaf, "median of a log-normal"), median)
        spread = jax.tree.map(lambda leaf: positive(leaf, "standard deviation of a logarithm"), log_sd)
        return cls.of(MeanFieldGaussian.from_mean_sd(jax.tree.map(jnp.log, median), spread))

    @staticmethod
    def forward(u: Theta) -> Theta:
        return jax.tree.map(jnp.exp, u)

    @staticmethod
    def backward(theta: Theta) -> Theta:
        return jax.tree.map(jnp.log, theta)

    @staticmethod
    def stretch(like: Any) -> Any:
        ones = jax.tree.map(jnp.ones_like, like.precision_mean)
        return eqx.tree_at(lambda gaussian: gaussian.precision_mean, like.one(), ones)

    def moments(self) -> tuple[Theta, Theta]:
        log_mean, log_sd = self.original.moments()
        mean = jax.tree.map(lambda m, s: jnp.exp(m + s**2 / 2), log_mean, log_sd)
        return mean, jax.tree.map(lambda m, s: m * jnp.sqrt(jnp.expm1(s**2)), mean, log_sd)

    def interval(self, mass: float = 0.95) -> tuple[Theta, Theta]:
        low, high = self.original.interval(mass)
        return self.forward(low), self.forward(high)
