"""Gaussian conditionals of variables that belong to one client, in groups within groups, and what a model says."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.expectations.capabilities import Rows
from partita.families import Family

__all__ = ["Branches", "Conditionals", "Forest", "LocalProblem", "LocalVariables", "Nested", "inverse", "stepped"]


class Conditionals(NamedTuple):
    """q(u_g | z) = N(a_g + B_g (z − E z), W_g) for every group of a level; z is θ and the variables of groups around g.

    With a Gaussian q(θ) that is jointly Gaussian. There are as many places for groups as there are rows, since a shape
    may not depend on values; those after the last group are empty.
    """

    mean: Float[Array, "g d"]
    """a_g, the mean of u_g at the q(θ) for which the conditionals were found."""
    slope: Float[Array, "g d r"]
    """B_g: for θ, and then for the variables around, the outermost first."""
    covariance: Float[Array, "g d d"]
    """W_g."""
    power: Float[Array, "g d"]
    """α_g, how far the model's φ_g = scale^α_g · u_g is from centred (0) towards non-centred (1)."""

    def entropy(self) -> Rows:
        """The entropy of every group's conditional."""
        size = self.mean.shape[-1]
        return inverse(self.covariance)[1] / 2 + size * (1 + jnp.log(2 * jnp.pi)) / 2


Nested = tuple[Conditionals, ...]
"""The conditionals of every level, the outermost first. Of two groups side by side the joint precision has no block."""


class Forest(eqx.Module):
    """Which group rows and groups lie in, level by level, the outermost first: groups have numbers from 0 up."""

    place: tuple[Int[Array, " n"], ...]
    """Every row's group."""
    above: tuple[Int[Array, " g"], ...]
    """The group around every group; of the first level itself."""
    root: tuple[Int[Array, " g"], ...]
    """The outermost group around every group."""

    @classmethod
    def of(cls, group: Float[Array, "n l"]) -> Self:
        """Of rows whose groups have these numbers; one of an inner level also has those of the groups around it."""
        place, outer = [], jnp.zeros(len(group), int)
        for column in group.T:
            order = jnp.lexsort((column, outer))
            inner, around = column[order], outer[order]
            new = (inner[1:] != inner[:-1]) | (around[1:] != around[:-1])
            outer = jnp.zeros_like(outer).at[order].set(jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(new)]))
            place.append(outer)
        empty = jnp.zeros_like(outer)
        above = [empty.at[own].set(up) for own, up in zip(place, [place[0], *place[:-1]], strict=True)]
        return cls(tuple(place), tuple(above), tuple(empty.at[own].set(place[0]) for own in place))


class Branches(NamedTuple):
    """q(u | θ) of a group's variables behind those of all groups around it, the outermost first."""

    mean: Float[Array, "g e"]
    slope: Float[Array, "g e p"]
    covariance: Float[Array, "g e e"]
    power: Float[Array, "g e"]

    @classmethod
    def none(cls, groups: int, like: Float[Array, " p"]) -> Self:
        """Of no variables, where θ is like this."""
        empty = jnp.zeros((groups, 0), like.dtype)
        slope, covariance = (jnp.zeros((groups, 0, size), like.dtype) for size in (len(like), 0))
        return cls(empty, slope, covariance, empty)

    @classmethod
    def every(cls, nested: Nested, forest: Forest, like: Float[Array, " p"]) -> "list[Branches]":
        """Those that end at groups of each level."""
        found = list["Branches"]()
        for level, up in zip(nested, forest.above, strict=True):
            around = cls.none(len(up), like) if not found else found[-1].at(up)
            found.append(around.longer(level))
        return found

    def at(self, place: Int[Array, " k"]) -> "Branches":
        """Those of the groups at these places."""
        return jax.tree.map(lambda leaf: leaf[place], self)

    def longer(self, level: Conditionals) -> "Branches":
        """The same with the variables behind whose conditionals are given."""
        size = self.slope.shape[-1]
        along = level.slope[..., size:]
        across = along @ self.covariance
        corner = level.covariance + across @ _turned(along)
        upper, lower = jnp.concatenate([self.covariance, _turned(across)], -1), jnp.concatenate([across, corner], -1)
        return Branches(
            jnp.concatenate([self.mean, level.mean], -1),
            jnp.concatenate([self.slope, level.slope[..., :size] + along @ self.slope], -2),
            jnp.concatenate([upper, lower], -2),
            jnp.concatenate([self.power, level.power], -1),
        )

    def natural(self, slopes: Float[Array, "g d r"], precision: Float[Array, "p p"]) -> Float[Array, "g d r"]:
        """The product of derivatives in slopes for z = (θ, u) with cov(z)⁻¹, by blocks; θ has this precision."""
        size = self.slope.shape[-1]
        by_theta, by_u = slopes[..., :size], slopes[..., size:]
        beside = (by_u - by_theta @ _turned(self.slope)) @ inverse(self.covariance)[0]
        return jnp.concatenate([by_theta @ precision - beside @ self.slope, beside], -1)


