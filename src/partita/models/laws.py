"""One-dimensional densities of which priors are made: of numbers about 0, and of positive numbers such as scales."""

import abc
import functools
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from partita.numerics.compiled import Scalar

__all__ = [
    "Folded",
    "GammaLaw",
    "Horseshoe",
    "InverseChi",
    "InverseGammaLaw",
    "Laplace",
    "Law",
    "Normal",
    "NormalGamma",
    "StudentT",
    "central",
    "split_rule",
]

_Numbers: TypeAlias = Float[Array, "*#k"]
_LOG_2PI = float(np.log(2 * np.pi))
_REACH = 8.0
"""How many standard deviations an expectation looks to either side; beyond are 1e-15."""
_GRADED = 2
"""The power by which nodes crowd about a density's kink or spike."""
_NODES = 40
"""Nodes on either side of it: a Gaussian's moments are then exact to 1e-10, and E[log|θ|] to 1e-6."""
_STEP = 0.5
"""Between log scales of a mixture of normals: its density is exact to 1e-4."""


class Law(eqx.Module):
    """A density of one number: of a deviation from a location, or of the logarithm of a positive number."""

    @abc.abstractmethod
    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        """The log density at this deviation, given the logarithm of the scale.

        Of a law of positive numbers `deviation` is the logarithm, and the density that of the logarithm.
        """


class Normal(Law):
    """N(0, scale²)."""

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        return -jnp.square(deviation * jnp.exp(-log_scale)) / 2 - log_scale - _LOG_2PI / 2


class StudentT(Law):
    """Student's t with these degrees of freedom; with one it is Cauchy's."""

    freedom: Scalar

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        half = (jnp.asarray(self.freedom) + 1) / 2
        known = jsp.special.gammaln(half) - jsp.special.gammaln(half - 0.5) - jnp.log(jnp.pi * self.freedom) / 2
        return known - log_scale - half * jnp.log1p(jnp.square(deviation * jnp.exp(-log_scale)) / self.freedom)


class Laplace(Law):
    """exp(−|θ| / scale) / (2 scale)."""

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        return -jnp.abs(deviation) * jnp.exp(-log_scale) - log_scale - np.log(2)


class Horseshoe(Law):
    """N(0, scale²λ̃²) with λ half-Cauchy and λ̃² = c²λ² / (c² + scale²λ²): the regularised horseshoe with slab c.

    λ is summed out (Piironen and Vehtari 2017, eq. 2.8), so that q needs no local scales.
    """

    slab: Scalar

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        log_local = np.arange(-8, 12, _STEP)
        log_mass = np.log(_STEP / np.pi) - np.logaddexp(log_local, -log_local) + np.log(2)
        spread, slab = log_scale[..., None] + log_local, jnp.log(jnp.asarray(self.slab))
        return _mixture(deviation, -jnp.logaddexp(-2 * spread, -2 * slab) / 2, log_mass)


class NormalGamma(Law):
    """N(0, scale²ω) with ω ~ Gamma(shape, 1), summed out: a coefficient's share of R² in R2D2."""

    shape: Scalar

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        log_share = np.arange(-24, 5, _STEP)
        log_mass = np.log(_STEP) + self.shape * log_share - np.exp(log_share) - jsp.special.gammaln(self.shape)
        return _mixture(deviation, log_scale[..., None] + log_share / 2, log_mass)


def _mixture(
    deviation: Float[Array, "*k"], log_sd: Float[Array, "*k s"], log_mass: Float[ArrayLike, " s"]
) -> Float[Array, "*k"]:
    """log Σ mass · N(deviation; 0, sd²)."""
    x = deviation[..., None] * jnp.exp(-log_sd)
    return jsp.special.logsumexp(log_mass - log_sd - jnp.square(x) / 2, axis=-1) - _LOG_2PI / 2


class Folded(Law):
    """The positive half of a law that is symmetric about 0, as one of logarithms."""

    law: Law

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        return np.log(2) + self.law.log_density(jnp.exp(deviation), log_scale) + deviation


class GammaLaw(Law):
    """Gamma of this shape, of logarithms; of shape 1 it is exponential."""

    shape: Scalar

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        x = deviation - log_scale
        return self.shape * x - jnp.exp(x) - jsp.special.gammaln(jnp.asarray(self.shape))


class InverseGammaLaw(Law):
    """Inverse gamma of this shape, of logarithms."""

    shape: Scalar

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        x = log_scale - deviation
        return self.shape * x - jnp.exp(x) - jsp.special.gammaln(jnp.asarray(self.shape))


class InverseChi(Law):
    """The root of an inverse gamma of this shape, of logarithms: the scale of R2D2."""

    shape: Scalar

    def log_density(self, deviation: _Numbers, log_scale: _Numbers) -> _Numbers:
        x = 2 * (log_scale - deviation)
        return np.log(2) + self.shape * x - jnp.exp(x) - jsp.special.gammaln(jnp.asarray(self.shape))


@functools.cache
def _half_rule() -> tuple[np.ndarray, np.ndarray]:
    """Places between 0 and 1 that crowd at 0, and their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    at = (nodes + 1) / 2
    return at**_GRADED, weights / 2 * _GRADED * at ** (_GRADED - 1)


def split_rule(
    mean: Float[Array, "*k"], variance: Float[Array, "*k"]
) -> tuple[Float[Array, "*k s"], Float[Array, "*k s"]]:
    """Values of Gaussians, and their masses, that see a kink, a spike or a logarithm at 0.

    Gauss–Legendre on either side of 0, with nodes that crowd there: an expectation by Gauss–Hermite misses what is
    narrower than its nodes are apart.
    """
    sd = jnp.sqrt(variance)[..., None]
    places, weights = (jnp.asarray(each, mean.dtype) for each in _half_rule())
    kink = jnp.clip(-mean[..., None] / sd, -_REACH, _REACH)
    above, below = _REACH - kink, _REACH + kink
    z = jnp.concatenate([kink - below * places, kink + above * places], axis=-1)
    masses = jnp.concatenate([below * weights, above * weights], axis=-1) * jnp.exp(-(z**2) / 2 - _LOG_2PI / 2)
    return mean[..., None] + sd * z, masses / jnp.sum(masses, axis=-1, keepdims=True)


def central(law: Law, log_scale: float, positive: bool) -> tuple[float, float]:
    """Median of a law, and its half-width over 1.96 of the central 95%; of a positive law, of logarithms."""
    at = (
        log_scale + np.linspace(-60, 60, 24001)
        if positive
        else np.exp(log_scale) * np.sinh(np.linspace(-40, 40, 24001))
    )
    with jax.enable_x64(True):
        density = np.exp(np.asarray(law.log_density(jnp.asarray(at), jnp.full(1, log_scale))))
    below = np.cumsum(density * np.gradient(at))
    low, middle, high = np.interp(np.array([0.025, 0.5, 0.975]) * below[-1], below, at)
    return (float(middle) if positive else 0.0), float(high - low) / 2 / 1.96
