"""A custom family: independent positive parameters, each with density rate · exp(−rate · θ)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from partita import Family


class Exponential(Family):
    """Its leaves are the natural parameters, and products, KL and natural gradients follow from the methods here."""

    minus_rate: Float[Array, " d"]

    def statistics(self, theta):
        return (theta,)

    def log_normaliser(self):
        return -jnp.sum(jnp.log(-self.minus_rate))

    def is_proper(self):
        return self.is_finite() & jnp.all(self.minus_rate < 0)

    def sample(self, key, shape=()):
        return jax.random.exponential(key, shape + self.minus_rate.shape) / -self.minus_rate

    def standard(self):
        return -self.minus_rate

    def with_standard(self, standard):
        return type(self)(-standard)

    def unconstrained(self):
        return jnp.log(self.standard())

    def with_unconstrained(self, unconstrained):
        return self.with_standard(jnp.exp(unconstrained))
