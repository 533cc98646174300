"""State to and from disk: one file, written atomically, without pickle."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.engines.base import STORED, Tasks
from partita.families.factor import Factor
from partita.inputs import check_path, check_whole
from partita.io.archive import read, understood, write
from partita.io.wire import equal, flatten, unflatten
from partita.numerics.stack import Chunk, Stack
from partita.results.history import History
from partita.server.origin import check_composition
from partita.server.state import State, layout, restored, stored_trees, stored_values
from partita.server.store import Store
from partita.storage.fitting import check_format, check_run

__all__ = ["Checkpoint", "load", "save"]

_FORMAT = layout(9)
_KIND = "checkpoint file"


class Checkpoint(Store):
    """One file, written every `every` steps and at the end. A run resumes from it if it exists."""

    def __init__(self, path: str | os.PathLike[str], every: int = 10) -> None:
        check_path(path)
        check_whole("number of steps between two checkpoints, every,", every)
        self.path, self.every = path, every

    def __str__(self) -> str:
        return str(self.path)

    def load(self, fresh: State) -> tuple[State, History]:
        return load(self.path, fresh) if os.path.exists(self.path) else (fresh, History())

    def close(self, state: State, history: History, last: bool) -> None:
        if last or state.turn % self.every == 0:
            save(self.path, state, history)


def save(path: str | os.PathLike[str], state: State, history: History) -> None:
    """Writes everything a run needs to resume after a step. The write is atomic.

    Objects shared by clients and tasks, such as an initial factor, are written once.
    """
    parts = state.factors.chunks
    alike = [part.member for part in parts if part.member is not None]
    factors, held = _distinct([*alike, *(task.factor for task in state.in_flight)])
    posteriors, sent = _distinct([task.posterior for task in state.in_flight])
    hyper = [task.hyper for task in state.in_flight]
    stacks = {"factor": factors, "sent": posteriors, "sent_hyper": hyper}
    arrays = flatten(
        stored_trees(state) | {name: Stack.of(members) for name, members in stacks.items() if jax.tree.leaves(members)}
    )
    own = [part.arrays for part in parts if part.member is None]
    arrays |= {f"factors {leaf}": np.concatenate(column) for leaf, column in enumerate(zip(*own, strict=True))}
    about = {
        "format": _FORMAT,
        "state": stored_values(state),
        "parts": [[len(part), part.member is not None] for part in parts],
        "held": held,
        "sent": sent,
        "in_flight": [{name: getattr(task, name) for name in STORED} for task in state.in_flight],
        "history": list(history.rows),
    }
    write(path, arrays, about)


def load(path: str | os.PathLike[str], like: State) -> tuple[State, History]:
    """The state and history saved at `path`; `like` is the run's initial state, which the file must fit."""
    arrays, about = read(path)
    with understood(path, _KIND):
        return _state(path, like, arrays, about)


def _state(
    path: str | os.PathLike[str], like: State, arrays: dict[str, np.ndarray], about: dict[str, Any]
) -> tuple[State, History]:
    check_format(path, _KIND, about.get("format"), _FORMAT)
    values = about["state"]
    same = values["names"] == list(like.names) and values["seed"] == like.seed
    check_run(path, _KIND, same, "with other clients or another seed")
    hyper = {key for key in arrays if key.startswith("['hyper']")}
    check_run(path, _KIND, hyper == set(flatten({"hyper": like.hyper})), "that learns other hyperparameters")
    check_composition(values["origin"], like.origin, path)
    trees = unflatten(arrays, stored_trees(like), str(path))
    check_run(path, _KIND, equal(trees["prior"], like.prior), "with another prior")
    held, sent, tasks, parts = about["held"], about["sent"], about["in_flight"], about["parts"]
    one, alike = Factor.one(like.prior), sum(bool(alike) for _, alike in parts)
    counts = {"factor": max(held, default=-1) + 1, "sent": max(sent, default=-1) + 1, "sent_hyper": len(tasks)}
    right = sum(length for length, _ in parts) == len(like.names) and len(held) == alike + len(tasks)
    if not right or not {*held} <= {*range(len(held))} or not {*sent} <= {*range(len(tasks))}:
        raise ValueError("it has the factors of other clients")
    members = {"factor": one, "sent": like.posterior, "sent_hyper": like.hyper}
    shared: dict[str, list[Any]] = {
        name: list(unflatten(arrays, {name: Stack.repeated(members[name], count)}, str(path))[name])
        for name, count in counts.items()
        if count and jax.tree.leaves(members[name])
    }
    factors = [shared["factor"][place] for place in held]
    rows = sum(length for length, alike in parts if not alike)
    needed = [((rows, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(one)] if rows else []
    leaves = [arrays[f"factors {leaf}"] for leaf in range(len(needed))]
    if [(leaf.shape, leaf.dtype) for leaf in leaves] != needed:
        raise ValueError("its factors have another shape")
    begun, first, chunks = 0, iter(factors[:alike]), []
    for length, alike_one in parts:
        if alike_one:
            chunks.append(Chunk.alike(next(first), length))
        else:
            chunks.append(Chunk([leaf[begun : begun + length] for leaf in leaves]))
            begun += length
    for name in ("sent", "sent_hyper"):
        shared[name] = jax.tree.map(jnp.asarray, shared.get(name, [like.hyper] * len(tasks)))
    state = restored(like, trees, values, factors=Stack(chunks, jax.tree.structure(one)))
    sent_with = zip(tasks, sent, factors[alike:], shared["sent_hyper"], strict=True)
    in_flight = [
        state.task(**task, posterior=shared["sent"][place], factor=factor, hyper=hyper)
        for task, place, factor, hyper in sent_with
    ]
    return dataclasses.replace(state, in_flight=Tasks(in_flight)), History(about["history"])


def _distinct(members: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The distinct objects, and the index of each member among them."""
    distinct = {id(member): member for member in members}
    places = {identity: place for place, identity in enumerate(distinct)}
    return list(distinct.values()), [places[id(member)] for member in members]
