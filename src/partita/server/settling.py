"""From the nearest member of a smaller family to that family's own fixed point."""

import dataclasses
from typing import Any

import jax

from partita.families import Family
from partita.families.factor import Factor
from partita.io.wire import equal
from partita.numerics.compiled import Compiled
from partita.numerics.stack import Stack
from partita.server.state import State

__all__ = ["same_member", "settling"]


def settling(state: State, prior: Family) -> State:
    """The state from which a run settles in the family of `prior`, if that is the family of what it has returned.

    Every factor becomes one of the smaller family, with the same gradient at the posterior that was returned, so that
    they multiply to it. Any other state is as it was.
    """
    if state.posterior.gap is None or not same_member(state.prior.returned, prior):
        return state
    q = state.posterior
    factors = Stack.joined(_within(q, state.factors.stacked()))
    return dataclasses.replace(state, prior=prior, posterior=q.returned, round_start=q.returned, factors=factors)


def same_member(first: Family, second: Family) -> bool:
    """Whether two members are of one family and equal in every number."""
    trees: list[Any] = [jax.tree.structure(member) for member in (first, second)]
    return bool(trees[0] == trees[1]) and equal(first, second)


@Compiled
def _within(q: Family, factors: Factor) -> Factor:
    """Stacked factors in the family of what is returned of q, each with the same expected logarithm there."""
    near, returned = q.nearest(), q.returned

    def one(factor: Factor) -> Factor:
        natural = q.within(factor.natural)
        lost = near.cross(factor.natural) - returned.cross(natural)
        return Factor(natural, factor.log_scale + lost)

    return jax.vmap(one)(factors)
