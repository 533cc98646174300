"""Step ② of `alg:vmp`: one pure client update, the same in every engine."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from partita.compiled import Compiled
from partita.families import Family
from partita.models import Model
from partita.objective import Cavity, Context, Factor, Problem
from partita.partition.shard import Shard
from partita.solvers import Outcome, Solver


class Recipe(eqx.Module):
    """What a client knows of the method: the model, how it solves its problem, and against what."""

    model: Model
    solver: Solver
    context: Context = Cavity()
    trust_region: float = 1.0
    """How far q may move in one visit when the context is improper, in nats of KL per natural parameter."""


class Info(eqx.Module):
    """Scalars that a client reports with its answer."""

    ell: Float[Array, ""]
    """Its expected log-likelihood under the posterior it was sent."""
    free_energy: Float[Array, ""]
    """Its local free energy at its answer."""
    residual: Float[Array, ""]
    """KL(q_k ‖ q), how far its answer lies from the posterior it was sent; infinite where its solver was held back."""
    steps: Int[Array, ""]
    outcome: Int[Array, ""]
    finite: Bool[Array, ""]


class Reply(eqx.Module):
    """What leaves a client, and nothing else: the undamped change Δ_k = q_k / q of its factor, and scalars."""

    delta: Factor
    info: Info


def client_update(
    recipe: Recipe,
    prior: Family,
    q: Family,
    factor: Factor,
    shard: Shard,
    share: float,
    key: Key[Array, ""],
) -> Reply:
    """Improves a client's factor against everybody else's: maximises its local free energy (`eq:vfe`) from q."""
    context = recipe.context(prior, q, factor, jnp.asarray(share))
    weight = recipe.context.weight(jnp.asarray(share)).astype(jax.tree.leaves(q)[0].dtype)
    problem = Problem(recipe.model, shard, context, weight, q, jnp.asarray(recipe.trust_region))
    solve_key, ell_key = jax.random.split(key)
    solution = recipe.solver.solve(problem, solve_key)
    delta = Factor.of(solution.q) / Factor.of(q)
    held_back = jnp.isin(solution.outcome, jnp.array([Outcome.TRUST_REGION, Outcome.IMPROPER]))
    finite = delta.natural.is_finite() & jnp.isfinite(delta.log_scale) & jnp.isfinite(solution.free_energy)
    info = Info(
        ell=recipe.model.ell(q, shard.data, shard.weights, ell_key),
        free_energy=solution.free_energy,
        residual=jnp.where(held_back, jnp.inf, solution.q.kl(q)),
        steps=solution.steps,
        outcome=solution.outcome,
        finite=finite,
    )
    return Reply(delta, info)


update = Compiled(client_update)
