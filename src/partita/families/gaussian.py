"""Gaussian families, mean-field and with full covariance, over arrays and over pytrees of arrays."""

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from partita.errors import SettingsError
from partita.families.base import Family, Theta, floating
from partita.numerics.noise import standard_normal

_LOG_2PI = math.log(2 * math.pi)


class Moments(NamedTuple):
    """Mean parameters of a Gaussian: E[θ] and −½ E[θθᵀ] (its diagonal where mean-field)."""

    first: PyTree
    second: PyTree


class Standard(NamedTuple):
    """Mean and variance, the latter a covariance matrix where the family has one."""

    mean: PyTree
    variance: PyTree


class Unconstrained(NamedTuple):
    """Mean and log standard deviation; with covariances, a Cholesky factor that has a log diagonal."""

    mean: PyTree
    log_sd: PyTree


class GaussianSampler(eqx.Module):
    """A sampler of a Gaussian, given its mean and a square root of its covariance."""

    @abc.abstractmethod
    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        """Draws of θ with leading axes `shape`."""

    @abc.abstractmethod
    def spread(self, noise: Float[Array, "s d"]) -> Theta:
        """The values of θ, along a leading axis, with these standardised, raveled coordinates."""


class Gaussian(Family):
    """The base class of Gaussian families, with projections to linear predictors xᵀθ.

    Natural parameters are `precision_mean` = Λm and `precision` = Λ, with statistics T(θ) = (θ, −½θθᵀ).
    """

    precision_mean: eqx.AbstractVar[PyTree]
    precision: eqx.AbstractVar[PyTree]

    @property
    @abc.abstractmethod
    def mean(self) -> Theta:
        """E[θ]."""

    @property
    @abc.abstractmethod
    def sd(self) -> Theta:
        """The marginal standard deviation of each parameter."""

    @abc.abstractmethod
    def project(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance of the linear predictor xᵀθ of each row."""

    @abc.abstractmethod
    def sampler(self) -> GaussianSampler: ...

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        return self.sampler().sample(key, shape)

    def moments(self) -> tuple[Theta, Theta]:
        return self.mean, self.sd

    def interval(self, mass: float = 0.95) -> tuple[Theta, Theta]:
        width = jsp.special.ndtri((1 + mass) / 2)
        mean, sd = self.moments()
        low = jax.tree.map(lambda m, s: m - width * s, mean, sd)
        return low, jax.tree.map(lambda m, s: m + width * s, mean, sd)


class IndependentSampler(GaussianSampler):
    """Draws of independent Gaussians."""

    mean: PyTree[Float[Array, "..."]]
    sd: PyTree[Float[Array, "..."]]

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        leaves, treedef = jax.tree.flatten(self.mean)
        keys = jax.tree.unflatten(treedef, list(jax.random.split(key, len(leaves))))
        return jax.tree.map(
            lambda m, s, k: m + s * standard_normal(k, shape + m.shape, m.dtype), self.mean, self.sd, keys
        )

    def spread(self, noise: Float[Array, "s d"]) -> Theta:
        each = Layout.of(self.mean).unravel(noise)
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.sd, each)


class MeanFieldGaussian(Gaussian):
    """Independent Gaussians, one per parameter; the leaves have the tree and the shapes of θ."""

    precision_mean: PyTree[Float[Array, "..."]]
    precision: PyTree[Float[Array, "..."]]

    @classmethod
    def from_mean_sd(cls, mean: Theta, sd: Theta) -> Self:
        """The member with this mean and standard deviation, each shaped like θ; a scalar sd serves every parameter."""
        mean = jax.tree.map(floating, mean)
        trees: list[Any] = [jax.tree.structure(tree) for tree in (mean, sd)]
        if trees[0] != trees[1]:
            sd = jax.tree.map(lambda m: jnp.asarray(sd, m.dtype), mean)
        precision = jax.tree.map(lambda m, s: jnp.broadcast_to(1 / jnp.asarray(s, m.dtype) ** 2, m.shape), mean, sd)
        return cls(jax.tree.map(jnp.multiply, precision, mean), precision)

    @classmethod
    def standard_normal(cls, like: Theta | int, scale: float = 1.0) -> Self:
        """N(0, scale²) for every parameter; `like` is a θ, or the number of parameters."""
        return cls.from_mean_sd(_zeros(like), scale)

    @classmethod
    def tight(cls, like: Theta | int, seed: int = 0, spread: float = 0.1, variance: float = 1e-3) -> Self:
        """An initial q for networks: random means in ±spread and a small variance.

        From a wide q a network's gradients are mostly noise (`sec:experiments:fmnist`).
        """
        leaves, treedef = jax.tree.flatten(_zeros(like))
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        means = [
            jax.random.uniform(key, leaf.shape, leaf.dtype, -spread, spread)
            for key, leaf in zip(keys, leaves, strict=True)
        ]
        return cls.from_mean_sd(jax.tree.unflatten(treedef, means), math.sqrt(variance))

    @property
    def mean(self) -> Theta:
        return jax.tree.map(jnp.divide, self.precision_mean, self.precision)

    @property
    def variance(self) -> Theta:
        return jax.tree.map(jnp.reciprocal, self.precision)

    @property
    def sd(self) -> Theta:
        return jax.tree.map(lambda p: 1 / jnp.sqrt(p), self.precision)

    def statistics(self, theta: Theta) -> Moments:
        return Moments(theta, jax.tree.map(lambda t: -(t**2) / 2, theta))

    def log_normaliser(self) -> Float[Array, ""]:
        return _total(lambda b, p: b**2 / (2 * p) - jnp.log(p) / 2 + _LOG_2PI / 2, self.precision_mean, self.precision)

    def is_proper(self) -> Bool[Array, ""]:
        positive = [jnp.all(p > 0) for p in jax.tree.leaves(self.precision)]
        return self.is_finite() & jnp.all(jnp.array(positive))

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        ratios = jax.tree.leaves(jax.tree.map(jnp.divide, self.precision, other.precision))
        return jnp.min(jnp.array([r.min() for r in ratios])), jnp.max(jnp.array([r.max() for r in ratios]))

    def sampler(self) -> IndependentSampler:
        return IndependentSampler(self.mean, self.sd)

    def stretched(self, scale: Theta) -> Self:
        divided = [jax.tree.map(lambda b, s: b / s**2, eta, scale) for eta in (self.precision_mean, self.precision)]
        return type(self)(*divided)

    def standard(self) -> Standard:
        return Standard(self.mean, self.variance)

    def with_standard(self, standard: Standard) -> Self:
        mean, variance = standard
        return type(self)(jax.tree.map(jnp.divide, mean, variance), jax.tree.map(jnp.reciprocal, variance))

    def unconstrained(self) -> Unconstrained:
        return Unconstrained(self.mean, jax.tree.map(lambda p: -jnp.log(p) / 2, self.precision))

    def with_unconstrained(self, unconstrained: Unconstrained) -> Self:
        mean, log_sd = unconstrained
        precision = jax.tree.map(lambda s: jnp.exp(-2 * s), log_sd)
        return type(self)(jax.tree.map(jnp.multiply, precision, mean), precision)

    def mean_parameters(self) -> Moments:
        mean = self.mean
        return Moments(mean, jax.tree.map(lambda m, v: -(m**2 + v) / 2, mean, self.variance))

    def with_mean_parameters(self, mean: Moments) -> Self:
        variance = jax.tree.map(lambda a, b: -2 * b - a**2, mean.first, mean.second)
        return self.with_standard(Standard(mean.first, variance))

    def pull_back(self, gradient: Standard) -> Self:
        shift = jax.tree.map(lambda g, m, h: g - 2 * m * h, gradient.mean, self.mean, gradient.variance)
        return type(self)(shift, jax.tree.map(lambda h: -2 * h, gradient.variance))

    def is_split(self, free: Self) -> bool:
        return jax.tree.leaves(free.precision_mean) != jax.tree.leaves(free.precision)

    def restricted(self, direction: Self, free: Self) -> Self:
        """Parameter by parameter: ∇_m in the mean alone, and what is left of the precision's where Λm stays."""

        def shift(m: Array, b: Array, p: Array, mean: bool, precision: bool) -> Array:
            return (b if precision else b - p * m) if mean else jnp.zeros_like(b)

        def tightening(m: Array, v: Array, b: Array, p: Array, mean: bool, precision: bool) -> Array:
            return (p if mean else p - 2 * m * b / (v + 2 * m**2)) if precision else jnp.zeros_like(p)

        ways = direction.precision_mean, direction.precision, free.precision_mean, free.precision
        return type(self)(
            jax.tree.map(shift, self.mean, *ways), jax.tree.map(tightening, self.mean, self.variance, *ways)
        )

    def entropy(self) -> Float[Array, ""]:
        return _total(lambda p: (1 + _LOG_2PI - jnp.log(p)) / 2, self.precision)

    def kl(self, other: Self) -> Float[Array, ""]:
        def one_parameter(m: Array, p: Array, n: Array, r: Array) -> Array:
            return (r / p - 1 - jnp.log(r / p) + r * (m - n) ** 2) / 2

        return _total(one_parameter, self.mean, self.precision, other.mean, other.precision)

    def project(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        _needs_vector(self.precision)
        return x @ self.mean, jnp.sum(jnp.square(x) * self.variance, axis=-1)


class Layout(eqx.Module):
    """The mapping between a parameter vector and the leaves of θ."""

    treedef: jax.tree_util.PyTreeDef = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, theta: Theta) -> Self:
        leaves, treedef = jax.tree.flatten(theta)
        return cls(treedef, tuple(jnp.shape(leaf) for leaf in leaves))

    def ravel(self, theta: Theta) -> Float[Array, "... d"]:
        leaves = [
            jnp.reshape(leaf, (*leaf.shape[: leaf.ndim - len(shape)], -1))
            for leaf, shape in zip(jax.tree.leaves(theta), self.shapes, strict=True)
        ]
        return jnp.concatenate(leaves, axis=-1)

    def unravel(self, vector: Float[Array, "... d"]) -> Theta:
        ends = [0]
        for shape in self.shapes:
            ends.append(ends[-1] + math.prod(shape))
        leaves = [
            jnp.reshape(vector[..., start:end], vector.shape[:-1] + shape)
            for start, end, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, leaves)


class CorrelatedSampler(GaussianSampler):
    """Draws of a Gaussian with full covariance, given a Cholesky factor of its precision."""

    mean: Float[Array, " d"]
    cholesky: Float[Array, "d d"]
    layout: Layout = eqx.field(static=True)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        noise = jax.random.normal(key, (*shape, self.mean.size), self.mean.dtype)
        drawn = self.spread(noise.reshape(-1, noise.shape[-1]))
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), drawn)

    def spread(self, noise: Float[Array, "s d"]) -> Theta:
        away = jsp.linalg.solve_triangular(self.cholesky, noise.T, lower=True, trans="T").T
        return self.layout.unravel(self.mean + away)


