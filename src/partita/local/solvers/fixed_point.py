"""The natural-gradient fixed point, damped (`eq:fixed-point-bi-damp`), and its one exact step for conjugate models."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from partita.errors import SettingsError
from partita.families import Family
from partita.inputs import check_flag, check_number, check_whole
from partita.local.mini_batches import with_random_rows
from partita.local.objective import Problem
from partita.local.solvers.base import Outcome, Progress, Solver, after, line_search, running, unmoved
from partita.numerics.compiled import Scalar
from partita.numerics.rates import Damping, rate_at
from partita.numerics.trees import where

__all__ = ["Conjugate", "FixedPoint", "NaturalGradient", "damped"]


def damped(q: Family, target: Family, damping: Scalar) -> Family:
    """q^(1−ρ) · target^ρ."""
    return q ** (1 - damping) * target**damping


class FixedPoint(Solver):
    """Iterates q ← q^(1−ρ) · (context · ∇_μ ell)^ρ: natural-gradient ascent with step ρ.

    Backtracks (halves ρ within a step) if the free energy would fall. With `backtrack=False` every step is accepted:
    the paper's plain iteration, a single step of which makes synchronous PVI global VI (`prop:local-global-fp`).

    With `batch_size` every step is on rows drawn at random, which stand for all (`eq:stoch-global`), and with fresh
    draws where the expectation is sampled; `fresh` draws anew without batches. Neither leaves a free energy to compare,
    so both need `backtrack=False`, and end near an optimum or, with `RobbinsMonro` for the damping, at it.
    """

    damping: Damping = 1.0
    max_steps: int = 100
    tolerance: float | None = 1e-10
    """Stops when a step would move q by less than this undamped, in nats of KL."""
    backtrack: bool = eqx.field(static=True, default=True)
    halvings: int = eqx.field(static=True, default=20)
    batch_size: int | None = eqx.field(static=True, default=None)
    """How many rows of every step are drawn, with replacement; None for all rows."""
    fresh: bool = eqx.field(static=True, default=False)
    """Whether every step draws anew where the expectation is sampled; otherwise one set of draws serves a visit."""

    def __check_init__(self) -> None:
        first = rate_at(self.damping, 0)
        check_number("damping of a fixed point", first, lambda damping: 0 < damping < 2, "above 0 and below 2")
        check_flag("setting backtrack", self.backtrack)
        check_flag("setting fresh", self.fresh)
        check_whole("number of halvings", self.halvings)
        if self.batch_size is not None:
            check_whole("batch size", self.batch_size)
        if self.backtrack and self.noisy:
            raise SettingsError("Steps on other rows or draws have free energies that differ: use backtrack=False.")

    @property
    def noisy(self) -> bool:
        """Whether steps differ in their rows or draws."""
        return self.fresh or self.batch_size is not None

    def can_free(self, problem: Problem) -> bool:
        return True

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        return self.towards(self.target(problem, progress.q, index, key), problem, progress, index, key)

    def target(self, problem: Problem, q: Family, index: Int[Array, ""], key: Key[Array, ""]) -> Family:
        """Where an undamped step leads, by the rows and draws of this step."""
        key = jax.random.fold_in(key, index) if self.noisy else key
        return with_random_rows(problem, self.batch_size, key).target(q, key)

    def towards(
        self, target: Family, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]
    ) -> Progress:
        """A damped step to a target."""
        q, value, _, _ = progress
        damping = rate_at(self.damping, index)

        def candidate(trial: Int[Array, ""]) -> Family:
            return damped(q, target, damping * 0.5**trial)

        if self.backtrack:
            found = line_search(problem, q, value, candidate, self.halvings, key)
            moved = found.q.distance(q)
            whole = moved / (damping * 0.5 ** (found.trials - 1)) ** 2
        else:
            new = problem.restrict(candidate(jnp.asarray(0)))
            new_value = value if self.noisy else problem.free_energy(new, key)
            found = unmoved(new, new_value)._replace(rose=jnp.asarray(True))
            moved = new.kl(q)
            whole = moved / damping**2
        return Progress(found.q, found.free_energy, after(found, moved, whole, self.tolerance))

    def finish(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Progress:
        return progress._replace(free_energy=problem.free_energy(progress.q, key)) if self.noisy else progress


class NaturalGradient(Solver):
    """Answers with one undamped fixed-point change, for a server-side optimiser.

    With cavity contexts the changes sum to ∇_μ F (`prop:local-global-fp`). Only that direction is used: the answer may
    be improper, and the reported free energy is that of the posterior sent, on the rows that were seen. Every visit
    has draws of its own.
    """

    max_steps: int = 1
    batch_size: int | None = eqx.field(static=True, default=None)
    """How many rows of a visit are drawn, with replacement; None for all rows."""

    def __check_init__(self) -> None:
        if self.batch_size is not None:
            check_whole("batch size", self.batch_size)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        return Progress(problem.start, problem.negative_divergence(problem.start), running())

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        seen = with_random_rows(problem, self.batch_size, key)
        ell, factor = progress.q.value_and_natural_gradient(lambda q: seen.ell(q, key))
        value = ell + problem.negative_divergence(progress.q)
        return Progress(problem.context.natural * factor, value, jnp.asarray(int(Outcome.CONVERGED)))


class Conjugate(Solver):
    """The exact step q = context · ∇_μ ell, for a model conjugate to the family (`sec:optim:analytic`).

    ell is then linear in the mean parameters, so that from there another step stays where it is. That is checked, in
    nats, which rounding in ill-conditioned directions hardly changes: a solver that converged promises that another
    step would move q by no more than its tolerance. A natural gradient at a start much wider than the posterior, or
    whose precision is ill-conditioned, is rounded; a second step, from near the posterior, then mends the first. It is
    taken whole where nothing is left after it: what it gains may be less than the rounding of the free energy, by which
    a line search would cut it at random. A model for which both leave more than that is reported as not conjugate. One
    that is not conjugate, but begins so near its optimum that a step or two lead to it, has converged.
    """

    max_steps: int = 2
    tolerance: float = 1e-12
    """How far another step may go, in nats of KL; eight times the precision where that is more."""
    halvings: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        check_number("tolerance", self.tolerance)
        check_whole("number of halvings", self.halvings)

    @property
    def for_densities(self) -> Solver:
        return FixedPoint()

    def can_free(self, problem: Problem) -> bool:
        """Those that are independent of the others: with its precision fixed a Gaussian is not conjugate."""
        return not problem.is_split()

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, value, _, _ = progress
        target = problem.target(q, key)
        found = line_search(problem, q, value, lambda trial: damped(q, target, 0.5**trial), self.halvings, key)
        whole = problem.restrict(where((index > 0) & target.is_proper() & problem.within(target), target, found.q))
        left = whole.length(problem.target(whole, key) / whole)
        whole_value = problem.free_energy(whole, key)
        eps = jnp.finfo(left.dtype).eps
        kept = whole_value >= value - jnp.sqrt(eps) * (1 + jnp.abs(value))
        exact = kept & (left <= jnp.maximum(self.tolerance, 8 * eps))
        new, new_value = where(exact & (index > 0), (whole, whole_value), (found.q, found.free_energy))
        otherwise = jnp.where(index + 1 < self.max_steps, Outcome.RUNNING, Outcome.NOT_CONJUGATE)
        outcome = jnp.where(exact, Outcome.CONVERGED, otherwise)
        short = found.limited | ~target.is_proper()
        return Progress(new, new_value, jnp.where(short, Outcome.TRUST_REGION, outcome))
