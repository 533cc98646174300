"""Factors of groups of a client's rows, and where they are stored."""

import abc
import dataclasses
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from partita.data.shard import Shard
from partita.errors import SettingsError
from partita.families import Family
from partita.families.gaussian import gaussian
from partita.local.objective import Problem
from partita.local.solvers.newton import linear_start
from partita.numerics.compiled import Scalar

__all__ = ["InFamily", "InPredictor", "LocalFactors"]

Kept = TypeVar("Kept")


class LocalFactors(eqx.Module, Generic[Kept]):
    """How factors of groups are stored: arrays whose first axis is the group."""

    @abc.abstractmethod
    def begin(self, problem: Problem, shares: Float[Array, "l s"]) -> Kept:
        """Factors of l groups of s rows whose product is start / context; `shares` of the rows add up to 1."""

    @abc.abstractmethod
    def updated(
        self, problem: Problem, q: Family, factors: Kept, damping: Scalar, key: Key[Array, ""]
    ) -> tuple[Family, Kept]:
        """q and the factors of some groups after a damped fixed-point step of them all at q.

        Arrays of the problem's data have the group first, and then the row in it.
        """


class InFamily(LocalFactors[Family]):
    """A member of the family for each group: for any model, any family and any expectation."""

    def begin(self, problem: Problem, shares: Float[Array, "l s"]) -> Family:
        before = problem.start / problem.context.natural
        return jax.vmap(lambda share: before**share)(jnp.sum(shares, axis=1))

    def updated(
        self, problem: Problem, q: Family, factors: Family, damping: Scalar, key: Key[Array, ""]
    ) -> tuple[Family, Family]:
        def target(data: PyTree, weights: Float[Array, " s"]) -> Family:
            group = Shard(data, weights, problem.shard.rows)
            return dataclasses.replace(problem, shard=group).likelihood_factor(q, key)

        targets = jax.vmap(target)(problem.shard.data, problem.shard.weights)
        change = (targets / factors) ** damping
        return q * jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), change), factors * change


class _Rows(NamedTuple):
    """Factors exp(shift·f − precision·f²/2) · (start / context)^share of rows with a predictor f = xᵀθ."""

    shift: Float[Array, "l s"]
    precision: Float[Array, "l s"]
    share: Float[Array, "l s"]


class InPredictor(LocalFactors[_Rows]):
    """Three numbers a row, for generalised linear models and a Gaussian with full covariance.

    The factor of a row is a Gaussian in its predictor f: two numbers, whatever the number of parameters. The third is
    how much of the factor from before the visit is still this row's. The factor of a group is the product of its rows'.
    """

    def begin(self, problem: Problem, shares: Float[Array, "l s"]) -> _Rows:
        q = linear_start(problem, "A factor in the predictor", "use InFamily()")
        if q.independent_groups > 1:
            raise SettingsError(
                f"The factor of a row is no function of its predictor in a {type(q).__name__}, whose parameters are "
                "independent: use InFamily(), or a FullGaussian as the prior."
            )
        return _Rows(jnp.zeros_like(shares), jnp.zeros_like(shares), shares)

    def updated(
        self, problem: Problem, q: Family, factors: _Rows, damping: Scalar, key: Key[Array, ""]
    ) -> tuple[Family, _Rows]:
        model, like = problem.model, gaussian(q)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (problem.shard.data, factors))
        data, held = flat
        mean, variance = like.project(data.x)

        def densities(mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, ""]:
            return jnp.sum(model.expectation.at_predictor(model, mean, variance, data))

        by_mean, by_variance = jax.grad(densities, argnums=(0, 1))(mean, variance)
        weights = problem.weight * problem.shard.weights.reshape(-1)
        target = _Rows(weights * (by_mean - 2 * by_variance * mean), -2 * weights * by_variance, 0 * weights)
        change = jax.tree.map(lambda a, b: damping * (a - b), target, held)
        before = (problem.start / problem.context.natural) ** jnp.sum(change.share)
        moved = dataclasses.replace(
            like, precision_mean=change.shift @ data.x, precision=like.gram(data.x, change.precision)
        )
        return q * before * moved, jax.tree.map(lambda a, b: a + b.reshape(a.shape), factors, change)
