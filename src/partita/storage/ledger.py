"""All that the server knows in one SQLite file: one transaction for every answer; a kill costs at most the last.

A client whose answer was lost so is asked again. Others may read the file while the server writes it.
"""

import contextlib
import dataclasses
import functools
import json
import operator
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from partita.engines.base import Task
from partita.errors import InputError, unknown
from partita.families.factor import Factor
from partita.hyper.values import of_model, prior_at
from partita.io.wire import SHOWN, Message, equal, flatten, legible, pack, unflatten, unpack
from partita.local.client import Info, Reply
from partita.results.history import History
from partita.server.aggregation import Aggregation
from partita.server.membership import join, leave, retire
from partita.server.refusal import refusals, written
from partita.server.state import State
from partita.server.store import Journal

_FORMAT = 6
_SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE arrays (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE clients (
    k INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, version INTEGER NOT NULL, residual REAL NOT NULL,
    age INTEGER NOT NULL, ell REAL NOT NULL, outcome INTEGER NOT NULL, gone INTEGER NOT NULL);
CREATE TABLE factors (k INTEGER PRIMARY KEY, factor BLOB NOT NULL);
CREATE TABLE posteriors (updates INTEGER PRIMARY KEY, posterior BLOB NOT NULL);
CREATE TABLE tasks (
    id TEXT PRIMARY KEY, place INTEGER NOT NULL, client INTEGER NOT NULL, version INTEGER NOT NULL,
    updates INTEGER NOT NULL, sent REAL NOT NULL, factor BLOB, info TEXT, reply BLOB);
CREATE TABLE history (place INTEGER PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE events (
    place INTEGER PRIMARY KEY, time REAL NOT NULL, name TEXT NOT NULL, event TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE requests (place INTEGER PRIMARY KEY, name TEXT NOT NULL, what TEXT NOT NULL);
"""
_CACHE = 131_072
"""How many KiB of memory the data base may use."""
_CHANGES = {"leave": leave, "retire": retire, "join": join}
_TREES = ("memory", "hyper", "gradients", "learning")
_NUMBERS = ("turn", "updates", "answers", "communications", "gradient_steps", "synchronous_steps", "clock")


class Ledger(Journal):
    """A journal in a file. What has not changed since the last state is not written again."""

    def __init__(self, path: str | os.PathLike[str], durable: bool = True) -> None:
        self.path = Path(path)
        self._kept: State | None = None
        self._first: tuple[Factor, ...] = ()
        """The factors that a run begins with, which need not be written: thousands of clients may share one."""
        self._rows = self._traffic = 0
        self._counted: dict[str, Any] = {}
        """The numbers written last."""
        self._db = connect(self.path)
        # large pages, and a cache that holds a step's: arrays are written in few pieces, and once
        self._db.execute("PRAGMA page_size = 65536")
        self._db.execute(f"PRAGMA cache_size = {-_CACHE}")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")

        with self._transaction() as db:
            if not db.execute("SELECT name FROM sqlite_master WHERE name = 'about'").fetchone():
                for statement in _SCHEMA.strip().split(";")[:-1]:
                    db.execute(statement)
                self._write(db, "format", _FORMAT)

    def load(self, fresh: State) -> tuple[State, History]:
        self._first = fresh.factors
        with self._transaction() as db:
            if not db.execute("SELECT key FROM arrays WHERE key = 'prior'").fetchone():
                self._write(db, "seed", fresh.seed)
                db.execute("INSERT INTO arrays VALUES ('prior', ?)", [_packed(fresh.prior)])
                self._differences(db, fresh)
                self._kept = fresh
                return fresh, History()
        state, history = read(self._db, fresh, str(self.path))
        self._kept, self._rows = state, len(history)
        self._traffic = self.said("traffic") or 0
        return state, history

    def keep(self, state: State) -> None:
        with self._transaction() as db:
            self._differences(db, state)
        self._kept = state

    def close(self, state: State, history: History, last: bool) -> None:
        with self._transaction() as db:
            self._differences(db, state)
            for place in range(self._rows, len(history)):
                row = history.rows[place]
                db.execute("INSERT INTO history VALUES (?, ?)", [place, json.dumps(row)])
                for name in dict.fromkeys([*row["clients"], *row["refused"]]):
                    reason = row["refused"].get(name, "")
                    self._note(db, name, "refused" if reason else "accepted", reason)
        self._kept, self._rows = state, len(history)

    def note(self, name: str, event: str, text: str = "") -> None:
        with self._transaction() as db:
            self._note(db, name, event, text)

    def carried(self, size: int) -> None:
        """Kept with the next state: a server that is killed forgets what it sent after the last one."""
        self._traffic += size

    def say(self, key: str, value: Any) -> None:
        """Keeps something that JSON can hold."""
        with self._transaction() as db:
            self._write(db, key, value)

    def said(self, key: str) -> Any:
        """What was kept under a key; None if nothing was."""
        found = self._db.execute("SELECT value FROM about WHERE key = ?", [key]).fetchone()
        return None if found is None else json.loads(found[0])

    def request(self, name: str, change: Literal["leave", "retire", "join"]) -> None:
        """Asks the server, which may be another process, for a change of a client's membership at its next step."""
        if change not in _CHANGES:
            raise unknown("change of membership", change, _CHANGES)
        with self._transaction() as db:
            db.execute("INSERT INTO requests VALUES (NULL, ?, ?)", [name, change])

    def asked(self) -> bool:
        return self._db.execute("SELECT place FROM requests LIMIT 1").fetchone() is not None

    def amend(self, state: State, aggregation: Aggregation) -> State:
        wanted = self._db.execute("SELECT place, name, what FROM requests ORDER BY place").fetchall()
        for place, name, change in wanted:
            try:
                state, text = _CHANGES[change](state, name, aggregation), ""
            except InputError as error:
                text = str(error)
            with self._transaction() as db:
                self._differences(db, state)
                db.execute("DELETE FROM requests WHERE place = ?", [place])
            self._kept = state
            self.note(name, f"could not {change}" if text else change, text)
        return state

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            self._counted.clear()
            raise
        self._db.execute("COMMIT")

    def _note(self, db: sqlite3.Connection, name: str, event: str, text: str) -> None:
        shown = legible(text, 2 * SHOWN)  # a sentence of ours around words of theirs
        db.execute("INSERT INTO events VALUES (NULL, ?, ?, ?, ?)", [time.time(), name, event, shown])

    def _write(self, db: sqlite3.Connection, key: str, value: Any) -> None:
        db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", [key, json.dumps(value)])

    def _differences(self, db: sqlite3.Connection, state: State) -> None:
        """Writes what sets a state apart from the one kept last."""
        kept = self._kept
        known = [] if kept is None else _clients(kept)
        rows = [row for k, row in enumerate(_clients(state)) if known[k : k + 1] != [row]]
        db.executemany("INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        held = () if kept is None else kept.factors
        for k, factor in enumerate(state.factors):
            if not any(factor is known for known in (*held[k : k + 1], *self._first[k : k + 1])):
                _put(db, k, _packed(factor))
        for name in _TREES:
            if kept is None or getattr(kept, name) is not getattr(state, name):
                row = [name, _packed(getattr(state, name))]
                db.execute("INSERT OR REPLACE INTO arrays VALUES (?, ?)", row)
        self._tasks(db, state)
        self._posteriors(db, state)
        numbers = {name: getattr(state, name) for name in _NUMBERS} | {"refused": written(state.refused)}
        for key, value in (("numbers", numbers), ("traffic", self._traffic)):
            if self._counted.get(key) != value:
                self._write(db, key, value)
                self._counted[key] = value

    def _tasks(self, db: sqlite3.Connection, state: State) -> None:
        """Writes what has become of tasks; one whose factor is still its client's does without a copy of it."""
        before = {} if self._kept is None else _tasks(self._kept)
        now = _tasks(state)
        for id in before.keys() - now.keys():
            db.execute("DELETE FROM tasks WHERE id = ?", [id])
        for place, (id, (task, reply)) in enumerate(now.items()):
            if id not in before:
                row = [id, place, task.client, task.version, task.updates, task.sent]
                db.execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, NULL)", row)
            if task.factor is not state.factors[task.client]:
                db.execute("UPDATE tasks SET factor = ? WHERE id = ?", [_packed(task.factor), id])
            if reply is not None and (id not in before or before[id][1] is None):
                info = {name: np.asarray(value).item() for name, value in vars(jax.device_get(reply.info)).items()}
                row = [place, json.dumps(info), _packed((reply.delta, reply.gradient)), id]
                db.execute("UPDATE tasks SET place = ?, info = ?, reply = ? WHERE id = ?", row)

    def _posteriors(self, db: sqlite3.Connection, state: State) -> None:
        """Writes the posteriors that tasks were sent with, and the present one unless it is the factors' product."""
        used = {task.updates: (task.posterior, task.hyper) for task, _ in _tasks(state).values()}
        used[state.updates] = state.posterior, state.hyper
        if state.keeps_product:
            del used[state.updates]
        there = {updates for (updates,) in db.execute("SELECT updates FROM posteriors")}
        for updates in used.keys() - there:
            db.execute("INSERT INTO posteriors VALUES (?, ?)", [updates, _packed(used[updates])])
        db.executemany("DELETE FROM posteriors WHERE updates = ?", [[updates] for updates in there - used.keys()])


def _put(db: sqlite3.Connection, k: int, factor: bytes) -> None:
    """Writes a client's factor: over the one before it, whose pages need then not be freed and found again."""
    if db.execute("SELECT length(factor) FROM factors WHERE k = ?", [k]).fetchone() == (len(factor),):
        with db.blobopen("factors", "factor", k) as blob:
            blob.write(factor)
    else:
        db.execute("INSERT OR REPLACE INTO factors VALUES (?, ?)", [k, factor])


def _clients(state: State) -> list[tuple[int | float | str, ...]]:
    """What is known of each client, but for its factor."""
    numbers = (state.residual, state.age, state.ell, state.outcome)
    columns = (*(column.tolist() for column in numbers), map(int, state.gone))
    return list(zip(range(len(state.names)), state.names, state.versions, *columns, strict=True))


def _tasks(state: State) -> dict[str, tuple[Task, Reply | None]]:
    """The tasks that are not done with by their ids, with the answers that have come; those under way come first."""
    waiting: dict[str, tuple[Task, Reply | None]] = {task.id: (task, None) for task in state.in_flight}
    return waiting | {task.id: (task, reply) for task, reply in state.arrived}


def connect(path: Path) -> sqlite3.Connection:
    """The file as a data base."""
    try:
        return sqlite3.connect(path, isolation_level=None, timeout=60.0)
    except sqlite3.OperationalError as error:
        raise InputError(f"{path} cannot be opened as a ledger ({error}): choose another place.") from None


def read(db: sqlite3.Connection, like: State, source: str) -> tuple[State, History]:
    """The state and history in a ledger; `like` is the federation's initial state, which they must fit."""
    try:
        db.execute("BEGIN")
        about = {key: json.loads(value) for key, value in db.execute("SELECT key, value FROM about")}
        if about["format"] != _FORMAT:
            raise InputError(f"{source} has format {about['format']} where this version reads {_FORMAT}: start anew.")
        arrays = dict(db.execute("SELECT key, value FROM arrays"))
        blobs = dict(db.execute("SELECT updates, posterior FROM posteriors"))
        clients = db.execute(
            "SELECT name, version, residual, age, ell, outcome, gone, factor "
            "FROM clients LEFT JOIN factors USING (k) ORDER BY k"
        ).fetchall()
        tasks = db.execute(
            "SELECT id, client, version, updates, sent, factor, info, reply FROM tasks ORDER BY place"
        ).fetchall()
        rows = [json.loads(row) for (row,) in db.execute("SELECT row FROM history ORDER BY place")]
    except (sqlite3.DatabaseError, KeyError, ValueError) as error:
        raise InputError(f"{source} is not a ledger of partita's, or is damaged: {error}.") from None
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    if about["seed"] != like.seed:
        raise InputError(f"{source} belongs to a run with another seed: choose another ledger.")
    prior = unflatten(unpack(arrays["prior"]).arrays, like.prior, source)
    if not equal(prior, like.prior):
        raise InputError(f"{source} belongs to a run with another prior: choose another ledger.")
    names, versions, residual, age, ell, outcome, gone, factors = map(list, zip(*clients, strict=True))
    one = Factor.one(prior)
    first = (*like.factors, *[one] * (len(names) - len(like.factors)))
    held = tuple(
        begun if factor is None else unflatten(unpack(factor).arrays, one, source)
        for begun, factor in zip(first, factors, strict=True)
    )
    if set(unpack(arrays["hyper"]).arrays) != set(flatten(like.hyper)):
        raise InputError(f"{source} belongs to a run that learns other hyperparameters: choose another ledger.")
    numbers = about["numbers"]
    gradients = {key: np.zeros((len(names), *column.shape[1:])) for key, column in like.gradients.items()}
    likes = {"gradients": gradients, **{name: getattr(like, name) for name in _TREES if name != "gradients"}}
    trees = {name: unflatten(unpack(arrays[name]).arrays, likes[name], source) for name in _TREES}
    posteriors = {n: unflatten(unpack(blob).arrays, (prior, like.hyper), source) for n, blob in blobs.items()}
    if numbers["updates"] not in posteriors:
        product = functools.reduce(operator.mul, (t.natural for t in held), prior_at(prior, trees["hyper"]))
        posteriors[numbers["updates"]] = product, trees["hyper"]

    def task(id: str, client: int, version: int, updates: int, sent: float, factor: bytes | None) -> Task:
        own = held[client] if factor is None else unflatten(unpack(factor).arrays, one, source)
        posterior, hyper = posteriors[updates]
        return Task(id, client, names[client], prior, posterior, own, version, like.seed, updates, sent, hyper)

    def reply(info: str, blob: bytes) -> Reply:
        delta, gradient = unflatten(unpack(blob).arrays, (one, of_model(like.hyper)), source)
        return Reply(delta, Info(**json.loads(info)), gradient)

    state = dataclasses.replace(
        like,
        names=tuple(names),
        prior=prior,
        posterior=posteriors[numbers["updates"]][0],
        factors=held,
        versions=tuple(versions),
        residual=np.array(residual),
        age=np.array(age, int),
        ell=np.array(ell),
        outcome=np.array(outcome, int),
        gone=np.array(gone, bool),
        in_flight=tuple(task(*row[:6]) for row in tasks if row[7] is None),
        arrived=tuple((task(*row[:6]), reply(row[6], row[7])) for row in tasks if row[7] is not None),
        refused=refusals(numbers["refused"]),
        **trees,
        **{name: numbers[name] for name in _NUMBERS},
    )
    return state, History(rows)


def _packed(tree: Any) -> bytes:
    return pack(Message({}, flatten(tree)))
