"""Tasks that are open, and the posteriors that they were sent with, in a ledger: what has changed is written."""

import collections
import json
import sqlite3
from typing import Any

import jax

from partita.engines.base import STORED, Task, Tasks
from partita.io.wire import Message, equal, flatten, pack
from partita.local.client import Reply
from partita.server.state import State
from partita.storage.records import insert

__all__ = ["OpenTasks", "packed"]

_LARGE = 2**20
"""Bytes beyond which a posterior that equals prior times factors is not written, which halves an answer's cost."""


class OpenTasks:
    """Writes open tasks: those in flight, and those whose answers wait for others. It knows what it has written."""

    def __init__(self) -> None:
        self._last: State | None = None
        """The state that was written last; None if everything is to be written again."""
        self._open = collections.Counter[int]()
        """How many open tasks have a posterior, by its number."""
        self._there = set[int]()
        """The posteriors that are written."""

    def forget(self) -> None:
        """After a writing that failed: the next one writes everything."""
        self._last = None

    def write(self, db: sqlite3.Connection, state: State) -> None:
        """Writes what differs from the state before."""
        if self._last is None:
            for table in ("tasks", "posteriors"):
                db.execute(f"DELETE FROM {table}")
            self._open.clear()
            self._there.clear()
        self._posteriors(db, state, self._tasks(db, state))
        self._last = state

    def _tasks(self, db: sqlite3.Connection, state: State) -> list[Task]:
        """Writes tasks, with the factor where it is not the client's any more; returns those opened or closed."""
        last = self._last
        flown, waited = (Tasks(), ()) if last is None else (last.in_flight, last.arrived)
        pairs, replied = state.in_flight.changed_since(flown), {task.id: task for task, _ in waited}
        earlier = {then.id: then for then, _ in pairs if then is not None} | replied
        now: dict[str, tuple[int, Task, Reply | None]] = {
            new.id: (-1, new, None) for _, new in pairs if new is not None
        }
        now |= {task.id: (place, task, reply) for place, (task, reply) in enumerate(state.arrived)}
        moved = set[int]() if last is None else {*state.factors.differing(last.factors)}
        for client in moved:
            task = state.in_flight.of(client)
            if task is not None and task.id not in now:
                earlier[task.id], now[task.id] = task, (-1, task, None)
        rows = [
            self._record(state, *about) for id, about in now.items() if id not in replied or about[1].client in moved
        ]
        insert(db, "tasks", rows)
        closed = [task for id, task in earlier.items() if id not in now]
        db.executemany("DELETE FROM tasks WHERE id = ?", [[task.id] for task in closed])
        opened = [task for id, (_, task, _) in now.items() if id not in earlier]
        self._open.update(task.updates for task in opened)
        self._open.subtract(task.updates for task in closed)
        return [*opened, *closed]

    def _record(self, state: State, place: int, task: Task, reply: Reply | None) -> tuple[Any, ...]:
        """A task's record: it has a copy of a factor that is not the client's any more."""
        apart = task.updates != state.updates and not equal(task.factor, state.factors[task.client])
        factor = packed(task.factor) if apart else None
        info = None if reply is None else json.dumps(reply.info.written())
        answer = None if reply is None else packed((reply.delta, reply.gradient))
        return (place, *(getattr(task, name) for name in STORED), factor, info, answer)

    def _posteriors(self, db: sqlite3.Connection, state: State, changed: list[Task]) -> None:
        """Writes the posteriors of open tasks, and the current one unless it is large and equals prior times factors.

        A product computed anew has other rounding, so that only a stored posterior lets a run go on to the same bit.
        """
        spared = state.keeps_product and sum(leaf.nbytes for leaf in jax.tree.leaves(state.posterior)) > _LARGE
        known = {task.updates: (task.posterior, task.hyper) for task in changed}
        for each in (self._last, state):
            if each is not None:
                known[each.updates] = each.posterior, each.hyper
        for updates, sent in known.items():
            is_open, current = self._open[updates] > 0, updates == state.updates
            needed = is_open and not current if spared else is_open or current
            if needed and updates not in self._there:
                insert(db, "posteriors", [(updates, packed(sent))])
                self._there.add(updates)
            elif not needed and updates in self._there:
                db.execute("DELETE FROM posteriors WHERE updates = ?", [updates])
                self._there.discard(updates)
            if not is_open:
                del self._open[updates]


def packed(tree: Any) -> bytes:
    """A tree's arrays as bytes."""
    return pack(Message({}, flatten(tree)))
