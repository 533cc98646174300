"""Gaussian families, mean-field and with full covariance, over arrays and over pytrees of arrays."""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key, PyTree

from partita.errors import DataError, InputError, SettingsError
from partita.families.base import Family, Theta, finite, floating, positive
from partita.families.capabilities import Projected, Spreading
from partita.families.layout import Layout
from partita.inputs import check_finite_number, check_seed, check_whole, described
from partita.numerics.arrays import jax_array
from partita.numerics.noise import standard_normal

__all__ = [
    "LOG_2PI",
    "Gaussian",
    "MeanFieldGaussian",
    "Moments",
    "Standard",
    "Unconstrained",
    "check_vector",
    "gaussian",
    "zeros_of",
]

LOG_2PI = math.log(2 * math.pi)


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

    def project(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance of the linear predictor xᵀθ of each row."""
        return self.projected(self.standard(), x)

    @abc.abstractmethod
    def projected(self, standard: Standard, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The same of a block of rows, given mean and variance of θ, which are computed once for all blocks."""

    def predictors(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
        """Mean and covariance of all rows' predictors jointly."""
        return self.project(x)[0], x @ self.covariance @ x.T

    @property
    @abc.abstractmethod
    def covariance(self) -> Float[Array, "d d"]:
        """The covariance of the raveled θ."""

    @property
    @abc.abstractmethod
    def independent_groups(self) -> int:
        """How many groups of parameters are independent of one another: 1 where all covariances are free."""

    @abc.abstractmethod
    def times(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """Λ times a vector, where θ is one."""

    @abc.abstractmethod
    def matrix(self) -> Float[Array, "d d"]:
        """Λ as a matrix, where θ is a vector."""

    @abc.abstractmethod
    def cut(self, matrix: Float[Array, "d d"]) -> PyTree:
        """Those elements of a matrix that `precision` holds, and in its form, where θ is a vector."""

    @abc.abstractmethod
    def gram(self, x: Float[Array, "n d"], rows: Float[Array, " n"]) -> PyTree:
        """The same of Σ_n rows_n x_n x_nᵀ."""

    @abc.abstractmethod
    def sampler(self) -> Spreading: ...

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        return self.sampler().sample(key, shape)

    def moments(self) -> tuple[Theta, Theta]:
        return self.mean, self.sd

    def interval(self, mass: float = 0.95) -> tuple[Theta, Theta]:
        width = jsp.special.ndtri((1 + mass) / 2)
        mean, sd = self.moments()
        low = jax.tree.map(lambda m, s: m - width * s, mean, sd)
        return low, jax.tree.map(lambda m, s: m + width * s, mean, sd)


class _IndependentSampler(eqx.Module):
    """Draws of independent Gaussians."""

    mean: PyTree[Float[Array, "?*k"], " T"]
    sd: PyTree[Float[Array, "?*k"], " T"]

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        keys = _keys(key, self.mean)
        noise = jax.tree.map(lambda m, k: standard_normal(k, shape + m.shape, m.dtype), self.mean, keys)
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.sd, noise)

    def spread(self, noise: Float[Array, "s d"]) -> Theta:
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.sd, Layout.of(self.mean).unravel(noise))


class MeanFieldGaussian(Gaussian):
    """Independent Gaussians, one per parameter; the leaves have the tree and the shapes of θ."""

    precision_mean: PyTree[Float[Array, "?*k"], " T"]
    precision: PyTree[Float[Array, "?*k"], " T"]

    @classmethod
    def from_mean_sd(cls, mean: Theta, sd: Theta) -> Self:
        """The member with this mean and standard deviation, each shaped like θ; a scalar sd serves every parameter."""
        if not jax.tree.leaves(mean):
            raise SettingsError(f"The mean must be shaped like θ, with numbers, not {described(mean)}.")
        mean = jax.tree.map(lambda leaf: finite(leaf, "mean"), mean)
        trees: list[Any] = [jax.tree.structure(tree) for tree in (mean, sd)]
        if trees[0] != trees[1]:
            check_finite_number("standard deviation, where it is not shaped like the mean,", sd, above=0)
            sd = jax.tree.map(lambda m: sd, mean)
        sd = jax.tree.map(_spread, mean, sd)
        return cls(*_natural(mean, sd))

    @classmethod
    def standard_normal(cls, like: Theta | int, scale: float = 1.0) -> Self:
        """N(0, scale²) for every parameter; `like` is a θ, or the number of parameters."""
        check_finite_number("scale", scale, above=0)
        return cls.from_mean_sd(zeros_of(like), scale)

    @classmethod
    def tight(cls, like: Theta | int, seed: int = 0, spread: float = 0.1, variance: float = 1e-3) -> Self:
        """An initial q for networks: random means in ±spread and a small variance.

        From a wide q a network's gradients are mostly noise (`sec:experiments:fmnist`).
        """
        check_seed(seed)
        check_finite_number("spread", spread)
        check_finite_number("variance", variance, above=0)
        zeros = zeros_of(like)
        keys = _keys(jax.random.key(seed), zeros)
        means = jax.tree.map(lambda m, k: jax.random.uniform(k, m.shape, m.dtype, -spread, spread), zeros, keys)
        return cls.from_mean_sd(means, math.sqrt(variance))

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
        return _total(lambda b, p: b**2 / (2 * p) - jnp.log(p) / 2 + LOG_2PI / 2, self.precision_mean, self.precision)

    def is_proper(self) -> Bool[Array, ""]:
        return self.is_finite() & jnp.all(jnp.array([jnp.all(p > 0) for p in jax.tree.leaves(self.precision)]))

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        ratios = jax.tree.leaves(jax.tree.map(jnp.divide, self.precision, other.precision))
        return jnp.min(jnp.array([r.min() for r in ratios])), jnp.max(jnp.array([r.max() for r in ratios]))

    def sampler(self) -> _IndependentSampler:
        return _IndependentSampler(self.mean, self.sd)

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

        def tighten(m: Array, v: Array, b: Array, p: Array, mean: bool, precision: bool) -> Array:
            return (p if mean else p - 2 * m * b / (v + 2 * m**2)) if precision else jnp.zeros_like(p)

        ways = direction.precision_mean, direction.precision, free.precision_mean, free.precision
        return type(self)(jax.tree.map(shift, self.mean, *ways), jax.tree.map(tighten, self.mean, self.variance, *ways))

    def entropy(self) -> Float[Array, ""]:
        return _total(lambda p: (1 + LOG_2PI - jnp.log(p)) / 2, self.precision)

    def kl(self, other: Self) -> Float[Array, ""]:
        def one_parameter(m: Array, p: Array, n: Array, r: Array) -> Array:
            return (r / p - 1 - jnp.log(r / p) + r * (m - n) ** 2) / 2

        return _total(one_parameter, self.mean, self.precision, other.mean, other.precision)

    def project(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        check_vector(self.precision)
        return x @ self.mean, jnp.sum(jnp.square(x) * self.variance, axis=-1)

    def projected(self, standard: Standard, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """In half of the time of `project`, which makes no copy of the squares of all rows."""
        check_vector(self.precision)
        return x @ standard.mean, jnp.square(x) @ standard.variance

    @property
    def covariance(self) -> Float[Array, "d d"]:
        return jnp.diag(ravel_pytree(self.variance)[0])

    @property
    def independent_groups(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.precision))

    def times(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.precision * vector

    def matrix(self) -> Float[Array, "d d"]:
        return jnp.diag(self.precision)

    def cut(self, matrix: Float[Array, "d d"]) -> Float[Array, " d"]:
        return jnp.diagonal(matrix)

    def gram(self, x: Float[Array, "n d"], rows: Float[Array, " n"]) -> Float[Array, " d"]:
        return jnp.sum(jnp.square(x) * rows[:, None], axis=0)


def _keys(key: Key[Array, ""], tree: PyTree) -> PyTree:
    """A key for every leaf."""
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, list(jax.random.split(key, len(leaves))))


def _total(function: Callable[..., Array], *trees: PyTree) -> Float[Array, ""]:
    """The sum of a function of corresponding elements over all leaves."""
    terms = jax.tree.leaves(jax.tree.map(lambda *leaves: jnp.sum(function(*leaves)), *trees))
    return jnp.sum(jnp.stack(terms))


def _spread(mean: Array, sd: Any) -> Float[Array, "..."]:
    """A standard deviation for every element of a mean."""
    spread = positive(sd, "standard deviation").astype(mean.dtype)
    if spread.shape not in ((), mean.shape):
        raise SettingsError(
            f"The standard deviation has the shape {spread.shape} and the mean {mean.shape}: give one for each, or one."
        )
    return spread


@functools.partial(jax.jit, inline=True)
def _natural(mean: Theta, sd: Theta) -> tuple[Theta, Theta]:
    """Precision times mean, and precision."""
    precision = jax.tree.map(lambda m, s: jnp.broadcast_to(1 / s**2, m.shape), mean, sd)
    return jax.tree.map(jnp.multiply, precision, mean), precision


def zeros_of(like: Theta | int) -> Theta:
    """A θ of zeros with the structure of `like`, or a vector of `like` zeros."""
    if isinstance(like, int | np.integer):
        check_whole("number of parameters", like)
        return jax_array(np.zeros(int(like)))
    if not jax.tree.leaves(like):
        raise SettingsError(f"Give a θ with numbers, or the number of parameters, not {described(like)}.")
    return jax.tree.map(lambda leaf: jax_array(np.zeros(jnp.shape(leaf), floating(leaf).dtype)), like)


def gaussian(
    q: Family, who: str = "A linear predictor", instead: str = "use MonteCarlo", error: type[InputError] = DataError
) -> Gaussian:
    """q if it is Gaussian; otherwise raises an `InputError` with who needs it, and what to use instead."""
    if not isinstance(q, Projected):
        raise error(f"{who} needs a Gaussian family, not {type(q).__name__}: {instead}.")
    return cast(Gaussian, q)


def check_vector(theta: Theta) -> None:
    """Raises a `SettingsError` unless θ is one vector."""
    if not isinstance(theta, jax.Array) or theta.ndim != 1:
        raise SettingsError("A linear predictor needs a family over one vector of coefficients, not over a pytree.")
