"""The proximal-point method with KL as the penalty, around any solver (`sec:nat-grad-mirror-trust`)."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from partita.errors import SettingsError
from partita.families.factor import Factor
from partita.inputs import check_finite_number, check_kind
from partita.local.objective import Problem
from partita.local.solvers.base import Outcome, Progress, Solver, within

__all__ = ["ProximalPoint"]


class ProximalPoint(Solver):
    """q ← argmax F(q') − KL(q' ‖ q) / ρ, without linearising F (Theis and Hoffman 2015; Khan et al. 2016).

    The penalised problem is a client's problem again, and any solver solves it: its context is
    context^(ρ/(1+ρ)) · q^(1/(1+ρ)), which the penalty makes proper more often than the client's own, and its weight is
    multiplied by ρ/(1+ρ). For small ρ a step is the damped fixed point; ρ → ∞ is the solver by itself.
    """

    solver: Solver
    rate: float = 1.0
    """ρ: how far a step may go."""
    max_steps: int = eqx.field(default=100, kw_only=True)
    tolerance: float | None = eqx.field(default=1e-10, kw_only=True)
    """Stops when a step moves q by less than this, in nats of KL, over the square of ρ/(1+ρ)."""

    def __check_init__(self) -> None:
        check_kind("solver", self.solver, Solver, "use one of partita.solvers")
        check_finite_number("rate", self.rate, above=0)
        if self.solver.estimates_evidence:
            raise SettingsError("Power EP climbs no free energy that could be penalised: use a solver such as Newton.")

    @property
    def for_densities(self) -> Solver:
        return dataclasses.replace(self, solver=self.solver.for_densities)

    def can_free(self, problem: Problem) -> bool:
        return self.solver.can_free(problem)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, share = progress.q, self.rate / (1 + self.rate)
        context = problem.context**share * Factor.of(q) ** (1 - share)
        near = dataclasses.replace(problem, context=context, weight=share * problem.weight, start=q)
        solution = self.solver.solve(near, key)
        inside = problem.within(solution.q)
        moved = solution.q.kl(q)
        failed = solution.outcome == Outcome.TRUST_REGION
        found = jnp.where(within(moved / share**2, self.tolerance), Outcome.CONVERGED, Outcome.RUNNING)
        outcome = jnp.where(failed | ~inside, Outcome.TRUST_REGION, found)
        return Progress(solution.q, problem.free_energy(solution.q, key), outcome)
