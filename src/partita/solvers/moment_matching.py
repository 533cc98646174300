"""Power EP for a client as a whole (`alg:pep`): the moments of q · (p(y_k | θ) / t_k)^α are matched, for any model."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from partita.expectations import Grid, MonteCarlo
from partita.families import inner
from partita.families.base import Mean, Theta
from partita.objective import Factor, Problem
from partita.solvers.base import Outcome, Progress, Solver, running
from partita.solvers.power_ep import check_power, distance

BATCH = 64
"""For how many θ all rows are gone through at a time."""


class MomentMatching(Solver):
    """Matches the family to the tilted density of all of a client's rows, whose integrals are sums over some θ.

    A `Grid` is exact for few parameters. With `MonteCarlo` draws are weighted by how much likelier the tilted density
    makes them; the moments are then biased, by about one over the number of draws that the weights leave in effect.
    Values of θ are laid out anew around what was matched last until that stays where it is.
    """

    alpha: float = 1.0
    rule: Grid | MonteCarlo = Grid()
    max_steps: int = 30
    tolerance: float = 1e-12
    """Stops when what is matched moves by less than this, in nats of KL."""

    def __check_init__(self) -> None:
        check_power(self.alpha)

    @property
    def estimates_evidence(self) -> bool:
        return True

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        return Progress(problem.start, jnp.zeros((), jax.tree.leaves(problem.start)[0].dtype), running())

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        around, start = progress.q, problem.start
        factor = start / problem.context.natural
        theta, log_masses = self.rule.nodes(around, key)
        statistics = jax.vmap(around.statistics)(theta)

        def log_ratio(one: Theta, statistic: Mean) -> Float[Array, ""]:
            rows = jax.vmap(problem.model.log_density, in_axes=(None, 0))(one, problem.shard.data)
            likelihood = problem.weight * (problem.shard.weights @ rows)
            return self.alpha * (likelihood - inner(factor, statistic)) + inner(start / around, statistic)

        logs = log_masses + jax.lax.map(lambda pair: log_ratio(*pair), (theta, statistics), batch_size=BATCH)
        # draws have other moments than what they were drawn from: the tilted density changes theirs by as much
        gained = jax.nn.softmax(logs) - jnp.exp(log_masses)
        changes = jax.tree.leaves(jax.tree.map(lambda leaf: jnp.tensordot(gained, leaf, 1), statistics))
        before, structure = jax.tree.flatten(around.mean_parameters())
        moments = [a + b for a, b in zip(before, changes, strict=True)]
        matched = around.with_mean_parameters(jax.tree.unflatten(structure, moments))
        log_mass = jax.nn.logsumexp(logs) + around.log_normaliser() - start.log_normaliser()
        outcome = jnp.where(distance(matched, around) <= self.tolerance, Outcome.CONVERGED, Outcome.RUNNING)
        proper = matched.is_proper()
        return Progress(matched, log_mass, jnp.where(proper, outcome, Outcome.NO_MOMENTS))

    def finish(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Progress:
        """q^(1−1/α) · matched^(1/α), with its mass; it may be improper, and yet its damped step proper.

        A grid that went on being laid out anew has not found the tilted density: it may have no moments.
        """
        start, matched = Factor.of(problem.start), Factor.of(progress.q)
        said = start / problem.context
        mass = Factor(progress.q.one(), progress.free_energy - self.alpha * said.log_scale)
        whole = start ** (1 - 1 / self.alpha) * (matched * mass) ** (1 / self.alpha)
        lost = jnp.asarray(isinstance(self.rule, Grid)) & (progress.outcome == Outcome.RUNNING)
        outcome = jnp.where(lost, Outcome.NO_MOMENTS, progress.outcome)
        found = outcome != Outcome.NO_MOMENTS
        whole = jax.tree.map(lambda a, b: jnp.where(found, a, b), whole, start)
        log_mass = jnp.where(whole.natural.is_proper(), whole.natural.log_normaliser() + whole.log_scale, 0)
        return Progress(whole.natural, log_mass, outcome)
