"""Step ② of `alg:vmp`: one pure client update, the same in every engine."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from partita.data.shard import Shard
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.values import Hyper, model_at, of_model, prior_at
from partita.local.context import Cavity, Context
from partita.local.objective import Problem
from partita.local.solvers import Outcome, Solver
from partita.models import Model
from partita.numerics.compiled import Compiled

HELD_BACK = (Outcome.TRUST_REGION, Outcome.IMPROPER, Outcome.NO_MOMENTS)
"""How a solver ends whose answer, however near, says nothing of a fixed point."""


class Recipe(eqx.Module):
    """What a client knows of the method: the model, how it solves its problem, against what, and from where."""

    model: Model
    solver: Solver
    context: Context = Cavity()
    trust_region: float = 1.0
    """How far q may move in one visit when the context is improper, in nats of KL per natural parameter."""
    start: Family | None = None
    """Where to begin while the posterior is still the prior; at the posterior when None, and ever after."""
    anew: bool = eqx.field(static=True, default=False)
    """Whether to begin at `start` in every visit (`sec:experiments:fmnist`: so that stopping early means something)."""
    temperature: float = 1.0
    """By what the KL divergence is multiplied; 1 is Bayes."""
    learned: tuple[str, ...] = eqx.field(static=True, default=())
    """The names of the hyperparameters that come with every task."""


class Info(eqx.Module):
    """Scalars that a client reports with its answer."""

    ell: Float[Array, ""]
    """Its expected log-likelihood under the posterior it was sent."""
    free_energy: Float[Array, ""]
    """Its local free energy at its answer."""
    residual: Float[Array, ""]
    """KL(q_k ‖ q), how far its answer lies from the posterior it was sent; infinite where its solver was held back.

    Where the solver had farther to go than that, what it had left.
    """
    steps: Int[Array, ""]
    outcome: Int[Array, ""]
    skipped: Int[Array, ""]
    """How many of its rows have no proper factor, and do not count or count as they did before."""
    finite: Bool[Array, ""]


class Reply(eqx.Module):
    """What leaves a client, and nothing else: the undamped change Δ_k = q_k / q of its factor, and scalars.

    Where hyperparameters are learned, the gradient of its expected log-likelihood in ε under the posterior it was sent
    goes with them (`sec:hyper-gradients`).
    """

    delta: Factor
    info: Info
    gradient: Hyper = eqx.field(default_factory=dict)


class Assignment(eqx.Module):
    """A client's task in numbers: what the method says of it has been worked out."""

    context: Factor
    weight: Float[Array, ""]
    baseline: Factor
    start: Family | None
    """Where to begin, if not at the posterior: what is not given apart is not computed twice."""
    trust_region: Float[Array, ""]


def client_update(
    recipe: Recipe,
    prior: Family,
    q: Family,
    factor: Factor,
    shard: Shard,
    share: float,
    key: Key[Array, ""],
    hyper: Hyper | None = None,
) -> Reply:
    """Improves a client's factor against everybody else's: maximises its local free energy (`eq:vfe`).

    In two programs, so that the long one, which solves, is the same for every method.
    """
    hyper = hyper or {}
    assignment = assign(recipe, prior, q, factor, share, hyper)
    return answer(recipe.model, recipe.solver, assignment, q, shard, key, of_model(hyper))


def _assign(recipe: Recipe, prior: Family, q: Family, factor: Factor, share: float, hyper: Hyper) -> Assignment:
    """What the method asks of a client."""
    prior = prior_at(prior, hyper)
    context, start = recipe.context, recipe.start
    dtype = jax.tree.leaves(q)[0].dtype
    fraction = jnp.asarray(share, dtype)
    if start is not None:
        pairs = zip(jax.tree.leaves(q), jax.tree.leaves(prior), strict=True)
        untouched = jnp.all(jnp.array([jnp.all(a == b) for a, b in pairs])) | recipe.anew
        start = jax.tree.map(lambda a, b: jnp.where(untouched, a.astype(b.dtype), b), start, q)
    return Assignment(
        context(prior, q, factor, fraction),
        context.weight(fraction) / recipe.temperature,
        context.baseline(prior, q, factor, fraction),
        start,
        jnp.asarray(recipe.trust_region, dtype),
    )


def _answer(
    model: Model,
    solver: Solver,
    assignment: Assignment,
    q: Family,
    shard: Shard,
    key: Key[Array, ""],
    hyper: Hyper,
) -> Reply:
    """A client's answer to its assignment.

    An answer may be improper where only its direction counts (`NaturalGradient`); its scale is then 0.
    """
    start = q if assignment.start is None else assignment.start

    def ell(hyper: Hyper) -> Float[Array, ""]:
        return model_at(model, hyper).ell(q, shard.data, shard.weights, ell_key)

    at = model_at(model, hyper)
    problem = Problem(at, shard, assignment.context, assignment.weight, start, assignment.trust_region)
    solve_key, ell_key = jax.random.split(key)
    solution = solver.solve(problem, solve_key)
    proper = solution.q.is_proper()
    scaled = Factor.of(solution.q) / assignment.baseline
    delta = Factor(scaled.natural, jnp.where(proper, scaled.log_scale + solution.log_mass, 0))
    held_back = jnp.isin(solution.outcome, jnp.array(HELD_BACK)) | ~proper
    value, gradient = jax.value_and_grad(ell)(hyper) if hyper else (ell(hyper), hyper)
    scalars = jnp.stack([delta.log_scale, solution.free_energy])
    numbers = [jnp.all(jnp.isfinite(leaf)) for leaf in (scalars, *jax.tree.leaves(gradient))]
    finite = delta.natural.is_finite() & jnp.all(jnp.array(numbers))
    info = Info(
        ell=value,
        free_energy=solution.free_energy,
        residual=jnp.where(held_back, jnp.inf, jnp.maximum(solution.q.kl(q), solution.left)),
        steps=solution.steps,
        outcome=solution.outcome,
        skipped=jnp.asarray(solution.skipped),
        finite=finite,
    )
    return Reply(delta, info, gradient)


assign = Compiled(_assign)
answer = Compiled(_answer)
