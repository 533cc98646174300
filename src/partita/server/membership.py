"""Clients that leave, retire, come back, and join: pure functions from state to state, between steps."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np

from partita.errors import SettingsError, unknown
from partita.server.aggregation import Aggregation
from partita.server.state import State, unanswered_columns

__all__ = ["CHANGES", "join", "leave", "retire"]


def leave(state: State, name: str, aggregation: Aggregation) -> State:
    """Makes a client inactive and keeps its factor in the posterior."""
    k = _client(state, name)
    held = state.with_iterate(aggregation.without_estimate(state.iterate, k))
    return held.changed(k, inactive=True).without_tasks(lambda task: task.client == k)


def retire(state: State, name: str, aggregation: Aggregation) -> State:
    """Makes a client inactive and divides its factor out of the posterior (unlearning).

    Only where the aggregation keeps the product.
    """
    k = _client(state, name)
    held = state.with_iterate(aggregation.divided(state.iterate, k))
    if not held.posterior.is_proper():
        raise SettingsError(
            f"Without {name} the posterior would be improper: run more rounds first, or use leave instead."
        )
    unknown = np.full(len(state.names), np.inf)
    held = dataclasses.replace(held, residual=unknown, size=unknown)
    held = held.changed(k, versions=state.versions[k] + 1, residual=0.0, ell=0.0, ell_variance=0.0, inactive=True)
    return held.without_tasks(lambda task: task.client == k)


def join(state: State, name: str, aggregation: Aggregation) -> State:
    """A new client, whose factor changes nothing yet; or one that comes back to the factor it left.

    The gradient in hyperparameters of one that comes back is stale, and counts no more.
    """
    if name in state.names:
        return state.changed(state.names.index(name), inactive=False, residual=np.inf, size=np.inf, gradients=np.nan)
    columns = {
        field: jax.tree.map(lambda column, one: np.concatenate([column, one]), getattr(state, field), first)
        for field, first in unanswered_columns(1, {"gradients": state.gradients}).items()
    }
    added = state.with_iterate(aggregation.added(state.iterate))
    columns["last_turn"][-1] = state.turn
    return dataclasses.replace(added, names=(*state.names, name), **columns)


CHANGES: Mapping[str, Callable[[State, str, Aggregation], State]] = {"leave": leave, "retire": retire, "join": join}
"""The changes of membership that can be asked for, by name."""


def _client(state: State, name: str) -> int:
    if name not in state.names:
        raise unknown("client", name, state.names)
    if state.hosted[state.names.index(name)]:
        raise SettingsError(f"{name!r} is the prior's own client, and cannot leave: start a run with another prior.")
    return state.names.index(name)
