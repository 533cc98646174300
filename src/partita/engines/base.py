"""What the server and its clients exchange, wherever clients run."""

import abc
import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, Self, get_type_hints, overload

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from partita.expectations import Estimate
from partita.expectations.capabilities import CurvedInTable
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.values import Hyper
from partita.local.client import Recipe, Reply

__all__ = ["ROLES", "STORED", "Answer", "Engine", "EventLog", "Failure", "Role", "Task", "Tasks"]


class Role(NamedTuple):
    """How a field of `Task` is kept and sent; one without a role follows from the run and the client."""

    stored: bool = False
    """Whether it is a scalar that checkpoint and ledger store. Arrays they share among tasks."""
    header: str = ""
    """Its name in a message's header."""
    arrays: str = ""
    """What the names of its arrays in a message begin with."""


class Task(NamedTuple):
    """A request to a client: the posterior and everything else its answer depends on.

    A field is declared here and nowhere else: files and messages follow from its role.
    """

    id: Annotated[str, Role(stored=True, header="task")]
    """The task's unique id; an answer refers to it."""
    client: Annotated[int, Role(stored=True, header="client")]
    name: str
    """The client's name."""
    prior: Family
    posterior: Annotated[Family, Role(arrays="q")]
    factor: Annotated[Factor, Role(arrays="t")]
    """The client's factor, which the server keeps."""
    version: Annotated[int, Role(stored=True, header="version")]
    """The version of that factor (accepted answers so far); seed, client and version determine the random key."""
    seed: Annotated[int, Role(header="seed")]
    updates: Annotated[int, Role(stored=True)]
    """The number of posterior updates when the task was created, from which staleness is computed."""
    sent: Annotated[float, Role(stored=True)]
    """The time of creation, on the engine's clock."""
    hyper: Annotated[Hyper, Role(arrays="e")]
    """The current values of the learned hyperparameters."""


ROLES = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Task, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
STORED = {name: kind for name, kind in get_type_hints(Task).items() if name in ROLES and ROLES[name].stored}
"""The scalars of a task that files store, with their types."""


_TOGETHER = 64
"""How many clients' tasks are copied together."""


@jax.tree_util.register_pytree_node_class
class Tasks(Sequence[Task]):
    """Tasks in the order of clients, of which each has one at most.

    A value: with another task it is another one, which shares with this all but the tasks of a few clients.
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        parts, clients = dict[int, dict[int, Task]](), list[int]()
        for task in tasks:
            parts.setdefault(task.client // _TOGETHER, {})[task.client] = task
            clients.append(task.client)
        self._parts, self._has = parts, np.zeros(max(clients, default=-1) + 1, bool)
        self._has[clients] = True

    def of(self, client: int) -> Task | None:
        """The task of a client, if it has one."""
        return self._parts.get(client // _TOGETHER, {}).get(client)

    def added(self, tasks: Iterable[Task]) -> Self:
        """The same with other tasks."""
        return self._changed({task.client: task for task in tasks})

    def without(self, clients: Iterable[int]) -> Self:
        """The same without those of some clients."""
        return self._changed(dict.fromkeys(clients))

    def _changed(self, changes: Mapping[int, Task | None]) -> Self:
        """The same with another task of these clients, or with none."""
        parts, copied = dict(self._parts), set[int]()
        has = np.zeros(max(len(self._has), max(changes, default=-1) + 1), bool)
        has[: len(self._has)] = self._has
        for client, task in changes.items():
            place = client // _TOGETHER
            if place not in copied:
                copied.add(place)
                parts[place] = dict(parts.get(place, {}))
            parts[place].pop(client, None)
            has[client] = task is not None
            if task is not None:
                parts[place][client] = task
        new = type(self)()
        new._parts, new._has = parts, has
        return new

    def changed_since(self, before: Self) -> list[tuple[Task | None, Task | None]]:
        """The tasks that differ from those before: what a client had, and what it has."""
        mine, known = self._parts, before._parts
        places = [place for place, part in mine.items() if known.get(place) is not part]
        found = list[tuple[Task | None, Task | None]]()
        for place in sorted([*places, *(known.keys() - mine.keys())]):
            now, then = mine.get(place, {}), known.get(place, {})
            pairs = [(then.get(client), now.get(client)) for client in sorted({*now, *then})]
            found += [pair for pair in pairs if pair[0] is not pair[1]]
        return found

    def tree_flatten(self) -> tuple[tuple[Task, ...], None]:
        """The tasks, as JAX asks for them."""
        return tuple(self), None

    @classmethod
    def tree_unflatten(cls, about: None, tasks: tuple[Task, ...]) -> Self:
        """The tasks as JAX gives them back."""
        return cls(tasks)

    def clients(self) -> Int[np.ndarray, " n"]:
        """The clients that have one."""
        return np.flatnonzero(self._has)

    def __len__(self) -> int:
        return int(self._has.sum())

    def __iter__(self) -> Iterator[Task]:
        for place in sorted(self._parts):
            part = self._parts[place]
            yield from (part[client] for client in sorted(part))

    @overload
    def __getitem__(self, place: int) -> Task: ...
    @overload
    def __getitem__(self, place: slice) -> list[Task]: ...
    def __getitem__(self, place: int | slice) -> Task | list[Task]:
        return list(self)[place]


class Answer(NamedTuple):
    """A client's answer to a task."""

    task: str
    reply: Reply
    time: float
    """When it arrived, on the engine's clock."""


