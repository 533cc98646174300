"""How far is q from where the run is going? A short step is not a short distance: slow runs take many short steps."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from partita.families import Family
from partita.numerics.compiled import Compiled
from partita.server.state import State

__all__ = ["DISTANCE_LEFT", "distance_left", "measured", "rounds_left", "unmeasured"]

DISTANCE_LEFT = 0.009
"""How many standard deviations a run that has converged may be from its fixed point by its own estimate.

A hundredth is promised; what is kept back is the error of the estimate, of which 1% was seen.
"""
_ROUNDS = 16
"""How many rounds the rate of convergence is estimated from at most."""
_SLOWEST = 0.999
"""The largest rate that is distinguished from rounding: movements of which a thousandth more is left do not count."""


def measured(state: State) -> State:
    """The state after a step; where a round of answers is over, with how far q moved in it.

    The distance is √(2 KL), in standard deviations: that of any parameter, or of any combination of them, is at most
    this. It is measured on q itself, so it means the same for every aggregation, schedule and damping.
    """
    if state.answers - state.round_began < max(int(state.active.sum()), 1):
        return state
    apart = float(_apart(state.posterior, state.round_start))
    moved = math.sqrt(2 * max(apart, 0.0)) if math.isfinite(apart) else math.inf
    movements = (*state.movements, moved)[-_ROUNDS:]
    return dataclasses.replace(state, round_start=state.posterior, round_began=state.answers, movements=movements)


def unmeasured(state: State) -> State:
    """The state after a step that was taken again: how far q moves from here on says how far it has to go."""
    return dataclasses.replace(state, round_start=state.posterior, round_began=state.answers, movements=())


def distance_left(state: State) -> float:
    """About how many standard deviations q is from the fixed point; infinite before there is a rate.

    Movements that shrink by a factor r a round add up to r/(1 − r) times the last one. The rate r is the largest of
    those between the last 1, 2, 4 and 8 rounds and as many before: short spans tell of a slow part of the error that a
    fast one has hidden until now, long spans do not take noise for progress.
    """
    moved = np.asarray(state.movements)
    eps = jnp.finfo(jax.tree.leaves(state.posterior)[0].dtype).eps
    if len(moved) and moved[-1] <= math.sqrt(eps):
        return 0.0
    rate = _rate(moved)
    return math.inf if rate is None else float(moved[-1] * rate / (1 - rate))


def rounds_left(state: State) -> float:
    """About how many more rounds a run needs at its present rate; infinite where its movements do not shrink."""
    rate, left = _rate(np.asarray(state.movements)), distance_left(state)
    if rate is None or rate >= _SLOWEST:
        return math.inf
    return math.ceil(math.log(max(left / DISTANCE_LEFT, 1.0)) / -math.log(rate)) if rate > 0 else 0


def _rate(moved: Float[np.ndarray, " r"]) -> float | None:
    """By what factor movements shrink in a round; None before that is known."""
    spans = [(moved[-2 * span : -span].sum(), moved[-span:].sum(), span) for span in (1, 2, 4, 8)]
    rates = [(after / before) ** (1 / span) for before, after, span in spans if 2 * span <= len(moved) and before > 0]
    return min(max(rates), _SLOWEST) if rates and np.isfinite(moved).all() else None


@Compiled
def _apart(first: Family, second: Family) -> Float[Array, ""]:
    return first.distance(second)
