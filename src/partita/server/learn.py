"""Step ④, where hyperparameters are learned: ε moves along the gradient that clients have reported."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from partita.engines.base import Engine
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper import values
from partita.hyper.learning import Learning, LearningView, gain
from partita.hyper.values import Hyper
from partita.models import Model
from partita.numerics.compiled import Compiled
from partita.numerics.stack import Stack
from partita.server.bound import free_energy
from partita.server.method import Method
from partita.server.state import State

__all__ = ["learn", "unmoved"]


def learn(
    method: Method,
    learning: Learning,
    model: Model,
    engine: Engine,
    state: State,
    answers: int,
    tolerance: float | None,
) -> State:
    """④ Server: update ε along the gradient reported by clients, if the learning rule allows it (`sec:hyper_learning`).

    The factors are unchanged and q moves with the prior, so that q = p(θ | ε) · Π t_m still holds. Earlier answers
    were computed for the old ε, so the residuals are reset.
    """
    present = state.active
    if not all(np.isfinite(column[present]).all() for column in (state.ell, *state.gradients.values())):
        return state
    above = values.positive(model, learning.names)
    summed = {
        name: jnp.asarray(column[present].sum(0), state.hyper[name].dtype) for name, column in state.gradients.items()
    }
    gradient = values.bound_gradient(state.prior, state.posterior, state.hyper, summed, above, method.temperature)

    def at(u: Hyper) -> State:
        hyper = values.constrained({name: value.astype(state.hyper[name].dtype) for name, value in u.items()}, above)
        change = values.compiled_prior_given(state.prior, hyper) / state.current_prior
        moved = method.aggregation.with_prior(state.iterate, change)
        return dataclasses.replace(state, hyper=hyper, posterior=moved.posterior, memory=moved.memory)

    def allowed(new: State) -> bool:
        return values.possible(new.hyper, above) and bool(_both_proper(new.current_prior, new.posterior))

    def bound(u: Hyper) -> float:
        new = at(u)
        return free_energy(method, engine, new, new.posterior) if allowed(new) else -np.inf

    u = values.unconstrained(state.hyper, above)
    residual = float(state.residual[present].max())
    view = LearningView(u, gradient, bound, residual, tolerance or 0.0, answers / int(present.sum()))
    moved = learning.update(view, state.learning)
    new = state if moved.u is u else at(moved.u)
    if new is not state and state.keeps_product:
        new = dataclasses.replace(new, posterior=_product(new.current_prior, state.factors))
    if not allowed(new):
        new, moved = state, moved._replace(left=gain(gradient))
    return dataclasses.replace(
        new,
        learning=moved.memory,
        updates=state.updates + (new is not state),
        residual=np.where(present, np.maximum(state.residual, moved.left), state.residual),
        communications=state.communications + moved.trials * int(state.communicating.sum()),
    )


def unmoved(learning: Learning, state: State) -> str:
    """A message that explains why the hyperparameters never moved, with the remedy."""
    known = [np.isfinite(column).reshape(len(column), -1).all(1) for column in (state.ell, *state.gradients.values())]
    silent = [name for k, name in enumerate(state.names) if state.active[k] and not all(heard[k] for heard in known)]
    unknown = "was accepted, so the bound is unknown: remove these clients with `leave`"
    reason = f"no answer of {', '.join(silent)} {unknown}" if silent else learning.why_unmoved
    return f"Hyperparameters still have their initial values ({', '.join(learning.names)}): {reason}."


def _product(prior: Family, factors: Stack[Factor]) -> Family:
    """p(θ | ε) · Π t_m."""

    def product(own: Array, theirs: np.ndarray) -> Array:
        return jnp.asarray(np.concatenate([np.asarray(own)[None], theirs]).sum(0), own.dtype)

    return jax.tree.map(product, prior, factors.parts().natural)


@Compiled
def _both_proper(prior: Family, posterior: Family) -> Bool[Array, ""]:
    return prior.is_proper() & posterior.is_proper()
