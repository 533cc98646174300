"""State to and from disk: one file, written atomically, without pickle."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from partita.engines import Task
from partita.errors import InputError
from partita.io.archive import read, write
from partita.io.wire import equal, flatten, unflatten
from partita.results.history import History
from partita.server.refusal import refusals, written
from partita.server.state import State
from partita.server.store import Journal

_FORMAT = 7
_ARRAYS = (
    "prior",
    "posterior",
    "residual",
    "age",
    "ell",
    "outcome",
    "gone",
    "memory",
    "hyper",
    "gradients",
    "learning",
)
_NUMBERS = (
    "seed",
    "turn",
    "updates",
    "answers",
    "communications",
    "gradient_steps",
    "synchronous_steps",
    "clock",
)


class Checkpoint(Journal):
    """One file, written every so many steps and at the end. A run goes on from it when it exists."""

    def __init__(self, path: str | os.PathLike[str], every: int = 10) -> None:
        if every < 1:
            raise InputError(f"A checkpoint is due every step at most, not every {every}.")
        self.path, self.every = path, every

    def load(self, fresh: State) -> tuple[State, History]:
        return load(self.path, fresh) if os.path.exists(self.path) else (fresh, History())

    def close(self, state: State, history: History, last: bool) -> None:
        if last or state.turn % self.every == 0:
            save(self.path, state, history)


def save(path: str | os.PathLike[str], state: State, history: History) -> None:
    """Writes all that a run needs to go on after a step. The file is the old one or the new one, never part of one.

    What clients and tasks share, such as a factor that nobody has changed, is written once.
    """
    factors, held = _distinct([*state.factors, *(task.factor for task in state.in_flight)])
    posteriors, sent = _distinct([task.posterior for task in state.in_flight])
    arrays = flatten({name: getattr(state, name) for name in _ARRAYS})
    arrays |= flatten({"factor": factors, "sent": posteriors, "sent_hyper": [task.hyper for task in state.in_flight]})
    about = {
        "format": _FORMAT,
        "names": list(state.names),
        "versions": list(state.versions),
        "refused": written(state.refused),
        "held": held,
        "sent": sent,
        "in_flight": [
            {"id": task.id, "client": task.client, "version": task.version, "updates": task.updates, "sent": task.sent}
            for task in state.in_flight
        ],
        "history": history.rows,
        **{name: getattr(state, name) for name in _NUMBERS},
    }
    write(path, arrays, about)


def load(path: str | os.PathLike[str], like: State) -> tuple[State, History]:
    """The state and history saved at `path`; `like` is the run's initial state, which the file must fit."""
    arrays, about = read(path)
    if about.get("format") != _FORMAT:
        raise InputError(
            f"{path} has format {about.get('format')} where this version reads {_FORMAT}: start anew elsewhere."
        )
    if about["names"] != list(like.names) or about["seed"] != like.seed:
        raise InputError(f"{path} belongs to a run with other clients or another seed: choose another checkpoint file.")
    template = {name: getattr(like, name) for name in _ARRAYS}
    if {key for key in arrays if key.startswith("['hyper']")} != set(flatten({"hyper": like.hyper})):
        raise InputError(f"{path} belongs to a run that learns other hyperparameters: choose another checkpoint file.")
    filled = unflatten(arrays, template, str(path))
    if not equal(filled["prior"], like.prior):
        raise InputError(f"{path} belongs to a run with another prior: choose another checkpoint file.")
    held, sent, about_tasks = about["held"], about["sent"], about["in_flight"]
    lists = {
        "factor": [like.factors[0]] * (max(held) + 1),
        "sent": [like.posterior] * (max(sent, default=-1) + 1),
        "sent_hyper": [like.hyper] * len(about_tasks),
    }
    shared = unflatten(arrays, lists, str(path))
    factors = [shared["factor"][place] for place in held]
    posteriors = [shared["sent"][place] for place in sent]
    tasks = [
        Task(
            name=like.names[task["client"]],
            prior=filled["prior"],
            posterior=posterior,
            factor=factor,
            hyper=hyper,
            seed=like.seed,
            **task,
        )
        for task, posterior, factor, hyper in zip(
            about_tasks, posteriors, factors[len(like.names) :], shared["sent_hyper"], strict=True
        )
    ]
    numbers = {name: about[name] for name in _NUMBERS}
    state = dataclasses.replace(
        like,
        **filled,
        **numbers,
        factors=tuple(factors[: len(like.names)]),
        versions=tuple(about["versions"]),
        refused=refusals(about["refused"]),
        in_flight=tuple(tasks),
    )
    return state, History(about["history"])


def _distinct(members: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The objects among members without repetitions, and the place of each member among them."""
    distinct = {id(member): member for member in members}
    places = {identity: place for place, identity in enumerate(distinct)}
    return list(distinct.values()), [places[id(member)] for member in members]
