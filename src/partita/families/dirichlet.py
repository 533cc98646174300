"""The Dirichlet family: probabilities of categories."""

from typing import Self

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Bool, Float, Key

from partita.errors import SettingsError
from partita.families.base import Family, Numbers, positive
from partita.families.gamma import Gamma
from partita.families.stirling import fisher_excess

__all__ = ["Dirichlet"]


class Dirichlet(Family):
    """Probability vectors with density Π θ_k^(α_k − 1); leading axes are independent vectors.

    The natural parameter is `exponent` = α − 1, with statistics T(θ) = log θ. Densities are with respect to all but one
    of a vector's probabilities. Here α is the concentration, not the power of power EP.
    """

    exponent: Float[Array, "... k"]

    @classmethod
    def from_concentration(cls, concentration: Numbers) -> Self:
        """The member with these α, one per category."""
        concentration = positive(concentration, "concentration of a Dirichlet")
        if concentration.ndim == 0 or concentration.shape[-1] < 2:
            raise SettingsError(f"A Dirichlet needs at least two categories, not the shape {concentration.shape}.")
        return cls(concentration - 1)

    @property
    def concentration(self) -> Float[Array, "... k"]:
        """α; 0 or below where improper."""
        return self.exponent + 1

    @property
    def expected_log(self) -> Float[Array, "... k"]:
        """E[log θ]."""
        parts, total = self._gammas()
        return parts.expected_log - total.expected_log

    def statistics(self, theta: Float[Array, "... k"]) -> Float[Array, "... k"]:
        return jnp.log(theta)

    def log_normaliser(self) -> Float[Array, ""]:
        alpha = self.concentration
        each = jnp.where(alpha > 0, jsp.special.gammaln(alpha), jnp.nan)
        return jnp.sum(each) - jnp.sum(jsp.special.gammaln(jnp.sum(alpha, axis=-1)))

    def is_proper(self) -> Bool[Array, ""]:
        return self.is_finite() & jnp.all(self.concentration > 0)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... k"]:
        alpha = self.concentration
        return jax.nn.softmax(jax.random.loggamma(key, alpha, shape + alpha.shape, alpha.dtype), axis=-1)

    def standard(self) -> Float[Array, "... k"]:
        return self.concentration

    def with_standard(self, standard: Float[Array, "... k"]) -> Self:
        return type(self)(standard - 1)

    def unconstrained(self) -> Float[Array, "... k"]:
        return jnp.log(self.concentration)

    def with_unconstrained(self, unconstrained: Float[Array, "... k"]) -> Self:
        return type(self)(jnp.exp(unconstrained) - 1)

    def mean_parameters(self) -> Float[Array, "... k"]:
        return self.expected_log

    def pull_back(self, gradient: Float[Array, "... k"]) -> Self:
        """Solves with the Fisher matrix diag ψ′(α) − ψ′(Σα) 11ᵀ, by Sherman and Morrison's formula.

        Written with the differences of 1/ψ′(α) from α, so that the large terms cancel analytically.
        """
        alpha, total = (gamma.shape for gamma in self._gammas())
        excess, of_total = fisher_excess(alpha), fisher_excess(total)
        each = alpha / (1 + excess)
        left = jnp.sum(excess * each, axis=-1, keepdims=True) - of_total * total / (1 + of_total)
        common = jnp.sum(gradient * each, axis=-1, keepdims=True) / left
        return type(self)(each * (gradient + common))

    def entropy(self) -> Float[Array, ""]:
        parts, total = self._gammas()
        volume = (self.exponent.shape[-1] - 1) * jnp.sum(total.expected_log)
        return parts.entropy() - total.entropy() - volume

    def kl(self, other: Self) -> Float[Array, ""]:
        (parts, total), (their_parts, their_total) = self._gammas(), other._gammas()
        return parts.kl(their_parts) - total.kl(their_total)

    def _gammas(self) -> tuple[Gamma, Gamma]:
        """Gammas with shapes α, and their sum; the gammas divided by the sum have this Dirichlet distribution."""
        total = jnp.sum(self.concentration, axis=-1, keepdims=True)
        return Gamma(self.exponent, jnp.broadcast_to(total, self.exponent.shape)), Gamma(total - 1, total)

    def moments(self) -> tuple[Float[Array, "... k"], Float[Array, "... k"]]:
        total = jnp.sum(self.concentration, axis=-1, keepdims=True)
        mean = self.concentration / total
        return mean, jnp.sqrt(mean * (1 - mean) / (total + 1))
