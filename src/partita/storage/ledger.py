"""The server's state in one SQLite file, with one transaction per answer.

A killed server loses at most the last answer, which is requested again. Other processes may read the file meanwhile.
Every record has a checksum (`storage/records.py`).
"""

import contextlib
import dataclasses
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from partita.engines.base import STORED, EventLog, Tasks
from partita.errors import InputError, unknown
from partita.families.factor import Factor
from partita.hyper.values import likelihood_hyper, prior_given
from partita.inputs import check_flag, check_path
from partita.io.archive import understood
from partita.io.wire import MAX_TEXT_LENGTH, equal, flatten, sanitise, unflatten, unpack
from partita.local.client import Info, Reply
from partita.numerics.stack import Stack
from partita.results.history import History
from partita.server.aggregation import Aggregation
from partita.server.membership import CHANGES
from partita.server.origin import check_composition
from partita.server.state import State, columns_of, layout, restored, stored_trees, stored_values, unanswered_columns
from partita.server.store import Requests, Store
from partita.storage.chunks import COLUMNS, filled, is_stack, read_chunks, stack_of, stacks_in, whole, write_chunks
from partita.storage.fitting import check_format, check_run
from partita.storage.open_tasks import OpenTasks, packed
from partita.storage.records import (
    append,
    create,
    damaged,
    exists,
    insert,
    opened,
    records,
    schema,
    snapshot,
    translated,
)

__all__ = ["Ledger", "read"]

_FORMAT = layout(9)
_SQL = {"f": "REAL", "i": "INTEGER", "b": "INTEGER", "U": "TEXT"}
"""How SQLite calls kinds of scalars."""
_APART = ("prior", "posterior")
"""Trees that are not written when they change: the prior does not, and the posterior is mostly the factors' product."""


def _trees(state: State) -> dict[str, Any]:
    """The fields that are written when they change: their stacks by chunks, all else as a whole."""
    others = {*_APART, *columns_of(state)}
    return {name: tree for name, tree in stored_trees(state).items() if name not in others}


def _stacks(state: State) -> dict[str, Stack[Any]]:
    """What has an entry a client, by the names of its chunks."""
    return {"factors": state.factors} | stacks_in(_trees(state))


def _declared(kinds: Mapping[str, Any]) -> str:
    """Columns of a table, from the types of what they hold."""
    return ", ".join(f"{name} {_SQL[np.dtype(kind).kind]} NOT NULL" for name, kind in kinds.items())


def _tables(state: State) -> dict[str, str]:
    """The tables of a run; those of clients and tasks have columns as the state and a task declare them."""
    columns = _declared({name: column.dtype for name, column in columns_of(state).items()})
    return {
        "arrays": "key TEXT PRIMARY KEY, value BLOB NOT NULL",
        "clients": f"k INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, {columns}",
        "chunks": COLUMNS,
        "posteriors": "updates INTEGER PRIMARY KEY, posterior BLOB NOT NULL",
        "tasks": f"place INTEGER NOT NULL, {_declared(STORED)}, factor BLOB, info TEXT, reply BLOB, PRIMARY KEY (id)",
    }


_ALWAYS = {
    "about": "key TEXT PRIMARY KEY, value TEXT NOT NULL",
    "history": "place INTEGER PRIMARY KEY, row TEXT NOT NULL",
    "events": f"place INTEGER PRIMARY KEY, {_declared({'time': float, 'name': str, 'event': str, 'text': str})}",
    "requests": "place INTEGER PRIMARY KEY, name TEXT NOT NULL, what TEXT NOT NULL",
}
"""Tables that there are before a run has begun, with their columns."""


_MOST_NOTES = 1000
"""How many events of one kind are noted of a client, beside its answers."""
_CACHE = 131_072
"""SQLite's page cache in KiB."""


