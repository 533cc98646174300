"""Gradient ascent with any optax optimiser, and L-BFGS (`sec:optim:offtheshelf`)."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.data.shard import Shard
from partita.errors import SettingsError
from partita.families import Family
from partita.inputs import check_choice, check_finite_number, check_flag, check_optimiser, check_whole
from partita.local.objective import Problem
from partita.local.solvers.base import Outcome, Progress, Solver, running, within
from partita.numerics.trees import where

__all__ = ["LBFGS", "Coordinates", "Gradient", "Memory", "Watched", "from_coordinates", "to_coordinates"]

Coordinates = Literal["unconstrained", "natural"]
Watched = Literal["free_energy", "ell"]


class Memory(NamedTuple):
    """The state of gradient ascent between steps."""

    coordinates: PyTree
    optimiser: PyTree
    order: Int[Array, " n"]
    """The order in which this epoch visits the rows."""
    total: Float[Array, ""]
    """The sum of the watched value over the current window of steps."""
    best: Float[Array, ""]
    """The best window mean so far."""
    flat: Int[Array, ""]
    """The number of windows without improvement."""


class Gradient(Solver):
    """Ascent along ∇F with an optax optimiser, on all rows or on mini-batches.

    `optimiser` is a function of the learning rate such as `optax.adam`, so that the rate is traced and changing it
    compiles nothing. Plain gradient steps in natural coordinates, one a visit, make synchronous PVI global VI
    (`prop:local-global-gradient`), with `keep_best=False` also where a step overshoots.
    """

    optimiser: Callable[..., optax.GradientTransformation] = eqx.field(static=True, default=optax.adam)
    learning_rate: float = 1e-2
    max_steps: int = 1000
    window: int | Literal["epoch"] = 100
    """The number of steps over which the monitored value is averaged."""
    patience: int = 1
    """Stops after this many consecutive windows without improvement."""
    tolerance: float | None = 1e-3
    """The smallest improvement of a window's mean that counts, in nats."""
    watch: Watched = eqx.field(static=True, default="free_energy")
    """The monitored value: the local free energy, or the expected log-likelihood for early stopping."""
    batch_size: int | None = eqx.field(static=True, default=None)
    """The most rows of a mini-batch; None, or at least the number of rows, for full batches. Those of an epoch are of
    one size, but for the last one."""
    coordinates: Coordinates = eqx.field(static=True, default="unconstrained")
    keep_best: bool = eqx.field(static=True, default=True)
    """Whether to return the best q rather than the last, if free energies are exact."""

    def __check_init__(self) -> None:
        check_optimiser(self.optimiser)
        check_finite_number("learning rate", self.learning_rate, above=0)
        check_choice("system of coordinates", self.coordinates, ("unconstrained", "natural"))
        check_choice("value to watch", self.watch, ("free_energy", "ell"))
        if not isinstance(self.window, str):
            check_whole("window", self.window)
        elif self.window != "epoch":
            raise SettingsError(f'The window must be a number of steps or "epoch", not {self.window!r}.')
        check_whole("patience", self.patience)
        if self.batch_size is not None:
            check_whole("batch size", self.batch_size)
        check_flag("setting keep_best", self.keep_best)

    def can_free(self, problem: Problem) -> bool:
        return True

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        coordinates = to_coordinates(problem.start, self.coordinates)
        low = jnp.asarray(-jnp.inf, jax.tree.leaves(problem.start)[0].dtype)
        state, order = self.optimiser(self.learning_rate).init(coordinates), jnp.arange(len(problem.shard.weights))
        memory = Memory(coordinates, state, order, jnp.zeros_like(low), low, jnp.asarray(0))
        return Progress(problem.start, low, running(), memory)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        best, best_value, _, memory = progress
        draws, shuffles, _ = jax.random.split(key, 3)
        step_key = jax.random.fold_in(draws, index)
        if self._size(problem.shard) < len(problem.shard.weights):
            problem.check_independent("A mini-batch")
        shard, order = self._batch(problem.shard, memory.order, index, shuffles)
        batch = eqx.tree_at(lambda p: p.shard, problem, shard)

        def loss(coordinates: PyTree) -> tuple[Float[Array, ""], tuple[Family, Float[Array, ""]]]:
            q = self._member(problem, coordinates)
            ell = batch.ell(q, step_key)
            return -(ell + problem.negative_divergence(q)), (q.plain(), ell)

        (negative, (q, ell)), gradient = jax.value_and_grad(loss, has_aux=True)(memory.coordinates)
        update, state = self.optimiser(self.learning_rate).update(gradient, memory.optimiser, memory.coordinates)
        moved = jax.tree.map(jnp.add, memory.coordinates, update)
        proper, inside = self._admissible(problem, moved)

        window = self._batches(problem.shard) if isinstance(self.window, str) else jnp.maximum(self.window, 1)
        total = memory.total + (-negative if self.watch == "free_energy" else ell)
        ends, mean = (index + 1) % window == 0, total / window
        small = False if self.tolerance is None else mean - memory.best < self.tolerance
        flat = jnp.where(small, memory.flat + 1, 0)
        outcome = jnp.where(ends & (flat >= self.patience), Outcome.CONVERGED, Outcome.RUNNING)
        outcome = jnp.where(proper, jnp.where(inside, outcome, Outcome.TRUST_REGION), Outcome.IMPROPER)
        if self._exact(problem):
            best, best_value = where(-negative >= best_value, (q, -negative), (best, best_value))
        moved = where(proper & inside, moved, memory.coordinates)
        ended = jnp.zeros_like(total), jnp.maximum(memory.best, mean), flat
        watched = where(ends, ended, (total, memory.best, memory.flat))
        return Progress(best, best_value, outcome, Memory(moved, state, order, *watched))

    def finish(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Progress:
        q = self._member(problem, progress.memory.coordinates).plain()
        value = problem.free_energy(q, jax.random.split(key, 3)[2])
        if self._exact(problem):
            q, value = where(value >= progress.free_energy, (q, value), (progress.q, progress.free_energy))
        return progress._replace(q=q, free_energy=value)

    def _member(self, problem: Problem, coordinates: PyTree) -> Family:
        return problem.restrict(from_coordinates(problem.start, coordinates, self.coordinates))

    def _admissible(self, problem: Problem, moved: PyTree) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
        """Whether the coordinates are those of a proper member, and whether it is in the trust region.

        Unconstrained ones are proper if finite, unless leaves are cut from others that they depend on; and the region
        bounds improper contexts only: so neither is worked out at every step.
        """
        member = functools.partial(self._member, problem, moved)
        if self.coordinates == "natural" or problem.is_split():
            proper = member().is_proper()
        else:
            proper = jnp.isfinite(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(moved)))
        return proper, jax.lax.cond(problem.bounded(), lambda: jnp.asarray(True), lambda: problem.within(member()))

    def _exact(self, problem: Problem) -> bool:
        all_rows = self._size(problem.shard) == len(problem.shard.weights)
        return self.keep_best and all_rows and problem.model.expectation.deterministic

    def _batches(self, shard: Shard) -> Int[Array, ""]:
        """The number of steps of an epoch."""
        size = self._size(shard)
        return (shard.rows + size - 1) // size

    def _size(self, shard: Shard) -> int:
        """The most rows in a batch: of 600 rows 300, where 512 are asked for, as the steps of an epoch are as many."""
        rows = len(shard.weights)
        most = min(self.batch_size or rows, rows)
        return -(-rows // -(-rows // most))

    def _batch(
        self, shard: Shard, order: Int[Array, " n"], index: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[Shard, Int[Array, " n"]]:
        """The next mini-batch of an epoch that visits every real row once, reweighted to represent all rows."""
        size = self._size(shard)
        if size == len(shard.weights):
            return shard, order
        batches = self._batches(shard)
        epoch, place = index // batches, index % batches

        def shuffle() -> Int[Array, " n"]:
            noise = jax.random.uniform(jax.random.fold_in(key, epoch), order.shape)
            return jnp.argsort(jnp.where(jnp.arange(order.size) < shard.rows, noise, 2.0))

        order = jax.lax.cond(place == 0, shuffle, lambda: order)
        even = (shard.rows + batches - 1) // batches
        slots = place * even + jnp.arange(size)
        real = (jnp.arange(size) < even) & (slots < shard.rows)
        chosen = order[jnp.where(real, slots, 0)]
        weights = jnp.where(real, shard.weights[chosen], 0) * (shard.rows / jnp.sum(real))
        data = jax.tree.map(lambda leaf: leaf[chosen], shard.data)
        return Shard(data, weights.astype(shard.weights.dtype), shard.rows), order


class LBFGS(Solver):
    """Limited-memory BFGS with a zoom line search in unconstrained coordinates, on all rows.

    A stochastic expectation uses one set of draws throughout, which makes its objective deterministic.
    """

    max_steps: int = 500
    tolerance: float | None = 1e-10
    """Stops when a step raises the free energy by less than this times its size."""
    memory: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        check_whole("memory", self.memory)

    def can_free(self, problem: Problem) -> bool:
        return True

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        coordinates = problem.start.unconstrained()
        state = optax.lbfgs(memory_size=self.memory).init(coordinates)
        return super().init(problem, key)._replace(memory=(coordinates, state))

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        best, best_value, _, (coordinates, state) = progress

        def loss(trial: PyTree) -> Float[Array, ""]:
            value = -problem.free_energy(problem.restrict(problem.start.at_unconstrained(trial)), key)
            return jnp.where(jnp.isfinite(value), value, jnp.inf)

        optimiser = optax.lbfgs(memory_size=self.memory)
        value, gradient = optax.value_and_grad_from_state(loss)(coordinates, state=state)
        update, state = optimiser.update(gradient, state, coordinates, value=value, grad=gradient, value_fn=loss)
        moved = jax.tree.map(jnp.add, coordinates, update)
        q = problem.restrict(problem.start.with_unconstrained(moved))
        new = problem.free_energy(q, key)
        inside = problem.within(q)
        rose = inside & (new >= best_value)
        small = within(new - best_value, None if self.tolerance is None else self.tolerance * (1 + jnp.abs(new)))
        outcome = jnp.where(rose, jnp.where(small, Outcome.CONVERGED, Outcome.RUNNING), Outcome.STALLED)
        outcome = jnp.where(inside, outcome, Outcome.TRUST_REGION)
        q, new = where(rose, (q, new), (best, best_value))
        return Progress(q, new, outcome, (moved, state))


def to_coordinates(q: Family, coordinates: Coordinates) -> PyTree:
    """q in the coordinates in which it is moved."""
    if coordinates == "natural" and not q.exponential:
        raise SettingsError(
            f"An {type(q).__name__} has no natural coordinates to move in: use unconstrained ones, as by default."
        )
    return q if coordinates == "natural" else q.unconstrained()


def from_coordinates(like: Family, values: PyTree, coordinates: Coordinates) -> Family:
    """The member with these coordinates, for derivatives in them."""
    return values if coordinates == "natural" else like.at_unconstrained(values)
