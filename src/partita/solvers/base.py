"""How does a client climb its objective? One compiled loop serves every solver."""

import abc
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from partita.families import Family
from partita.objective import Problem


class Outcome(enum.IntEnum):
    """Why a solver stopped."""

    RUNNING = 0
    CONVERGED = 1
    STEP_LIMIT = 2
    STALLED = 3
    TRUST_REGION = 4
    NOT_CONJUGATE = 5
    IMPROPER = 6
    NO_MOMENTS = 7

    @property
    def sentence(self) -> str:
        """The reason in a sentence."""
        return {
            Outcome.RUNNING: "It is still running.",
            Outcome.CONVERGED: "It converged.",
            Outcome.STEP_LIMIT: "It took all the steps it was allowed.",
            Outcome.STALLED: "No step raised its free energy at this precision.",
            Outcome.TRUST_REGION: "Its context is improper and it was stopped at the trust region.",
            Outcome.IMPROPER: "Its next step would have led to an improper member: take smaller steps.",
            Outcome.NO_MOMENTS: "It found no moments of its tilted density that stay: use more points, or damp more.",
            Outcome.NOT_CONJUGATE: "The model is not conjugate to this family, so a step was not exact.",
        }[self]


class Solution(eqx.Module):
    """Where a solver ended: q, its local free energy, the gradient steps taken, and why it stopped."""

    q: Family
    free_energy: Float[Array, ""]
    steps: Int[Array, ""]
    outcome: Int[Array, ""]
    log_mass: float | Float[Array, ""] = 0.0
    """The logarithm of q's mass, for those that match un-normalised densities: their factors then tell the evidence."""
    skipped: int | Int[Array, ""] = 0
    """How many rows have no proper factor, and were left as they were."""
    left: float | Float[Array, ""] = 0.0
    """How far another step would have gone, in nats of KL, for those that begin anew, and repeat what is unfinished."""


class Progress(NamedTuple):
    """Where a solver is."""

    q: Family
    free_energy: Float[Array, ""]
    outcome: Int[Array, ""]
    memory: Any = None


class Solver(eqx.Module):
    """A way to maximise a `Problem`.

    Numbers held by a solver are traced, so that changing a step size or a limit compiles nothing anew. A deterministic
    solver ends no lower in free energy than it began, to rounding.
    """

    max_steps: eqx.AbstractVar[int]

    @property
    def estimates_evidence(self) -> bool:
        """Whether Z_q = ∫ p(θ) Π t_m(θ) dθ of the factors it finds estimates p(y): its free energy is then q's mass."""
        return False

    @property
    def matched_power(self) -> float | None:
        """The α for which q · Δ^α has the moments of q · (p(y_k | θ) / t_k)^α; None where answers do not tell them.

        A solver that goes on to where a client's own sites agree, or part of the way to the moments, does not.
        """
        return None

    def can_free(self, problem: Problem) -> bool:
        """Whether it can solve for the problem's free leaves while the others stay: see `Blockwise`."""
        return problem.free is None or all(problem.free)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        """The progress before the first step."""
        return Progress(problem.start, problem.free_energy(problem.start, key), running())

    @abc.abstractmethod
    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        """One step."""

    def finish(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Progress:
        """What is left to do after the last step."""
        return progress

    def solve(self, problem: Problem, key: Key[Array, ""]) -> Solution:
        """Steps until an outcome or `max_steps`."""

        def go_on(carry: tuple[Progress, Int[Array, ""]]) -> Bool[Array, ""]:
            return (carry[0].outcome == Outcome.RUNNING) & (carry[1] < self.max_steps)

        def body(carry: tuple[Progress, Int[Array, ""]]) -> tuple[Progress, Int[Array, ""]]:
            return self.step(problem, carry[0], carry[1], key), carry[1] + 1

        progress, steps = jax.lax.while_loop(go_on, body, (self.init(problem, key), jnp.asarray(0)))
        progress = self.finish(problem, progress, key)
        outcome = jnp.where(progress.outcome == Outcome.RUNNING, Outcome.STEP_LIMIT, progress.outcome)
        return self.solution(progress, steps, outcome)

    def solution(self, progress: Progress, steps: Int[Array, ""], outcome: Int[Array, ""]) -> Solution:
        """What the last progress amounts to."""
        log_mass = progress.free_energy if self.estimates_evidence else 0.0
        return Solution(progress.q, progress.free_energy, steps, outcome, log_mass)


class Climb(NamedTuple):
    """What a search among candidates found: the first that does not fall, if any."""

    q: Family
    free_energy: Float[Array, ""]
    rose: Bool[Array, ""]
    trials: Int[Array, ""]
    """How many were tried."""
    limited: Bool[Array, ""]
    """Whether a better candidate was refused only because it left the trust region."""


def climb(
    problem: Problem,
    q: Family,
    free_energy: Float[Array, ""],
    candidate: Callable[[Int[Array, ""]], Family],
    trials: int,
    key: Key[Array, ""],
) -> Climb:
    """Tries `candidate(0)`, `candidate(1)`, … until one is proper, within the trust region, and not lower than q.

    Differences below the rounding of F do not count: near the optimum they would refuse good steps at random, and the
    halved step that passes would look like convergence.
    """
    terms = 1 + jnp.abs(free_energy) + jnp.abs(problem.context.log_scale)
    floor = free_energy - 8 * jnp.finfo(free_energy.dtype).eps * terms

    def go_on(carry: tuple[Climb, Int[Array, ""]]) -> Bool[Array, ""]:
        return ~carry[0].rose & (carry[1] < trials)

    def body(carry: tuple[Climb, Int[Array, ""]]) -> tuple[Climb, Int[Array, ""]]:
        found, index = carry
        trial = problem.restrict(candidate(index))
        value = problem.free_energy(trial, key)
        better = trial.is_proper() & (value >= floor)
        within = problem.within(trial)
        rose = better & within
        chosen, value = jax.tree.map(lambda a, b: jnp.where(rose, a, b), (trial, value), (q, free_energy))
        return Climb(chosen, value, rose, index + 1, found.limited | (better & ~within)), index + 1

    start = Climb(q, free_energy, jnp.asarray(False), jnp.asarray(0), jnp.asarray(False))
    return jax.lax.while_loop(go_on, body, (start, jnp.asarray(0)))[0]


def after(found: Climb, moved: Float[Array, ""], tolerance: float | Float[Array, ""]) -> Int[Array, ""]:
    """The outcome of a step that moved q by so many nats of KL: running, converged, stalled, at the trust region."""
    outcome = jnp.where(moved <= tolerance, Outcome.CONVERGED, Outcome.RUNNING)
    outcome = jnp.where(found.rose, outcome, Outcome.STALLED)
    return jnp.where(found.limited, Outcome.TRUST_REGION, outcome)


def when_one_was_asked_for(max_steps: int | Int[Array, ""], outcome: Int[Array, ""]) -> Int[Array, ""]:
    """The outcome, where a single step, if that is all that was asked for, is a whole answer."""
    unfinished = (outcome == Outcome.RUNNING) | (outcome == Outcome.STEP_LIMIT)
    return jnp.where(unfinished & (max_steps == 1), Outcome.CONVERGED, outcome)


def running() -> Int[Array, ""]:
    """The outcome of a solver that has not ended."""
    return jnp.asarray(int(Outcome.RUNNING))
