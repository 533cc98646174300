"""Gaussians with full covariance within blocks of parameters, and none across them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, Real

from partita.errors import SettingsError
from partita.families.base import Numbers, Theta, finite, positive
from partita.families.full_gaussian import FullGaussian, drawn
from partita.families.gaussian import LOG_2PI, Gaussian, Moments, Standard, Unconstrained
from partita.families.layout import Layout
from partita.inputs import check_finite_number, check_kind, check_whole

__all__ = ["BlockGaussian"]

_Vectors = Float[Array, "b s"]
_Matrices = Float[Array, "b s s"]


class _Places:
    """Where the parameters of each block are in a vector, and the shorter blocks end."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        most, starts = max(sizes), np.cumsum((0, *sizes[:-1]))
        within = np.arange(most)
        self.full: Bool[np.ndarray, "b s"] = within < np.array(sizes)[:, None]
        self.of: Int[np.ndarray, "b s"] = np.where(self.full, starts[:, None] + within, 0)
        self.square: Bool[np.ndarray, "b s s"] = self.full[:, :, None] & self.full[:, None, :]
        self.empty = int((~self.full).sum())

    def cut(self, vector: Float[Array, "... d"]) -> Float[Array, "b ... s"]:
        """The last axis in blocks, which are the first axis; 0 where a block is short."""
        parts = jnp.moveaxis(vector[..., self.of], -2, 0)
        return jnp.where(jnp.expand_dims(self.full, range(1, vector.ndim)), parts, 0)

    def join(self, parts: Float[Array, "b ... s"]) -> Float[Array, "... d"]:
        """The inverse of `cut`."""
        rows = jnp.moveaxis(parts, 0, -2)
        return rows.reshape(*rows.shape[:-2], -1)[..., np.flatnonzero(self.full)]

    def masked(self, matrices: _Matrices) -> _Matrices:
        """0 where a block is short."""
        return jnp.where(self.square, matrices, 0)

    def filled(self, matrices: _Matrices, diagonal: ArrayLike = 1) -> _Matrices:
        """A diagonal where a block is short, so that each is that of a proper Gaussian if the block is."""
        rest = jnp.asarray(diagonal, matrices.dtype) * np.eye(self.full.shape[1], dtype=matrices.dtype)
        return jnp.where(self.square, matrices, rest)

    def dense(self, matrices: _Matrices) -> Float[Array, "d d"]:
        """The block-diagonal matrix."""
        block, row, column = np.nonzero(self.square)
        size = int(self.full.sum())
        empty = jnp.zeros((size, size), matrices.dtype)
        return empty.at[self.of[block, row], self.of[block, column]].set(matrices[block, row, column])

    def blocks(self, matrix: Float[Array, "d d"]) -> _Matrices:
        """Its blocks on the diagonal."""
        return self.masked(matrix[self.of[:, :, None], self.of[:, None, :]])


_places: Callable[[tuple[int, ...]], _Places] = functools.lru_cache(_Places)


class _BlockSampler(eqx.Module):
    """Draws of independent blocks, given Cholesky factors of their precisions."""

    mean: Float[Array, " d"]
    cholesky: _Matrices
    sizes: tuple[int, ...] = eqx.field(static=True)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        return drawn(self, key, shape)

    def spread(self, noise: Float[Array, "s d"]) -> Theta:
        def away(cholesky: Float[Array, "p p"], part: Float[Array, "s p"]) -> Float[Array, "s p"]:
            return jsp.linalg.solve_triangular(cholesky, part.T, lower=True, trans="T").T

        places = _places(self.sizes)
        return self.mean + places.join(_each(away, self.cholesky, places.cut(noise)))


