"""The normal–gamma family: coefficients and the precision of the noise around them, jointly."""

import dataclasses
from typing import NamedTuple, Self, TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Key, Real

from partita.errors import SettingsError
from partita.families.base import Numbers, Remembering, finite, positive
from partita.families.full_gaussian import FullGaussian, symmetric
from partita.families.gamma import Gamma
from partita.families.gamma import Moments as GammaMoments
from partita.families.gamma import Standard as ShapeMean
from partita.families.gaussian import LOG_2PI
from partita.families.gaussian import Standard as MeanVariance
from partita.families.layout import Layout

__all__ = ["Coefficients", "Moments", "NormalGamma", "Standard"]


class Coefficients(TypedDict):
    """θ: a vector of coefficients and the precision of the noise."""

    coefficients: Float[Array, "... d"]
    precision: Float[Array, "..."]


class Moments(NamedTuple):
    """Mean parameters: E[log τ], −E[τ], E[τβ] and −½ E[τββᵀ]."""

    log: Float[Array, ""]
    negative: Float[Array, ""]
    first: Float[Array, " d"]
    second: Float[Array, "d d"]


class Standard(NamedTuple):
    """Mean m and covariance V/τ of the coefficients given the precision τ, and the shape and mean of τ."""

    gaussian: MeanVariance
    gamma: ShapeMean