class FullGaussian(Gaussian):
    """A Gaussian with full covariance over all parameters, raveled into one vector where θ is a pytree."""

    precision_mean: Float[Array, " d"]
    precision: Float[Array, "d d"]
    layout: Layout = eqx.field(static=True)

    @classmethod
    def from_mean_covariance(cls, mean: Theta, covariance: Float[Array, "d d"]) -> Self:
        """The member with this mean, shaped like θ, and this covariance of the raveled θ."""
        layout = Layout.of(mean)
        vector = layout.ravel(jax.tree.map(floating, mean))
        precision = _inverse(jnp.linalg.cholesky(jnp.asarray(covariance, vector.dtype)))
        return cls(precision @ vector, precision, layout)

    @classmethod
    def standard_normal(cls, like: Theta | int, scale: float = 1.0) -> Self:
        """N(0, scale²) for every parameter; `like` is a θ, or the number of parameters."""
        zeros = _zeros(like)
        layout = Layout.of(zeros)
        vector = layout.ravel(zeros)
        return cls(vector, jnp.eye(vector.size, dtype=vector.dtype) / scale**2, layout)

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
        return self.precision_mean @ self._vector_mean() / 2 - half_log_det + self.precision_mean.size * _LOG_2PI / 2

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        half = jsp.linalg.solve_triangular(other._cholesky(), self.precision, lower=True)
        ratios = jnp.linalg.eigvalsh(jsp.linalg.solve_triangular(other._cholesky(), half.T, lower=True))
        return ratios[0], ratios[-1]

    def is_proper(self) -> Bool[Array, ""]:
        return self.is_finite() & jnp.all(jnp.isfinite(self._cholesky()))

    def sampler(self) -> CorrelatedSampler:
        return CorrelatedSampler(self._vector_mean(), self._cholesky(), self.layout)

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
        logs = jnp.diag(jnp.log(jnp.diagonal(lower)))
        return Unconstrained(self._vector_mean(), jnp.tril(lower, -1) + logs)

    def with_unconstrained(self, unconstrained: Unconstrained) -> Self:
        mean, log_sd = unconstrained
        lower = jnp.tril(log_sd, -1) + jnp.diag(jnp.exp(jnp.diagonal(log_sd)))
        precision = _inverse(lower)
        return type(self)(precision @ mean, precision, self.layout)

    def mean_parameters(self) -> Moments:
        mean = self._vector_mean()
        return Moments(mean, -(jnp.outer(mean, mean) + self.covariance) / 2)

    def with_mean_parameters(self, mean: Moments) -> Self:
        covariance = -2 * mean.second - jnp.outer(mean.first, mean.first)
        return self.with_standard(Standard(mean.first, covariance))

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
        return self.precision_mean.size * (1 + _LOG_2PI) / 2 - jnp.sum(jnp.log(jnp.diagonal(self._cholesky())))

    def kl(self, other: Self) -> Float[Array, ""]:
        mine, theirs = self._cholesky(), other._cholesky()
        ratio = jsp.linalg.solve_triangular(mine, theirs, lower=True)
        gap = theirs.T @ (self._vector_mean() - other._vector_mean())
        log_ratio = jnp.sum(jnp.log(jnp.diagonal(mine))) - jnp.sum(jnp.log(jnp.diagonal(theirs)))
        return (jnp.sum(ratio**2) - self.precision_mean.size + jnp.sum(gap**2)) / 2 + log_ratio

    def project(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        _needs_vector(self.mean)
        return x @ self._vector_mean(), jnp.sum((x @ self.covariance) * x, axis=-1)


def symmetric(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The symmetric part of a matrix."""
    return (matrix + matrix.T) / 2


def _inverse(lower: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """(L Lᵀ)⁻¹ of a lower triangular L, exactly symmetric."""
    half = jsp.linalg.solve_triangular(lower, jnp.eye(lower.shape[-1], dtype=lower.dtype), lower=True)
    return half.T @ half


def _total(function: Callable[..., Array], *trees: PyTree) -> Float[Array, ""]:
    """The sum of a function of corresponding elements over all leaves."""
    terms = jax.tree.leaves(jax.tree.map(lambda *leaves: jnp.sum(function(*leaves)), *trees))
    return jnp.sum(jnp.stack(terms))


def _zeros(like: Theta | int) -> Theta:
    """A θ of zeros with the structure of `like`, or a vector of `like` zeros."""
    if isinstance(like, int | np.integer):
        return jnp.zeros(int(like))
    return jax.tree.map(lambda leaf: jnp.zeros_like(floating(leaf)), like)


def _needs_vector(theta: Theta) -> None:
    if not isinstance(theta, jax.Array) or theta.ndim != 1:
        raise SettingsError("A linear predictor needs a family over one vector of coefficients, not over a pytree.")
