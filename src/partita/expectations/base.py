"""How is E_q[log p(y | θ)] computed? Each member gives the expected log density of every row."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from partita.errors import SettingsError
from partita.expectations.integrand import Integrand
from partita.families import Family


class Derivatives(NamedTuple):
    """Derivatives of each row's expected log density in the mean and the variance of its predictor."""

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]
    mean_mean: Float[Array, " n"]
    mean_variance: Float[Array, " n"]
    variance_variance: Float[Array, " n"]


class Expectation(eqx.Module):
    """A rule for E_q[log p(y_n | θ)], row by row."""

    @abc.abstractmethod
    def rows(self, model: Integrand, q: Family, data: PyTree, key: Key[Array, ""]) -> Float[Array, " n"]:
        """The expected log density of each row; `key` is used by the stochastic members only."""

    def total(
        self, model: Integrand, q: Family, data: PyTree, weights: Float[Array, " n"], key: Key[Array, ""]
    ) -> Float[Array, ""]:
        """The weighted sum of the rows' expected log densities."""
        return weights @ self.rows(model, q, data, key)

    @property
    def deterministic(self) -> bool:
        """Whether the answer does not depend on the key."""
        return True

    @property
    def bounds(self) -> bool:
        """Whether it is a lower bound on the expectation, rather than the expectation itself."""
        return False

    def at_predictor(
        self, model: Integrand, mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Float[Array, " n"]:
        """The same, given mean and variance of each row's Gaussian linear predictor."""
        raise SettingsError(
            f"{type(self).__name__} does not work on the linear predictor: "
            "use GaussHermite, or Analytic where there is a closed form."
        )

    def derivatives(
        self, model: Integrand, mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Derivatives:
        """First and second derivatives of `at_predictor`, row by row."""

        def slopes(mean: Array, variance: Array) -> tuple[Array, Array]:
            total = lambda m, v: jnp.sum(self.at_predictor(model, m, v, data))  # noqa: E731
            return jax.grad(total, argnums=(0, 1))(mean, variance)

        ones = jnp.ones_like(mean)
        (by_mean, by_variance), (mean_mean, mean_variance) = jax.jvp(lambda m: slopes(m, variance), (mean,), (ones,))
        _, (_, variance_variance) = jax.jvp(lambda v: slopes(mean, v), (variance,), (ones,))
        return Derivatives(by_mean, by_variance, mean_mean, mean_variance, variance_variance)
