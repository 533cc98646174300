"""Clients that leave, come back, and join: pure functions from state to state, between steps."""

import dataclasses
from typing import TypeVar

import numpy as np

from partita.errors import InputError, unknown
from partita.objective import Factor
from partita.state import State

T = TypeVar("T")


def leave(state: State, name: str) -> State:
    """The client takes no part any more, and its factor stays: what it knew still counts."""
    k = _client(state, name)
    return _without_tasks(dataclasses.replace(state, gone=_marked(state.gone, k, True)), k)


def retire(state: State, name: str) -> State:
    """The client takes no part any more, and its factor is divided out, as if it had never been there.

    Under product aggregation only: what else an aggregation remembers of the client is not taken back.
    """
    k = _client(state, name)
    if state.memory is not None:
        raise InputError(f"{name} cannot be divided out under an aggregation with a memory: keep its factor instead.")
    posterior = state.posterior / state.factors[k].natural
    if not posterior.is_proper():
        raise InputError(
            f"Without {name} the posterior would be improper: run on until the others agree, or keep its factor."
        )
    changed = dataclasses.replace(
        state,
        posterior=posterior,
        updates=state.updates + 1,
        factors=_replaced(state.factors, k, Factor.one(state.prior)),
        versions=_replaced(state.versions, k, state.versions[k] + 1),
        residual=np.where(np.arange(len(state.names)) == k, 0.0, np.inf),
        ell=np.where(np.arange(len(state.names)) == k, 0.0, state.ell),
        gone=_marked(state.gone, k, True),
    )
    return _without_tasks(changed, k)


def join(state: State, name: str) -> State:
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
    if state.memory is not None:
        raise InputError(f"{name} cannot join a run under an aggregation with a memory: start a new one with it.")
    return dataclasses.replace(
        state,
        names=(*state.names, name),
        factors=(*state.factors, Factor.one(state.prior)),
        versions=(*state.versions, 0),
        residual=np.append(state.residual, np.inf),
        age=np.append(state.age, 0),
        gradients={name: np.append(column, column[:1] * np.nan, axis=0) for name, column in state.gradients.items()},
        ell=np.append(state.ell, -np.inf),
        gone=np.append(state.gone, False),
    )


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
