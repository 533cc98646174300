"""Step ② of `alg:vmp`: one pure client update, the same in every engine."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from partita.data.shard import Shard
from partita.errors import FederationError, SettingsError
from partita.families import Family
from partita.families.base import check_start
from partita.families.factor import Factor
from partita.hyper.values import Hyper, likelihood_hyper, model_given, prior_given
from partita.inputs import check_flag, check_kind, check_number
from partita.local.context import Cavity, Context
from partita.local.objective import Problem
from partita.local.solvers import Outcome, Solver
from partita.local.solvers.base import Solution
from partita.models import Model
from partita.numerics.compiled import Compiled, Scalar, Whole
from partita.numerics.trees import all_finite

__all__ = [
    "RESIDUAL_UNDEFINED",
    "ClientSettings",
    "Info",
    "Recipe",
    "Reply",
    "Visit",
    "VisitSpec",
    "answer",
    "assign",
    "client_key",
    "client_update",
    "formed",
    "posed",
    "prepare_update",
    "scalar",
]

RESIDUAL_UNDEFINED = (Outcome.TRUST_REGION, Outcome.IMPROPER, Outcome.NO_MOMENTS)
"""Solver outcomes after which a small residual does not indicate a fixed point."""


class ClientSettings(eqx.Module):
    """How clients form their answers, beside model and solver: what a `Method` says of it and a `Recipe` tells them."""

    context: Context = Cavity()
    trust_region: float = 1.0
    """The trust-region radius used when the context is improper, in nats of KL per natural parameter."""
    start: Family | None = None
    """The solver's initial q while the posterior is still the prior; otherwise, and if None, it is the posterior."""
    restart: bool = eqx.field(static=True, default=False)
    """Whether every visit restarts at `start` (as with early stopping in `sec:experiments:fmnist`)."""
    temperature: float = 1.0
    """The factor on the KL divergence: 1 is Bayes, less than 1 a cold posterior. It is recorded in the history."""

    def __check_init__(self) -> None:
        check_kind("context", self.context, Context, "use one such as Cavity()")
        check_number("trust region", self.trust_region, lambda radius: radius > 0, "above 0")
        check_start(self.start)
        check_flag("setting restart", self.restart)
        if self.restart and self.start is None:
            raise SettingsError("`restart` restarts every visit at `start`: give a start.")
        check_number("temperature", self.temperature, lambda number: 0 < number < math.inf, "above 0 and finite")


class Recipe(ClientSettings):
    """The client's part of a method."""

    model: Model = eqx.field(kw_only=True)
    solver: Solver = eqx.field(kw_only=True)
    learned: tuple[str, ...] = eqx.field(static=True, default=())
    """The names of the learned hyperparameters, whose values are part of every task."""


def scalar(kind: type, valid: Callable[[Any], bool] = lambda value: True) -> Any:
    """A field of `Info`; a message may hold values of this type that are valid."""
    return eqx.field(metadata={"allows": lambda value: type(value) is kind and valid(value)})


class Info(eqx.Module):
    """Scalars that a client reports with its answer. A field is declared here and nowhere else."""

    ell: float | Float[Array, ""] = scalar(float)
    """Its expected log-likelihood under the posterior it was sent."""
    ell_variance: float | Float[Array, ""] = scalar(float, lambda value: not value < 0)
    """The square of its standard error, where the expectation is sampled; else 0."""
    free_energy: float | Float[Array, ""] = scalar(float)
    """Its local free energy at its answer."""
    residual: float | Float[Array, ""] = scalar(float, lambda value: not math.isnan(value))
    """KL(q_k ‖ q) between its answer and the posterior it was sent; infinite if its solver was stopped early.

    If the solver's remaining distance is larger, that distance.
    """
    steps: Whole = scalar(int, lambda value: 0 <= value < 2**31)
    outcome: Whole = scalar(int, lambda value: value in set(Outcome))
    skipped: Whole = scalar(int, lambda value: 0 <= value < 2**31)
    """The number of rows without a proper factor, whose sites were not updated."""
    finite: bool | Bool[Array, ""] = scalar(bool)

    def written(self) -> dict[str, Any]:
        """The scalars by name, as JSON holds them."""
        return {name: np.asarray(value).item() for name, value in vars(self).items()}

    @classmethod
    def read(cls, written: Any, finite: bool) -> Self:
        """The scalars of a message, whose arrays are `finite`; a `FederationError` where they are not as declared."""
        allows = {field.name: field.metadata["allows"] for field in dataclasses.fields(cls)}
        if not isinstance(written, dict) or written.keys() != allows.keys():
            raise FederationError("The answer lacks some of the required scalars.")
        for name, value in written.items():
            if not allows[name](value):
                raise FederationError(f"The answer's {name} is invalid.")
        return cls(**written | {"finite": written["finite"] and finite})


class Reply(eqx.Module):
    """All that leaves a client: the undamped change Δ_k = q_k / q of its factor, and scalars.

    If hyperparameters are learned, it includes ∇_ε of the client's expected log-likelihood under the posterior it was
    sent (`sec:hyper-gradients`).
    """

    delta: Factor
    info: Info
    gradient: Mapping[str, Float[Array | np.ndarray, "..."]] = eqx.field(default_factory=dict)


