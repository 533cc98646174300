"""Counts: events among trials, over-dispersed counts, and counts with more zeros than they would have."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, Float, Key

from partita.data.table import Trials
from partita.families.stirling import log_gamma
from partita.models.base import check_values
from partita.models.glm import softplus
from partita.models.vector import VectorRegression

__all__ = [
    "BinomialRegression",
    "CloglogBinomial",
    "LogitBinomial",
    "NegativeBinomialCounts",
    "PoissonCounts",
    "ProbitBinomial",
    "ZeroInflated",
]

_LARGE = 1e4
"""Above this Stirling's formula with one term of its remainder is exact to 1e-14."""


class BinomialRegression(VectorRegression):
    """y = (events, trials) with events ~ Binomial(trials, p(f)); a subclass gives log p and log(1 − p)."""

    @property
    def constants(self) -> int:
        return 0

    @abc.abstractmethod
    def log_probabilities(self, f: Float[Array, "*s"]) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
        """log p and log(1 − p)."""

    def check_response(self, y: Any) -> None:
        events, trials = y
        check_values(trials, (trials >= 1) & (trials == np.round(trials)), "trials are whole numbers from 1 up")
        allowed = (events >= 0) & (events <= trials) & (events == np.round(events))
        check_values(events, allowed, "events are whole numbers from 0 to the number of trials")

    def log_link_density(self, f: Float[Array, "k *s"], y: Trials) -> Float[Array, "*s"]:
        events, trials = y
        success, failure = self.log_probabilities(f[0])
        ways = log_gamma(trials + 1) - log_gamma(events + 1) - log_gamma(trials - events + 1)
        return events * success + (trials - events) * failure + ways

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return jnp.exp(self.log_probabilities(f[0])[0])

    def draw_response(self, f: Float[Array, "k *s"], y: Trials, key: Key[Array, ""]) -> Float[Array, "*s"]:
        return jax.random.binomial(key, y.trials, self.mean_response(f))


class LogitBinomial(BinomialRegression):
    """p = 1 / (1 + exp(−f))."""

    def log_probabilities(self, f: Float[Array, "*s"]) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
        return -softplus(-f), -softplus(f)


class ProbitBinomial(BinomialRegression):
    """p = Φ(f)."""

    def log_probabilities(self, f: Float[Array, "*s"]) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
        return jsp.special.log_ndtr(f), jsp.special.log_ndtr(-f)


class CloglogBinomial(BinomialRegression):
    """p = 1 − exp(−exp(f)), the complementary log-log link: exp(f) is a hazard."""

    def log_probabilities(self, f: Float[Array, "*s"]) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
        return jnp.log(-jnp.expm1(-jnp.exp(f))), -jnp.exp(f)


class _CountRegression(VectorRegression):
    """Counts with the mean exp(f)."""

    def check_response(self, y: np.ndarray) -> None:
        check_values(y, (y >= 0) & (y == np.round(y)), "counts are whole numbers from 0 up")

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return jnp.exp(f[0])


class PoissonCounts(_CountRegression):
    """y ~ Poisson(exp(f))."""

    @property
    def constants(self) -> int:
        return 0

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        return y * f[0] - jnp.exp(f[0]) - log_gamma(y + 1)

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        return jax.random.poisson(key, jnp.exp(f[0]))


class NegativeBinomialCounts(_CountRegression):
    """y with mean μ = exp(f) and variance μ + α μ²; the constant is log α.

    With r = 1/α, log Γ(y + r) − log Γ(r) − y log r is a small difference of large numbers for a small α: there it is
    written by Stirling's formula.
    """

    @property
    def constants(self) -> int:
        return 1

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        eta, log_alpha = f
        size = jnp.exp(-log_alpha)
        small, large = jnp.minimum(size, _LARGE), jnp.maximum(size, _LARGE)
        direct = log_gamma(y + small) - log_gamma(small) - y * jnp.log(small)
        stirling = (y + large - 0.5) * jnp.log1p(y / large) - y - y / (12 * large * (y + large))
        rising = jnp.where(size < _LARGE, direct, stirling)
        spread = softplus(eta + log_alpha)
        return rising - size * spread + y * (eta - spread) - log_gamma(y + 1)

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        """Poisson counts whose means vary as a gamma distribution."""
        rates, counts = jax.random.split(key)
        return jax.random.poisson(counts, jnp.exp(f[0] + f[1]) * jax.random.gamma(rates, jnp.exp(-f[1])))


class ZeroInflated(VectorRegression):
    """Zero with a probability π, and otherwise a count of another model; the last constant is logit π."""

    counts: _CountRegression = PoissonCounts()

    @property
    def constants(self) -> int:
        return self.counts.constants + 1

    def check_response(self, y: np.ndarray) -> None:
        self.counts.check_response(y)

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        counted = self.counts.log_link_density(f[:-1], y) - softplus(f[-1])
        return jnp.where(y == 0, jnp.logaddexp(-softplus(-f[-1]), counted), counted)

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "*s"]:
        return jax.nn.sigmoid(-f[-1]) * self.counts.mean_response(f[:-1])

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        zeros, counts = jax.random.split(key)
        return jnp.where(
            jax.random.bernoulli(zeros, jax.nn.sigmoid(f[-1])), 0, self.counts.draw_response(f[:-1], y, counts)
        )