def stepped(nested: Nested, forest: Forest, step: Nested) -> Nested:
    """The conditionals after changes of them, as functions of z; powers stay.

    So a change of a group's mean moves the means of the groups in it.
    """
    found, moved = list[Conditionals](), list[Array]()
    for level, change, up in zip(nested, step, forest.above, strict=True):
        around = moved[-1][up] if moved else jnp.zeros((len(up), 0), level.mean.dtype)
        slope = level.slope + change.slope
        along = slope[..., slope.shape[-1] - around.shape[-1] :]
        mean = change.mean + jnp.einsum("gde,ge->gd", along, around)
        found.append(Conditionals(level.mean + mean, slope, level.covariance + change.covariance, level.power))
        moved.append(jnp.concatenate([around, mean], -1))
    return tuple(found)


class LocalProblem(Protocol):
    """What a client's groups say at one q(θ)."""

    forest: Forest
    present: tuple[Bool[Array, " g"], ...]
    """Which places of each level hold a group with rows of positive weight."""
    mean: Float[Array, " p"]
    """The mean of θ."""
    precision: Float[Array, "p p"]
    """The precision of θ."""

    def begin(self) -> Nested:
        """Conditionals to start from; at places that are not `present` they stay, so there they are the prior's."""

    def joint(self, nested: Nested) -> Rows:
        """E_q[log p(y, u | θ)] of all that lies in each outermost group."""

    def recentred(self, nested: Nested, changes: Sequence[Float[Array, "g d"]]) -> Nested:
        """The same conditionals of φ, to first order, with powers that differ by so much."""

    def by_row(self, nested: Nested) -> Rows:
        """Each row's own expected log density, and an equal share of what its groups have beside."""


@runtime_checkable
class LocalVariables(Protocol):
    """Rows that depend on θ and on variables of their groups, which no other client's rows depend on."""

    def posed(self, q: Family, data: PyTree, weights: Rows) -> LocalProblem:
        """What the client's groups say at q."""


def inverse(matrices: Float[Array, "... d d"]) -> tuple[Float[Array, "... d d"], Float[Array, "..."]]:
    """Inverses and log determinants of many small positive definite matrices, by Gauss–Jordan elimination.

    Element by element, which for few rows is quicker than a call for every matrix, and so is its derivative.
    """
    size = matrices.shape[-1]
    left, log_det = matrices, jnp.zeros(matrices.shape[:-2], matrices.dtype)
    for place in range(size):
        pivot = left[..., place, place]
        log_det = log_det + jnp.log(pivot)
        row, column = left[..., place, :], left[..., :, place]
        swept = left - column[..., :, None] * row[..., None, :] / pivot[..., None, None]
        here = jnp.arange(size) == place
        swept = jnp.where(here[:, None], row[..., None, :] / pivot[..., None, None], swept)
        swept = jnp.where(here, -column[..., :, None] / pivot[..., None, None], swept)
        left = jnp.where(here[:, None] & here, 1 / pivot[..., None, None], swept)
    return left, log_det


def _turned(matrices: Float[Array, "... a b"]) -> Float[Array, "... b a"]:
    return jnp.swapaxes(matrices, -1, -2)
