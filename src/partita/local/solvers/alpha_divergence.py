"""Power EP as an optimisation (`alg:pep_alpha`): the tilted density's α-divergence from q is minimised by gradients."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from partita.expectations import GridQuadrature, MonteCarlo
from partita.families import Family, inner
from partita.families.base import Theta
from partita.inputs import check_kind, check_number
from partita.local.objective import Problem
from partita.local.solvers.base import Progress
from partita.local.solvers.gradient import LBFGS
from partita.numerics.compiled import Scalar

__all__ = ["AlphaDivergence", "AlphaProblem"]


class AlphaProblem(Problem):
    """A client's problem with (1/α) log E_q[(p̂ / q)^α], p̂ = context · p(y_k | θ), in place of the free energy.

    Maximising it minimises D_α[p̂ ‖ q]. It is a lower bound on log ∫ p̂, and α → 0 is the free energy.
    """

    alpha: Scalar = 0.5
    rule: GridQuadrature | MonteCarlo = GridQuadrature()

    def free_energy(self, q: Family, key: Key[Array, ""]) -> Float[Array, ""]:
        self.check_independent("AlphaDivergence")
        theta, log_masses = self.rule.nodes(q, key)

        @jax.checkpoint
        def log_ratio(one: Theta) -> Float[Array, ""]:
            rows = jax.vmap(self.model.log_density, in_axes=(None, 0))(one, self.shard.data)
            context = inner(self.context.natural, q.statistics(one)) + self.context.log_scale
            return self.weight * (self.shard.weights @ rows) + context - q.log_prob(one)

        return jax.nn.logsumexp(log_masses + self.alpha * jax.lax.map(log_ratio, theta)) / self.alpha


class AlphaDivergence(LBFGS):
    """Minimises D_α[p̂_k ‖ q] by L-BFGS, with integrals by quadrature or Monte Carlo; for any model.

    At the optimum q has the moments of p̂^α q^(1−α): a fixed point of `MomentMatching`. α must be below 1; at 1 the
    objective does not depend on q. With `MonteCarlo` one set of draws is used throughout; the bias grows with α and
    with the distance between p̂ and q.
    """

    alpha: float = 0.5
    rule: GridQuadrature | MonteCarlo = GridQuadrature()
    estimates_evidence = True

    def __check_init__(self) -> None:
        needs = "above 0 and below 1, or MomentMatching used for 1"
        check_number("power α", self.alpha, lambda alpha: 0 < alpha < 1, needs)
        check_kind("rule", self.rule, GridQuadrature | MonteCarlo, "use one", name="GridQuadrature or MonteCarlo")

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        return super().init(self.alpha_problem(problem), key)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        return super().step(self.alpha_problem(problem), progress, index, key)

    def ahead(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Float[Array, ""]:
        q, alpha = progress.q, self.alpha_problem(problem)
        left = q.length(q.natural_gradient(lambda member: alpha.free_energy(member, key)))
        return jnp.where(jnp.isnan(left), jnp.inf, left)

    def alpha_problem(self, problem: Problem) -> AlphaProblem:
        """The problem with its other objective."""
        fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
        return AlphaProblem(**fields, alpha=self.alpha, rule=self.rule)
