"""What groups of rows say at one posterior: predictors are Gaussian given each of some nodes of their scales."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.data.table import Table
from partita.expectations.blocks import BLOCK
from partita.expectations.capabilities import Rows
from partita.expectations.conditionals import Branches, Conditionals, Forest, Nested
from partita.models.glm import GeneralisedLinear

__all__ = ["PosedGroups", "RowsWithoutGroups", "Scales"]

_START = 0.5
"""The power at which conditionals start."""


class RowsWithoutGroups(NamedTuple):
    """What does not depend on conditionals, of one row or of all."""

    mean: Float[Array, "..."]
    """The mean of the predictor without effects of groups."""
    along: Float[Array, "... h"]
    """Its slope in the standardised s."""
    variance: Float[Array, "..."]
    """Its variance given s."""
    spread: Float[Array, "... p"]
    """Its covariance with θ given s."""
    y: Float[Array, "..."]
    z: Float[Array, "... d"]


class Scales(NamedTuple):
    """How effects of all levels vary, at nodes of the standardised s."""

    nodes: Float[Array, "h j"]
    masses: Float[Array, " j"]
    logs: Float[Array, "j e"]
    """The log standard deviations of effects."""
    triangle: Float[Array, "j e e"]
    """The square root of their correlations, none of which are between levels."""
    middle: Float[Array, " e"]
    """The standard deviations at the mean of s."""
    rates: Float[Array, " e"]
    """Their derivatives in s there."""


class PosedGroups(eqx.Module):
    """What groups say at one q, the outermost first: given each node of s, predictors are Gaussian."""

    likelihood: GeneralisedLinear
    sizes: tuple[int, ...] = eqx.field(static=True)
    """How many effects a group of each level has."""
    spots: tuple[int, ...] = eqx.field(static=True)
    """For each effect the element of θ that says its standard deviation."""
    rows: RowsWithoutGroups
    weights: Rows
    forest: Forest
    counts: tuple[Rows, ...]
    """The sum of weights of each group."""
    mean: Float[Array, " p"]
    precision: Float[Array, "p p"]
    along: Float[Array, "p h"]
    """The slope of θ in the standardised s."""
    within: Float[Array, "p p"]
    """The covariance of θ given s."""
    scales: Scales

    @property
    def present(self) -> tuple[Bool[Array, " g"], ...]:
        return tuple(count > 0 for count in self.counts)

    @property
    def slices(self) -> list[slice]:
        """Which of all effects are those of each level."""
        ends = [sum(self.sizes[: place + 1]) for place in range(len(self.sizes))]
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def begin(self) -> Nested:
        """Groups whose rows have no weight stay there: they have the prior, with expected correlations."""
        groups, dtype = len(self.weights), self.mean.dtype
        triangle = self.scales.triangle
        correlations = jnp.einsum("j,jkl,jml->km", self.scales.masses, triangle, triangle)
        return tuple(
            Conditionals(
                jnp.zeros((groups, size), dtype),
                jnp.zeros((groups, size, len(self.mean) + own.start), dtype),
                jnp.where(present[:, None, None], jnp.eye(size, dtype=dtype), correlations[own, own]),
                jnp.broadcast_to(jnp.where(present[:, None], jnp.asarray(_START, dtype), 1), (groups, size)),
            )
            for size, own, present in zip(self.sizes, self.slices, self.present, strict=True)
        )

    def recentred(self, nested: Nested, changes: Sequence[Float[Array, "g d"]]) -> Nested:
        found, around = list[Conditionals](), jnp.zeros((len(self.weights), 0), self.mean.dtype)
        size = len(self.mean)
        for level, change, own, up in zip(nested, changes, self.slices, self.forest.above, strict=True):
            outer, spots = around[up], jnp.array(self.spots, int)
            # u around is u' / factor less what u' has of s
            factors, means = outer[:, : own.start], outer[:, own.start :]
            along = level.slope[:, :, size:] / factors[:, None, :]
            slope = level.slope[:, :, :size].at[:, :, spots[: own.start]].add(-along * means[:, None, :])
            factor = self.scales.middle[own] ** (-change)
            mean = factor * level.mean
            by_s = mean * -change * self.scales.rates[own] / self.scales.middle[own]
            slope = (factor[:, :, None] * slope).at[:, jnp.arange(own.stop - own.start), spots[own]].add(by_s)
            slope = jnp.concatenate([slope, factor[:, :, None] * along], -1)
            covariance = factor[:, :, None] * level.covariance * factor[:, None, :]
            found.append(Conditionals(mean, slope, covariance, level.power + change))
            around = jnp.concatenate([factors, factor, means, by_s], -1)
        return tuple(found)

    def joint(self, nested: Nested) -> Rows:
        branches, root = Branches.every(nested, self.forest, self.mean), self.forest.root
        told = jnp.zeros_like(self.weights).at[self.forest.place[0]].add(self.weights * self._own(branches[-1]))
        each = zip(self._effects(branches), self.present, root, strict=True)
        for effects, present, outermost in each:
            told = told.at[outermost].add(jnp.where(present, effects, 0))
        return told

    def by_row(self, nested: Nested) -> Rows:
        branches = Branches.every(nested, self.forest, self.mean)
        found = self._own(branches[-1])
        each = zip(self._effects(branches), nested, self.counts, self.forest.place, strict=True)
        for effects, level, count, place in each:
            found = found + ((effects + level.entropy()) / jnp.where(count > 0, count, 1))[place]
        return found

    def _at(self, branches: Branches) -> tuple[Array, Array, Array]:
        """Every group's mean of u, its slope in the standardised s, and its covariance given s."""
        mean, slope, covariance, _ = branches
        moved = mean + slope @ (self.mean - jax.lax.stop_gradient(self.mean))
        return moved, slope @ self.along, covariance + slope @ self.within @ jnp.swapaxes(slope, -1, -2)

    def _effects(self, branches: Sequence[Branches]) -> list[Rows]:
        """Every group's E[log p(u_g | s)], by level."""
        scales = self.scales

        def of_level(branch: Branches, own: slice) -> Rows:
            logs, triangle = scales.logs[:, own], scales.triangle[:, own, own]
            inverse = jax.scipy.linalg.solve_triangular(
                triangle, jnp.broadcast_to(jnp.eye(logs.shape[1], dtype=logs.dtype), triangle.shape), lower=True
            )
            correlated = jnp.swapaxes(inverse, -1, -2) @ inverse
            halves = jnp.sum(jnp.log(jnp.diagonal(triangle, axis1=-2, axis2=-1)), axis=-1)

            def group(mean: Array, along: Array, covariance: Array, power: Array) -> Float[Array, ""]:
                scaled = jnp.exp((power - 1) * logs)
                at = scaled * (mean + (along @ scales.nodes).T)
                square = jnp.einsum("jk,jkl,jl->j", at, correlated, at)
                spread = jnp.einsum("jk,jl,jkl,kl->j", scaled, scaled, correlated, covariance)
                left = logs @ (1 - power) + halves
                return -scales.masses @ ((square + spread) / 2 + left) - len(mean) * jnp.log(2 * jnp.pi) / 2

            mine = Branches(
                branch.mean[:, own], branch.slope[:, own], branch.covariance[:, own, own], branch.power[:, own]
            )
            return _each(group, *self._at(mine), mine.power)

        return [of_level(branch, own) for branch, own in zip(branches, self.slices, strict=True)]

    def _own(self, branches: Branches) -> Rows:
        """Every row's E[log p(y_n | θ, φ)]."""
        model, masses, groups = self.likelihood, self.scales.masses, self._at(branches)

        def row(own: RowsWithoutGroups, place: Int[Array, ""]) -> Float[Array, ""]:
            mean, variance = self._predictor(branches, groups, own, place)
            table = Table(jnp.zeros((len(masses), 0)), jnp.broadcast_to(own.y, masses.shape))
            return masses @ model.expectation.at_predictor(model, mean, variance, table)

        return _each(row, self.rows, self.forest.place[-1])

    def predictors(
        self, branches: Branches, place: Int[Array, " n"], known: Bool[Array, "n l"]
    ) -> tuple[Float[Array, "n j"], Float[Array, "n j"]]:
        """Mean and variance of every row's predictor at each node of s, where only groups of some levels are known.

        Effects of the others are those of groups that nobody has seen.
        """
        groups, scales = self._at(branches), self.scales
        mine = jnp.repeat(known, jnp.array(self.sizes), axis=1, total_repeat_length=sum(self.sizes))

        def each(own: RowsWithoutGroups, place: Int[Array, ""], mine: Bool[Array, " e"]) -> tuple[Array, Array]:
            mean, variance = self._predictor(branches, groups, own._replace(z=jnp.where(mine, own.z, 0)), place)
            scaled = jnp.where(mine, 0, own.z) * jnp.exp(scales.logs)
            return mean, variance + jnp.sum(jnp.einsum("jk,jkl->jl", scaled, scales.triangle) ** 2, axis=-1)

        return jax.vmap(each)(self.rows, place, mine)

    def _predictor(
        self, branches: Branches, groups: tuple[Array, Array, Array], own: RowsWithoutGroups, place: Int[Array, ""]
    ) -> tuple[Float[Array, " j"], Float[Array, " j"]]:
        """Mean and variance of a row's predictor at each node of s."""
        mean, along, covariance = groups
        scaled = own.z * jnp.exp(branches.power[place] * self.scales.logs)
        effects = jnp.sum(scaled * (mean[place] + (along[place] @ self.scales.nodes).T), axis=-1)
        across = scaled @ (branches.slope[place] @ own.spread)
        variance = own.variance + 2 * across + jnp.sum((scaled @ covariance[place]) * scaled, axis=-1)
        return own.mean + own.along @ self.scales.nodes + effects, variance


def _each(function: Callable[..., Float[Array, ""]], *arrays: PyTree) -> Rows:
    """The function of each place, in blocks where there are many."""
    if len(jax.tree.leaves(arrays)[0]) <= BLOCK:
        return jax.vmap(function)(*arrays)
    return jax.lax.map(jax.checkpoint(lambda each: function(*each)), arrays, batch_size=BLOCK)
