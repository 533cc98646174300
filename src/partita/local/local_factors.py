"""Factors of groups of a client's rows, and where they are stored."""

import abc
import dataclasses
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from partita.data.shard import Shard
from partita.errors import SettingsError
from partita.families import Family
from partita.families.gaussian import gaussian
from partita.local.objective import Problem
from partita.local.solvers.newton import linear_start
from partita.models import Model
from partita.numerics.compiled import Scalar

__all__ = ["InFamily", "InPredictor", "LocalFactors"]

Kept = TypeVar("Kept")
_TOGETHER = 24
"""How many rows in turn share a factorisation of q."""
_UNROLLED = 4
"""How many of them are one step of the compiled loop."""


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

    def together(self, rows: int) -> int:
        """How many consecutive steps, each of so many rows, `in_turn` is best given at once."""
        return 1

    def in_turn(
        self, problem: Problem, q: Family, factors: Kept, damping: Scalar, key: Key[Array, ""]
    ) -> tuple[Family, Kept]:
        """q and the factors after consecutive steps, each at the q that the one before has left.

        Arrays have the step first, and then the group and the row in it.
        """

        def step(q: Family, turn: tuple[PyTree, Array, Kept, Int[Array, ""]]) -> tuple[Family, Kept]:
            data, weights, held, draw = turn
            rows = dataclasses.replace(problem, shard=Shard(data, weights, problem.shard.rows))
            return self.updated(rows, q, held, damping, jax.random.fold_in(key, draw))

        shard = problem.shard
        return jax.lax.scan(step, q, (shard.data, shard.weights, factors, jnp.arange(len(shard.weights))))


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


class _RowFactors(NamedTuple):
    """Factors exp(shift·f − precision·f²/2) · (start / context)^share of rows with a predictor f = xᵀθ."""

    shift: Float[Array, "l s"]
    precision: Float[Array, "l s"]
    share: Float[Array, "l s"]


class InPredictor(LocalFactors[_RowFactors]):
    """Three numbers a row, for generalised linear models and a Gaussian with full covariance.

    The factor of a row is a Gaussian in its predictor f: two numbers, whatever the number of parameters. The third is
    how much of the factor from before the visit is still this row's. The factor of a group is the product of its rows'.
    """

    def begin(self, problem: Problem, shares: Float[Array, "l s"]) -> _RowFactors:
        q = linear_start(problem, "A factor in the predictor", "use InFamily()")
        if q.independent_groups > 1:
            raise SettingsError(
                f"The factor of a row is no function of its predictor in a {type(q).__name__}, whose parameters are "
                "independent: use InFamily(), or a FullGaussian as the prior."
            )
        return _RowFactors(jnp.zeros_like(shares), jnp.zeros_like(shares), shares)

    def updated(
        self, problem: Problem, q: Family, factors: _RowFactors, damping: Scalar, key: Key[Array, ""]
    ) -> tuple[Family, _RowFactors]:
        data, held, weights = _in_one_axis((problem.shard.data, factors, problem.shard.weights), 2)
        mean, variance = gaussian(q).project(data.x)
        target = _RowFactors(
            *_target(problem.model, mean, variance, data, problem.weight * weights), jnp.zeros_like(mean)
        )
        change = jax.tree.map(lambda a, b: damping * (a - b), target, held)
        return _moved(problem, q, data, change), _added(factors, change)

    def together(self, rows: int) -> int:
        return _TOGETHER if rows == 1 else 1

    def in_turn(
        self, problem: Problem, q: Family, factors: _RowFactors, damping: Scalar, key: Key[Array, ""]
    ) -> tuple[Family, _RowFactors]:
        """Rows one by one by rank-one changes of q, seen in the predictors of the rows that are still to come.

        What a row asks of q is the mean and the variance of its predictor, and what its new factor changes of those of
        others follows from their covariances (Sherman and Morrison). So q itself is factorised once for all these
        steps, which bounds rounding too; what is left of the factor from before the visit is taken out with them.
        """
        shard = problem.shard
        if shard.weights[0].size > 1:
            return super().in_turn(problem, q, factors, damping, key)
        data, held, weights = _in_one_axis((shard.data, factors, problem.weight * shard.weights), 3)

        def row(joint: Float[Array, "c k"], turn: tuple[PyTree, Array, Array]) -> tuple[Array, Array]:
            """The change of the first row's factor, and means and covariances of the others' predictors after it."""
            datum, held, weight = turn
            mean, variance, others = joint[:1, 0], joint[:1, 1], joint[1:, 1]
            target = _target(problem.model, mean, variance, jax.tree.map(lambda leaf: leaf[None], datum), weight)
            change = damping * (jnp.concatenate(target) - held)
            left = 1 + change[1] * variance
            shrunk = 1 / jnp.where(left > 0, left, jnp.nan)
            pull = shrunk * jnp.concatenate([change[0] - change[1] * mean, -change[1] * others])
            rest = jnp.column_stack([joint[1:, 0], joint[1:, 2:]]) + others[:, None] * pull
            return jnp.pad(rest, ((0, 1), (0, 1))), change

        sites = jnp.column_stack([held.shift, held.precision])
        joint = jnp.column_stack(gaussian(q).predictors(data.x))
        changes = jax.lax.scan(row, joint, (data, sites, weights), unroll=_UNROLLED)[1]
        change = _RowFactors(changes[:, 0], changes[:, 1], -damping * held.share)
        return _moved(problem, q, data, change), _added(factors, change)


def _in_one_axis(tree: PyTree, axes: int) -> PyTree:
    """Arrays whose first axes are one."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[axes:]), tree)


def _target(
    model: Model, mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree, weights: Float[Array, "*#n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """∇_μ of the rows' expected log densities in their predictors: shifts and precisions."""
    slopes = model.expectation.derivatives(model, mean, variance, data)
    precision = -2 * weights * slopes.variance
    return weights * slopes.mean + precision * mean, precision


def _moved(problem: Problem, q: Family, data: PyTree, change: _RowFactors) -> Family:
    """q after these changes of factors."""
    like = gaussian(q)
    before = (problem.start / problem.context.natural) ** jnp.sum(change.share)
    moved = dataclasses.replace(
        like, precision_mean=change.shift @ data.x, precision=like.gram(data.x, change.precision)
    )
    return q * before * moved


def _added(factors: _RowFactors, change: _RowFactors) -> _RowFactors:
    return jax.tree.map(lambda a, b: a + b.reshape(a.shape), factors, change)
