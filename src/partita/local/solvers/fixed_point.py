"""The natural-gradient fixed point, damped (`eq:fixed-point-bi-damp`), and its one exact step for conjugate models."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from partita.families import Family
from partita.local.objective import Problem
from partita.local.solvers.base import LineSearchResult, Outcome, Progress, Solver, after, line_search, running


def damped(q: Family, target: Family, damping: float | Float[Array, ""]) -> Family:
    """q^(1−ρ) · target^ρ."""
    return q ** (1 - damping) * target**damping


class FixedPoint(Solver):
    """Iterates q ← q^(1−ρ) · (context · ∇_μ ell)^ρ: natural-gradient ascent with step ρ.

    Backtracks (halves ρ within a step) if the free energy would fall. With `backtrack=False` every step is accepted:
    the paper's plain iteration, a single step of which makes synchronous PVI global VI (`prop:local-global-fp`).
    """

    damping: float = 1.0
    max_steps: int = 100
    tolerance: float = 1e-10
    """Stops when a step moves q by less than this, in nats of KL."""
    backtrack: bool = eqx.field(static=True, default=True)
    halvings: int = eqx.field(static=True, default=20)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, value, _, _ = progress
        target = problem.context.natural * problem.likelihood_factor(q, key)

        def candidate(trial: Int[Array, ""]) -> Family:
            return damped(q, target, self.damping * 0.5**trial)

        if self.backtrack:
            found = line_search(problem, q, value, candidate, self.halvings, key)
            return Progress(found.q, found.free_energy, after(found, found.q.kl(q), self.tolerance))
        new = problem.restrict(candidate(jnp.asarray(0)))
        value = problem.free_energy(new, key)
        taken = LineSearchResult(new, value, jnp.asarray(True), jnp.asarray(False))
        return Progress(new, value, after(taken, new.kl(q), self.tolerance))


class NaturalGradient(Solver):
    """Answers with one undamped fixed-point change, for a server-side optimiser.

    With cavity contexts the changes sum to ∇_μ F (`prop:local-global-fp`). Only that direction is used: the answer may
    be improper, and the reported free energy is that of the posterior sent.
    """

    max_steps: int = 1

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        return Progress(problem.start, problem.negative_divergence(problem.start), running())

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        ell, factor = progress.q.value_and_natural_gradient(lambda q: problem.ell(q, key))
        value = ell + problem.negative_divergence(progress.q)
        return Progress(problem.context.natural * factor, value, jnp.asarray(int(Outcome.CONVERGED)))


class Conjugate(Solver):
    """One exact step, q = context · ∇_μ ell, for a model conjugate to the family (`sec:optim:analytic`).

    Then ell is linear in the mean parameters and its natural gradient is constant. This is checked, and a model that
    is not conjugate is reported.
    """

    max_steps: int = 1
    halvings: int = eqx.field(static=True, default=20)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, value, _, _ = progress
        factor = problem.likelihood_factor(q, key)
        target = problem.context.natural * factor
        found = line_search(problem, q, value, lambda trial: damped(q, target, 0.5**trial), self.halvings, key)
        again = problem.likelihood_factor(found.q, key)
        exact = found.rose & _close(factor, again)
        outcome = jnp.where(exact, Outcome.CONVERGED, Outcome.NOT_CONJUGATE)
        short = found.limited | ~target.is_proper()
        return Progress(found.q, found.free_energy, jnp.where(short, Outcome.TRUST_REGION, outcome))


def _close(first: Family, second: Family) -> Array:
    """Whether two factors agree to the square root of the precision, leaf by leaf relative to the largest entry."""

    def leaf(a: Array, b: Array) -> Array:
        return jnp.max(jnp.abs(a - b)) <= jnp.sqrt(jnp.finfo(a.dtype).eps) * jnp.max(jnp.abs(a))

    return jnp.all(jnp.array(jax.tree.leaves(jax.tree.map(leaf, first, second))))
