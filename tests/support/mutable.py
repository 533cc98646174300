"""What is mutated: a sound input of each kind, and how it is read."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import partita as pt
from partita.federation import config
from partita.io import wire
from partita.results.history import History
from partita.results.posterior_file import load_posterior
from partita.server.state import State, init, with_learning
from support.clinic_files import TOML
from support.mutations import (
    Mutation,
    message_resealed,
    npz_resealed,
    npz_rewritten,
    sqlite_resealed,
    sqlite_rewritten,
    toml_rewritten,
)
from support.problems import MODEL, PARTS, PRIOR, SOLVER

METHOD = pt.methods.asynchronous(SOLVER, learn=["prior_scale"])
SILENT = pt.Monitor(every=0)
ARCHIVES = (Mutation("members", npz_rewritten), Mutation("members, resealed", npz_resealed, True)) * 2
RECORDS = (Mutation("records", sqlite_rewritten), Mutation("records, resealed", sqlite_resealed, True)) * 2


class Target(NamedTuple):
    """A kind of input."""

    original: bytes
    content: Callable[[bytes], Any]
    """What is read from it."""
    mutations: tuple[Mutation, ...]
    sealed: bool = True
    """Whether a change of its bytes must be noticed."""

    @staticmethod
    def same(found: Any, expected: Any) -> bool:
        return repr(found) == repr(expected)


def messages(folder: Path) -> Target:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4), "c": np.array(0.5), "d": np.empty((0, 3))}
    message = wire.Message({"kind": "update", "task": "1", "info": {"steps": 3, "ell": -1.5}}, arrays)

    def content(data: bytes) -> Any:
        found = wire.unpack(data)
        return found.header, _plain(found.arrays)

    return Target(wire.pack(message), content, (Mutation("contents", message_resealed, True),) * 2)


def settings(folder: Path) -> Target:
    original = TOML + _MORE_TOML
    return Target(
        original.encode(),
        lambda data: config.read(data, "federation.toml"),
        (Mutation("lines", toml_rewritten),) * 6,
        sealed=False,
    )


_MORE_TOML = """tolerance = 1e-6
deadline = 600.0
quorum = 0.5
[method]
name = "synchronous"
damping = 0.5
[solver]
kind = "adam"
max_steps = 10
[prior]
family = "mean-field"
scale = 1.0
[admission]
change = 10.0
dominance = 0.5
[server]
address = "127.0.0.1:9092"
"""


def checkpoints(folder: Path) -> Target:
    path = folder / "run.npz"
    _run(pt.Checkpoint(path))

    def content(data: bytes) -> Any:
        path.write_bytes(data)
        return _known(*pt.Checkpoint(path).load(_fresh()))

    return Target(path.read_bytes(), content, ARCHIVES)


def posteriors(folder: Path) -> Target:
    path = folder / "posterior.npz"
    pt.Posterior(MODEL, PRIOR ** (1 / 3), {"prior_scale": np.array(0.5)}).save(path, ["x", "y", "z"])

    def content(data: bytes) -> Any:
        path.write_bytes(data)
        found = pt.Posterior.load(path, MODEL)
        return _plain(found.q), _plain(found.hyper), load_posterior(path)[1]

    return Target(path.read_bytes(), content, ARCHIVES)


def ledgers(folder: Path) -> Target:
    path = folder / "ledger.sqlite"
    ledger = pt.Ledger(path, durable=False)
    _run(ledger)
    ledger.say("roster", {"rows": {"east": 3}, "agreed": None})
    ledger.request("client 1", "leave")
    ledger._db.close()
    numbers = itertools.count()

    def content(data: bytes) -> Any:
        path = folder / f"{next(numbers)}.sqlite"  # SQLite knows a file by what was there before
        path.write_bytes(data)
        try:
            return read(path)
        finally:
            for written in folder.glob(f"{path.name}*"):
                written.unlink()

    def read(path: Path) -> Any:
        ledger = pt.Ledger(path, durable=False)
        try:
            state, history = ledger.load(_fresh())
            known = _known(state, history), ledger.said("roster"), ledger.said("traffic")
            left = ledger.apply(state, METHOD.aggregation)
            ledger.note("client 0", "late", "written after it was read")
            return *known, left.inactive.tolist()
        finally:
            ledger._db.close()

    return Target(path.read_bytes(), content, RECORDS)


TARGETS: Mapping[str, Callable[[Path], Target]] = {
    "messages": messages,
    "settings": settings,
    "checkpoints": checkpoints,
    "ledgers": ledgers,
    "posteriors": posteriors,
}


def _run(store: Any) -> None:
    pt.run(METHOD, MODEL, PRIOR, PARTS, communications=7, store=store, monitor=SILENT)


@functools.cache
def _fresh() -> State:
    return with_learning(init(PRIOR, PARTS.names, 0, METHOD.aggregation), METHOD.learning, MODEL)


def _known(state: State, history: History) -> Any:
    """Everything in a state and a history, as lists, texts and numbers."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: _plain(value) for name, value in fields.items()}, list(history.rows)


def _plain(tree: Any) -> Any:
    return [
        (jax.tree_util.keystr(path), np.asarray(leaf).dtype.str, np.asarray(leaf).tolist())
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
