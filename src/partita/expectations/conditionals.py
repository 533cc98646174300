"""Gaussian conditionals q(u_g | θ) of variables that belong to one client, and what a model says of them."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from partita.expectations.capabilities import Rows
from partita.families import Family

__all__ = ["Conditionals", "LocalProblem", "LocalVariables", "inverse"]


class Conditionals(NamedTuple):
    """q(u_g | θ) = N(a_g + B_g (θ − m), W_g) for every group: with a Gaussian q(θ) jointly Gaussian.

    The joint precision is an arrow: it has no block between two groups. There are as many places for groups as there
    are rows, since a shape may not depend on values; those after the last group are empty.
    """

    mean: Float[Array, "g d"]
    """a_g: m is the mean of the q(θ) for which they were found."""
    slope: Float[Array, "g d p"]
    """B_g."""
    covariance: Float[Array, "g d d"]
    """W_g."""
    power: Float[Array, "g d"]
    """α_g, how far the model's φ_g = scale^α_g · u_g is from centred (0) towards non-centred (1)."""

    def entropy(self) -> Rows:
        """The entropy of every group's conditional."""
        size = self.mean.shape[-1]
        return inverse(self.covariance)[1] / 2 + size * (1 + jnp.log(2 * jnp.pi)) / 2


class LocalProblem(Protocol):
    """What a client's groups say at one q(θ)."""

    present: Bool[Array, " g"]
    """Which places hold a group with rows of positive weight."""
    precision: Float[Array, "p p"]
    """The precision of θ."""
    covariance: Float[Array, "p p"]
    """The covariance of θ."""

    def begin(self) -> Conditionals:
        """Conditionals to start from."""

    def joint(self, conditionals: Conditionals) -> Rows:
        """Every group's E_q[log p(y_g, u_g | θ)]."""

    def recentred(self, conditionals: Conditionals, change: Float[Array, "g d"]) -> Conditionals:
        """The same conditionals of φ, to first order, with powers that differ by so much."""

    def by_row(self, conditionals: Conditionals) -> Rows:
        """Each row's own expected log density, and an equal share of what its group has beside."""


@runtime_checkable
class LocalVariables(Protocol):
    """Rows that depend on θ and on variables of their group, which no other client's rows depend on."""

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
