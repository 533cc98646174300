"""The interface of solvers, and the compiled loop that they share."""

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from partita.families import Family
from partita.inputs import check_tolerance, check_whole
from partita.local.objective import Problem
from partita.numerics.compiled import Scalar, Whole
from partita.numerics.trees import where

__all__ = [
    "Climb",
    "LineSearchResult",
    "Outcome",
    "Progress",
    "Solution",
    "Solver",
    "after",
    "length",
    "line_search",
    "running",
    "single_step_outcome",
    "unmoved",
    "within",
]


_HALVED_OFTEN = 10
"""After more trials than these a step is a thousandth of what it was to be."""


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
            Outcome.STEP_LIMIT: "It reached the step limit.",
            Outcome.STALLED: "No step increased its free energy at this precision.",
            Outcome.TRUST_REGION: "Its context is improper and it stopped at the trust region.",
            Outcome.IMPROPER: "Its next step would have been improper: use smaller steps.",
            Outcome.NO_MOMENTS: "The moments of its tilted density did not converge: use more points or more damping.",
            Outcome.NOT_CONJUGATE: "The model is not conjugate to this family, so a step was not exact.",
        }[self]


class Solution(eqx.Module):
    """Where a solver ended: q, its local free energy, the gradient steps taken, and why it stopped."""

    q: Family
    free_energy: Float[Array, ""]
    steps: Int[Array, ""]
    outcome: Int[Array, ""]
    log_mass: Scalar = 0.0
    """The log mass of q for solvers that match unnormalised densities; from it the evidence is estimated."""
    skipped: Whole = 0
    """The number of rows without a proper factor, which were not updated."""
    left: Scalar = 0.0
    """KL of the next step, had the solver continued, in nats: if it stalled, or restarts at every visit."""


class Progress(NamedTuple):
    """The state of a solver."""

    q: Family
    free_energy: Float[Array, ""]
    outcome: Int[Array, ""]
    memory: Any = None


Climb: TypeAlias = tuple[Progress, Int[Array, ""]]
"""Where a solver is, after how many steps."""


