"""A custom likelihood: waiting times y > 0 that are exponential with rate exp(xᵀθ)."""

import jax.numpy as jnp

from partita.expectations import Expectation, GaussHermite
from partita.models.base import check_table, check_values
from partita.models.glm import GeneralisedLinear


class WaitingTimes(GeneralisedLinear):
    """A likelihood without a linear predictor f = xᵀθ subclasses `Model`, and has `log_density` of one row instead."""

    expectation: Expectation = GaussHermite()

    def log_link_density(self, f, y):
        return f - y * jnp.exp(f)

    def mean_response(self, f):
        return jnp.exp(-f)

    def check(self, data):
        check_table(data)
        check_values(data.y, data.y > 0, "give times above 0")