class NormalGamma(Remembering):
    """β | τ ~ N(m, Λ⁻¹/τ) and τ ~ Gamma(a, b): conjugate to linear regression with noise of unknown precision τ.

    θ is a dict with `coefficients` β and `precision` τ. With statistics T(θ) = (log τ, −τ, τβ, −½τββᵀ) the natural
    parameters are `exponent` = a − 1 + d/2, `rate` = b + ½mᵀΛm, `precision_mean` = Λm and `precision` = Λ.
    """

    exponent: Float[Array, ""]
    rate: Float[Array, ""]
    precision_mean: Float[Array, " d"]
    precision: Float[Array, "d d"]
    known_gamma: Gamma | None = None
    """The law of the precision that it was made of, in members `at_standard` only."""

    @classmethod
    def from_parameters(
        cls, mean: Real[ArrayLike, " d"], covariance: Real[ArrayLike, "d d"], shape: Numbers, rate: Numbers
    ) -> Self:
        """The member with this mean m, covariance Λ⁻¹ where the precision is 1, and this gamma for the precision."""
        mean = finite(mean, "mean")
        covariance = finite(covariance, "covariance").astype(mean.dtype)
        square = covariance.shape
        if mean.ndim != 1 or square != (mean.size, mean.size):
            raise SettingsError(f"A mean of shape {mean.shape} and a covariance of shape {square} do not match.")
        shape, rate = positive(shape, "shape of a normal–gamma"), positive(rate, "rate of a normal–gamma")
        if shape.ndim or rate.ndim:
            raise SettingsError("Shape and rate of a normal–gamma are two numbers, not arrays.")
        gamma = Gamma.from_shape_rate(shape.astype(mean.dtype), rate.astype(mean.dtype))
        return cls.joined(FullGaussian.from_mean_covariance(mean, covariance), gamma)

    @classmethod
    def joined(cls, gaussian: FullGaussian, gamma: Gamma) -> Self:
        """The member with this gamma for τ, and this Gaussian for β given τ = 1."""
        shift, precision = gaussian.precision_mean, gaussian.precision
        return cls(gamma.exponent + shift.size / 2, gamma.rate + shift @ gaussian.mean / 2, shift, precision)

    @property
    def gaussian(self) -> FullGaussian:
        """N(m, Λ⁻¹), the distribution of β given τ = 1."""
        return FullGaussian(self.precision_mean, self.precision, Layout.of(self.precision_mean))

    @property
    def gamma(self) -> Gamma:
        """The distribution of τ."""
        if self.known_gamma is not None:
            return self.known_gamma
        rate = self.rate - self.precision_mean @ self.gaussian.mean / 2
        return Gamma(self.exponent - self.precision_mean.size / 2, rate)

    def noisy_predictor(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"], Gamma]:
        return *self.gaussian.project(x), self.gamma

    def statistics(self, theta: Coefficients) -> Moments:
        beta, tau = theta["coefficients"], theta["precision"]
        return Moments(jnp.log(tau), -tau, tau * beta, -tau * jnp.outer(beta, beta) / 2)

    def log_normaliser(self) -> Float[Array, ""]:
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(self.precision))))
        return self.gamma.log_normaliser() - half_log_det + self.precision_mean.size * LOG_2PI / 2

    def is_proper(self) -> Bool[Array, ""]:
        return self.is_finite() & self.gaussian.is_proper() & self.gamma.is_proper()

    def symmetrised(self) -> Self:
        return type(self)(self.exponent, self.rate, self.precision_mean, symmetric(self.precision))

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Coefficients:
        keys = jax.random.split(key)
        gaussian, tau = self.gaussian, self.gamma.sample(keys[0], shape)
        away = gaussian.sample(keys[1], shape) - gaussian.mean
        return {"coefficients": gaussian.mean + away / jnp.sqrt(tau)[..., None], "precision": tau}

    def standard(self) -> Standard:
        return Standard(self.gaussian.standard(), self.gamma.standard())

    def at_standard(self, standard: Standard) -> Self:
        return self._made_of(self.gaussian.at_standard(standard.gaussian), self.gamma.at_standard(standard.gamma))

    def unconstrained(self) -> tuple:
        return self.gaussian.unconstrained(), self.gamma.unconstrained()

    def at_unconstrained(self, unconstrained: tuple) -> Self:
        gaussian, gamma = unconstrained
        return self._made_of(self.gaussian.at_unconstrained(gaussian), self.gamma.at_unconstrained(gamma))

    def _made_of(self, gaussian: FullGaussian, gamma: Gamma) -> Self:
        return dataclasses.replace(self.joined(gaussian, gamma), known_gamma=gamma)

    def plain(self) -> Self:
        return type(self)(self.exponent, self.rate, self.precision_mean, self.precision)

    def mean_parameters(self) -> Moments:
        gamma, (mean, covariance) = self.gamma.mean_parameters(), self.gaussian.standard()
        tau = -gamma.negative
        return Moments(*gamma, tau * mean, -(covariance + tau * jnp.outer(mean, mean)) / 2)

    def with_mean_parameters(self, mean: Moments) -> Self:
        gamma = self.gamma.with_mean_parameters(GammaMoments(mean.log, mean.negative))
        centre = -mean.first / mean.negative
        covariance = -2 * mean.second - jnp.outer(mean.first, centre)
        return self.joined(self.gaussian.with_standard(MeanVariance(centre, covariance)), gamma)

    def pull_back(self, gradient: Standard) -> Self:
        """Combines the pull-back of the gamma with that of the Gaussian, whose mean parameters are scaled by E[τ]."""
        mean = self.gaussian.mean
        precision = -(gradient.gaussian.variance + gradient.gaussian.variance.T)
        shift = gradient.gaussian.mean / self.gamma.mean + precision @ mean
        gamma = self.gamma.pull_back(gradient.gamma)
        return type(self)(gamma.exponent, gamma.rate + shift @ mean - mean @ precision @ mean / 2, shift, precision)

    def entropy(self) -> Float[Array, ""]:
        gamma = self.gamma
        return gamma.entropy() + self.gaussian.entropy() - self.precision_mean.size * gamma.expected_log / 2

    def kl(self, other: Self) -> Float[Array, ""]:
        mine, theirs = self.gaussian, other.gaussian
        gap = mine.mean - theirs.mean
        # given τ both precisions are multiplied by τ, which only scales the squared distance of the means
        farther = (self.gamma.mean - 1) * (gap @ theirs.precision @ gap) / 2
        return self.gamma.kl(other.gamma) + mine.kl(theirs) + farther

    def moments(self) -> tuple[Coefficients, Coefficients]:
        """β has Student's t marginals: the standard deviation is infinite if the shape is at most 1."""
        (mean, covariance), gamma = self.gaussian.standard(), self.gamma
        variance = jnp.where(gamma.shape > 1, jnp.diagonal(covariance) * gamma.rate / gamma.exponent, jnp.inf)
        tau, tau_sd = gamma.moments()
        return {"coefficients": mean, "precision": tau}, {"coefficients": jnp.sqrt(variance), "precision": tau_sd}
