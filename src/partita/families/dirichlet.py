"""The Dirichlet family: probabilities of categories."""

from typing import Self

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, ArrayLike, Bool, Float, Key

from partita.errors import InputError
from partita.families.base import Family, positive


class Dirichlet(Family):
    """Vectors of probabilities, Π θ_k^(α_k − 1); axes before the last hold independent ones.

    The natural parameter is `exponent` = α − 1, with statistics T(θ) = log θ. Densities are those of all
    probabilities but one of a vector.
    """

    exponent: Float[Array, "... k"]

    @classmethod
    def from_concentration(cls, concentration: ArrayLike) -> Self:
        """The member with these α, one per category."""
        concentration = positive(concentration, "concentration of a Dirichlet")
        if concentration.ndim == 0 or concentration.shape[-1] < 2:
            raise InputError(f"A Dirichlet has two categories at least, not the shape {concentration.shape}.")
        return cls(concentration - 1)

    @property
    def concentration(self) -> Float[Array, "... k"]:
        """α; 0 or below where improper."""
        return self.exponent + 1

    @property
    def expected_log(self) -> Float[Array, "... k"]:
        """E[log θ]."""
        alpha = self.concentration
        return jsp.special.digamma(alpha) - jsp.special.digamma(jnp.sum(alpha, axis=-1, keepdims=True))

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
        """Solves with the Fisher matrix diag ψ′(α) − ψ′(Σα) 11ᵀ, by Sherman and Morrison's formula."""
        alpha = self.concentration
        each = 1 / jsp.special.polygamma(1, alpha)
        whole = jsp.special.polygamma(1, jnp.sum(alpha, axis=-1, keepdims=True))
        common = jnp.sum(gradient * each, axis=-1, keepdims=True) / (1 / whole - jnp.sum(each, axis=-1, keepdims=True))
        return type(self)(each * (gradient + common))

    def entropy(self) -> Float[Array, ""]:
        return self.log_normaliser() - jnp.sum(self.exponent * self.expected_log)

    def kl(self, other: Self) -> Float[Array, ""]:
        change = self.exponent - other.exponent
        return other.log_normaliser() - self.log_normaliser() + jnp.sum(change * self.expected_log)

    def moments(self) -> tuple[Float[Array, "... k"], Float[Array, "... k"]]:
        total = jnp.sum(self.concentration, axis=-1, keepdims=True)
        mean = self.concentration / total
        return mean, jnp.sqrt(mean * (1 - mean) / (total + 1))
