"""Clients that leave, come back, and join: pure functions from state to state, between steps."""

import dataclasses
from typing import TypeVar

import numpy as np

from partita.errors import InputError, unknown
from partita.server.aggregation import Aggregation, Holdings
from partita.server.state import State

T = TypeVar("T")


def leave(state: State, name: str, aggregation: Aggregation) -> State:
    """The client takes no part any more, and its factor stays: what it knew still counts."""
    k = _client(state, name)
    held = _holding(state, aggregation.without_estimate(state.holdings, k))
    return _without_tasks(dataclasses.replace(held, gone=_marked(state.gone, k, True)), k)


def retire(state: State, name: str, aggregation: Aggregation) -> State:
    """The client takes no part any more, and its factor is divided out, as if it had never been there.

    Only where the aggregation keeps the product.
    """
    k = _client(state, name)
    held = _holding(state, aggregation.divided(state.holdings, k))
    if not held.posterior.is_proper():
        raise InputError(
            f"Without {name} the posterior would be improper: run on until the others agree, or keep its factor."
        )
    changed = dataclasses.replace(
        held,
        versions=_replaced(state.versions, k, state.versions[k] + 1),
        residual=np.where(np.arange(len(state.names)) == k, 0.0, np.inf),
        ell=np.where(np.arange(len(state.names)) == k, 0.0, state.ell),
        gone=_marked(state.gone, k, True),
    )
    return _without_tasks(changed, k)


def join(state: State, name: str, aggregation: Aggregation) -> State:
    """A new client, whose factor changes nothing yet; or one that comes back to the factor it left.

    Its gradient in hyperparameters is of those that were when it left, and counts no more.
    """
    if name in state.names:
        k = state.names.index(name)
        back = np.arange(len(state.names)) == k
        unheard = {
            name: np.where(np.expand_dims(back, tuple(range(1, column.ndim))), np.nan, column)
            for name, column in state.gradients.items()
        }
        return dataclasses.replace(
            state,
            gradients=unheard,
            gone=_marked(state.gone, k, False),
            residual=np.where(back, np.inf, state.residual),
        )
    return dataclasses.replace(
        _holding(state, aggregation.added(state.holdings)),
        names=(*state.names, name),
        versions=(*state.versions, 0),
        residual=np.append(state.residual, np.inf),
        age=np.append(state.age, 0),
        gradients={name: np.append(column, column[:1] * np.nan, axis=0) for name, column in state.gradients.items()},
        ell=np.append(state.ell, -np.inf),
        outcome=np.append(state.outcome, 0),
        gone=np.append(state.gone, False),
    )


def _holding(state: State, holdings: Holdings) -> State:
    """The state with other holdings; a posterior that is another one counts as an update."""
    factors = tuple(holdings.factors[k] for k in range(len(holdings.factors)))
    changed = holdings.posterior is not state.posterior
    held = {"posterior": holdings.posterior, "factors": factors, "memory": holdings.memory}
    return dataclasses.replace(state, **held, updates=state.updates + changed)


def _client(state: State, name: str) -> int:
    if name not in state.names:
        raise unknown("client", name, state.names)
    return state.names.index(name)


def _without_tasks(state: State, k: int) -> State:
    """The state in which nothing is expected of a client."""
    return dataclasses.replace(
        state,
        in_flight=tuple(task for task in state.in_flight if task.client != k),
        arrived=tuple((task, reply) for task, reply in state.arrived if task.client != k),
    )


def _replaced(values: tuple[T, ...], k: int, value: T) -> tuple[T, ...]:
    return (*values[:k], value, *values[k + 1 :])


def _marked(values: np.ndarray, k: int, value: bool) -> np.ndarray:
    marked = values.copy()
    marked[k] = value
    return marked