@jax.jit
def client_key(seed: Whole, client: Whole, version: Whole) -> Key[Array, ""]:
    """A client's random key, a function of seed, client and factor version, so that a retry uses the same key."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), client), version)


class VisitSpec(eqx.Module):
    """The numbers of one visit, computed from the method and the task."""

    context: Factor
    weight: Float[Array, ""]
    baseline: Factor
    start: Family | None
    """The initial q; None for the posterior, so that it is not passed twice."""
    trust_region: Float[Array, ""]


class Visit(NamedTuple):
    """What a client's update depends on beside the recipe."""

    prior: Family
    q: Family
    factor: Factor
    shard: Shard
    share: float
    """The client's part of all rows."""
    key: Key[Array, ""]
    hyper: Hyper = MappingProxyType({})


def client_update(recipe: Recipe, visit: Visit) -> Reply:
    """Updates a client's factor by maximising its local free energy (`eq:vfe`).

    Two compiled programs, so that the expensive one (the solver) is shared by all methods.
    """
    return answer(*_solved_with(recipe, visit))


def prepare_update(recipe: Recipe, visit: Visit) -> None:
    """Compiles an update with arguments of these shapes, and computes nothing that is costly."""
    answer.compile(*_solved_with(recipe, visit))


def _solved_with(recipe: Recipe, visit: Visit) -> tuple[Model, Solver, VisitSpec, Family, Shard, Key[Array, ""], Hyper]:
    """The arguments of `answer`."""
    assignment = assign(recipe, visit.prior, visit.q, visit.factor, visit.share, dict(visit.hyper))
    return recipe.model, recipe.solver, assignment, visit.q, visit.shard, visit.key, likelihood_hyper(visit.hyper)


@Compiled
def assign(recipe: Recipe, prior: Family, q: Family, factor: Factor, share: Scalar, hyper: Hyper) -> VisitSpec:
    """Computes context, weight, baseline and start of a visit."""
    prior = prior_given(prior, hyper)
    context, start, dtype = recipe.context, recipe.start, jax.tree.leaves(q)[0].dtype
    fraction = jnp.asarray(share, dtype)
    given = (prior, q, factor, fraction)
    if start is not None:
        pairs = zip(jax.tree.leaves(q), jax.tree.leaves(prior), strict=True)
        untouched = jnp.all(jnp.array([jnp.all(a == b) for a, b in pairs])) | recipe.restart
        start = jax.tree.map(lambda a, b: jnp.where(untouched, a.astype(b.dtype), b), start, q)
    weight, region = context.weight(fraction) / recipe.temperature, jnp.asarray(recipe.trust_region, dtype)
    return VisitSpec(context(*given), weight, context.baseline(*given), start, region)


@Compiled
def answer(
    model: Model, solver: Solver, assignment: VisitSpec, q: Family, shard: Shard, key: Key[Array, ""], hyper: Hyper
) -> Reply:
    """Solves the client's problem and forms its reply.

    The answer may be improper if only its direction is used (`NaturalGradient`); its log scale is then 0.
    """
    problem, (solve_key, _) = posed(model, assignment, q, shard, hyper), jax.random.split(key)
    return formed(model, solver.solve(problem, solve_key), assignment, q, shard, key, hyper)


def posed(model: Model, assignment: VisitSpec, q: Family, shard: Shard, hyper: Hyper) -> Problem:
    """The client's problem."""
    start, at = q if assignment.start is None else assignment.start, model_given(model, hyper)
    return Problem(at, shard, assignment.context, assignment.weight, start, assignment.trust_region)


def formed(
    model: Model, solution: Solution, assignment: VisitSpec, q: Family, shard: Shard, key: Key[Array, ""], hyper: Hyper
) -> Reply:
    """The reply with a solution of the client's problem."""
    at, (_, ell_key) = model_given(model, hyper), jax.random.split(key)

    def ell(hyper: Hyper) -> Float[Array, ""]:
        return model_given(model, hyper).ell(q, shard.data, shard.weights, ell_key)

    proper = solution.q.is_proper()
    scaled = Factor.of(solution.q) / assignment.baseline
    delta = Factor(scaled.natural, jnp.where(proper, scaled.log_scale + solution.log_mass, 0))
    held_back = jnp.isin(solution.outcome, jnp.array(RESIDUAL_UNDEFINED)) | ~proper
    value, gradient = jax.value_and_grad(ell)(hyper) if hyper else (ell(hyper), hyper)
    variance: Scalar = 0.0
    if not at.expectation.deterministic:
        said = at.expectation.estimate(at, q, shard.data, shard.weights, ell_key)
        value, variance = jnp.asarray(said.value), said.squared_error
    finite = all_finite((delta, solution.free_energy, gradient))
    residual = jnp.where(held_back, jnp.inf, jnp.maximum(solution.q.kl(q), solution.left))
    solved = (solution.steps, solution.outcome, jnp.asarray(solution.skipped))
    return Reply(
        delta,
        Info(value, jnp.asarray(variance, value.dtype), solution.free_energy, residual, *solved, finite),
        gradient,
    )
