"""Fixed points with a factor for each group of a client's rows, or for each row (`eq:stoch-local`)."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from partita.families import Family
from partita.inputs import check_flag, check_kind, check_number, check_whole
from partita.local.local_factors import InFamily, LocalFactors
from partita.local.objective import Problem
from partita.local.solvers.base import Progress, Solver, after, unmoved
from partita.local.solvers.fixed_point import FixedPoint
from partita.numerics.order import random_order
from partita.numerics.rates import Damping, rate_at
from partita.numerics.trees import where

__all__ = ["LocalFixedPoint"]


class LocalFixedPoint(Solver):
    """η_l ← (1 − ρ) η_l + ρ ∇_μ E_q[log p(y_l | θ)] for groups of rows l, which keep a factor each during a visit.

    A pass takes every group once, `at_once` of them together at the same q, in a random order or in that of the rows
    (`eq:stoch-local`). Without `groups` every row is its own, and random batches of them are `eq:stoch-fully-local`:
    conjugate-computation VI (Khan and Lin 2017). It is PVI with a client for each group and one step a visit, as one
    batched program; what leaves the client is the product of the factors.

    A visit begins with the client's factor in equal shares, and at the fixed point every factor is matched by its own
    rows. So the order of groups is no noise there, and the rate need not fall, unless the expectation is sampled; but
    visits have to converge, unless all groups are taken at once, since each begins by telling the shares apart. With
    `InPredictor` rows in turn change q by rank one, without a factorisation for each.
    """

    groups: int | None = eqx.field(static=True, default=None)
    """How many groups of consecutive rows; None for every row."""
    at_once: int | None = eqx.field(static=True, default=None)
    """How many groups are updated together; None for all."""
    damping: Damping = 1.0
    """ρ, which may fall with every pass."""
    factors: LocalFactors = InFamily()
    """How factors are stored; `InPredictor()` where that is enough."""
    shuffled: bool = eqx.field(static=True, default=True)
    """Whether every pass has another order."""
    max_steps: int = 100
    """How many passes."""
    tolerance: float | None = 1e-10
    """Stops when a pass moves q by less than this undamped, in nats of KL."""

    def __check_init__(self) -> None:
        first = rate_at(self.damping, 0)
        check_number("damping of a fixed point", first, lambda damping: 0 < damping < 2, "above 0 and below 2")
        check_flag("setting shuffled", self.shuffled)
        check_kind("factors", self.factors, LocalFactors, "use InFamily() or InPredictor()")
        for what, number in (("number of groups", self.groups), ("number of groups at once", self.at_once)):
            if number is not None:
                check_whole(what, number)

    @property
    def for_densities(self) -> Solver:
        return FixedPoint(max_steps=self.max_steps, tolerance=self.tolerance)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        problem.check_independent("LocalFixedPoint")
        groups, size = self._shape(problem)
        given = problem.shard.weights
        weights = jnp.pad(given, (0, groups * size - len(given))).reshape(groups, size)
        begun = self.factors.begin(problem, weights / jnp.sum(weights))
        return super().init(problem, key)._replace(memory=begun)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        """One pass: factors are the xs and ys of a scan, in the order of the pass, and put back when it is over.

        As a carry that is scattered into they would be copied in every step.
        """
        key, (groups, size) = jax.random.fold_in(key, index), self._shape(problem)
        at_once = groups if self.at_once is None else min(self.at_once, groups)
        steps = -(-groups // at_once)
        order = random_order(key, groups) if self.shuffled and steps > 1 else jnp.arange(groups)
        together = min(self.factors.together(at_once * size), steps)
        # the last steps are filled up with a group that does not exist
        calls = -(-steps // together)
        missing = calls * together * at_once - groups
        order = jnp.append(order, jnp.full(missing, groups)).reshape(calls, together, at_once)
        damping, real = rate_at(self.damping, index), order < groups

        def taken(leaf: Array) -> Array:
            return jnp.where(real.reshape(*real.shape, *[1] * (leaf.ndim - 1)), leaf[order], 0)

        def turn(q: Family, xs: tuple[PyTree, Int[Array, "c k"], Int[Array, ""]]) -> tuple[Family, PyTree]:
            factors, chosen, draw = xs
            rows = self._rows(problem, chosen, size)
            return self.factors.in_turn(rows, q, factors, damping, jax.random.fold_in(key, draw))

        q, new = jax.lax.scan(turn, progress.q, (jax.tree.map(taken, progress.memory), order, jnp.arange(calls)))
        whole = jnp.reshape(order, -1)
        put = jax.tree.map(
            lambda old, leaf: old.at[whole].set(leaf.reshape(-1, *old.shape[1:]), mode="drop"), progress.memory, new
        )
        proper, inside = q.is_proper(), problem.within(q)
        q, factors = where(proper & inside, (q, put), (progress.q, progress.memory))
        moved = q.distance(progress.q)
        found = unmoved(q, progress.free_energy)._replace(rose=proper, limited=proper & ~inside)
        outcome = after(found, moved, moved / damping**2, self.tolerance)
        return Progress(q, progress.free_energy, outcome, factors)

    def finish(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Progress:
        return progress._replace(free_energy=problem.free_energy(progress.q, key))

    def _shape(self, problem: Problem) -> tuple[int, int]:
        """How many groups, and how many rows in each; the last ones may be short or empty."""
        rows = len(problem.shard.weights)
        groups = rows if self.groups is None else min(self.groups, rows)
        return groups, -(-rows // groups)

    def _rows(self, problem: Problem, groups: Int[Array, "c k"], size: int) -> Problem:
        """The problem with the rows of groups, as steps by groups by rows; of weight 0 where there is none."""
        shard = problem.shard
        places = groups[..., None] * size + jnp.arange(size)
        real, places = places < len(shard.weights), jnp.minimum(places, len(shard.weights) - 1)
        weights = jnp.where(real, shard.weights[places], 0)
        data = jax.tree.map(lambda leaf: leaf[places], shard.data)
        return dataclasses.replace(problem, shard=type(shard)(data, weights, shard.rows))