class Ledger(Store, Requests, EventLog):
    """A store, an event log and requests in one file. What has not changed is not written again."""

    def __init__(self, path: str | os.PathLike[str], durable: bool = True) -> None:
        check_path(path)
        check_flag("setting durable", durable)
        self.path = Path(path)
        self._kept: State | None = None
        self._first: Mapping[str, Stack[Any]] = {}
        """The initial stacks, whose chunks are not written: thousands of clients may share one factor."""
        self._tasks = OpenTasks()
        self._rows = self._traffic = 0
        self._noted: dict[tuple[str, str], int] = {}
        """How many events of each kind were noted of each client."""
        self._counted: dict[str, Any] = {}
        """The counters last written."""
        self._db = opened(str(self.path), timeout=60.0)
        # large pages and a cache that holds a whole step, so that arrays are written once and in few pieces
        flushed = "FULL" if durable else "OFF"
        pragmas = {"page_size": 65536, "cache_size": -_CACHE, "journal_mode": "WAL", "synchronous": flushed}
        with contextlib.ExitStack() as stack:
            stack.callback(self._db.close)
            with translated(self.path):
                for name, value in pragmas.items():
                    self._db.execute(f"PRAGMA {name} = {value}")
            with self._transaction() as db:
                if not exists(db, "about"):
                    self._write_tables(db, _ALWAYS)
                    self._write(db, "format", _FORMAT)
            stack.pop_all()  # it stays open unless it is damaged

    def __str__(self) -> str:
        return str(self.path)

    def load(self, fresh: State) -> tuple[State, History]:
        # a run that goes on from another's state begins with factors that are answers
        self._first = _stacks(fresh) if fresh.answers == 0 else {}
        with self._transaction() as db:
            if not exists(db, "arrays"):
                self._differences(db, fresh)
                insert(db, "arrays", [("prior", packed(fresh.prior))])
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
                insert(db, "history", [(place, json.dumps(row))])
                for name in dict.fromkeys([*row["clients"], *row["refused"]]):
                    reason = row["refused"].get(name, "")
                    aside = "set aside, since the free energy had fallen" if row.get("returned") else ""
                    self._note(db, name, "refused" if reason else "accepted", reason or aside)
        self._kept, self._rows = state, len(history)

    def note(self, name: str, event: str, text: str = "") -> None:
        """Of one kind and client so many are written and no more, since who sends them may send any number."""
        counted = "SELECT count(*) FROM events WHERE name = ? AND event = ?"
        if (name, event) not in self._noted:
            with translated(self.path):
                (self._noted[name, event],) = self._db.execute(counted, [name, event]).fetchone()
        self._noted[name, event] += 1
        if self._noted[name, event] <= _MOST_NOTES:
            last = " (the last that is noted)" if self._noted[name, event] == _MOST_NOTES else ""
            with self._transaction() as db:
                self._note(db, name, event, text + last)

    def count_bytes(self, size: int) -> None:
        """Saved with the next state: after a crash, traffic since the last saved state is not counted."""
        self._traffic += size

    def say(self, key: str, value: Any) -> None:
        """Stores a JSON value under a key."""
        with self._transaction() as db:
            self._write(db, key, value)

    def said(self, key: str) -> Any:
        """The JSON value stored under a key, or None."""
        return _about(self._db, str(self.path)).get(key)

    def request(self, name: str, change: Literal["leave", "retire", "join"]) -> None:
        """Requests a membership change, which the server (possibly another process) applies at its next step."""
        if change not in CHANGES:
            raise unknown("change of membership", change, CHANGES)
        with self._transaction() as db:
            append(db, "requests", name, change)

    def pending(self) -> bool:
        with translated(self.path):
            return self._db.execute("SELECT place FROM requests LIMIT 1").fetchone() is not None

    def apply(self, state: State, aggregation: Aggregation) -> State:
        for place, name, change in records(self._db, self.path, "requests", "place"):
            try:
                if change not in CHANGES:
                    raise unknown("change of membership", change, CHANGES)
                state, text = CHANGES[change](state, name, aggregation), ""
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
        with translated(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have ended it
                    self._db.execute("ROLLBACK")
                self._counted.clear()
                self._tasks.forget()
                raise

    def _write_tables(self, db: sqlite3.Connection, tables: Mapping[str, str]) -> None:
        for name, columns in tables.items():
            create(db, name, columns)
        self._write(db, "schema", schema(db))

    def _note(self, db: sqlite3.Connection, name: str, event: str, text: str) -> None:
        shown = sanitise(text, 2 * MAX_TEXT_LENGTH)  # our text plus the client's
        append(db, "events", time.time(), name, event, shown)

    def _write(self, db: sqlite3.Connection, key: str, value: Any) -> None:
        insert(db, "about", [(key, json.dumps(value))])

    def _differences(self, db: sqlite3.Connection, state: State) -> None:
        """Writes the differences from the last saved state."""
        kept = self._kept
        if kept is None:
            self._write_tables(db, _tables(state))
        self._clients(db, state)
        write_chunks(db, _stacks(state), {} if kept is None else _stacks(kept), self._first)
        before = {} if kept is None else _trees(kept)
        for name, tree in _trees(state).items():
            if name not in before or before[name] is not tree:
                insert(db, "arrays", [(name, packed(whole(tree)))])
        self._tasks.write(db, state)
        values = {name: value for name, value in stored_values(state).items() if name != "names"}  # `clients` has them
        for key, value in (("state", values), ("traffic", self._traffic)):
            if self._counted.get(key) != value:
                self._write(db, key, value)
                self._counted[key] = value

    def _clients(self, db: sqlite3.Connection, state: State) -> None:
        """Writes the numbers of clients for whom one has changed."""
        columns, changed = columns_of(state), np.ones(len(state.names), bool)
        if self._kept is not None:
            known = len(self._kept.names)
            differ = [columns[name][:known] != column for name, column in columns_of(self._kept).items()]
            changed[:known] = np.any(differ, axis=0)
        numbers = [column[changed].tolist() for column in columns.values()]
        names = [state.names[k] for k in np.flatnonzero(changed)]
        rows = zip(np.flatnonzero(changed).tolist(), names, *numbers, strict=True)
        insert(db, "clients", rows)


def _about(db: sqlite3.Connection, source: str) -> dict[str, Any]:
    """The JSON values by their keys, of a file of this version."""
    with understood(source, "ledger"):
        about = {key: json.loads(value) for key, value in records(db, source, "about", "key")}
    check_format(source, "ledger", about.get("format"), _FORMAT)
    return about


def read(db: sqlite3.Connection, like: State, source: str) -> tuple[State, History]:
    """The state and history in a ledger; `like` is the federation's initial state, which they must fit."""
    with understood(source, "ledger"), snapshot(db, source):
        return _read(db, like, source)


def _read(db: sqlite3.Connection, like: State, source: str) -> tuple[State, History]:
    ((sound,),) = db.execute("PRAGMA quick_check(1)")
    if sound != "ok":
        raise damaged(source, sound)
    about = _about(db, source)
    if about["schema"] != schema(db):
        raise ValueError("its tables are others than were created")
    records(db, source, "events", "place")
    arrays = dict(records(db, source, "arrays", "key"))
    blobs = dict(records(db, source, "posteriors", "updates"))
    members = records(db, source, "clients", "k")
    known, selected = [row[1] for row in members], [row[2:] for row in members]
    written = read_chunks(db, source)
    tasks = [row[1:] for row in records(db, source, "tasks", "place, rowid")]
    rows = [json.loads(row) for _, row in records(db, source, "history", "place")]

    def loaded(blob: bytes, like: Any) -> Any:
        return unflatten(unpack(blob).arrays, like, source)

    values = about["state"] | {"names": known}
    check_run(source, "ledger", values["seed"] == like.seed, "with another seed")
    prior = loaded(arrays["prior"], like.prior)
    check_run(source, "ledger", equal(prior, like.prior), "with another prior")
    learned = set(unpack(arrays["hyper"]).arrays)
    check_run(source, "ledger", learned == set(flatten(like.hyper)), "that learns other hyperparameters")
    check_composition(values["origin"], like.origin, source)
    columns = {
        name: np.array(column, kind.dtype)
        for (name, kind), column in zip(columns_of(like).items(), zip(*selected, strict=True), strict=True)
    }
    unanswered = unanswered_columns(len(known), _trees(like))
    fitting = _trees(like) | {name: column for name, column in unanswered.items() if name not in columns}
    fitting["memory"] = _resized(like.memory, len(like.names), len(known))
    stacks = {name: stack_of(written.get(name, {}), stack, len(known)) for name, stack in _stacks(like).items()}
    plain = {name: loaded(arrays[name], whole(tree)) for name, tree in fitting.items()}
    trees = filled(plain, fitting, stacks)
    one, held = Factor.one(prior), stacks["factors"]
    posteriors = {updates: loaded(blob, (prior, like.hyper)) for updates, blob in blobs.items()}
    if values["updates"] not in posteriors:
        product = prior_given(prior, trees["hyper"]) * jax.tree.map(jnp.asarray, held.summed().natural)
        posteriors[values["updates"]] = product, trees["hyper"]
    trees |= {"prior": prior, "posterior": posteriors[values["updates"]][0]}
    state = restored(like, trees | columns, values, factors=held)
    in_flight, arrived = [], []
    for *scalars, factor, info, reply in tasks:
        stored = dict(zip(STORED, scalars, strict=True))
        own = held[stored["client"]] if factor is None else loaded(factor, one)
        posterior, hyper = posteriors[stored["updates"]]
        task = state.task(**stored, posterior=posterior, factor=own, hyper=hyper)
        if reply is None:
            in_flight.append(task)
        else:
            delta, gradient = loaded(reply, (one, likelihood_hyper(like.hyper)))
            arrived.append((task, Reply(delta, Info.read(json.loads(info), True), gradient)))
    return dataclasses.replace(state, in_flight=Tasks(in_flight), arrived=tuple(arrived)), History(rows)


def _resized(memory: Any, clients: int, stored: int) -> Any:
    """What an aggregation remembers, for as many clients as the file has: NumPy arrays have an entry a client."""

    def resized(leaf: Any) -> Any:
        own = isinstance(leaf, np.ndarray) and leaf.ndim > 0 and len(leaf) == clients
        return np.zeros((stored, *leaf.shape[1:]), leaf.dtype) if own else leaf

    return jax.tree.map(resized, memory, is_leaf=is_stack)
