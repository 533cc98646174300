"""What the server and its clients exchange, wherever clients run."""

import abc
import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.values import Hyper
from partita.local.client import Recipe, Reply


class Task(NamedTuple):
    """A posterior under way to a client and back, with all else that the answer depends on."""

    id: str
    """What tells it from every other task; an answer names it."""
    client: int
    name: str
    """The client's name."""
    prior: Family
    posterior: Family
    factor: Factor
    """The client's factor, which the server keeps."""
    version: int
    """How many of the client's answers made that factor: with seed and client it gives the random key."""
    seed: int
    updates: int
    """How many updates the posterior had seen when it was sent."""
    sent: float
    """When, on the engine's clock."""
    hyper: Hyper
    """The hyperparameters that are learned."""


class Answer(NamedTuple):
    """What a client made of a task."""

    task: str
    reply: Reply
    time: float
    """When it arrived, on the engine's clock."""


class Failure(NamedTuple):
    """A task that will not be answered."""

    task: str
    reason: str
    """The end of a sentence that begins with the client's name."""
    final: bool = False
    """Whether asking again is of no use."""


class EventLog:
    """What happened to messages, apart from the state; this one forgets it."""

    def note(self, name: str, event: str, text: str = "") -> None:
        """Something that happened to a client's answer, and left the state as it was."""

    def carried(self, size: int) -> None:
        """So many bytes of arrays were sent or received."""


class Engine(abc.ABC):
    """Where do clients run? Takes tasks without blocking, and hands out what comes back."""

    @abc.abstractmethod
    def check(self, recipe: Recipe, prior: Family) -> None:
        """Raises an `InputError` that names the client whose rows cannot be used, where rows can be seen from here."""

    @abc.abstractmethod
    def bind(self, recipe: Recipe, prior: Family) -> None:
        """Says, before the first task, what clients solve; clients elsewhere must have been given the same."""

    @abc.abstractmethod
    def submit(self, task: Task) -> None:
        """Puts a task on its way; one that is under way already is not sent twice."""

    @abc.abstractmethod
    def next(self, timeout: float = np.inf) -> Answer | Failure | None:
        """The next answer or failure, or None when nothing came for `timeout` seconds of the engine's clock."""

    @abc.abstractmethod
    def ell(self, q: Family, key: jax.Array, without: Collection[str] = (), hyper: Hyper | None = None) -> float:
        """Σ_k ell_k(q) over all clients but some; hyperparameters are the model's own unless given."""

    def posted(self, task: str) -> float:
        """When a task was put on its way, on the engine's clock; infinite where it need not be waited for."""
        return np.inf

    @abc.abstractmethod
    def cancel(self, task: str) -> None:
        """Forgets that a task is under way. Its answer may still come."""

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The clients that there are."""

    @abc.abstractmethod
    def away(self, names: Sequence[str]) -> Bool[np.ndarray, " m"]:
        """Which of these clients cannot be sent anything now."""

    @abc.abstractmethod
    def now(self) -> float:
        """The time on the engine's clock."""

    @abc.abstractmethod
    def tell(self, task: Task, refusal: str) -> None:
        """Tells a client why its answer was refused, if there is anybody to tell."""

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Whatever should hold, or be cleaned up afterwards, while a run goes on."""
        yield
