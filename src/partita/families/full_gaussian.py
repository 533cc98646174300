"""Gaussians with full covariance."""

import functools
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Key, Real

from partita.errors import SettingsError
from partita.families.base import Theta, finite
from partita.families.capabilities import Spreading
from partita.families.gaussian import LOG_2PI, Gaussian, Moments, Standard, Unconstrained, check_vector, zeros_of
from partita.families.layout import Layout
from partita.inputs import check_finite_number, described
from partita.numerics.arrays import jax_array

__all__ = ["FullGaussian", "drawn", "symmetric"]


class _CorrelatedSampler(eqx.Module):
    """Draws of a Gaussian with full covariance, given a Cholesky factor of its precision."""

    mean: Float[Array, " d"]
    cholesky: Float[Array, "d d"]
    layout: Layout = eqx.field(static=True)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        return drawn(self, key, shape)

    def spread(self, noise: Float[Array, "s d"]) -> Theta:
        away = jsp.linalg.solve_triangular(self.cholesky, noise.T, lower=True, trans="T").T
        return self.layout.unravel(self.mean + away)


class FullGaussian(Gaussian):
    """A Gaussian with full covariance over all parameters, raveled into one vector where θ is a pytree."""

    precision_mean: Float[Array, " d"]
    precision: Float[Array, "d d"]
    layout: Layout = eqx.field(static=True)

    @classmethod
    def from_mean_covariance(cls, mean: Theta, covariance: Real[ArrayLike, "d d"]) -> Self:
        """The member with this mean, shaped like θ, and this covariance of the raveled θ."""
        if not jax.tree.leaves(mean):
            raise SettingsError(f"The mean must be shaped like θ, with numbers, not {described(mean)}.")
        mean = jax.tree.map(lambda leaf: finite(leaf, "mean"), mean)
        layout = Layout.of(mean)
        vector, square = layout.ravel(mean), finite(covariance, "covariance")
        if square.shape != 2 * vector.shape:
            raise SettingsError(f"A mean of {vector.size} numbers and a covariance of {square.shape} do not match.")
        factor = jnp.linalg.cholesky(square.astype(vector.dtype))
        if not isinstance(factor, jax.core.Tracer) and not np.isfinite(np.asarray(factor)).all():
            raise SettingsError("The covariance must be positive definite: add a little to its diagonal.")
        precision = _inverse(factor)
        return cls(precision @ vector, precision, layout)

    @classmethod
    def standard_normal(cls, like: Theta | int, scale: float = 1.0) -> Self:
        """N(0, scale²) for every parameter; `like` is a θ, or the number of parameters."""
        check_finite_number("scale", scale, above=0)
        zeros = zeros_of(like)
        layout = Layout.of(zeros)
        leaves = jax.tree.leaves(zeros)
        size, dtype = sum(leaf.size for leaf in leaves), jnp.result_type(*leaves)
        precision = np.eye(size, dtype=dtype) / np.asarray(scale, dtype) ** 2
        return cls(jax_array(np.zeros(size, dtype)), jax_array(precision), layout)

    def _cholesky(self) -> Float[Array, "d d"]:
        return jnp.linalg.cholesky(self.precision)

    def _vector_mean(self) -> Float[Array, " d"]:
        return jsp.linalg.cho_solve((self._cholesky(), True), self.precision_mean)

    @property
    def mean(self) -> Theta:
        return self.layout.unravel(self._vector_mean())

    @property
    def covariance(self) -> Float[Array, "d d"]:
        return _inverse(self._cholesky())

    @property
    def sd(self) -> Theta:
        return self.layout.unravel(jnp.sqrt(jnp.diagonal(self.covariance)))

    def statistics(self, theta: Theta) -> Moments:
        vector = self.layout.ravel(theta)
        return Moments(vector, -jnp.outer(vector, vector) / 2)

    def log_normaliser(self) -> Float[Array, ""]:
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(self._cholesky())))
        return self.precision_mean @ self._vector_mean() / 2 - half_log_det + self.precision_mean.size * LOG_2PI / 2

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        half = jsp.linalg.solve_triangular(other._cholesky(), self.precision, lower=True)
        ratios = jnp.linalg.eigvalsh(jsp.linalg.solve_triangular(other._cholesky(), half.T, lower=True))
        return ratios[0], ratios[-1]

    def is_proper(self) -> Bool[Array, ""]:
        return self.is_finite() & jnp.all(jnp.isfinite(self._cholesky()))

    def sampler(self) -> _CorrelatedSampler:
        return _CorrelatedSampler(self._vector_mean(), self._cholesky(), self.layout)

    def symmetrised(self) -> Self:
        return type(self)(self.precision_mean, symmetric(self.precision), self.layout)

    def stretched(self, scale: Theta) -> Self:
        each = self.layout.ravel(scale)
        precision = self.precision / jnp.outer(each, each)
        shift = jnp.where(jnp.all(each == 1), self.precision_mean, precision @ self._vector_mean())
        return type(self)(shift, precision, self.layout)

    def standard(self) -> Standard:
        return Standard(self._vector_mean(), self.covariance)

    def with_standard(self, standard: Standard) -> Self:
        precision = _inverse(jnp.linalg.cholesky(standard.variance))
        return type(self)(precision @ standard.mean, precision, self.layout)

    def unconstrained(self) -> Unconstrained:
        lower = jnp.linalg.cholesky(self.covariance)
        return Unconstrained(self._vector_mean(), jnp.tril(lower, -1) + jnp.diag(jnp.log(jnp.diagonal(lower))))

    def with_unconstrained(self, unconstrained: Unconstrained) -> Self:
        mean, log_sd = unconstrained
        lower = jnp.tril(log_sd, -1) + jnp.diag(jnp.exp(jnp.diagonal(log_sd)))
        precision = _inverse(lower)
        return type(self)(precision @ mean, precision, self.layout)

    def mean_parameters(self) -> Moments:
        mean = self._vector_mean()
        return Moments(mean, -(jnp.outer(mean, mean) + self.covariance) / 2)

    def with_mean_parameters(self, mean: Moments) -> Self:
        return self.with_standard(Standard(mean.first, -2 * mean.second - jnp.outer(mean.first, mean.first)))

    def pull_back(self, gradient: Standard) -> Self:
        curvature = -(gradient.variance + gradient.variance.T)
        return type(self)(gradient.mean + curvature @ self._vector_mean(), curvature, self.layout)

    def restricted(self, direction: Self, free: Self) -> Self:
        """In the mean alone ∇_m = b − Pm, for a direction (b, P); in the precision alone, where η = Λm stays, a D.

        That D solves D + Dm ηᵀ + η mᵀD = S with S = P − ∇_m ηᵀ − η ∇_mᵀ, which is F_BB D = (F g)_B times 2Λ from both
        sides; Dm follows from the same equation times m.
        """
        if not self.is_split(free):
            return super().restricted(direction, free)
        mean, eta = self._vector_mean(), self.precision_mean
        by_mean = direction.precision_mean - direction.precision @ mean
        if free.precision_mean:
            return type(self)(by_mean, jnp.zeros_like(self.precision), self.layout)
        both = jnp.outer(by_mean, eta)
        pull = direction.precision - both - both.T
        size, pulled = eta @ mean, pull @ mean
        applied = (pulled - eta * (mean @ pulled) / (1 + 2 * size)) / (1 + size)
        both = jnp.outer(applied, eta)
        return type(self)(jnp.zeros_like(eta), pull - both - both.T, self.layout)

    def entropy(self) -> Float[Array, ""]:
        return self.precision_mean.size * (1 + LOG_2PI) / 2 - jnp.sum(jnp.log(jnp.diagonal(self._cholesky())))

    def kl(self, other: Self) -> Float[Array, ""]:
        mine, theirs = self._cholesky(), other._cholesky()
        ratio = jsp.linalg.solve_triangular(mine, theirs, lower=True)
        gap = theirs.T @ (self._vector_mean() - other._vector_mean())
        log_ratio = jnp.sum(jnp.log(jnp.diagonal(mine))) - jnp.sum(jnp.log(jnp.diagonal(theirs)))
        return (jnp.sum(ratio**2) - self.precision_mean.size + jnp.sum(gap**2)) / 2 + log_ratio

    def projected(self, standard: Standard, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        check_vector(self.layout.unravel(standard.mean))
        return x @ standard.mean, jnp.sum((x @ standard.variance) * x, axis=-1)

    def predictors(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
        """From one triangular system, so that many small sets of rows are cheap."""
        columns = jnp.concatenate([x, self.precision_mean[None]]).T
        half = jsp.linalg.solve_triangular(self._cholesky(), columns, lower=True)
        products = half[:, :-1].T @ half
        return products[:, -1], products[:, :-1]

    @property
    def independent_groups(self) -> int:
        return 1

    def times(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.precision @ vector

    def matrix(self) -> Float[Array, "d d"]:
        return self.precision

    def cut(self, matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
        return matrix

    def gram(self, x: Float[Array, "n d"], rows: Float[Array, " n"]) -> Float[Array, "d d"]:
        return ((x * rows[:, None].astype(x.dtype)).T @ x).astype(rows.dtype)


def drawn(sampler: Spreading, key: Key[Array, ""], shape: tuple[int, ...]) -> Theta:
    """Draws with leading axes `shape` of a Gaussian over one vector, or a θ that is raveled into one."""
    noise = jax.random.normal(key, (*shape, sampler.mean.size), sampler.mean.dtype)
    found = sampler.spread(noise.reshape(-1, noise.shape[-1]))
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), found)


def symmetric(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The symmetric part of a matrix."""
    return (matrix + matrix.T) / 2


@functools.partial(jax.jit, inline=True)
def _inverse(lower: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """(L Lᵀ)⁻¹ of a lower triangular L, exactly symmetric."""
    half = jsp.linalg.solve_triangular(lower, jnp.eye(lower.shape[-1], dtype=lower.dtype), lower=True)
    return half.T @ half