class BlockGaussian(Gaussian):
    """A Gaussian over one vector whose precision is block-diagonal; a block is of neighbours in the vector.

    With blocks of s parameters it holds d·s numbers, where a full precision has d². Products, quotients and powers
    keep the blocks, since natural parameters add. It is a product of full Gaussians, computed all at once: blocks are
    stacked, and what a shorter one lacks is 0 in the natural parameters, and as if standard normal where a density is
    needed.
    """

    precision_mean: Float[Array, " d"]
    precision: _Matrices
    sizes: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def from_mean_covariances(cls, mean: Numbers, covariances: Sequence[Real[ArrayLike, "_ _"]]) -> Self:
        """The member with this mean, a vector, and the covariance of each block, in the order of the vector."""
        check_kind("covariances", covariances, (list, tuple), "give a square matrix for each block", name="a list")
        vector, squares = finite(mean, "mean"), [finite(each, "covariance") for each in covariances]
        for square in squares:
            if square.ndim != 2 or square.shape[0] != square.shape[1] or not square.size:
                raise SettingsError(f"The covariance of a block has the shape {square.shape}: give square matrices.")
        sizes = tuple(len(square) for square in squares)
        if not sizes or vector.shape != (sum(sizes),):
            raise SettingsError(f"A mean of shape {vector.shape} and blocks of {sum(sizes)} parameters do not match.")
        parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        found = [
            FullGaussian.from_mean_covariance(vector[part], each) for part, each in zip(parts, squares, strict=True)
        ]
        padded = [jnp.pad(each.precision, (0, max(sizes) - len(each.precision))) for each in found]
        return cls(jnp.concatenate([each.precision_mean for each in found]), jnp.stack(padded), sizes)

    @classmethod
    def from_mean_sd(cls, mean: Numbers, sd: Numbers, sizes: Sequence[int]) -> Self:
        """The member with this mean and standard deviation of each parameter, without correlation, in blocks."""
        vector, spread, sizes = finite(mean, "mean"), positive(sd, "standard deviation"), _sizes(sizes)
        if not vector.shape == spread.shape == (sum(sizes),):
            raise SettingsError(
                f"A mean of shape {vector.shape}, a standard deviation of shape {spread.shape} and blocks of "
                f"{sum(sizes)} parameters do not match."
            )
        precision = 1 / spread.astype(vector.dtype) ** 2
        own = _places(sizes).cut(precision)
        return cls(precision * vector, own[:, :, None] * np.eye(max(sizes), dtype=vector.dtype), sizes)

    @classmethod
    def standard_normal(cls, sizes: Sequence[int], scale: float = 1.0) -> Self:
        """N(0, scale²) for every parameter, in blocks of these sizes."""
        check_finite_number("scale", scale, above=0)
        size = sum(_sizes(sizes))
        return cls.from_mean_sd(np.zeros(size), np.full(size, float(scale)), sizes)

    @property
    def _at(self) -> _Places:
        return _places(self.sizes)

    def _parts(self, diagonal: ArrayLike = 1) -> Any:
        """All blocks as one batch of full Gaussians."""
        return _batch(self._at.cut(self.precision_mean), self._at.filled(self.precision, diagonal))

    def _joined(self, parts: FullGaussian) -> Self:
        return type(self)(self._at.join(parts.precision_mean), self._at.masked(parts.precision), self.sizes)

    @property
    def mean(self) -> Float[Array, " d"]:
        return self._at.join(_each(lambda part: part.mean, self._parts()))

    @property
    def sd(self) -> Float[Array, " d"]:
        return self._at.join(_each(lambda part: part.sd, self._parts()))

    @property
    def covariance(self) -> Float[Array, "d d"]:
        return self._at.dense(self.standard().variance)

    @property
    def independent_groups(self) -> int:
        return len(self.sizes)

    def statistics(self, theta: Theta) -> Moments:
        parts = self._at.cut(theta)
        return Moments(theta, -parts[:, :, None] * parts[:, None, :] / 2)

    def log_normaliser(self) -> Float[Array, ""]:
        return jnp.sum(_each(lambda part: part.log_normaliser(), self._parts())) - self._at.empty * LOG_2PI / 2

    def entropy(self) -> Float[Array, ""]:
        return jnp.sum(_each(lambda part: part.entropy(), self._parts())) - self._at.empty * (1 + LOG_2PI) / 2

    def kl(self, other: Self) -> Float[Array, ""]:
        return jnp.sum(_each(lambda part, its: part.kl(its), self._parts(), other._parts()))

    def is_proper(self) -> Bool[Array, ""]:
        return self.is_finite() & jnp.all(_each(lambda part: part.is_proper(), self._parts()))

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """What a shorter block lacks has the ratio of its first parameter, which lies in the range."""
        mine, theirs = (member._parts(member.precision[:, :1, :1]) for member in (self, other))
        low, high = _each(lambda part, its: part.precision_range(its), mine, theirs)
        return jnp.min(low), jnp.max(high)

    def sampler(self) -> _BlockSampler:
        factors = _each(lambda part: part.sampler().cholesky, self._parts())
        return _BlockSampler(self.mean, factors, self.sizes)

    def symmetrised(self) -> Self:
        """Also without anything where a block is short."""
        return self._joined(_each(lambda part: part.symmetrised(), self._parts()))

    def stretched(self, scale: Theta) -> Self:
        each = jnp.where(self._at.full, self._at.cut(scale), 1)
        return self._joined(_each(lambda part, own: part.stretched(own), self._parts(), each))

    def standard(self) -> Standard:
        mean, variance = _each(lambda part: part.standard(), self._parts())
        return Standard(self._at.join(mean), self._at.masked(variance))

    def with_standard(self, standard: Standard) -> Self:
        parts = Standard(self._at.cut(standard.mean), self._at.filled(standard.variance))
        return self._joined(_each(lambda part, own: part.with_standard(own), self._parts(), parts))

    def unconstrained(self) -> Unconstrained:
        mean, log_sd = _each(lambda part: part.unconstrained(), self._parts())
        return Unconstrained(self._at.join(mean), self._at.masked(log_sd))

    def with_unconstrained(self, unconstrained: Unconstrained) -> Self:
        parts = Unconstrained(self._at.cut(unconstrained.mean), self._at.masked(unconstrained.log_sd))
        return self._joined(_each(lambda part, own: part.with_unconstrained(own), self._parts(), parts))

    def mean_parameters(self) -> Moments:
        first, second = _each(lambda part: part.mean_parameters(), self._parts())
        return Moments(self._at.join(first), self._at.masked(second))

    def with_mean_parameters(self, mean: Moments) -> Self:
        first = self._at.cut(mean.first)
        return self.with_standard(Standard(mean.first, -2 * mean.second - first[:, :, None] * first[:, None, :]))

    def pull_back(self, gradient: Standard) -> Self:
        parts = Standard(self._at.cut(gradient.mean), self._at.masked(gradient.variance))
        return self._joined(_each(lambda part, own: part.pull_back(own), self._parts(), parts))

    def restricted(self, direction: Self, free: Self) -> Self:
        """Block by block, since the Fisher matrix is that of independent blocks."""

        def one(part: FullGaussian, its: FullGaussian) -> FullGaussian:
            return part.restricted(its, jax.tree.unflatten(jax.tree.structure(part), jax.tree.leaves(free)))

        its = _batch(self._at.cut(direction.precision_mean), self._at.masked(direction.precision))
        return self._joined(_each(one, self._parts(), its))

    def size(self) -> int:
        return sum(size + size**2 for size in self.sizes)

    def projected(self, standard: Standard, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        mean, variance = standard
        own = _each(lambda square, part: jnp.sum((part @ square) * part, axis=-1), variance, self._at.cut(x))
        return x @ mean, jnp.sum(own, axis=0)

    def times(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        return self._at.join(_each(jnp.matmul, self.precision, self._at.cut(vector)))

    def matrix(self) -> Float[Array, "d d"]:
        return self._at.dense(self.precision)

    def cut(self, matrix: Float[Array, "d d"]) -> _Matrices:
        return self._at.blocks(matrix)

    def gram(self, x: Float[Array, "n d"], rows: Float[Array, " n"]) -> _Matrices:
        weights = rows[:, None].astype(x.dtype)
        return _each(lambda part: (part * weights).T @ part, self._at.cut(x)).astype(rows.dtype)


def _each(function: Callable[..., Any], *batches: Any) -> Any:
    """A function of every block, one after the other.

    A run of ten blocks of 200 by `jax.vmap` was once seen to stop, with all of XLA's threads waiting (jaxlib 0.10, two
    cores); one after the other it went through.
    """
    return jax.lax.map(lambda each: function(*each), batches)


def _batch(precision_mean: _Vectors, precision: _Matrices) -> FullGaussian:
    """Full Gaussians along a leading axis, each of which is made of one vector and one matrix."""
    layout = Layout.of(jax.ShapeDtypeStruct(precision_mean.shape[1:], float))
    return jax.vmap(lambda vector, matrix: FullGaussian(vector, matrix, layout))(precision_mean, precision)


def _sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes of blocks."""
    check_kind("sizes of blocks", sizes, (list, tuple), "give a whole number for each block", name="a list")
    if not sizes:
        raise SettingsError("A BlockGaussian needs at least one block: give the size of each.")
    for size in sizes:
        check_whole("size of a block", size)
    return tuple(map(int, sizes))
