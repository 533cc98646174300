"""A mixture of Gaussians as a posterior."""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from partita.errors import SettingsError
from partita.families.base import Numbers, finite, positive
from partita.families.form import Form
from partita.inputs import check_whole

__all__ = ["Mixture"]

_LARGEST = 1_000
"""The largest number of parameters, and of components, each of which has a covariance matrix."""


class Mixture(Form):
    """Σ_c π_c N(θ; m_c, L_c L_cᵀ), with full covariances. One component is a Gaussian.

    Every component has the same noise: its points are m_c + L_c ε with masses π_c / S, so that no draw has to choose a
    component, and sums over points are differentiable in π.
    """

    logits: Float[Array, " c"]
    means: Float[Array, "c d"]
    roots: Float[Array, "c d d"]
    """L_c below the diagonal, and the logarithm of its diagonal; what is above is ignored."""

    @classmethod
    def from_means_sd(cls, means: Numbers, sd: float = 1.0) -> Self:
        """Components of equal masses with these means, a row for each, and one standard deviation."""
        rows = finite(means, "means")
        if rows.ndim != 2 or not rows.size:
            raise SettingsError(f"The means have the shape {rows.shape}: give a matrix with a row for each component.")
        number, size = rows.shape
        spread = jnp.log(positive(sd, "standard deviation").astype(rows.dtype))
        root = spread * jnp.eye(size, dtype=rows.dtype)
        return cls(jnp.zeros(number, rows.dtype), rows, jnp.broadcast_to(root, (number, size, size)))

    @classmethod
    def normal(cls, size: int, components: int, sd: float = 1.0) -> Self:
        """N(0, sd² I) as a mixture of so many components, which are all the same: a prior."""
        check_whole("number of parameters", size, most=_LARGEST)
        check_whole("number of components", components, most=_LARGEST)
        return cls.from_means_sd(jnp.zeros((components, size)), sd)

    @property
    def dimension(self) -> int:
        return self.means.shape[-1]

    def log_prob(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        matrices, log_determinants = _lower(self.roots)
        noise = jnp.einsum("cij,cj->ci", _inverse(matrices), theta - self.means)
        each = _standard_log_density(noise) - log_determinants
        return jax.nn.logsumexp(jax.nn.log_softmax(self.logits) + each)

    def points(self, noise: Float[Array, "s d"]) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        theta = self.means[:, None] + jnp.einsum("sj,cij->csi", noise, _lower(self.roots)[0])
        masses = jnp.repeat(jax.nn.softmax(self.logits) / len(noise), len(noise))
        return theta.reshape(-1, self.dimension), masses

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d"]:
        which, noise = jax.random.split(key)
        chosen = jax.random.categorical(which, self.logits, shape=shape)
        drawn = jax.random.normal(noise, (*shape, self.dimension), self.means.dtype)
        return self.means[chosen] + jnp.einsum("...j,...ij->...i", drawn, _lower(self.roots)[0][chosen])


def _standard_log_density(noise: Float[Array, "... d"]) -> Float[Array, "..."]:
    """log N(noise; 0, I)."""
    return -0.5 * jnp.sum(jnp.square(noise), -1) - 0.5 * noise.shape[-1] * np.log(2 * np.pi)


def _lower(raw: Float[Array, "... d d"]) -> tuple[Float[Array, "... d d"], Float[Array, "..."]]:
    """A lower triangular matrix, with the exponentials of the diagonal on it, and its log determinant."""
    diagonal = jnp.diagonal(raw, axis1=-2, axis2=-1)
    below = jnp.tril(raw, -1) + jnp.exp(diagonal)[..., None] * jnp.eye(raw.shape[-1], dtype=raw.dtype)
    return below, jnp.sum(diagonal, -1)


def _inverse(matrices: Float[Array, "... d d"]) -> Float[Array, "... d d"]:
    """The inverses of lower triangular matrices, once for all values of θ; solving for each takes far longer."""
    identity = jnp.broadcast_to(jnp.eye(matrices.shape[-1], dtype=matrices.dtype), matrices.shape)
    return jax.scipy.linalg.solve_triangular(matrices, identity, lower=True)
