"""Remote clients: tasks become messages over a link that may lose, duplicate, delay and reorder them."""

import abc
import collections
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Key

from partita.engines.base import Answer, Engine, EventLog, Failure, Task
from partita.engines.endpoint import (
    BINDING,
    ELL,
    ESTIMATE,
    UNBOUND,
    ell_message,
    read_ell,
    read_reply,
    update_message,
)
from partita.errors import FederationError, InputError
from partita.expectations import Estimate
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.values import Hyper
from partita.io.digest import digest, number_digest
from partita.io.wire import Message
from partita.local.client import Recipe

__all__ = ["LARGEST", "Delivery", "RemoteEngine", "Transport"]

_LOG = logging.getLogger("partita")
LARGEST = 2**31
"""The largest total size of a task's arrays, in bytes."""


class Delivery(NamedTuple):
    """A message from a client whose name the link has verified, or None if the client cannot be reached."""

    name: str
    message: Message | None
    reason: str = ""
    """Why there is no message."""


class Transport(abc.ABC):
    """Carries messages to named clients and back."""

    @abc.abstractmethod
    def post(self, name: str, message: Message) -> None:
        """Sends a message without blocking; delivery is not guaranteed."""

    def tell(self, name: str, message: Message) -> bool:
        """Sends a message that a client may go without, and returns whether this transport does."""
        return False

    @abc.abstractmethod
    def poll(self, timeout: float) -> Delivery | None:
        """The next incoming message, or None after `timeout` seconds."""

    @abc.abstractmethod
    def present(self) -> Sequence[str]:
        """The clients that are online."""

    @abc.abstractmethod
    def now(self) -> float:
        """The time in seconds since an arbitrary origin."""


class RemoteEngine(Engine):
    """Runs clients behind a link. Every incoming message is validated before it counts as an answer."""

    def __init__(
        self, link: Transport, rows: Mapping[str, int], log: EventLog | None = None, patience: float = 600.0
    ) -> None:
        self.link, self.log = link, log or EventLog()
        self.rows = rows
        """How many rows each client has; clients that join are added later."""
        self.patience = patience
        """Timeout in seconds for collecting all expected log-likelihoods."""
        self._under_way: dict[str, tuple[Task, float]] = {}
        """Tasks in flight by id, with the time they were sent."""
        self._other: set[str] = set()
        """Clients with another method, model or prior."""
        self._failed: dict[str, str] = {}
        """The reason of each client's last failure."""
        self._come: collections.deque[Answer | Failure] = collections.deque()

    def check(self, recipe: Recipe, prior: Family) -> None:
        """Nothing: clients check their own rows."""

    def bind(self, recipe: Recipe, prior: Family) -> None:
        self._factor, self._binding = Factor.one(prior), digest(recipe, prior)

    def submit(self, task: Task) -> None:
        if task.id not in self._under_way:
            self._under_way[task.id] = task, self.now()
            self._post(task.name, update_message(task, self.rows[task.name] / sum(self.rows.values())))

    def next(self, timeout: float = np.inf) -> Answer | Failure | None:
        until = self.now() + timeout
        while not self._come:
            letter = self._poll(max(until - self.now(), 0.0))
            if letter is not None:
                self._read(letter)
            elif self.now() >= until:
                return None
        return self._come.popleft()

    def notify(self, task: Task, refusal: str) -> None:
        self._post(task.name, Message({"kind": "refused", "task": task.id, "reason": refusal}, {}))

    def cancel(self, task: str) -> None:
        self._under_way.pop(task, None)

    def sent_at(self, task: str) -> float:
        return self._under_way[task][1] if task in self._under_way else np.inf

    def ell(self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None) -> float:
        """Asks every client; NaN if any does not answer in time."""
        return float(self._asked(ELL, q, key, without, hyper).value)

    def estimate(
        self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None
    ) -> Estimate:
        """Asks every client; unknown if any does not answer in time."""
        return self._asked(ESTIMATE, q, key, without, hyper)

    def _asked(
        self, kind: str, q: Family, key: Key[Array, ""], without: Collection[str], hyper: Hyper | None
    ) -> Estimate:
        question, asked = f"ell.{uuid.uuid4().hex}", [name for name in self.names if name not in without]
        missing, until = {f"{question}.{name}": name for name in asked}, self.now() + self.patience
        found = dict[str, Estimate]()
        for task, name in missing.items():
            self._post(name, ell_message(kind, task, q, key, hyper or {}))
        while missing and self.now() < until:
            letter = self._poll(until - self.now())
            task = letter.message.words("task", "") if letter and letter.message else ""
            if letter and letter.message and missing.get(task) == letter.name:
                del missing[task]
                found[letter.name] = read_ell(letter.message)
            elif letter:
                self._read(letter)
                missing = {task: name for task, name in missing.items() if letter.message or name != letter.name}
        # in the order of the clients, whoever answered first, so that rounding is the same
        return Estimate.sum([found[name] for name in asked]) if found.keys() == set(asked) else Estimate.unknown()

    def digests(self) -> Mapping[str, int]:
        """Of how many rows there are: what is in them, only the client knows."""
        return {name: number_digest(rows) for name, rows in self.rows.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.rows)

    def away(self, names: Sequence[str]) -> Bool[np.ndarray, " m"]:
        return ~np.isin(np.asarray(names), list(self.link.present()))

    def now(self) -> float:
        return self.link.now()

    def _post(self, name: str, message: Message) -> None:
        message = Message(message.header | {BINDING: self._binding}, message.arrays)
        if name in self.link.present():
            self.log.count_bytes(message.size)
        self.link.post(name, message)

    def _poll(self, timeout: float) -> Delivery | None:
        letter = self.link.poll(timeout)
        if letter is not None and letter.message is not None:
            self.log.count_bytes(letter.message.size)
        return letter

    def _read(self, letter: Delivery) -> None:
        """Queues the answer or failure in a message; a message for no task in flight is only logged."""
        if letter.message is None:
            for task in [task for task, _ in self._under_way.values() if task.name == letter.name]:
                self._fail(task, letter.reason)
            return
        message, kind = letter.message, letter.message.header.get("kind")
        if kind == "ack":
            return
        named = message.words("task", "")
        answered, _ = self._under_way.get(named, (None, 0.0))
        if answered is None or answered.name != letter.name:
            return self.log.note(letter.name, "late", f"an answer to task {named!r}, which is not awaited from it")
        if kind == "error":
            return self._fail(answered, message.words("reason", "failed"))
        if kind == "unbound":
            self._other.add(letter.name)
            if self._other >= set(self.names):
                raise FederationError(f"Every client {UNBOUND}")
            return self._fail(answered, UNBOUND, final=True)
        try:
            if kind != "update":
                raise FederationError(message.words("reason", "The message is not an answer."))
            if message.header.get("version") != answered.version:
                raise FederationError(f"The answer is for another version of the factor than {answered.version}.")
            reply = read_reply(message, self._factor, answered.hyper)
        except InputError as error:
            self.notify(answered, f"cannot be read: {error}")
            return self._fail(answered, str(error), "refused")
        self.cancel(answered.id)
        self._come.append(Answer(answered.id, reply, self.now()))

    def _fail(self, task: Task, reason: str, event: str = "failed", final: bool = False) -> None:
        self.cancel(task.id)
        self.log.note(task.name, event, reason)
        if self._failed.get(task.name) != reason:
            _LOG.warning("%s %s", task.name, reason)
        self._failed[task.name] = reason
        self._come.append(Failure(task.id, reason, final))
