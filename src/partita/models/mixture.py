"""A Gaussian mixture; each row has a latent variable, its component."""

from typing import TypedDict

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, Float, Real

from partita.errors import DataError
from partita.expectations import Assignments, Expectation
from partita.families import Family
from partita.families.capabilities import Positive, Probabilities, Projected
from partita.models.base import Model, check_finite

__all__ = ["Components", "GaussianMixture"]


class Components(TypedDict):
    """θ: probabilities, means and precisions of the components."""

    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    precisions: Float[Array, "k d"]


class GaussianMixture(Model):
    """x ~ Σ_k π_k N(μ_k, diag(1/τ_k)) with θ = {"weights": π, "means": μ, "precisions": τ}; the data are a matrix x.

    q is `Product(weights=Dirichlet(…), means=…, precisions=Gamma(…))`, with Gaussian means over an array (k, d). Use a
    `start` that breaks the symmetry of the components; identical components stay identical.
    """

    expectation: Expectation = Assignments()

    def check(self, data: Real[np.ndarray, "n d"]) -> None:
        if np.ndim(data) != 2:
            raise DataError("the data are not a matrix: give rows of an array of two dimensions")
        check_finite(data)

    def log_density(self, theta: Components, datum: Float[Array, " d"]) -> Float[Array, ""]:
        each = jsp.stats.norm.logpdf(datum, theta["means"], theta["precisions"] ** -0.5)
        return jax.nn.logsumexp(jnp.log(theta["weights"]) + jnp.sum(each, axis=-1))

    def expected_joint_log_densities(self, q: Family, data: Float[Array, "n d"]) -> Float[Array, "n k"]:
        weights, means, precisions = q.part("weights"), q.part("means"), q.part("precisions")
        if not (
            isinstance(weights, Probabilities) and isinstance(means, Projected) and isinstance(precisions, Positive)
        ):
            raise DataError(
                "A mixture needs a Product of a Dirichlet named weights, a Gaussian named means and a Gamma named "
                "precisions: use another expectation, such as MonteCarlo, with other families."
            )
        mean, sd = means.moments()
        square = (data[:, None] - mean) ** 2 + sd**2
        each = precisions.expected_log - jnp.log(2 * jnp.pi) - precisions.mean * square
        return weights.expected_log + jnp.sum(each, axis=-1) / 2

    def responsibilities(self, q: Family, data: Float[Array, "n d"]) -> Float[Array, "n k"]:
        """The responsibilities: the probability of each component for each row."""
        return jax.nn.softmax(self.expected_joint_log_densities(q, data), axis=1)
