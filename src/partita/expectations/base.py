"""How is E_q[log p(y | θ)] computed? Each member gives the expected log density of every row."""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from partita.errors import SettingsError
from partita.expectations.capabilities import Density, Rows
from partita.expectations.estimate import Estimate
from partita.families import Family

__all__ = ["EVALUATION_DRAWS", "Derivatives", "Expectation"]

EVALUATION_DRAWS = 16
"""The fewest draws by which a free energy is estimated: its standard error is then within 18% of the right one."""


class Derivatives(NamedTuple):
    """Derivatives of each row's expected log density in the mean and the variance of its predictor."""

    mean: Rows
    variance: Rows
    mean_mean: Rows
    mean_variance: Rows
    variance_variance: Rows


class Expectation(eqx.Module):
    """A rule for E_q[log p(y_n | θ)], row by row."""

    deterministic: ClassVar[bool] = True
    """Whether the answer does not depend on the key."""
    draws_predictors: ClassVar[bool] = False
    """Whether it draws each row's predictor instead of θ; predictions then do as well."""
    bounds: ClassVar[bool] = False
    """Whether it is a lower bound on the expectation, rather than the expectation itself."""

    @abc.abstractmethod
    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        """The expected log density of each row; `key` is used by the stochastic members only."""

    def total(self, model: Density, q: Family, data: PyTree, weights: Rows, key: Key[Array, ""]) -> Float[Array, ""]:
        """The weighted sum of the rows' expected log densities."""
        return weights @ self.rows(model, q, data, key)

    @property
    def evaluation_draws(self) -> int:
        """By how many draws `estimate` estimates the total; 0 if it is computed."""
        return 0 if self.deterministic else EVALUATION_DRAWS

    def estimate(self, model: Density, q: Family, data: PyTree, weights: Rows, key: Key[Array, ""]) -> Estimate:
        """The total with its standard error. Of another key than a solver's, it is not biased by what that climbed."""
        if self.deterministic:
            return Estimate.computed(self.total(model, q, data, weights, key))

        def total(index: Int[Array, ""]) -> Float[Array, ""]:
            return self.total(model, q, data, weights, jax.random.fold_in(key, index))

        return Estimate(jax.lax.map(total, jnp.arange(self.evaluation_draws)), jnp.zeros((), weights.dtype))

    def at_predictor(self, model: Density, mean: Rows, variance: Rows, data: PyTree) -> Rows:
        """The same, given mean and variance of each row's Gaussian linear predictor."""
        raise SettingsError(
            f"{type(self).__name__} does not work on the linear predictor: "
            "use GaussHermite, or Analytic where there is a closed form."
        )

    def derivatives(self, model: Density, mean: Rows, variance: Rows, data: PyTree) -> Derivatives:
        """First and second derivatives of `at_predictor`, row by row."""

        def slopes(mean: Array, variance: Array) -> tuple[Array, Array]:
            total = lambda m, v: jnp.sum(self.at_predictor(model, m, v, data))  # noqa: E731
            return jax.grad(total, argnums=(0, 1))(mean, variance)

        ones = jnp.ones_like(mean)
        (by_mean, by_variance), (mean_mean, mean_variance) = jax.jvp(lambda m: slopes(m, variance), (mean,), (ones,))
        _, (_, variance_variance) = jax.jvp(lambda v: slopes(mean, v), (variance,), (ones,))
        return Derivatives(by_mean, by_variance, mean_mean, mean_variance, variance_variance)
