"""The gamma family: precisions, rates and other positive numbers."""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Bool, Float, Key

from partita.errors import SettingsError
from partita.families.base import Numbers, Remembering, positive
from partita.families.stirling import LOG_ROOT_2PI, fisher_excess, log_excess, log_gap, remainder, remainder_slope
from partita.numerics.compiled import Whole

__all__ = ["Gamma", "Moments", "Standard", "Unconstrained", "shape_of"]


class Moments(NamedTuple):
    """Mean parameters of a gamma: E[log θ] and −E[θ]."""

    log: Float[Array, "..."]
    negative: Float[Array, "..."]


class Standard(NamedTuple):
    """Shape and mean, for which the Fisher information is diagonal (unlike shape and rate)."""

    shape: Float[Array, "..."]
    mean: Float[Array, "..."]


class Unconstrained(NamedTuple):
    """Logarithms of shape and mean."""

    log_shape: Float[Array, "..."]
    log_mean: Float[Array, "..."]


class Gamma(Remembering):
    """Independent gammas θ^(shape − 1) exp(−rate · θ), one per element of an array of any shape.

    Natural parameters are `exponent` = shape − 1 and `rate`, with statistics T(θ) = (log θ, −θ).
    """

    exponent: Float[Array, "*k"]
    rate: Float[Array, "*k"]
    known_mean: Float[Array, "*k"] | None = None
    """The mean that it was made of, in members `at_standard` only."""

    @classmethod
    def from_shape_rate(cls, shape: Numbers, rate: Numbers) -> Self:
        """The member with this shape and rate, one of which may be a scalar for all elements."""
        shape, rate = positive(shape, "shape of a gamma"), positive(rate, "rate of a gamma")
        try:
            shape, rate = jnp.broadcast_arrays(shape, rate)
        except ValueError:
            raise SettingsError(
                f"Shapes {shape.shape} and rates {rate.shape} of a gamma do not broadcast: give arrays of one shape."
            ) from None
        return cls(shape - 1, rate)

    @property
    def shape(self) -> Float[Array, "..."]:
        """The shape; 0 or below where improper."""
        return self.exponent + 1

    @property
    def mean(self) -> Float[Array, "..."]:
        """E[θ]."""
        return self.shape / self.rate if self.known_mean is None else self.known_mean

    @property
    def expected_log(self) -> Float[Array, "..."]:
        """E[log θ]."""
        return jnp.log(self.mean) - log_gap(self.shape)

    def statistics(self, theta: Float[Array, "..."]) -> Moments:
        return Moments(jnp.log(theta), -theta)

    def log_normaliser(self) -> Float[Array, ""]:
        each = jsp.special.gammaln(self.shape) - self.shape * jnp.log(self.rate)
        return jnp.sum(jnp.where(self.shape > 0, each, jnp.nan))

    def is_proper(self) -> Bool[Array, ""]:
        return self.is_finite() & jnp.all((self.shape > 0) & (self.rate > 0))

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        # on the log scale: for a small shape the value would underflow
        logs = jax.random.loggamma(key, self.shape, shape + self.shape.shape, self.shape.dtype)
        return jnp.exp(logs - jnp.log(self.rate))

    def standard(self) -> Standard:
        return Standard(self.shape, self.mean)

    def at_standard(self, standard: Standard) -> Self:
        shape, mean = standard
        return type(self)(shape - 1, shape / mean, known_mean=mean)

    def unconstrained(self) -> Unconstrained:
        return Unconstrained(jnp.log(self.shape), jnp.log(self.mean))

    def at_unconstrained(self, unconstrained: Unconstrained) -> Self:
        return self.at_standard(Standard(jnp.exp(unconstrained.log_shape), jnp.exp(unconstrained.log_mean)))

    def plain(self) -> Self:
        return type(self)(self.exponent, self.rate)

    def mean_parameters(self) -> Moments:
        return Moments(self.expected_log, -self.mean)

    def with_mean_parameters(self, mean: Moments) -> Self:
        shape = shape_of(jnp.log(-mean.negative) - mean.log)
        return type(self)(shape - 1, -shape / mean.negative)

    def pull_back(self, gradient: Standard) -> Self:
        """Solves with ∂μ/∂(shape, mean) = [[ψ′ − 1/shape, 1/mean], [0, −1]], element by element."""
        shape, mean = self.standard()
        exponent = gradient.shape * shape / fisher_excess(shape)
        return type(self)(exponent, exponent / mean - gradient.mean)

    def entropy(self) -> Float[Array, ""]:
        shape, mean = self.standard()
        normal = jnp.log(mean) - jnp.log(shape) / 2 + LOG_ROOT_2PI
        return jnp.sum(normal + (shape - 1) * log_gap(shape) + remainder(shape))

    def kl(self, other: Self) -> Float[Array, ""]:
        """The sum of three non-negative terms: for the means, for the shapes, and for Stirling's remainder."""
        mine, theirs = self.shape, other.shape
        apart = self.exponent - other.exponent
        farther = (apart / theirs - (self.rate - other.rate) / other.rate) * (other.rate / self.rate)
        of_means = theirs * log_excess((mine / theirs) * (other.rate / self.rate), farther)
        of_shapes = log_excess(theirs / mine, -apart / mine) / 2
        left = remainder(theirs) - remainder(mine) + apart * remainder_slope(mine)
        return jnp.sum(of_means + of_shapes + left)

    def moments(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        return self.mean, jnp.sqrt(self.shape) / self.rate


def shape_of(gap: Float[Array, "..."]) -> Float[Array, "..."]:
    """The shape for which log E[θ] − E[log θ] = log(shape) − ψ(shape) is this gap, by Newton's method in 1/shape.

    The initial value is within 1.5 % (Minka 2002), so that four quadratically convergent steps are enough.
    """

    def newton(_: Whole, shape: Float[Array, "..."]) -> Float[Array, "..."]:
        return 1 / (1 / shape - (log_gap(shape) - gap) / (shape * fisher_excess(shape)))

    start = (3 - gap + jnp.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    return jax.lax.fori_loop(0, 4, newton, start)