class Failure(NamedTuple):
    """A task that failed and will not be answered."""

    task: str
    reason: str
    """The end of a sentence that begins with the client's name."""
    final: bool = False
    """Whether a retry is useless."""


class EventLog:
    """What happened to messages, apart from the state; this one forgets it."""

    def note(self, name: str, event: str, text: str = "") -> None:
        """Logs an event about a client that did not change the state."""

    def count_bytes(self, size: int) -> None:
        """Adds to the count of array bytes sent or received."""


class Engine(abc.ABC):
    """Runs clients: accepts tasks without blocking and returns answers as they arrive."""

    _given = Tasks()
    """The tasks last given to `submit_all`."""

    @abc.abstractmethod
    def check(self, recipe: Recipe, prior: Family) -> None:
        """Raises an `InputError` that names the client whose rows cannot be used, where rows can be seen from here."""

    @abc.abstractmethod
    def bind(self, recipe: Recipe, prior: Family) -> None:
        """Sets method and prior before the first task; remote clients must have been given the same."""

    @abc.abstractmethod
    def submit(self, task: Task) -> None:
        """Sends a task; a task that is already in flight is not sent twice."""

    def submit_all(self, tasks: Tasks) -> None:
        """Sends those of these tasks that have changed since the last ones that were given here."""
        for _, task in tasks.changed_since(self._given):
            if task is not None:
                self.submit(task)
        self._given = tasks

    def submit_again(self) -> None:
        """Makes the next `submit_all` send everything: a task was lost, or a run begins."""
        self._given = Tasks()

    @property
    def ready(self) -> bool:
        """Whether an answer is there, so that `next` need not wait for one."""
        return False

    @abc.abstractmethod
    def next(self, timeout: float = np.inf) -> Answer | Failure | None:
        """The next answer or failure, or None after `timeout` seconds of the engine's clock."""

    @abc.abstractmethod
    def ell(self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None) -> float:
        """Σ_k ell_k(q) over all clients except `without`; hyperparameters default to the model's own."""

    @abc.abstractmethod
    def estimate(
        self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None
    ) -> Estimate:
        """The same for a report: with its standard error where the expectation is sampled, and draws enough for one.

        Draws of θ are the same for all clients, those of rows each client's own.
        """

    def curvature(
        self, model: CurvedInTable, q: Family, without: Collection[str] = ()
    ) -> Float[np.ndarray, "d d"] | None:
        """What all clients' rows except `without` add to the precision of the coefficients; None if out of sight."""
        return None

    def sent_at(self, task: str) -> float:
        """When a task was sent, on the engine's clock; infinite if it has no deadline."""
        return np.inf

    @abc.abstractmethod
    def cancel(self, task: str) -> None:
        """Removes a task from those in flight. A late answer may still arrive."""

    def digests(self) -> Mapping[str, int]:
        """A digest of each client's rows, by name, as far as they can be seen from here."""
        return {}

    @property
    def simulated(self) -> bool:
        """Whether its clock is simulated, so that there is no hurry."""
        return False

    @property
    def hosted(self) -> tuple[str, ...]:
        """The names of clients that run in the server itself: they get no messages, and no bound applies to them."""
        return ()

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of all clients."""

    @abc.abstractmethod
    def away(self, names: Sequence[str]) -> Bool[np.ndarray, " m"]:
        """Which of these clients are offline."""

    @abc.abstractmethod
    def now(self) -> float:
        """The time on the engine's clock."""

    @abc.abstractmethod
    def notify(self, task: Task, refusal: str) -> None:
        """Notifies a client, if it is remote, why its answer was refused."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A context manager around a run, for setup and cleanup."""
        yield
