"""Continuous responses whose spread is inferred with the coefficients: normal, Student-t, gamma, beta and Weibull."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, Float, Key

from partita.data.table import OffsetTable, Table, Times
from partita.expectations import Analytic, Expectation
from partita.expectations.capabilities import Rows
from partita.families import Family
from partita.families.stirling import log_gamma
from partita.models.base import check_values
from partita.models.vector import VectorRegression

__all__ = ["BetaRegression", "GammaRegression", "InferredNoiseRegression", "StudentTRegression", "WeibullRegression"]


class InferredNoiseRegression(VectorRegression):
    """y ~ N(f, noise²); the constant is log noise. The expectation has a closed form."""

    expectation: Expectation = Analytic()

    @property
    def constants(self) -> int:
        return 1

    def check_response(self, y: np.ndarray) -> None:
        """Any finite number is allowed."""

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        return jsp.stats.norm.logpdf(y, f[0], jnp.exp(f[1]))

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return f[0]

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        return f[0] + jnp.exp(f[1]) * jax.random.normal(key, f[0].shape, f.dtype)

    def expected_log_densities(self, q: Family, data: Table | OffsetTable) -> Rows:
        """E[exp(−2c) (y − f)²] is E[exp(−2c)] times E[(y − f)²] where f has the mean E[f] − 2 cov(f, c)."""
        mean, covariance = jax.vmap(lambda datum: self.predictors(self.standard(q), datum))(data)
        linear, log_noise = data.shifted(mean[:, 0]), mean[:, 1]
        square = jnp.square(data.y - linear + 2 * covariance[:, 0, 1]) + covariance[:, 0, 0]
        precision = jnp.exp(2 * covariance[:, 1, 1] - 2 * log_noise)
        return -(jnp.log(2 * jnp.pi) + 2 * log_noise + precision * square) / 2


class StudentTRegression(VectorRegression):
    """(y − f) / scale ~ t with ν degrees of freedom; the constants are log scale and log ν."""

    @property
    def constants(self) -> int:
        return 2

    def check_response(self, y: np.ndarray) -> None:
        """Any finite number is allowed."""

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        eta, log_scale, log_freedom = f
        freedom = jnp.exp(log_freedom)
        normaliser = log_gamma((freedom + 1) / 2) - log_gamma(freedom / 2)
        tail = jnp.log1p(jnp.square((y - eta) * jnp.exp(-log_scale)) / freedom)
        return normaliser - (jnp.log(jnp.pi) + log_freedom) / 2 - log_scale - (freedom + 1) / 2 * tail

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return f[0]

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        return f[0] + jnp.exp(f[1]) * jax.random.t(key, jnp.exp(f[2]), f[0].shape)


class GammaRegression(VectorRegression):
    """y > 0 with the mean exp(f) and the variance exp(2f) / shape; the constant is log shape."""

    @property
    def constants(self) -> int:
        return 1

    def check_response(self, y: np.ndarray) -> None:
        check_values(y, y > 0, "it must be above 0")

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        eta, log_shape = f
        shape = jnp.exp(log_shape)
        return shape * (log_shape - eta + jnp.log(y) - y * jnp.exp(-eta)) - jnp.log(y) - log_gamma(shape)

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return jnp.exp(f[0])

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        return jnp.exp(f[0] - f[1]) * jax.random.gamma(key, jnp.exp(f[1]))


class BetaRegression(VectorRegression):
    """0 < y < 1 with the mean μ = 1 / (1 + exp(−f)) and the variance μ(1 − μ) / (1 + precision).

    The constant is log precision.
    """

    @property
    def constants(self) -> int:
        return 1

    def check_response(self, y: np.ndarray) -> None:
        check_values(y, (y > 0) & (y < 1), "it must be above 0 and below 1")

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        precision = jnp.exp(f[1])
        ones, zeros = jax.nn.sigmoid(f[0]) * precision, jax.nn.sigmoid(-f[0]) * precision
        normaliser = log_gamma(precision) - log_gamma(ones) - log_gamma(zeros)
        return normaliser + (ones - 1) * jnp.log(y) + (zeros - 1) * jnp.log1p(-y)

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return jax.nn.sigmoid(f[0])

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        precision = jnp.exp(f[1])
        return jax.random.beta(key, jax.nn.sigmoid(f[0]) * precision, jax.nn.sigmoid(-f[0]) * precision)


class WeibullRegression(VectorRegression):
    """y = (time, event), with P(T > t) = exp(−(t / exp(f))^shape): f moves the logarithm of time.

    A row without event tells that it had none up to its time. The constant is log shape.
    """

    @property
    def constants(self) -> int:
        return 1

    def check_response(self, y: Any) -> None:
        time, event = y
        check_values(time, time > 0, "times are above 0")
        check_values(event, (event == 0) | (event == 1), "events are 0 or 1")

    def log_link_density(self, f: Float[Array, "k *s"], y: Times) -> Float[Array, "*s"]:
        eta, log_shape = f
        hazard = jnp.exp(log_shape) * (jnp.log(y.time) - eta)
        return y.event * (log_shape - jnp.log(y.time) + hazard) - jnp.exp(hazard)

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return jnp.exp(f[0] + log_gamma(1 + jnp.exp(-f[1])))

    def draw_response(self, f: Float[Array, "k *s"], y: Times, key: Key[Array, ""]) -> Float[Array, "*s"]:
        return jnp.exp(f[0]) * jax.random.exponential(key, f[0].shape, f.dtype) ** jnp.exp(-f[1])
