"""How is E_q[log p(y | θ)] computed? Each member gives the expected log density of every row."""

import abc
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.errors import InputError
from partita.families import Family

if TYPE_CHECKING:
    from partita.models.base import Model


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
    def rows(self, model: "Model", q: Family, data: PyTree, key: Key[Array, ""]) -> Float[Array, " n"]:
        """The expected log density of each row; `key` is used by the stochastic members only."""

    @property
    def deterministic(self) -> bool:
        """Whether the answer does not depend on the key."""
        return True

    def at_predictor(
        self, model: "Model", mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Float[Array, " n"]:
        """The same, given mean and variance of each row's Gaussian linear predictor."""
        raise InputError(
            f"{type(self).__name__} does not work on the linear predictor: "
            "use GaussHermite, or Analytic where there is a closed form."
        )

    def derivatives(
        self, model: "Model", mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Derivatives:
        """First and second derivatives of `at_predictor`, row by row."""

        def slopes(mean: Array, variance: Array) -> tuple[Array, Array]:
            total = lambda m, v: jnp.sum(self.at_predictor(model, m, v, data))  # noqa: E731
            return jax.grad(total, argnums=(0, 1))(mean, variance)

        ones = jnp.ones_like(mean)
        (by_mean, by_variance), (mean_mean, mean_variance) = jax.jvp(lambda m: slopes(m, variance), (mean,), (ones,))
        _, (_, variance_variance) = jax.jvp(lambda v: slopes(mean, v), (variance,), (ones,))
        return Derivatives(by_mean, by_variance, mean_mean, mean_variance, variance_variance)


class Analytic(Expectation):
    """A closed form that the model supplies."""

    def rows(self, model: "Model", q: Family, data: PyTree, key: Key[Array, ""]) -> Float[Array, " n"]:
        return self.at_predictor(model, *model.predictor(q, data), data)

    def at_predictor(
        self, model: "Model", mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Float[Array, " n"]:
        return model.expected_log_density(mean, variance, data)


class GaussHermite(Expectation):
    """Quadrature over the one-dimensional Gaussian linear predictor of each row.

    Its derivatives are those of the sum itself, so that value and gradient agree to rounding. For a log-concave
    likelihood the derivative in the variance is never positive, whatever the number of points.
    """

    points: int = eqx.field(static=True, default=20)

    def rows(self, model: "Model", q: Family, data: PyTree, key: Key[Array, ""]) -> Float[Array, " n"]:
        return self.at_predictor(model, *model.predictor(q, data), data)

    def at_predictor(
        self, model: "Model", mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Float[Array, " n"]:
        nodes, masses = self._nodes(mean.dtype)
        grid = mean[:, None] + root(variance)[:, None] * nodes
        return jnp.sum(model.log_density_at(grid, data) * masses, axis=1)

    def derivatives(
        self, model: "Model", mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Derivatives:
        """From the derivatives of log p(y | f) at the nodes, which is cheaper than differentiating the sum twice."""
        nodes, masses = self._nodes(mean.dtype)
        grid = mean[:, None] + root(variance)[:, None] * nodes

        def slope(f: Array) -> Array:
            return jax.jvp(lambda g: model.log_density_at(g, data), (f,), (jnp.ones_like(f),))[1]

        first, second = jax.jvp(slope, (grid,), (jnp.ones_like(grid),))
        by_mean, by_sd = (first @ jnp.stack([masses, masses * nodes], axis=1)).T
        powers = jnp.stack([masses, masses * nodes, masses * nodes**2], axis=1)
        mean_mean, mean_sd, sd_sd = (second @ powers).T
        # the variance of a row of zeros is 0, and so are the columns that its derivatives are multiplied by
        positive = jnp.where(variance > 0, variance, 1)
        by_variance = by_sd / (2 * root(positive))
        mean_variance = mean_sd / (2 * root(positive))
        return Derivatives(by_mean, by_variance, mean_mean, mean_variance, (sd_sd - 2 * by_variance) / (4 * positive))

    def _nodes(self, dtype: np.dtype) -> tuple[Array, Array]:
        nodes, masses = np.polynomial.hermite_e.hermegauss(self.points)
        return jnp.asarray(nodes, dtype), jnp.asarray(masses / masses.sum(), dtype)


class MonteCarlo(Expectation):
    """Reparameterised draws of θ, shared by all rows; works with any model and any family."""

    samples: int = eqx.field(static=True, default=10)

    @property
    def deterministic(self) -> bool:
        return False

    def rows(self, model: "Model", q: Family, data: PyTree, key: Key[Array, ""]) -> Float[Array, " n"]:
        draws = q.sample(key, (self.samples,))
        each_row = jax.vmap(model.log_density, in_axes=(None, 0))
        return jnp.mean(jax.vmap(each_row, in_axes=(0, None))(draws, data), axis=0)


class LocalReparameterisation(Expectation):
    """Draws of the predictor of each row instead of θ: independent across rows, so of lower variance."""

    samples: int = eqx.field(static=True, default=10)

    @property
    def deterministic(self) -> bool:
        return False

    def rows(self, model: "Model", q: Family, data: PyTree, key: Key[Array, ""]) -> Float[Array, " n"]:
        draws = model.sample_predictor(q, data, key, self.samples)
        return jnp.mean(jax.vmap(lambda f: model.log_density_at(f, data))(draws), axis=0)


def root(variance: Float[Array, " n"]) -> Float[Array, " n"]:
    """√variance, with a derivative also at 0, where a row of zeros has its predictor."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)
