"""Conjugate directions in the Fisher metric (Hensman et al. 2012; Honkela et al. 2010)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from partita.families import Family, inner
from partita.inputs import check_whole
from partita.local.objective import Problem
from partita.local.solvers.base import Progress, Solver, after, line_search
from partita.numerics.trees import where

__all__ = ["ConjugateDirections"]

_LONGEST, _SHORTEST = 16.0, 1 / 64
"""The multiples of a first step that a secant may ask for."""


class _Past(NamedTuple):
    """What a step leaves to the next."""

    direction: Family
    gradient: Family
    """The natural gradient before the step."""
    squared: Float[Array, ""]
    """Its squared length in the Fisher metric; 0 before the first step."""


class ConjugateDirections(Solver):
    """Natural-gradient ascent along conjugate directions: d ← g + β d, with g the natural gradient.

    β is Polak and Ribière's, with inner products ⟨a, b⟩ = aᵀ C b in the Fisher matrix C, and never below 0. How far to
    go is found by a secant of the slopes at a whole step and at none, and halved while the free energy would fall.
    Where parameters are correlated and the family is not, a fixed point crawls, and needs many times the steps.
    """

    max_steps: int = 200
    tolerance: float | None = 1e-10
    """Stops when a natural-gradient step would move q by less than this, in nats of KL."""
    halvings: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        check_whole("number of halvings", self.halvings)

    def can_free(self, problem: Problem) -> bool:
        return True

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        begun = super().init(problem, key)
        past = _Past(begun.q.one(), begun.q.one(), jnp.zeros_like(begun.free_energy))
        return begun._replace(memory=past)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, value, past = progress.q, progress.free_energy, progress.memory
        gradient = problem.target(q, key) / q
        squared, common = _product(q, gradient, gradient), _product(q, gradient, past.gradient)
        share = jnp.where(
            past.squared > 0, jnp.maximum(squared - common, 0) / jnp.where(past.squared > 0, past.squared, 1), 0
        )
        direction = gradient * past.direction**share
        slope = _product(q, gradient, direction)
        # a direction that does not rise is begun anew
        direction, slope = where(slope > 0, (direction, slope), (gradient, squared))

        def whole() -> Float[Array, ""]:
            there = problem.restrict(q * direction)
            ahead = _product(there, problem.target(there, key) / there, direction)
            return jnp.clip(jnp.where(ahead < slope, slope / (slope - ahead), _LONGEST), _SHORTEST, _LONGEST)

        size = jax.lax.cond((q * direction).is_proper(), whole, lambda: jnp.ones_like(slope))
        size = jnp.where(jnp.isfinite(size), size, 1.0)
        found = line_search(problem, q, value, lambda trial: q * direction ** (size * 0.5**trial), self.halvings, key)
        outcome = after(found, found.q.distance(q), squared / 2, self.tolerance)
        return Progress(found.q, found.free_energy, outcome, _Past(direction, gradient, squared))


def _product(q: Family, a: Family, b: Family) -> Float[Array, ""]:
    """aᵀ C b, with the Fisher matrix C of q."""
    _, moved = jax.jvp(lambda member: member.mean_parameters(), (q,), (b,))
    return inner(a, moved)