class Solver(eqx.Module):
    """A way to maximise a `Problem`.

    A solver's numbers are traced, so that changing a step size or a limit does not recompile. A deterministic solver
    never lowers the free energy, up to rounding.
    """

    max_steps: eqx.AbstractVar[int]
    estimates_evidence: ClassVar[bool] = False
    """Whether Z_q = ∫ p(θ) Π t_m(θ) dθ estimates p(y), as in power EP; `free_energy` is then the log mass of q."""

    @property
    def matched_power(self) -> float | None:
        """The α for which q · Δ^α has the moments of q · (p(y_k | θ) / t_k)^α; None if there is no such α.

        There is none for solvers that iterate over a client's own sites, or move only part of the way to the moments.
        """
        return None

    @property
    def for_densities(self) -> "Solver":
        """The solver for a density that is no table of rows, as a prior's is: itself, if it takes any model."""
        return self

    def __check_init__(self) -> None:
        check_whole("number of steps, max_steps,", self.max_steps, 0)
        if hasattr(self, "tolerance"):
            check_tolerance(self.tolerance)

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
        """Post-processing after the last step."""
        return progress

    def solve(self, problem: Problem, key: Key[Array, ""]) -> Solution:
        """Steps until an outcome or `max_steps`."""
        return self.end(problem, self.advance(problem, self.begin(problem, key), self.max_steps, key), key)

    def begin(self, problem: Problem, key: Key[Array, ""]) -> Climb:
        """Before the first step."""
        return self.init(problem, key), jnp.asarray(0)

    def advance(self, problem: Problem, climb: Climb, until: Whole, key: Key[Array, ""]) -> Climb:
        """Steps until an outcome, or until there have been so many."""

        def go_on(carry: Climb) -> Bool[Array, ""]:
            return (carry[0].outcome == Outcome.RUNNING) & (carry[1] < until)

        def body(carry: Climb) -> Climb:
            return self.step(problem, *carry, key), carry[1] + 1

        return jax.lax.while_loop(go_on, body, climb)

    def end(self, problem: Problem, climb: Climb, key: Key[Array, ""]) -> Solution:
        """The solution after the last step."""
        progress, steps = climb
        progress = self.finish(problem, progress, key)
        outcome = jnp.where(progress.outcome == Outcome.RUNNING, Outcome.STEP_LIMIT, progress.outcome)
        solution = self.solution(progress, steps, outcome)
        stuck, zero = outcome == Outcome.STALLED, jnp.zeros_like(progress.free_energy)
        ahead = jax.lax.cond(stuck, lambda: self.ahead(problem, progress, key), lambda: zero)
        return dataclasses.replace(solution, left=jnp.where(stuck, ahead, solution.left))

    def ahead(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Float[Array, ""]:
        """KL of an undamped natural-gradient step from q, in nats: of a solver that stalls, how far it has to go.

        Where the free energy is so large that its rounding hides every step, q stays, and that is no convergence.
        For posteriors without natural gradients it is unknown, and 0.
        """
        if not progress.q.exponential:
            return jnp.zeros_like(progress.free_energy)
        return length(progress.q, problem.target(progress.q, key))

    def solution(self, progress: Progress, steps: Int[Array, ""], outcome: Int[Array, ""]) -> Solution:
        """The solution from the last progress."""
        log_mass = progress.free_energy if self.estimates_evidence else 0.0
        return Solution(progress.q, progress.free_energy, steps, outcome, log_mass)


class LineSearchResult(NamedTuple):
    """The result of a line search: the first acceptable candidate, if any."""

    q: Family
    free_energy: Float[Array, ""]
    rose: Bool[Array, ""]
    trials: Int[Array, ""]
    """How many were tried."""
    limited: Bool[Array, ""]
    """Whether a better candidate was rejected only because it left the trust region."""
    at: Any = None
    """What was computed at q along with its free energy."""


_Candidate: TypeAlias = Callable[[Int[Array, ""]], Family]
"""The member to try, given how many were tried before."""
_Evaluate: TypeAlias = Callable[[Family], tuple[Float[Array, ""], Any]]
"""The free energy of a member, and what is computed along with it."""


def line_search(
    problem: Problem,
    q: Family,
    free_energy: Float[Array, ""],
    candidate: _Candidate,
    trials: int,
    key: Key[Array, ""],
    evaluate: _Evaluate | None = None,
    at: Any = None,
) -> LineSearchResult:
    """Line search: tries `candidate(0)`, `candidate(1)`, … until one is proper, in the trust region, and not below q.

    A solver that needs more of the next q than its free energy gives a function that computes both, and what it has
    `at` q.

    Decreases below the rounding error of F are accepted: otherwise good steps near the optimum would be rejected at
    random, and the shortened step would look like convergence.
    """
    terms = 1 + jnp.abs(free_energy) + jnp.abs(problem.context.log_scale)
    floor = free_energy - 8 * jnp.finfo(free_energy.dtype).eps * terms

    def body(found: LineSearchResult) -> LineSearchResult:
        trial = problem.restrict(candidate(found.trials))
        value, there = (problem.free_energy(trial, key), None) if evaluate is None else evaluate(trial)
        better = trial.is_proper() & (value >= floor)
        within = problem.within(trial)
        rose = better & within
        chosen, value, there = where(rose, (trial, value, there), (q, free_energy, at))
        return LineSearchResult(chosen, value, rose, found.trials + 1, found.limited | (better & ~within), there)

    return jax.lax.while_loop(lambda found: ~found.rose & (found.trials < trials), body, unmoved(q, free_energy, at))


def unmoved(q: Family, free_energy: Float[Array, ""], at: Any = None) -> LineSearchResult:
    """The result of a line search that has not begun."""
    return LineSearchResult(q, free_energy, jnp.asarray(False), jnp.asarray(0), jnp.asarray(False), at)


def within(moved: Float[Array, ""], tolerance: Scalar | None) -> Bool[Array, ""]:
    """Whether a step moved q by no more than the tolerance; None is never met."""
    return jnp.asarray(False) if tolerance is None else moved <= tolerance


def after(
    found: LineSearchResult, moved: Float[Array, ""], whole: Float[Array, ""], tolerance: Scalar | None
) -> Int[Array, ""]:
    """The outcome after a line search that moved q by `moved` nats of KL, where the whole step is `whole` nats.

    A step that is short because it was halved again and again tells of rounding and not of an optimum.
    """
    hidden = within(moved, tolerance) & (found.trials > _HALVED_OFTEN)
    outcome = jnp.where(within(whole, tolerance), Outcome.CONVERGED, Outcome.RUNNING)
    outcome = jnp.where(hidden, Outcome.STALLED, outcome)
    outcome = jnp.where(found.rose, outcome, Outcome.STALLED)
    return jnp.where(found.limited, Outcome.TRUST_REGION, outcome)


def single_step_outcome(max_steps: Whole, outcome: Int[Array, ""]) -> Int[Array, ""]:
    """The outcome, where reaching a limit of one step counts as converged."""
    unfinished = (outcome == Outcome.RUNNING) | (outcome == Outcome.STEP_LIMIT)
    return jnp.where(unfinished & (max_steps == 1), Outcome.CONVERGED, outcome)


def length(q: Family, target: Family) -> Float[Array, ""]:
    """KL of the step from q to a target, in nats; infinite where it is not known."""
    left = q.length(target / q)
    return jnp.where(jnp.isnan(left), jnp.inf, left)


def running() -> Int[Array, ""]:
    """The outcome of a solver that has not ended."""
    return jnp.asarray(int(Outcome.RUNNING))
