"""Power EP for a client as a whole (`alg:pep`): the moments of q · (p(y_k | θ) / t_k)^α are matched, for any model."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from partita.errors import SettingsError
from partita.expectations import GridQuadrature, MonteCarlo
from partita.families import Family, inner
from partita.families.base import Mean, Theta
from partita.families.factor import Factor
from partita.inputs import check_kind, check_number
from partita.local.objective import Problem
from partita.local.solvers.base import Outcome, Progress, Solver, running, single_step_outcome, within
from partita.local.solvers.power import check_power
from partita.numerics.compiled import Scalar
from partita.numerics.trees import where

__all__ = ["BATCH", "MomentMatching", "between"]

BATCH = 64
"""The number of θ that are evaluated in one batch."""


class MomentMatching(Solver):
    """Matches the moments of the tilted density of all of a client's rows, by quadrature or importance sampling.

    A `Grid` is accurate for few parameters. With `MonteCarlo` the draws are importance-weighted; the moments have a
    bias of about one over the effective sample size. Nodes or draws are placed around the last match until it
    converges. Rows with weight w (`Prior(rescaled=True)`) count as w clients, one of which is matched:
    (p(y_k | θ)^w / t_k)^(α/w).

    Natural parameters are not linear in the moments: matching noisy moments is biased whatever the damping, and may be
    infeasible. With a `step_size` s below 1 the answer is the rate of change of the natural parameters as the mean
    parameters move by s towards the moments of one set of draws. With damping ρ = s this is EP-μ; s = 0, a derivative,
    is EP-η (So and Turner 2024). The bias from noisy moments is then of order s, or zero; the bias of importance
    sampling remains.
    """

    alpha: float = 1.0
    rule: GridQuadrature | MonteCarlo = GridQuadrature()
    max_steps: int = 30
    tolerance: float | None = 1e-12
    """Stops when the match moves by less than this, in nats of KL."""
    step_size: float = 1.0
    """The step of the mean parameters towards the moments; below 1 the moments are computed only once."""
    estimates_evidence = True

    def __check_init__(self) -> None:
        check_power(self.alpha)
        check_number("step size", self.step_size, lambda step: 0 <= step <= 1, "from 0 to 1")
        check_kind("rule", self.rule, GridQuadrature | MonteCarlo, "use one", name="GridQuadrature or MonteCarlo")
        if isinstance(self.rule, MonteCarlo) and self.rule.samples < 2:
            raise SettingsError(f"Importance sampling needs at least 2 samples, not {self.rule.samples}.")

    @property
    def matched_power(self) -> float | None:
        return float(self.alpha) if float(self.step_size) == 1 else None

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        problem.check_independent("MomentMatching")
        zero = jnp.zeros((), jax.tree.leaves(problem.start)[0].dtype)
        return Progress(problem.start, zero, running(), problem.start.mean_parameters())

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        around, start, alpha = progress.q, problem.start, self.power(problem)
        factor = start / problem.context.natural
        theta, log_masses = self.rule.nodes(around, key)
        statistics = jax.vmap(around.statistics)(theta)

        def log_ratio(one: Theta, statistic: Mean) -> Float[Array, ""]:
            rows = jax.vmap(problem.model.log_density, in_axes=(None, 0))(one, problem.shard.data)
            likelihood = problem.weight * (problem.shard.weights @ rows)
            return alpha * (likelihood - inner(factor, statistic)) + inner(start / around, statistic)

        logs = log_masses + jax.lax.map(lambda pair: log_ratio(*pair), (theta, statistics), batch_size=BATCH)
        # control variate: apply the weights' change of the sample moments to the exact moments
        gained = jax.nn.softmax(logs) - jnp.exp(log_masses)
        changes = jax.tree.leaves(jax.tree.map(lambda leaf: jnp.tensordot(gained, leaf, 1), statistics))
        before, structure = jax.tree.flatten(around.mean_parameters())
        moments = jax.tree.unflatten(structure, [a + b for a, b in zip(before, changes, strict=True)])
        matched = start.with_mean_parameters(between(start, moments, self.step_size))
        log_mass = jax.nn.logsumexp(logs) + around.log_normaliser() - start.log_normaliser()
        settled = within(matched.distance(around), self.tolerance) | (jnp.asarray(self.step_size) < 1)
        outcome = jnp.where(settled, Outcome.CONVERGED, Outcome.RUNNING)
        return Progress(matched, log_mass, jnp.where(matched.is_proper(), outcome, Outcome.NO_MOMENTS), moments)

    def finish(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Progress:
        """q · (matched / q)^(1/α) with its mass; it may be improper although its damped step is proper.

        If a grid has not converged, the tilted density may have no moments.
        """
        start, alpha = Factor.of(problem.start), self.power(problem)
        mass = Factor(progress.q.one(), progress.free_energy - alpha * (start / problem.context).log_scale)
        whole = start * (self.towards(problem.start, progress.memory) * mass) ** (1 / alpha)
        lost = jnp.asarray(self.rule.deterministic) & (progress.outcome == Outcome.RUNNING)
        outcome = jnp.where(lost, Outcome.NO_MOMENTS, progress.outcome)
        if not self.rule.deterministic:
            outcome = single_step_outcome(self.max_steps, outcome)
        whole = where(outcome != Outcome.NO_MOMENTS, whole, start)
        log_mass = jnp.where(whole.natural.is_proper(), whole.natural.log_normaliser() + whole.log_scale, 0)
        return Progress(whole.natural, log_mass, outcome)

    def power(self, problem: Problem) -> Float[Array, ""]:
        """The power α/w of the whole client, which is the power α of one of w copies."""
        return self.alpha / jnp.maximum(problem.weight, 1)

    def towards(self, start: Family, moments: Mean) -> Factor:
        """The change of q towards these moments: the secant over `step_size`, or the derivative if it is 0."""

        def moved(step: Float[Array, ""]) -> Factor:
            return Factor.of(start.with_mean_parameters(between(start, moments, step)))

        step = jnp.asarray(self.step_size, jax.tree.leaves(start)[0].dtype)
        _, derivative = jax.jvp(moved, (jnp.zeros_like(step),), (jnp.ones_like(step),))
        secant = (moved(step) / Factor.of(start)) ** (1 / step)
        return where(step > 0, secant, derivative)


def between(q: Family, moments: Mean, step: Scalar) -> Mean:
    """The mean parameters of q, moved by a step towards others."""
    return jax.tree.map(lambda a, b: (1 - step) * a + step * b, q.mean_parameters(), moments)
