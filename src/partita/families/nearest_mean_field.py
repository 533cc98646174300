"""Mean field by way of full covariance: few rounds, and the nearest member with independent parameters."""

from typing import Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from partita.families.base import Numbers, Theta
from partita.families.full_gaussian import FullGaussian
from partita.families.gaussian import MeanFieldGaussian

__all__ = ["NearestMeanField"]


class NearestMeanField(FullGaussian):
    """A Gaussian with full covariance, of which a run returns N(m, diag(Λ)⁻¹).

    That is the member with independent parameters nearest in KL(· ‖ q). Where q is the exact posterior it is the
    optimum of mean field itself, and near to it where q is the best Gaussian. Rounds of mean-field runs crawl along
    directions in which columns are correlated; those of full covariance do not, for messages of D(D + 3)/2 numbers,
    of which those of mean field have 2D.
    """

    @classmethod
    def from_mean_sd(cls, mean: Theta, sd: Numbers) -> Self:
        """The member with this mean and standard deviation of each parameter, a vector, or one for all."""
        found = MeanFieldGaussian.from_mean_sd(mean, sd)
        start = cls.standard_normal(found.mean)
        precision, shift = map(start.layout.ravel, (found.precision, found.precision_mean))
        return eqx.tree_at(lambda q: (q.precision_mean, q.precision), start, (shift, jnp.diag(precision)))

    @property
    def returned(self) -> MeanFieldGaussian:
        return self.within(self)

    def within(self, factor: Self) -> MeanFieldGaussian:
        """The gradient of E[log t] at N(m, diag(Λ)⁻¹), a member: precision diag(P) and Λm of b − Pm + diag(P) m."""
        mean, diagonal = self._vector_mean(), jnp.diagonal(factor.precision)
        shift = factor.precision_mean - factor.precision @ mean + diagonal * mean
        return MeanFieldGaussian(self.layout.unravel(shift), self.layout.unravel(diagonal))

    def nearest(self) -> Self:
        diagonal = jnp.diagonal(self.precision)
        return type(self)(diagonal * self._vector_mean(), jnp.diag(diagonal), self.layout)

    @property
    def gap(self) -> Float[Array, ""]:
        return self.nearest().kl(self)
